//! Rules between roles and units: ratios, what lies together, what lies apart; and what is said when they bind.

mod common;

use common::{engine_of, gang_of, node_at, role_of};
use muster_engine::{Change, Decision, Engine, Event, How, solve_within};
use muster_model::{
    Gang, GangState, Mode, Near, Node, Plan, Ratio, Reason, RecoveryStep, Resources, Role, Rules, Spread,
    Topology, UnitId, plan::Placement,
};
use std::collections::{BTreeMap, BTreeSet};

/// A node of one core in the rack that its name's first letter names; two racks make a block.
fn node(name: &str) -> Node {
    let rack = &name[..1];
    let block = if rack < "c" { "0" } else { "1" };
    let labels = [("network.topology.nvidia.com/leaf", rack), ("network.topology.nvidia.com/spine", block)];
    node_at(name, labels, Resources::of([("cpu", 1_000), ("pods", 10)]))
}

fn engine(names: &[&str]) -> Engine {
    engine_of(names.iter().map(|name| node(name)))
}

fn role(name: &str, min: u32, max: u32) -> Role {
    role_of(name, Resources::of([("cpu", 1_000)]), 1, min, max)
}

fn ratio(per: u32, min: u32, max: u32) -> Rules {
    let ratio = Ratio { role: "decode".into(), of: "prefill".into(), per, min, max };
    Rules { ratios: vec![ratio], ..Rules::default() }
}

fn near(roles: &[&str], level: &str, mode: Mode) -> Rules {
    let roles = roles.iter().map(|role| (*role).to_owned()).collect();
    Rules { near: vec![Near { roles, level: level.into(), mode }], ..Rules::default() }
}

fn spread(level: &str, units: u32, mode: Mode) -> Rules {
    Rules {
        spread: vec![Spread { role: "decode".into(), level: level.into(), units, mode, group: None }],
        ..Rules::default()
    }
}

/// Prefill and decode, each from `min` to `max` units.
fn pair(prefill: (u32, u32), decode: (u32, u32), rules: Rules) -> Gang {
    let roles = vec![role("prefill", prefill.0, prefill.1), role("decode", decode.0, decode.1)];
    Gang { rules, ..gang_of("g", roles) }
}

/// The nodes of each role.
fn nodes_of(placement: &Placement, role: &str) -> Vec<String> {
    let units = placement.units.iter().filter(|unit| unit.id.role == role);
    units.flat_map(|unit| &unit.nodes).map(ToString::to_string).collect()
}

fn counts(placement: &Placement) -> (usize, usize) {
    (nodes_of(placement, "prefill").len(), nodes_of(placement, "decode").len())
}

fn racks(nodes: &[String]) -> BTreeSet<&str> {
    nodes.iter().map(|node| &node[..1]).collect()
}

fn placed(names: &[&str], gang: &Gang) -> Placement {
    engine(names).what_if(gang).expect("it is placed")
}

