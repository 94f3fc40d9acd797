//! The exact solver is itself held to optima that two other programmes computed (see the cases' own README). They do
//! not ship with the project; without them this says so and judges only the cases written here.

use crate::exact::{Block, Instance, RoleSpec, Term, best};
use muster_model::Resources;
use serde_json::Value;
use std::path::Path;

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn number(value: &Value) -> u32 {
    value.as_u64().unwrap_or_default() as u32
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn resources(value: &Value) -> Resources {
    let pairs = value.as_object().into_iter().flatten();
    Resources(pairs.map(|(name, amount)| (name.clone(), amount.as_i64().unwrap_or_default())).collect())
}

/// A case with one gang.
fn instance(case: &Value) -> Instance {
    let levels: Vec<String> = list(&case["levels"]).iter().map(text).collect();
    let level =
        |value: &Value| levels.iter().position(|name| *name == text(value)).expect("a level of the case");
    let gang = &case["gangs"][0];
    let roles: Vec<String> = list(&gang["roles"]).iter().map(|role| text(&role["name"])).collect();
    let term = |key: &Value| {
        let key = text(key);
        let parts: Vec<&str> = key.split(':').collect();
        match parts.as_slice() {
            ["units"] => Term::Units,
            ["span"] => Term::Span,
            ["domains", name] => Term::Domains(level(&Value::from(*name))),
            ["broken", role, pods] => Term::Broken(
                roles.iter().position(|name| name == role).expect("a role of the gang"),
                pods.parse().expect("a size"),
            ),
            _ => panic!("unknown term {key}"),
        }
    };
    Instance {
        levels: levels.len() - 1,
        nodes: list(&case["nodes"])
            .iter()
            .map(|node| (list(&node["at"]).iter().map(text).collect(), resources(&node["free"])))
            .collect(),
        roles: list(&gang["roles"])
            .iter()
            .map(|role| RoleSpec {
                request: resources(&case["shapes"][text(&role["shape"])]),
                pods: number(&role["pods"]),
                counts: (number(&role["min"])..=number(&role["max"])).collect(),
                blocks: list(&role["segments"])
                    .iter()
                    .map(|segment| Block {
                        pods: number(&segment["pods"]),
                        level: level(&segment["level"]),
                        required: segment["mode"] == "Required",
                    })
                    .collect(),
            })
            .collect(),
        within: gang.get("within").map(|within| level(&within["level"])),
        order: list(&gang["order"]).iter().map(term).collect(),
    }
}

#[test]
fn with_computed_optima() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/cases/placement");
    let Ok(files) = std::fs::read_dir(&folder) else {
        eprintln!("SKIPPED: no placement cases beside the project; only the small ones below are judged");
        return;
    };
    let mut judged = 0;
    for file in files {
        let cases =
            std::fs::read_to_string(file.expect("a readable folder").path()).expect("a readable file");
        for line in cases.lines() {
            let case: Value = serde_json::from_str(line).expect("a case");
            // Of several gangs in a row, the first gets its own optimum.
            let expected = &case["expected"][0];
            let wanted = (expected["feasible"] == true)
                .then(|| list(&expected["best"]).iter().map(|v| v.as_i64().unwrap_or_default()).collect());
            assert_eq!(best(&instance(&case)), wanted, "{}", text(&case["name"]));
            judged += 1;
        }
    }
    assert!(judged > 0, "no case in {}", folder.display());
}

/// `counts` free devices on single-level nodes in racks.
fn racks(counts: &[&[i64]], role: RoleSpec, order: Vec<Term>) -> Instance {
    let nodes = counts.iter().enumerate().flat_map(|(rack, nodes)| {
        nodes.iter().map(move |gpus| (vec![format!("r{rack}")], Resources::of([("gpu", *gpus)])))
    });
    Instance { levels: 1, nodes: nodes.collect(), roles: vec![role], within: None, order }
}

fn role(pods: u32, counts: &[u32], blocks: Vec<Block>) -> RoleSpec {
    RoleSpec { request: Resources::of([("gpu", 8)]), pods, counts: counts.to_vec(), blocks }
}

#[test]
fn with_optima_found_by_hand() {
    let pair = |required| vec![Block { pods: 2, level: 0, required }];
    let order = || vec![Term::Units, Term::Span, Term::Domains(0)];
    let with_broken = vec![Term::Units, Term::Broken(0, 2), Term::Span, Term::Domains(0)];
    // 3 + 3 free nodes hold six pods, but only two pairs of the three that a unit needs.
    let odd: &[&[i64]] = &[&[8, 8, 8], &[8, 8, 8]];
    assert_eq!(best(&racks(odd, role(6, &[1], pair(true)), order())), None);
    assert_eq!(best(&racks(odd, role(6, &[1], pair(false)), with_broken)), Some(vec![1, 1, 2, 2]));
    assert_eq!(best(&racks(odd, role(2, &[1, 2, 3], pair(true)), order())), Some(vec![2, 2, 2]));
    // A gang that fits one rack has span 1; one that fits one node, 0.
    assert_eq!(best(&racks(odd, role(2, &[1], pair(true)), order())), Some(vec![1, 1, 1]));
    assert_eq!(best(&racks(&[&[16], &[8]], role(2, &[1], pair(true)), order())), Some(vec![1, 0, 1]));
}
