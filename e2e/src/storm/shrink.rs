//! A failing trace, made as small as it fails the same way.

use super::trace::{Blow, Step, Trace};
use super::{Outcome, Tuning, run};

/// Runs that shrinking may take.
const MOST_RUNS: usize = 400;
/// Requests that all these runs together may take: one that runs wild takes as many as ten thousands that do not.
const MOST_REQUESTS: u64 = 1_500_000;

/// The smallest trace found that fails with the same kind of fault, and what it says.
pub fn shrink(trace: &Trace, kind: &str, tuning: Tuning) -> (Trace, Outcome) {
    let mut search = Search { kind, tuning, runs: 0, requests: 0, best: trace.clone() };
    search.steps();
    search.numbers();
    search.steps();
    let outcome = run(&search.best, tuning);
    (search.best, outcome)
}

struct Search<'a> {
    kind: &'a str,
    tuning: Tuning,
    runs: usize,
    requests: u64,
    best: Trace,
}

impl Search<'_> {
    /// Takes a smaller trace if it fails the same way.
    fn try_out(&mut self, trace: Trace) -> bool {
        if self.runs >= MOST_RUNS || self.requests >= MOST_REQUESTS || trace == self.best {
            return false;
        }
        self.runs += 1;
        let outcome = run(&trace, self.tuning);
        self.requests += outcome.requests;
        let fails = outcome.faults.iter().any(|fault| fault.kind == self.kind);
        if fails {
            self.best = trace;
        }
        fails
    }

    /// Leaves steps out: half of them, a quarter, …, each one.
    fn steps(&mut self) {
        let mut size = self.best.steps.len().div_ceil(2).max(1);
        loop {
            let mut at = 0;
            while at < self.best.steps.len() {
                let mut trace = self.best.clone();
                let end = (at + size).min(trace.steps.len());
                // What is left out still takes its time: what follows meets the same moment.
                let gone: u32 = trace.steps[at..end].iter().map(|timed| timed.after).sum();
                trace.steps.drain(at..end);
                if let Some(next) = trace.steps.get_mut(at) {
                    next.after = next.after.saturating_add(gone);
                }
                if !self.try_out(trace) {
                    at += size;
                }
            }
            if size == 1 {
                return;
            }
            size = size.div_ceil(2);
        }
    }

    /// Makes numbers smaller, one after the other.
    fn numbers(&mut self) {
        let mut trace = self.best.clone();
        trace.spaces = 1;
        self.try_out(trace);
        while self.best.nodes > 1 {
            let mut trace = self.best.clone();
            trace.nodes -= 1;
            if !self.try_out(trace) {
                break;
            }
        }
        for at in 0..self.best.steps.len() {
            let mut trace = self.best.clone();
            trace.steps[at].after = 0;
            self.try_out(trace);
            for simpler in simpler(&self.best.steps[at].step) {
                let mut trace = self.best.clone();
                trace.steps[at].step = simpler;
                self.try_out(trace);
            }
        }
    }
}

/// Simpler forms of a step, the boldest first.
fn simpler(step: &Step) -> Vec<Step> {
    match *step {
        Step::Submit(target, shape) | Step::MakeGang(target, shape) | Step::Replace(target, shape) => {
            let again = |shape| match step {
                Step::Submit(..) => Step::Submit(target, shape),
                Step::MakeGang(..) => Step::MakeGang(target, shape),
                _ => Step::Replace(target, shape),
            };
            let mut plain = shape;
            (plain.rack, plain.all, plain.spares, plain.priority, plain.framework) = (false, false, 0, 0, 0);
            let mut least = plain;
            (least.pods, least.min) = (1, 1);
            let mut rigid = shape;
            rigid.min = rigid.pods;
            vec![again(least), again(plain), again(rigid)]
        }
        Step::Api { how, lasts, .. } => {
            vec![
                Step::Api { how, permille: 1_000, lasts: lasts / 4 },
                Step::Api { how, permille: 1_000, lasts },
            ]
        }
        Step::Strike(node, blow, lasts) if !matches!(blow, Blow::Vanish) => {
            vec![Step::Strike(node, blow, lasts / 8), Step::Strike(node, blow, lasts / 2)]
        }
        Step::Lag(millis, lasts) => vec![Step::Lag(millis, lasts / 4)],
        Step::Gap(lasts) => vec![Step::Gap(lasts / 8), Step::Gap(lasts / 2)],
        Step::Kill { requests, .. } => vec![Step::Kill { requests, done: false, down: 0 }],
        _ => Vec::new(),
    }
}
