//! What kind of fault ended a pod, and what that means.
//!
//! ```text
//!   PodEnd (ended, or being deleted) ──classify──▶ Fault ──MEANINGS──▶ counts? moves? blames its node?
//!          └──sentence──▶ words for people
//! ```

use muster_model::NodeName;

/// Exit code with which NVIDIA's Resiliency Extension says: do not requeue.
pub const DO_NOT_REQUEUE: i32 = 93;
/// Most characters of a text that a kubelet or a program wrote: enough for a sentence, few enough for a status.
const MOST_TEXT: usize = 400;

/// How a pod ended, or why it is about to. Texts are taken as they come: what is made of them is bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodEnd {
    /// It is being deleted and has not ended.
    pub leaving: bool,
    /// Whether any of its containers had started, those that initialise it included.
    pub started: bool,
    /// Exit code of the container that failed, whether it was to initialise the pod or not.
    pub exit_code: Option<i32>,
    /// Name of that container; empty if there is none.
    pub container: String,
    /// Whether that container was to initialise the pod: the program itself never ran.
    pub init: bool,
    /// Reason of the pod or of the container, such as `OOMKilled`; empty if there is none.
    pub reason: String,
    /// What the kubelet or the container said; empty if nothing.
    pub message: String,
    /// Reason of the condition `DisruptionTarget`, if it is true.
    pub disruption: Option<String>,
}

impl PodEnd {
    /// The word with which a kubelet refused the pod, such as `OutOfcpu`; empty where none did.
    pub fn refusal(&self) -> String {
        if self.started || self.leaving { String::new() } else { clip(&self.reason, 63) }
    }

    /// What happened to the pod of this name, for people: "pod a-0 failed on node n1 (init container fetch: exit code 1)".
    pub fn sentence(&self, pod: &str, node: &NodeName) -> String {
        if self.leaving {
            let by = self.disruption.as_ref().map_or_else(String::new, |by| format!(" ({})", clip(by, 63)));
            return format!("pod {pod} on node {node} is being deleted{by}");
        }
        let reason = clip(&self.reason, 63);
        let words = match (self.exit_code, reason.as_str()) {
            (Some(code), "" | "Error") => format!("exit code {code}"),
            (Some(code), reason) => format!("{reason}, exit code {code}"),
            (None, "") => "no reason given".to_owned(),
            (None, reason) => reason.to_owned(),
        };
        let who =
            if self.init { format!("init container {}: ", clip(&self.container, 63)) } else { String::new() };
        let message = clip(&self.message, MOST_TEXT);
        let detail = if message.is_empty() { message } else { format!(": {message}") };
        format!("pod {pod} failed on node {node} ({who}{words}){detail}")
    }
}

/// A text on one line, of at most so many characters.
fn clip(text: &str, most: usize) -> String {
    let mut line: String =
        text.trim().chars().take(most).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.trim().chars().nth(most).is_some() {
        line.push('…');
    }
    line
}

/// Kinds of fault. The order is that of causes: of several at once the smallest can be the cause of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The program asked not to be started again.
    DoNotRequeue,
    /// The node is gone, silent or shutting down.
    NodeLost,
    /// A device of the node is unhealthy.
    DeviceUnhealthy,
    /// A foreign pod of higher priority took its place.
    Preempted,
    /// It was evicted: a drain, or pressure on the node.
    Evicted,
    /// No container ever started.
    Misfit,
    /// Somebody deleted it.
    PodDeleted,
    /// It used more memory than its limit.
    OutOfMemory,
    /// The program failed.
    Application,
}

/// What a fault means.
struct Meaning {
    fault: Fault,
    cause: &'static str,
    /// Counts against the restart budget.
    counts: bool,
    /// The unit cannot go on where it is.
    moves: bool,
    /// New pods should avoid the node for a while.
    blames_node: bool,
}

const fn meaning(fault: Fault, cause: &'static str, counts: bool, moves: bool, blames_node: bool) -> Meaning {
    Meaning { fault, cause, counts, moves, blames_node }
}

