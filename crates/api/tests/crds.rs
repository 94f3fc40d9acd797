//! The definitions: they can be built, the files are those of the types, and they stay within Kubernetes' limits.

use muster_api::{all_crds, crds};
use std::{collections::BTreeSet, fs, path::Path};

#[test]
fn crds_are_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds");
    let mut expected = BTreeSet::new();
    for crd in all_crds() {
        let name = crds::file_name(&crd);
        let text = fs::read_to_string(folder.join(&name)).unwrap_or_default();
        assert!(
            text == crds::to_yaml(&crd).unwrap(),
            "crds/{name} is not what the types say: run `cargo run -p muster-api --example crds` and commit the result"
        );
        expected.insert(name);
    }
    let found: BTreeSet<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .filter_map(|path| path.file_name()?.to_str().map(str::to_owned))
        .collect();
    assert_eq!(found, expected, "files in crds/ and kinds");
}

#[test]
fn plain_kubectl_apply_can_install_them() {
    for crd in all_crds() {
        // kubectl keeps the whole object in an annotation, and all annotations together hold 256 KiB.
        let size = serde_json::to_string(&crd).unwrap().len();
        let name = crd.metadata.name.unwrap();
        assert!(size < 128 << 10, "{name} has {size} bytes: strip more of the template's schema");
    }
}

#[test]
fn every_kind_answers_the_first_question() {
    for crd in all_crds() {
        let version = &crd.spec.versions[0];
        let columns = version.additional_printer_columns.as_ref().unwrap();
        let has = |name: &str| columns.iter().any(|column| column.name == name && column.priority.is_none());
        assert!(has("Age"), "{}", crd.spec.names.kind);
        if ["TrainingJob", "InferenceService", "Gang"].contains(&crd.spec.names.kind.as_str()) {
            for name in ["Phase", "Units", "GPUs", "Queue", "Reason"] {
                assert!(has(name), "{} {name}", crd.spec.names.kind);
            }
            let message = columns.iter().find(|column| column.name == "Message").unwrap();
            assert_eq!(message.priority, Some(1), "the message is wide");
        }
        let status = version.subresources.as_ref().is_some_and(|sub| sub.status.is_some());
        assert_eq!(status, crd.spec.names.kind != "GangPlan", "a part of a plan never changes");
        assert_eq!(crd.spec.names.categories.as_deref(), Some(&["muster".to_owned()][..]));
        assert!(!crd.spec.names.short_names.as_ref().unwrap().is_empty());
    }
}

/// A Gang is written a few times a second: the whole schema of a pod would cost the API server milliseconds each time.
#[test]
fn the_schema_of_a_gang_is_small() {
    let gang = all_crds().into_iter().find(|crd| crd.spec.names.kind == "Gang").unwrap();
    let size = serde_json::to_string(&gang).unwrap().len();
    assert!(size < 32 << 10, "{size} bytes");
}
