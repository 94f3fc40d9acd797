//! A map of the topology for the terminal: who holds which accelerator, domain by domain.
//!
//! ```text
//!   nodes, topology, claims ──MapInput::new──▶ MapInput (domains → nodes → cells) ──render──▶ text
//! ```
//!
//! ```text
//!   rack-a  AAAA AAAA BB.. ....
//!   rack-b  AAAA AAAA xxxx ....
//!
//!   A research/llama  16 GPUs   B serving/chat  2 GPUs   . free   x not ready
//! ```

use muster_model::{Node, NodeName, Topology};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

/// What one accelerator does (or one node without any).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cell {
    /// Nothing.
    Free,
    /// It is held by a job: its position in [`MapInput::jobs`].
    Job(usize),
    /// It is used by something that is in no plan.
    Other,
    /// It is free, but its node is cordoned.
    Cordoned,
    /// It is free, but its node is not ready.
    NotReady,
}

/// A node and its accelerators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapNode {
    /// Its name.
    pub name: String,
    /// One a device; at least one.
    pub cells: Vec<Cell>,
}

/// One line of the map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapDomain {
    /// Names of the domains around it, outermost first.
    pub outer: Vec<String>,
    /// Its name.
    pub name: String,
    /// Its nodes, by name.
    pub nodes: Vec<MapNode>,
}

/// A job of the legend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapJob {
    /// Name.
    pub name: String,
    /// What stands behind the name, such as `2 units, 64 GPUs`.
    pub note: String,
}

/// What is drawn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapInput {
    /// What one line is, such as `NvlinkDomain`; empty where one line holds all.
    pub level: String,
    /// The lines.
    pub domains: Vec<MapDomain>,
    /// The jobs that cells name.
    pub jobs: Vec<MapJob>,
}

/// Something that holds devices of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The node.
    pub node: NodeName,
    /// How many devices; 0 shows only on nodes without devices.
    pub devices: i64,
    /// The job's position in the legend; `None` for what is in no plan.
    pub job: Option<usize>,
}

/// Letters of jobs; those beyond share the last.
const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@";
/// Colours of jobs in the 256-colour palette, told apart on dark and on light ground; repeated when they run out.
const COLOURS: &[u8] = &[33, 208, 35, 135, 37, 169, 142, 67, 203, 72, 99, 173];
/// More lines than this that look the same, one below the other, are drawn as one.
const REPEATS: usize = 3;

/// The letter of a job.
pub fn letter(job: usize) -> char {
    char::from(LETTERS[job.min(LETTERS.len() - 1)])
}

impl Cell {
    /// Its sign on the map.
    pub fn sign(self) -> char {
        match self {
            Self::Free => '.',
            Self::Job(job) => letter(job),
            Self::Other => '#',
            Self::Cordoned => '-',
            Self::NotReady => 'x',
        }
    }

    /// Its words in the legend; a job has its own.
    fn words(self) -> Option<&'static str> {
        match self {
            Self::Free => Some("free"),
            Self::Job(_) => None,
            Self::Other => Some("used by others"),
            Self::Cordoned => Some("cordoned"),
            Self::NotReady => Some("not ready"),
        }
    }

    fn painted(self, sign: char, color: bool) -> String {
        let code = match self {
            _ if !color => return sign.to_string(),
            Self::Free => "2".to_owned(),
            Self::Job(job) => format!("1;38;5;{}", COLOURS[job % COLOURS.len()]),
            Self::Other => "90".to_owned(),
            Self::Cordoned => "33".to_owned(),
            Self::NotReady => "31".to_owned(),
        };
        format!("\x1b[{code}m{sign}\x1b[0m")
    }
}

