//! The pure state machine of one node: no server, no clock.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kubesim::kubelet::admission::NodeFacts;
use kubesim::kubelet::node::{Intake, Job, NodeMachine, Power};
use kubesim::kubelet::{PodView, Script};
use serde_json::{Value, json};

/// A machine and the jobs it asked for, in order.
struct Bench {
    machine: NodeMachine,
    start: Timestamp,
}

impl Bench {
    fn new(gpus: i64) -> Self {
        let allocatable = [("cpu", 64_000), ("memory", 1 << 40), ("pods", 10), ("nvidia.com/gpu", gpus)];
        let facts = NodeFacts {
            name: "n1".into(),
            allocatable: allocatable.into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
            ..NodeFacts::default()
        };
        Self { machine: NodeMachine::new(facts, "172.16.0.1".into()), start: Timestamp::UNIX_EPOCH }
    }

    fn at(&self, seconds: i64) -> Timestamp {
        self.start + SignedDuration::from_secs(seconds)
    }

    fn observe(&mut self, pod: &Value, script: &Script, seconds: i64) {
        let view =
            PodView::new(serde_json::from_value(pod.clone()).expect("a pod")).expect("valid quantities");
        let now = self.at(seconds);
        self.machine.observe(view, |_| Ok(script.clone()), now);
    }

    /// Every write that is due, until nothing more is.
    fn jobs(&mut self, seconds: i64) -> Vec<(String, Job)> {
        let now = self.at(seconds);
        let mut jobs = Vec::new();
        for uid in self.machine.advance(now) {
            while let Some(job) = self.machine.next_job(&uid, || "10.64.0.1".into()) {
                jobs.push((uid.clone(), job));
            }
        }
        jobs
    }

    /// Phases (or `DELETE`) written at this time.
    fn written(&mut self, seconds: i64) -> Vec<String> {
        let phase = |job: Job| match job {
            Job::Status(status) => status["phase"].as_str().unwrap_or_default().to_owned(),
            Job::Delete => "DELETE".to_owned(),
        };
        self.jobs(seconds).into_iter().map(|(_, job)| phase(job)).collect()
    }

    fn due(&self) -> Option<i64> {
        self.machine.next_due().map(|at| at.duration_since(self.start).as_secs())
    }
}

fn pod(uid: &str, gpus: u32, policy: &str) -> Value {
    json!({
        "metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {"nodeName": "n1", "restartPolicy": policy, "containers": [
            {"name": "main", "resources": {"requests": {"nvidia.com/gpu": gpus.to_string()}}}]},
    })
}

fn leaving(mut pod: Value, grace: u32) -> Value {
    pod["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:01:00Z");
    pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
    pod
}

fn script(change: impl FnOnce(&mut Script)) -> Script {
    let mut script = Script::default();
    change(&mut script);
    script
}

#[test]
fn one_write_starts_a_pod_and_one_ends_it() {
    let mut bench = Bench::new(8);
    bench.observe(&pod("a", 8, "Never"), &script(|s| s.run_for = Some(Duration::from_secs(30))), 0);
    assert_eq!(bench.written(0), ["Running"]);
    assert_eq!(bench.due(), Some(30));
    assert_eq!(bench.written(29), Vec::<String>::new());
    assert_eq!(bench.written(30), ["Succeeded"]);
    assert_eq!(bench.due(), None);
    assert_eq!(bench.machine.used().get("nvidia.com/gpu"), None);
}

#[test]
fn scripted_delays_show_as_steps() {
    let mut bench = Bench::new(8);
    let slow = script(|s| {
        s.start_delay = Duration::from_secs(10);
        s.ready_delay = Duration::from_secs(5);
    });
    bench.observe(&pod("a", 1, "Always"), &slow, 0);
    let jobs = bench.jobs(0);
    let Job::Status(status) = &jobs[0].1 else { panic!("a status") };
    assert_eq!(status["phase"], "Pending");
    assert_eq!(status["startTime"], "1970-01-01T00:00:00Z");
    assert_eq!(status["containerStatuses"][0]["state"]["waiting"]["reason"], "ContainerCreating");
    assert!(status.get("podIP").is_none());
    let ready = |jobs: &[(String, Job)]| {
        let Job::Status(status) = &jobs[0].1 else { panic!("a status") };
        (status["phase"].clone(), status["containerStatuses"][0]["ready"].clone())
    };
    assert_eq!(ready(&bench.jobs(10)), (json!("Running"), json!(false)));
    assert_eq!(ready(&bench.jobs(15)), (json!("Running"), json!(true)));
}

