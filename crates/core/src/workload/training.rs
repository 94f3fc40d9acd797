//! TrainingJob: one Gang of its own name, and a status that answers "why is it not running".

use muster_api::condition::{self, Now as Condition};
use muster_api::training_job::CheckpointStatus;
use muster_api::{GangPhase, JobPhase, TrainingJob, TrainingJobStatus, UnitCounts, labels};
use muster_cluster::template;
use muster_lifecycle::Now;
use muster_lifecycle::gang::Trouble;
use muster_model::{Millis, ObjectKey, Uid};
use serde::{Deserialize, Serialize};

use super::{GangWant, Object, Obstacle, Workload, derived_of};
use crate::World;
use crate::derive::{self, Problem};
use crate::gang::{self, GangRt, older, time};
use crate::shared::Shared;
use crate::want::{Facet, Kind, Outcome, Target, Want};

/// Delay after a status that could not be written.
const AGAIN: Millis = 500;
/// So long a job without a Gang says nothing: it comes in a moment.
const SILENT: Millis = 3_000;

/// What a gang was derived from beside the job's own specification: frozen while its plan is in force, so that nodes
/// that come and go change nothing of a job that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DerivedFrom {
    /// `metadata.generation` of the job.
    generation: i64,
    /// [`derive::Derived::per_pod`].
    per_pod: u32,
}

/// One job.
#[derive(Debug)]
pub struct Training {
    key: ObjectKey,
    uid: Uid,
    object: TrainingJob,
    version: String,
    /// As on the server, ours if we wrote last.
    status: TrainingJobStatus,
    obstacle: Option<Obstacle>,
    /// Since when it has no Gang.
    gangless: Option<Millis>,
    /// The status that was sent last.
    sent: Option<Box<TrainingJobStatus>>,
    write_after: Millis,
    told_invalid: Option<String>,
}

impl Training {
    /// A job as first seen.
    pub fn new(object: TrainingJob) -> Self {
        Self {
            key: crate::key_of(&object.metadata),
            uid: crate::uid_of(&object.metadata),
            version: object.metadata.resource_version.clone().unwrap_or_default(),
            status: object.status.clone().unwrap_or_default(),
            object,
            obstacle: None,
            gangless: None,
            sent: None,
            write_after: 0,
            told_invalid: None,
        }
    }

    fn target(&self) -> Target {
        Target { kind: Kind::Job, facet: Facet::Status, key: self.key.clone() }
    }

    fn phase(&self) -> JobPhase {
        self.status.phase.unwrap_or_default()
    }

    /// What the gang in force was derived from, if the job was not edited since.
    fn frozen(&self, own: Option<&GangRt>) -> Option<DerivedFrom> {
        let gang = own.filter(|gang| gang.life.plan().is_some() && !gang.is_final())?;
        let from: DerivedFrom = serde_json::from_str(&derived_of(&gang.object)).ok()?;
        let same = Some(from.generation) == self.object.metadata.generation;
        (same && from.per_pod > 0).then_some(from)
    }

    /// The gang that the job comes to, or everything that is wrong.
    fn derive(&self, world: &World, own: Option<&GangRt>) -> Result<GangWant, Vec<Problem>> {
        let spec = &self.object.spec;
        let mut problems = Vec::new();
        if !world.has_queue(&spec.queue) {
            problems.push(Problem::new(
                "spec.queue",
                format!("Queue {:?} does not exist", spec.queue),
                "create it, or leave spec.queue out for the default queue",
            ));
        }
        if world.priority(spec.priority_class_name.as_deref()).is_none() {
            problems.push(Problem::new(
                "spec.priorityClassName",
                format!(
                    "PriorityClass {:?} does not exist",
                    spec.priority_class_name.as_deref().unwrap_or_default()
                ),
                "create it, or leave the field out",
            ));
        }
        let frozen = self.frozen(own).map(|from| from.per_pod);
        let derived = derive::derive(spec, world, frozen, &mut problems);
        let (Some(derived), true) = (derived, problems.is_empty()) else { return Err(problems) };
        let generation = self.object.metadata.generation.unwrap_or_default();
        let from = DerivedFrom { generation, per_pod: derived.per_pod };
        Ok(GangWant {
            name: self.key.name.clone(),
            spec: derive::gang_spec(spec, derived),
            derived: serde_json::to_string(&from).unwrap_or_default(),
        })
    }

