//! Suspension, deadlines, deletion, binding by kube-scheduler, environments.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Node, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use muster_api::{Gang, GangPhase, JobPhase, TrainingJob, labels};
use serde_json::json;
use std::time::Duration;

use super::basics::{env, live};
use super::crash::delete;
use crate::jobs::job;
use crate::{World, oracle};

const MINUTE: Duration = Duration::from_secs(60);

/// A suspended job gives everything back; resumed, it runs again.
pub async fn suspend_and_resume(world: &World) -> Result<()> {
    let operator = world.start("one");
    world.submit(&job("rests", 16)).await?;
    world.phase("rests", JobPhase::Running, 2 * MINUTE).await?;
    world.patch_job("rests", &json!({ "spec": { "suspend": true } })).await?;
    world.phase("rests", JobPhase::Suspended, MINUTE).await?;
    world
        .eventually("no pods", 2 * MINUTE, || async {
            let pods = world.pods().await?.len();
            Ok(if pods == 0 { Ok(()) } else { Err(format!("{pods} pods")) })
        })
        .await?;
    // The nodes are free for another.
    world.submit(&job("between", 16).running_for("2s")).await?;
    world.phase("between", JobPhase::Succeeded, 2 * MINUTE).await?;
    // While it is suspended its size may change.
    let edit = json!({ "spec": { "suspend": false, "parallelism": { "data": 8 } } });
    world.patch_job("rests", &edit).await?;
    let job = world.phase("rests", JobPhase::Running, 2 * MINUTE).await?.status.unwrap_or_default();
    ensure!(job.gpus == 8, "it holds {} GPUs instead of 8", job.gpus);
    ensure!(job.restarts == 0, "a suspension was counted as a restart");
    oracle::check(world).await?;
    operator.stop().await;
    Ok(())
}

/// Another template reaches the pods of a unit when they start anew, whoever leads then, and those of no other unit.
pub async fn a_unit_keeps_its_template_until_it_starts_anew(world: &World) -> Result<()> {
    let template = |image: &str| json!({ "spec": { "containers": [{ "name": "server", "image": image }] } });
    let operator = world.start("one");
    world
        .create::<Gang>(json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "Gang", "metadata": { "name": "serves" },
            "spec": {
                "roles": [{ "name": "server", "template": template("example/one"), "units": { "min": 2, "max": 2 } }],
                "outcome": { "policy": "Never" },
            },
        }))
        .await?;
    let gangs = world.api::<Gang>();
    runs(world, "serves").await?;
    let before = live(world).await?;
    let role = json!({
        "name": "server", "template": template("example/two"), "units": { "min": 2, "max": 2 },
        "revision": "2", "revisions": [{ "name": "1", "template": template("example/one") }],
    });
    let patch = json!({ "spec": { "roles": [role] } });
    gangs.patch("serves", &PatchParams::default(), &Patch::Merge(&patch)).await?;
    world
        .eventually("the status says who runs what", MINUTE, || async {
            let said = valid_words(&world.gang("serves").await?);
            let told = said.contains("that run from template \"1\": 2; template \"2\" is used when");
            Ok(if told { Ok(()) } else { Err(said) })
        })
        .await?;
    ensure!(images(world).await? == ["example/one", "example/one"], "the edit alone changed pods");
    // The next leader knows only what the objects say.
    operator.stop().await;
    let operator = world.start("two");
    let unit = |pod: &Pod| pod.labels().get(labels::UNIT).cloned().unwrap_or_default();
    let (kept, gone) = if unit(&before[0]) == "0" { (0, 1) } else { (1, 0) };
    world.api::<Pod>().delete(&before[gone].name_any(), &DeleteParams::default()).await?;
    world
        .eventually("one unit has the new template", 2 * MINUTE, || async {
            let images = images(world).await?;
            Ok(if images == ["example/one", "example/two"] { Ok(()) } else { Err(format!("{images:?}")) })
        })
        .await?;
    runs(world, "serves").await?;
    let after = live(world).await?;
    ensure!(
        after.iter().any(|pod| pod.uid() == before[kept].uid()),
        "the other unit's pod is not the one it was"
    );
    for pod in &after {
        let revision = pod.labels().get(labels::REVISION).map(String::as_str);
        let wanted = if unit(pod) == "0" { "1" } else { "2" };
        ensure!(revision == Some(wanted), "{} says it is of revision {revision:?}", pod.name_any());
    }
    let used = world.gang("serves").await?.status.unwrap_or_default().revisions;
    let used: Vec<_> = used.iter().map(|used| (used.name.as_str(), used.units)).collect();
    ensure!(used == [("1", 1), ("2", 1)], "the status counts {used:?}");
    operator.stop().await;
    Ok(())
}

