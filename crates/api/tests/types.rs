//! The types read what users write, and write what they read.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use muster_api::{
    Framework, Parallelism, TrainingJob, accelerator_class::AcceleratorClassSpec, catalogue, condition,
    names, training_job::Outcome,
};
use muster_model::{Mode, Uid};

/// The example of the design.
const EXAMPLE: &str = r"
apiVersion: muster.dev/v1alpha1
kind: TrainingJob
metadata: { name: llama-70b, namespace: research }
spec:
  queue: research
  priorityClassName: high
  framework: Megatron
  accelerator: { classes: [h100, h200] }
  parallelism: { tensor: 8, pipeline: 4, context: 1, expert: 8, expertTensor: 1, data: 4 }
  elastic: { minData: 2, maxData: 8 }
  placement:
    tensor:   { within: NvlinkDomain, mode: Required }
    expert:   { within: NvlinkDomain, mode: Preferred }
    pipeline: { within: Block,        mode: Preferred }
    spares: 1
  checkpoint: { interval: 10m, grace: 90s, progress: { metricsPort: 9400 } }
  recovery: { ladder: [RestartInPlace, ReplaceNode, Shrink, Requeue], maxRestarts: 20, window: 24h }
  template: { spec: { containers: [ { name: trainer, image: example/trainer } ] } }
";

#[test]
fn the_example_of_the_design_is_read_and_written() {
    let job: TrainingJob = serde_yaml_ng::from_str(EXAMPLE).unwrap();
    assert_eq!(job.spec.framework, Framework::Megatron);
    assert_eq!(job.spec.parallelism.world(), 128);
    assert_eq!(job.spec.placement.spares, 1);
    assert_eq!(job.spec.placement.pipeline.mode, Mode::Preferred);
    assert_eq!(job.spec.checkpoint.grace.millis(), Ok(90_000));
    assert_eq!(job.spec.outcome, Outcome::Rank0);
    let again: TrainingJob = serde_json::from_str(&serde_json::to_string(&job).unwrap()).unwrap();
    assert_eq!(again, job);
}

#[test]
fn what_is_not_set_is_not_written() {
    let job: TrainingJob = serde_yaml_ng::from_str(EXAMPLE).unwrap();
    let text = serde_json::to_string(&job).unwrap();
    assert!(!text.contains("null"), "a null owns its field under server-side apply: {text}");
}

#[test]
fn expert_tensor_defaults_to_tensor() {
    let mut parallelism = Parallelism { tensor: 8, ..Parallelism::default() };
    assert_eq!(parallelism.expert_tensor(), 8);
    parallelism.expert_tensor = Some(1);
    assert_eq!(parallelism.expert_tensor(), 1);
}

fn at(second: i64) -> Time {
    Time(Timestamp::from_second(second).unwrap())
}

#[test]
fn a_condition_moves_its_time_only_when_its_status_changes() {
    use condition::{Now, merge};
    let first = merge(&[], &[Now::no("Placed", "Waiting", "no room")], Some(1), &at(1));
    let other = merge(&first, &[Now::yes("Valid", "Checked", "")], Some(1), &at(2));
    let same = merge(&other, &[Now::no("Placed", "Waiting", "no room")], Some(1), &at(3));
    assert_eq!(same, other, "nothing changed, nothing to write");
    let worded = merge(&other, &[Now::no("Placed", "Waiting", "less room")], Some(2), &at(4));
    assert_eq!(worded[0].last_transition_time, at(1));
    assert_eq!((worded[0].message.as_str(), worded[0].observed_generation), ("less room", Some(2)));
    let moved = merge(&worded, &[Now::yes("Placed", "Planned", "")], Some(2), &at(5));
    assert_eq!(moved[0].last_transition_time, at(5));
    assert_eq!(moved[1], other[1], "others stay");
    assert!(condition::is_true(&moved, "Placed") && !condition::is_true(&worded, "Placed"));
    assert_eq!(merge(&moved, &[Now::unknown("Placed", "Lost", "")], None, &at(6))[0].status, "Unknown");
}

#[test]
fn derived_names_are_dns_labels_at_their_longest() {
    let gang = "g".repeat(names::MAX_NAME);
    let uid = Uid::from("0123456789abcdef");
    // No gang has more than 262,144 pods, so the digits of unit and index are seven at most.
    for (unit, index) in [(262_143, 0), (1_023, 255), (0, 262_143)] {
        let pod = names::pod(&gang, &uid, Some('w'), unit, 99_999, index);
        assert!(pod.len() <= names::MAX_DERIVED, "{pod} has {}", pod.len());
    }
    for name in [
        names::rank0_service(&gang, &uid),
        names::hosts_service(&gang, &uid),
        names::hostfile(&gang, &uid, u64::from(u16::MAX)),
        names::leader_service(&gang, &uid, Some('w'), 262_143),
    ] {
        assert!(name.len() <= names::MAX_DERIVED, "{name} has {}", name.len());
    }
    assert_eq!(names::pod("job", &uid, None, 3, 1, 0), "job-012345-3-1-0");
    assert_eq!(names::pod("job", &uid, Some('w'), 3, 1, 0), "job-012345-w3-1-0");
}

