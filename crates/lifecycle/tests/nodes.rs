//! Which nodes are lost: one, many, racks, all of them; in small clusters and large.

use muster_lifecycle::nodes::{
    BELIEF, Belief, Config, Health, Judgement, Nodes, Refused, Sign, Why, believe,
};
use muster_model::{Millis, NodeName, Resources, Uid};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const NOT_READY: Sign = Sign::NotReady { dead: false };

/// A cluster in time. What is judged is kept as lines.
struct World {
    nodes: Nodes,
    now: Millis,
    domains: BTreeMap<NodeName, BTreeSet<String>>,
    /// The nodes of one gang.
    gang: BTreeSet<NodeName>,
    told: Vec<String>,
    last: Judgement,
}

impl World {
    fn new() -> Self {
        Self {
            nodes: Nodes::new(Config::default()),
            now: 0,
            domains: BTreeMap::new(),
            gang: BTreeSet::new(),
            told: Vec::new(),
            last: Judgement::default(),
        }
    }

    /// `racks` racks of `size` nodes `r0-n0`, …, in one zone.
    fn racks(racks: usize, size: usize) -> Self {
        let mut world = Self::new();
        for rack in 0..racks {
            for node in 0..size {
                let domains = [format!("rack-{rack}"), "zone".to_owned()].into();
                world.domains.insert(format!("r{rack}-n{node}").into(), domains);
            }
        }
        world.all(Sign::Ready);
        world.told.clear();
        world
    }

    fn sign(&mut self, name: &str, sign: Sign) {
        self.sign_as(name, "1", sign);
    }

    fn sign_as(&mut self, name: &str, uid: &str, sign: Sign) {
        let name = NodeName::from(name);
        let domains = self.domains.entry(name.clone()).or_default().clone();
        self.nodes.observe(&name, &Uid(uid.to_owned()), &domains, sign, self.now);
        self.judge();
    }

    fn rack(&mut self, rack: usize, sign: Sign) {
        let prefix = format!("r{rack}-");
        for name in self.names().into_iter().filter(|name| name.starts_with(&prefix)) {
            self.sign(&name, sign);
        }
    }

    fn all(&mut self, sign: Sign) {
        for name in self.names() {
            self.sign(&name, sign);
        }
    }

    fn names(&self) -> Vec<String> {
        self.domains.keys().map(ToString::to_string).collect()
    }

    fn judge(&mut self) {
        let gang = self.gang.clone();
        let judged = self.nodes.judge(self.now, &|nodes| nodes.is_subset(&gang));
        let at = self.now / 1_000;
        for (name, why) in &judged.lost {
            self.told.push(format!("{at}: {name} {}", why.words()));
        }
        self.told.extend(judged.recovered.iter().map(|name| format!("{at}: {name} is back")));
        assert!(judged.next.is_none_or(|next| next > self.now), "it would be asked for ever: {judged:?}");
        self.last = judged;
    }

    /// Lets so many seconds pass; it is judged when it asks for that.
    fn pass(&mut self, seconds: i64) -> &mut Self {
        let end = self.now + seconds * 1_000;
        while let Some(next) = self.last.next.filter(|next| *next <= end) {
            self.now = next;
            self.judge();
        }
        self.now = end;
        self
    }

    fn told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.told)
    }

    fn brakes(&self) -> Vec<(Option<&str>, usize, usize)> {
        self.last.brakes.iter().map(|brake| (brake.domain.as_deref(), brake.silent, brake.of)).collect()
    }
}

const NOTHING: &[&str] = &[];

#[test]
fn one_silent_node_is_lost_after_the_short_grace() {
    let mut world = World::racks(2, 5);
    world.sign("r0-n0", Sign::Unknown);
    world.pass(14);
    assert_eq!(world.told(), NOTHING);
    let name = "r0-n0".into();
    let words = world.nodes.words(&name, world.now);
    assert_eq!(words.as_deref(), Some("node r0-n0 has been silent for 14s (Ready=Unknown)"));
    world.pass(1);
    assert_eq!(world.told(), ["15: r0-n0 has been silent for 15s (Ready=Unknown)"]);
    world.pass(100).sign("r0-n0", Sign::Ready);
    assert_eq!(world.told(), ["115: r0-n0 is back"]);
    assert_eq!(world.nodes.words(&name, world.now), None);
    assert_eq!(world.last.next, None);
}

