//! The fence: what former leaders, tenants and our own account may not write.

use anyhow::{Context, Result, bail, ensure};
use http::{Method, Request};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ResourceQuota, Service};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use muster_api::{AcceleratorClass, JobPhase, Queue, Topology, labels};
use muster_controllers::answer::{self, Answer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

use super::basics::{live, reason};
use crate::World;
use crate::hook::{Hook, When};
use crate::jobs::job;
use crate::world::{Backend, SYSTEM};

const MINUTE: Duration = Duration::from_secs(60);
const LEASE: &str = "muster";

/// A write that a leader makes, as a dry run.
struct Attempt {
    what: &'static str,
    method: Method,
    path: String,
    body: Value,
}

impl Attempt {
    fn new(what: &'static str, method: Method, path: &str, body: Value) -> Self {
        Self { what, method, path: format!("{path}?dryRun=All"), body }
    }

    fn delete(what: &'static str, path: &str) -> Self {
        // Where a deletion has a body, the query does not count.
        Self::new(what, Method::DELETE, path, json!({ "dryRun": ["All"] }))
    }

    async fn by(&self, client: &Client) -> Result<(), kube::Error> {
        let content = match self.method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = Request::builder()
            .method(&self.method)
            .uri(&self.path)
            .header("content-type", content)
            .body(self.body.to_string().into_bytes())
            .map_err(kube::Error::HttpError)?;
        client.request::<Value>(request).await.map(drop)
    }

    async fn passes(&self, client: &Client, who: &str) -> Result<()> {
        self.by(client).await.with_context(|| format!("{} by {who} is refused", self.what))
    }

    async fn is_fenced_off(&self, client: &Client, who: &str) -> Result<()> {
        match self.by(client).await {
            Err(kube::Error::Api(status)) if matches!(answer::of(&status), Answer::Denied(_)) => Ok(()),
            other => bail!("{} by {who} is not denied by the fence: {other:?}", self.what),
        }
    }

    async fn is_refused_by(&self, client: &Client, policy: &str) -> Result<()> {
        let prefix = format!("ValidatingAdmissionPolicy '{policy}' ");
        match self.by(client).await {
            Err(kube::Error::Api(status)) if status.message.contains(&prefix) => Ok(()),
            other => bail!("{} is not refused by {policy}: {other:?}", self.what),
        }
    }
}

/// Before an operator has ever led there is no Lease. The fence then refuses pods of gangs, and nobody else's: the
/// operator's own pod must be able to start, and kubelets and users delete what they like.
pub async fn without_a_lease_only_gangs_are_fenced(world: &World) -> Result<()> {
    let operator = world.start("one");
    world.submit(&job("stays", 8)).await?;
    world.phase("stays", JobPhase::Running, 2 * MINUTE).await?;
    operator.stop().await;
    delete_lease(world).await?;
    let pod = json!({
        "metadata": { "generateName": "plain-" },
        "spec": { "containers": [{ "name": "main", "image": "example/image" }] },
    });
    let of_pods = format!("/api/v1/namespaces/{}/pods", world.namespace);
    Attempt::new("a plain pod", Method::POST, &of_pods, pod.clone()).passes(&world.admin, "a user").await?;
    let theirs = live(world).await?.first().context("a pod of the gang")?.name_any();
    let theirs = format!("{of_pods}/{theirs}");
    let label = json!({ "metadata": { "annotations": { "a": "b" } } });
    Attempt::new("a change of a gang's pod", Method::PATCH, &theirs, label)
        .passes(&world.admin, "a user")
        .await?;
    Attempt::delete("its deletion", &theirs).passes(&world.admin, "a user").await?;
    let mut ours = pod;
    ours["metadata"] = json!({
        "generateName": "ours-",
        "labels": { labels::GANG: "stays" },
        "ownerReferences": [owner("stays")],
    });
    Attempt::new("a pod of a gang", Method::POST, &of_pods, ours)
        .is_fenced_off(&world.account_client(), "the operator")
        .await
}

/// A tenant's objects are named as the fence is, and whatever refuses them says so: the leader goes on leading.
pub async fn a_job_named_like_the_fence_disturbs_nobody(world: &World) -> Result<()> {
    let mut operator = world.start("one");
    let epoch = operator.leading().await?;
    // Scopes are not foreseen: the API server refuses the fourth pod, by its name.
    let scoped = json!({
        "metadata": { "name": "muster-fence" },
        "spec": { "hard": { "pods": "3" }, "scopes": ["NotTerminating"] },
    });
    world.create::<ResourceQuota>(scoped).await?;
    world.submit(&job("muster-fence", 64)).await?;
    world
        .eventually("the refusal that quotes the name", 2 * MINUTE, || async {
            let status = world.job("muster-fence").await?.status.unwrap_or_default();
            let message = status.message.unwrap_or_default();
            let quoted = status.reason.as_deref() == Some("PodRefused") && message.contains("muster-fence");
            Ok(if quoted { Ok(()) } else { Err(message) })
        })
        .await?;
    super::crash::delete(world, "muster-fence").await?;
    world.api::<ResourceQuota>().delete("muster-fence", &DeleteParams::default()).await?;
    // On a real server there is no such account, and the answer to the question about its pods says so.
    world.submit(&job("account", 8).with("template.spec.serviceAccountName", "muster-fence")).await?;
    if world.backend == Backend::Cluster {
        let status = reason(world, "account").await?.status.unwrap_or_default();
        let message = status.message.unwrap_or_default();
        ensure!(message.contains("\"muster-fence\""), "the account is not quoted: {message}");
    }
    world.submit(&job("label", 8).with("template.metadata.labels", json!({ "a": "muster-fence" }))).await?;
    world.submit(&job("plain", 8)).await?;
    world.phase("plain", JobPhase::Running, 2 * MINUTE).await?;
    let now = operator.shown.borrow().epoch;
    ensure!(now == Some(epoch), "the leader of epoch {epoch} stepped down: now {now:?}");
    operator.stop().await;
    Ok(())
}

/// Another pod holds the Lease: the former leader's is refused each kind of write, although it names the right epoch;
/// outside a pod the epoch decides; and when the Lease is released nobody writes.
pub async fn a_former_leader_is_refused_every_kind_of_write(world: &World) -> Result<()> {
    let (old, _) = world.start_in_pod("muster-old");
    world.submit(&job("fenced", 16).with("framework", "Mpi")).await?;
    world.phase("fenced", JobPhase::Running, 2 * MINUTE).await?;
    old.kill().await;
    create_reported(world).await?;
    let (mut new, _) = world.start_in_pod("muster-new");
    let epoch = new.leading().await?;
    let attempts = every_kind_of_write(world, epoch).await?;
    let (former, leader) = (world.pod_client("muster-old"), world.pod_client("muster-new"));
    let outside = world.account_client();
    for attempt in &attempts {
        attempt.passes(&leader, "the leader").await?;
        attempt.is_fenced_off(&former, "the former leader").await?;
    }
    for attempt in every_kind_of_write(world, epoch - 1).await?.iter().filter(|a| a.bears_the_epoch()) {
        attempt.is_fenced_off(&outside, "a former leader outside a pod").await?;
    }
    for attempt in attempts.iter().filter(|a| a.bears_the_epoch()) {
        attempt.passes(&outside, "a leader outside a pod").await?;
    }
    new.stop().await;
    for attempt in &attempts {
        attempt.is_fenced_off(&leader, "who released the Lease").await?;
        attempt.is_fenced_off(&outside, "who released the Lease, outside a pod").await?;
    }
    delete_reported(world).await
}

impl Attempt {
    fn bears_the_epoch(&self) -> bool {
        matches!(self.what, "POST pods" | "PATCH gangs/status")
    }
}

/// All kinds of writes of a leader of this epoch, on what the job "fenced" has.
async fn every_kind_of_write(world: &World, epoch: i64) -> Result<Vec<Attempt>> {
    let of = |kind: &str| format!("/api/v1/namespaces/{}/{kind}", world.namespace);
    let ours = |kind: &str| format!("/apis/muster.dev/v1alpha1/namespaces/{}/{kind}", world.namespace);
    let pod = first::<Pod>(world).await?;
    let service = first::<Service>(world).await?;
    let map = first::<ConfigMap>(world).await?;
    let gang = copy(&world.gang("fenced").await?, epoch)?;
    let touched = json!({ "metadata": { "labels": { "touched": "yes" } } });
    let (pods, services, maps, gangs, jobs) =
        (of("pods"), of("services"), of("configmaps"), ours("gangs"), ours("trainingjobs"));
    let named = |kind: &str, object: &str| format!("{kind}/{object}");
    let status = json!({ "status": { "epoch": epoch } });
    let said = json!({ "status": { "message": "said" } });
    let observed = json!({ "status": { "observedGeneration": 1 } });
    let released = json!({ "metadata": { "finalizers": null } });
    let (pod_name, service_name, map_name) = (pod.name_any(), service.name_any(), map.name_any());
    Ok(vec![
        Attempt::new("POST pods", Method::POST, &pods, copy(&pod, epoch)?),
        Attempt::new("PATCH pods", Method::PATCH, &named(&pods, &pod_name), released.clone()),
        Attempt::delete("DELETE pods", &named(&pods, &pod_name)),
        Attempt::new("POST services", Method::POST, &services, copy(&service, epoch)?),
        Attempt::new("PATCH services", Method::PATCH, &named(&services, &service_name), touched.clone()),
        Attempt::new("POST configmaps", Method::POST, &maps, copy(&map, epoch)?),
        Attempt::delete("DELETE configmaps", &named(&maps, &map_name)),
        Attempt::new("POST gangs", Method::POST, &gangs, gang),
        Attempt::new("PATCH gangs", Method::PATCH, &named(&gangs, "fenced"), touched.clone()),
        Attempt::new("PATCH gangs, finalizers", Method::PATCH, &named(&gangs, "fenced"), released),
        Attempt::delete("DELETE gangs", &named(&gangs, "fenced")),
        Attempt::new("PATCH gangs/status", Method::PATCH, &named(&gangs, "fenced/status"), status),
        Attempt::delete("DELETE trainingjobs", &named(&jobs, "fenced")),
        Attempt::new("PATCH trainingjobs/status", Method::PATCH, &named(&jobs, "fenced/status"), said),
        Attempt::new("PATCH queues/status", Method::PATCH, &reported("queues", REPORTED), observed.clone()),
        Attempt::new(
            "PATCH topologies/status",
            Method::PATCH,
            &reported("topologies", TOPOLOGY),
            observed.clone(),
        ),
        Attempt::new(
            "PATCH acceleratorclasses/status",
            Method::PATCH,
            &reported("acceleratorclasses", REPORTED),
            observed,
        ),
    ])
}

fn reported(kind: &str, name: &str) -> String {
    format!("/apis/muster.dev/v1alpha1/{kind}/{name}/status")
}

/// An object of a kind that belongs to a gang.
async fn first<K>(world: &World) -> Result<K>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + DeserializeOwned
        + Clone
        + Debug,
{
    let found = world.api::<K>().list(&ListParams::default().labels(labels::GANG)).await?;
    found.items.into_iter().next().with_context(|| format!("no {} of a gang", K::kind(&())))
}

/// An object once more, under another name and this epoch.
fn copy<K: Serialize + ResourceExt>(object: &K, epoch: i64) -> Result<Value> {
    let mut copy = serde_json::to_value(object)?;
    copy["metadata"] = json!({
        "name": format!("{}-copy", object.name_any()),
        "labels": object.labels(),
        "annotations": { labels::EPOCH: epoch.to_string() },
        "ownerReferences": object.owner_references(),
    });
    if let Some(copy) = copy.as_object_mut() {
        copy.remove("status");
    }
    Ok(copy)
}

fn owner(gang: &str) -> Value {
    json!({ "apiVersion": "muster.dev/v1alpha1", "kind": "Gang", "name": gang, "uid": "a-uid", "controller": true })
}

const REPORTED: &str = "fenced";
/// The only name that a Topology may have.
const TOPOLOGY: &str = "default";

/// One object of each kind whose status is counted.
async fn create_reported(world: &World) -> Result<()> {
    // What a scenario that failed left.
    delete_reported(world).await?;
    let create = PostParams::default();
    let queue: Queue = serde_json::from_value(json!({ "metadata": { "name": REPORTED }, "spec": {} }))?;
    Api::all(world.admin.clone()).create(&create, &queue).await?;
    // The levels that the nodes of the scenarios have.
    let levels = json!([
        { "name": "Block", "keys": ["fabric.topograph.run/tier-1"] },
        { "name": "Rack", "keys": ["fabric.topograph.run/tier-0"] },
    ]);
    let topology: Topology =
        serde_json::from_value(json!({ "metadata": { "name": TOPOLOGY }, "spec": { "levels": levels } }))?;
    Api::all(world.admin.clone()).create(&create, &topology).await?;
    let class: AcceleratorClass = serde_json::from_value(json!({
        "metadata": { "name": REPORTED },
        "spec": {
            "resource": "example.com/card", "productLabel": "example.com/product", "products": ["Card"],
            "memory": "80Gi", "computeUnits": 100, "gpusPerNode": 8,
        },
    }))?;
    Api::all(world.admin.clone()).create(&create, &class).await?;
    Ok(())
}

async fn delete_reported(world: &World) -> Result<()> {
    async fn delete<K>(world: &World, name: &str) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
            + DeserializeOwned
            + Clone
            + Debug,
    {
        match Api::<K>::all(world.admin.clone()).delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(drop).map_err(Into::into),
        }
    }
    delete::<Queue>(world, REPORTED).await?;
    delete::<Topology>(world, TOPOLOGY).await?;
    delete::<AcceleratorClass>(world, REPORTED).await
}

