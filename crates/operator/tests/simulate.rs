//! `muster simulate`, from arguments to what it prints. Small files in `tests/simulate/` are the inputs.

use clap::Parser;
use muster_operator::simulate::{Args, answer};
use serde_json::Value;
use std::path::{Path, PathBuf};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn file(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulate").join(name).display().to_string()
}

/// Runs with these arguments; those that begin with `@` are files of `tests/simulate`.
fn simulate(arguments: &[&str]) -> Result<String, String> {
    let arguments =
        arguments.iter().map(|text| text.strip_prefix('@').map_or_else(|| (*text).to_owned(), file));
    let cli = Cli::try_parse_from(["simulate".to_owned()].into_iter().chain(arguments));
    let args = cli.map_err(|error| error.to_string())?.args;
    answer(&args, false).map_err(|error| format!("{error:#}"))
}

/// Runs over texts written to files of their own, and takes the folder out of what is said.
fn simulate_texts(name: &str, nodes: &str, jobs: &str) -> Result<String, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder for the test's files");
    let write = |file: &str, text: &str| {
        let path: PathBuf = folder.join(file);
        std::fs::write(&path, text).expect("a file of the test");
        path.display().to_string()
    };
    let (nodes, jobs) = (write("nodes.yaml", nodes), write("jobs.yaml", jobs));
    let said = simulate(&["--width", "100", "--nodes", &nodes, "--job", &jobs]);
    said.map_err(|error| error.replace(&format!("{}/", folder.display()), ""))
}

#[test]
fn the_map_shows_who_is_where_and_what_waits_and_why() {
    let text =
        simulate(&["--width", "100", "--nodes", "@nodes.yaml", "--job", "@jobs.yaml"]).expect("an answer");
    let expected = "\
2 of 3 jobs placed; 28 of 48 GPUs used on 9 nodes

hall-1
  a       AAAA AAAA ....
  b       AAAA AAAA ----
hall-2
  lone-0  BBBBBBBB
  lone-1  BBBB....
  lone-2  xxxxxxxx
";
    assert!(text.starts_with(expected), "{text}");
    assert!(
        text.contains("\nA  research/llama  2 units, 16 GPUs on 4 nodes in 2 NvlinkDomains (gb200)\n"),
        "{text}"
    );
    assert!(text.contains("TrainingJob research/huge is not placed: "), "{text}");
    assert!(text.contains("\n  what to do: "), "{text}");
}

#[test]
fn manifests_of_a_cluster_bring_their_pods_along() {
    let text = simulate(&["--width", "100", "--nodes", "@manifests.yaml"]).expect("an answer");
    let expected = "\
0 of 0 jobs placed; 3 of 16 GPUs used on 2 nodes

all nodes  ###..... ........

. free   # used by others
";
    assert_eq!(text, expected);
}

#[test]
fn json_holds_plans_and_reasons() {
    let text = simulate(&["--nodes", "@nodes.yaml", "--job", "@jobs.yaml", "-o", "json"]).expect("an answer");
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    let jobs = answer["jobs"].as_array().expect("jobs");
    let placed: Vec<_> = jobs.iter().map(|job| (job["name"].as_str(), job["placed"].as_bool())).collect();
    assert_eq!(
        placed,
        [(Some("llama"), Some(true)), (Some("chat"), Some(true)), (Some("huge"), Some(false))]
    );
    let unit = &jobs[0]["units"][0];
    assert_eq!((unit["role"].as_str(), unit["class"].as_str()), (Some("worker"), Some("gb200")));
    let nodes = unit["nodes"].as_array().expect("nodes");
    assert!(
        !nodes.is_empty()
            && nodes.iter().all(|node| node.as_str().is_some_and(|name| name.starts_with("rack")))
    );
    let reason = &jobs[2]["reason"];
    assert!(
        reason["code"].is_string() && reason["remedy"].as_str().is_some_and(|text| !text.is_empty()),
        "{reason}"
    );
}

