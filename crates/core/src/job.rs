//! Jobs: each has one Gang of its own name, and a status that answers "why is it not running".

use muster_api::condition::{self, Now};
use muster_api::training_job::CheckpointStatus;
use muster_api::{GangPhase, GangSpec, JobPhase, TrainingJob, TrainingJobStatus, UnitCounts, labels};
use muster_cluster::template;
use muster_model::{Millis, ObjectKey, Uid};
use serde_json::json;

use super::outbox::Ticket;
use super::status::time;
use super::{Core, Wake};
use crate::derive::{self, Problem};
use crate::effect::{Effect, Outcome, Owned, OwnedKind};

const AGAIN: Millis = 500;

/// One job.
#[derive(Debug)]
pub struct JobRt {
    object: TrainingJob,
    version: String,
    status: TrainingJobStatus,
    writing: Option<Box<TrainingJobStatus>>,
    write_after: Millis,
    /// The gang specification that was asked for last.
    asked: Option<GangSpec>,
    deleted: bool,
    told_invalid: Option<String>,
}

impl JobRt {
    fn new(object: TrainingJob) -> Self {
        Self {
            version: object.metadata.resource_version.clone().unwrap_or_default(),
            status: object.status.clone().unwrap_or_default(),
            object,
            writing: None,
            write_after: 0,
            asked: None,
            deleted: false,
            told_invalid: None,
        }
    }

    /// UID.
    pub fn uid(&self) -> Uid {
        Uid(self.object.metadata.uid.clone().unwrap_or_default())
    }

    fn leaving(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }

    fn phase(&self) -> JobPhase {
        self.status.phase.unwrap_or_default()
    }
}

impl Core {
    pub(super) fn set_job(&mut self, object: TrainingJob) {
        let key = ObjectKey::new(
            object.metadata.namespace.clone().unwrap_or_default(),
            object.metadata.name.clone().unwrap_or_default(),
        );
        match self.jobs.get_mut(&key) {
            Some(rt) => {
                let version = object.metadata.resource_version.clone().unwrap_or_default();
                if !super::gang::older(&version, &rt.version) {
                    rt.version = version;
                    rt.status = object.status.clone().unwrap_or_default();
                    rt.object = object;
                }
            }
            None => {
                self.jobs.insert(key.clone(), JobRt::new(object));
            }
        }
        self.dirty_jobs.insert(key);
    }

    pub(super) fn remove_job(&mut self, key: &ObjectKey, uid: &Uid) {
        if self.jobs.get(key).is_some_and(|rt| rt.uid() == *uid) {
            self.jobs.remove(key);
        }
        self.delete_gang_of(key, uid);
    }

    /// A job that goes takes its gang along; waiting for the garbage collector would take longer.
    fn delete_gang_of(&mut self, key: &ObjectKey, job: &Uid) {
        let Some(rt) = self.gangs.get_mut(key).filter(|rt| !rt.leaving() && !rt.removing) else { return };
        let mut owners = rt.object.metadata.owner_references.iter().flatten();
        if owners.any(|owner| owner.uid == job.0) {
            rt.removing = true;
            let uid = rt.uid();
            self.delete_owned(OwnedKind::Gang, key.clone(), uid);
        }
    }

    /// Looks at a job and does what follows.
    pub(super) fn settle_job(&mut self, key: &ObjectKey, now: Millis) {
        let Some(rt) = self.jobs.get(key) else { return };
        let uid = rt.uid();
        if rt.leaving() {
            self.delete_gang_of(key, &uid);
            return;
        }
        if rt.phase().is_final() {
            // Past its deadline it ends while its gang runs: whoever leads now takes that away.
            if self.gangs.get(key).is_some_and(|gang| !gang.is_final()) {
                self.delete_gang_of(key, &uid);
            }
            self.expire_job(key, now);
            return;
        }
        let derived = self.derive_gang(key);
        if let Ok(spec) = &derived {
            self.ensure_gang(key, spec);
        }
        let status = self.job_status(key, derived.err().as_deref(), now);
        self.write_job(key, status, now);
    }

    /// Deletes a finished job when its time is over.
    fn expire_job(&mut self, key: &ObjectKey, now: Millis) {
        let Some(rt) = self.jobs.get_mut(key) else { return };
        let ttl = rt.object.spec.ttl_after_finished.as_ref().and_then(|ttl| ttl.millis().ok());
        let Some((ttl, ended)) = ttl.zip(rt.status.completion_time.as_ref()) else { return };
        let at = ended.0.as_millisecond() + ttl;
        if at > now {
            self.wakes.insert((at, Wake::Job(key.clone())));
        } else if !std::mem::replace(&mut rt.deleted, true) {
            let uid = rt.uid();
            self.delete_owned(OwnedKind::Job, key.clone(), uid);
        }
    }