/// Statuses of Queues, Topologies and AcceleratorClasses are the operator's, too.
pub async fn statuses_of_the_cluster_are_written(world: &World) -> Result<()> {
    let operator = world.start("one");
    create_reported(world).await?;
    world
        .eventually("three statuses", 2 * MINUTE, || async {
            let client = world.admin.clone();
            let queue = Api::<Queue>::all(client.clone()).get(REPORTED).await?.status.is_some();
            let topology = Api::<Topology>::all(client.clone()).get(TOPOLOGY).await?.status.is_some();
            let class = Api::<AcceleratorClass>::all(client).get(REPORTED).await?.status.is_some();
            let seen = format!("queue: {queue}, topology: {topology}, class: {class}");
            Ok(if queue && topology && class { Ok(()) } else { Err(seen) })
        })
        .await?;
    operator.stop().await;
    delete_reported(world).await
}

/// A quiet leader is frozen and its Lease deleted: the next one waits as for a silent holder, and no epoch is used twice.
/// What it remembers of the Lease tells it, or what gangs and pods bear.
pub async fn a_lease_that_was_deleted_goes_on_above(world: &World) -> Result<()> {
    let (mut quiet, freeze) = world.start_in_pod("muster-quiet");
    let first = quiet.leading().await?;
    freeze.send_replace(true);
    let looked = Arc::new(Notify::new());
    let notify = looked.clone();
    let hook: Hook = Arc::new(move |seen| {
        if seen.when == When::After && seen.method == Method::GET && seen.path.ends_with("/leases/muster") {
            notify.notify_one();
        }
        Box::pin(async {})
    });
    let (mut standby, _) = world.start_frozen_later("second", hook);
    tokio::time::timeout(MINUTE, looked.notified()).await.context("the second never looked at the Lease")?;
    let waited = delete_lease(world).await?;
    let second = standby.leading().await?;
    ensure!(second > first, "the epoch of the quiet leader is used again: {first}, {second}");
    let duration = world.options("").lease.duration;
    ensure!(
        waited.elapsed() >= duration,
        "it led after {:?}, while the old one could write",
        waited.elapsed()
    );
    quiet.kill().await;
    // The third has never seen a Lease.
    world.submit(&job("bears", 8)).await?;
    world.phase("bears", JobPhase::Running, 2 * MINUTE).await?;
    standby.kill().await;
    let waited = delete_lease(world).await?;
    let mut fresh = world.start("third");
    let third = fresh.leading().await?;
    ensure!(third > second, "the epoch that gangs and pods bear is used again: {second}, {third}");
    ensure!(
        waited.elapsed() >= duration,
        "it led after {:?}, while the old one could write",
        waited.elapsed()
    );
    fresh.stop().await;
    Ok(())
}

