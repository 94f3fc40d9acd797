//! `spread` rules that gangs of a namespace share: units of all of them count.

mod common;

use common::{engine_of, gang_of, node_at, role_of};
use muster_engine::{Change, Decision, Engine, Event, How, solve};
use muster_model::{
    Gang, GangState, Mode, Node, ObjectKey, Plan, Reason, RecoveryStep, Resources, Rules, Spread, Topology,
    UnitId,
    plan::{PlacedUnit, Placement},
};
use std::collections::{BTreeMap, BTreeSet};

/// A node of two cores in the rack that its name's first letter names.
fn node(name: &str) -> Node {
    let labels =
        [("network.topology.nvidia.com/leaf", &name[..1]), ("network.topology.nvidia.com/spine", "s")];
    node_at(name, labels, Resources::of([("cpu", 2_000), ("pods", 10)]))
}

fn engine(names: &[&str]) -> Engine {
    engine_of(names.iter().map(|name| node(name)))
}

fn rule(level: &str, units: u32, mode: Mode) -> Spread {
    Spread { role: "server".into(), level: level.into(), units, mode, group: Some("web".into()) }
}

/// A service of `min` to `max` replicas of one core.
fn service(name: &str, min: u32, max: u32, rule: Spread) -> Gang {
    let role = role_of("server", Resources::of([("cpu", 1_000)]), 1, min, max);
    Gang { rules: Rules { spread: vec![rule], ..Rules::default() }, ..gang_of(name, vec![role]) }
}

/// One replica, at most one of the group in a rack.
fn one(name: &str) -> Gang {
    service(name, 1, 1, rule("Rack", 1, Mode::Required))
}

fn plan(nodes: &[&str]) -> Plan {
    let unit = |(index, node): (usize, &&str)| PlacedUnit {
        id: UnitId { role: "server".into(), index: index as u32 },
        class: None,
        nodes: vec![(*node).into()],
    };
    let units = nodes.iter().enumerate().map(unit).collect();
    Plan::next(None, 1, Placement { units, spares: BTreeMap::new() }, &BTreeSet::new(), false)
}

fn holding(gang: Gang, nodes: &[&str]) -> Event {
    Event::Gang(Gang { state: GangState::Holding(plan(nodes)), ..gang })
}

/// The racks of a placement, one a unit, in order.
fn racks(placement: &Placement) -> Vec<String> {
    let mut racks: Vec<String> =
        placement.units.iter().map(|unit| unit.nodes[0].as_str()[..1].into()).collect();
    racks.sort();
    racks
}

/// What is decided now: name → racks and how, or the reason.
fn decide(engine: &mut Engine) -> BTreeMap<String, Result<(Vec<String>, How), Reason>> {
    let one = |decision| match decision {
        Decision::Place { key, placement, how, .. } => (key.name, Ok((racks(&placement), how))),
        Decision::Refuse { key, reason, .. } => (key.name, Err(reason)),
    };
    engine.decide(0, 100).into_iter().map(one).collect()
}

fn placed(engine: &mut Engine, name: &str) -> Vec<String> {
    match decide(engine).remove(name) {
        Some(Ok((racks, _))) => racks,
        other => panic!("{name} is not placed: {other:?}"),
    }
}

fn refused(engine: &mut Engine, name: &str) -> Reason {
    match decide(engine).remove(name) {
        Some(Err(reason)) => reason,
        other => panic!("{name} is not refused: {other:?}"),
    }
}

#[test]
fn two_services_replicas_do_not_share_a_rack() {
    let mut engine = engine(&["a0", "a1", "b0"]);
    engine.apply(holding(one("first"), &["b0"]));
    engine.apply(Event::Gang(one("second")));
    assert_eq!(placed(&mut engine, "second"), ["a"]);
    engine.apply(Event::Gang(one("third")));
    let reason = refused(&mut engine, "third");
    let Reason::RuleUnmet { field, rule } = &reason else { panic!("{reason:?}") };
    assert_eq!(field, "rules.spread[0]");
    assert_eq!(rule, "at most 1 server units of group web in a Rack");
}

#[test]
fn what_one_call_decides_counts_for_the_next_gang_in_it() {
    let mut engine = engine(&["a0", "a1", "b0"]);
    for name in ["first", "second", "third"] {
        engine.apply(Event::Gang(one(name)));
    }
    let decided = decide(&mut engine);
    let racks: BTreeSet<&String> = decided.values().flatten().flat_map(|(racks, _)| racks).collect();
    assert_eq!(racks.len(), 2, "{decided:?}");
    assert!(matches!(decided["third"], Err(Reason::RuleUnmet { .. })), "{decided:?}");
}

