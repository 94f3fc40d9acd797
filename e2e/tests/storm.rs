//! Random storms over the operator, in virtual time.
//!
//! ```text
//!   kept traces ─▶ as many seeds as MUSTER_STORM_SEEDS says   the same seed is the same run   planted faults are found
//! ```
//!
//! `cargo run -p muster-e2e --bin storm -- --help` runs more of them, shrinks what fails and prints it.

use muster_e2e::storm::{self, Counts, Outcome, Tamper, Trace, Tuning};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// A storm is JSON: made, read and thrown away.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const KEPT: &str = include_str!("../storm/regressions.txt");
/// Seeds of a run that names no other number: about two minutes of two cores.
const SEEDS: u64 = 1_000;
/// Within so many seeds a planted fault must be found.
const WITHIN: u64 = 60;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn run(trace: &Trace) -> Outcome {
    storm::run(trace, Tuning::default())
}

/// What a storm must not find, with the trace that finds it.
fn told(trace: &Trace, outcome: &Outcome) -> String {
    let faults: Vec<_> =
        outcome.faults.iter().map(|fault| format!("{}: {}", fault.kind, fault.what)).collect();
    format!("{}\n{}", faults.join("\n"), trace.to_text())
}

#[test]
fn kept_traces_are_clean() {
    let traces = Trace::read_all(KEPT).expect("e2e/storm/regressions.txt can be read");
    let failed: Vec<String> = traces
        .iter()
        .filter_map(|trace| {
            let outcome = run(trace);
            (!outcome.faults.is_empty()).then(|| told(trace, &outcome))
        })
        .collect();
    assert!(
        failed.is_empty(),
        "{} of {} kept traces fail:\n{}",
        failed.len(),
        traces.len(),
        failed.join("\n")
    );
}

#[test]
fn storms_are_clean() {
    let (first, seeds) = (number("MUSTER_STORM_FIRST", 0), number("MUSTER_STORM_SEEDS", SEEDS));
    let (next, failed, total) = (AtomicU64::new(0), Mutex::new(Vec::new()), Mutex::new(Counts::new()));
    storm::prepare();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..number("MUSTER_STORM_THREADS", 2) {
            scope.spawn(|| {
                while let Some(at) = Some(next.fetch_add(1, Ordering::SeqCst)).filter(|at| *at < seeds) {
                    let trace = Trace::of(first + at);
                    let outcome = run(&trace);
                    storm::add(&mut total.lock().unwrap_or_else(PoisonError::into_inner), &outcome.counts);
                    if !outcome.faults.is_empty() {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).push((trace, outcome));
                    }
                }
            });
        }
    });
    println!("{seeds} storms in {:.0} s", began.elapsed().as_secs_f64());
    for (what, count) in total.into_inner().unwrap_or_default() {
        println!("{count:>10}  {what}");
    }
    let failed = failed.into_inner().unwrap_or_default();
    if let Some((trace, outcome)) = failed.first() {
        let (small, small_outcome) = storm::shrink(trace, outcome.faults[0].kind, Tuning::default());
        let seeds: Vec<u64> = failed.iter().map(|(trace, _)| trace.seed).collect();
        panic!(
            "{} of the storms fail, seeds {seeds:?}; the first, made small, for e2e/storm/regressions.txt:\n{}",
            failed.len(),
            told(&small, &small_outcome)
        );
    }
}

/// One seed is one run: everything that is asked and answered, and when.
#[test]
fn the_same_seed_is_the_same_run() {
    let tuning = Tuning { keep_log: true, ..Tuning::default() };
    for seed in 0..12 {
        let trace = Trace::of(seed);
        let text = trace.to_text();
        assert_eq!(Trace::from_text(&text).as_ref(), Ok(&trace), "a trace survives its text");
        let (once, again) = (storm::run(&trace, tuning), storm::run(&trace, tuning));
        let differ = once.log.iter().zip(&again.log).find(|(one, two)| one != two);
        assert_eq!(differ, None, "seed {seed}");
        assert_eq!(
            (once.hash, once.requests, once.millis),
            (again.hash, again.requests, again.millis),
            "seed {seed}"
        );
    }
}

/// The judge is judged: each planted fault is found, where the same storm without it is clean.
#[test]
fn planted_faults_are_found() {
    let mut clean: BTreeMap<u64, bool> = BTreeMap::new();
    for (tamper, words) in Tamper::ALL {
        let found = (0..WITHIN).find(|seed| {
            let trace = Trace::of(*seed);
            if !*clean.entry(*seed).or_insert_with(|| run(&trace).faults.is_empty()) {
                return false;
            }
            let tampered = storm::run(&trace, Tuning { tamper: Some(tamper), ..Tuning::default() });
            tampered.faults.iter().any(|fault| words.iter().any(|word| fault.kind.contains(word)))
        });
        println!("{tamper:?}: found by seed {found:?}");
        assert!(found.is_some(), "{tamper:?} is not found within {WITHIN} seeds");
    }
}