#[test]
fn a_ratio_decides_how_many_units_of_each_role_there_are() {
    let names = ["a0", "a1", "a2", "a3", "b0", "b1", "b2"];
    for (rules, expected) in [
        (Rules::default(), (1, 6)),
        (ratio(1, 2, 2), (2, 4)),
        (ratio(1, 1, 1), (3, 3)),
        (ratio(2, 3, 3), (2, 3)),
        (ratio(1, 2, 5), (2, 5)),
    ] {
        let gang = pair((1, 9), (1, 9), rules.clone());
        let got = counts(&placed(&names, &gang));
        assert_eq!(got.0 + got.1, expected.0 + expected.1, "{rules:?}: {got:?}");
        let holds = |r: &Ratio| r.holds(got.1 as u32, got.0 as u32);
        assert!(rules.ratios.iter().all(holds), "{rules:?}: {got:?}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_its_field() {
    let both =
        |one: Rules, other: Rules| Rules { ratios: [one.ratios, other.ratios].concat(), ..Rules::default() };
    let other = |role: &str| {
        let mut rules = ratio(1, 1, 1);
        rules.ratios[0].role = role.into();
        rules
    };
    for (rules, field) in [
        (ratio(0, 1, 1), "rules.ratios[0].per"),
        (ratio(1, 2, 1), "rules.ratios[0].max"),
        (ratio(1, 0, 0), "rules.ratios[0].max"),
        (ratio(1, 9, 9), "rules.ratios[0]"), // 2 prefill need 18 decode
        (other("server"), "rules.ratios[0].role"),
        (other("prefill"), "rules.ratios[0]"),
        (both(ratio(1, 1, 1), ratio(1, 1, 2)), "rules.ratios[1]"),
        (near(&[], "Rack", Mode::Preferred), "rules.near[0].roles"),
        (near(&["server"], "Rack", Mode::Required), "rules.near[0].roles"),
        (near(&["decode"], "Row", Mode::Required), "rules.near[0].level"),
        (spread("Row", 1, Mode::Required), "rules.spread[0].level"),
        (spread("Rack", 0, Mode::Preferred), "rules.spread[0].units"),
    ] {
        let gang = pair((2, 4), (1, 9), rules);
        match engine(&["a0"]).what_if(&gang) {
            Err(Reason::Invalid { field: at, message, remedy }) => {
                assert_eq!(at, field, "{message}");
                assert!(!message.is_empty() && !remedy.is_empty());
            }
            other => panic!("{field}: {other:?}"),
        }
    }
}

#[test]
fn roles_that_must_be_near_lie_in_one_domain_and_others_go_anywhere() {
    let names = ["a0", "b0", "b1", "b2", "c0", "c1"];
    let gang = pair((2, 2), (1, 1), near(&["prefill"], "Rack", Mode::Required));
    assert_eq!(racks(&nodes_of(&placed(&names, &gang), "prefill")).len(), 1);
    // Three in one rack leave only rack b, and the fourth goes elsewhere.
    let gang = pair((3, 3), (1, 1), near(&["prefill"], "Rack", Mode::Required));
    let placement = placed(&names, &gang);
    assert_eq!(racks(&nodes_of(&placement, "prefill")), BTreeSet::from(["b"]));
    assert_eq!(racks(&nodes_of(&placement, "decode")), BTreeSet::from(["a"]), "the nearest outside");
}

#[test]
fn a_preferred_rule_falls_back_outwards_and_never_costs_a_unit() {
    let names = ["a0", "a1", "b0", "b1", "c0", "c1", "c2"];
    let asked = |units| pair((units, units), (0, 1), near(&["prefill"], "Rack", Mode::Preferred));
    assert_eq!(racks(&nodes_of(&placed(&names, &asked(3)), "prefill")), BTreeSet::from(["c"]));
    assert_eq!(
        racks(&nodes_of(&placed(&names, &asked(4)), "prefill")),
        BTreeSet::from(["a", "b"]),
        "one block"
    );
    assert_eq!(placed(&names, &asked(6)).units.len(), 7, "anywhere");
    let apart = |units| pair((1, 1), (units, units), spread("Rack", 1, Mode::Preferred));
    let held = |units| {
        let placement = placed(&names, &apart(units));
        let decode = nodes_of(&placement, "decode");
        racks(&decode).iter().map(|rack| decode.iter().filter(|n| n.starts_with(rack)).count()).max()
    };
    assert_eq!((held(3), held(4), held(6)), (Some(1), Some(2), Some(2)));
}

#[test]
fn the_rule_that_binds_is_named_with_what_would_help() {
    let names = ["a0", "a1", "b0", "b1", "c0"];
    for (rules, field, changes) in [
        (
            near(&["decode"], "Rack", Mode::Required),
            "rules.near[0]",
            vec![
                Change::Widen {
                    field: "rules.near[0].level".into(),
                    from: "Rack".into(),
                    to: "Block".into(),
                },
                Change::Prefer { field: "rules.near[0].mode".into() },
            ],
        ),
        (
            spread("Block", 1, Mode::Required),
            "rules.spread[0]",
            vec![
                Change::Raise { field: "rules.spread[0].units".into(), from: 1, to: 2 },
                Change::Prefer { field: "rules.spread[0].mode".into() },
            ],
        ),
        (ratio(1, 5, 9), "rules.ratios[0]", vec![Change::LeaveOut { field: "rules.ratios[0]".into() }]),
    ] {
        let gang = pair((1, 1), (3, 9), rules);
        let explanation = engine(&names).explain(&gang).expect("it is refused");
        let Reason::RuleUnmet { field: at, .. } = &explanation.reason else { panic!("{explanation:?}") };
        assert_eq!(at, field);
        for change in changes {
            assert!(explanation.changes.contains(&change), "{change:?} in {:?}", explanation.changes);
        }
    }
    // Without any rule it does not fit either: then that is the reason.
    let gang = pair((3, 3), (3, 3), near(&["decode"], "Rack", Mode::Required));
    let reason = engine(&names).what_if(&gang).expect_err("it is refused");
    assert!(matches!(reason, Reason::InsufficientCapacity { .. }), "{reason}");
}

fn plan(gang: &Gang, nodes: &[(&str, &[&str])]) -> Plan {
    let units = nodes.iter().flat_map(|(role, nodes)| {
        nodes.iter().enumerate().map(|(index, node)| muster_model::plan::PlacedUnit {
            id: UnitId { role: (*role).to_owned(), index: index as u32 },
            class: None,
            nodes: vec![(*node).into()],
        })
    });
    assert!(nodes.iter().all(|(role, _)| gang.roles.iter().any(|r| r.name == *role)));
    Plan::next(
        None,
        1,
        Placement { units: units.collect(), spares: BTreeMap::new() },
        &BTreeSet::new(),
        false,
    )
}

/// Loses one unit on a node that goes with it.
fn lose(names: &[&str], gang: Gang, plan: Plan, role: &str, index: u32) -> Result<(Placement, How), Reason> {
    let id = UnitId { role: role.into(), index };
    let gone = plan.unit(&id).expect("a unit of the plan").placed.nodes[0].clone();
    let mut engine = engine(names);
    engine.apply(Event::NodeGone(gone));
    engine.apply(Event::Gang(Gang {
        state: GangState::Replan { plan, lost: [id].into(), steps: RecoveryStep::ALL.to_vec() },
        ..gang
    }));
    match engine.decide(0, 1).remove(0) {
        Decision::Place { placement, how, .. } => Ok((placement, how)),
        Decision::Refuse { reason, .. } => Err(reason),
    }
}

#[test]
fn a_replacement_keeps_what_must_be_near() {
    let gang = pair((2, 2), (1, 1), near(&["prefill"], "Rack", Mode::Required));
    let placed = [("prefill", ["a0", "a1"].as_slice()), ("decode", ["b0"].as_slice())];
    let (placement, how) =
        lose(&["a0", "a1", "a2", "b0", "b1", "b2"], gang.clone(), plan(&gang, &placed), "prefill", 0)
            .expect("placed");
    assert_eq!(
        (nodes_of(&placement, "prefill"), how),
        (vec!["a2".to_owned(), "a1".to_owned()], How::Replaced)
    );
    // No room beside the survivor: the gang moves rather than break the rule.
    let (placement, how) =
        lose(&["a0", "a1", "b0", "b1", "b2"], gang.clone(), plan(&gang, &placed), "prefill", 0)
            .expect("placed");
    assert_eq!((racks(&nodes_of(&placement, "prefill")), how), (BTreeSet::from(["b"]), How::Moved));
    // And waits where it cannot.
    let refused = lose(&["a0", "a1", "b0", "c0"], gang.clone(), plan(&gang, &placed), "prefill", 0);
    assert!(matches!(refused, Err(Reason::RuleUnmet { .. })), "{refused:?}");
}

#[test]
fn a_replacement_stays_apart_from_the_survivors() {
    for mode in [Mode::Required, Mode::Preferred] {
        let gang = pair((0, 0), (2, 2), spread("Rack", 1, mode));
        let placed = [("decode", ["a0", "b0"].as_slice())];
        let (placement, how) =
            lose(&["a0", "b0", "b1", "c0"], gang.clone(), plan(&gang, &placed), "decode", 0).expect("placed");
        assert_eq!(
            (nodes_of(&placement, "decode"), how),
            (vec!["c0".to_owned(), "b0".to_owned()], How::Replaced)
        );
    }
}

#[test]
fn a_shrunk_gang_keeps_its_ratio() {
    let gang = pair((1, 3), (1, 6), ratio(1, 2, 2));
    let placed = [("prefill", ["a0", "a1"].as_slice()), ("decode", ["a2", "b0", "b1", "b2"].as_slice())];
    let names = ["a0", "a1", "a2", "b0", "b1", "b2"];
    let (placement, how) = lose(&names, gang.clone(), plan(&gang, &placed), "decode", 3).expect("placed");
    assert_eq!((counts(&placement), how), ((1, 2), How::Shrunk));
    assert_eq!(nodes_of(&placement, "decode"), ["a2", "b0"]);
    // With a minimum that forbids it, it waits.
    let gang = pair((2, 3), (1, 6), ratio(1, 2, 2));
    let refused = lose(&names, gang.clone(), plan(&gang, &placed), "decode", 3);
    assert!(
        matches!(refused, Err(Reason::InsufficientCapacity { .. } | Reason::RuleUnmet { .. })),
        "{refused:?}"
    );
}

#[test]
fn spares_lie_where_the_roles_they_serve_must() {
    let mut gang = pair((1, 1), (1, 1), near(&["prefill", "decode"], "Rack", Mode::Required));
    gang.roles[0].spares = 2;
    let placement = placed(&["a0", "a1", "a2", "b0", "b1", "b2"], &gang);
    let spares: Vec<String> = placement.spares.values().flatten().map(ToString::to_string).collect();
    assert_eq!(spares.len(), 1, "no more fit beside them: {spares:?}");
    assert_eq!(racks(&spares), racks(&nodes_of(&placement, "decode")));
}

/// 100 blocks of 10 racks of 8 nodes: far beyond the exact search.
fn large() -> Vec<Node> {
    let node = |at: usize| {
        let labels = [
            ("network.topology.nvidia.com/spine", format!("{}", at / 80)),
            ("network.topology.nvidia.com/leaf", format!("{}", at / 8)),
        ];
        node_at(&format!("n{at:05}"), labels, Resources::of([("cpu", 1_000), ("pods", 10)]))
    };
    (0..8_000).map(node).collect()
}

#[test]
fn beyond_the_exact_search_all_rules_hold_and_the_most_units_are_found() {
    let mut rules = ratio(1, 2, 2);
    rules.near = near(&["prefill"], "Rack", Mode::Required).near;
    rules.spread = spread("Rack", 2, Mode::Required).spread;
    let gang = pair((1, 20), (1, 60), rules);
    let solution =
        solve_within(&Topology::default(), &large(), &[(gang, None)], 0).remove(0).expect("placed");
    let placement = &solution.placement;
    // A rack holds 8 of the prefill role, and 2 decode go with each.
    assert_eq!(counts(placement), (8, 16));
    let rack = |name: &String| name[1..].parse::<usize>().expect("a number") / 8;
    let prefill: BTreeSet<usize> = nodes_of(placement, "prefill").iter().map(rack).collect();
    assert_eq!(prefill.len(), 1);
    let mut held: BTreeMap<usize, u32> = BTreeMap::new();
    for name in nodes_of(placement, "decode") {
        *held.entry(rack(&name)).or_default() += 1;
    }
    assert!(held.values().all(|units| *units <= 2), "{held:?}");
}

/// Prefill and decode as many as fit leave room for five servers: one pair less, and three more fit.
#[test]
fn roles_give_up_units_where_others_grow_by_more() {
    let room = || Resources::of([("cpu", 8_000), ("pods", 16)]);
    let nodes = ["a1", "a2", "a3", "a4"].map(|name| Node { allocatable: room(), ..node(name) });
    let role = |name, cpu, pods, min, max| role_of(name, Resources::of([("cpu", cpu)]), pods, min, max);
    let roles =
        vec![role("prefill", 1_000, 3, 1, 5), role("decode", 4_000, 1, 0, 5), role("server", 2_000, 1, 1, 8)];
    let gang = Gang { rules: ratio(1, 1, 1), ..gang_of("g", roles) };
    for steps in [0, 50_000_000] {
        let found = solve_within(&Topology::default(), &nodes, &[(gang.clone(), None)], steps).remove(0);
        let placement = found.expect("it fits").placement;
        assert_eq!((counts(&placement), nodes_of(&placement, "server").len()), ((6, 2), 8), "{steps} steps");
    }
}

/// Each role fits alone; that both do not is certain from counts, so it is said as what it is and not as "not found".
#[test]
fn roles_that_want_the_same_room_are_short_together() {
    let nodes: Vec<Node> = (0..10).map(|at| node(&format!("a{at}"))).collect();
    let of = |name: &str, cpu: i64, units: u32| role_of(name, Resources::of([("cpu", cpu)]), 1, units, units);
    for (units, cpu, expected) in [(6, 1_000, Some(4)), (6, 500, None), (5, 1_000, None)] {
        let gang = gang_of("g", vec![of("prefill", 1_000, units), of("decode", cpu, units)]);
        let answer = solve_within(&Topology::default(), &nodes, &[(gang, None)], 0).remove(0);
        let fits = match answer {
            Err(Reason::InsufficientCapacity { fits, .. }) => Some(fits),
            Err(reason) => panic!("{reason}"),
            Ok(_) => None,
        };
        assert_eq!(fits, expected, "{units} units, and {cpu} for the second role");
    }
}