/// Waits until a Gang runs.
async fn runs(world: &World, name: &str) -> Result<()> {
    world
        .eventually("the gang runs", 2 * MINUTE, || async {
            let status = world.gang(name).await?.status.unwrap_or_default();
            let runs = status.phase == Some(GangPhase::Running);
            Ok(if runs { Ok(()) } else { Err(format!("{:?}: {:?}", status.phase, status.message)) })
        })
        .await
}

fn valid_words(gang: &Gang) -> String {
    let conditions = gang.status.iter().flat_map(|status| &status.conditions);
    conditions.filter(|one| one.type_ == "Valid").map(|one| one.message.clone()).collect()
}

/// The images of all pods that live, sorted.
async fn images(world: &World) -> Result<Vec<String>> {
    let image = |pod: Pod| pod.spec.and_then(|spec| spec.containers.into_iter().next()?.image);
    let mut images: Vec<String> = live(world).await?.into_iter().filter_map(image).collect();
    images.sort();
    Ok(images)
}

/// The job's PriorityClass ranks the gang and is that of its pods.
pub async fn priority_classes_reach_the_pods(world: &World) -> Result<()> {
    let name = format!("high-{}", world.namespace);
    let class: PriorityClass =
        serde_json::from_value(json!({ "metadata": { "name": name }, "value": 1_000 }))?;
    let classes: Api<PriorityClass> = Api::all(world.admin.clone());
    classes.create(&PostParams::default(), &class).await?;
    let operator = world.start("one");
    world.submit(&job("ranks", 8).with("priorityClassName", json!(name))).await?;
    world.phase("ranks", JobPhase::Running, 2 * MINUTE).await?;
    let gang = world.gang("ranks").await?;
    let class = gang.spec.priority_class_name;
    ensure!(class.as_ref() == Some(&name), "the gang's priority class is {class:?}");
    for pod in live(world).await? {
        let class = pod.spec.as_ref().and_then(|spec| spec.priority_class_name.as_deref());
        ensure!(class == Some(name.as_str()), "{} has the class {class:?}", pod.name_any());
    }
    operator.stop().await;
    classes.delete(&name, &DeleteParams::default()).await?;
    Ok(())
}

/// A job that runs for too long fails, and a finished one goes after its time to live.
pub async fn deadline_and_time_to_live(world: &World) -> Result<()> {
    let operator = world.start("one");
    world.submit(&job("slow", 8).with("activeDeadline", "5s")).await?;
    let failed = world.phase("slow", JobPhase::Failed, 2 * MINUTE).await?.status.unwrap_or_default();
    ensure!(failed.reason.as_deref() == Some("DeadlineExceeded"), "{:?}", failed.reason);
    world
        .eventually("its pods go", 2 * MINUTE, || async {
            let pods = world.pods().await?.len();
            Ok(if pods == 0 { Ok(()) } else { Err(format!("{pods} pods")) })
        })
        .await?;
    world.submit(&job("short", 8).running_for("1s").with("ttlAfterFinished", "3s")).await?;
    world
        .eventually("the job goes by itself", 3 * MINUTE, || async {
            let there = world.api::<TrainingJob>().get_opt("short").await?;
            let phase = there.as_ref().and_then(|job| job.status.clone()).and_then(|status| status.phase);
            Ok(if there.is_none() { Ok(()) } else { Err(format!("{phase:?}")) })
        })
        .await?;
    operator.stop().await;
    Ok(())
}

/// Deletion leaves nothing behind: 2,000 pods in well under a minute.
pub async fn deletion_leaves_nothing(world: &World) -> Result<()> {
    let operator = world.start("one");
    // One rank a pod without accelerators: 2,000 small pods.
    let many = job("many", 2_000)
        .with("framework", "DeepSpeed")
        .with("accelerator", json!({ "perPod": 0 }))
        .with("template.spec.containers", json!([{ "name": "trainer", "image": "example/trainer", "resources": { "requests": { "cpu": "10m" } } }]));
    world.submit(&many).await?;
    world.phase("many", JobPhase::Running, 5 * MINUTE).await?;
    ensure!(live(world).await?.len() == 2_000, "not all pods are there");
    ensure!(!world.api::<Service>().list(&ListParams::default()).await?.items.is_empty(), "no Service");
    let begun = tokio::time::Instant::now();
    delete(world, "many").await?;
    // A figure, not a limit: it depends on the machine.
    eprintln!("2,000 pods were gone after {:.1} s", begun.elapsed().as_secs_f64());
    world
        .eventually("Services and ConfigMaps go", MINUTE, || async {
            let services = world.api::<Service>().list(&ListParams::default()).await?.items.len();
            let maps = world.api::<ConfigMap>().list(&ListParams::default()).await?;
            let maps = maps.iter().filter(|map| map.name_any().starts_with("many")).count();
            Ok(if services + maps == 0 {
                Ok(())
            } else {
                Err(format!("{services} Services, {maps} ConfigMaps"))
            })
        })
        .await?;
    operator.stop().await;
    Ok(())
}

