//! `storm`: random storms over the whole operator, as many as asked for.
//!
//! ```text
//!   storm --seeds 100000 --threads 2      counts, and each kind of fault with its first seeds, shrunk
//!   storm --seed 17 --log                 one storm, with everything that was asked of the server
//!   storm --trace FILE                    traces that were kept
//! ```

use anyhow::{Context, Result, bail};
use clap::Parser;
use muster_e2e::storm::{self, Counts, Outcome, Tamper, Trace, Tuning};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// A storm is JSON: made, read and thrown away.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Random storms over the whole operator, in virtual time.
#[derive(Parser)]
struct Arguments {
    /// How many storms.
    #[arg(long, env = "MUSTER_STORM_SEEDS", default_value_t = 1_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, env = "MUSTER_STORM_FIRST", default_value_t = 0)]
    first: u64,
    /// Threads, each with a storm of its own.
    #[arg(long, env = "MUSTER_STORM_THREADS", default_value_t = 2)]
    threads: usize,
    /// This seed only.
    #[arg(long, env = "MUSTER_STORM_SEED")]
    seed: Option<u64>,
    /// The traces of this file only.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Print the trace, and what was asked of the server.
    #[arg(long)]
    log: bool,
    /// Do not shrink what fails.
    #[arg(long)]
    no_shrink: bool,
    /// Plant this fault, by number.
    #[arg(long)]
    tamper: Option<usize>,
}

/// What came of many storms.
#[derive(Default)]
struct Sum {
    counts: Counts,
    requests: u64,
    millis: i64,
    tampered: u64,
    /// Names all runs together, in whatever order they came.
    hash: u64,
    /// Seeds by kind of fault, with what was seen first.
    faults: BTreeMap<&'static str, (Vec<u64>, String)>,
}

impl Sum {
    fn take(&mut self, seed: u64, outcome: &Outcome) {
        storm::add(&mut self.counts, &outcome.counts);
        self.requests += outcome.requests;
        self.millis += outcome.millis;
        self.tampered += outcome.tampered;
        self.hash = self.hash.wrapping_add(outcome.hash);
        for fault in outcome.faults.iter().take(1) {
            let entry = self.faults.entry(fault.kind).or_insert_with(|| (Vec::new(), fault.what.clone()));
            entry.0.push(seed);
        }
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let tamper = arguments.tamper.map(|at| Tamper::ALL.get(at).map(|(tamper, _)| *tamper));
    let tuning = Tuning { tamper: tamper.flatten(), keep_log: arguments.log };
    if let Some(path) = &arguments.trace {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let traces = Trace::read_all(&text).map_err(anyhow::Error::msg)?;
        let failed = traces.iter().filter(|trace| !one(trace, tuning)).count();
        if failed > 0 {
            bail!("{failed} of {} traces fail", traces.len());
        }
        return Ok(());
    }
    if let Some(seed) = arguments.seed {
        let trace = Trace::of(seed);
        if !one(&trace, tuning) {
            small(&trace, tuning, arguments.no_shrink);
            bail!("seed {seed} fails");
        }
        return Ok(());
    }
    let sum = many(&arguments, tuning);
    report(&arguments, &sum);
    for (kind, (seeds, what)) in &sum.faults {
        println!("\n{kind}: {} seeds, such as {:?}\n  {what}", seeds.len(), &seeds[..seeds.len().min(12)]);
        small(&Trace::of(seeds[0]), tuning, arguments.no_shrink);
    }
    if !sum.faults.is_empty() {
        bail!("{} kinds of faults", sum.faults.len());
    }
    Ok(())
}

/// One storm in words; whether it was clean.
fn one(trace: &Trace, tuning: Tuning) -> bool {
    if tuning.keep_log {
        println!("{}", trace.to_text());
    }
    let outcome = storm::run(trace, tuning);
    for line in &outcome.log {
        println!("{line}");
    }
    println!("seed {}: {} requests, hash {:016x}", trace.seed, outcome.requests, outcome.hash);
    for fault in &outcome.faults {
        println!("{}: {}", fault.kind, fault.what);
    }
    outcome.faults.is_empty()
}

/// The smallest trace that fails as this one does.
fn small(trace: &Trace, tuning: Tuning, no_shrink: bool) {
    let quiet = Tuning { keep_log: false, ..tuning };
    let Some(fault) = storm::run(trace, quiet).faults.into_iter().next() else { return };
    if no_shrink {
        return;
    }
    let (small, outcome) = storm::shrink(trace, fault.kind, quiet);
    println!("# {}", fault.kind);
    for fault in &outcome.faults {
        println!("# {}: {}", fault.kind, fault.what);
    }
    println!("{}", small.to_text());
}

fn many(arguments: &Arguments, tuning: Tuning) -> Sum {
    storm::prepare();
    // Panics of the operator are found by the storm, which says where they belong.
    std::panic::set_hook(Box::new(|_| {}));
    let (next, sum) = (AtomicU64::new(0), Mutex::new(Sum::default()));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::SeqCst);
                    if at >= arguments.seeds {
                        return;
                    }
                    let seed = arguments.first + at;
                    let outcome = storm::run(&Trace::of(seed), tuning);
                    sum.lock().unwrap_or_else(PoisonError::into_inner).take(seed, &outcome);
                }
            });
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{} storms in {seconds:.1} s: {:.1} a second",
        arguments.seeds,
        arguments.seeds as f64 / seconds
    );
    sum.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn report(arguments: &Arguments, sum: &Sum) {
    println!(
        "seeds {} to {}: {} requests, {:.1} virtual hours, hash {:016x}",
        arguments.first,
        arguments.first + arguments.seeds.saturating_sub(1),
        sum.requests,
        sum.millis as f64 / 3_600_000.0,
        sum.hash,
    );
    for (what, count) in &sum.counts {
        println!("{count:>10}  {what}");
    }
    if sum.tampered > 0 {
        println!("{:>10}  requests tampered with", sum.tampered);
    }
}
