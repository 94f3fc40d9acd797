//! The state machine itself.

use muster_model::{Millis, NodeName, Plan, Reason, RecoveryStep, Slot, Uid, UnitId, plan::Placement};
use std::collections::{BTreeMap, BTreeSet};

use super::cause::{Cause, Lost, Renews};
use super::sight::Sight;
use super::slots::{SlotState, Slots};
use super::stage::{Decided, Holding, How, Stage, Trouble, Waiting};
use super::start::{Patience, look_at_start};
use super::terms::{Outcome, Terms};
use crate::Now;
use crate::recovery::{self, Case, Fault, LostPod, Misfit, Spent, Verdict};

/// Whether a gang holds a plan by its status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// It holds none.
    #[default]
    Free,
    /// It holds one; not all of its pods run, or they did not when that was written.
    Placed,
    /// It holds one, and all of its pods ran.
    Running,
    /// It has ended.
    Ended,
}

/// What is committed: exactly what the status on the server says, as far as decisions depend on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Committed {
    /// Whether it holds a plan.
    pub standing: Standing,
    /// The plan, or why it cannot be read.
    pub plan: Result<Option<Plan>, String>,
    /// Generation of its latest plan: the next one's is higher.
    pub last_generation: u64,
    /// All pods of the plan were created.
    pub launched: bool,
    /// Restarts that count, in wall time.
    pub restarts: Vec<Spent>,
    /// Positions of the plan's pods that are known to have ended well.
    pub done: BTreeSet<usize>,
}

impl Default for Committed {
    fn default() -> Self {
        Self {
            standing: Standing::Free,
            plan: Ok(None),
            last_generation: 0,
            launched: false,
            restarts: Vec::new(),
            done: BTreeSet::new(),
        }
    }
}

impl Committed {
    /// The plan, where there is one that can be read.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref().ok().and_then(Option::as_ref)
    }
}

/// What of a gang outlives its plans within a term.
#[derive(Debug, Default)]
pub struct Memory {
    /// Nodes that are not used for its new pods, and until when.
    pub avoid: BTreeMap<NodeName, Millis>,
    /// Plans in a row that could not be carried out.
    pub failures: u32,
    /// Pods that nodes did not take, since all pods of a plan had started last.
    pub misfits: Vec<Misfit>,
}

/// What must be known to go on, beside the gang itself.
pub struct Facts<'a> {
    /// Why no new plan can be made for it: the specification, given the other objects.
    pub unsound: Option<&'a Reason>,
    /// Why a node could not take a pod again that ran there, however empty it is; `None` where it can.
    pub cannot: &'a dyn Fn(&Slot, &NodeName) -> Option<String>,
    /// The specification asks for pods of another size than those of the plan in force.
    pub reshaped: bool,
}

/// What the engine is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask<'a> {
    /// What it was asked for last: its answer is on its way into the status.
    AsBefore,
    /// Nothing: the gang holds nothing.
    Nothing,
    /// A placement.
    Place,
    /// Nothing: it holds its plan.
    Hold(&'a Plan),
    /// Other places for what is lost.
    Replace(&'a Plan, &'a Lost),
}

/// Why a gang gives everything back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Freed {
    /// It is suspended.
    Suspended,
    /// Its specification allows the plan no more.
    Resized,
    /// Its plan cannot be read.
    Unreadable(String),
    /// After a loss, and why nothing else is done.
    Lost(Lost, Option<Reason>),
    /// The plan could not be carried out.
    Failed(Reason),
    /// Node after node refuses its pods; it is not placed before a time.
    Refused(Reason, Millis),
}

/// A status that should be committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// It has ended.
    End {
        /// Well.
        well: bool,
        /// One CamelCase word.
        reason: String,
        /// A sentence.
        message: String,
        /// Exit code, where one decided.
        exit_code: Option<i32>,
    },
    /// It gives everything back.
    Free(Freed),
    /// A plan is put in force.
    Put(Decided),
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// This should be committed; until it is, nothing is done to pods.
    Commit(Move),
    /// It waits for this reason.
    Refused(Reason),
    /// How far its pods are may be reported.
    Report,
    /// Nothing until something happens.
    Rest,
}

/// One gang's life.
#[derive(Debug)]
pub struct Life {
    committed: Committed,
    stage: Stage,
    /// What outlives its plans.
    pub memory: Memory,
}

impl Life {
    /// A gang as it is found.
    pub fn new(committed: Committed, now: Millis) -> Self {
        let mut life = Self {
            committed: Committed::default(),
            stage: Stage::Waiting(Box::default()),
            memory: Memory::default(),
        };
        life.commit(committed, now);
        life
    }

