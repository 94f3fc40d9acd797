//! Templates by revision: who has which, and what the status says of it.

use super::*;

/// The first role of a gang with another template under another name, the one before kept.
fn revised(gang: &mut Value, change: impl FnOnce(&mut Value)) {
    let role = &mut gang["spec"]["roles"][0];
    role["revisions"] = json!([{ "name": "1", "template": role["template"] }]);
    role["revision"] = json!("2");
    change(&mut role["template"]["spec"]["containers"][0]);
}

fn created(asked: &[Want]) -> Vec<(String, Value)> {
    let bodies = asked.iter().filter_map(|want| match want {
        Want::CreatePod { body, .. } => Some(serde_json::from_slice::<Value>(body).unwrap()),
        _ => None,
    });
    let seen = |pod: Value| {
        let revision = pod["metadata"]["labels"]["muster.dev/revision"].as_str().unwrap().to_owned();
        (revision, pod["spec"]["containers"][0].clone())
    };
    bodies.map(seen).collect()
}

/// A unit that starts anew takes a template that fits its place, and keeps its own where the newer one does not: that one
/// waits for a new placement, and the status says so.
#[test]
fn a_template_that_needs_another_place_waits_for_it() {
    for (field, value, expected) in
        [("image", json!("example/two"), "2"), ("resources", json!({ "requests": { "cpu": "3" } }), "1")]
    {
        let mut table = Table::new(2);
        table.submit_with("gang", 2, &json!({ "outcome": { "policy": "Never" } }));
        table.settle(5_000);
        table.run_all();
        table.settle(5_000);
        table.edit_gang("gang", |gang| revised(gang, |container| container[field] = value.clone()));
        let asked = table.settle(60_000);
        assert_eq!(count(&asked, is_creation), 0, "the edit of {field} alone restarts nothing");
        let conditions = table.gangs["gang"]["status"]["conditions"].to_string();
        let says =
            if expected == "2" { "is used when their pods start anew" } else { "asks for another place" };
        assert!(conditions.contains(says), "{conditions}");
        let failed = table.first_pod();
        table.end(&failed, 1);
        let made = created(&table.settle(60_000));
        assert_eq!(made.len(), 1, "{made:?}");
        assert_eq!(made[0].0, expected, "{field}");
        assert_eq!(made[0].1[field] == value, expected == "2", "{made:?}");
        // Placed anew, it takes what its specification says.
        table.edit_gang("gang", |gang| gang["spec"]["suspend"] = json!(true));
        table.settle(60_000);
        table.edit_gang("gang", |gang| gang["spec"]["suspend"] = json!(false));
        let made = created(&table.settle(120_000));
        assert_eq!(made.len(), 2, "{made:?}");
        assert!(
            made.iter().all(|(revision, container)| revision == "2" && container[field] == value),
            "{made:?}"
        );
    }
}

/// A newer template that no pod can be made of is said to be so, though the plan in force does not need it.
#[test]
fn a_newer_template_that_is_wrong_is_not_called_valid() {
    let mut table = Table::new(1);
    table.submit("gang", 1);
    table.settle(5_000);
    table.run_all();
    table.settle(5_000);
    table.edit_gang("gang", |gang| {
        revised(gang, |container| container["resources"] = json!({ "requests": { "cpu": "a few" } }));
    });
    table.settle(5_000);
    let status = &table.gangs["gang"]["status"];
    let conditions = status["conditions"].as_array().unwrap();
    let valid = conditions.iter().find(|condition| condition["type"] == "Valid").unwrap();
    assert_eq!((&valid["status"], &status["phase"]), (&json!("False"), &json!("Running")), "{status}");
}

/// A plan that was made before templates had revisions says with the next report which it uses, as a newer template
/// requires; for that alone nothing is written.
#[test]
fn a_plan_of_an_earlier_version_says_its_revisions() {
    let mut table = Table::new(1);
    table.submit("gang", 1);
    table.settle(5_000);
    table.run_all();
    table.settle(5_000);
    table.edit_gang("gang", |gang| drop(gang["status"].as_object_mut().unwrap().remove("revisions")));
    let writes = |want: &Want| matches!(want, Want::WriteGang { .. });
    let asked = table.settle(60_000);
    assert_eq!(count(&asked, writes), 0, "{asked:?}");
    table.edit_gang("gang", |gang| gang["spec"]["recovery"] = json!({ "maxRestarts": 3 }));
    table.settle(60_000);
    let used = json!([{ "role": "worker", "name": "1", "units": 1 }]);
    assert_eq!(table.gangs["gang"]["status"]["revisions"], used);
}

/// A plan that a version without revisions wrote last names none, whatever its pods were made from: a name that the
/// specification does not have would make every write of the gang a change that its rules refuse.
#[test]
fn a_template_that_is_not_there_is_named_by_no_status() {
    let mut table = Table::new(3);
    table.submit_with("gang", 2, &json!({ "outcome": { "policy": "Never" } }));
    table.settle(5_000);
    table.run_all();
    table.settle(5_000);
    table.edit_gang("gang", |gang| {
        gang["spec"]["roles"][0]["revision"] = json!("2");
        gang["status"].as_object_mut().unwrap().remove("revisions");
    });
    let used = json!([{ "role": "worker", "name": "2", "units": 2 }]);
    table.settle(5_000);
    assert_eq!(table.gangs["gang"]["status"]["revisions"], used, "the next report");
    table.end(&table.first_pod(), 1);
    table.settle(60_000);
    assert_eq!(table.gangs["gang"]["status"]["revisions"], used, "the next plan");
}
