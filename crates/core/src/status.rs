//! What a gang's status should be, given what is known. Nothing is written here: a status that differs from the
//! committed one becomes a write, and only its success changes what is done to pods.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use muster_api::condition::{self, Now};
use muster_api::gang::{GangResult, Restart};
use muster_api::{GangPhase, GangStatus, OutcomePolicy, UnitCounts, plan_codec};
use muster_cluster::template;
use muster_engine::How;
use muster_model::{Millis, Plan, Reason};

use super::gang::{GangRt, Loss, Proposal};
use super::recover::Verdict;
use super::slots::SlotState;
use super::{plan_devices, plan_words};

/// How often at most the message of a waiting gang follows changing counts.
pub const RETELL: Millis = 30_000;

/// A status to be written.
#[derive(Debug)]
pub struct Change {
    /// The whole status.
    pub status: GangStatus,
    /// The plan that it holds.
    pub plan: Option<Plan>,
    /// Nothing may be done to pods before it is committed. Otherwise it only reports progress.
    pub urgent: bool,
    /// What to tell the user when it is committed: reason, sentence, warning.
    pub note: Option<(String, String, bool)>,
    /// The plan that it takes back could not be carried out, and why.
    pub failed: Option<Reason>,
}

/// A time stamp, in whole seconds as the server keeps it: what comes back equals what was written.
pub fn time(now: Millis) -> Time {
    Time(jiff::Timestamp::from_second(now.div_euclid(1_000)).unwrap_or(jiff::Timestamp::UNIX_EPOCH))
}

impl GangRt {
    fn base(&self) -> GangStatus {
        let mut status = self.status.clone();
        status.observed_generation = self.object.metadata.generation;
        status.checkpoint_step = status.checkpoint_step.max(self.checkpoint_step);
        status
    }

    /// That it can be placed, and which wishes of its templates are heeded only so far.
    fn valid(&self) -> Now {
        let notes = template::notes_of(&self.object.spec.roles);
        let said = template::sound("the specification can be placed", notes);
        Now::yes(condition::VALID, "Valid", said)
    }

    fn desired_units(&self) -> u32 {
        self.object.spec.roles.iter().map(|role| role.units.max).sum()
    }

    fn conditions(&self, status: &mut GangStatus, changes: &[Now], now: Millis) {
        let generation = self.object.metadata.generation;
        status.conditions = condition::merge(&status.conditions, changes, generation, &time(now));
    }

    /// Takes the plan out of a status: the gang holds nothing any more.
    fn without_plan(&self, phase: GangPhase, reason: &str, message: &str, now: Millis) -> GangStatus {
        let mut status = self.base();
        status.phase = Some(phase);
        status.plan = None;
        status.launched = false;
        status.gpus = 0;
        status.units = UnitCounts::new(self.desired_units(), 0, 0);
        status.reason = Some(reason.to_owned());
        status.message = Some(message.to_owned());
        let changes =
            [Now::no(condition::PLACED, reason, message), Now::no(condition::RUNNING, reason, message)];
        self.conditions(&mut status, &changes, now);
        status
    }

    /// The outcome, once the pods whose exit decides have ended.
    pub fn outcome(&self, now: Millis) -> Option<Change> {
        if self.object.spec.outcome.policy == OutcomePolicy::Never || self.slots.tally().done == 0 {
            return None;
        }
        let mut deciding = self.slots.iter().filter(|planned| {
            self.decides(&planned.slot.unit.role, planned.slot.unit.index, planned.slot.index)
        });
        let first = deciding.next()?;
        if first.state != SlotState::Done || !deciding.all(|planned| planned.state == SlotState::Done) {
            return None;
        }
        let message = match self.object.spec.outcome.policy {
            OutcomePolicy::All => "every pod succeeded".to_owned(),
            _ => format!("pod {} of unit {} succeeded", first.slot.index, first.slot.unit.index),
        };
        Some(self.finished(GangPhase::Succeeded, "Succeeded", &message, Some(0), now))
    }