    /// What is on the server.
    pub fn committed(&self) -> &Committed {
        &self.committed
    }

    /// Where it stands.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// The plan in force, or with which it ended.
    pub fn plan(&self) -> Option<&Plan> {
        self.committed.plan()
    }

    /// Its pods, where it has any by its plan.
    pub fn slots(&self) -> Option<&Slots> {
        match &self.stage {
            Stage::Waiting(_) => None,
            Stage::Holding(holding) => Some(&holding.slots),
            Stage::Ended(slots) | Stage::Leaving(slots) => Some(slots),
        }
    }

    /// Its pods, to note what is seen of them.
    pub fn slots_mut(&mut self) -> Option<&mut Slots> {
        match &mut self.stage {
            Stage::Waiting(_) => None,
            Stage::Holding(holding) => Some(&mut holding.slots),
            Stage::Ended(slots) | Stage::Leaving(slots) => Some(slots),
        }
    }

    /// A gang whose plan is in force.
    pub fn holding(&self) -> Option<&Holding> {
        if let Stage::Holding(holding) = &self.stage { Some(holding) } else { None }
    }

    /// As [`Self::holding`].
    pub fn holding_mut(&mut self) -> Option<&mut Holding> {
        if let Stage::Holding(holding) = &mut self.stage { Some(holding) } else { None }
    }

    /// A gang without a plan.
    pub fn waiting(&self) -> Option<&Waiting> {
        if let Stage::Waiting(waiting) = &self.stage { Some(waiting) } else { None }
    }

    /// As [`Self::waiting`].
    pub fn waiting_mut(&mut self) -> Option<&mut Waiting> {
        if let Stage::Waiting(waiting) = &mut self.stage { Some(waiting) } else { None }
    }

    /// Whether it is being deleted.
    pub fn leaving(&self) -> bool {
        matches!(self.stage, Stage::Leaving(_))
    }

    /// This is on the server now. The stage changes when what it stands for does.
    pub fn commit(&mut self, committed: Committed, now: Millis) {
        let generation = |committed: &Committed| committed.plan().map(|plan| plan.generation);
        let same_plan = generation(&self.committed) == generation(&committed)
            && self.committed.plan.is_err() == committed.plan.is_err();
        self.committed = committed;
        if self.committed.standing == Standing::Running {
            self.memory.misfits.clear();
        }
        let ended = self.committed.standing == Standing::Ended;
        let stays = match &self.stage {
            Stage::Leaving(_) => true,
            Stage::Waiting(_) => !ended && same_plan && self.plan().is_none(),
            Stage::Holding(_) => !ended && same_plan,
            Stage::Ended(_) => ended && same_plan,
        };
        if stays {
            return;
        }
        let before = match std::mem::replace(&mut self.stage, Stage::Waiting(Box::default())) {
            Stage::Waiting(_) => Slots::default(),
            Stage::Holding(holding) => holding.slots,
            Stage::Ended(slots) | Stage::Leaving(slots) => slots,
        };
        let slots = self.plan().map(|plan| Slots::of(plan, &before));
        self.stage = match slots {
            slots if ended => Stage::Ended(slots.unwrap_or_default()),
            Some(slots) => Stage::Holding(Box::new(Holding::new(slots, now))),
            None => Stage::Waiting(Box::default()),
        };
    }

    /// It is being deleted: from now on only its pods matter.
    pub fn leave(&mut self) {
        if !self.leaving() {
            let slots = self.slots_mut().map(std::mem::take).unwrap_or_default();
            self.stage = Stage::Leaving(slots);
        }
    }

    /// All that exists is known: a pod that is missing although all were created is lost.
    pub fn start(&mut self) {
        let Self { committed, stage: Stage::Holding(holding), .. } = self else { return };
        if committed.launched {
            holding.slots.lose_missing(|at| committed.done.contains(&at));
        }
    }

    /// Takes in what was seen of a pod. Returns whether it is one of the plan's.
    pub fn observe(&mut self, slot: &Slot, sight: &Sight<'_>, now: Millis) -> bool {
        self.slots_mut().is_some_and(|slots| slots.observe(slot, sight, now))
    }

    /// A pod vanished.
    pub fn vanished(&mut self, slot: &Slot, uid: &Uid, name: &str) {
        if let Some(slots) = self.slots_mut() {
            slots.vanished(slot, uid, name);
        }
    }