#[test]
fn units_beyond_what_the_others_leave_are_not_placed() {
    let mut engine = engine(&["a0", "a1", "b0", "c0"]);
    engine.apply(holding(one("first"), &["a0"]));
    engine.apply(Event::Gang(service("second", 1, 9, rule("Rack", 2, Mode::Required))));
    // The first one states another number: it must change before both can be placed.
    assert!(matches!(refused(&mut engine, "second"), Reason::Invalid { .. }));
    engine.apply(holding(service("first", 1, 1, rule("Rack", 2, Mode::Required)), &["a0"]));
    assert_eq!(placed(&mut engine, "second"), ["a", "b", "b", "c", "c"]);
}

#[test]
fn namespaces_and_groups_are_apart_and_rules_without_a_group_count_their_own_units() {
    let other_namespace = Gang { key: ObjectKey::new("other", "second"), ..one("second") };
    let with_group = |group: Option<&str>| {
        let group = group.map(str::to_owned);
        service("second", 1, 1, Spread { group, ..rule("Rack", 1, Mode::Required) })
    };
    for second in [other_namespace, with_group(Some("api")), with_group(None)] {
        let mut engine = engine(&["a0"]);
        engine.apply(holding(one("first"), &["a0"]));
        engine.apply(Event::Gang(second));
        assert_eq!(placed(&mut engine, "second"), ["a"]);
    }
}

#[test]
fn rules_of_a_group_that_disagree_are_invalid_and_say_with_which_gang() {
    for other in
        [rule("Block", 1, Mode::Required), rule("Rack", 2, Mode::Required), rule("Rack", 1, Mode::Preferred)]
    {
        let mut engine = engine(&["a0", "b0"]);
        engine.apply(holding(one("first"), &["a0"]));
        let second = service("second", 1, 1, other);
        engine.apply(Event::Gang(second.clone()));
        let reason = refused(&mut engine, "second");
        let Reason::Invalid { field, message, remedy } = &reason else { panic!("{reason:?}") };
        assert_eq!(field, "rules.spread[0]");
        assert!(
            message.contains("gang default/first") && message.contains("at most 1 server units"),
            "{message}"
        );
        assert_eq!(remedy, "state the same level, units and mode, or use another group name");
        assert_eq!(engine.what_if(&second), Err(reason.clone()));
        assert_eq!(engine.explain(&second).map(|it| it.reason), Some(reason));
    }
    // Of gangs that hold nothing, the first to be placed decides.
    let mut engine = engine(&["a0", "b0"]);
    engine.apply(Event::Gang(one("first")));
    engine.apply(Event::Gang(service("second", 1, 1, rule("Rack", 2, Mode::Required))));
    let decided = decide(&mut engine);
    assert!(
        decided["first"].is_ok() && matches!(decided["second"], Err(Reason::Invalid { .. })),
        "{decided:?}"
    );
    // And when it leaves, the other is no longer wrong.
    engine.apply(Event::GangGone(ObjectKey::new("default", "first")));
    placed(&mut engine, "second");
}

#[test]
fn a_gang_names_a_group_in_one_rule() {
    let mut gang = one("g");
    gang.rules.spread.push(rule("Block", 2, Mode::Required));
    let Err(Reason::Invalid { field, .. }) = engine(&["a0"]).what_if(&gang) else { panic!("it is valid") };
    assert_eq!(field, "rules.spread[1].group");
}

/// What happens to the gang that holds racks a and b, and whether the one that waits is asked again.
type Case<'a> = (&'a str, &'a dyn Fn(&mut Engine), bool);