/// Deletes the Lease; returns when.
async fn delete_lease(world: &World) -> Result<tokio::time::Instant> {
    let leases: Api<Lease> = Api::namespaced(world.admin.clone(), SYSTEM);
    match leases.delete(LEASE, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        other => drop(other?),
    }
    Ok(tokio::time::Instant::now())
}

/// An administrator may delete a Gang and take off its finalizer; the plan is the operator's.
pub async fn nobody_else_writes_plans(world: &World) -> Result<()> {
    let operator = world.start("one");
    world.submit(&job("planned", 8)).await?;
    world.phase("planned", JobPhase::Running, 2 * MINUTE).await?;
    let gang = format!("/apis/muster.dev/v1alpha1/namespaces/{}/gangs/planned", world.namespace);
    let status = json!({ "status": { "phase": "Pending", "plan": null } });
    Attempt::new("a plan by an administrator", Method::PATCH, &format!("{gang}/status"), status)
        .is_refused_by(&world.admin, "muster-plans")
        .await?;
    let released = json!({ "metadata": { "finalizers": null } });
    Attempt::new("the finalizer", Method::PATCH, &gang, released)
        .passes(&world.admin, "an administrator")
        .await?;
    Attempt::delete("the Gang", &gang).passes(&world.admin, "an administrator").await?;
    operator.stop().await;
    Ok(())
}

