//! From a seed to a trace: which steps, how often.

use super::rng::Rng;
use super::trace::{
    Blow, Break, Edit, End, FRAMEWORKS, PRIORITIES, Refusal, Shape, Step, Target, Timed, Trace,
};

/// Jobs and gangs of a namespace have numbers below this.
const NAMES: u64 = 4;
const SECOND: u32 = 1_000;

/// The trace of a seed.
pub fn trace(seed: u64) -> Trace {
    let mut rng = Rng::new(seed);
    let nodes = rng.between(4, 10) as u8;
    let mut trace = Trace {
        seed,
        nodes,
        rack: rng.between(2, 4) as u8,
        spaces: rng.between(1, 2) as u8,
        steps: Vec::new(),
    };
    // Which faults a storm has at all differs: faults that come alone are understood sooner, and some hide others.
    let mood = Mood {
        api: rng.chance(600),
        nodes: rng.chance(600),
        process: rng.chance(600),
        users: rng.chance(850),
    };
    let first = rng.between(1, 2);
    for at in 0..first {
        let target = Target { space: 0, at: at as u8 };
        let shape = shape(&mut rng, nodes);
        trace.steps.push(Timed { after: 100, step: Step::Submit(target, shape) });
    }
    for _ in 0..rng.between(12, 40) {
        let step = step(&mut rng, &trace, &mood);
        trace.steps.push(Timed { after: pause(&mut rng), step });
    }
    trace
}

struct Mood {
    api: bool,
    nodes: bool,
    process: bool,
    users: bool,
}

fn pause(rng: &mut Rng) -> u32 {
    let most = rng.pick(&[0, 20, 500, 500, 3_000, 10_000, 60_000]);
    rng.between(0, most) as u32
}

fn lasts(rng: &mut Rng) -> u32 {
    let most = rng.pick(&[500, 3_000, 20_000, 60_000, 180_000]);
    rng.between(100, most) as u32
}

fn shape(rng: &mut Rng, nodes: u8) -> Shape {
    let gpus = rng.pick(&[8, 8, 8, 4, 2, 1]);
    let pods = rng.between(1, u64::from(nodes).max(2)) as u8;
    let elastic = rng.chance(300);
    let end = match rng.below(10) {
        0..7 => End::Never,
        7..9 => End::After(rng.between(5, 300) as u16),
        _ => End::Fails(rng.between(5, 60) as u16),
    };
    // Back-offs grow to minutes: one that always fails comes to its end while somebody waits for it.
    let budgets: &[u8] = if matches!(end, End::Fails(_)) { &[1, 2, 3] } else { &[20, 20, 20, 3, 1] };
    Shape {
        pods,
        min: if elastic { rng.between(1, u64::from(pods)) as u8 } else { pods },
        gpus,
        rack: rng.chance(150),
        framework: rng.below(FRAMEWORKS.len() as u64) as u8,
        budget: rng.pick(budgets),
        priority: rng.below(PRIORITIES.len() as u64) as u8,
        all: rng.chance(250),
        spares: u8::from(rng.chance(80)),
        end,
    }
}

fn target(rng: &mut Rng, trace: &Trace) -> Target {
    Target { space: rng.below(u64::from(trace.spaces)) as u8, at: rng.below(NAMES) as u8 }
}

/// One that was made before, most of the time.
fn known(rng: &mut Rng, trace: &Trace, gangs: bool) -> Target {
    let made: Vec<Target> = trace
        .steps
        .iter()
        .filter_map(|timed| match timed.step {
            Step::Submit(target, _) | Step::Replace(target, _) => Some(target),
            Step::MakeGang(target, _) if gangs => Some(hand(target)),
            _ => None,
        })
        .collect();
    if made.is_empty() || rng.chance(50) { target(rng, trace) } else { rng.pick(&made) }
}

/// Gangs by hand have numbers of their own.
pub fn hand(target: Target) -> Target {
    Target { at: target.at + NAMES as u8, ..target }
}

fn edit(rng: &mut Rng, nodes: u8) -> Edit {
    match rng.below(12) {
        0..2 => Edit::Suspend(true),
        2..5 => Edit::Suspend(false),
        5..7 => Edit::Resize(rng.between(1, u64::from(nodes)) as u8),
        7..9 => Edit::Priority(rng.below(PRIORITIES.len() as u64) as u8),
        9 => Edit::Template(rng.below(4) as u8),
        10 => Edit::Rack(rng.chance(500)),
        _ => Edit::Label(rng.below(4) as u8),
    }
}

