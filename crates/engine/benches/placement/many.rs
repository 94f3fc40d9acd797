//! Many gangs at once, decided in one go.

use muster_engine::{Decision, Engine, Event};
use muster_model::{Gang, Mode, Within};

use crate::{
    timing::{PASSES, timed},
    world::{Form, gang},
};

/// Decides for gangs that all wait, several times over. Returns the least time in microseconds.
fn all_at_once(empty: impl Fn() -> Engine, gangs: &[Gang]) -> f64 {
    let once = || {
        let mut engine = empty();
        for gang in gangs {
            engine.apply(Event::Gang(gang.clone()));
        }
        let (decisions, time) = timed(|| engine.decide(0, usize::MAX));
        let placed = decisions.iter().filter(|d| matches!(d, Decision::Place { .. })).count();
        assert_eq!(placed, gangs.len(), "all fit");
        time
    };
    (0..PASSES).map(|_| once()).fold(f64::MAX, f64::min)
}

/// The limit: one pass over a record a node, per gang.
fn passes(nodes: u64, gangs: usize) -> f64 {
    let records: Vec<[u64; 8]> = (0..nodes).map(|i| [i; 8]).collect();
    let pass = || timed(|| records.iter().map(|r| r[3]).sum::<u64>()).1;
    (0..500).map(|_| pass()).fold(f64::MAX, f64::min) * gangs as f64
}

pub fn tas5k() {
    const FORM: Form = Form { levels: &["Block", "Rack"], nodes: &[1_000, 100], devices: 8 };
    for (count, pods) in [(750_usize, 4_u32), (1_500, 4), (2_250, 4), (3, 1_000), (6, 1_000), (9, 1_000)] {
        let within = (pods < 100).then(|| Within { level: "Rack".into(), mode: Mode::Required });
        let one = |index| Gang { within: within.clone(), ..gang(format!("g{index}"), pods, 4, Vec::new()) };
        let gangs: Vec<Gang> = (0..count).map(one).collect();
        let time = all_at_once(|| FORM.engine(5_000), &gangs);
        println!(
            "tas5k {count} gangs of {pods}: {:.2} ms (limit, one pass over the nodes a gang: {:.2} ms), {:.0} gangs/s, {:.0} pods/s in memory",
            time / 1e3,
            passes(5_000, count) / 1e3,
            count as f64 / time * 1e6,
            count as f64 * f64::from(pods) / time * 1e6
        );
    }
}

/// 10,000 pods of one GPU on 16,000 GPUs, as few large gangs or many small ones: time to decide for all of them.
pub fn gang10k() {
    const FORM: Form = Form { levels: &["Block", "Rack"], nodes: &[250, 25], devices: 16 };
    for (count, pods) in [(1_usize, 10_000_u32), (20, 500), (500, 20), (10_000, 1)] {
        let gangs: Vec<Gang> =
            (0..count).map(|index| gang(format!("g{index}"), pods, 1, Vec::new())).collect();
        let time = all_at_once(|| FORM.engine(1_000), &gangs);
        let limit = if count == 1 { " (limit 1,000)" } else { "" };
        println!("gang10k {count} x {pods}: {time:.0}{limit}, {:.1} a gang", time / count as f64);
    }
}