/// What the roles of the operator's account allow and it has no business with is refused.
pub async fn the_operator_keeps_to_its_own(world: &World) -> Result<()> {
    let (mut operator, _) = world.start_in_pod("muster-one");
    let epoch = operator.leading().await?;
    world.submit(&job("own", 8).with("framework", "Mpi")).await?;
    world.phase("own", JobPhase::Running, 2 * MINUTE).await?;
    let us = world.pod_client("muster-one");
    let of = |kind: &str| format!("/api/v1/namespaces/{}/{kind}", world.namespace);
    let ours = first::<Pod>(world).await?;
    let foreign: Pod = world
        .create(json!({
            "metadata": { "name": "foreign", "labels": { "app": "db" } },
            "spec": { "containers": [{ "name": "main", "image": "example/image" }] },
        }))
        .await?;
    world
        .create::<Service>(json!({ "metadata": { "name": "db" }, "spec": { "ports": [{ "port": 1 }] } }))
        .await?;
    world.create::<ConfigMap>(json!({ "metadata": { "name": "settings" }, "data": { "a": "b" } })).await?;
    let without = |change: &dyn Fn(&mut Value)| -> Result<Value> {
        let mut pod = copy(&ours, epoch)?;
        change(&mut pod);
        Ok(pod)
    };
    let orphan = without(&|pod| pod["metadata"]["ownerReferences"] = json!([]))?;
    let bare = without(&|pod| pod["metadata"]["labels"] = json!({}))?;
    let deployed = without(&|pod| pod["metadata"]["ownerReferences"][0]["kind"] = json!("ReplicaSet"))?;
    let pod = format!("{}/{}", of("pods"), ours.name_any());
    let meta = |field: &str, value: Value| json!({ "metadata": { field: value } });
    let image = json!({ "spec": { "activeDeadlineSeconds": 1 } });
    let stray = meta("finalizers", json!(["example.com/other"]));
    let taken = meta("labels", json!({ labels::MANAGED_BY: labels::MANAGED_BY_VALUE }));
    let theirs = format!("{}/{}", of("pods"), foreign.name_any());
    let kube_system = "/api/v1/namespaces/kube-system/pods";
    let gone = json!({ "dryRun": ["All"] });
    for (what, method, path, body) in [
        ("a pod of nobody", Method::POST, of("pods"), orphan),
        ("a pod without our label", Method::POST, of("pods"), bare),
        ("a pod of a ReplicaSet", Method::POST, of("pods"), deployed),
        ("a pod in kube-system", Method::POST, kube_system.to_owned(), copy(&ours, epoch)?),
        ("another spec", Method::PATCH, pod.clone(), image),
        ("another label", Method::PATCH, pod.clone(), meta("labels", json!({ "a": "b" }))),
        ("another annotation", Method::PATCH, pod.clone(), meta("annotations", json!({ "a": "b" }))),
        ("no owner", Method::PATCH, pod.clone(), meta("ownerReferences", Value::Null)),
        ("a finalizer more", Method::PATCH, pod.clone(), stray),
        ("a change of somebody's pod", Method::PATCH, theirs.clone(), meta("labels", json!({ "a": "b" }))),
        ("the deletion of somebody's pod", Method::DELETE, theirs, gone.clone()),
    ] {
        Attempt::new(what, method, &path, body).is_refused_by(&us, "muster-restraint-pods").await?;
    }
    let service = json!({ "metadata": { "name": "x" }, "spec": { "ports": [{ "port": 1 }] } });
    for (what, method, path, body) in [
        ("somebody's Service", Method::POST, of("services"), service),
        ("a change of somebody's Service", Method::PATCH, of("services/db"), taken),
        ("the deletion of somebody's ConfigMap", Method::DELETE, of("configmaps/settings"), gone),
    ] {
        Attempt::new(what, method, &path, body).is_refused_by(&us, "muster-restraint-objects").await?;
    }
    let mut here = copy(&ours, epoch)?;
    here["spec"] = restricted();
    // Not a dry run: those it may make in its own namespace.
    let path = format!("/api/v1/namespaces/{SYSTEM}/pods");
    let here = Attempt { what: "a pod in the operator's namespace", method: Method::POST, path, body: here };
    here.is_refused_by(&us, "muster-restraint-pods").await?;
    Attempt::new("our finalizer off", Method::PATCH, &pod, meta("finalizers", Value::Null))
        .passes(&us, "the operator")
        .await?;
    Attempt::delete("a pod of ours away", &pod).passes(&us, "the operator").await?;
    operator.stop().await;
    Ok(())
}