    /// How long its plans have been in force, all added up; milliseconds.
    fn active(&self, wall: Millis) -> Millis {
        let now = self.status.active_since.as_ref().map_or(0, |since| wall - since.0.as_millisecond());
        self.status.active_seconds.saturating_mul(1_000).saturating_add(now.max(0))
    }

    /// Whether the job has been running for longer than it may.
    fn deadline_passed(&self, shared: &mut Shared, status: &TrainingJobStatus) -> Option<String> {
        let limit = self.object.spec.active_deadline.as_ref()?;
        status.active_since.as_ref()?;
        let left = limit.millis().ok()?.saturating_sub(self.active(shared.now.wall));
        if left > 0 {
            let at = shared.now.at.saturating_add(left);
            shared.wake_workload(&self.uid, at);
            return None;
        }
        Some(format!(
            "it held accelerators for longer than spec.activeDeadline ({limit}), starting and recovering included; raise it to \
             give the job more time"
        ))
    }

    /// The status that the job should have.
    fn status(
        &self,
        shared: &mut Shared,
        own: Option<&GangRt>,
        problems: &[Problem],
    ) -> Option<TrainingJobStatus> {
        let now = shared.now;
        let mut status = self.status.clone();
        status.observed_generation = self.object.metadata.generation;
        let mut changes = Vec::new();
        let holds = own.is_some_and(|gang| gang.life.plan().is_some() && !gang.is_final());
        count_active(&mut status, holds, self.active(now.wall), now);
        match own {
            Some(gang) => reflect(&mut status, gang, &self.object, &mut changes, now),
            None => self.without_gang(shared, &mut status, problems, &mut changes)?,
        }
        if let (Some(_), Some(obstacle)) = (own, &self.obstacle) {
            // The Gang runs on as it was, whatever was edited.
            changes.push(Condition::no(condition::VALID, obstacle.reason, obstacle.message.clone()));
        }
        if !problems.is_empty() {
            let message = derive::sentence(problems);
            changes.push(Condition::no(condition::VALID, "Invalid", message.clone()));
            if !holds {
                let suspended = self.object.spec.suspend;
                status.phase = Some(if suspended { JobPhase::Suspended } else { JobPhase::Pending });
                status.reason = Some("Invalid".into());
                status.message = Some(message);
            }
        }
        if let Some(message) = self.deadline_passed(shared, &status) {
            status.phase = Some(JobPhase::Failed);
            status.reason = Some("DeadlineExceeded".into());
            status.message = Some(message.clone());
            status.completion_time = Some(time(now.wall));
            // Its gang goes, and nobody counts for it any more.
            count_active(&mut status, false, self.active(now.wall), now);
            status.units = UnitCounts::new(status.units.desired, 0, 0);
            (status.gpus, status.data) = (0, 0);
            for over in [condition::PLACED, condition::RUNNING] {
                changes.push(Condition::no(over, "DeadlineExceeded", message.clone()));
            }
            changes.push(Condition::yes(condition::FINISHED, "DeadlineExceeded", message));
        }
        let generation = status.observed_generation;
        status.conditions = condition::merge(&status.conditions, &changes, generation, &time(now.wall));
        Some(status)
    }

    /// What a job without a Gang says: what stands in the way, or, when that lasts, that its Gang is being made.
    fn without_gang(
        &self,
        shared: &mut Shared,
        status: &mut TrainingJobStatus,
        problems: &[Problem],
        changes: &mut Vec<Condition>,
    ) -> Option<()> {
        let (reason, message) = match &self.obstacle {
            _ if !problems.is_empty() => ("Invalid", derive::sentence(problems)),
            Some(obstacle) => (obstacle.reason, obstacle.message.clone()),
            None => ("GangMissing", "its Gang is being made".to_owned()),
        };
        if self.obstacle.is_none() && problems.is_empty() && self.status.phase.is_none() {
            let due = self.gangless? + SILENT;
            if due > shared.now.at {
                shared.wake_workload(&self.uid, due);
                return None;
            }
        }
        status.phase = Some(if self.object.spec.suspend { JobPhase::Suspended } else { JobPhase::Pending });
        status.reason = Some(reason.into());
        status.message = Some(message.clone());
        status.units = UnitCounts::default();
        (status.gpus, status.data, status.generation) = (0, 0, None);
        changes.push(Condition::no(condition::PLACED, reason, message.clone()));
        changes.push(Condition::no(condition::RUNNING, reason, message));
        Some(())
    }

