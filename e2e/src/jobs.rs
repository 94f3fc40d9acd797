//! Manifests of jobs, as short as scenarios need them.

use serde_json::{Value, json};

/// A TrainingJob under construction.
#[derive(Clone, Debug)]
pub struct Job(pub Value);

/// The script of the simulated containers: how long they run.
pub const RUN_FOR: &str = "kubesim.dev/run-for";
/// The script of the simulated containers: with which code they exit.
pub const EXIT_CODE: &str = "kubesim.dev/exit-code";

/// A job of `data` replicas of one rank each, whose pods run until they are told to stop.
pub fn job(name: &str, data: u32) -> Job {
    Job(json!({
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": { "name": name },
        "spec": {
            "framework": "Torchrun",
            "parallelism": { "data": data },
            "template": {
                "metadata": { "annotations": {} },
                "spec": { "containers": [{
                    "name": "trainer",
                    "image": "example/trainer",
                    "resources": { "requests": { "cpu": "4", "memory": "16Gi" } },
                }] },
            },
        },
    }))
}

impl Job {
    /// Sets a field of the specification by its path, such as `parallelism.tensor`.
    #[must_use]
    pub fn with(mut self, path: &str, value: impl Into<Value>) -> Self {
        let mut at = &mut self.0["spec"];
        for key in path.split('.') {
            at = &mut at[key];
        }
        *at = value.into();
        self
    }

    /// Annotates the pods: the script of the simulated containers.
    #[must_use]
    pub fn pods(mut self, key: &str, value: &str) -> Self {
        self.0["spec"]["template"]["metadata"]["annotations"][key] = json!(value);
        self
    }

    /// The pods run for so long and succeed.
    #[must_use]
    pub fn running_for(self, time: &str) -> Self {
        self.pods(RUN_FOR, time)
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.0["metadata"]["name"].as_str().unwrap_or_default()
    }
}