/// A restart of the container runtime or of the network plugin.
#[test]
fn a_node_that_is_not_ready_for_twenty_seconds_is_not_lost() {
    let mut world = World::racks(2, 5);
    world.sign("r0-n0", NOT_READY);
    world.pass(20).sign("r0-n0", Sign::Ready);
    world.pass(1_000);
    assert_eq!(world.told(), NOTHING);
    world.sign("r0-n0", NOT_READY);
    world.pass(400);
    assert_eq!(world.told(), ["1320: r0-n0 has not been ready for 5m (Ready=False)"]);
}

#[test]
fn a_node_that_is_not_ready_and_whose_containers_have_ended_is_lost_soon() {
    let mut world = World::racks(1, 3);
    world.sign("r0-n0", NOT_READY);
    world.pass(20).sign("r0-n0", Sign::NotReady { dead: true });
    world.pass(15);
    assert_eq!(
        world.told(),
        ["35: r0-n0 has not been ready for 35s (Ready=False) and its containers have ended"]
    );
}

#[test]
fn a_network_upgrade_node_by_node_loses_none() {
    let mut world = World::racks(4, 5);
    for name in world.names() {
        world.sign(&name, NOT_READY);
        world.pass(40).sign(&name, Sign::Ready);
        world.pass(5);
        assert_eq!(world.brakes(), []);
    }
    // And five at a time: unusual, so it is said, but nothing else.
    for rack in 0..4 {
        world.rack(rack, NOT_READY);
        assert_eq!(world.brakes(), [(None, 5, 20)]);
        world.pass(40).rack(rack, Sign::Ready);
        assert_eq!(world.brakes(), []);
    }
    world.pass(1_000);
    assert_eq!(world.told(), NOTHING);
}

/// The way from the kubelets to the API server is lost. The node controller notices within ten seconds that nobody is
/// heard of, and later that all are.
#[test]
fn a_minute_without_contact_to_any_kubelet_changes_nothing() {
    for (racks, size) in [(1, 1), (1, 2), (1, 3), (1, 4), (2, 3), (5, 4), (20, 18)] {
        let mut world = World::racks(racks, size);
        let names = world.names();
        for sign in [Sign::Unknown, Sign::Ready] {
            for step in 0..3 {
                for name in names.iter().skip(step).step_by(3) {
                    world.sign(name, sign);
                }
                world.pass(5);
            }
            if sign == Sign::Unknown {
                assert_eq!(world.brakes(), [(None, names.len(), names.len())], "{racks} × {size}");
            }
            world.pass(45);
        }
        world.pass(10_000);
        assert_eq!(world.told(), NOTHING, "{racks} × {size}");
        assert_eq!(world.brakes(), []);
        assert_eq!(world.last.next, None);
    }
}

#[test]
fn while_nobody_is_heard_of_nobody_is_lost_however_long_it_lasts() {
    let mut world = World::racks(3, 4);
    world.all(Sign::Unknown);
    world.pass(86_400);
    assert_eq!(world.told(), NOTHING);
    assert_eq!(
        world.last.brakes[0].words(world.now),
        "12 of 12 nodes are not ready, too many at once to be failures of nodes; for 24h none counts as lost for it: \
         taint nodes that are really gone with node.kubernetes.io/out-of-service, or delete them"
    );
    let words = world.nodes.words(&"r0-n0".into(), world.now).expect("it is silent");
    assert!(words.ends_with("(Ready=Unknown), as many are now: it does not count as lost"), "{words}");
    // An administrator knows better.
    world.sign("r0-n0", Sign::OutOfService);
    world.nodes.remove(&"r0-n1".into());
    world.judge();
    assert_eq!(world.told(), ["86400: r0-n0 is out of service", "86400: r0-n1 is gone"]);
    // Some come back. The others get the time to, and only the last four are an outage.
    for rack in 1..3 {
        world.rack(rack, Sign::Ready);
        world.pass(100);
    }
    assert_eq!(world.told(), NOTHING);
    world.pass(1_000);
    assert_eq!(world.told().len(), 2, "r0-n2 and r0-n3");
}

