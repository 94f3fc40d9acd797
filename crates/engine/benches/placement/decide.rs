//! One decision, one node event, and a restart at 130,000 nodes.

use muster_engine::{Engine, Event};
use muster_model::{Gang, Mode, Node, Within};
use std::hint::black_box;

use crate::{
    SEED,
    timing::{Least, PASSES, timed},
    world::{Ask, Churn, Form, RACKS, Random, any_size, decide, gang, required, used},
};

const NODES: usize = 129_996;
/// Microseconds: P99 of a decision in a churned cluster, and in any state.
const CHURNED: f64 = 50.0;
const ANY: f64 = 400.0;
/// Microseconds: P99 of a node event.
const EVENT: f64 = 1.0;

/// Gangs of every kind and of any size from 1 to 1,024 pods.
fn questions(outer: &str, devices: u32, random: &mut Random) -> Vec<Gang> {
    let question = |round: usize| {
        let size = 1 + random.below(1_024) as u32;
        let (pods, segments, within) = match round % 5 {
            0 => (size, Vec::new(), None),
            1 => (size.next_multiple_of(4), vec![required(4, "Rack")], None),
            2 => (size.next_multiple_of(16), vec![required(16, "Rack")], None),
            3 => (size.next_multiple_of(64), vec![required(4, "Rack"), required(64, outer)], None),
            _ => (size, Vec::new(), Some(Within { level: outer.into(), mode: Mode::Required })),
        };
        Gang { within, ..gang(format!("probe{round}"), pods, devices, segments) }
    };
    (0..2_000).map(question).collect()
}

/// Decisions on a state that stays as it is: each gang leaves before the next comes.
fn decisions(engine: &mut Engine, name: &str, limit: Option<f64>, asked: &[Gang]) {
    let (mut whole, mut search, mut after) = (Least::default(), Least::default(), Least::default());
    let mut placed = 0;
    for pass in 0..PASSES {
        for (at, gang) in asked.iter().enumerate() {
            engine.decide(0, 0);
            search.note(at, timed(|| engine.what_if(gang)).1);
            let key = gang.key.clone();
            let (placement, time) = decide(engine, gang.clone());
            let catch_up = timed(|| engine.decide(0, 0)).1;
            whole.note(at, time);
            after.note(at, time + catch_up);
            engine.apply(Event::GangGone(key));
            placed += usize::from(pass == 0 && placement.is_some());
        }
    }
    whole.print(name, limit, &format!("{placed} placed"));
    after.print("  with the counts brought up to date", None, "");
    search.print("  looking the gang up, search and naming alone", None, "");
}

/// Foreign use coming and going on random nodes: what one node event costs, and what it costs with every shape's
/// counts brought up to date at once (they are when next asked for).
fn events(engine: &mut Engine, name: &str, random: &mut Random) {
    let (mut event, mut caught_up) = (Least::default(), Least::default());
    let nodes: Vec<usize> = (0..20_000).map(|_| random.below(NODES as u64) as usize).collect();
    for _ in 0..PASSES {
        for (round, node) in nodes.iter().enumerate() {
            let begins = used(format!("e{round}"), *node, 1);
            let ends = Event::UseGone { id: format!("e{round}") };
            for (at, change) in [begins, ends].into_iter().enumerate() {
                let ((), applied) = timed(|| engine.apply(change));
                let more = timed(|| black_box(engine.decide(0, 0))).1;
                event.note(2 * round + at, applied);
                caught_up.note(2 * round + at, applied + more);
            }
        }
    }
    event.print(name, Some(EVENT), "");
    caught_up.print("  with all shapes caught up", Some(EVENT), "");
    println!("  index: {:.0} bytes a node", engine.index_bytes() as f64 / NODES as f64);
}

/// Makes the engine keep more shapes.
fn more_shapes(engine: &mut Engine, numbers: std::ops::Range<u32>) {
    for cpu in numbers {
        let mut extra = gang("shape".into(), 1, 1 + cpu % 8, Vec::new());
        extra.roles[0].requests.set("cpu", i64::from(1_000 + cpu));
        let key = extra.key.clone();
        decide(engine, extra);
        engine.apply(Event::GangGone(key));
    }
}

/// Whole nodes, after churn; node events in the first state.
pub fn churned() {
    let mut random = Random(SEED);
    let asked = questions("Block", 8, &mut random);
    for share in [0.8, 0.9, 0.95] {
        let mut churn = Churn::new(RACKS.engine(NODES), NODES as u64);
        let ((), took) = timed(|| churn.run(&RACKS, share, 5_000, 8, any_size, |_, _| {}));
        println!("churned to {share} by 5,000 departures in {:.1} s", took / 1e6);
        decisions(&mut churn.engine, &format!("decide130k churned {share}"), Some(CHURNED), &asked);
        if share < 0.9 {
            events(&mut churn.engine, "node event, few shapes", &mut random);
            more_shapes(&mut churn.engine, 0..6);
            events(&mut churn.engine, "node event, 8 shapes", &mut random);
            more_shapes(&mut churn.engine, 6..32);
            events(&mut churn.engine, "node event, 34 shapes", &mut random);
        }
    }
}

