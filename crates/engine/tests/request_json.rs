//! The request that a plan was made from can be kept as JSON beside it, and is the same when it is read again.

use muster_model::{
    AcceleratorClass, Gang, GangState, Mode, Near, NodeName, NodeSelectorTerm, ObjectKey, Operator, Plan,
    PodTraits, Preference, Ratio, RecoveryStep, Requirement, Resources, Role, Rules, Segment, Spread,
    TaintEffect, Toleration, TolerationOperator, Uid, UnitId, Within,
    plan::{PlacedUnit, Placement},
};
use proptest::{collection::vec, option, prelude::*, sample::select};
use std::collections::{BTreeMap, BTreeSet};

/// Texts that need escapes, that look like numbers, or are empty, beside usual ones.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z][a-z0-9./-]{0,12}",
        Just(String::new()),
        Just("1".into()),
        Just("\"\\\n\u{2028}é".into())
    ]
}

fn amount() -> impl Strategy<Value = i64> {
    prop_oneof![0..10_000_i64, Just(i64::MAX), Just(i64::MIN), Just((1 << 53) + 1)]
}

fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map(text(), text(), 0..3)
}

fn mode() -> impl Strategy<Value = Mode> {
    select(vec![Mode::Required, Mode::Preferred])
}

fn requirement() -> impl Strategy<Value = Requirement> {
    use Operator::{DoesNotExist, Exists, Gt, In, Lt, NotIn};
    let operator = select(vec![In, NotIn, Exists, DoesNotExist, Gt, Lt]);
    (text(), operator, vec(text(), 0..3), any::<bool>())
        .prop_map(|(key, operator, values, field)| Requirement { key, operator, values, field })
}

fn term() -> impl Strategy<Value = NodeSelectorTerm> {
    vec(requirement(), 0..3).prop_map(|requirements| NodeSelectorTerm { requirements })
}

fn toleration() -> impl Strategy<Value = Toleration> {
    use TaintEffect::{NoExecute, NoSchedule, PreferNoSchedule};
    use TolerationOperator::{Equal, Exists, Gt, Lt};
    let effect = option::of(select(vec![NoSchedule, PreferNoSchedule, NoExecute]));
    (option::of(text()), select(vec![Equal, Exists, Lt, Gt]), text(), effect)
        .prop_map(|(key, operator, value, effect)| Toleration { key, operator, value, effect })
}

fn traits() -> impl Strategy<Value = PodTraits> {
    let wish = (any::<u32>(), term()).prop_map(|(weight, term)| Preference { weight, term });
    (labels(), vec(wish, 0..2)).prop_map(|(labels, preferred)| PodTraits { labels, preferred })
}

fn role() -> impl Strategy<Value = Role> {
    let segment =
        (any::<u32>(), text(), mode()).prop_map(|(pods, level, mode)| Segment { pods, level, mode });
    let place = (labels(), vec(term(), 0..3), vec(toleration(), 0..3), traits());
    let counts = (any::<[u32; 5]>(), vec(any::<u32>(), 0..3), vec(segment, 0..3));
    let requests = prop::collection::btree_map(text(), amount(), 0..4).prop_map(Resources);
    (text(), requests, place, counts).prop_map(
        |(name, requests, (node_selector, affinity, tolerations, traits), (numbers, valid, segments))| Role {
            name,
            requests,
            devices: numbers[0],
            node_selector,
            affinity,
            tolerations,
            traits,
            pods_per_unit: numbers[1],
            min: numbers[2],
            max: numbers[3],
            valid,
            segments,
            spares: numbers[4],
        },
    )
}

fn rules() -> impl Strategy<Value = Rules> {
    let ratio = (text(), text(), any::<[u32; 3]>()).prop_map(|(role, of, [per, min, max])| Ratio {
        role,
        of,
        per,
        min,
        max,
    });
    let near =
        (vec(text(), 0..3), text(), mode()).prop_map(|(roles, level, mode)| Near { roles, level, mode });
    let spread = (text(), text(), any::<u32>(), mode(), option::of(text()))
        .prop_map(|(role, level, units, mode, group)| Spread { role, level, units, mode, group });
    (vec(ratio, 0..2), vec(near, 0..2), vec(spread, 0..2)).prop_map(|(ratios, near, spread)| Rules {
        ratios,
        near,
        spread,
    })
}

fn plan() -> impl Strategy<Value = Plan> {
    let node = || text().prop_map(NodeName::from);
    let unit = (text(), any::<u32>(), option::of(text()), vec(node(), 0..3))
        .prop_map(|(role, index, class, nodes)| PlacedUnit { id: UnitId { role, index }, class, nodes });
    let spares = prop::collection::btree_map(text(), vec(node(), 0..3), 0..2);
    (any::<u64>(), vec(unit, 0..3), spares).prop_map(|(generation, units, spares)| {
        Plan::next(None, generation, Placement { units, spares }, &BTreeSet::new(), false)
    })
}

fn state() -> impl Strategy<Value = GangState> {
    let lost = prop::collection::btree_set(
        (text(), any::<u32>()).prop_map(|(role, index)| UnitId { role, index }),
        0..3,
    );
    let steps = vec(select(RecoveryStep::ALL.to_vec()), 0..4);
    prop_oneof![
        Just(GangState::Inactive),
        Just(GangState::Waiting),
        plan().prop_map(GangState::Holding),
        (plan(), lost, steps).prop_map(|(plan, lost, steps)| GangState::Replan { plan, lost, steps }),
    ]
}

fn gang() -> impl Strategy<Value = Gang> {
    let class = (text(), text(), vec(requirement(), 0..2))
        .prop_map(|(name, resource, requirements)| AcceleratorClass { name, resource, requirements });
    let within = option::of((text(), mode()).prop_map(|(level, mode)| Within { level, mode }));
    let avoid = prop::collection::btree_set(text().prop_map(NodeName::from), 0..3);
    let who = (text(), text(), text(), text(), any::<i32>(), any::<i64>());
    let asks = (vec(class, 0..2), vec(role(), 0..3), within, rules());
    (who, asks, avoid, state()).prop_map(
        |((namespace, name, uid, queue, priority, since), (classes, roles, within, rules), avoid, state)| {
            Gang {
                key: ObjectKey { namespace, name },
                uid: Uid(uid),
                queue,
                priority,
                since,
                classes,
                roles,
                within,
                rules,
                avoid,
                state,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_request_is_the_same_after_it_was_written_as_json(gang in gang()) {
        let text = serde_json::to_string(&gang).expect("every map has texts as keys");
        let again: Gang = serde_json::from_str(&text).expect("what was written can be read");
        prop_assert_eq!(&again, &gang, "{}", text);
        // And over a value, as an API server keeps it.
        let value = serde_json::to_value(&gang).expect("every map has texts as keys");
        prop_assert_eq!(serde_json::from_value::<Gang>(value).expect("what was written can be read"), gang);
    }
}