    /// The gang that the job comes to.
    fn derive_gang(&self, key: &ObjectKey) -> Result<GangSpec, Vec<Problem>> {
        let Some(rt) = self.jobs.get(key) else { return Err(Vec::new()) };
        let spec = &rt.object.spec;
        let mut problems = Vec::new();
        if !self.world.has_queue(&spec.queue) {
            problems.push(Problem::new(
                "spec.queue",
                format!("Queue {:?} does not exist", spec.queue),
                "create it, or leave spec.queue out for the default queue",
            ));
        }
        if self.world.priority(spec.priority_class_name.as_deref()).is_none() {
            problems.push(Problem::new(
                "spec.priorityClassName",
                format!(
                    "PriorityClass {:?} does not exist",
                    spec.priority_class_name.as_deref().unwrap_or_default()
                ),
                "create it, or leave the field out",
            ));
        }
        let derived = derive::derive(spec, &self.world, &mut problems);
        match derived {
            Some(derived) if problems.is_empty() => Ok(derive::gang_spec(spec, derived)),
            _ => Err(problems),
        }
    }

    /// Creates the gang, or brings its specification up to date.
    fn ensure_gang(&mut self, key: &ObjectKey, spec: &GangSpec) {
        let current = self.gangs.get(key);
        let Some(rt) = self.jobs.get_mut(key) else { return };
        let uid = rt.uid();
        let foreign = current.is_some_and(|gang| {
            gang.leaving()
                || !gang.object.metadata.owner_references.iter().flatten().any(|owner| owner.uid == uid.0)
        });
        // A gang of an earlier job of this name must go first; the watch tells when.
        if foreign || current.is_some_and(|gang| gang.object.spec == *spec) || rt.asked.as_ref() == Some(spec)
        {
            return;
        }
        rt.asked = Some(spec.clone());
        let job = &rt.object;
        let mut body = json!({
            "apiVersion": "muster.dev/v1alpha1",
            "kind": "Gang",
            "metadata": { "name": key.name, "namespace": key.namespace },
            "spec": spec,
        });
        let exists = current.is_some();
        if exists {
            body["metadata"]["uid"] = json!(current.map(super::gang::GangRt::uid));
        } else {
            body["metadata"]["labels"] =
                json!({ labels::JOB: key.name, labels::MANAGED_BY: labels::MANAGED_BY_VALUE });
            body["metadata"]["finalizers"] = json!([labels::PODS_FINALIZER]);
            body["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "muster.dev/v1alpha1",
                "kind": "TrainingJob",
                "name": job.metadata.name,
                "uid": job.metadata.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }]);
        }
        let object = Owned { kind: OwnedKind::Gang, key: key.clone(), waiter: key.clone(), body };
        self.out.push(Effect::Ensure { object, exists });
    }

    pub(super) fn gang_ensured(&mut self, job: &ObjectKey, outcome: Outcome, ticket: Ticket, now: Millis) {
        let Some(rt) = self.jobs.get_mut(job) else { return };
        match outcome {
            Outcome::Done { .. } => {}
            Outcome::Refused(message) => {
                tracing::warn!(job = %job, %message, "the gang is refused");
                rt.asked = None;
                self.wakes.insert((now + 10_000, Wake::Job(job.clone())));
            }
            Outcome::Conflict | Outcome::Gone => {
                rt.asked = None;
                self.wakes.insert((now + AGAIN, Wake::Job(job.clone())));
            }
            _ => self.out.again(ticket, now),
        }
    }

    /// The status that the job should have.
    fn job_status(
        &mut self,
        key: &ObjectKey,
        problems: Option<&[Problem]>,
        now: Millis,
    ) -> Option<TrainingJobStatus> {
        let rt = self.jobs.get(key)?;
        let gang = self.gangs.get(key).filter(|gang| {
            !gang.leaving()
                && gang.object.metadata.owner_references.iter().flatten().any(|o| o.uid == rt.uid().0)
        });
        let mut status = rt.status.clone();
        status.observed_generation = rt.object.metadata.generation;
        let mut changes = Vec::new();
        if let Some(gang) = gang {
            reflect(&mut status, gang, &rt.object, &mut changes, now);
        } else {
            status.phase = Some(JobPhase::Pending);
            status.units = UnitCounts::default();
        }
        match problems.filter(|problems| !problems.is_empty()) {
            Some(problems) => {
                let message = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                changes.push(Now::no(condition::VALID, "Invalid", message.clone()));
                if gang.is_none_or(|gang| !gang.in_force()) {
                    status.phase =
                        Some(if rt.object.spec.suspend { JobPhase::Suspended } else { JobPhase::Pending });
                    status.reason = Some("Invalid".into());
                    status.message = Some(message);
                }
            }
            None if gang.is_none() => return None,
            None => {}
        }
        if let Some(message) = self.deadline_passed(key, now) {
            status.phase = Some(JobPhase::Failed);
            status.reason = Some("DeadlineExceeded".into());
            status.message = Some(message.clone());
            status.completion_time = Some(time(now));
            changes.push(Now::yes(condition::FINISHED, "DeadlineExceeded", message));
        }
        let generation = status.observed_generation;
        status.conditions = condition::merge(&status.conditions, &changes, generation, &time(now));
        Some(status)
    }

    /// Whether the job has been running for longer than it may.
    fn deadline_passed(&mut self, key: &ObjectKey, now: Millis) -> Option<String> {
        let rt = self.jobs.get(key)?;
        let limit = rt.object.spec.active_deadline.as_ref()?;
        let started = rt.status.start_time.as_ref()?.0.as_millisecond();
        let at = started + limit.millis().ok()?;
        if at > now {
            self.wakes.insert((at, Wake::Job(key.clone())));
            return None;
        }
        Some(format!(
            "it ran for longer than spec.activeDeadline ({limit}); raise it to give the job more time"
        ))
    }

    fn write_job(&mut self, key: &ObjectKey, status: Option<TrainingJobStatus>, now: Millis) {
        // While pods are being created, their creation comes first; what there is to say is said right after.
        let busy = self.creating.contains_key(key);
        let Some(rt) = self.jobs.get_mut(key) else { return };
        let Some(status) = status.filter(|status| *status != rt.status) else { return };
        if rt.writing.is_some() {
            return;
        }
        if rt.write_after > now {
            self.wakes.insert((rt.write_after, Wake::Job(key.clone())));
            return;
        }
        if busy && !status.phase.unwrap_or_default().is_final() {
            self.wakes.insert((now + AGAIN, Wake::Job(key.clone())));
            return;
        }
        let invalid = (status.reason.as_deref() == Some("Invalid")).then(|| status.message.clone()).flatten();
        if invalid.is_some() && rt.told_invalid != invalid {
            rt.told_invalid.clone_from(&invalid);
            let uid = rt.uid();
            self.tell("TrainingJob", key, uid, "Invalid", invalid.unwrap_or_default(), true);
        }
        let Some(rt) = self.jobs.get_mut(key) else { return };
        let ended =
            status.phase == Some(JobPhase::Failed) && status.reason.as_deref() == Some("DeadlineExceeded");
        rt.writing = Some(Box::new(status.clone()));
        let version = rt.version.clone();
        if ended {
            let (uid, message) = (rt.uid(), status.message.clone().unwrap_or_default());
            self.tell("TrainingJob", key, uid, "DeadlineExceeded", message, true);
        }
        self.out.push(Effect::WriteJob { job: key.clone(), version, status: Box::new(status) });
    }

    pub(super) fn job_written(&mut self, key: &ObjectKey, outcome: Outcome, now: Millis) {
        let Some(rt) = self.jobs.get_mut(key) else { return };
        let Some(status) = rt.writing.take() else { return };
        match outcome {
            Outcome::Done { version, .. } => {
                if let Some(version) = version
                    && !super::gang::older(&version, &rt.version)
                {
                    rt.version = version;
                }
                rt.status = *status;
            }
            Outcome::Refused(message) => {
                tracing::error!(job = %key, %message, "the API server refuses the job's status");
                rt.write_after = now + 10_000;
            }
            _ => rt.write_after = now + AGAIN,
        }
        self.dirty_jobs.insert(key.clone());
    }
}