#[test]
fn the_picture_stands_alone_and_names_jobs_and_nodes() {
    let svg = simulate(&["--nodes", "@nodes.yaml", "--job", "@jobs.yaml", "-o", "svg"]).expect("an answer");
    assert!(svg.starts_with("<svg xmlns=") && svg.trim_end().ends_with("</svg>"), "{svg}");
    for part in [
        "<title>rack-a-01: research/llama 4</title>",
        "serving/chat",
        "not ready",
        "research/huge is not placed",
    ] {
        assert!(svg.contains(part), "{part} is missing");
    }
    let opened = svg.matches("<g>").count();
    assert_eq!((opened, svg.matches("</g>").count()), (9, 9));
    assert!(!svg.contains("href"), "nothing is loaded from elsewhere");
}

#[test]
fn generated_racks_are_nvlink_domains_where_the_class_has_them() {
    let text = simulate(&["--width", "100", "--generate", "racks=2,nodes=18,gpus=4,class=gb200"])
        .expect("an answer");
    let row = ["...."; 18].join(" ");
    let expected = format!(
        "0 of 0 jobs placed; 0 of 144 GPUs used on 36 nodes\n\nblock-1\n  rack-01  {row}\n  rack-02  {row}\n"
    );
    assert!(text.starts_with(&expected), "{text}");
}

const NODES: &str = "- {name: n, gpus: 8, product: NVIDIA-H100-80GB-HBM3}";
const GANG: &str = "{apiVersion: muster.dev/v1alpha1, kind: Gang, metadata: {name: g, namespace: a}, spec: {classes: [h100], roles: [{name: w, devices: 8, units: {min: 1, max: 1}, template: {spec: {containers: [{name: c, image: i}]}}}]}}";

/// Editors on Windows begin a file with a byte-order mark.
#[test]
fn a_byte_order_mark_is_no_part_of_a_file() {
    let read = |name: &str| std::fs::read_to_string(file(name)).expect("a file of the tests");
    let marked = |name: &str| format!("\u{feff}{}", read(name));
    let plain = simulate_texts("plain", &read("nodes.yaml"), &read("jobs.yaml"));
    assert_eq!(simulate_texts("marked", &marked("nodes.yaml"), &marked("jobs.yaml")), plain);
    assert!(plain.is_ok(), "{plain:?}");
}

#[test]
fn every_mistake_is_named_with_file_document_field_and_remedy() {
    let job = |change: fn(String) -> String| change(GANG.to_owned());
    // (nodes, jobs, parts of what is said)
    let cases: Vec<(&str, String, &[&str])> = vec![
        ("[", String::new(), &["nodes.yaml, document 1 is not YAML", "check the indentation"]),
        ("", String::new(), &["there are no nodes", "--generate"]),
        ("kind: Deployment", String::new(), &["nodes.yaml, document 1 (Deployment): kind", "--job"]),
        ("name: n", String::new(), &["nodes.yaml, document 1: kind: it is missing", "count: 18"]),
        ("- {count: 2, name: n}", String::new(), &["entry 1: name:", "%02d"]),
        ("- {name: n, gpu: 8}", String::new(), &["entry 1: gpu: there is no such field"]),
        ("- {name: n, gpus: many}", String::new(), &["entry 1: gpus:", "many"]),
        ("- {name: n, memory: 1Tx}", String::new(), &["entry 1: memory:", "64Gi"]),
        ("- {name: n}\n- {name: n}", String::new(), &["entry 2: there are two nodes named n"]),
        (
            "{kind: Node, metadata: {name: n}}",
            String::new(),
            &["(Node n): status.allocatable: it is missing"],
        ),
        (
            "{kind: Node, metadata: {name: n}, status: {allocatable: {cpu: four}}}",
            String::new(),
            &["(Node n): status.allocatable", "four"],
        ),
        (NODES, "kind: CronTab".into(), &["jobs.yaml, document 1 (CronTab): kind", "TrainingJob"]),
        (NODES, "spec: {}".into(), &["jobs.yaml, document 1: kind: it is missing"]),
        (NODES, job(|gang| gang.replace("name: g, ", "")), &["(Gang): metadata.name: it is missing"]),
        (NODES, format!("{GANG}\n---\n{GANG}"), &["jobs.yaml, document 2 (Gang g)", "a/g is given twice"]),
        (
            NODES,
            job(|gang| gang.replace("devices: 8", "devices: eight")),
            &["(Gang g): spec.roles[0].devices:", "eight"],
        ),
        (
            NODES,
            job(|gang| gang.replace("devices", "device")),
            &["(Gang g): spec.roles", "device: there is no such field"],
        ),
        (
            NODES,
            job(|gang| gang.replace("units: {min: 1, max: 1}, ", "")),
            &["(Gang g): spec.roles[0]", "`units`"],
        ),
    ];
    for (at, (nodes, jobs, parts)) in cases.iter().enumerate() {
        let said = simulate_texts(&format!("mistake-{at}"), nodes, jobs).expect_err("a mistake");
        for part in *parts {
            assert!(said.contains(part), "case {at}: {part:?} is not in {said:?}");
        }
    }
    for (given, part) in [
        ("racks=2", "nodes is missing"),
        ("racks=x,nodes=1,gpus=1", "racks must be a number"),
        ("racks=2,nodes=1,gpus=1,class=z80", "\"z80\" is not in the catalogue"),
        ("rows=2", "\"rows\" is unknown"),
        ("racks=100000,nodes=100000,gpus=8", "more than 200000"),
    ] {
        let said = simulate(&["--generate", given]).expect_err("a mistake");
        assert!(said.contains(part), "{given}: {said}");
    }
}

