//! Plans survive the status, whatever the nodes are called.

use muster_api::plan_codec::{MAX_INLINE, PlanError, PlanStatus, decode, encode, join, nodes, size, split};
use muster_model::{NodeName, Plan, PlannedUnit, Uid, UnitId, plan::PlacedUnit};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn unit(role: &str, index: u32, incarnation: u64, class: Option<&str>, names: &[String]) -> PlannedUnit {
    PlannedUnit {
        placed: PlacedUnit {
            id: UnitId { role: role.into(), index },
            class: class.map(str::to_owned),
            nodes: names.iter().map(|name| NodeName::from(name.as_str())).collect(),
        },
        incarnation,
        revision: String::new(),
    }
}

fn text(names: &[&str]) -> String {
    nodes::encode(names.iter().copied())
}

#[test]
fn lists_read_well() {
    for (names, expected) in [
        (&["hgx-001", "hgx-002", "hgx-003", "hgx-004"][..], "hgx-[001-004]"),
        (&["n9", "n10", "n11"], "n[9-11]"),
        (&["n09", "n10"], "n[09-10]"),
        (&["a", "a", "b"], "a*2,b"),
        (&["r1-n1", "r1-n1", "r1-n2", "r1-n2"], "r1-n[1-2]*2"),
        (&["rack1-a", "rack1-b"], "rack1-a,6:b"),
        (
            &["rack1-n1.gpu.example", "rack1-n2.gpu.example", "rack2-n7.gpu.example"],
            "rack1-n[1-2].gpu.example,4:2-n7:12",
        ),
        (&["2", "1"], "2,1"),
        (&[], ""),
    ] {
        let text = text(names);
        assert_eq!(text, expected);
        assert_eq!(nodes::decode(&text, 100).unwrap(), names, "{text}");
    }
}

#[test]
fn order_is_kept_and_not_only_the_set() {
    let names = ["n3", "n2", "n1", "n2"];
    assert_eq!(nodes::decode(&text(&names), 100).unwrap(), names);
}

#[test]
fn a_text_that_nobody_wrote_is_refused() {
    for wrong in [
        "n[1-",
        "n[2-1]",
        "n1]",
        "9:x",
        "a,9:x",
        "a*",
        "a*x",
        "n[1-2][3-4]",
        "a,1:b:9",
        "a:b:c:d",
        "a,,b",
        "n[x-y]",
    ] {
        assert!(matches!(nodes::decode(wrong, 100), Err(PlanError::Nodes { .. })), "{wrong}");
    }
    // Short texts that mean a great deal.
    assert_eq!(nodes::decode("a*99999999999", 100), Err(PlanError::TooLarge));
    assert!(nodes::decode("n[1-99999999999]", 100).is_err());
    let units = |units: &str, nodes: &str, pods| {
        let status: PlanStatus = serde_json::from_value(serde_json::json!({
            "generation": 1, "pods": pods,
            "runs": [{ "role": "w", "units": units, "incarnation": 1, "nodes": nodes }],
        }))
        .unwrap();
        decode(&status, &BTreeMap::new())
    };
    assert!(units("0-1", "a,b", 2).is_ok());
    assert!(matches!(units("0-1", "a,b,c", 3), Err(PlanError::Uneven { .. })));
    assert!(matches!(units("0-x", "a,b", 2), Err(PlanError::Units(_))));
    assert!(matches!(units("1-0", "a,b", 2), Err(PlanError::Units(_))));
    assert_eq!(units("0-4294967295", "a", 1), Err(PlanError::TooLarge));
    assert_eq!(units("0", "a", 2), Err(PlanError::Count { found: 1, said: 2 }));
}

#[test]
fn like_units_share_a_run() {
    let names: Vec<String> = (1..=4).map(|n| format!("hgx-{n:03}")).collect();
    let mut plan = Plan { generation: 3, ..Plan::default() };
    plan.units = vec![
        unit("worker", 0, 1, Some("h100"), &names[..2]),
        unit("worker", 1, 1, Some("h100"), &names[2..]),
        unit("worker", 2, 3, Some("h100"), &["spare-7".to_owned(), "hgx-002".to_owned()]),
    ];
    let status = encode(&plan);
    assert_eq!(status.runs.len(), 2);
    assert_eq!((status.runs[0].units.as_str(), status.runs[0].nodes.as_str()), ("0-1", "hgx-[001-004]"));
    assert_eq!((status.runs[1].units.as_str(), status.runs[1].incarnation), ("2", 3));
    assert_eq!(status.pods, 6);
    assert_eq!(decode(&status, &BTreeMap::new()).unwrap(), plan);
}

/// 16,000 names in no order, as clouds give them.
fn cloud_names() -> Vec<Vec<String>> {
    let mixed = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (n << 7);
    let octet = |n: u64, shift: u32| (mixed(n) >> shift) % 256;
    vec![
        (0..16_000)
            .map(|n| {
                format!("ip-10-{}-{}-{}.us-west-2.compute.internal", octet(n, 20), octet(n, 30), octet(n, 40))
            })
            .collect(),
        (0..16_000)
            .map(|n| format!("gke-training-pool-{:08x}-{:04x}", mixed(n / 50) >> 32, mixed(n) >> 48))
            .collect(),
        (0..16_000).map(|n| format!("aks-gpupool-18237465-vmss{:06}", mixed(n) % 1_000_000)).collect(),
    ]
}

