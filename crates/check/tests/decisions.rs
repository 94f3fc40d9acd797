//! For every violation of one decision: a decision that has it, and the nearest that has not.

mod fixture;

use fixture::{gang, kinds, nodes, topology, unit};
use muster_check::{Invariant, Use, Violation, check_placement, plan_uses};
use muster_model::{
    Gang, GangState, Node, NodeRefusal, NodeSelectorTerm, PodTerm, RecoveryStep, Requirement, Resources,
    TaintEffect, UnitId, plan::Placement,
};
use std::collections::BTreeMap;

type Decision = (Vec<Node>, BTreeMap<String, Use>, Gang, Placement);

fn decision() -> Decision {
    let mut gang = gang();
    gang.state = GangState::Waiting;
    let units = vec![unit(0, &["n0", "n1"]), unit(1, &["n2", "n3"])];
    (nodes(), BTreeMap::new(), gang, Placement { units, spares: BTreeMap::new() })
}

/// The gang of the fixture, holding unit 0, with unit 1 lost.
fn replan(gang: &mut Gang) {
    let held = fixture::gang();
    let GangState::Holding(plan) = held.state else { panic!("the fixture's gang holds a plan") };
    gang.state = GangState::Replan {
        plan,
        lost: [UnitId { role: "worker".into(), index: 1 }].into(),
        steps: RecoveryStep::ALL.to_vec(),
    };
}

type DecisionChange = fn(&mut Decision);

const DECISIONS: &[(&str, DecisionChange, DecisionChange)] = &[
    ("UnitCount", |d| d.2.roles[0].min = 3, |d| d.2.roles[0].min = 2),
    (
        "BlockBroken",
        |d| drop(d.0[1].labels.insert("rack".into(), "q".into())),
        |d| {
            d.0[7].labels.insert("rack".into(), "q".into());
        },
    ),
    ("NodeOfOtherClass", |d| drop(d.0[3].labels.remove("card")), |d| drop(d.0[4].labels.remove("card"))),
    ("UnknownNode", |d| drop(d.0.remove(0)), |d| drop(d.0.remove(7))),
    (
        "UnknownNode",
        |d| {
            replan(&mut d.2);
            d.0.remove(2); // of the lost unit
        },
        |d| {
            replan(&mut d.2);
            d.0.remove(0); // of one that is not reported lost yet
        },
    ),
    (
        "Overcommitted", // two pods of one unit on one node
        |d| d.3.units[0].nodes[1] = "n0".into(),
        |d| {
            d.3.units[0].nodes[1] = "n0".into();
            d.2.roles[0].devices = 4;
        },
    ),
    (
        "Overcommitted", // next to another gang's plan
        |d| {
            let mut other = d.2.clone();
            other.uid = "g2".into();
            let one = Placement { units: vec![unit(0, &["n3", "n4"])], spares: BTreeMap::new() };
            d.1 = plan_uses(&d.0, &other, &one);
        },
        |d| {
            let mut other = d.2.clone();
            other.uid = "g2".into();
            let one = Placement { units: vec![unit(0, &["n5", "n4"])], spares: BTreeMap::new() };
            d.1 = plan_uses(&d.0, &other, &one);
        },
    ),
    ("NodeRefuses NotReady", |d| d.0[0].ready = false, |d| d.0[4].ready = false),
    (
        "NodeRefuses Cordoned", // a lost unit, even where it was, must find a node that takes it
        |d| {
            replan(&mut d.2);
            d.0[2].cordoned = true;
        },
        |d| {
            replan(&mut d.2);
            d.0[0].cordoned = true; // held, not lost: it stays
        },
    ),
    ("NodeRefuses Avoided", |d| d.2.avoid = ["n0".into()].into(), |d| d.2.avoid = ["n4".into()].into()),
    (
        "NodeRefuses Tainted",
        |d| d.0[0].taints[0].key = "other".into(),
        |d| {
            d.0[0].taints[0].key = "other".into();
            d.0[0].taints[0].effect = TaintEffect::PreferNoSchedule;
        },
    ),
    (
        "NodeRefuses Selector",
        |d| {
            d.2.roles[0].node_selector = BTreeMap::from([("card".into(), "h100".into())]);
            d.2.classes[0].requirements.clear();
            d.0[0].labels.insert("card".into(), "h200".into());
        },
        |d| d.2.roles[0].node_selector = BTreeMap::from([("card".into(), "h100".into())]),
    ),
    (
        "NodeRefuses Selector",
        |d| {
            let not_n0 = Requirement {
                key: "metadata.name".into(),
                operator: muster_model::Operator::NotIn,
                values: vec!["n0".into()],
                field: true,
            };
            d.2.roles[0].affinity = vec![NodeSelectorTerm { requirements: vec![not_n0] }];
        },
        |d| {
            let card = Requirement::label_in("card", &["h100"]);
            // Terms are alternatives, and an empty one matches nothing.
            d.2.roles[0].affinity =
                vec![NodeSelectorTerm::default(), NodeSelectorTerm { requirements: vec![card] }];
        },
    ),
    (
        "NodeRefuses Repelled", // a pod on n1 keeps workers out of its rack, which is that of n0
        |d| keeps_away(d, "n1", "rack", None, &["worker"]),
        |d| keeps_away(d, "n1", "rack", None, &["leader"]),
    ),
    (
        "NodeRefuses Repelled", // a domain has one name wherever it is, as kube-scheduler has it: rack a of block y
        |d| keeps_away(d, "n4", "rack", Some("research"), &["worker"]),
        |d| keeps_away(d, "n4", "rack", Some("other"), &["worker"]),
    ),
    (
        "NodeRefuses Repelled", // what came first and is not lost stays
        |d| {
            replan(&mut d.2);
            keeps_away(d, "n2", "rack", None, &["worker"]);
        },
        |d| {
            replan(&mut d.2);
            keeps_away(d, "n1", "host", None, &["worker"]);
            d.0[1].labels.insert("host".into(), "n1".into());
        },
    ),
];