impl MapInput {
    /// The map of a cluster. `devices` names the resources that count as accelerators. A line is a domain of the
    /// innermost level whose domains hold more than one node; where there is none, one line holds all nodes.
    pub fn new<'a>(
        topology: &Topology,
        nodes: impl IntoIterator<Item = &'a Node>,
        devices: &BTreeSet<String>,
        claims: &[Claim],
        jobs: Vec<MapJob>,
    ) -> Self {
        let mut nodes: Vec<&Node> = nodes.into_iter().collect();
        nodes.sort_by_key(|node| natural(node.name.as_str()));
        let present: Vec<bool> = (0..topology.levels.len())
            .map(|level| nodes.iter().any(|node| topology.label(level, &node.labels).is_some()))
            .collect();
        let paths: Vec<Vec<String>> = nodes
            .iter()
            .map(|node| {
                let path = topology.path(&node.name, &node.labels, &present);
                path.iter().map(ToString::to_string).collect()
            })
            .collect();
        let level = (0..topology.levels.len()).rev().find(|level| {
            present[*level]
                && paths.iter().map(|path| &path[..=*level]).collect::<BTreeSet<_>>().len() < nodes.len()
        });
        let mut claimed: BTreeMap<&NodeName, Vec<&Claim>> = BTreeMap::new();
        for claim in claims {
            claimed.entry(&claim.node).or_default().push(claim);
        }
        let mut lines: BTreeMap<Vec<String>, Vec<MapNode>> = BTreeMap::new();
        let mut order: Vec<Vec<String>> = Vec::new();
        for (node, path) in nodes.iter().zip(&paths) {
            let mut line: Vec<String> = level.map_or_else(Vec::new, |level| path[..=level].to_vec());
            line.dedup();
            let claims = claimed.get(&node.name).map_or(&[][..], Vec::as_slice);
            let node = MapNode { name: node.name.to_string(), cells: cells(node, devices, claims) };
            if !lines.contains_key(&line) {
                order.push(line.clone());
            }
            lines.entry(line).or_default().push(node);
        }
        // Domains by their outer domains, then in the order of their first node.
        order.sort_by(|a, b| outer(a).cmp(outer(b)));
        let domains = order
            .into_iter()
            .map(|path| MapDomain {
                outer: outer(&path).to_vec(),
                name: path.last().cloned().unwrap_or_else(|| "all nodes".to_owned()),
                nodes: lines.remove(&path).unwrap_or_default(),
            })
            .collect();
        let level = level.map_or_else(String::new, |level| topology.levels[level].name.clone());
        Self { level, domains, jobs }
    }
}

fn outer(path: &[String]) -> &[String] {
    &path[..path.len().saturating_sub(1)]
}

/// Text and numbers of a name in turn, so that `n10` comes after `n9`.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let text = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let digits = rest[text..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |at| text + at);
        parts.push((rest[..text].to_owned(), rest[text..digits].parse().unwrap_or(u64::MAX)));
        rest = &rest[digits..];
    }
    parts
}

/// The cells of a node: held ones first, job by job.
fn cells(node: &Node, devices: &BTreeSet<String>, claims: &[&Claim]) -> Vec<Cell> {
    let count: i64 = devices.iter().map(|resource| node.allocatable.get(resource).max(0)).sum();
    let idle = if !node.ready {
        Cell::NotReady
    } else if node.cordoned {
        Cell::Cordoned
    } else {
        Cell::Free
    };
    let mut held: Vec<Cell> = claims
        .iter()
        .flat_map(|claim| {
            // A node without devices shows by one cell that something runs there.
            let shown = if count == 0 { 1 } else { claim.devices.max(0) };
            std::iter::repeat_n(claim.job.map_or(Cell::Other, Cell::Job), shown as usize)
        })
        .collect();
    held.sort_unstable_by_key(|cell| match cell {
        Cell::Job(job) => *job,
        _ => usize::MAX,
    });
    held.resize(count.max(1) as usize, idle);
    held
}

/// How finely nodes are drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scale {
    /// A cell per accelerator, nodes apart.
    Device,
    /// A cell per node.
    Node,
}