#[test]
fn a_rack_that_loses_its_power_is_lost_as_one_event() {
    let mut world = World::racks(6, 18);
    world.rack(0, Sign::Unknown);
    assert_eq!(world.brakes(), [(Some("rack-0"), 18, 18)]);
    assert_eq!(
        world.last.brakes[0].words(world.now),
        "18 of 18 nodes of rack-0 are not ready, too many at once to be failures of nodes; for 0s none counts as lost \
         for it: if none comes back they count as lost in 5m"
    );
    world.pass(299);
    assert_eq!(world.told(), NOTHING);
    world.pass(1);
    let told = world.told();
    assert_eq!(told.len(), 18);
    assert!(
        told.iter().all(|line| line.ends_with("is one of 18 silent nodes out of 18 of rack-0, since 5m")),
        "{told:?}"
    );
    assert!(told.iter().all(|line| line.starts_with("300: r0-")));
    assert_eq!((world.brakes(), world.last.next), (vec![], None));
    // And it is well again some day.
    world.rack(0, Sign::Ready);
    assert_eq!(world.told().len(), 18);
}

/// One rack holds more than half of the cluster: that it is one rack, and all of it, explains it.
#[test]
fn a_rack_that_is_most_of_the_cluster_is_an_outage_when_it_alone_is_silent() {
    let mut world = World::racks(1, 9);
    for at in 0..3 {
        world.domains.insert(format!("other-{at}").into(), ["rack-x".to_owned()].into());
        world.sign(&format!("other-{at}"), Sign::Ready);
    }
    world.rack(0, Sign::Unknown);
    world.pass(299);
    assert_eq!(world.told(), NOTHING);
    world.pass(1);
    assert_eq!(world.told().len(), 9);
    // But with nodes from elsewhere it may be us.
    world.rack(0, Sign::Ready);
    world.told();
    world.rack(0, Sign::Unknown);
    world.sign("other-0", Sign::Unknown);
    world.pass(10_000);
    assert_eq!(world.told(), NOTHING);
}

/// The switch of a rack's management network restarts: the nodes come back one after the other, some of them late.
#[test]
fn a_rack_that_comes_back_is_not_lost_in_the_middle_of_it() {
    let mut world = World::racks(6, 18);
    world.rack(0, Sign::Unknown);
    world.pass(298);
    for node in 0..18 {
        world.sign(&format!("r0-n{node}"), Sign::Ready);
        world.pass(2);
    }
    world.pass(1_000);
    assert_eq!(world.told(), NOTHING);
    assert_eq!((world.brakes(), world.last.next), (vec![], None));
}

#[test]
fn a_gang_that_brings_down_its_own_rack_gets_no_brake() {
    let mut world = World::racks(6, 18);
    world.gang = (0..18).map(|node| NodeName::from(format!("r0-n{node}"))).collect();
    world.rack(0, Sign::Unknown);
    assert_eq!(world.brakes(), []);
    world.pass(15);
    assert_eq!(world.told().len(), 18);
}

#[test]
fn the_brake_lets_go_when_half_of_the_suspicious_number_is_left() {
    // A fifth of 100 nodes is 20; racks are too small for brakes of their own.
    let mut world = World::racks(50, 2);
    let names = world.names();
    for name in &names[..20] {
        world.sign(name, Sign::Unknown);
    }
    assert_eq!(world.brakes(), [], "not more than a fifth");
    world.sign(&names[20], Sign::Unknown);
    assert_eq!(world.brakes(), [(None, 21, 100)]);
    world.pass(100);
    for name in &names[..10] {
        world.sign(name, Sign::Ready);
    }
    assert_eq!(world.brakes(), [(None, 11, 100)], "with one more or less it does not let go");
    world.sign(&names[10], Sign::Ready);
    assert_eq!(world.brakes(), []);
    // Those that are left have a grace again, then they are lost, each on its own.
    world.pass(14);
    assert_eq!(world.told(), NOTHING);
    world.pass(1);
    let told = world.told();
    assert_eq!(told.len(), 10);
    assert!(told.iter().all(|line| line.ends_with("has been silent for 1m55s (Ready=Unknown)")), "{told:?}");
}

