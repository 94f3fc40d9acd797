//! What a gang's status should be, given what comes next in its life. Nothing is written here: a status that differs from
//! the committed one becomes a want, and only its success changes what is done to pods.

use muster_api::condition::{self, Now as Condition};
use muster_api::gang::{GangResult, Restart};
use muster_api::plan_codec::{self, Chunk};
use muster_api::{GangPhase, GangStatus, UnitCounts, gang_plan};
use muster_cluster::template;
use muster_lifecycle::Now;
use muster_lifecycle::gang::{
    Cause, Decided, Freed, Holding, How, Move, SlotState, Slots, Standing, Trouble,
};
use muster_lifecycle::recovery;
use muster_model::{Millis, Plan, Reason, duration};

use super::basis::Basis;
use super::change::{Change, Speaks};
use super::facts::{ranges, time};
use super::pods::{ROOM_LIMIT, TOLD_AFTER};
use super::revisions;
use super::rt::{FAULT, GangRt};
use crate::want::{Class, Want};
use crate::{OUT_OF_SERVICE, plan_devices, plan_words};

/// How often at most the message of a waiting gang follows changing counts, and its reason one that it had just before.
const RETELL: Millis = 30_000;
/// How often at most its reason follows another.
const RETELL_REASON: Millis = 5_000;
/// Reason of a plan in force whose pods are not made, or do not start.
const NOT_STARTING: &str = "NotStarting";

impl GangRt {
    fn base(&self) -> GangStatus {
        let mut status = self.status.clone();
        status.observed_generation = self.object.metadata.generation;
        status.checkpoint_step = status.checkpoint_step.max(self.checkpoint_step);
        status
    }

    /// That it can be placed, which wishes of its templates are heeded only so far, and which units of a plan have an
    /// earlier template.
    fn valid(&self, plan: Option<&Plan>) -> Condition {
        if let Some(reason) = self.unsound() {
            return Condition::no(condition::VALID, reason.code(), reason.sentence());
        }
        let notes = template::notes_of(&self.object.spec.roles);
        let said = template::sound("the specification can be placed", notes);
        let earlier = plan.map(|plan| self.earlier_notes(plan)).unwrap_or_default();
        let said = earlier.into_iter().fold(said, |said, note| format!("{said}; {note}"));
        Condition::yes(condition::VALID, "Valid", said)
    }

    /// What is wrong with its specification, given the other objects: a plan in force goes on all the same.
    fn unsound(&self) -> Option<&Reason> {
        let wrong = |reason: &&Reason| matches!(reason, Reason::Invalid { .. } | Reason::QueueUnknown { .. });
        self.request.as_ref().err().filter(wrong)
    }

    /// Whether its status says of the specification what is so.
    fn judged(&self) -> bool {
        let valid = condition::find(&self.status.conditions, condition::VALID);
        self.status.observed_generation == self.object.metadata.generation
            && valid.is_none_or(|valid| (valid.status == "True") == self.unsound().is_none())
    }

    /// What is to be said of units of a plan that run from an earlier template.
    fn earlier_notes(&self, plan: &Plan) -> Vec<String> {
        let earlier = revisions::in_use(plan).into_iter().filter_map(|used| {
            let role = self.terms.roles.iter().find(|role| role.name == used.role)?;
            (!used.name.is_empty() && used.name != role.revision).then_some((used, role))
        });
        earlier
            .map(|(used, role)| {
                let what = if role.held {
                    "asks for another place, so set spec.suspend: true, then false, to have it"
                } else {
                    "is used when their pods start anew"
                };
                format!(
                    "units of role {} that run from template {:?}: {}; template {:?} {what}",
                    role.name, used.name, used.units, role.revision
                )
            })
            .collect()
    }

    fn desired_units(&self) -> u32 {
        self.object.spec.roles.iter().map(|role| role.units.max).sum()
    }

    fn conditions(&self, status: &mut GangStatus, changes: &[Condition], now: Now) {
        let generation = self.object.metadata.generation;
        status.conditions = condition::merge(&status.conditions, changes, generation, &time(now.wall));
    }