/// A pod on a node keeps the pods of some roles out of the node's domain.
fn keeps_away(decision: &mut Decision, node: &str, key: &str, namespace: Option<&str>, roles: &[&str]) {
    decision.2.roles[0].traits.labels = BTreeMap::from([("role".into(), "worker".into())]);
    let term = PodTerm {
        namespaces: namespace.map(|name| vec![name.to_owned()]),
        requirements: vec![Requirement::label_in("role", roles)],
        topology_key: key.to_owned(),
    };
    let there = Use { node: node.into(), requests: Resources::of([("pods", 1)]), repels: vec![term] };
    decision.1.insert("there".into(), there);
}

#[test]
fn each_violation_of_a_decision_and_the_nearest_that_is_none() {
    let judge = |(nodes, uses, gang, placement): &Decision| {
        check_placement(nodes, &topology(), uses, gang, placement)
    };
    assert_eq!(judge(&decision()), Vec::new());
    for (at, (expected, breaks, spares)) in DECISIONS.iter().enumerate() {
        let mut broken = decision();
        breaks(&mut broken);
        assert_eq!(kinds(&judge(&broken)), [*expected], "row {at}, broken");
        let mut whole = decision();
        spares(&mut whole);
        assert_eq!(judge(&whole), Vec::new(), "row {at} ({expected}), nearest");
    }
}

#[test]
fn the_constraints_alone_can_be_asked() {
    let (mut nodes, _, gang, placement) = decision();
    nodes[3].ready = false;
    let found = muster_check::check_constraints(&nodes, &gang, &placement);
    let [Violation::NodeRefuses { node, refusal: NodeRefusal::NotReady, .. }] = found.as_slice() else {
        panic!("one refusal expected: {found:?}")
    };
    assert_eq!(node.as_str(), "n3");
    assert_eq!(found[0].invariant(), Invariant::Constraint);
}