/// Something kills nodes one after the other.
#[test]
fn losses_within_the_window_count_together() {
    let mut world = World::racks(10, 2);
    for name in world.names().into_iter().take(8) {
        world.sign(&name, Sign::Unknown);
        world.pass(30);
    }
    let told = world.told();
    assert_eq!(told.len(), 4, "the fifth was one too many: {told:?}");
    assert_eq!(world.brakes().len(), 1);
    world.pass(600);
    assert_eq!(world.told().len(), 4, "an outage after all");
}

#[test]
fn in_small_clusters_one_node_is_lost_and_all_are_not() {
    for size in 1..=5 {
        for silent in 1..=size {
            let mut world = World::racks(1, size);
            for node in 0..silent {
                world.sign(&format!("r0-n{node}"), Sign::Unknown);
            }
            world.pass(60);
            let expected = if silent == size || silent > 3 { 0 } else { silent };
            assert_eq!(world.told().len(), expected, "{silent} of {size}");
        }
    }
}

#[test]
fn a_node_that_flaps_is_not_lost_and_one_that_only_changes_its_sign_is() {
    let mut world = World::racks(2, 3);
    for _ in 0..50 {
        world.sign("r0-n0", Sign::Unknown);
        world.pass(10).sign("r0-n0", Sign::Ready);
        world.pass(2);
    }
    assert_eq!(world.told(), NOTHING);
    let since = world.now / 1_000;
    for _ in 0..40 {
        world.sign("r0-n0", Sign::Unknown);
        world.pass(10).sign("r0-n0", NOT_READY);
        world.pass(5);
    }
    assert_eq!(world.told(), [format!("{}: r0-n0 has not been ready for 5m (Ready=False)", since + 300)]);
}

#[test]
fn what_is_certain_is_lost_at_once() {
    let mut world = World::racks(1, 3);
    world.sign_as("r0-n0", "2", Sign::Ready);
    world.sign("r0-n1", Sign::OutOfService);
    world.sign("r0-n1", Sign::OutOfService);
    world.nodes.remove(&"r0-n2".into());
    world.nodes.remove(&"never".into());
    world.judge();
    assert_eq!(
        world.told(),
        ["0: r0-n0 was deleted and made again", "0: r0-n1 is out of service", "0: r0-n2 is gone"]
    );
    assert_eq!(world.nodes.health(&"r0-n0".into()), Some(&Health::Ready));
    // The taint goes before the kubelet is heard of.
    world.sign("r0-n1", Sign::Unknown);
    assert_eq!(world.nodes.lost_to(&"r0-n1".into(), true), Some(Why::OutOfService));
    world.sign("r0-n1", Sign::Ready);
    assert_eq!(world.told(), ["0: r0-n1 is back"]);
}

#[test]
fn a_gang_whose_ranks_report_progress_is_not_lost_with_a_silent_node() {
    let mut world = World::racks(1, 3);
    let name = "r0-n0".into();
    world.sign("r0-n0", Sign::Unknown);
    assert_eq!(world.nodes.lost_to(&name, false), None, "it is only doubted");
    world.pass(20);
    assert!(matches!(world.nodes.lost_to(&name, false), Some(Why::Doubted { .. })));
    assert_eq!(world.nodes.lost_to(&name, true), None);
    world.nodes.remove(&name);
    assert_eq!(world.nodes.lost_to(&name, true), Some(Why::Deleted));
    world.sign_as("r0-n0", "2", Sign::Ready);
    assert_eq!(world.nodes.lost_to(&name, false), None);
}

