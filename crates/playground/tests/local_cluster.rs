//! The local cluster against what its users rely on. Starts a real Kubernetes: needs Go, and builds for
//! minutes the first time on a machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use muster_playground::binaries;
use muster_playground::cluster::{Error, LocalCluster, Options};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

/// Far longer than anything here takes: reached only by a hang.
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_cluster_serves_guards_reports_and_ends() -> Result<()> {
    let programs = binaries::ensure(|line| eprintln!("{line}")).await?;
    let work = fresh_dir("named")?;
    let options = Options {
        work_dir: Some(work.clone()),
        controllers: "*,-node-lifecycle-controller".into(),
        ..Options::default()
    };
    let cluster = LocalCluster::start(&programs, options).await?;

    let admin = cluster.admin_client().await?;
    serves_pods(&admin).await?;
    guards_what_no_role_allows(&cluster).await?;
    logs_who_wrote(&cluster)?;
    answers_kubectl(&cluster)?;
    reports_a_killed_part_and_ends(cluster).await?;

    ensure!(work.join("logs/kube-apiserver.log").is_file(), "a work folder that was named must stay");
    std::fs::remove_dir_all(work)?;
    Ok(())
}

#[tokio::test]
async fn a_part_that_cannot_start_explains_itself() -> Result<()> {
    let programs = binaries::ensure(|line| eprintln!("{line}")).await?;
    let work = fresh_dir("refused")?;
    let options = Options {
        work_dir: Some(work.clone()),
        apiserver_flags: vec!["--no-such-flag".into()],
        ..Options::default()
    };
    let Err(Error::Part(failure)) = LocalCluster::start(&programs, options).await.map(|_| ()) else {
        anyhow::bail!("a wrong flag must end the API server and with it the start");
    };
    ensure!(failure.part == "kube-apiserver", "{failure}");
    ensure!(failure.to_string().contains("unknown flag: --no-such-flag"), "{failure}");
    std::fs::remove_dir_all(work)?;
    Ok(())
}

/// What a killed owner leaves must end by itself: the example is that owner here.
#[tokio::test]
async fn nothing_outlives_a_killed_owner() -> Result<()> {
    let mut owner = tokio::process::Command::new(example()?)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(owner.stdout.take().context("no stdout")?).lines();
    let mut line =
        async || lines.next_line().await?.context("the example ended before its cluster was ready");
    let (kubeconfig, _kubectl, work) = (line().await?, line().await?, line().await?);
    ensure!(kubeconfig.starts_with(&work), "{kubeconfig} is not in {work}");
    ensure!(processes_naming(&work)? > 0, "no process of {work} runs");

    owner.kill().await?;
    until("every part ends with its owner", async || Ok((processes_naming(&work)? == 0).then_some(())))
        .await?;
    std::fs::remove_dir_all(work)?;
    Ok(())
}

async fn serves_pods(admin: &Client) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    let namespace = object(json!({ "metadata": { "name": "research" } }))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    // Its ServiceAccount comes a moment later, and admission wants it for every pod.
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "research");
    until("the ServiceAccount is there", async || Ok(accounts.get_opt("default").await?)).await?;

    let pods: Api<Pod> = Api::namespaced(admin.clone(), "research");
    let pod = json!({
        "metadata": { "name": "rank-0" },
        "spec": { "nodeName": "node-0", "containers": [{ "name": "trainer", "image": "example/trainer" }] },
    });
    let pod = pods.create(&PostParams::default(), &object(pod)?).await?;
    ensure!(pod.spec.and_then(|s| s.node_name).as_deref() == Some("node-0"), "nodeName must stay as written");
    accounts.create(&PostParams::default(), &object(json!({ "metadata": { "name": "nobody" } }))?).await?;
    Ok(())
}