    /// Takes the plan out of a status: the gang holds nothing any more.
    fn without_plan(&self, phase: GangPhase, reason: &str, message: &str, now: Now) -> GangStatus {
        let mut status = self.base();
        status.phase = Some(phase);
        status.plan = None;
        status.basis = None;
        status.revisions.clear();
        status.done = None;
        status.launched = false;
        status.gpus = 0;
        status.units = UnitCounts::new(self.desired_units(), 0, 0);
        status.reason = Some(reason.to_owned());
        status.message = Some(message.to_owned());
        let no = |kind| Condition::no(kind, reason, message);
        self.conditions(&mut status, &[no(condition::PLACED), no(condition::RUNNING)], now);
        status
    }

    /// The status that a move of the gang's life comes to; `None` where the server has it.
    pub fn commits(&self, what: Move, now: Now) -> Option<Change> {
        match what {
            Move::End { well, reason, message, exit_code } => {
                Some(self.ended(well, &reason, &message, exit_code, now))
            }
            Move::Free(freed) => self.freed(freed, now),
            Move::Put(decided) => Some(self.placed(&decided, now)),
        }
    }

    /// The end, with its result.
    fn ended(&self, well: bool, reason: &str, message: &str, exit_code: Option<i32>, now: Now) -> Change {
        let mut status = self.base();
        status.phase = Some(if well { GangPhase::Succeeded } else { GangPhase::Failed });
        status.reason = Some(reason.to_owned());
        status.message = Some(message.to_owned());
        status.gpus = 0;
        if let Some((plan, slots)) = self.life.plan().zip(self.life.slots()).filter(|_| !well) {
            let planned = plan.units.len() as u32;
            status.units = UnitCounts::new(self.desired_units(), planned, slots.ready_units());
        }
        status.finished_at = Some(time(now.wall));
        status.result = Some(GangResult {
            exit_code,
            pod: None,
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            finished_at: Some(time(now.wall)),
        });
        let finished = [
            Condition::yes(condition::FINISHED, reason, message),
            Condition::no(condition::RUNNING, "Finished", message),
            Condition::no(condition::PLACED, "Finished", message),
        ];
        self.conditions(&mut status, &finished, now);
        let note = Some((reason.to_owned(), message.to_owned(), !well));
        let plan = self.life.committed().plan.clone();
        Change { status, plan, urgent: true, class: Class::Commit, note, failed: None }
    }

    /// It gives everything back.
    fn freed(&self, freed: Freed, now: Now) -> Option<Change> {
        let mut failed = None;
        let (phase, reason, message, warning, counts) = match freed {
            Freed::Suspended => {
                if self.life.committed().standing == Standing::Free
                    && self.status.reason.as_deref() == Some("Suspended")
                    && self.status.observed_generation == self.object.metadata.generation
                {
                    return None;
                }
                let message = "spec.suspend is true; set it to false to let it run".to_owned();
                (GangPhase::Pending, "Suspended".to_owned(), message, false, None)
            }
            Freed::Resized => {
                let message = "the specification changed; it is placed anew in its new size".to_owned();
                (GangPhase::Requeued, "SpecChanged".to_owned(), message, true, None)
            }
            Freed::Unreadable(error) => {
                let message = format!("its plan cannot be read ({error}); it is placed anew");
                (GangPhase::Requeued, "PlanUnreadable".to_owned(), message, true, None)
            }
            Freed::Lost(lost, why) => {
                let message = match why {
                    Some(reason) => {
                        format!("{}; not now: {}", lost.about.message(), reason.sentence())
                    }
                    None => lost.about.message(),
                };
                (GangPhase::Requeued, "Requeued".to_owned(), message, true, Some(Cause::Lost(lost)))
            }
            Freed::Failed(reason) => {
                let (code, message) = (reason.code().to_owned(), reason.sentence());
                failed = Some((reason, None));
                (GangPhase::Pending, code, message, true, None)
            }
            Freed::Refused(reason, until) => {
                let (code, message) = (reason.code().to_owned(), reason.sentence());
                failed = Some((reason, Some(until)));
                (GangPhase::Pending, code, message, true, None)
            }
        };
        let mut status = self.without_plan(phase, &reason, &message, now);
        if let Some(cause) = counts {
            self.count_restart(&mut status, &cause, self.status.last_generation + 1, now);
        }
        let note = Some((reason, message, warning));
        Some(Change { status, plan: Ok(None), urgent: true, class: Class::Commit, note, failed })
    }

