//! `muster simulate --cluster` and `kubectl muster simulate` on an in-memory API server: what is counted, that nothing
//! is written, and what is said where access is missing.

use clap::Parser;
use k8s_openapi::{
    api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use kubesim::api::{ApiServer, Fault};
use kubesim::clock::SystemClock;
use muster_api::{Gang, GangPlan, gang_plan, labels, names, plan_codec};
use muster_model::{Plan, Uid, UnitId, plan::PlacedUnit, plan::Placement};
use muster_operator::plugin;
use muster_operator::simulate::{Args, answer_on};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn server() -> ApiServer {
    ApiServer::new(Arc::new(SystemClock))
}

/// Creates an object, and gives it its status if it has one.
async fn put<K>(api: &Api<K>, object: Value) -> K
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + serde::Serialize + Debug,
{
    let typed: K = serde_json::from_value(object.clone()).expect("an object of its kind");
    let made = api.create(&PostParams::default(), &typed).await.expect("it is created");
    let Some(status) = object.get("status") else { return made };
    let patch = Patch::Merge(json!({ "status": status }));
    api.patch_status(&made.name_any(), &PatchParams::default(), &patch).await.expect("its status is written")
}

async fn install_crds(client: &Client) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in muster_api::all_crds() {
        api.create(&PostParams::default(), &crd).await.expect("the definition is created");
    }
}

/// Nodes `n0`, `n1`, … of eight H100 each.
async fn nodes(client: &Client, count: usize) {
    let api: Api<Node> = Api::all(client.clone());
    for at in 0..count {
        let node = json!({
            "metadata": { "name": format!("n{at}"), "labels": { "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3" } },
            "status": {
                "allocatable": { "cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8" },
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        });
        put(&api, node).await;
    }
}

fn pod(name: &str, node: &str, gpus: u32) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "nodeName": node,
            "containers": [{ "name": "c", "image": "i", "resources": { "limits": { "nvidia.com/gpu": gpus.to_string() } } }],
        },
        "status": { "phase": "Running" },
    })
}

/// A gang of one role `w` with pods of eight GPUs, one unit of so many pods.
fn gang(name: &str, pods: u32) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "classes": ["h100"],
            "roles": [{
                "name": "w",
                "devices": 8,
                "podsPerUnit": pods,
                "units": { "min": 1, "max": 1 },
                "template": { "spec": { "containers": [{ "name": "c", "image": "i" }] } },
            }],
        },
    })
}

/// The plan of such a gang on these nodes.
fn plan(nodes: &[&str]) -> plan_codec::PlanStatus {
    let unit = PlacedUnit {
        id: UnitId { role: "w".into(), index: 0 },
        class: Some("h100".into()),
        nodes: nodes.iter().map(|node| (*node).into()).collect(),
    };
    let placement = Placement { units: vec![unit], spares: BTreeMap::new() };
    plan_codec::encode(&Plan::next(None, 1, placement, &BTreeSet::new(), false))
}

/// Where the file with this text is.
fn file(name: &str, text: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("live");
    std::fs::create_dir_all(&folder).expect("a folder for the test's files");
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a file of the test");
    path
}

/// A file of manifests, each a Gang.
fn jobs(name: &str, gangs: &[Value]) -> String {
    let documents = gangs.iter().map(|gang| {
        let mut gang = gang.clone();
        if gang["kind"].is_null() {
            gang["kind"] = json!("Gang");
            gang["apiVersion"] = json!("muster.dev/v1alpha1");
        }
        gang.to_string()
    });
    file(name, &documents.collect::<Vec<_>>().join("\n---\n")).display().to_string()
}

fn args(arguments: &[&str]) -> Args {
    let all = ["simulate", "--cluster"].iter().chain(arguments);
    Cli::try_parse_from(all).unwrap_or_else(|error| panic!("{error}")).args
}

/// What is said as JSON.
async fn simulate(client: &Client, arguments: &[&str]) -> Result<Value, String> {
    let arguments: Vec<&str> = arguments.iter().copied().chain(["-o", "json"]).collect();
    let text = answer_on(&args(&arguments), client, false).await.map_err(|error| format!("{error:#}"))?;
    Ok(serde_json::from_str(&text).expect("one JSON object"))
}