#[test]
fn a_node_that_moves_to_another_rack_keeps_its_doubt() {
    let mut world = World::racks(2, 5);
    world.sign("r0-n0", Sign::Unknown);
    world.pass(10);
    world.domains.insert("r0-n0".into(), ["rack-1".to_owned(), "zone".to_owned()].into());
    world.sign("r0-n0", Sign::Unknown);
    world.pass(5);
    assert_eq!(world.told(), ["15: r0-n0 has been silent for 15s (Ready=Unknown)"]);
    // Four more make it five of the six in the rack, and that many in the cluster.
    for node in 0..4 {
        world.sign(&format!("r1-n{node}"), Sign::Unknown);
    }
    assert_eq!(world.brakes(), [(None, 4, 9)]);
}

#[test]
fn a_refusal_says_what_a_node_can_hold_at_most() {
    let gpus = |n: i64| Resources::of([("nvidia.com/gpu", n), ("cpu", 1_000)]);
    let judge = |word: &str, planned: i64, asked: i64, admitted: i64| {
        believe(&Refused {
            word,
            planned: &gpus(planned),
            asked: &gpus(asked),
            admitted: &gpus(admitted),
            allocatable: &Resources::of([("nvidia.com/gpu", 8), ("cpu", 64_000)]),
        })
    };
    let less = |most: i64| Belief::Less { resource: "nvidia.com/gpu".into(), most };
    assert_eq!(judge("OutOfnvidia.com/gpu", 8, 8, 0), less(7));
    assert_eq!(judge("OutOfnvidia.com/gpu", 4, 4, 2), less(5));
    assert_eq!(judge("OutOfnvidia.com/gpu", 4, 4, 6), Belief::Nothing, "it was full: a race");
    // Admission made more of the pod than was planned: the node is not to blame.
    let more = Belief::AskedMore { resource: "nvidia.com/gpu".into(), asked: 9, planned: 8 };
    assert_eq!(judge("OutOfnvidia.com/gpu", 8, 9, 0), more);
    for word in ["UnexpectedAdmissionError", "OutOf", "OutOfexample.com/other", ""] {
        assert_eq!(judge(word, 8, 8, 0), Belief::Nothing, "{word}");
    }
}

#[test]
fn less_is_believed_of_a_node_for_a_while_or_until_its_status_changes_or_it_is_made_again() {
    let promised = Resources::of([("nvidia.com/gpu", 8), ("cpu", 64_000)]);
    let name = NodeName::from("r0-n0");
    let learn = || {
        let mut world = World::racks(1, 3);
        world.nodes.distrust(&name, "nvidia.com/gpu", 5, &promised, 0);
        world.nodes.distrust(&name, "nvidia.com/gpu", 7, &promised, 0);
        world.judge();
        assert_eq!(world.nodes.believed(&name).collect::<Vec<_>>(), [("nvidia.com/gpu", 5)]);
        world
    };
    let mut world = learn();
    world.pass(BELIEF / 1_000 - 1);
    assert_eq!(world.nodes.believed(&name).count(), 1);
    world.pass(1);
    assert_eq!((world.nodes.believed(&name).count(), &world.last.trusted), (0, &vec![name.clone()]));

    let mut world = learn();
    world.nodes.promises(&name, &promised, 1);
    assert_eq!(world.nodes.believed(&name).count(), 1, "nothing new");
    world.nodes.promises(&name, &Resources::of([("nvidia.com/gpu", 7), ("cpu", 64_000)]), 1);
    assert_eq!(world.nodes.believed(&name).count(), 0);
    world.judge();
    assert_eq!((&world.last.trusted, world.last.next), (&vec![name.clone()], None));

    let mut world = learn();
    world.sign_as("r0-n0", "2", Sign::Ready);
    assert_eq!((world.nodes.believed(&name).count(), world.last.next), (0, None));
}

#[derive(Clone, Debug)]
enum Step {
    Sign(usize, Sign),
    Rack(usize, Sign),
    Anew(usize, Sign),
    Gone(usize),
    Pass(i64),
}