#[test]
fn a_refused_gang_is_asked_again_when_one_of_its_group_stops_holding_units_and_only_then() {
    let key = ObjectKey::new("default", "first");
    let gang = || service("first", 1, 2, rule("Rack", 1, Mode::Required));
    let lost = || GangState::Replan {
        plan: plan(&["a0", "b0"]),
        lost: [UnitId { role: "server".into(), index: 1 }].into(),
        steps: RecoveryStep::ALL.to_vec(),
    };
    let state = |state: GangState| Event::Gang(Gang { state, ..gang() });
    // Both units of the first come to lie in rack b.
    let relabel = |engine: &mut Engine| {
        engine.apply(Event::Node(Node { labels: node("b0").labels, ..node("a0") }));
    };
    let changes: [Case<'_>; 11] = [
        ("nothing", &|_| {}, false),
        ("the same again", &|engine| engine.apply(holding(gang(), &["a0", "b0"])), false),
        ("more units of another gang", &|engine| engine.apply(holding(one("more"), &["b0"])), false),
        ("gone", &|engine| engine.apply(Event::GangGone(key.clone())), true),
        ("suspended", &|engine| engine.apply(state(GangState::Inactive)), true),
        ("shrunk", &|engine| engine.apply(holding(gang(), &["a0"])), true),
        ("a unit lost", &|engine| engine.apply(state(lost())), true),
        ("moved", &|engine| engine.apply(holding(gang(), &["a0", "a1"])), true),
        (
            "another group",
            &|engine| {
                let group = Some("api".to_owned());
                let other = Spread { group, ..rule("Rack", 1, Mode::Required) };
                engine.apply(holding(service("first", 1, 2, other), &["a0", "b0"]));
            },
            true,
        ),
        ("its node moved", &relabel, true),
        ("its node gone", &|engine| engine.apply(Event::NodeGone("b0".into())), true),
    ];
    for (what, change, wakes) in changes {
        let mut engine = engine(&["a0", "a1", "b0", "b1"]);
        // Its nodes have no room with or without it: no change makes any.
        for node in ["a0", "b0"] {
            let requests = Resources::of([("cpu", 2_000), ("pods", 1)]);
            engine.apply(Event::Use { id: node.into(), node: node.into(), requests });
        }
        engine.apply(holding(gang(), &["a0", "b0"]));
        // Low priority, so that the first one's own replacement goes first where it has one.
        engine.apply(Event::Gang(Gang { priority: -1, ..one("second") }));
        assert!(matches!(refused(&mut engine, "second"), Reason::RuleUnmet { .. }), "{what}");
        assert!(decide(&mut engine).is_empty(), "{what}");
        change(&mut engine);
        let decided = decide(&mut engine);
        assert_eq!(decided.contains_key("second"), wakes, "{what}: {decided:?}");
        if wakes && what != "a unit lost" {
            assert!(decided["second"].is_ok(), "{what}: {decided:?}");
        }
    }
}

#[test]
fn a_replacement_keeps_away_from_the_units_of_the_other_gang() {
    for mode in [Mode::Required, Mode::Preferred] {
        let mut engine = engine(&["b0", "b1", "c0", "d0"]);
        engine.apply(holding(service("other", 1, 1, rule("Rack", 1, mode)), &["c0"]));
        let lost = [UnitId { role: "server".into(), index: 0 }].into();
        let state = GangState::Replan { plan: plan(&["a0", "b0"]), lost, steps: RecoveryStep::ALL.to_vec() };
        engine.apply(Event::Gang(Gang { state, ..service("first", 2, 2, rule("Rack", 1, mode)) }));
        assert_eq!(decide(&mut engine)["first"], Ok((vec!["b".into(), "d".into()], How::Replaced)));
    }
}

#[test]
fn a_wish_for_a_replacement_counts_the_units_that_stay() {
    // Three stay in rack a, two in rack b: the least number in a domain is three, with the sixth in b.
    for group in [None, Some("web".to_owned())] {
        let mut engine = engine(&["a0", "a1", "b0", "b1"]);
        let lost = [UnitId { role: "server".into(), index: 5 }].into();
        let state = GangState::Replan {
            plan: plan(&["a0", "a0", "a1", "b0", "b0", "gone"]),
            lost,
            steps: RecoveryStep::ALL.to_vec(),
        };
        let rule = Spread { group, ..rule("Rack", 1, Mode::Preferred) };
        engine.apply(Event::Gang(Gang { state, ..service("g", 6, 6, rule) }));
        let Ok((racks, How::Replaced)) = &decide(&mut engine)["g"] else { panic!("it is not replaced") };
        assert_eq!(racks.join(""), "aaabbb");
    }
}

#[test]
fn units_that_stay_count_once() {
    // Two in each rack are allowed, and one stays in each: there is room for the third.
    let mut engine = engine(&["a0", "b0"]);
    let lost = [UnitId { role: "server".into(), index: 2 }].into();
    let state =
        GangState::Replan { plan: plan(&["a0", "b0", "gone"]), lost, steps: RecoveryStep::ALL.to_vec() };
    engine.apply(Event::Gang(Gang { state, ..service("first", 3, 3, rule("Rack", 2, Mode::Required)) }));
    assert!(matches!(&decide(&mut engine)["first"], Ok((racks, How::Replaced)) if racks.len() == 3));
}