    fn write(&mut self, shared: &mut Shared, status: TrainingJobStatus, holds: Option<&GangRt>) {
        let now = shared.now.at;
        if status == self.status || shared.desk.busy(&self.target()) {
            // Its outcome looks again.
            return;
        }
        if self.write_after > now {
            shared.wake_workload(&self.uid, self.write_after);
            return;
        }
        // While pods are being created, their creation comes first; what there is to say is said right after.
        let busy = holds.is_some_and(|gang| shared.creating.contains_key(&gang.key));
        let ends = status.phase.unwrap_or_default().is_final();
        if busy && !ends {
            shared.wake_workload(&self.uid, now + AGAIN);
            return;
        }
        let invalid = (status.reason.as_deref() == Some("Invalid")).then(|| status.message.clone()).flatten();
        if invalid != self.told_invalid {
            if let Some(message) = &invalid {
                shared.tell(Kind::Job, &self.key, &self.uid, "Invalid", message, true);
            }
            self.told_invalid = invalid;
        }
        let new = |o: &&Obstacle| says(&status, o.reason) && !says(&self.status, o.reason);
        if let Some(obstacle) = self.obstacle.as_ref().filter(new) {
            shared.tell(Kind::Job, &self.key, &self.uid, obstacle.reason, &obstacle.message, true);
        }
        if ends && status.reason.as_deref() == Some("DeadlineExceeded") {
            let message = status.message.clone().unwrap_or_default();
            shared.tell(Kind::Job, &self.key, &self.uid, "DeadlineExceeded", &message, true);
        }
        let (job, version) = (self.key.clone(), self.version.clone());
        self.sent = Some(Box::new(status.clone()));
        shared.desk.want(Want::WriteJob { job, version, status: Box::new(status) });
    }
}

impl Workload for Training {
    fn kind(&self) -> Kind {
        Kind::Job
    }

    fn key(&self) -> &ObjectKey {
        &self.key
    }

    fn uid(&self) -> &Uid {
        &self.uid
    }

    fn leaving(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }

    fn orphans(&self) -> bool {
        self.object.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == "orphan")
    }

    fn is_final(&self) -> bool {
        self.phase().is_final()
    }

    fn children(&self, world: &World, have: &[&GangRt]) -> (Vec<GangWant>, Vec<Problem>) {
        let own = have.iter().find(|gang| gang.key.name == self.key.name).copied();
        match self.derive(world, own) {
            Ok(want) => (vec![want], Vec::new()),
            Err(problems) => {
                // Nothing new can be made of it; that it is suspended, or not any more, holds for what there is.
                let spec = own.map(|gang| {
                    let mut spec = gang.object.spec.clone();
                    spec.suspend = self.object.spec.suspend;
                    let derived = derived_of(&gang.object);
                    GangWant { name: gang.key.name.clone(), spec, derived }
                });
                (spec.into_iter().collect(), problems)
            }
        }
    }

    fn obstruct(&mut self, obstacle: Option<Obstacle>) {
        self.obstacle = obstacle;
    }

    fn obstacle(&self) -> Option<&Obstacle> {
        self.obstacle.as_ref()
    }

    fn reflect(&mut self, shared: &mut Shared, have: &[&GangRt], problems: &[Problem]) {
        let own = have.iter().find(|gang| gang.key.name == self.key.name && !gang.life.leaving()).copied();
        match own {
            Some(_) => self.gangless = None,
            None => {
                self.gangless.get_or_insert(shared.now.at);
            }
        }
        if let Some(status) = self.status(shared, own, problems) {
            self.write(shared, status, own);
        }
    }

    fn after_end(&mut self, shared: &mut Shared, have: &[&GangRt]) {
        // Past its deadline it ends while its gang runs: whoever leads now takes that away.
        for gang in have.iter().filter(|gang| !gang.is_final()) {
            gang::delete(shared, gang);
        }
        let ttl = self.object.spec.ttl_after_finished.as_ref().and_then(|ttl| ttl.millis().ok());
        let Some((ttl, ended)) = ttl.zip(self.status.completion_time.as_ref()) else { return };
        let at = ended.0.as_millisecond().saturating_add(ttl);
        if at > shared.now.wall {
            let at = shared.when(at);
            shared.wake_workload(&self.uid, at);
        } else {
            shared.desk.want(Want::Delete { kind: Kind::Job, key: self.key.clone(), uid: self.uid.clone() });
        }
    }

    fn written(&mut self, outcome: &Outcome, now: Millis) -> Option<Millis> {
        let sent = self.sent.take();
        match outcome {
            Outcome::Done { version, .. } => {
                if let Some(version) = version
                    && !older(version, &self.version)
                {
                    self.version.clone_from(version);
                }
                if let Some(sent) = sent {
                    self.status = *sent;
                }
                None
            }
            Outcome::Refused(message) => {
                tracing::error!(job = %self.key, %message, "the API server refuses the job's status");
                self.write_after = now + 10_000;
                Some(self.write_after)
            }
            _ => {
                self.write_after = now + AGAIN;
                Some(self.write_after)
            }
        }
    }

    fn see(&mut self, object: Object) {
        let Object::Training(object) = object;
        let version = object.metadata.resource_version.clone().unwrap_or_default();
        if !older(&version, &self.version) {
            self.version = version;
            self.status = object.status.clone().unwrap_or_default();
            self.object = *object;
        }
    }
}