#[test]
fn deletion_ends_within_the_grace_period_and_reports_before_it_removes() {
    for (script, grace, seconds, phase, code) in [
        (Script::default(), 30, 1, "Failed", 143),
        (script(|s| s.exit_on_term = 0), 30, 1, "Succeeded", 0),
        (script(|s| s.ignore_sigterm = true), 20, 20, "Failed", 137),
        (script(|s| s.term_delay = Duration::from_secs(90)), 30, 30, "Failed", 137),
    ] {
        let mut bench = Bench::new(8);
        bench.observe(&pod("a", 8, "Always"), &script, 0);
        bench.jobs(0);
        bench.observe(&leaving(pod("a", 8, "Always"), grace), &script, 5);
        assert_eq!(bench.written(5), Vec::<String>::new());
        assert_eq!(bench.due(), Some(5 + seconds));
        assert_eq!(bench.machine.used()["nvidia.com/gpu"], 8, "leaving pods hold their devices");
        let jobs = bench.jobs(5 + seconds);
        let Job::Status(status) = &jobs[0].1 else { panic!("a status first") };
        assert_eq!(status["phase"], phase);
        assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["exitCode"], code);
        assert_eq!(jobs[1].1, Job::Delete);
        assert_eq!(jobs.len(), 2);
    }
}

#[test]
fn a_second_deletion_can_shorten_the_grace_but_not_lengthen_it() {
    let stubborn = script(|s| s.ignore_sigterm = true);
    for (second, due) in [(5, 15), (300, 60)] {
        let mut bench = Bench::new(8);
        bench.observe(&pod("a", 8, "Never"), &stubborn, 0);
        bench.jobs(0);
        bench.observe(&leaving(pod("a", 8, "Never"), 60), &stubborn, 0);
        bench.jobs(0);
        bench.observe(&leaving(pod("a", 8, "Never"), second), &stubborn, 10);
        bench.jobs(10);
        assert_eq!(bench.due(), Some(due));
    }
}

#[test]
fn a_forced_deletion_leaves_the_devices_in_use_until_the_containers_end() {
    let mut bench = Bench::new(8);
    let stubborn = script(|s| s.ignore_sigterm = true);
    bench.observe(&pod("old", 8, "Never"), &stubborn, 0);
    bench.jobs(0);
    bench.machine.forget("old");
    assert_eq!(bench.written(1), Vec::<String>::new(), "there is no object to write to");
    bench.observe(&pod("new", 8, "Never"), &Script::default(), 2);
    assert_eq!(bench.written(2), ["Failed"]);
    bench.jobs(31);
    bench.observe(&pod("later", 8, "Never"), &Script::default(), 31);
    assert_eq!(bench.written(31), ["Running"]);
}

#[test]
fn restarts_back_off_as_a_kubelet_does() {
    let mut bench = Bench::new(8);
    let crashing = script(|s| {
        s.run_for = Some(Duration::from_secs(1));
        s.exit_code = 1;
    });
    bench.observe(&pod("a", 1, "OnFailure"), &crashing, 0);
    bench.jobs(0);
    let mut events = Vec::new();
    while events.len() < 15 {
        let due = bench.due().expect("it goes on");
        bench.jobs(due);
        events.push(due);
    }
    // The first restart is at once, so its event is the exit itself; then exits and restarts alternate.
    let waits: Vec<_> = events[1..].chunks_exact(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300]);
}

#[test]
fn pods_deleted_before_admission_end_without_a_container() {
    let mut bench = Bench::new(8);
    bench.machine.set_intake(Intake::Silent);
    bench.observe(&pod("a", 1, "Never"), &Script::default(), 0);
    assert_eq!(bench.written(0), Vec::<String>::new());
    bench.observe(&leaving(pod("a", 1, "Never"), 30), &Script::default(), 1);
    assert_eq!(bench.written(1), ["Failed", "DELETE"]);
}

#[test]
fn a_dead_machine_forgets_and_a_failed_write_is_made_again() {
    let mut bench = Bench::new(8);
    bench.observe(&pod("a", 8, "Never"), &Script::default(), 0);
    let jobs = bench.jobs(0);
    bench.machine.job_failed("a", &jobs[0].1);
    assert_eq!(bench.written(1), ["Running"]);
    bench.machine.set_power(Power::Down, bench.at(2));
    assert_eq!(bench.due(), None);
    bench.machine.forget("a");
    bench.machine.set_power(Power::Up, bench.at(3));
    assert_eq!(bench.written(3), Vec::<String>::new());
    bench.observe(&pod("b", 8, "Never"), &Script::default(), 4);
    assert_eq!(bench.written(4), ["Running"]);
}

#[test]
fn a_restarted_kubelet_takes_over_what_runs() {
    let mut bench = Bench::new(8);
    let mut running = pod("a", 8, "Never");
    running["status"] = json!({"phase": "Running", "startTime": "1970-01-01T00:00:00Z", "podIP": "10.64.0.9",
        "containerStatuses": [{"name": "main", "ready": true, "restartCount": 0, "image": "", "imageID": "",
            "state": {"running": {"startedAt": "1970-01-01T00:00:10Z"}}}]});
    bench.observe(&running, &script(|s| s.run_for = Some(Duration::from_secs(60))), 40);
    assert_eq!(bench.written(40), Vec::<String>::new(), "nothing has changed");
    assert_eq!(bench.machine.used()["nvidia.com/gpu"], 8);
    assert_eq!(bench.due(), Some(70));
    assert_eq!(bench.written(70), ["Succeeded"]);
}