#[test]
fn sixteen_thousand_cloud_names_stay_in_the_status() {
    for names in cloud_names() {
        let plan = Plan {
            generation: 1,
            units: names
                .chunks(32)
                .zip(0..)
                .map(|(part, index)| unit("worker", index, 1, Some("h100"), part))
                .collect(),
            ..Plan::default()
        };
        let status = encode(&plan);
        let bytes = size(&status);
        assert!(bytes < MAX_INLINE, "{}: {bytes} bytes", names[0]);
        assert_eq!(decode(&status, &BTreeMap::new()).unwrap(), plan);
    }
}

#[test]
fn a_large_plan_goes_to_chunks_whose_hashes_are_checked() {
    let names = &cloud_names()[0];
    let plan = Plan { generation: 9, units: vec![unit("worker", 0, 9, None, names)], ..Plan::default() };
    let status = encode(&plan);
    let uid = Uid::from("0123456789");
    assert_eq!(
        split(&status, MAX_INLINE, "big", &uid).unwrap(),
        (status.clone(), vec![]),
        "it is small enough"
    );
    let (small, chunks) = split(&status, 50_000, "big", &uid).unwrap();
    assert!(size(&small) < 2_000 && chunks.len() > 2);
    assert!(
        chunks.iter().all(|chunk| chunk.text.len() <= 50_000 && chunk.name.starts_with("big-012345-plan-"))
    );
    assert_eq!(split(&status, 50_000, "big", &uid).unwrap().1, chunks, "the same plan has the same names");
    let mut texts: BTreeMap<String, String> =
        chunks.iter().map(|chunk| (chunk.name.clone(), chunk.text.clone())).collect();
    assert_eq!(join(&small, &texts).unwrap(), status);
    assert_eq!(decode(&small, &texts).unwrap(), plan);
    let victim = chunks[1].name.clone();
    texts.insert(victim.clone(), chunks[0].text.clone());
    assert_eq!(decode(&small, &texts), Err(PlanError::ChunkChanged(victim.clone())));
    texts.remove(&victim);
    assert_eq!(decode(&small, &texts), Err(PlanError::ChunkMissing(victim)));
}

/// Names of nodes: DNS subdomains, often with numbers, often alike.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        (0_u32..30).prop_map(|n| format!("n{n}")),
        (95_u32..105).prop_map(|n| format!("hgx-{n:03}")),
        (0_u32..3, 5_u32..15).prop_map(|(rack, n)| format!("rack{rack}-node{n}.gpu.example")),
        "[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?",
        "[0-9]{1,20}",
    ]
}

/// Runs of names, with repeats.
fn names() -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec((name(), 1_usize..4), 0..40).prop_map(|runs| {
        runs.into_iter().flat_map(|(name, count)| std::iter::repeat_n(name, count)).collect()
    })
}

prop_compose! {
    fn plan()(
        units in proptest::collection::vec(
            (0_usize..2, 0_u32..5, 1_u64..4, proptest::option::of("[a-c]"), names()), 0..12),
        spares in proptest::collection::btree_map("[a-c]", names(), 0..3),
        generation in 1_u64..1_000_000,
    ) -> Plan {
        Plan {
            generation,
            units: units
                .into_iter()
                .map(|(role, index, incarnation, class, names)| {
                    unit(["leader", "worker"][role], index, incarnation, class.as_deref(), &names)
                })
                .collect(),
            spares: spares
                .into_iter()
                .map(|(role, held)| (role, held.into_iter().map(NodeName::from).collect()))
                .collect(),
        }
    }
}

proptest! {
    #[test]
    fn lists_round_trip(names in names()) {
        let text = nodes::encode(names.iter().map(String::as_str));
        prop_assert_eq!(nodes::decode(&text, names.len()).unwrap(), names);
    }

    #[test]
    fn plans_round_trip(plan in plan(), limit in 1_usize..400) {
        let status = encode(&plan);
        prop_assert_eq!(&decode(&status, &BTreeMap::new()).unwrap(), &plan);
        let (small, chunks) = split(&status, limit, "gang", &Uid::from("abcdef01")).unwrap();
        let texts = chunks.into_iter().map(|chunk| (chunk.name, chunk.text)).collect();
        prop_assert_eq!(&decode(&small, &texts).unwrap(), &plan);
    }

    #[test]
    fn no_text_brings_the_reader_down(text in "[n0-9:,*\\[\\]-]{0,30}") {
        if let Ok(names) = nodes::decode(&text, 1_000) {
            prop_assert!(names.len() <= 1_000);
        }
    }
}

#[test]
fn a_part_of_a_plan_becomes_an_object_of_its_gang() {
    let gang: muster_api::Gang = serde_json::from_value(serde_json::json!({
        "metadata": { "name": "big", "namespace": "team", "uid": "0123456789" },
        "spec": { "roles": [] },
    }))
    .unwrap();
    let names = &cloud_names()[0];
    let plan = Plan { generation: 9, units: vec![unit("worker", 0, 9, None, names)], ..Plan::default() };
    let (status, chunks) = split(&encode(&plan), 50_000, "big", &Uid::from("0123456789")).unwrap();
    let mut texts = BTreeMap::new();
    for chunk in &chunks {
        let object = muster_api::gang_plan::object(&gang, chunk);
        let read: muster_api::GangPlan = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(read.metadata.namespace.as_deref(), Some("team"));
        let owner = &read.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!(
            (owner.kind.as_str(), owner.uid.as_str(), owner.controller),
            ("Gang", "0123456789", Some(true))
        );
        texts.insert(read.metadata.name.unwrap(), read.spec.text);
    }
    assert_eq!(decode(&status, &texts).unwrap(), plan);
    assert_eq!(muster_api::plan_codec::MAX_CHUNK, 786_432, "as long as the schema admits");
}