/// Whether a status gives a reason, for its phase or for what it was not made into.
fn says(status: &TrainingJobStatus, reason: &str) -> bool {
    let valid = condition::find(&status.conditions, condition::VALID);
    status.reason.as_deref() == Some(reason) || valid.is_some_and(|valid| valid.reason == reason)
}

/// Keeps count of the time during which a plan is in force: not while it is suspended or waits.
fn count_active(status: &mut TrainingJobStatus, holds: bool, active: Millis, now: Now) {
    if holds {
        status.active_since.get_or_insert_with(|| time(now.wall));
    } else if status.active_since.take().is_some() {
        status.active_seconds = active.div_euclid(1_000);
    }
}

/// What the gang's status means for the job.
fn reflect(
    status: &mut TrainingJobStatus,
    gang: &GangRt,
    job: &TrainingJob,
    changes: &mut Vec<Condition>,
    now: Now,
) {
    let from = &gang.status;
    let waits = gang.life.holding().is_some_and(|h| matches!(h.trouble, Trouble::Waits { .. }));
    let phase = match gang.phase() {
        GangPhase::Succeeded => JobPhase::Succeeded,
        GangPhase::Failed => JobPhase::Failed,
        GangPhase::Running if !waits => JobPhase::Running,
        GangPhase::Running => JobPhase::Recovering,
        GangPhase::Reserved | GangPhase::Placed if gang.after_loss() => JobPhase::Recovering,
        GangPhase::Reserved | GangPhase::Placed => JobPhase::Starting,
        _ if job.spec.suspend => JobPhase::Suspended,
        _ => JobPhase::Pending,
    };
    status.phase = Some(phase);
    status.reason.clone_from(&from.reason);
    status.message =
        from.message.as_deref().map(|message| derive::in_words_of_job(from.reason.as_deref(), message));
    status.units = from.units.clone();
    status.gpus = from.gpus;
    status.data = from.units.planned.saturating_mul(gang.object.spec.launch.replicas_per_unit);
    if status.gang.as_ref() != Some(&gang.uid.0) {
        // Another Gang begins at nothing; the job does not forget.
        if status.gang.replace(gang.uid.0.clone()).is_some() {
            status.earlier_restarts = status.restarts;
        }
    }
    let own = u32::try_from(from.restarts_total).unwrap_or(u32::MAX);
    status.restarts = own.saturating_add(status.earlier_restarts);
    status.generation = from.plan.as_ref().map(|plan| plan.generation);
    status.start_time.clone_from(&from.started_at);
    status.completion_time.clone_from(&from.finished_at);
    status.selector = Some(format!("{}={}", labels::GANG_UID, gang.uid));
    if let Some(step) = from.checkpoint_step
        && status.checkpoint.as_ref().is_none_or(|checkpoint| checkpoint.step != step)
    {
        status.checkpoint = Some(CheckpointStatus { step, time: Some(time(now.wall)) });
    }
    for found in &from.conditions {
        let status = match found.status.as_str() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        };
        changes.push(Condition {
            type_: found.type_.clone(),
            status,
            reason: found.reason.clone(),
            message: derive::in_words_of_job(Some(&found.reason), &found.message),
        });
    }
    let valid = condition::find(&from.conditions, condition::VALID);
    if valid.is_none_or(|valid| valid.status == "True") {
        // In the job's own fields, not in those of the gang made from it.
        let notes = derive::review(&job.spec).notes;
        let said = template::sound("the specification makes sense", notes);
        changes.push(Condition::yes(condition::VALID, "Valid", said));
    }
}