/// What the operator's namespace asks of a pod.
fn restricted() -> Value {
    json!({
        "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
        "containers": [{
            "name": "main",
            "image": "example/image",
            "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
        }],
    })
}

/// Whatever part of the fence is missing, the operator does not lead and says which; a refusal by something else that
/// quotes the fence is no proof.
pub async fn the_proof_finds_each_gap(world: &World) -> Result<()> {
    if world.backend == Backend::Cluster {
        // A real server goes by what it knew of its policies a moment ago: when a gap is open cannot be told.
        return Ok(());
    }
    let bindings = Api::<DynamicObject>::all_with(world.admin.clone(), &policies("Binding"));
    for (binding, words) in [
        ("muster-fence", "a pod of epoch"),
        ("muster-fence-plans", "a plan under epoch"),
        ("muster-fence-objects", "a change of pods, Services or ConfigMaps"),
        ("muster-fence-gangs", "a change of Gangs or TrainingJobs"),
    ] {
        bindings.delete(binding, &DeleteParams::default()).await?;
        in_trouble_until_installed(world, binding, words).await?;
    }
    // The rule about the writing pod.
    let policy = Api::<DynamicObject>::all_with(world.admin.clone(), &policies(""));
    let fence = policy.get(answer::FENCE_POLICY).await?;
    let mut rules = fence.data["spec"]["validations"].clone();
    rules.as_array_mut().context("the rules of the fence")?.pop();
    let patch = Patch::Merge(json!({ "spec": { "validations": rules } }));
    policy.patch(answer::FENCE_POLICY, &PatchParams::default(), &patch).await?;
    in_trouble_until_installed(world, "writer", "what another pod writes").await?;
    // A house rule that quotes the fence refuses the probe, and the binding is gone.
    let rule: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": "house" },
        "spec": {
            "matchConstraints": { "resourceRules": [
                { "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] },
            ] },
            "validations": [{
                "expression": format!("request.namespace != '{SYSTEM}'"),
                "message": "resource Pod/muster-system/muster-fence-probe was blocked", "reason": "Forbidden",
            }],
        },
    }))?;
    policy.create(&PostParams::default(), &rule).await?;
    let bind: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": "house" }, "spec": { "policyName": "house", "validationActions": ["Deny"] },
    }))?;
    bindings.create(&PostParams::default(), &bind).await?;
    bindings.delete("muster-fence", &DeleteParams::default()).await?;
    let operator = world.start("house");
    trouble(world, &operator.shown, "whether the fence holds is not known").await?;
    operator.stop().await;
    bindings.delete("house", &DeleteParams::default()).await?;
    muster_playground::install::install(&world.admin).await?;
    // In a pod, under a name that is not the pod's.
    let (mistaken, _) = world.start_freezable(world.options("another"), world.pod_client("muster-one"));
    trouble(world, &mistaken.shown, "--identity must be the pod's name").await?;
    mistaken.stop().await;
    Ok(())
}

