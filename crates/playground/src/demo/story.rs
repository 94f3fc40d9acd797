//! The story that the demo tells, step by step; each waits for what it tells.
//!
//! ```text
//!   set_up: apply the examples ──▶ map fills ──▶ all run but one
//!   tell:   set_up, ranks in their domains, a node dies, the refusal, kubectl's table
//! ```

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::{Api, ResourceExt};
use muster_api::{JobPhase, TrainingJob};
use muster_cluster::map::render;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tokio::process::Command;

use super::examples::{Example, IMPOSSIBLE, JOBS};
use super::paint::{Paint, table};
use super::report;
use super::see::{RankRow, Seen, counted};
use super::stage::{Scene, is_ready};
use crate::session::Kind;

/// How long the jobs may take to run. A busy machine with two cores needs a few seconds.
const RUNNING: Duration = Duration::from_secs(90);
/// How long a recovery may take. A kubelet's silence is noticed after 8 s here and after 50 s in other clusters.
const RECOVERY: Duration = Duration::from_secs(150);
/// How long the job that ends may still run.
const ENDING: Duration = Duration::from_secs(60);
/// The job that loses a node, and the unit of it that does.
const VICTIM: &str = "moe-8x22b";
const VICTIM_UNIT: u32 = 1;
/// The job that ends by itself.
const SHORT: &str = "finetune";

/// Tells the whole story.
///
/// # Errors
/// When a step does not happen in time.
pub async fn tell(scene: &Scene, paint: &mut Paint) -> Result<()> {
    set_up(scene, paint).await?;
    ranks(scene, paint).await?;
    failure(scene, paint).await?;
    refusal(scene, paint).await?;
    overview(scene, paint).await
}

/// Applies the examples and shows how they are placed.
///
/// # Errors
/// When a job is refused or does not come to run.
pub async fn set_up(scene: &Scene, paint: &mut Paint) -> Result<()> {
    paint.step("kubectl apply -f examples/");
    let begun = Instant::now();
    for example in JOBS.iter().chain([&IMPOSSIBLE]) {
        if !example.create(&scene.client).await? {
            paint.note(&format!("{} is there already and is left as it is", example.name()?));
        }
    }
    let names = JOBS.iter().map(Example::name).collect::<Result<Vec<_>>>()?;
    let jobs = scene.jobs();
    scene
        .wait("the jobs to run", RUNNING, async || {
            show_map(scene, paint, Paint::frame).await?;
            let mut waiting = Vec::new();
            for name in &names {
                let (phase, said) = state(&jobs.get(name).await?);
                match phase {
                    JobPhase::Running | JobPhase::Succeeded => {}
                    JobPhase::Failed => bail!("job {name} has failed: {said}"),
                    phase => waiting.push(format!("{name} {phase:?} ({said})")),
                }
            }
            Ok(if waiting.is_empty() { Ok(()) } else { Err(waiting.join(", ")) })
        })
        .await?;
    let took = begun.elapsed();
    let seen = show_map(scene, paint, Paint::settle).await?;
    let pods = names.iter().map(|name| seen.ranks(name, &scene.topology).len()).sum::<usize>();
    paint.line("");
    paint.say(&format!(
        "{} with {} run after {:.1} s: one status write placed each, then its pods were created on their nodes.",
        counted(names.len() as i64, "job"),
        counted(pods as i64, "pod"),
        took.as_secs_f32()
    ));
    Ok(())
}

/// Phase of a job, and its message.
fn state(job: &TrainingJob) -> (JobPhase, String) {
    let status = job.status.as_ref();
    let phase = status.and_then(|status| status.phase).unwrap_or_default();
    (phase, status.and_then(|status| status.message.clone()).unwrap_or_default())
}

/// Draws the map as it is now.
///
/// # Errors
/// When the cluster cannot be read.
pub async fn show_map(scene: &Scene, paint: &mut Paint, draw: impl FnOnce(&mut Paint, &str)) -> Result<Seen> {
    let seen = Seen::read(&scene.client).await?;
    let text = render(&seen.map(&scene.topology)?, paint.width, paint.color);
    draw(paint, text.trim_end());
    Ok(seen)
}

/// Shows where the ranks of one expert group are, and checks that every group is in one domain.
async fn ranks(scene: &Scene, paint: &mut Paint) -> Result<()> {
    paint.step(&format!("{VICTIM}: 16 experts that must share NVLink"));
    let seen = Seen::read(&scene.client).await?;
    let rows = seen.ranks(VICTIM, &scene.topology);
    let domains = Seen::domains(&rows);
    if let Some((unit, over)) = domains.iter().find(|(_, over)| over.len() != 1) {
        bail!("unit {unit} of {VICTIM} is spread over {over:?}: its placement rule is broken");
    }
    show_ranks(paint, &unit_of(&rows, VICTIM_UNIT), &[]);
    let used: BTreeSet<&str> = domains.values().flatten().copied().collect();
    let counts: Vec<String> = used
        .iter()
        .map(|domain| {
            let inside = domains.values().filter(|over| over.contains(domain)).count();
            format!("{inside} in {domain}")
        })
        .collect();
    paint.line("");
    paint.say(&format!(
        "That is expert group {VICTIM_UNIT} of {}. Each lies in one NVLink domain: {}.",
        domains.len(),
        counts.join(", ")
    ));
    Ok(())
}