    /// A node is lost. Returns whether that concerns it.
    pub fn lose_node(&mut self, node: &NodeName, why: &str) -> bool {
        self.holding_mut().is_some_and(|holding| holding.slots.lose_node(node, why))
    }

    /// It is not placed before a time.
    pub fn hold(&mut self, until: Millis, reason: Reason) {
        if let Some(waiting) = self.waiting_mut() {
            waiting.hold = Some((until, reason));
        }
    }

    /// The plan in force cannot be carried out.
    pub fn broken(&mut self, reason: Reason) {
        if let Some(holding) = self.holding_mut() {
            holding.broken.get_or_insert(reason);
        }
    }

    /// The engine found a place. Returns false where it was not asked for one any more.
    pub fn decided(&mut self, terms: &Terms, placement: Placement, how: How) -> bool {
        let cause = match &self.stage {
            Stage::Waiting(waiting) if waiting.decided.is_none() => Cause::First,
            Stage::Holding(holding) => match &holding.trouble {
                Trouble::Asks { lost, .. } => Cause::Lost(lost.clone()),
                _ => return false,
            },
            _ => return false,
        };
        let decided = Decided { plan: self.next_plan(terms, placement, &cause), cause, how };
        match &mut self.stage {
            Stage::Waiting(waiting) => {
                waiting.refusal = None;
                waiting.decided = Some(decided);
            }
            Stage::Holding(holding) => holding.trouble = Trouble::Decided(Box::new(decided)),
            _ => {}
        }
        true
    }

    /// The engine found none. Returns false where it was not asked any more.
    pub fn refused(&mut self, reason: Reason) -> bool {
        match &mut self.stage {
            Stage::Waiting(waiting) => waiting.refusal = Some(reason),
            Stage::Holding(holding) => match &mut holding.trouble {
                Trouble::Asks { refusal, .. } => *refusal = Some(reason),
                _ => return false,
            },
            _ => return false,
        }
        true
    }

    /// A decision could not be committed: it was made from what is not so any more.
    pub fn drop_decision(&mut self) {
        match &mut self.stage {
            Stage::Waiting(waiting) => waiting.decided = None,
            Stage::Holding(holding) => {
                if let Trouble::Decided(_) = &holding.trouble {
                    holding.trouble = Trouble::None;
                }
            }
            _ => {}
        }
    }

    /// A decision cannot be committed because others do not give up its places: as if the engine had found none.
    pub fn give_way(&mut self, reason: Reason) {
        match &mut self.stage {
            Stage::Waiting(waiting) => waiting.decided = None,
            Stage::Holding(holding) => {
                let lost = match &holding.trouble {
                    Trouble::Decided(decided) => match &decided.cause {
                        Cause::Lost(lost) => Some(lost.clone()),
                        _ => None,
                    },
                    _ => None,
                };
                holding.trouble = match lost {
                    Some(mut lost) => {
                        if !lost.steps.contains(&RecoveryStep::Requeue) {
                            lost.steps.push(RecoveryStep::Requeue);
                        }
                        Trouble::Asks { lost, refusal: Some(reason) }
                    }
                    None => Trouble::None,
                };
            }
            _ => {}
        }
    }

