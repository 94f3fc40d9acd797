//! Figures of the engine beside limits: `cargo bench -p muster-engine --bench placement -- [scenario…]`.
//!
//! ```text
//!   churned      decide130k: decisions and node events on 129,996 nodes in 7,222 racks of 18 after churn
//!   scattered    the same, used at random
//!   ones         pods of one GPU in both states
//!   domains      6,000 nodes in 9,600 domains
//!   roles        gangs of two roles at 16,000 and 130,000 nodes
//!   restart      130,000 nodes and 100,000 pods from nothing to the first decision
//!   tas5k        5,000 nodes in 50 racks: gangs of 4 and of 1,000
//!   gang10k      10,000 pods on 1,000 nodes, as gangs of 10,000, 500, 20 and 1: decisions only
//!   nvl72pack    278 racks of 18 under churn: racks used against the least possible
//!   openb-frag   a trace's pods of whole GPUs until 130 % have arrived: GPUs allocated (needs the trace, see `openb`)
//! ```
//!
//! On a shared machine one slow run says nothing about the code. So every question is asked in several passes over all
//! questions, and counts with its least time; percentiles are over questions. Other processes can only make it slower.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod decide;
mod many;
mod openb;
mod pack;
mod timing;
mod world;

/// As in the `muster` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Seed of all that is drawn, unless a scenario states others.
const SEED: u64 = 11;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let scenarios: [(&str, fn()); 10] = [
        ("churned", decide::churned),
        ("scattered", decide::scattered),
        ("ones", decide::ones),
        ("domains", decide::many_domains),
        ("roles", decide::roles),
        ("restart", decide::restart),
        ("tas5k", many::tas5k),
        ("gang10k", many::gang10k),
        ("nvl72pack", pack::nvl72pack),
        ("openb-frag", openb::frag),
    ];
    println!("seed {SEED}; times in microseconds unless stated; load {}", timing::load());
    for (name, run) in scenarios {
        if wanted.is_empty() || wanted.iter().any(|w| w == name) {
            timing::calibrate();
            run();
        }
    }
    println!("load {}", timing::load());
}