/// The map as text, at most `width` columns where names leave room for at least one cell. A cell is an accelerator
/// where all lines fit the width so, else a node; longer lines are continued below. Without `color` no escape
/// sequence is written.
pub fn render(input: &MapInput, width: usize, color: bool) -> String {
    let label = input.domains.iter().map(|domain| domain.name.chars().count()).max().unwrap_or(0);
    let indent = if input.domains.iter().any(|domain| !domain.outer.is_empty()) { 2 } else { 0 };
    let start = indent + label + 2;
    let fine =
        |domain: &MapDomain| start + domain.nodes.iter().map(|node| node.cells.len() + 1).sum::<usize>();
    let scale = if input.domains.iter().all(|domain| fine(domain) <= width + 1) {
        Scale::Device
    } else {
        Scale::Node
    };
    let mut text = String::new();
    let mut last_outer: &[String] = &[];
    let mut at = 0;
    while let Some(domain) = input.domains.get(at) {
        if domain.outer != last_outer {
            let _ = writeln!(text, "{}", domain.outer.join(" / "));
            last_outer = &domain.outer;
        }
        let line = signs(domain, scale);
        let same = input.domains[at..]
            .iter()
            .take_while(|next| next.outer == domain.outer && signs(next, scale) == line)
            .count();
        let name = format!("{:indent$}{:label$}  ", "", domain.name);
        write_line(&mut text, &name, &line, width, color);
        if same > REPEATS {
            let last = &input.domains[at + same - 1].name;
            let _ = writeln!(text, "{:indent$}… {} more like it, to {last}", "", same - 1);
            at += same;
        } else {
            at += 1;
        }
    }
    text.push('\n');
    legend(&mut text, input, scale, width, color);
    text
}

/// What a line shows, in groups that a space parts.
fn signs(domain: &MapDomain, scale: Scale) -> Vec<Vec<(Cell, char)>> {
    match scale {
        Scale::Device => domain
            .nodes
            .iter()
            .map(|node| node.cells.iter().map(|cell| (*cell, cell.sign())).collect())
            .collect(),
        // Groups of nine nodes: half of an 18-node rack.
        Scale::Node => domain.nodes.chunks(9).map(|group| group.iter().map(summary).collect()).collect(),
    }
}

/// A node in one sign: its only content, a lower-case letter where a job leaves room, `+` where several share it.
fn summary(node: &MapNode) -> (Cell, char) {
    let kinds: BTreeSet<Cell> = node.cells.iter().copied().collect();
    let busy: Vec<Cell> = kinds.iter().copied().filter(|c| matches!(c, Cell::Job(_) | Cell::Other)).collect();
    match busy.as_slice() {
        [] => node.cells.first().map_or((Cell::Free, '.'), |cell| (*cell, cell.sign())),
        [only] if kinds.len() == 1 => (*only, only.sign()),
        [only] => (*only, only.sign().to_ascii_lowercase()),
        [first, ..] => (*first, '+'),
    }
}

fn write_line(text: &mut String, name: &str, groups: &[Vec<(Cell, char)>], width: usize, color: bool) {
    let start = name.chars().count();
    text.push_str(name);
    let mut column = start;
    for group in groups {
        if column > start {
            // A group is kept whole where it fits the rest of the line.
            if column + 1 + group.len() <= width {
                text.push(' ');
                column += 1;
            } else {
                let _ = write!(text, "\n{:start$}", "");
                column = start;
            }
        }
        for (cell, sign) in group {
            if column > start && column >= width {
                let _ = write!(text, "\n{:start$}", "");
                column = start;
            }
            text.push_str(&cell.painted(*sign, color));
            column += 1;
        }
    }
    text.push('\n');
}

/// Jobs, one a line, then the signs that occur.
fn legend(text: &mut String, input: &MapInput, scale: Scale, width: usize, color: bool) {
    let shown: BTreeSet<Cell> = input
        .domains
        .iter()
        .flat_map(|domain| &domain.nodes)
        .flat_map(|node| node.cells.iter().copied())
        .collect();
    for (at, job) in input.jobs.iter().enumerate() {
        if shown.contains(&Cell::Job(at)) {
            let cell = Cell::Job(at);
            let line = format!("{}  {}", job.name, job.note);
            let line: String = line.chars().take(width.saturating_sub(3).max(1)).collect();
            let _ = writeln!(text, "{}  {}", cell.painted(cell.sign(), color), line.trim_end());
        }
    }
    let mut words: Vec<String> = shown
        .iter()
        .filter_map(|cell| cell.words().map(|words| format!("{} {words}", cell.painted(cell.sign(), color))))
        .collect();
    if scale == Scale::Node {
        words.push("a sign is a node: lower case partly used, + shared by several".to_owned());
    }
    let _ = writeln!(text, "{}", words.join("   "));
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