    /// A plan is put in force.
    fn placed(&self, decided: &Decided, now: Now) -> Change {
        let Decided { plan, cause, how } = decided;
        let mut status = self.base();
        let words = plan_words(plan);
        let how = match how {
            How::Fresh => "placed",
            How::InPlace => "new pods",
            How::Replaced => "lost units go to other nodes, the others keep theirs",
            How::Shrunk => "goes on smaller, without the lost units",
            How::Moved => "moved to other nodes as a whole",
        };
        let message = match cause.message() {
            None => format!("{how}: {words}"),
            Some(what) => format!("{what}; {how}: {words}"),
        };
        status.phase = Some(GangPhase::Placed);
        status.plan = Some(plan_codec::encode(plan));
        status.basis = self.basis_of(cause);
        status.revisions = revisions::in_use(plan);
        status.done = None;
        status.last_generation = plan.generation;
        status.launched = false;
        status.gpus = plan_devices(plan, &self.object);
        status.units = UnitCounts::new(self.desired_units(), plan.units.len() as u32, 0);
        status.reason = Some(cause.reason().to_owned());
        status.message = Some(message.clone());
        self.count_restart(&mut status, cause, plan.generation, now);
        let changes = [
            self.valid(Some(plan)),
            Condition::yes(condition::PLACED, "Placed", words),
            Condition::no(condition::RUNNING, "Starting", "its pods are being created"),
        ];
        self.conditions(&mut status, &changes, now);
        let note = Some((cause.reason().to_owned(), message, cause.warns()));
        let class = Class::of_status(true, cause.warns());
        Change { status, plan: Ok(Some(plan.clone())), urgent: true, class, note, failed: None }
    }

    /// What a new plan was made from: for a first placement what was asked of the engine, else what the plan in force was
    /// made from.
    fn basis_of(&self, cause: &Cause) -> Option<serde_json::Value> {
        match cause {
            Cause::First => self.request.as_ref().ok().and_then(|request| Basis::of(request).written()),
            _ => self.in_force().ok().and_then(|basis| basis.written()),
        }
    }

    /// Counts a restart in the status that starts it: the same write, so that no crash can forget or repeat it.
    fn count_restart(&self, status: &mut GangStatus, cause: &Cause, generation: u64, now: Now) {
        let Some(word) = cause.counts_as() else { return };
        let window = self.terms.policy.window;
        let begin = now.wall.saturating_sub(window);
        status.restarts.retain(|restart| restart.time.0.as_millisecond() > begin);
        status.restarts.push(Restart { time: time(now.wall), cause: word.to_owned(), generation, count: 1 });
        let at = |restart: &Restart| restart.time.0.as_millisecond();
        recovery::bound(&mut status.restarts, at, |later, earlier| {
            later.count = later.count.saturating_add(earlier.count);
        });
        status.restarts_total += 1;
    }

    /// Why it is not placed, when that has changed in kind. Messages with changing counts alone are not worth a write:
    /// waiting writes nothing.
    pub fn refused(&self, reason: &Reason, now: Now) -> Speaks {
        let code = reason.code();
        let message = reason.sentence();
        let invalid = matches!(reason, Reason::Invalid { .. } | Reason::QueueUnknown { .. });
        let same_kind = self.status.reason.as_deref() == Some(code)
            && self.status.observed_generation == self.object.metadata.generation;
        if same_kind && self.status.message.as_deref() == Some(message.as_str()) {
            return Speaks::Not;
        }
        // Counts that change are told now and then, and reasons that change to and fro as well; what the user can mend in
        // the specification is told at once.
        let fresh = self.status.observed_generation != self.object.metadata.generation;
        let told_before = self.status.phase.is_some() && !fresh && !invalid;
        let known = same_kind || self.reason_before.as_deref() == Some(code);
        let due = self.reported + if known { RETELL } else { RETELL_REASON };
        if told_before && due > now.at {
            return Speaks::Later(due);
        }
        let phase = match self.phase() {
            phase @ (GangPhase::Requeued | GangPhase::Preempted) => phase,
            _ => GangPhase::Pending,
        };
        let mut status = self.without_plan(phase, code, &message, now);
        let valid =
            if invalid { Condition::no(condition::VALID, code, message.clone()) } else { self.valid(None) };
        self.conditions(&mut status, &[valid], now);
        let note = (!same_kind).then(|| (code.to_owned(), message, true));
        let change =
            Change { status, plan: Ok(None), urgent: false, class: Class::Report, note, failed: None };
        Speaks::Now(Box::new(change))
    }