const MEANINGS: [Meaning; 9] = [
    //                                                  counts moves  blames
    meaning(Fault::DoNotRequeue, "DoNotRequeue", true, false, false),
    meaning(Fault::NodeLost, "NodeLost", true, true, true),
    meaning(Fault::DeviceUnhealthy, "DeviceUnhealthy", true, true, true),
    meaning(Fault::Preempted, "Preempted", false, true, false),
    meaning(Fault::Evicted, "Evicted", true, true, true),
    meaning(Fault::Misfit, "Misfit", false, true, true),
    meaning(Fault::PodDeleted, "PodDeleted", true, false, false),
    meaning(Fault::OutOfMemory, "OutOfMemory", true, false, false),
    meaning(Fault::Application, "ApplicationFailed", true, false, false),
];

impl Fault {
    fn meaning(self) -> &'static Meaning {
        // Every fault has a row (a test holds it); the last is the most general.
        MEANINGS.iter().find(|row| row.fault == self).unwrap_or(&MEANINGS[MEANINGS.len() - 1])
    }

    /// One CamelCase word.
    pub fn cause(self) -> &'static str {
        self.meaning().cause
    }

    /// Whether it counts against the restart budget.
    pub fn counts(self) -> bool {
        self.meaning().counts
    }

    /// Whether the unit cannot go on where it is.
    pub fn moves(self) -> bool {
        self.meaning().moves
    }

    /// Whether new pods should avoid the node for a while.
    pub fn blames_node(self) -> bool {
        self.meaning().blames_node
    }
}

/// Reasons of the condition `DisruptionTarget` (Kubernetes, "Pod disruption conditions").
const DISRUPTIONS: [(&str, Fault); 6] = [
    ("PreemptionByScheduler", Fault::Preempted),
    ("DeletionByTaintManager", Fault::NodeLost),
    ("DeletionByPodGC", Fault::NodeLost),
    ("DeletionByDeviceTaintManager", Fault::DeviceUnhealthy),
    ("EvictionByEvictionAPI", Fault::Evicted),
    ("TerminationByKubelet", Fault::Evicted),
];

/// Reasons of pods and containers that started (kubelet, node lifecycle controller).
const REASONS: [(&str, Fault); 9] = [
    ("OOMKilled", Fault::OutOfMemory),
    ("Evicted", Fault::Evicted),
    ("Preempting", Fault::Evicted),
    ("NodeLost", Fault::NodeLost),
    ("NodeShutdown", Fault::NodeLost),
    ("Shutdown", Fault::NodeLost),
    // A graceful shutdown of the node, and a kubelet that came back and knows nothing of the container.
    ("Terminated", Fault::NodeLost),
    ("ContainerStatusUnknown", Fault::NodeLost),
    ("UnexpectedAdmissionError", Fault::Misfit),
];

fn known(table: &[(&str, Fault)], reason: &str) -> Option<Fault> {
    table.iter().find(|(name, _)| *name == reason).map(|(_, fault)| *fault)
}

/// What kind of fault ended a pod, or makes it leave. The first that applies: the program's own word; a foreign pod took
/// its place; no container started, whatever the reason (the kubelet's list of refusals is open); a disruption from
/// outside; somebody deleted it; a reason; an exit code. Without any of them nobody saw it end: its node was lost.
pub fn classify(end: &PodEnd) -> Fault {
    if end.exit_code == Some(DO_NOT_REQUEUE) {
        return Fault::DoNotRequeue;
    }
    let disruption = end.disruption.as_deref().map(|why| known(&DISRUPTIONS, why).unwrap_or(Fault::Evicted));
    match disruption {
        // Neither the node nor the pod is to blame, so it is no misfit, however early it came.
        Some(Fault::Preempted) => Fault::Preempted,
        // Nothing of it has run: another node will do, at no cost.
        _ if !end.started => Fault::Misfit,
        Some(fault) => fault,
        None if end.leaving => Fault::PodDeleted,
        None => {
            let by_code = if end.exit_code.is_some() { Fault::Application } else { Fault::NodeLost };
            known(&REASONS, &end.reason).unwrap_or(by_code)
        }
    }
}