#[test]
fn a_pods_name_says_its_place() {
    let uid = Uid::from("0123456789abcdef");
    for roles in [&["worker"][..], &["prefill", "decode"], &["prefill", "proxy", "decode"], &["a", "b"]] {
        for role in roles {
            let letter = names::role_letter(roles, role);
            let name = names::pod("job-1", &uid, letter, 12, 3, 4);
            assert_eq!(names::place("job-1", &uid, roles, &name), Some((*role, 12, 3, 4)), "{name}");
        }
        for wrong in [
            "job-1-012345",
            "job-1-012345-x",
            "job-1-012345-12-3",
            "job-1-999999-12-3-4",
            "job-1-012345-é-1-1",
            "job-1-012345-012-3-4",
            "job-1-012345-12-3-4-5",
            "job-1-012345-a012-3-4",
            "other-012345-12-3-4",
            "",
        ] {
            assert_eq!(names::place("job-1", &uid, roles, wrong), None, "{wrong}");
        }
    }
}

#[test]
fn roles_are_told_apart_by_a_letter() {
    assert_eq!(names::role_letter(&["worker"], "worker"), None);
    assert_eq!(names::role_letter(&["prefill", "decode"], "decode"), Some('d'));
    let alike = ["prefill", "proxy", "decode"];
    let letters: Vec<_> = alike.iter().map(|role| names::role_letter(&alike, role)).collect();
    assert_eq!(letters, [Some('a'), Some('b'), Some('c')]);
    assert_eq!(names::role_letter(&alike, "other"), None);
}

#[test]
fn the_catalogue_knows_each_product_once() {
    for (product, class) in [
        ("NVIDIA-A100-SXM4-80GB", "a100"),
        ("NVIDIA-A100-SXM4-40GB", "a100-40"),
        ("NVIDIA-H100-80GB-HBM3", "h100"),
        ("NVIDIA-H100-NVL", "h100-nvl"),
        ("NVIDIA-H200", "h200"),
        ("NVIDIA-B200", "b200"),
        ("NVIDIA-GB200", "gb200"),
        ("NVIDIA-GB300", "gb300"),
        ("NVIDIA-L40", "l40"),
        ("NVIDIA-L40S", "l40s"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "rtx-pro-6000"),
    ] {
        let matching: Vec<&str> = catalogue::all()
            .iter()
            .filter(|(_, spec)| spec.matches(product))
            .map(|(name, _)| *name)
            .collect();
        assert_eq!(matching, [class], "{product}");
        assert_eq!(catalogue::of_product(product), Some(class));
    }
    for divided in ["NVIDIA-H200-SHARED", "NVIDIA-H200-MIG-1g.18gb", "NVIDIA-H100-80GB-HBM3-MIG-INVALID"] {
        assert_eq!(catalogue::of_product(divided), None, "{divided} is no whole card");
    }
}

#[test]
fn mig_grids_are_those_of_the_cards() {
    for (name, spec) in catalogue::all() {
        let Some(grid) = spec.mig else { continue };
        for profile in &grid.profiles {
            assert!(profile.compute <= grid.compute_slices, "{name} {}", profile.name);
            for start in &profile.starts {
                assert!(start + profile.memory <= grid.memory_slices, "{name} {}", profile.name);
            }
        }
    }
    let h100 = catalogue::get("h100").unwrap().mig.unwrap();
    let most: Vec<u32> = h100.profiles.iter().map(|profile| profile.max).collect();
    assert_eq!(most, [7, 4, 3, 2, 1, 1], "1g, 1g with double memory, 2g, 3g, 4g, 7g");
}

#[test]
fn a_beginning_is_spelt_out_for_the_engine() {
    let class = catalogue::get("h200").unwrap();
    let model =
        class.to_model("h200", ["NVIDIA-H200", "NVIDIA-H100-NVL", "NVIDIA-H200-NVL", "NVIDIA-H200-SHARED"]);
    assert_eq!(model.requirements[0].values, ["NVIDIA-H200", "NVIDIA-H200-NVL"]);
    assert!(model.requirements[0].holds(Some("NVIDIA-H200")));
    let unseen = class.to_model("h200", []);
    assert!(!unseen.requirements[0].holds(Some("NVIDIA-H200")), "nothing is taken for a class nobody has");
    let any: AcceleratorClassSpec = serde_json::from_str("{}").unwrap();
    assert!(any.to_model("any", []).requirements.is_empty(), "no products: every node with the resource");
}