    /// What the engine should know of it. `may_wait`: nothing beyond the gang keeps it from being placed.
    pub fn asks(&self, terms: &Terms, may_wait: bool) -> Ask<'_> {
        match &self.stage {
            Stage::Ended(_) | Stage::Leaving(_) => Ask::Nothing,
            Stage::Waiting(waiting) if waiting.decided.is_some() => Ask::AsBefore,
            Stage::Waiting(waiting) => {
                let waits =
                    may_wait && !terms.suspend && waiting.hold.is_none() && self.committed.plan.is_ok();
                if waits { Ask::Place } else { Ask::Nothing }
            }
            Stage::Holding(holding) => match (&holding.trouble, self.plan()) {
                (Trouble::Decided(_), _) => Ask::AsBefore,
                (Trouble::Asks { lost, .. }, Some(plan)) => Ask::Replace(plan, lost),
                (_, Some(plan)) => Ask::Hold(plan),
                (_, None) => Ask::Nothing,
            },
        }
    }

    /// Time passes: holds that are over, pods that did not start in time. Returns when something is due again.
    pub fn look(&mut self, patience: &Patience, now: Millis) -> Option<Millis> {
        self.memory.avoid.retain(|_, until| *until > now);
        let mut next: Vec<Millis> = self.memory.avoid.values().copied().min().into_iter().collect();
        match &mut self.stage {
            Stage::Waiting(waiting) => {
                if waiting.hold.as_ref().is_some_and(|(until, _)| *until <= now) {
                    waiting.hold = None;
                }
                next.extend(waiting.hold.as_ref().map(|(until, _)| *until));
            }
            Stage::Holding(holding) => next.extend(look_at_start(holding, patience, now)),
            _ => {}
        }
        next.into_iter().min()
    }

    /// What comes next, given the specification. Judging a loss notes which nodes are to be avoided and what is asked of
    /// the engine; all else only follows from what is known.
    pub fn next(&mut self, terms: &Terms, facts: &Facts<'_>, patience: &Patience, now: Now) -> Next {
        if let Err(error) = &self.committed.plan
            && !matches!(self.stage, Stage::Leaving(_) | Stage::Ended(_))
        {
            // Nothing can be said of its pods; what it held is free again once they are gone.
            return Next::Commit(Move::Free(Freed::Unreadable(error.clone())));
        }
        match &self.stage {
            Stage::Ended(_) | Stage::Leaving(_) => Next::Rest,
            Stage::Waiting(waiting) => waits(waiting, terms, facts),
            Stage::Holding(holding) => match holds(holding, self.plan(), terms, facts.reshaped) {
                Some(next) => next,
                None => self.judge(terms, facts, patience, now),
            },
        }
    }

    /// What is done about lost pods, if there are any.
    fn judge(&mut self, terms: &Terms, facts: &Facts<'_>, patience: &Patience, now: Now) -> Next {
        let Stage::Holding(holding) = &mut self.stage else { return Next::Rest };
        let lost: Vec<LostPod> = holding
            .slots
            .lost()
            .map(|(planned, loss)| LostPod {
                unit: planned.slot.unit.clone(),
                node: planned.node.clone(),
                fault: loss.fault,
                refusal: loss.refusal.clone(),
                message: loss.message.clone(),
                exit_code: loss.exit_code,
            })
            .collect();
        if lost.is_empty() {
            holding.trouble = Trouble::None;
            return Next::Report;
        }
        for pod in lost.iter().filter(|pod| pod.fault.blames_node()) {
            self.memory.avoid.insert(pod.node.clone(), now.at.saturating_add(patience.avoid));
        }
        // All of it on the clock that never jumps: what the status says of the past is brought there.
        let ahead = now.wall.saturating_sub(now.at);
        // What seems to lie in the future was written before the wall clock was set back: the last restart made the plan.
        let since = holding.since;
        let past = |at: Millis| if at > now.at { since } else { at };
        let shift = |spent: &Spent| Spent { at: past(spent.at.saturating_sub(ahead)), ..*spent };
        let restarts: Vec<Spent> = self.committed.restarts.iter().map(shift).collect();
        let gone: BTreeSet<&UnitId> = lost.iter().map(|pod| &pod.unit).collect();
        let stays = |slot: &Slot| !terms.whole && !gone.contains(&slot.unit);
        let tally = holding.slots.tally();
        let mut cannot = BTreeMap::new();
        for planned in holding.slots.iter().filter(|planned| !stays(&planned.slot)) {
            if let Some(words) = (facts.cannot)(&planned.slot, &planned.node) {
                cannot.entry(planned.slot.unit.clone()).or_insert(words);
            }
        }
        let case = Case {
            lost: &lost,
            restarts: &restarts,
            misfits: &self.memory.misfits,
            cannot: &cannot,
            pods: tally.all,
            others_run: tally.running > 0,
        };
        let verdict = recovery::decide(&terms.policy, &case, now.at);
        if matches!(verdict, Verdict::Replan { .. } | Verdict::TakeBack { .. })
            && lost.iter().any(|pod| pod.fault == Fault::Misfit)
        {
            recovery::remember(&mut self.memory.misfits, &lost, now.at);
        }
        self.follow(terms, verdict)
    }

    /// What a verdict comes to.
    fn follow(&mut self, terms: &Terms, verdict: Verdict) -> Next {
        match verdict {
            Verdict::Nothing => Next::Report,
            Verdict::GiveUp { reason, message, exit_code } => {
                Next::Commit(Move::End { well: false, reason: reason.to_owned(), message, exit_code })
            }
            Verdict::RestartInPlace { renew, about } => {
                let lost = Lost { units: renew, about, steps: vec![RecoveryStep::RestartInPlace] };
                self.restart(terms, lost)
            }
            Verdict::Replan { lost, steps, about } => {
                let lost = Lost { units: lost, about, steps };
                self.trouble(Trouble::Asks { lost, refusal: None });
                Next::Rest
            }
            Verdict::Requeue { about } => {
                let lost = Lost { units: BTreeSet::new(), about, steps: vec![RecoveryStep::Requeue] };
                Next::Commit(Move::Free(Freed::Lost(lost, None)))
            }
            Verdict::TakeBack { reason, until } => Next::Commit(Move::Free(Freed::Refused(reason, until))),
            Verdict::Wait { until, about } => {
                self.trouble(Trouble::Waits { until, about });
                Next::Report
            }
        }
    }

    fn trouble(&mut self, trouble: Trouble) {
        if let Some(holding) = self.holding_mut() {
            holding.trouble = trouble;
        }
    }

    /// New pods where the old ones were.
    fn restart(&self, terms: &Terms, lost: Lost) -> Next {
        let Some(plan) = self.plan() else { return Next::Rest };
        let units = plan.units.iter().map(|unit| unit.placed.clone()).collect();
        let placement = Placement { units, spares: plan.spares.clone() };
        let cause = Cause::Lost(lost);
        let plan = self.next_plan(terms, placement, &cause);
        Next::Commit(Move::Put(Decided { plan, cause, how: How::InPlace }))
    }

    fn next_plan(&self, terms: &Terms, placement: Placement, cause: &Cause) -> Plan {
        let latest = self.plan().map_or(0, |plan| plan.generation).max(self.committed.last_generation);
        let renew = match cause.renews() {
            Renews::Nothing => BTreeSet::new(),
            Renews::Units(units) => units,
        };
        let mut plan = Plan::next(self.plan(), latest + 1, placement, &renew, terms.whole);
        plan.revise(|role| terms.newest(role, *cause == Cause::First));
        plan
    }
}