/// Whole nodes, used at random.
pub fn scattered() {
    let mut random = Random(SEED);
    let asked = questions("Block", 8, &mut random);
    let mut engine = RACKS.engine(NODES);
    scatter(&mut engine, NODES, &mut random);
    decisions(&mut engine, "decide130k scattered 0.8", Some(ANY), &asked);
}

fn scatter(engine: &mut Engine, nodes: usize, random: &mut Random) {
    for index in 0..nodes {
        if random.below(10) < 8 {
            engine.apply(used(index.to_string(), index, 8));
        }
    }
}

/// Pods of one GPU, after churn and at random.
pub fn ones() {
    let mut random = Random(SEED);
    let asked = questions("Block", 1, &mut random);
    let mut churn = Churn::new(RACKS.engine(NODES), 8 * NODES as u64);
    let large = |random: &mut Random| Ask { pods: 1 + random.below(1_024) as u32, block: 0 };
    churn.run(&RACKS, 0.8, 5_000, 1, large, |_, _| {});
    decisions(&mut churn.engine, "decide130k 1-GPU pods, churned 0.8", Some(CHURNED), &asked);
    drop(churn);
    let mut engine = RACKS.engine(NODES);
    for index in 0..NODES {
        let devices = i64::from(random.below(100) < 98) * (4 + random.below(5) as i64);
        engine.apply(used(index.to_string(), index, devices));
    }
    decisions(&mut engine, "decide130k 1-GPU pods, scattered", Some(ANY), &asked);
}

/// More domains than nodes: racks of one node, blocks of 2, pods of 10.
pub fn many_domains() {
    const MANY: Form = Form { levels: &["Pod", "Block", "Rack"], nodes: &[10, 2, 1], devices: 8 };
    let mut random = Random(SEED);
    let asked = questions("Pod", 8, &mut random);
    let mut engine = MANY.engine(6_000);
    decisions(&mut engine, "6,000 nodes in 9,600 domains, empty", Some(ANY), &asked);
    scatter(&mut engine, 6_000, &mut random);
    decisions(&mut engine, "6,000 nodes in 9,600 domains, scattered 0.8", Some(ANY), &asked);
}

/// Gangs of two roles that share nodes, in the churned state and on an eighth of the nodes.
pub fn roles() {
    for nodes in [NODES / 8, NODES] {
        let mut random = Random(SEED);
        let mut churn = Churn::new(RACKS.engine(nodes), nodes as u64);
        churn.run(&RACKS, 0.8, 5_000, 8, any_size, |_, _| {});
        for (what, most, count) in [("up to 4 units", 4, 40), ("as many units as fit", 10_000, 4)] {
            let question = |round: usize| {
                let mut asked = gang(format!("probe{round}"), 1 + random.below(16) as u32, 8, Vec::new());
                let mut second = asked.roles[0].clone();
                (second.name, second.devices, second.pods_per_unit) = ("driver".into(), 0, 1);
                asked.roles.push(second);
                asked.roles[0].max = most;
                asked
            };
            let asked: Vec<Gang> = (0..count).map(question).collect();
            let name = format!("two roles, {nodes} nodes, {what}");
            decisions(&mut churn.engine, &name, None, &asked);
        }
    }
}

pub fn restart() {
    let once = || {
        let nodes: Vec<Node> = (0..130_000).map(|index| RACKS.node(index)).collect();
        let pods: Vec<Event> = (0..100_000).map(|pod| used(format!("pod-{pod}"), pod, 8)).collect();
        let mut engine = Engine::new();
        let ((placement, first), all) = timed(|| {
            engine.apply(Event::Topology(RACKS.topology()));
            for node in nodes {
                engine.apply(Event::Node(node));
            }
            for pod in pods {
                engine.apply(pod);
            }
            decide(&mut engine, gang("first".into(), 64, 8, Vec::new()))
        });
        assert!(placement.is_some(), "the gang fits");
        (all, first)
    };
    let (all, first) = (0..3).map(|_| once()).fold((f64::MAX, f64::MAX), |a, b| (a.0.min(b.0), a.1.min(b.1)));
    println!(
        "restart: 130,000 nodes and 100,000 pods to the first decision {:.0} ms (limit 1,000), of which the decision {:.1} ms",
        all / 1e3,
        first / 1e3
    );
}