#[test]
fn mistakes_that_the_operator_would_find_are_reasons_not_errors() {
    for (change, code, part) in [
        (("classes: [h100]", "classes: [z80]"), "Invalid", "\"z80\" does not exist"),
        (("devices: 8", "devices: 16"), "NoNodeFits", "too small"),
        (("units: {min: 1, max: 1}", "units: {min: 9, max: 9}"), "InsufficientCapacity", "at least 9"),
    ] {
        let text = simulate_texts(&format!("reason-{code}"), NODES, &GANG.replace(change.0, change.1))
            .expect("an answer");
        assert!(text.contains(&format!("Gang a/g is not placed: {code}")), "{code}: {text}");
        assert!(text.contains(part) && text.contains("what to do: "), "{part}: {text}");
    }
    let suspended = GANG.replace("classes", "suspend: true, classes");
    let text = simulate_texts("suspended", NODES, &suspended).expect("an answer");
    assert!(text.contains("is not placed: Suspended"), "{text}");
}

#[test]
fn queues_and_priorities_are_demanded_only_where_some_are_given() {
    let gang = GANG.replace("spec: {classes", "spec: {queue: research, classes");
    assert!(simulate_texts("no-queues", NODES, &gang).expect("an answer").starts_with("1 of 1 job placed"));
    let queue = "{apiVersion: muster.dev/v1alpha1, kind: Queue, metadata: {name: other}, spec: {}}";
    let text = simulate_texts("queues", NODES, &format!("{gang}\n---\n{queue}")).expect("an answer");
    assert!(text.contains("is not placed: QueueUnknown"), "{text}");
}

#[test]
fn higher_priority_is_placed_first_whatever_the_order_of_the_files() {
    let first = GANG.replace("name: g,", "name: low,");
    let second = GANG
        .replace("name: g,", "name: high,")
        .replace("spec: {classes", "spec: {priorityClassName: five, classes");
    let class = "{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: five}, value: 5}";
    let text = simulate_texts("priority", NODES, &format!("{first}\n---\n{second}\n---\n{class}"))
        .expect("an answer");
    assert!(text.contains("A  a/high") && text.contains("Gang a/low is not placed"), "{text}");
}