fn step() -> impl Strategy<Value = Step> {
    let sign = || {
        prop_oneof![
            4 => Just(Sign::Ready),
            4 => Just(Sign::Unknown),
            2 => Just(NOT_READY),
            1 => Just(Sign::NotReady { dead: true }),
            1 => Just(Sign::OutOfService),
        ]
    };
    prop_oneof![
        6 => (0..16_usize, sign()).prop_map(|(at, sign)| Step::Sign(at, sign)),
        2 => (0..4_usize, sign()).prop_map(|(rack, sign)| Step::Rack(rack, sign)),
        1 => (0..16_usize, sign()).prop_map(|(at, sign)| Step::Anew(at, sign)),
        1 => (0..16_usize).prop_map(Step::Gone),
        6 => (1..400_i64).prop_map(Step::Pass),
    ]
}

/// What each node showed last, and since when it has not been Ready.
type Shown = BTreeMap<String, (Sign, Millis)>;

fn show(shown: &mut Shown, name: &str, sign: Sign, now: Millis, anew: bool) {
    let since =
        shown.get(name).filter(|(old, _)| !anew && *old != Sign::Ready).map_or(now, |(_, since)| *since);
    shown.insert(name.to_owned(), (sign, since));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn nobody_is_lost_too_early_or_forgotten(steps in prop::collection::vec(step(), 1..60)) {
        let (mut world, mut shown, mut uids) = (World::racks(4, 4), Shown::new(), 1);
        let name = |at: usize| format!("r{}-n{}", at / 4, at % 4);
        let mut own: BTreeMap<String, String> = BTreeMap::new();
        for at in 0..16 {
            show(&mut shown, &name(at), Sign::Ready, 0, true);
            own.insert(name(at), "1".into());
        }
        let steps = steps.into_iter().chain([Step::Pass(1_000)]);
        for step in steps {
            let at = world.now;
            let turned: Vec<(String, Sign, bool)> = match step {
                Step::Sign(at, sign) => vec![(name(at), sign, false)],
                Step::Rack(rack, sign) => (0..4).map(|at| (name(rack * 4 + at), sign, false)).collect(),
                Step::Anew(at, sign) => vec![(name(at), sign, true)],
                Step::Gone(at) => {
                    world.nodes.remove(&name(at).as_str().into());
                    world.judge();
                    shown.remove(&name(at));
                    vec![]
                }
                Step::Pass(seconds) => {
                    world.pass(seconds);
                    vec![]
                }
            };
            for (name, sign, anew) in turned {
                if anew {
                    uids += 1;
                    own.insert(name.clone(), uids.to_string());
                }
                world.sign_as(&name, &own[&name].clone(), sign);
                show(&mut shown, &name, sign, at, anew);
            }
            for (name, (sign, since)) in &shown {
                let lasted = world.now - since;
                match world.nodes.health(&name.as_str().into()) {
                    Some(Health::Ready) => prop_assert_eq!(*sign, Sign::Ready, "{}", name),
                    Some(Health::Doubted { .. }) => {
                        prop_assert!(!matches!(sign, Sign::Ready | Sign::OutOfService), "{name} {sign:?}");
                    }
                    Some(Health::Lost { why: Why::OutOfService, .. }) => prop_assert!(*sign != Sign::Ready),
                    Some(Health::Lost { .. }) => {
                        prop_assert!(*sign != Sign::Ready && lasted >= Config::default().silent, "{name}");
                    }
                    None => prop_assert!(false, "{name} is unknown"),
                }
            }
        }
        // After a long quiet time all that is silent is lost, unless a brake says why not.
        let healths = shown.keys().map(|name| world.nodes.health(&name.as_str().into()).cloned());
        let doubted = healths.filter(|health| matches!(health, Some(Health::Doubted { .. }))).count();
        let held: usize = world.last.brakes.iter().map(|brake| brake.silent).max().unwrap_or(0);
        prop_assert_eq!(doubted, held, "{:?}", world.last);
        prop_assert!(doubted == 0 || world.last.brakes.iter().all(|brake| brake.until.is_none()), "{:?}", world.last);
    }
}