/// Pods with volumes go through kube-scheduler, and still to their planned nodes. The plan knows where the volume can
/// be used: of six nodes it takes the two, without trying any other. Until the claim is there it says so.
pub async fn pinned_pods_are_bound_by_the_scheduler(world: &World) -> Result<()> {
    let operator = world.start("one");
    let wanted = job("stores", 16)
        .with(
            "template.spec.volumes",
            json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]),
        )
        .running_for("5s");
    world.submit(&wanted).await?;
    world
        .eventually("the job says what it waits for", MINUTE, || async {
            let status = world.api::<TrainingJob>().get("stores").await?.status.unwrap_or_default();
            let message = status.message.unwrap_or_default();
            let said =
                status.reason.as_deref() == Some("ClaimNotReady") && message.contains("does not exist");
            Ok(if said { Ok(()) } else { Err(message) })
        })
        .await?;
    let nodes: Vec<String> = Api::<Node>::all(world.admin.clone())
        .list(&ListParams::default())
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    let usable = [nodes[2].clone(), nodes[5].clone()];
    let claim = json!({
        "metadata": { "name": "data" },
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": format!("volume-{}", world.namespace),
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    world.volume(&format!("volume-{}", world.namespace), "data", &usable).await?;
    world.create::<PersistentVolumeClaim>(claim).await?;
    let job = world.phase("stores", JobPhase::Running, 3 * MINUTE).await?;
    let generation = job.status.unwrap_or_default().generation;
    ensure!(generation == Some(1), "planned {generation:?} times: other nodes were tried");
    for pod in live(world).await? {
        let spec = pod.spec.clone().unwrap_or_default();
        let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
        ensure!(affinity.is_some(), "{} was not pinned", pod.name_any());
        let node = spec.node_name.unwrap_or_default();
        ensure!(usable.contains(&node), "{} runs on {node}", pod.name_any());
    }
    oracle::check(world).await?;
    world.phase("stores", JobPhase::Succeeded, 3 * MINUTE).await?;
    operator.stop().await;
    Ok(())
}

/// What the API server's admission adds to pods decides about their nodes: a RuntimeClass selects two tainted nodes of
/// four, and tolerates the taint. The template says nothing of it.
pub async fn admission_decides_about_nodes(world: &World) -> Result<()> {
    let operator = world.start("one");
    let nodes = Api::<Node>::all(world.admin.clone());
    let names: Vec<String> =
        nodes.list(&ListParams::default()).await?.iter().map(ResourceExt::name_any).collect();
    let sandboxed = [names[1].clone(), names[3].clone()];
    for name in &sandboxed {
        let taint = json!({ "key": "sandboxed", "value": "yes", "effect": "NoSchedule" });
        let patch = json!({
            "metadata": { "labels": { "sandboxed": "yes" } },
            "spec": { "taints": [taint] },
        });
        nodes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    let class: RuntimeClass = serde_json::from_value(json!({
        "metadata": { "name": format!("sandbox-{}", world.namespace) },
        "handler": "sandbox",
        "scheduling": {
            "nodeSelector": { "sandboxed": "yes" },
            "tolerations": [{ "key": "sandboxed", "operator": "Exists", "effect": "NoSchedule" }],
        },
    }))?;
    let classes = Api::<RuntimeClass>::all(world.admin.clone());
    let class = classes.create(&PostParams::default(), &class).await?.name_any();
    world.submit(&job("plain", 16)).await?;
    world.submit(&job("boxed", 16).with("template.spec.runtimeClassName", class.as_str())).await?;
    for name in ["plain", "boxed"] {
        let job = world.phase(name, JobPhase::Running, 2 * MINUTE).await?;
        let generation = job.status.unwrap_or_default().generation;
        ensure!(generation == Some(1), "{name} was planned {generation:?} times: other nodes were tried");
    }
    for pod in live(world).await? {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        let boxed = pod.name_any().starts_with("boxed");
        ensure!(boxed == sandboxed.contains(&node), "{} runs on {node}", pod.name_any());
    }
    oracle::check(world).await?;
    classes.delete(&class, &DeleteParams::default()).await?;
    operator.stop().await;
    Ok(())
}

/// Every framework's pods get the variables that its launcher reads.
pub async fn frameworks_get_their_environment(world: &World) -> Result<()> {
    let operator = world.start("one");
    for (framework, variables) in [
        ("Torchrun", &["PET_NNODES", "PET_NODE_RANK", "PET_RDZV_ENDPOINT", "MASTER_ADDR"][..]),
        ("Megatron", &["PET_NNODES", "MASTER_ADDR", "WORLD_SIZE"]),
        ("DeepSpeed", &["MASTER_ADDR", "WORLD_SIZE"]),
        ("TorchFT", &["TORCHFT_LIGHTHOUSE", "REPLICA_GROUP_ID", "NUM_REPLICA_GROUPS"]),
        ("Mpi", &["MASTER_ADDR"]),
        ("Plain", &["MUSTER_NODE_RANK", "MUSTER_WORLD_SIZE"]),
    ] {
        let name = framework.to_lowercase();
        world.submit(&job(&name, 16).with("framework", framework)).await?;
        world.phase(&name, JobPhase::Running, 2 * MINUTE).await?;
        let pods: Vec<Pod> = live(world).await?;
        ensure!(pods.len() == 2, "{framework}: {} pods", pods.len());
        for pod in &pods {
            for variable in variables {
                ensure!(env(pod, variable).is_some(), "{framework}: {variable} is missing");
            }
        }
        if ["DeepSpeed", "Mpi"].contains(&framework) {
            let maps = world.api::<ConfigMap>().list(&ListParams::default()).await?;
            let map = maps.iter().find(|map| map.name_any().starts_with(&name)).context("the hostfile")?;
            let hosts = map.data.as_ref().and_then(|data| data.get("hostfile")).context("its text")?;
            ensure!(hosts.lines().count() == 2, "{framework}: hostfile {hosts:?}");
        }
        delete(world, &name).await?;
    }
    operator.stop().await;
    Ok(())
}

/// A job with a hostfile restarts: the new pods find a file that names them.
pub async fn hostfiles_follow_restarts(world: &World) -> Result<()> {
    let operator = world.start("one");
    world.submit(&job("hosts", 16).with("framework", "Mpi")).await?;
    world.phase("hosts", JobPhase::Running, 2 * MINUTE).await?;
    let files = || async {
        let maps = world.api::<ConfigMap>().list(&ListParams::default()).await?;
        let file = |map: ConfigMap| map.data.and_then(|mut data| data.remove("hostfile"));
        anyhow::Ok(maps.into_iter().filter_map(file).collect::<Vec<String>>())
    };
    let before = files().await?;
    let pod = live(world).await?.first().context("a pod")?.name_any();
    world.fleet.finish_pod(&world.namespace, &pod, 1).await?;
    world
        .eventually("the restart", 2 * MINUTE, || async {
            let status = world.job("hosts").await?.status.unwrap_or_default();
            let again = status.restarts == 1 && status.phase == Some(JobPhase::Running);
            Ok(if again { Ok(()) } else { Err(format!("{:?} {:?}", status.phase, status.message)) })
        })
        .await?;
    let pods = live(world).await?;
    let after: Vec<String> = files().await?.into_iter().filter(|file| !before.contains(file)).collect();
    let named = |file: &String| pods.iter().all(|pod| file.contains(&pod.name_any()));
    ensure!(after.iter().any(named), "no new hostfile names the new pods: {after:?}");
    operator.stop().await;
    Ok(())
}

/// A job whose volume is made when its pod is: where, its StorageClass says.
pub async fn claims_wait_for_their_class(world: &World) -> Result<()> {
    let operator = world.start("one");
    let class: StorageClass = serde_json::from_value(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "late" }, "provisioner": "example.com/disk", "volumeBindingMode": "WaitForFirstConsumer",
    }))?;
    let classes: Api<StorageClass> = Api::all(world.admin.clone());
    classes.patch("late", &PatchParams::apply("muster-e2e").force(), &Patch::Apply(&class)).await?;
    let claim = json!({
        "metadata": { "name": "data" },
        "spec": {
            "storageClassName": "late", "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    world.create::<PersistentVolumeClaim>(claim).await?;
    let volumes = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
    world.submit(&job("claims", 8).with("template.spec.volumes", volumes)).await?;
    world
        .eventually("a plan", 2 * MINUTE, || async {
            let gang = world.gang("claims").await.ok().and_then(|gang| gang.status);
            Ok(if gang.as_ref().is_some_and(|gang| gang.plan.is_some()) {
                Ok(())
            } else {
                Err(format!("{gang:?}"))
            })
        })
        .await?;
    operator.stop().await;
    classes.delete("late", &DeleteParams::default()).await?;
    Ok(())
}