fn policies(part: &str) -> kube::core::ApiResource {
    let kind = format!("ValidatingAdmissionPolicy{part}");
    let gvk = kube::core::GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", &kind);
    let plural = if part.is_empty() {
        "validatingadmissionpolicies".into()
    } else {
        format!("{}s", kind.to_lowercase())
    };
    kube::core::ApiResource::from_gvk_with_plural(&gvk, &plural)
}

/// An operator does not lead and says why, until what is missing is there again.
async fn in_trouble_until_installed(world: &World, identity: &str, words: &str) -> Result<()> {
    let mut operator = world.start(identity);
    trouble(world, &operator.shown, words).await?;
    muster_playground::install::install(&world.admin).await?;
    operator.leading().await?;
    operator.stop().await;
    Ok(())
}

async fn trouble(
    world: &World,
    shown: &tokio::sync::watch::Receiver<muster_controllers::Snapshot>,
    words: &str,
) -> Result<()> {
    world
        .eventually(&format!("trouble: {words}"), MINUTE, || async {
            let shown = shown.borrow();
            ensure!(shown.epoch.is_none(), "it leads without a proof of: {words}");
            let trouble = shown.trouble.clone().unwrap_or_default();
            Ok(if trouble.contains(words) { Ok(()) } else { Err(trouble) })
        })
        .await
}