/// What the gang's status means for the job.
fn reflect(
    status: &mut TrainingJobStatus,
    gang: &super::gang::GangRt,
    job: &TrainingJob,
    changes: &mut Vec<Now>,
    now: Millis,
) {
    let from = &gang.status;
    let phase = match gang.phase() {
        GangPhase::Succeeded => JobPhase::Succeeded,
        GangPhase::Failed => JobPhase::Failed,
        GangPhase::Running => JobPhase::Running,
        GangPhase::Reserved | GangPhase::Placed if from.restarts_total > 0 || from.started_at.is_some() => {
            JobPhase::Recovering
        }
        GangPhase::Reserved | GangPhase::Placed => JobPhase::Starting,
        _ if job.spec.suspend => JobPhase::Suspended,
        _ => JobPhase::Pending,
    };
    status.phase = Some(phase);
    status.reason.clone_from(&from.reason);
    status.message.clone_from(&from.message);
    status.units = from.units.clone();
    status.gpus = from.gpus;
    status.data = from.units.planned.saturating_mul(gang.object.spec.launch.replicas_per_unit);
    status.restarts = u32::try_from(from.restarts_total).unwrap_or(u32::MAX);
    status.generation = from.plan.as_ref().map(|plan| plan.generation);
    status.start_time.clone_from(&from.started_at);
    status.completion_time.clone_from(&from.finished_at);
    status.selector = Some(format!("{}={}", labels::GANG_UID, gang.uid()));
    if let Some(step) = from.checkpoint_step
        && status.checkpoint.as_ref().is_none_or(|checkpoint| checkpoint.step != step)
    {
        status.checkpoint = Some(CheckpointStatus { step, time: Some(time(now)) });
    }
    for found in &from.conditions {
        let status = match found.status.as_str() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        };
        changes.push(Now {
            type_: found.type_.clone(),
            status,
            reason: found.reason.clone(),
            message: found.message.clone(),
        });
    }
    let valid = condition::find(&from.conditions, condition::VALID);
    if valid.is_none_or(|valid| valid.status == "True") {
        // In the job's own fields, not in those of the gang made from it.
        let notes = derive::review(&job.spec).notes;
        let said = template::sound("the specification makes sense", notes);
        changes.push(Now::yes(condition::VALID, "Valid", said));
    }
}