    /// The end, with its result.
    pub fn finished(
        &self,
        phase: GangPhase,
        reason: &str,
        message: &str,
        exit_code: Option<i32>,
        now: Millis,
    ) -> Change {
        let mut status = self.base();
        status.phase = Some(phase);
        status.reason = Some(reason.to_owned());
        status.message = Some(message.to_owned());
        status.gpus = 0;
        status.finished_at = Some(time(now));
        status.result = Some(GangResult {
            exit_code,
            pod: None,
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            finished_at: Some(time(now)),
        });
        let failed = phase == GangPhase::Failed;
        let finished = [
            Now::yes(condition::FINISHED, reason, message),
            Now::no(condition::RUNNING, "Finished", message),
        ];
        self.conditions(&mut status, &finished, now);
        let note = Some((reason.to_owned(), message.to_owned(), failed));
        Change { status, plan: self.plan.clone(), urgent: true, note, failed: None }
    }

    /// The gang gives everything back because it is suspended.
    pub fn suspended(&self, now: Millis) -> Option<Change> {
        let message = "spec.suspend is true; set it to false to let it run";
        if self.plan.is_none() && self.status.reason.as_deref() == Some("Suspended") {
            return None;
        }
        let status = self.without_plan(GangPhase::Pending, "Suspended", message, now);
        let note = Some(("Suspended".into(), message.into(), false));
        Some(Change { status, plan: None, urgent: true, note, failed: None })
    }

    /// The gang gives everything back and waits again.
    pub fn requeued(&self, reason: &str, message: &str, counts: Option<&Loss>, now: Millis) -> Change {
        let mut status = self.without_plan(GangPhase::Requeued, reason, message, now);
        if let Some(loss) = counts {
            self.count_restart(&mut status, loss, self.status.last_generation + 1, now);
        }
        let note = Some((reason.to_owned(), message.to_owned(), true));
        Change { status, plan: None, urgent: true, note, failed: None }
    }

    /// A plan that the engine made is put in force.
    pub fn placed(&self, proposal: &Proposal, now: Millis) -> Change {
        let plan = &proposal.plan;
        let mut status = self.base();
        let words = plan_words(plan);
        let how = match proposal.how {
            How::Fresh => "placed",
            How::Replaced => "lost units go to other nodes, the others keep theirs",
            How::Shrunk => "goes on smaller, without the lost units",
            How::Moved => "moved to other nodes as a whole",
        };
        let (reason, message) = match &proposal.loss {
            None => ("Placed", format!("{how}: {words}")),
            Some(loss) => ("Recovering", format!("{}; {how}: {words}", loss.message)),
        };
        status.phase = Some(GangPhase::Placed);
        status.plan = Some(plan_codec::encode(plan));
        status.last_generation = plan.generation;
        status.launched = false;
        status.gpus = plan_devices(plan, &self.object);
        status.units = UnitCounts::new(self.desired_units(), plan.units.len() as u32, 0);
        status.reason = Some(reason.to_owned());
        status.message = Some(message.clone());
        if let Some(loss) = &proposal.loss {
            self.count_restart(&mut status, loss, plan.generation, now);
        }
        let changes = [
            self.valid(),
            Now::yes(condition::PLACED, "Placed", words),
            Now::no(condition::RUNNING, "Starting", "its pods are being created"),
        ];
        self.conditions(&mut status, &changes, now);
        let warning = proposal.loss.is_some();
        Change {
            status,
            plan: Some(plan.clone()),
            urgent: true,
            note: Some((reason.to_owned(), message, warning)),
            failed: None,
        }
    }

    /// Counts a restart in the status that starts it: the same write, so that no crash can forget or repeat it.
    fn count_restart(&self, status: &mut GangStatus, loss: &Loss, generation: u64, now: Millis) {
        if !loss.counts {
            return;
        }
        let window = self.object.spec.recovery.window.millis().unwrap_or(Millis::MAX);
        status.restarts.retain(|restart| restart.time.0.as_millisecond() > now.saturating_sub(window));
        status.restarts.push(Restart { time: time(now), cause: loss.cause.clone(), generation });
        status.restarts_total += 1;
    }

    /// What follows from a verdict on lost pods.
    pub fn after_loss(&mut self, verdict: Verdict, now: Millis) -> Option<Change> {
        match verdict {
            Verdict::GiveUp { reason, message, exit_code } => {
                Some(self.finished(GangPhase::Failed, &reason, &message, exit_code, now))
            }
            Verdict::RestartInPlace(loss) => {
                let plan = self.same_places()?;
                let proposal = Proposal { plan, loss: Some(loss.clone()), how: How::Replaced };
                let mut change = self.placed(&proposal, now);
                let message = format!("{}; restarting where it was", loss.message);
                change.status.message = Some(message.clone());
                change.note = Some(("Recovering".into(), message, true));
                Some(change)
            }
            Verdict::Requeue(loss) => {
                let message = loss.message.clone();
                Some(self.requeued("Requeued", &message, Some(&loss), now))
            }
            Verdict::Replan(loss) => {
                self.loss = Some(loss);
                None
            }
            Verdict::Wait(_) => None,
        }
    }