#[test]
fn nodes_that_are_gone_take_no_room() {
    let mut engine = engine(&["a0", "a1"]);
    engine.apply(holding(one("first"), &["a0"]));
    engine.apply(Event::Gang(one("second")));
    refused(&mut engine, "second");
    engine.apply(Event::NodeGone("a0".into()));
    assert_eq!(placed(&mut engine, "second"), ["a"]);
}

#[test]
fn a_preferred_group_keeps_units_apart_as_far_as_it_costs_none() {
    // Two units of the other in rack a, one in rack b; two cores a node.
    let mut engine = engine(&["a0", "a1", "a2", "b0", "b1", "b2", "c0"]);
    let service = |name: &str, units| service(name, units, units, rule("Rack", 1, Mode::Preferred));
    engine.apply(holding(service("other", 3), &["a0", "a0", "b0"]));
    // One fits rack c alone; of more, racks hold two at most, and rack a takes none.
    for (units, expected) in [(1, vec!["c"]), (2, vec!["c", "c"]), (3, vec!["b", "c", "c"])] {
        let found = engine.what_if(&service("g", units)).expect("placed");
        assert_eq!(racks(&found), expected, "{units} units");
    }
    // Beyond that three, of which rack c has no room for the third.
    let found = engine.what_if(&service("g", 5)).expect("placed");
    assert_eq!(racks(&found), ["a", "b", "b", "c", "c"]);
}

#[test]
fn a_preferred_group_that_others_fill_far_beyond_its_number_is_kept_at_the_next_number() {
    let names: Vec<String> = (0..8).flat_map(|i| [format!("a{i}"), format!("b{i}")]).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut engine = engine(&names);
    let rule = || rule("Rack", 1, Mode::Preferred);
    engine.apply(holding(service("other", 1, 9, rule()), &["a0", "a0", "a1", "a1", "a2", "b0", "b0", "b1"]));
    // Five in a, three in b: the two go to b.
    assert_eq!(racks(&engine.what_if(&service("g", 2, 2, rule())).expect("placed")), ["b", "b"]);
    assert_eq!(racks(&engine.what_if(&service("g", 4, 4, rule())).expect("placed")), ["a", "b", "b", "b"]);
}

#[test]
fn a_group_that_binds_is_named_with_what_would_help() {
    let mut engine = engine(&["a0", "a1"]);
    engine.apply(holding(one("first"), &["a0"]));
    let explanation = engine.explain(&one("second")).expect("it is refused");
    assert!(matches!(explanation.reason, Reason::RuleUnmet { .. }), "{explanation:?}");
    let everywhere = |change| Change::InGroup { group: "web".into(), change: Box::new(change) };
    let field = |end: &str| format!("rules.spread[0].{end}");
    assert_eq!(
        explanation.changes,
        [
            Change::LeaveOut { field: field("group") },
            everywhere(Change::Raise { field: field("units"), from: 1, to: 2 }),
            everywhere(Change::Prefer { field: field("mode") }),
        ]
    );
    assert_eq!(
        explanation.changes[1].to_string(),
        "raise rules.spread[0].units from 1 to 2, in all gangs of group web"
    );
    // Each is made, and the gang runs.
    let alone = Spread { group: None, ..rule("Rack", 1, Mode::Required) };
    assert!(engine.what_if(&service("second", 1, 1, alone)).is_ok());
    for changed in [rule("Rack", 2, Mode::Required), rule("Rack", 1, Mode::Preferred)] {
        engine.apply(holding(service("first", 1, 1, changed.clone()), &["a0"]));
        assert!(engine.what_if(&service("second", 1, 1, changed)).is_ok());
    }
}

#[test]
fn gangs_solved_one_after_the_other_count_together() {
    let nodes: Vec<Node> = ["a0", "a1", "b0"].into_iter().map(node).collect();
    let gangs: Vec<_> = ["first", "second", "third"].map(|name| (one(name), None)).into();
    let solved = solve(&Topology::default(), &nodes, &gangs);
    let racks: BTreeSet<String> = solved.iter().flatten().flat_map(|it| racks(&it.placement)).collect();
    assert_eq!(racks.len(), 2);
    assert!(matches!(solved[2], Err(Reason::RuleUnmet { .. })), "{:?}", solved[2]);
}