#[test]
fn a_case_is_answered_in_the_shared_form() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("case");
    std::fs::create_dir_all(&folder).expect("a folder for the test's files");
    let path = folder.join("case.jsonl");
    // 3 + 1 free nodes: a pair must share a rack, so one unit of two fits, not two.
    let case = r#"{"name": "pairs", "levels": ["rack", "node"], "shapes": {"w": {"gpu": 8}},
        "nodes": [{"name": "a", "at": ["r"], "free": {"gpu": 8}}, {"name": "b", "at": ["r"], "free": {"gpu": 8}},
                  {"name": "c", "at": ["r"], "free": {"gpu": 8}}, {"name": "d", "at": ["s"], "free": {"gpu": 8}}],
        "gangs": [{"name": "g", "order": ["units", "domains:rack"], "roles": [{"name": "w", "shape": "w", "pods": 2,
                   "min": 1, "max": 2, "segments": [{"pods": 2, "level": "rack", "mode": "Required"}]}]},
                  {"name": "h", "order": ["units"], "roles": [{"name": "w", "shape": "w", "pods": 3, "min": 1, "max": 1}]}]}"#;
    std::fs::write(&path, case.replace('\n', " ") + "\n").expect("a file of the test");
    let text = simulate(&["--case", &path.display().to_string(), "-o", "json"]).expect("an answer");
    let answer: Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(answer["vector"], serde_json::json!({ "g": [1, 1], "h": null }));
    assert_eq!(answer["plan"]["g"]["w"].as_array().map(Vec::len), Some(1));
    assert_eq!((&answer["plan"]["h"], answer["reason"]["h"].is_string()), (&Value::Null, true));
    std::fs::write(&path, "{\"name\": \"x\"}\n").expect("a file of the test");
    let said = simulate(&["--case", &path.display().to_string()]).expect_err("a mistake");
    assert!(said.contains("case.jsonl") && said.contains("missing field `levels`"), "{said}");
}

#[test]
fn all_shared_cases_reach_their_optimum() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/cases/placement");
    let Ok(files) = std::fs::read_dir(&folder) else {
        eprintln!("SKIPPED: no placement cases beside the project");
        return;
    };
    let mut wrong = Vec::new();
    let mut judged = 0;
    for path in files.map(|file| file.expect("a readable folder").path()) {
        let answers = simulate(&["--case", &path.display().to_string(), "-o", "json"]).expect("answers");
        let cases = std::fs::read_to_string(&path).expect("a readable file");
        for (case, answer) in cases.lines().zip(answers.lines()) {
            let case: Value = serde_json::from_str(case).expect("a case");
            let answer: Value = serde_json::from_str(answer).expect("an answer");
            assert_eq!(case["name"], answer["name"]);
            let gangs = case["gangs"]
                .as_array()
                .expect("gangs")
                .iter()
                .zip(case["expected"].as_array().expect("expected"));
            for (gang, expected) in gangs {
                let name = gang["name"].as_str().expect("a name");
                let best = if expected["feasible"] == true { &expected["best"] } else { &Value::Null };
                if answer["vector"][name] != *best && case["bound"] != true {
                    wrong.push(format!(
                        "{} {name}: {} instead of {best}",
                        case["name"], answer["vector"][name]
                    ));
                }
                judged += 1;
            }
        }
    }
    assert!(wrong.is_empty() && judged > 0, "{} of {judged}:\n{}", wrong.len(), wrong.join("\n"));
}

/// Two 8-GPU nodes of one rack; the second says so under another spine.
const SPLIT_RACK: &str = "
- {name: a, gpus: 8, product: NVIDIA-H100-80GB-HBM3, labels: {network.topology.nvidia.com/spine: s0, network.topology.nvidia.com/leaf: l0}}
- {name: b, gpus: 8, product: NVIDIA-H100-80GB-HBM3, labels: {network.topology.nvidia.com/spine: s1, network.topology.nvidia.com/leaf: l0}}
";

#[test]
fn labels_that_contradict_each_other_are_said_aloud() {
    let text = simulate_texts("contradiction", SPLIT_RACK, "").expect("an answer");
    let line = text.lines().find(|line| line.starts_with("the labels of nodes contradict")).expect("a line");
    for part in ["network.topology.nvidia.com/leaf=l0", "spine=s0 on a", "spine=s1 on b"] {
        assert!(line.contains(part), "{line}");
    }
}