    /// That the operator failed over it: what it holds stays as it is.
    pub fn faulty(&self) -> Option<Change> {
        let mut status = self.base();
        status.reason = Some(FAULT.into());
        status.message = Some(self.fault.as_ref()?.message.clone());
        let plan = self.life.committed().plan.clone();
        Some(Change { status, plan, urgent: false, class: Class::Report, note: None, failed: None })
    }

    /// What is wrong with a plan in force, in words; `None` while all is well.
    pub fn trouble_words(&self, now: Now) -> Option<String> {
        let holding = self.life.holding()?;
        if let Trouble::Waits { until, about } = &holding.trouble {
            return Some(about.message_at(&clock(*until, now)));
        }
        let why = match holding.slots.first_waiting() {
            Some((planned, waits)) => {
                let pod = self.pod_name(&planned.slot);
                format!("pod {pod} on node {} does not start: {waits}", planned.node)
            }
            None => uncreated(holding, now)?,
        };
        let tally = holding.slots.tally();
        Some(format!("{} of {} pods run; {why}", tally.up(), tally.all))
    }

    /// Whether something happened since [`Self::progress`] found nothing to write.
    pub fn progress_unseen(&self, trouble: Option<&str>) -> bool {
        let Some(slots) = self.life.slots() else { return false };
        let seen = self.work.seen_progress.as_ref();
        seen.is_none_or(|(tally, step, said)| {
            *tally != slots.tally() || *step != self.checkpoint_step || said.as_deref() != trouble
        }) || !self.judged()
    }

    /// Whether nothing of it runs, and nothing else is to be said.
    pub fn only_begins(&self) -> bool {
        let up = self.life.slots().map_or(0, |slots| slots.tally().up());
        up == 0 && self.status.observed_generation == self.object.metadata.generation
    }

    /// Whether all pods run, and the status does not say so yet.
    pub fn begins_to_run(&self) -> bool {
        let tally = self.life.slots().map(muster_lifecycle::gang::Slots::tally).unwrap_or_default();
        tally.up() == tally.all && tally.all > 0 && self.phase() != GangPhase::Running
    }