fn step(rng: &mut Rng, trace: &Trace, mood: &Mood) -> Step {
    loop {
        let found = match rng.below(4) {
            0 if mood.users => users(rng, trace),
            1 if mood.api => api(rng),
            2 if mood.nodes => nodes(rng, trace),
            3 if mood.process => process(rng),
            // A storm without any of the moods is made of jobs alone.
            _ if !(mood.users || mood.api || mood.nodes || mood.process) => users(rng, trace),
            _ => continue,
        };
        return found;
    }
}

fn users(rng: &mut Rng, trace: &Trace) -> Step {
    match rng.below(33) {
        0..6 => {
            let target = target(rng, trace);
            Step::Submit(target, shape(rng, trace.nodes))
        }
        6..12 => Step::Edit(known(rng, trace, false), edit(rng, trace.nodes)),
        12..14 => Step::Delete(known(rng, trace, false)),
        14..17 => {
            let target = known(rng, trace, false);
            Step::Replace(target, shape(rng, trace.nodes))
        }
        17..19 => {
            let target = target(rng, trace);
            Step::MakeGang(target, shape(rng, trace.nodes))
        }
        19..21 => Step::EditGang(known(rng, trace, true), edit(rng, trace.nodes)),
        21..23 => Step::DeleteGang(known(rng, trace, true)),
        23..25 => Step::DeleteOwned(rng.below(32) as u8),
        25..27 => Step::DeletePod(rng.below(64) as u8, rng.chance(300)),
        27..29 => Step::Exit(rng.below(64) as u8, rng.pick(&[0, 1, 1, 137])),
        29 => Step::Finish(known(rng, trace, true)),
        30 => Step::Quota(rng.below(u64::from(trace.spaces)) as u8, rng.between(0, 6) as u8, lasts(rng)),
        31 => Step::Limit(rng.below(u64::from(trace.spaces)) as u8, lasts(rng)),
        _ => Step::Impostor(known(rng, trace, true), rng.below(10) as u8, rng.chance(500), lasts(rng)),
    }
}

fn api(rng: &mut Rng) -> Step {
    match rng.below(12) {
        0..8 => {
            let how = rng.pick(&[
                Break::TooMany,
                Break::Internal,
                Break::Unavailable,
                Break::Conflict,
                Break::Lost,
                Break::Lost,
                Break::Silent,
                Break::Unreachable,
                Break::Late,
                Break::Late,
                Break::Slow,
            ]);
            Step::Api { how, permille: rng.pick(&[30, 100, 300, 300, 1_000]), lasts: lasts(rng) }
        }
        8..10 => Step::Lag(rng.pick(&[100, 1_000, 5_000]), lasts(rng)),
        10 => Step::BreakWatches(rng.chance(500)),
        _ => Step::Gap(rng.between(100, 20_000) as u32),
    }
}

fn nodes(rng: &mut Rng, trace: &Trace) -> Step {
    let node = rng.below(u64::from(trace.nodes)) as u8;
    let blow = match rng.below(20) {
        0..3 => Blow::Hang,
        3..6 => Blow::Off,
        6 => Blow::NotReady,
        7..9 => Blow::Refuse(rng.pick(&[
            Refusal::OutOfGpu,
            Refusal::OutOfCpu,
            Refusal::Unexpected,
            Refusal::Topology,
        ])),
        9 => Blow::Deaf,
        10 => Blow::Cordon,
        11 => Blow::Taint,
        12 => Blow::TaintHard,
        13 => Blow::Gpus(rng.below(8) as u8),
        14..17 => Blow::Vanish,
        _ => return Step::Foreign(node, rng.between(1, 8) as u8, lasts(rng)),
    };
    let lasts = lasts(rng) + if rng.chance(200) { 400 * SECOND } else { 0 };
    Step::Strike(node, blow, lasts)
}

fn process(rng: &mut Rng) -> Step {
    match rng.below(12) {
        0..6 => Step::Kill {
            requests: rng.pick(&[0, 1, 2, 3, 5, 8, 13, 21, 40]),
            done: rng.chance(500),
            down: rng.pick(&[0, 10, 1_000, 30_000]),
        },
        6..8 => Step::Freeze(rng.pick(&[2_000, 9_000, 16_000, 30_000, 60_000]), rng.chance(700)),
        8 => Step::HandOver,
        9 => Step::Step(rng.pick(&[-3_600, -120, -5, 5, 120, 3_600])),
        10 => Step::DropLease,
        _ => Step::Wait(rng.between(1_000, 900_000) as u32),
    }
}