#[test]
fn what_a_template_asks_in_vain_is_refused_or_noted() {
    let job = |name: &str, spec: &str| {
        format!(
            "---\napiVersion: muster.dev/v1alpha1\nkind: TrainingJob\nmetadata: {{name: {name}}}\nspec:\n  \
             parallelism: {{tensor: 8}}\n  template: {{spec: {{containers: [{{name: c}}], {spec}}}}}\n"
        )
    };
    let jobs = [
        job("gated", "schedulingGates: [{name: g}]"),
        job(
            "spread",
            "topologySpreadConstraints: [{maxSkew: 1, topologyKey: k, whenUnsatisfiable: ScheduleAnyway}]",
        ),
    ];
    let text = simulate_texts("template", SPLIT_RACK, &jobs.concat()).expect("an answer");
    assert!(
        text.contains(
            "default/gated is not placed: Invalid\n  spec.template.spec.schedulingGates: must not be set"
        ),
        "{text}"
    );
    let note = "default/spread: note: spec.template.spec.topologySpreadConstraints[0]: not considered";
    assert!(text.contains(note), "{text}");
}

#[test]
fn gangs_of_a_group_keep_apart_and_what_would_help_is_said_of_all_of_them() {
    let gang = |name: &str| {
        format!(
            "---\napiVersion: muster.dev/v1alpha1\nkind: Gang\nmetadata: {{name: {name}}}\nspec:\n  \
             classes: [h100]\n  roles: [{{name: server, devices: 4, units: {{min: 1, max: 1}}, \
             template: {{spec: {{containers: [{{name: c, image: i}}]}}}}}}]\n  \
             rules: {{spread: [{{role: server, level: Node, mode: Required, group: web}}]}}\n"
        )
    };
    let text = simulate_texts("group", NODES, &[gang("first"), gang("second")].concat()).expect("an answer");
    for said in [
        "1 of 2 jobs placed",
        "default/second is not placed: RuleUnmet",
        "at most 1 server units of group web in a Node",
        "take away spec.rules.spread[0].group",
        "set spec.rules.spread[0].units to 2 instead of 1, in all gangs of group web",
        "set spec.rules.spread[0].mode to Preferred, in all gangs of group web",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
}

/// The reason of the only job, as JSON.
fn reason(name: &str, nodes: &str, jobs: &str) -> Value {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder for the test's files");
    let write = |file: &str, text: &str| {
        std::fs::write(folder.join(file), text).expect("a file of the test");
        folder.join(file).display().to_string()
    };
    let (nodes, jobs) = (write("nodes.yaml", nodes), write("jobs.yaml", jobs));
    let text = simulate(&["--nodes", &nodes, "--job", &jobs, "-o", "json"]).expect("an answer");
    let answer: Value = serde_json::from_str(&text).expect("one JSON object");
    answer["jobs"][0]["reason"].clone()
}

/// The sentences of what would let a job run.
fn sentences(reason: &Value) -> Vec<&str> {
    let changes = reason["changes"].as_array().expect("changes");
    changes.iter().map(|change| change["sentence"].as_str().expect("a sentence")).collect()
}

/// Two racks of two nodes; in each, one node is used by a pod.
const HALF_USED: &str = "
- {name: a, gpus: 8, product: NVIDIA-H100-80GB-HBM3, labels: {network.topology.nvidia.com/spine: s, network.topology.nvidia.com/leaf: r0}}
- {name: b, gpus: 8, product: NVIDIA-H100-80GB-HBM3, labels: {network.topology.nvidia.com/spine: s, network.topology.nvidia.com/leaf: r0}}
- {name: c, gpus: 8, product: NVIDIA-H100-80GB-HBM3, labels: {network.topology.nvidia.com/spine: s, network.topology.nvidia.com/leaf: r1}}
- {name: d, gpus: 8, product: NVIDIA-H100-80GB-HBM3, labels: {network.topology.nvidia.com/spine: s, network.topology.nvidia.com/leaf: r1}}
- {name: e, gpus: 8, product: NVIDIA-H200, labels: {network.topology.nvidia.com/spine: s, network.topology.nvidia.com/leaf: r2}}
- {name: f, gpus: 8, product: NVIDIA-H200, labels: {network.topology.nvidia.com/spine: s, network.topology.nvidia.com/leaf: r2}}
---
kind: Pod
metadata: {name: p}
spec: {nodeName: a, containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]}
---
kind: Pod
metadata: {name: q}
spec: {nodeName: c, containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 8}}}]}
";

