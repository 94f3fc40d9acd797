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
    /// The kubelet has taken it in.
    pub admitted: bool,
    /// Ready condition.
    pub ready: bool,
    /// How it ended, or that it leaves.
    pub end: PodEnd,
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
    /// The word with which a kubelet refused it; empty where none did.
    pub refusal: String,
    /// The pod itself said so; otherwise it was judged by its node, and may still say otherwise.
    pub reported: bool,
}

impl Loss {
    /// A loss that the pod itself did not report.
    pub fn judged(fault: Fault, message: String) -> Self {
        Self { fault, message, exit_code: None, refusal: String::new(), reported: false }
    }

    fn reported(fault: Fault, message: String) -> Self {
        Self { reported: true, ..Self::judged(fault, message) }
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
            PodState::Failed => return Says::Lost(self.loss(node)),
            PodState::Pending | PodState::Running => {}
        }
        if self.node.is_some_and(|bound| bound != node) {
            let message = format!("pod {} was bound to a node that is not planned", self.name);
            return Says::Lost(Loss::reported(Fault::Misfit, message));
        }
        if self.end.leaving {
            return Says::Lost(self.loss(node));
        }
        if self.state == PodState::Running && self.end.started {
            Says::Running { ready: self.ready }
        } else {
            Says::Starting { admitted: self.admitted, waits: self.waits.clone() }
        }
    }

    fn loss(&self, node: &NodeName) -> Loss {
        Loss {
            exit_code: self.end.exit_code,
            refusal: self.end.refusal(),
            ..Loss::reported(recovery::classify(&self.end), self.end.sentence(self.name, node))
        }
    }
}
