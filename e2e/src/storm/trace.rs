//! What happens in a storm, step by step: made from a seed, written as text, read again.
//!
//! ```text
//!   seed ──make──▶ Trace { cluster, steps } ──to_text──▶ a paragraph of regressions.txt ──from_text──▶ Trace
//! ```
//!
//! Steps name their targets by number and are without effect where there is no such target: so every part of a trace is
//! a trace, which is what shrinking needs.

use serde::{Deserialize, Serialize};

use super::make;

/// A whole storm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// Where latencies and the fates of single requests come from.
    pub seed: u64,
    /// Machines at the beginning.
    pub nodes: u8,
    /// Machines in a rack.
    pub rack: u8,
    /// Namespaces.
    pub spaces: u8,
    /// What happens.
    pub steps: Vec<Timed>,
}

/// A step, and the virtual time before it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// Milliseconds after the step before.
    pub after: u32,
    /// What happens.
    #[serde(rename = "do")]
    pub step: Step,
}

/// How the pods of a job end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// They run on.
    Never,
    /// They succeed after so many seconds.
    After(u16),
    /// They fail after so many seconds, each time.
    Fails(u16),
}

/// A job, or a gang made by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Pods, one to a unit.
    pub pods: u8,
    /// Fewest pods; `pods` where it is not elastic.
    pub min: u8,
    /// Accelerators of a pod.
    pub gpus: u8,
    /// All pods in one rack.
    pub rack: bool,
    /// Which of [`FRAMEWORKS`].
    pub framework: u8,
    /// Restarts allowed in 24 h.
    pub budget: u8,
    /// Which of [`PRIORITIES`].
    pub priority: u8,
    /// Every pod must succeed, not only rank 0's.
    pub all: bool,
    /// Nodes held as spares.
    pub spares: u8,
    /// How pods end.
    pub end: End,
}

/// Frameworks, by number.
pub const FRAMEWORKS: [&str; 5] = ["Torchrun", "Megatron", "DeepSpeed", "Mpi", "TorchFT"];
/// Priority classes, by number; the first is none.
pub const PRIORITIES: [Option<(&str, i32)>; 3] = [None, Some(("low", 100)), Some(("high", 1_000))];

/// A job or a gang, by namespace and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Target {
    /// Namespace.
    pub space: u8,
    /// Number in it.
    pub at: u8,
}

/// Which requests of the operator break, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Break {
    /// 429, with a time to wait.
    TooMany,
    /// 500.
    Internal,
    /// 503.
    Unavailable,
    /// 409 on writes, without effect.
    Conflict,
    /// Done, and the connection breaks.
    Lost,
    /// Done, and never answered.
    Silent,
    /// The connection breaks before anything is done.
    Unreachable,
    /// Done late: requests overtake each other.
    Late,
    /// Done at once, answered late.
    Slow,
}

/// What happens to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Blow {
    /// The kubelet is silent, containers run on.
    Hang,
    /// The machine is off; its containers are dead when it is back.
    Off,
    /// The kubelet says itself that it is not ready.
    NotReady,
    /// Every new pod fails with this reason.
    Refuse(Refusal),
    /// New pods are never looked at.
    Deaf,
    /// Cordoned.
    Cordon,
    /// Tainted `NoSchedule`.
    Taint,
    /// Tainted `NoExecute`.
    TaintHard,
    /// So many accelerators are healthy.
    Gpus(u8),
    /// The machine is gone with its Node, and one of the same name comes.
    Vanish,
}

/// With which reason a kubelet refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Refusal {
    /// Fewer GPUs than it promised.
    OutOfGpu,
    /// Less CPU.
    OutOfCpu,
    /// A device plugin's.
    Unexpected,
    /// Alignment.
    Topology,
}

impl Refusal {
    /// `status.reason` of the refused pod.
    pub fn reason(self) -> &'static str {
        match self {
            Self::OutOfGpu => "OutOfnvidia.com/gpu",
            Self::OutOfCpu => "OutOfcpu",
            Self::Unexpected => "UnexpectedAdmissionError",
            Self::Topology => "TopologyAffinityError",
        }
    }
}