/// What follows for a gang without a plan.
fn waits(waiting: &Waiting, terms: &Terms, facts: &Facts<'_>) -> Next {
    if terms.suspend {
        return Next::Commit(Move::Free(Freed::Suspended));
    }
    if let Some(decided) = &waiting.decided {
        return Next::Commit(Move::Put(decided.clone()));
    }
    let held = waiting.hold.as_ref().map(|(_, reason)| reason);
    facts.unsound.or(held).or(waiting.refusal.as_ref()).map_or(Next::Rest, |why| Next::Refused(why.clone()))
}

/// What follows for a gang with a plan, lost pods aside.
fn holds(holding: &Holding, plan: Option<&Plan>, terms: &Terms, reshaped: bool) -> Option<Next> {
    if let Some(end) = outcome(&holding.slots, terms) {
        return Some(Next::Commit(end));
    }
    if terms.suspend {
        return Some(Next::Commit(Move::Free(Freed::Suspended)));
    }
    if let Some(reason) = &holding.broken {
        return Some(Next::Commit(Move::Free(Freed::Failed(reason.clone()))));
    }
    if reshaped || plan.is_some_and(|plan| !terms.allow(plan)) {
        return Some(Next::Commit(Move::Free(Freed::Resized)));
    }
    match &holding.trouble {
        Trouble::Decided(decided) => Some(Next::Commit(Move::Put(Decided::clone(decided)))),
        Trouble::Asks { refusal: None, .. } => Some(Next::Rest),
        Trouble::Asks { lost, refusal: Some(reason) } => Some(Next::Commit(no_place(lost, reason))),
        Trouble::None | Trouble::Waits { .. } => None,
    }
}

/// The engine has no other places. Everything is given back: units that wait for the missing ones would hold their
/// accelerators in vain.
fn no_place(lost: &Lost, reason: &Reason) -> Move {
    if lost.steps.contains(&RecoveryStep::Requeue) {
        return Move::Free(Freed::Lost(lost.clone(), Some(reason.clone())));
    }
    let message = format!("{}; {}", lost.about.message(), reason.sentence());
    Move::End { well: false, reason: "NoRecovery".into(), message, exit_code: None }
}

/// The outcome, once the pods whose end decides have ended well.
fn outcome(slots: &Slots, terms: &Terms) -> Option<Move> {
    if terms.outcome == Outcome::Never || slots.tally().done == 0 {
        return None;
    }
    let mut deciding = slots.iter().filter(|planned| terms.decides(&planned.slot));
    let first = deciding.next()?;
    if first.state != SlotState::Done || !deciding.all(|planned| planned.state == SlotState::Done) {
        return None;
    }
    let message = match terms.outcome {
        Outcome::All => "every pod succeeded".to_owned(),
        _ => format!("pod {} of unit {} succeeded", first.slot.index, first.slot.unit.index),
    };
    Some(Move::End { well: true, reason: "Succeeded".into(), message, exit_code: Some(0) })
}