/// The nodes of a job, by its position.
fn placed(answer: &Value, job: usize) -> Vec<&str> {
    let units = answer["jobs"][job]["units"].as_array().map_or(&[][..], Vec::as_slice);
    let nodes = units.iter().flat_map(|unit| unit["nodes"].as_array().expect("nodes"));
    nodes.map(|node| node.as_str().expect("a name")).collect()
}

fn said(answer: &Value) -> String {
    answer["notes"].to_string()
}

#[tokio::test]
async fn jobs_take_what_pods_and_plans_leave_and_nothing_is_written() {
    let server = server();
    let client = server.client("user");
    install_crds(&client).await;
    nodes(&client, 6).await;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let gangs: Api<Gang> = Api::default_namespaced(client.clone());
    // n0: a pod of others uses 3 of 8. n1: a gang's plan, and its live pod, which counts once.
    put(&pods, pod("other", "n0", 3)).await;
    let mut held = gang("held", 1);
    held["status"] = json!({ "phase": "Running", "plan": plan(&["n1"]) });
    let held = put(&gangs, held).await;
    let uid = Uid(held.uid().unwrap_or_default());
    let mut live = pod(&names::pod("held", &uid, None, 0, 1, 0), "n1", 8);
    live["metadata"]["labels"] =
        json!({ labels::ROLE: "w", labels::UNIT: "0", labels::INCARNATION: "1", labels::INDEX: "0" });
    live["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "muster.dev/v1alpha1", "kind": "Gang", "name": "held", "uid": held.uid(), "controller": true,
    }]);
    put(&pods, live).await;
    // n2 and n3: a plan in parts, of which no pod exists yet.
    let large = put(&gangs, gang("large", 2)).await;
    let (status, chunks) =
        plan_codec::split(&plan(&["n2", "n3"]), 1, "large", &Uid(large.uid().unwrap_or_default()))
            .expect("parts");
    assert!(!chunks.is_empty() && status.runs.is_empty(), "the plan is elsewhere");
    let parts: Api<GangPlan> = Api::default_namespaced(client.clone());
    for chunk in chunks {
        put(&parts, gang_plan::object(&large, &chunk)).await;
    }
    let status = Patch::Merge(json!({ "status": { "phase": "Placed", "plan": status } }));
    gangs.patch_status("large", &PatchParams::default(), &status).await.expect("its status is written");
    // A gang that ended holds nothing, and neither does its pod.
    let mut ended = gang("ended", 1);
    ended["status"] = json!({ "phase": "Succeeded", "plan": plan(&["n4"]) });
    put(&gangs, ended).await;
    let mut done = pod("done", "n4", 8);
    done["status"] = json!({ "phase": "Succeeded" });
    put(&pods, done).await;

    let mut small = gang("small", 1);
    small["spec"]["roles"][0]["devices"] = json!(5);
    let path = jobs("left.yaml", &[gang("pair", 2), small, gang("late", 1)]);
    let revision = server.revision();
    server.reset_stats();
    let answer = simulate(&client, &["--job", &path]).await.expect("an answer");

    assert_eq!(placed(&answer, 0), ["n4", "n5"]);
    assert_eq!(placed(&answer, 1), ["n0"]);
    assert_eq!(answer["jobs"][2]["reason"]["code"], "InsufficientCapacity");
    // 3 of others, 8 and 16 of gangs, 16 and 5 of the jobs.
    assert_eq!(answer["summary"], "2 of 3 jobs placed; 48 of 48 GPUs used on 6 nodes");
    assert_eq!(answer["notes"], json!([]));
    let change = &answer["jobs"][2]["reason"]["changes"][0];
    assert_eq!((&change["kind"], &change["gpus"]), (&json!("Free"), &json!(8)), "{change}");
    let stats = server.stats();
    assert!(stats.len() > 8, "{stats:?}");
    assert!(stats.keys().all(|key| key.verb == "list" && !key.is_write()), "{stats:?}");
    assert_eq!(server.revision(), revision, "nothing was written");
}

