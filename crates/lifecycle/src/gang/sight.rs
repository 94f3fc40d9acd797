//! What is seen of a pod, as far as its gang's life depends on it.

use muster_model::{NodeName, Uid};

use crate::recovery::{self, Fault, PodEnd};

/// Where a pod stands by its own word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodState {
    /// Not all containers have started.
    Pending,
    /// Started.
    Running,
    /// It ended well.
    Succeeded,
    /// It ended otherwise, or its kubelet refused it.
    Failed,
}

/// What is seen of one pod.
#[derive(Clone, Debug)]
pub struct Sight<'a> {
    /// UID.
    pub uid: &'a Uid,
    /// Name, for words.
    pub name: &'a str,
    /// The node that it is bound to.
    pub node: Option<&'a NodeName>,
    /// Where it stands.
    pub state: PodState,
    /// It is being deleted.
    pub leaving: bool,
    /// The kubelet has taken it in.
    pub admitted: bool,
    /// Ready condition.
    pub ready: bool,
    /// How it ended, where it has, and whether a container had started.
    pub end: PodEnd,
    /// It was an init container that ended.
    pub init: bool,
    /// Name of the container that explains the end.
    pub container: Option<&'a str>,
    /// What its container or the kubelet said when it ended; empty if nothing.
    pub words: &'a str,
    /// Why no container starts, as its kubelet or kube-scheduler says; empty if nobody does.
    pub waits: String,
}

/// Why a pod cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// What kind of fault.
    pub fault: Fault,
    /// What happened, in words.
    pub message: String,
    /// Exit code, where a container has ended.
    pub exit_code: Option<i32>,
    /// The pod itself said so; otherwise it was judged by its node, and may still say otherwise.
    pub reported: bool,
}

impl Loss {
    /// A loss that the pod itself did not report.
    pub fn judged(fault: Fault, message: String) -> Self {
        Self { fault, message, exit_code: None, reported: false }
    }

    fn reported(fault: Fault, message: String) -> Self {
        Self { fault, message, exit_code: None, reported: true }
    }
}

/// What a pod's sight says of its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Says {
    /// No container has started.
    Starting {
        /// The kubelet has taken it in.
        admitted: bool,
        /// Why it does not start; empty if nobody says.
        waits: String,
    },
    /// Its containers run.
    Running {
        /// It is Ready.
        ready: bool,
    },
    /// It ended well.
    Done,
    /// It cannot go on.
    Lost(Loss),
}

impl Sight<'_> {
    /// What follows for a pod that is planned on `node`.
    pub fn says(&self, node: &NodeName) -> Says {
        match self.state {
            PodState::Succeeded => return Says::Done,
            PodState::Failed => return Says::Lost(self.failed(node)),
            PodState::Pending | PodState::Running => {}
        }
        if self.node.is_some_and(|bound| bound != node) {
            let message = format!("pod {} was bound to a node that is not planned", self.name);
            return Says::Lost(Loss::reported(Fault::Misfit, message));
        }
        if self.leaving {
            let fault = recovery::classify_leaving(&self.end);
            let by = self.end.disruption.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
            let message = format!("pod {} on node {node} is being deleted{by}", self.name);
            return Says::Lost(Loss::reported(fault, message));
        }
        if self.state == PodState::Running && self.end.started {
            Says::Running { ready: self.ready }
        } else {
            Says::Starting { admitted: self.admitted, waits: self.waits.clone() }
        }
    }

    fn failed(&self, node: &NodeName) -> Loss {
        let end = &self.end;
        let words = match (end.exit_code, end.reason.as_str()) {
            (Some(code), "" | "Error") => format!("exit code {code}"),
            (Some(code), reason) => format!("{reason}, exit code {code}"),
            (None, "") => "no reason given".into(),
            (None, reason) => reason.to_owned(),
        };
        let by = match self.container {
            Some(name) if self.init => format!("init container {name}: "),
            Some(name) => format!("container {name}: "),
            None => String::new(),
        };
        let detail = if self.words.is_empty() { String::new() } else { format!(": {}", self.words) };
        let message = format!("pod {} failed on node {node} ({by}{words}){detail}", self.name);
        // The program of a pod whose init container failed is at fault, although no other container started.
        let end = &PodEnd { started: end.started || (self.init && end.exit_code.is_some()), ..end.clone() };
        Loss { exit_code: end.exit_code, ..Loss::reported(recovery::classify(end), message) }
    }
}