    /// How far the pods have come.
    pub fn progress(&mut self, trouble: Option<String>, now: Now) -> Option<Change> {
        let (plan, slots) = (self.life.plan()?, self.life.slots()?);
        let tally = slots.tally();
        let mut status = self.base();
        status.units = UnitCounts::new(self.desired_units(), plan.units.len() as u32, slots.ready_units());
        status.launched = status.launched || tally.missing + tally.asked == 0;
        status.done = ranges(slots.done());
        if let Some(basis) = self.basis.as_ref().and_then(|basis| basis.written()) {
            status.basis = Some(basis);
        }
        if !self.judged() {
            self.conditions(&mut status, &[self.valid(Some(plan))], now);
        }
        // What was said while something kept the pods from starting, or us from looking at them.
        let over = matches!(self.status.reason.as_deref(), Some(NOT_STARTING | FAULT));
        let all_run = tally.up() == tally.all && tally.all > 0;
        let mut note = None;
        if let Some(message) = &trouble {
            let waits =
                matches!(self.life.holding().map(|holding| &holding.trouble), Some(Trouble::Waits { .. }));
            let reason = if waits { "Recovering" } else { NOT_STARTING };
            if waits {
                status.phase = Some(GangPhase::Placed);
            }
            status.reason = Some(reason.into());
            status.message = Some(message.clone());
            self.conditions(&mut status, &[Condition::no(condition::RUNNING, reason, message.clone())], now);
            if self.status.reason.as_deref() != Some(reason) {
                note = Some((reason.to_owned(), message.clone(), true));
            }
        } else if self.begins_to_run() || (over && all_run) {
            let message = if tally.all == 1 {
                "its pod runs".to_owned()
            } else {
                format!("all {} pods run", tally.all)
            };
            status.phase = Some(GangPhase::Running);
            status.reason = Some("Running".into());
            status.message = Some(message.clone());
            status.started_at = status.started_at.or_else(|| Some(time(now.wall)));
            let runs = Condition::yes(condition::RUNNING, "Running", message.clone());
            self.conditions(&mut status, &[runs], now);
            note = Some(("Running".to_owned(), message, false));
        } else if over {
            let message = "its pods start".to_owned();
            status.reason = Some("Placed".into());
            status.message = Some(message.clone());
            self.conditions(&mut status, &[Condition::no(condition::RUNNING, "Starting", message)], now);
        }
        if status == self.status {
            self.work.seen_progress = Some((tally, self.checkpoint_step, trouble));
            return None;
        }
        if status.revisions.is_empty() {
            // A version that knew of none made the plan. Not a reason to write: a CRD of that version drops it each time.
            status.revisions = revisions::in_use(plan);
        }
        let plan = self.life.committed().plan.clone();
        Some(Change { status, plan, urgent: false, class: Class::Report, note, failed: None })
    }

    /// The write of a status, with the parts of a plan that is too large for it.
    pub fn status_want(&self, change: &mut Change, inline: usize) -> (Want, Vec<Chunk>) {
        let mut parts = Vec::new();
        if let Some(plan) = &change.status.plan
            && plan.chunks.is_empty()
            && let Ok((plan, split)) = plan_codec::split(plan, inline, &self.key.name, &self.uid)
        {
            change.status.plan = Some(plan);
            parts = split;
        }
        let want = Want::WriteGang {
            gang: self.key.clone(),
            version: self.version.clone(),
            status: Box::new(change.status.clone()),
            parts: parts.iter().map(|part| gang_plan::object(&self.object, part)).collect(),
            class: change.class,
        };
        (want, parts)
    }
}

/// Why pods of a plan in force are not made, once that has lasted: their node is not free yet, or creations fail in passing.
fn uncreated(holding: &Holding, now: Now) -> Option<String> {
    let lasts = |since: Millis| since.saturating_add(TOLD_AFTER) <= now.at;
    // One that is there after all (its creation got no answer, the watch was late) waits for nothing.
    let tally = holding.slots.tally();
    if tally.missing + tally.asked == 0 {
        return None;
    }
    let any = holding.blocked.values().any(|since| lasts(*since)).then_some(&holding.slots);
    let missing = any.into_iter().flat_map(Slots::iter).filter(|pod| pod.state == SlotState::Missing);
    let blocked = missing.filter_map(|pod| holding.blocked.get_key_value(&pod.node));
    let first = blocked.min_by_key(|(_, since)| **since);
    if let Some((node, since)) = first.filter(|(_, since)| lasts(**since)) {
        return Some(format!(
            "since {} one waits for room on node {node}, where others have not ended: if the node is dead, delete the \
             Node or taint it {OUT_OF_SERVICE}; after {} other nodes are looked for",
            clock(*since, now),
            duration::format(ROOM_LIMIT)
        ));
    }
    let since = holding.pause.since;
    (holding.pause.failures > 0 && lasts(since)).then(|| {
        let why = &holding.uncreated;
        format!("since {} none can be created: {why}; it is tried again and again", clock(since, now))
    })
}

/// The time of the day at a monotonic time.
fn clock(at: Millis, now: Now) -> String {
    let wall = time(now.wall.saturating_add(at.saturating_sub(now.at)));
    format!("{} UTC", wall.0.strftime("%H:%M:%S"))
}