fn unit_of(rows: &[RankRow], unit: u32) -> Vec<RankRow> {
    rows.iter().filter(|row| row.unit == unit).cloned().collect()
}

/// A table of ranks. Rows that are not among `before` are marked, where there is a before.
fn show_ranks(paint: &mut Paint, rows: &[RankRow], before: &[RankRow]) {
    let heading = ["RANKS", "POD", "NODE", "NVLINK DOMAIN", "RACK", ""].map(str::to_owned);
    let mut lines = vec![heading.to_vec()];
    for row in rows {
        let moved = before.iter().find(|old| old.first == row.first && old.node != row.node);
        lines.push(vec![
            format!("{:>2}–{}", row.first, row.last),
            row.pod.clone(),
            row.node.clone(),
            row.domain.clone(),
            row.rack.clone(),
            moved.map(|old| format!("was on {}", old.node)).unwrap_or_default(),
        ]);
    }
    for (at, line) in table(&lines).into_iter().enumerate() {
        let line = if at == 0 { paint.dim(&line) } else { line };
        paint.line(&format!("   {line}"));
    }
}

/// A node of the job dies; shows what is said until the job runs again.
async fn failure(scene: &Scene, paint: &mut Paint) -> Result<()> {
    let seen = Seen::read(&scene.client).await?;
    let rows = seen.ranks(VICTIM, &scene.topology);
    let victim = unit_of(&rows, VICTIM_UNIT).get(1).map(|row| row.node.clone());
    let victim = victim.with_context(|| format!("unit {VICTIM_UNIT} of {VICTIM} has no second pod"))?;
    let jobs = scene.jobs();
    let before = jobs.get(VICTIM).await?.status.unwrap_or_default().generation.unwrap_or_default();
    let mut told = Told::until_now(scene).await?;

    paint.step(&format!("Node {victim} loses power"));
    scene.fleet.kill(&victim).await?;
    let begun = Instant::now();
    tell_at(paint, begun, &victim, "its kubelet falls silent");
    let nodes: Api<Node> = Api::all(scene.client.clone());
    let mut noticed = false;
    let after = scene
        .wait(&format!("{VICTIM} to recover"), RECOVERY, async || {
            if !noticed && !is_ready(&nodes.get(&victim).await?) {
                noticed = true;
                tell_at(paint, begun, &victim, "is NotReady, says the node controller");
            }
            let job = jobs.get(VICTIM).await?;
            told.news(scene, paint, begun).await?;
            let status = job.status.clone().unwrap_or_default();
            let generation = status.generation.unwrap_or_default();
            let (phase, said) = state(&job);
            if phase.is_final() {
                bail!("job {VICTIM} is {phase:?} after the loss of a node: {said}");
            }
            let back = phase == JobPhase::Running && generation > before;
            Ok(if back { Ok(generation) } else { Err(format!("{phase:?}, plan {generation} ({said})")) })
        })
        .await?;
    // The last event comes after the status that it tells of.
    told.until(scene, paint, begun, "Running").await?;
    let seen = show_map_below(scene, paint).await?;
    let now = seen.ranks(VICTIM, &scene.topology);
    if let Some(row) = now.iter().find(|row| row.node == victim) {
        bail!("pod {} is still planned on the dead node {victim}", row.pod);
    }
    ensure!(
        now.len() == rows.len(),
        "{VICTIM} has {} pods after its recovery, not {}",
        now.len(),
        rows.len()
    );
    ensure!(
        Seen::domains(&now).values().all(|over| over.len() == 1),
        "a unit of {VICTIM} left its NVLink domain"
    );
    paint.line("");
    show_ranks(paint, &unit_of(&now, VICTIM_UNIT), &rows);
    paint.line("");
    let new = now.iter().filter(|row| rows.iter().all(|old| old.pod != row.pod)).count();
    paint.say(&format!(
        "Plan {before} has become plan {after}: {new} of {} pods are new; each group is still in one NVLink domain.",
        now.len()
    ));
    Ok(())
}

async fn show_map_below(scene: &Scene, paint: &mut Paint) -> Result<Seen> {
    paint.line("");
    show_map(scene, paint, Paint::settle).await
}

/// The events that were told already.
struct Told {
    uids: BTreeSet<String>,
    reasons: BTreeSet<String>,
}

impl Told {
    async fn until_now(scene: &Scene) -> Result<Self> {
        let events = report::events(&scene.client).await?;
        Ok(Self { uids: events.iter().filter_map(Event::uid).collect(), reasons: BTreeSet::new() })
    }