#[tokio::test]
async fn jobs_go_where_their_volumes_can_be_used() {
    let server = server();
    let client = server.client("user");
    install_crds(&client).await;
    nodes(&client, 3).await;
    let reachable = json!({ "required": { "nodeSelectorTerms": [
        { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n2"] }] },
    ] } });
    let volume = json!({
        "metadata": { "name": "disk" },
        "spec": {
            "accessModes": ["ReadWriteMany"], "capacity": { "storage": "1Gi" }, "hostPath": { "path": "/d" },
            "nodeAffinity": reachable,
        },
    });
    put::<PersistentVolume>(&Api::all(client.clone()), volume).await;
    let claim = json!({
        "metadata": { "name": "data" },
        "spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": "disk",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    put::<PersistentVolumeClaim>(&Api::default_namespaced(client.clone()), claim).await;
    let with = |name: &str, claim: &str| {
        let mut gang = gang(name, 1);
        gang["spec"]["roles"][0]["template"]["spec"]["volumes"] =
            json!([{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }]);
        gang
    };
    // One that waits in the cluster for a claim that is not there takes no room.
    put(&Api::<Gang>::default_namespaced(client.clone()), with("waits", "absent")).await;
    let path = jobs("volumes.yaml", &[with("bound", "data"), with("again", "data"), with("none", "absent")]);
    let answer = simulate(&client, &["--job", &path]).await.expect("an answer");
    assert_eq!(placed(&answer, 0), ["n2"]);
    assert_eq!(answer["jobs"][1]["reason"]["code"], "InsufficientCapacity", "{answer:#}");
    assert_eq!(answer["jobs"][2]["reason"]["code"], "ClaimNotReady", "{answer:#}");
    assert!(said(&answer).contains("\\\"absent\\\": it does not exist"), "{answer:#}");
    server.reset_stats();
    simulate(&client, &["--job", &path]).await.expect("an answer");
    assert!(server.stats().keys().all(|key| !key.is_write()), "{:?}", server.stats());
}

#[tokio::test]
async fn kinds_that_are_not_installed_count_as_empty_and_are_named() {
    let server = server();
    let client = server.client("user");
    nodes(&client, 1).await;
    let mut job = gang("job", 1);
    job["spec"]["queue"] = json!("research");
    let answer = simulate(&client, &["--job", &jobs("bare.yaml", &[job])]).await.expect("an answer");
    assert_eq!(placed(&answer, 0), ["n0"]);
    for kind in ["Gang", "Topology", "AcceleratorClass", "Queue"] {
        assert!(said(&answer).contains(&format!("does not know the kind {kind}:")), "{kind}: {answer:#}");
    }
}

#[tokio::test]
async fn gangs_that_wait_go_before_and_names_that_are_there_are_not_counted_twice() {
    let server = server();
    let client = server.client("user");
    install_crds(&client).await;
    nodes(&client, 3).await;
    let gangs: Api<Gang> = Api::default_namespaced(client.clone());
    let mut held = gang("held", 1);
    held["status"] = json!({ "phase": "Running", "plan": plan(&["n0"]) });
    put(&gangs, held).await;
    put(&gangs, gang("waits", 1)).await;
    put(&gangs, gang("mine", 2)).await;
    let path = jobs("waiting.yaml", &[gang("held", 1), gang("mine", 2), gang("small", 1)]);
    let answer = simulate(&client, &["--job", &path]).await.expect("an answer");
    assert_eq!(answer["jobs"][0]["reason"]["code"], "AlreadyPlaced", "{answer:#}");
    // `waits` is older and takes one of the two free nodes; `mine` of the file stands for `mine` of the cluster.
    assert_eq!(answer["jobs"][1]["reason"]["code"], "InsufficientCapacity");
    assert_eq!(placed(&answer, 2).len(), 1);
    let said = said(&answer);
    assert!(
        said.contains("Gang default/waits of the cluster waits, too") && !said.contains("mine"),
        "{said}"
    );
    assert_eq!(answer["summary"], "1 of 3 jobs placed; 24 of 24 GPUs used on 3 nodes");

    let mut first = gang("small", 1);
    first["spec"]["priorityClassName"] = json!("urgent");
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": "urgent" }, "value": 10,
    });
    let path = jobs("urgent.yaml", &[class, first, gang("mine", 2)]);
    let answer = simulate(&client, &["--job", &path]).await.expect("an answer");
    assert_eq!(placed(&answer, 0).len(), 1, "a higher priority goes first: {answer:#}");
}

#[tokio::test]
async fn queues_and_quotas_of_the_cluster_bind() {
    let server = server();
    let client = server.client("user");
    install_crds(&client).await;
    nodes(&client, 2).await;
    let quotas: Api<ResourceQuota> = Api::default_namespaced(client.clone());
    let quota = json!({
        "metadata": { "name": "small" },
        "spec": { "hard": { "requests.nvidia.com/gpu": "8" } },
        "status": { "hard": { "requests.nvidia.com/gpu": "8" }, "used": { "requests.nvidia.com/gpu": "0" } },
    });
    put(&quotas, quota).await;
    let mut queued = gang("queued", 1);
    queued["spec"]["queue"] = json!("research");
    let path = jobs("bound.yaml", &[gang("large", 2), gang("fits", 1), queued]);
    let answer = simulate(&client, &["--job", &path]).await.expect("an answer");
    assert_eq!(answer["jobs"][0]["reason"]["code"], "QuotaExceeded", "{answer:#}");
    assert_eq!(placed(&answer, 1).len(), 1);
    assert_eq!(answer["jobs"][2]["reason"]["code"], "QueueUnknown");
    let elsewhere = simulate(&client, &["--job", &path, "-n", "other"]).await.expect("an answer");
    assert_eq!(placed(&elsewhere, 0).len(), 2, "the quota is of another namespace: {elsewhere:#}");
}

#[tokio::test]
async fn lists_are_read_page_by_page_and_anew_where_the_pages_are_forgotten() {
    let server = server();
    let client = server.client("user");
    install_crds(&client).await;
    nodes(&client, 10).await;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    for at in 0..501 {
        put(&pods, pod(&format!("p-{at}"), &format!("n{}", at % 9), 0)).await;
    }
    put(&pods, pod("z-last", "n9", 8)).await;
    let path = jobs("pages.yaml", &[gang("job", 10)]);
    let lists = |server: &ApiServer| -> u64 {
        let stats = server.stats();
        let pods = stats.iter().filter(|(key, _)| key.resource == "pods" && key.code == 200);
        pods.map(|(_, count)| count).sum()
    };
    server.reset_stats();
    let answer = simulate(&client, &["--job", &path]).await.expect("an answer");
    assert_eq!(lists(&server), 2);
    assert_eq!(
        answer["jobs"][0]["reason"]["code"], "InsufficientCapacity",
        "the last page counts: {answer:#}"
    );
    server.set_fault(Box::new(|info| {
        (info.resource == "pods" && info.query.contains_key("continue")).then(|| Fault::Fail {
            code: 410,
            reason: "Expired".into(),
            message: "too old".into(),
        })
    }));
    server.reset_stats();
    let again = simulate(&client, &["--job", &path]).await.expect("an answer");
    assert_eq!(
        (lists(&server), &again["summary"]),
        (2, &answer["summary"]),
        "the first page, then all at once"
    );
}

#[tokio::test]
async fn what_may_not_be_listed_is_named_with_what_to_do() {
    let server = server();
    let client = server.client("user");
    install_crds(&client).await;
    nodes(&client, 1).await;
    let path = jobs("denied.yaml", &[gang("job", 1)]);
    let deny = |resource: &'static str, code: u16, reason: &'static str| {
        server.set_fault(Box::new(move |info| {
            (info.resource == resource).then(|| Fault::Fail {
                code,
                reason: reason.into(),
                message: format!("{resource} denied"),
            })
        }));
    };
    for (resource, code, reason, parts) in [
        ("nodes", 403, "Forbidden", ["nodes cannot be listed", "`list` on nodes,", "--context"]),
        ("gangs", 403, "Forbidden", ["gangs cannot be listed", "`list` on gangs.muster.dev", "--kubeconfig"]),
        ("pods", 401, "Unauthorized", ["pods cannot be listed", "log in again", "pods denied"]),
    ] {
        deny(resource, code, reason);
        let said = simulate(&client, &["--job", &path]).await.expect_err("no access");
        for part in parts {
            assert!(said.contains(part), "{part:?} is not in {said:?}");
        }
    }
    deny("resourcequotas", 403, "Forbidden");
    let answer = simulate(&client, &["--job", &path]).await.expect("an answer");
    assert!(placed(&answer, 0).len() == 1 && said(&answer).contains("quotas are not heeded"), "{answer:#}");
    server.clear_fault();
    let empty = self::server();
    let said = simulate(&empty.client("user"), &[]).await.expect_err("no nodes");
    assert!(said.contains("has no nodes"), "{said}");
}

#[tokio::test]
async fn the_plugin_asks_the_same() {
    let server = server();
    let client = server.client("user");
    nodes(&client, 1).await;
    let path = jobs("plugin.yaml", &[gang("job", 1)]);
    let arguments = ["kubectl-muster", "simulate", "-f", &path, "-n", "research", "-o", "json"];
    let asked = plugin::Cli::try_parse_from(arguments).expect("arguments").simulated();
    let text = answer_on(&asked, &client, false).await.expect("an answer");
    let answer: Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!((placed(&answer, 0), &answer["jobs"][0]["namespace"]), (vec!["n0"], &json!("research")));
}

/// Runs one of our binaries without any kubeconfig but the ones given.
fn refused(binary: &str, arguments: &[&str]) -> String {
    let home = file("no-config", "").with_file_name("home");
    let done = Command::new(binary).args(arguments).env_clear().env("HOME", home).output().expect("it runs");
    assert!(!done.status.success() && done.stdout.is_empty());
    String::from_utf8_lossy(&done.stderr).into_owned()
}

#[test]
fn without_a_cluster_the_flag_and_the_remedy_are_named() {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{ "name": "a", "cluster": { "server": "https://127.0.0.1:1" } }],
        "users": [{ "name": "a", "user": { "token": "none" } }],
        "contexts": [{ "name": "a", "context": { "cluster": "a", "user": "a", "namespace": "team" } }],
    });
    let config = file("config.yaml", &config.to_string()).display().to_string();
    let muster = env!("CARGO_BIN_EXE_muster");
    let plugin = env!("CARGO_BIN_EXE_kubectl-muster");
    let cases: [(&str, &[&str], &[&str]); 6] = [
        (muster, &["simulate", "--cluster"], &["muster: no cluster found", "--kubeconfig", "KUBECONFIG"]),
        (plugin, &["simulate", "-f", "-"], &["kubectl muster: no cluster found", "--kubeconfig"]),
        (
            muster,
            &["simulate", "--cluster", "--kubeconfig", "/none/such"],
            &["--kubeconfig /none/such: cannot be read"],
        ),
        (
            plugin,
            &["simulate", "-f", "-", "--kubeconfig", &config, "--context", "b"],
            &["--context b", "kubectl config get-contexts"],
        ),
        (
            muster,
            &["simulate", "--cluster", "--context", "b"],
            &["--context b: the kubeconfig cannot be used"],
        ),
        (
            muster,
            &["simulate", "--cluster", "--kubeconfig", &config],
            &["cluster https://127.0.0.1:1", "cannot be listed", "that answers"],
        ),
    ];
    for (binary, arguments, parts) in cases {
        let said = refused(binary, arguments);
        for part in parts {
            assert!(said.contains(part), "{arguments:?}: {part:?} is not in {said:?}");
        }
    }
}

#[test]
fn a_live_cluster_and_a_described_one_exclude_each_other() {
    for (arguments, part) in [
        (&["--cluster", "--nodes", "n.yaml"][..], "--nodes"),
        (&["--cluster", "--generate", "racks=1,nodes=1,gpus=1"], "--generate"),
        (&["--cluster", "--case", "c.jsonl"], "--case"),
        (&["--kubeconfig", "k"], "--cluster"),
        (&["--context", "c"], "--cluster"),
        (&["--case", "c.jsonl", "--trace", "t.csv"], "--trace"),
    ] {
        let all = ["simulate"].iter().chain(arguments);
        let said = Cli::try_parse_from(all).err().expect("a contradiction").to_string();
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
    for arguments in [
        &["--cluster", "--kubeconfig", "k", "--context", "c", "-n", "x", "--job", "j", "--trace", "t"][..],
        &["--nodes", "n", "--generate", "racks=1,nodes=1,gpus=1", "--job", "j"],
    ] {
        assert!(Cli::try_parse_from(["simulate"].iter().chain(arguments)).is_ok(), "{arguments:?}");
    }
}