    /// Whether the status says just this of why it is not placed.
    pub fn says(&self, reason: &Reason) -> bool {
        self.status.message.as_deref() == Some(format!("{reason}; {}", reason.remedy()).as_str())
    }

    /// Why it is not placed, when that has changed in kind. Messages with changing counts alone are not worth a
    /// write: waiting writes nothing.
    pub fn refused(&self, reason: &Reason, now: Millis) -> Option<Change> {
        let code = reason.code();
        let message = format!("{reason}; {}", reason.remedy());
        let invalid = matches!(reason, Reason::Invalid { .. } | Reason::QueueUnknown { .. });
        let same_kind = self.status.reason.as_deref() == Some(code)
            && self.status.observed_generation == self.object.metadata.generation;
        let same = self.status.message.as_deref() == Some(message.as_str());
        // Counts that change are told now and then; what does not change is never written again.
        if same_kind && (same || (!invalid && now < self.progressed + RETELL)) {
            return None;
        }
        let phase = match self.phase() {
            GangPhase::Requeued => GangPhase::Requeued,
            GangPhase::Preempted => GangPhase::Preempted,
            _ => GangPhase::Pending,
        };
        let mut status = self.without_plan(phase, code, &message, now);
        let valid = if invalid { Now::no(condition::VALID, code, message.clone()) } else { self.valid() };
        self.conditions(&mut status, &[valid], now);
        let note = (!same_kind).then(|| (code.to_owned(), message, true));
        Some(Change { status, plan: None, urgent: true, note, failed: None })
    }

    /// A plan that could not be carried out is taken back.
    pub fn plan_failed(&self, reason: &Reason, now: Millis) -> Change {
        let message = format!("{reason}; {}", reason.remedy());
        let status = self.without_plan(GangPhase::Pending, reason.code(), &message, now);
        let note = Some((reason.code().to_owned(), message, true));
        Change { status, plan: None, urgent: true, note, failed: Some(reason.clone()) }
    }

    /// Whether something happened since [`Self::progress`] found nothing to write.
    pub fn progress_unseen(&self) -> bool {
        self.seen_progress != Some((self.slots.tally(), self.checkpoint_step))
            || self.status.observed_generation != self.object.metadata.generation
    }

    /// Whether nothing of it runs, and nothing else is to be said.
    pub fn only_begins(&self) -> bool {
        let tally = self.slots.tally();
        tally.running + tally.done == 0 && self.status.observed_generation == self.object.metadata.generation
    }

    /// Whether all pods run, and the status does not say so yet.
    pub fn begins_to_run(&self) -> bool {
        let tally = self.slots.tally();
        tally.running + tally.done == tally.all && tally.all > 0 && self.phase() != GangPhase::Running
    }

    /// How far the pods have come.
    pub fn progress(&mut self, now: Millis) -> Option<Change> {
        let plan = self.plan.as_ref()?;
        if !self.progress_unseen() {
            return None;
        }
        let tally = self.slots.tally();
        let mut status = self.base();
        status.units =
            UnitCounts::new(self.desired_units(), plan.units.len() as u32, self.slots.ready_units());
        status.launched = status.launched || tally.missing + tally.asked == 0;
        let mut note = None;
        if self.begins_to_run() {
            let message = if tally.all == 1 {
                "its pod runs".to_owned()
            } else {
                format!("all {} pods run", tally.all)
            };
            status.phase = Some(GangPhase::Running);
            status.reason = Some("Running".into());
            status.message = Some(message.clone());
            status.started_at = status.started_at.or_else(|| Some(time(now)));
            self.conditions(&mut status, &[Now::yes(condition::RUNNING, "Running", message.clone())], now);
            note = Some(("Running".to_owned(), message, false));
        }
        if status == self.status {
            self.seen_progress = Some((tally, self.checkpoint_step));
            return None;
        }
        // That it runs is worth a write at once; how many pods do, or which checkpoint was reached, is not.
        let urgent = note.is_some();
        Some(Change { status, plan: self.plan.clone(), urgent, note, failed: None })
    }
}