#[test]
fn what_would_let_a_gang_run_is_said_in_its_own_fields() {
    let pair = GANG.replace(
        "units: {min: 1, max: 1}",
        "podsPerUnit: 2, units: {min: 1, max: 1}, segments: [{pods: 2, level: Rack, mode: Required}]",
    );
    let said = reason("changes-gang", HALF_USED, &pair);
    let said = sentences(&said);
    assert_eq!(
        said,
        [
            "free 8 GPUs for 1 more w pod in Rack s/r0",
            "allow another accelerator class: add h200 to spec.classes",
            "relax a level: set spec.roles[w].segments[0].level to Block instead of Rack",
            "make a rule a wish: set spec.roles[w].segments[0].mode to Preferred",
        ]
    );
    let text = simulate_texts("changes-text", HALF_USED, &pair).expect("an answer");
    for line in [
        "  it would run after this: free 8 GPUs for 1 more w pod in Rack s/r0\n",
        "  or after this: allow another accelerator class: add h200 to spec.classes\n",
    ] {
        assert!(text.contains(line), "{line:?}: {text}");
    }
}

#[test]
fn what_would_let_a_training_job_run_is_said_in_its_own_fields() {
    let job = "apiVersion: muster.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: t}\nspec:\n  \
               accelerator: {classes: [h100]}\n  parallelism: {tensor: 8, data: 4}\n  \
               placement: {job: {within: Rack, mode: Required}}\n  \
               template: {spec: {containers: [{name: c}]}}\n";
    let said = reason("changes-job", HALF_USED, job);
    assert_eq!(
        said["changes"],
        serde_json::json!([{
            "kind": "Fewer", "role": "worker", "units": 1, "field": "spec.elastic.minData", "to": 1,
            "sentence": "be content with fewer replicas: set spec.elastic.minData to 1 instead of 4",
        }]),
        "{said:#}"
    );
}

#[test]
fn a_trace_is_a_gang_a_line_each_whole_or_not_at_all() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("trace");
    std::fs::create_dir_all(&folder).expect("a folder for the test's files");
    let path = folder.join("trace.csv");
    let ask = |text: &str| {
        std::fs::write(&path, text).expect("a file of the test");
        let generate = "racks=2,nodes=2,gpus=8,class=h100";
        simulate(&["--generate", generate, "--trace", &path.display().to_string(), "-n", "a", "-o", "json"])
            .map_err(|error| error.replace(&format!("{}/", folder.display()), ""))
    };
    let text = ask("name,pods,gpus_per_pod,class,count\nlarge,3,8,h100,\nsmall,1,4,,3\n").expect("an answer");
    let answer: Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(answer["summary"], "3 of 4 jobs placed; 32 of 32 GPUs used on 4 nodes");
    let names: Vec<&str> =
        answer["jobs"].as_array().expect("jobs").iter().filter_map(|job| job["name"].as_str()).collect();
    assert_eq!(names, ["large", "small-0", "small-1", "small-2"]);
    assert_eq!(answer["jobs"][3]["reason"]["code"], "InsufficientCapacity");
    let said = ask("name,pods,gpus_per_pod\na,1,8\na,1,8\n").expect_err("a name twice");
    assert!(said.starts_with("trace.csv, line 3, column name: a/a is given twice"), "{said}");
    let said = ask("name,pods,gpus_per_pod\na,x,8\n").expect_err("no number");
    assert!(said.starts_with("trace.csv, line 2, column pods: \"x\""), "{said}");
}