    /// Tells what was said about the job since.
    async fn news(&mut self, scene: &Scene, paint: &mut Paint, begun: Instant) -> Result<()> {
        for event in report::events(&scene.client).await? {
            let about = &event.involved_object;
            let ours = about.name.as_deref() == Some(VICTIM)
                && matches!(about.kind.as_deref(), Some("TrainingJob" | "Gang"));
            let uid = event.uid().unwrap_or_default();
            if ours && self.uids.insert(uid) {
                let reason = event.reason.clone().unwrap_or_default();
                tell_at(paint, begun, &reason, event.message.as_deref().unwrap_or_default());
                self.reasons.insert(reason);
            }
        }
        Ok(())
    }

    /// Tells the news until an event of this reason has been told.
    async fn until(&mut self, scene: &Scene, paint: &mut Paint, begun: Instant, reason: &str) -> Result<()> {
        scene
            .wait(&format!("an event {reason}"), Duration::from_secs(15), async || {
                self.news(scene, paint, begun).await?;
                let told = self.reasons.contains(reason);
                Ok(if told { Ok(()) } else { Err("none".to_owned()) })
            })
            .await
    }
}

/// A line with the time since the failure.
fn tell_at(paint: &mut Paint, begun: Instant, who: &str, what: &str) {
    let start = format!("{:>5.1} s  {who:<11}  ", begun.elapsed().as_secs_f32());
    let lines = super::paint::wrapped(what, paint.width.min(100).saturating_sub(start.chars().count() + 3));
    for (at, line) in lines.iter().enumerate() {
        let start = if at == 0 { start.clone() } else { " ".repeat(start.chars().count()) };
        paint.line(&format!("   {start}{line}"));
    }
}

/// Shows why the impossible job waits.
async fn refusal(scene: &Scene, paint: &mut Paint) -> Result<()> {
    let name = IMPOSSIBLE.name()?;
    paint.step(&format!("{name} waits, and says why"));
    let jobs = scene.jobs();
    let (reason, message) = scene
        .wait(&format!("a reason why {name} waits"), RUNNING, async || {
            let status = jobs.get(&name).await?.status.unwrap_or_default();
            let phase = status.phase.unwrap_or_default();
            ensure!(phase == JobPhase::Pending, "job {name} is {phase:?}, although nothing can hold it");
            Ok(match (status.reason, status.message) {
                (Some(reason), Some(message)) => Ok((reason, message)),
                _ => Err("no reason".to_owned()),
            })
        })
        .await?;
    let seen = Seen::read(&scene.client).await?;
    let pods = seen.ranks(&name, &scene.topology).len();
    ensure!(pods == 0, "job {name} waits, but has {}", counted(pods as i64, "pod"));
    paint.say(&format!("{reason}: {message}."));
    paint.say("It has no pods and holds nothing while it waits.");
    Ok(())
}

/// Shows kubectl's table, once the short job has ended.
async fn overview(scene: &Scene, paint: &mut Paint) -> Result<()> {
    let jobs = scene.jobs();
    scene
        .wait(&format!("{SHORT} to end"), ENDING, async || {
            let (phase, said) = state(&jobs.get(SHORT).await?);
            ensure!(phase != JobPhase::Failed, "job {SHORT} has failed: {said}");
            Ok(if phase == JobPhase::Succeeded { Ok(()) } else { Err(format!("{phase:?} ({said})")) })
        })
        .await?;
    paint.step("kubectl get trainingjobs -A");
    let out = Command::new(&scene.kubectl)
        .args(["get", "trainingjobs", "-A"])
        .env("KUBECONFIG", &scene.admin)
        .output()
        .await
        .with_context(|| format!("{} cannot be started: install kubectl", scene.kubectl.display()))?;
    ensure!(out.status.success(), "kubectl: {}", String::from_utf8_lossy(&out.stderr).trim());
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        paint.line(&format!("   {line}"));
    }
    Ok(())
}

/// What to look at, for those who have a cluster of their own left.
pub const LOOK: [(&str, &str); 4] = [
    ("kubectl get tj -A -o wide", "what runs, what waits, and why"),
    ("kubectl describe tj moe-8x22b -n research", "conditions and events of a job"),
    ("kubectl get gang moe-8x22b -n research -o yaml", "its plan: which unit on which nodes"),
    ("kubectl get pods -n research -o wide", "pods, on the planned nodes"),
];

/// The commands of [`LOOK`], in columns.
pub fn look() -> Vec<String> {
    let rows: Vec<Vec<String>> =
        LOOK.iter().map(|(command, what)| vec![(*command).to_owned(), (*what).to_owned()]).collect();
    table(&rows)
}

/// The last words, when all is stopped.
pub fn farewell(paint: &mut Paint, kind: Kind, took: Duration) {
    let cluster = match kind {
        Kind::Local => "",
        Kind::Kind => " CLUSTER=kind",
        Kind::Kubeconfig => " CLUSTER=kubeconfig",
    };
    paint.step("Look around yourself");
    paint.say(&format!("`make playground{cluster}` leaves all this running and prints the KUBECONFIG for:"));
    paint.line("");
    for line in look() {
        paint.line(&format!("     {line}"));
    }
    paint.line("");
    paint.say(&format!(
        "That took {:.0} s. Everything that was started has been stopped.",
        took.as_secs_f32()
    ));
}