async fn guards_what_no_role_allows(cluster: &LocalCluster) -> Result<()> {
    let nobody = cluster.service_account_kubeconfig("research", "nobody").await?;
    let pods: Api<Pod> = Api::default_namespaced(nobody.client().await?);
    let refused = pods.list(&ListParams::default()).await;
    let Err(kube::Error::Api(status)) = refused else {
        anyhow::bail!("a ServiceAccount without roles must not list pods: {refused:?}");
    };
    ensure!(status.code == 403, "{status:?}");
    ensure!(status.message.contains("system:serviceaccount:research:nobody"), "{status:?}");

    let mut anonymous = cluster.admin_kubeconfig().config().await?;
    anonymous.auth_info = kube::config::AuthInfo::default();
    let refused = Client::try_from(anonymous)?.apiserver_version().await;
    ensure!(matches!(&refused, Err(kube::Error::Api(s)) if s.code == 401), "{refused:?}");

    let Err(error) = cluster.service_account_kubeconfig("research", "missing").await else {
        anyhow::bail!("there is no ServiceAccount of that name");
    };
    ensure!(error.to_string().contains("research/missing"), "{error}");
    Ok(())
}

fn logs_who_wrote(cluster: &LocalCluster) -> Result<()> {
    let log = std::fs::read_to_string(cluster.audit_log_path().context("no audit log")?)?;
    let events: Vec<Value> = log.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let creations: Vec<_> = events
        .iter()
        .filter(|e| e["verb"] == "create" && e["objectRef"]["resource"] == "pods")
        .map(|e| (e["user"]["username"].as_str(), e["stage"].as_str()))
        .collect();
    ensure!(creations == [(Some("muster-admin"), Some("ResponseComplete"))], "{creations:?}");
    Ok(())
}

fn answers_kubectl(cluster: &LocalCluster) -> Result<()> {
    let output = Command::new(cluster.kubectl_path())
        .arg("--kubeconfig")
        .arg(&cluster.admin_kubeconfig().path)
        .args(["--namespace", "research", "get", "pod", "rank-0", "--output", "jsonpath={.spec.nodeName}"])
        .output()?;
    ensure!(output.stdout == b"node-0", "{output:?}");
    Ok(())
}

async fn reports_a_killed_part_and_ends(cluster: LocalCluster) -> Result<()> {
    let pids = cluster.pids().to_vec();
    ensure!(pids.len() == 4 && pids.iter().all(|(_, pid)| runs(*pid)), "{pids:?}");
    let (part, pid) = *pids.last().context("no parts")?;
    let failed = cluster.failed();
    ensure!(Command::new("kill").args(["-KILL", &pid.to_string()]).status()?.success(), "no {part} to kill");
    let failure = tokio::time::timeout(LIMIT, failed).await?;
    ensure!(failure.part == part && failure.status.contains("signal: 9"), "{failure}");
    ensure!(failure.log.is_file(), "{failure}");

    tokio::time::timeout(LIMIT, cluster.stop()).await?;
    let left: Vec<_> = pids.iter().filter(|(_, pid)| runs(*pid)).collect();
    ensure!(left.is_empty(), "still running after stop: {left:?}");
    Ok(())
}

fn object<T: DeserializeOwned>(value: Value) -> Result<T> {
    Ok(serde_json::from_value(value)?)
}

fn runs(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// How many processes have `text` in their command line.
fn processes_naming(text: &str) -> Result<usize> {
    let mut count = 0;
    for entry in std::fs::read_dir("/proc")? {
        // Processes come and go meanwhile, and only some entries are processes.
        let line = std::fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        count += usize::from(String::from_utf8_lossy(&line).contains(text));
    }
    Ok(count)
}

/// Cargo builds a package's examples with its tests, next to their folder.
fn example() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let profile = test.ancestors().nth(2).context("no target folder")?;
    Ok(profile.join("examples/cluster"))
}

/// A folder that no other test uses.
fn fresh_dir(name: &str) -> Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("muster-playground-test-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&path)?;
    Ok(path)
}

/// Asks again until there is an answer; fails after the limit.
async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let asking = async {
        loop {
            if let Some(answer) = ask().await? {
                return Ok(answer);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, asking).await.with_context(|| format!("not within {LIMIT:?}: {what}"))?
}