/// What somebody edits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Edit {
    /// Suspends or resumes.
    Suspend(bool),
    /// Another number of pods, within the bounds where it is elastic.
    Resize(u8),
    /// Another priority class.
    Priority(u8),
    /// Another template; a job takes it only while suspended.
    Template(u8),
    /// Confined to a rack, or no longer; only while suspended.
    Rack(bool),
    /// A label that means nothing.
    Label(u8),
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// A job is created.
    Submit(Target, Shape),
    /// A job is edited.
    Edit(Target, Edit),
    /// A job is deleted.
    Delete(Target),
    /// A job is deleted and made again under its name as soon as the server takes it.
    Replace(Target, Shape),
    /// A gang is made by hand.
    MakeGang(Target, Shape),
    /// A gang, a job's or not, is edited by hand.
    EditGang(Target, Edit),
    /// A gang, a job's or not, is deleted by hand.
    DeleteGang(Target),
    /// A Service or ConfigMap of ours is deleted.
    DeleteOwned(u8),
    /// A pod of ours is deleted by hand; by force if true.
    DeletePod(u8, bool),
    /// The containers of a pod of ours exit with this code.
    Exit(u8, u8),
    /// All pods of a job or gang exit with 0.
    Finish(Target),
    /// Requests of the operators break: so many in a thousand, for so many milliseconds.
    Api {
        /// How.
        how: Break,
        /// How many of a thousand.
        permille: u16,
        /// For how long.
        lasts: u32,
    },
    /// Watches lag by so many milliseconds, each kind by another part of it, for so long.
    Lag(u16, u32),
    /// All watches break; history is forgotten if true: they must list again.
    BreakWatches(bool),
    /// Nothing reaches the operators for so long, and history is forgotten: changes in the gap are never seen.
    Gap(u32),
    /// The leader is killed after so many more requests (before the last one is done, or after), and started again after
    /// so many milliseconds.
    Kill {
        /// Requests until then; 0 kills at once.
        requests: u16,
        /// The last request is still done.
        done: bool,
        /// Milliseconds until the next process.
        down: u32,
    },
    /// The leader is frozen for so long; another process starts beside it if true.
    Freeze(u32, bool),
    /// Another process starts, then the leader stops in order.
    HandOver,
    /// The wall clock of the operators steps by so many seconds.
    Step(i32),
    /// A machine is struck for so many milliseconds.
    Strike(u8, Blow, u32),
    /// A quota of so many pods in a namespace, for so long.
    Quota(u8, u8, u32),
    /// A limit range that refuses the pods of a namespace, for so long.
    Limit(u8, u32),
    /// A foreign pod takes so many accelerators of a node, for so long.
    Foreign(u8, u8, u32),
    /// A pod in another namespace claims to be a gang's, on a node, for so long; it has ended well if true.
    Impostor(Target, u8, bool, u32),
    /// The Lease of the operators is deleted.
    DropLease,
    /// Nothing for so long.
    Wait(u32),
}

impl Trace {
    /// The trace of a seed.
    pub fn of(seed: u64) -> Self {
        make::trace(seed)
    }

    /// A paragraph: a line for the cluster, a line a step.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "storm seed={} nodes={} rack={} spaces={}\n",
            self.seed, self.nodes, self.rack, self.spaces
        );
        for step in &self.steps {
            // A step is plain data: it always has a text.
            text.push_str(&serde_json::to_string(step).unwrap_or_default());
            text.push('\n');
        }
        text
    }

    /// Reads what [`Self::to_text`] wrote.
    ///
    /// # Errors
    /// A sentence with the line at fault.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
        let head = lines.next().unwrap_or_default();
        let number = |key: &str| -> Result<u64, String> {
            head.split_whitespace()
                .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
                .and_then(|value| value.parse().ok())
                .ok_or_else(|| format!("{head:?} has no {key}=<number>; a trace begins with `storm seed=…`"))
        };
        let mut trace = Self {
            seed: number("seed")?,
            nodes: number("nodes")? as u8,
            rack: number("rack")? as u8,
            spaces: number("spaces")? as u8,
            steps: Vec::new(),
        };
        for line in lines {
            trace.steps.push(serde_json::from_str(line).map_err(|error| format!("{line:?}: {error}"))?);
        }
        Ok(trace)
    }

    /// The traces of a file: paragraphs that begin with `storm`.
    ///
    /// # Errors
    /// A sentence with the line at fault.
    pub fn read_all(text: &str) -> Result<Vec<Self>, String> {
        let mut paragraphs: Vec<String> = Vec::new();
        for line in text.lines() {
            if line.starts_with("storm ") {
                paragraphs.push(String::new());
            }
            if let Some(paragraph) = paragraphs.last_mut() {
                paragraph.push_str(line);
                paragraph.push('\n');
            }
        }
        paragraphs.iter().map(|paragraph| Self::from_text(paragraph)).collect()
    }
}
