//! Jobs from manifests, by the operator's own derivation.
//!
//! ```text
//!   TrainingJob ──derive──▶ Gang object ──World::request──▶ model::Gang
//!   Gang ─────────────────────┘   ▲ classes, queues, priorities, products of the nodes
//! ```

use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::{Resource, ResourceExt, api::ObjectMeta};
use muster_api::{AcceleratorClass, Gang as Object, Queue, Topology, TrainingJob, common::DEFAULT_QUEUE};
use muster_cluster::{Cluster, template};
use muster_controllers::{core::World, derive};
use muster_model::{self as model, GangState, Node, ObjectKey};
use std::collections::BTreeSet;

use super::{
    place::{Job, Refusal},
    yaml::Document,
};

/// What the job files hold.
#[derive(Debug, Default)]
pub struct Manifests {
    /// The topology, where one is given.
    pub topology: Option<model::Topology>,
    world: World,
    queues_given: bool,
    priorities_given: bool,
    jobs: Vec<TrainingJob>,
    gangs: Vec<Object>,
    /// Kind and key of every job, in the order of the files.
    order: Vec<(&'static str, ObjectKey)>,
}

impl Manifests {
    /// Takes in one document.
    ///
    /// # Errors
    /// The place and field that is wrong.
    pub fn take(&mut self, document: &Document) -> anyhow::Result<()> {
        match document.kind() {
            Some("TrainingJob") => {
                let job: TrainingJob = document.typed()?;
                self.note("TrainingJob", &job, document)?;
                self.jobs.push(job);
            }
            Some("Gang") => {
                let gang: Object = document.typed()?;
                self.note("Gang", &gang, document)?;
                self.gangs.push(gang);
            }
            Some("Topology") => self.topology = Some(document.typed::<Topology>()?.spec.to_model()),
            Some("AcceleratorClass") => {
                let class: AcceleratorClass = document.typed()?;
                self.world.set_class(&class.name_any(), Some(class));
            }
            Some("Queue") => {
                let queue: Queue = document.typed()?;
                self.queues_given = true;
                self.world.set_queue(&queue.name_any(), Some(&queue));
            }
            Some("PriorityClass") => {
                let class: PriorityClass = document.typed()?;
                self.priorities_given = true;
                self.world.set_priority(&class.name_any(), Some(&class));
            }
            // A file for `kubectl apply` may hold what jobs need and placing does not.
            Some(
                "Namespace" | "ConfigMap" | "Secret" | "Service" | "ServiceAccount" | "PersistentVolumeClaim",
            ) => {}
            Some(kind) => {
                return Err(document.error(
                    "kind",
                    format!("{kind} is no job"),
                    "give TrainingJob or Gang manifests",
                ));
            }
            None => {
                return Err(document.error("kind", "it is missing", "give TrainingJob or Gang manifests"));
            }
        }
        Ok(())
    }

    fn note<K: Resource>(
        &mut self,
        kind: &'static str,
        object: &K,
        document: &Document,
    ) -> anyhow::Result<()> {
        let meta = object.meta();
        if meta.name.as_deref().unwrap_or_default().is_empty() {
            return Err(document.error("metadata.name", "it is missing", "name the job"));
        }
        let entry = (kind, key(meta));
        if self.order.iter().any(|(_, key)| *key == entry.1) {
            return Err(document.error(
                "metadata.name",
                format!("{} is given twice", entry.1),
                "rename one of the jobs",
            ));
        }
        self.order.push(entry);
        Ok(())
    }

    /// The jobs, in the order of the files.
    pub fn jobs<'a>(mut self, nodes: impl Iterator<Item = &'a Node>) -> Vec<Job> {
        let mut cluster = Cluster::new();
        for node in nodes {
            cluster.set_node(node.clone());
        }
        self.world.look_at_nodes(&cluster);
        self.assume();
        let order = std::mem::take(&mut self.order);
        order
            .iter()
            .enumerate()
            .map(|(at, (kind, key))| {
                let object = match self.gangs.iter().find(|gang| self::key(&gang.metadata) == *key) {
                    Some(gang) => Ok(gang.clone()),
                    None => self.derived(key),
                };
                let notes = object.as_ref().map_or_else(|_| Vec::new(), |object| self.notes(object));
                let gang = object.and_then(|object| self.request(&object, at));
                Job { key: key.clone(), kind, gang, notes }
            })
            .collect()
    }

    /// Where no queue or no priority class is given, those that jobs name are taken to exist.
    fn assume(&mut self) {
        let queues =
            self.jobs.iter().map(|job| &job.spec.queue).chain(self.gangs.iter().map(|gang| &gang.spec.queue));
        let queues: BTreeSet<String> = queues.filter(|name| *name != DEFAULT_QUEUE).cloned().collect();
        if !self.queues_given {
            for name in queues {
                self.world.set_queue(&name, Some(&Queue::new(&name, muster_api::QueueSpec::default())));
            }
        }
        let priorities: BTreeSet<String> =
            self.jobs.iter().filter_map(|job| job.spec.priority_class_name.clone()).collect();
        if !self.priorities_given {
            for name in priorities {
                self.world.set_priority(&name, Some(&PriorityClass::default()));
            }
        }
    }

    /// The Gang that the operator would make for a TrainingJob.
    fn derived(&self, key: &ObjectKey) -> Result<Object, Refusal> {
        let missing = || refusal("Invalid", format!("{key} is not there"), "give it with --job");
        let job = self.jobs.iter().find(|job| self::key(&job.metadata) == *key).ok_or_else(missing)?;
        let spec = &job.spec;
        let mut problems = Vec::new();
        let priority = self.world.priority(spec.priority_class_name.as_deref()).ok_or_else(|| {
            let name = spec.priority_class_name.as_deref().unwrap_or_default();
            refusal(
                "Invalid",
                format!("spec.priorityClassName: PriorityClass {name:?} is not among the manifests"),
                "add it to a job file, or leave the field out",
            )
        })?;
        let derived = derive::derive(spec, &self.world, &mut problems);
        if let Some(problem) = problems.first() {
            return Err(refusal(
                "Invalid",
                format!("{}: {}", problem.field, problem.message),
                &problem.remedy,
            ));
        }
        let derived = derived.ok_or_else(missing)?;
        let gang = derive::gang_spec(spec, priority, derived);
        Ok(Object { metadata: job.metadata.clone(), spec: gang, status: None })
    }

    /// What of the pods' templates never blocks: by the job's fields where there is a job.
    fn notes(&self, object: &Object) -> Vec<String> {
        let job = self.jobs.iter().find(|job| key(&job.metadata) == key(&object.metadata));
        let reviews = match job {
            Some(job) => vec![derive::review(&job.spec)],
            None => object
                .spec
                .roles
                .iter()
                .enumerate()
                .map(|(at, role)| {
                    let spec = role.template.spec.clone().unwrap_or_default();
                    template::review(&format!("spec.roles[{at}].template.spec"), &spec)
                })
                .collect(),
        };
        reviews.iter().flat_map(|review| &review.notes).map(ToString::to_string).collect()
    }

    /// What the gang asks of the engine; `at` is its place in the order of the files, which is its age.
    fn request(&self, object: &Object, at: usize) -> Result<model::Gang, Refusal> {
        let gang =
            self.world.request(object, &|_| None, at as i64).map_err(|reason| Refusal::from(&reason))?;
        let state = if object.spec.suspend { GangState::Inactive } else { GangState::Waiting };
        let uid = format!("simulated-{at}");
        Ok(model::Gang { key: key(&object.metadata), uid: uid.as_str().into(), state, ..gang })
    }
}

fn refusal(code: &str, message: String, remedy: &str) -> Refusal {
    Refusal { code: code.to_owned(), message, near: Vec::new(), remedy: remedy.to_owned() }
}

fn key(meta: &ObjectMeta) -> ObjectKey {
    ObjectKey::new(meta.namespace.as_deref().unwrap_or("default"), meta.name.as_deref().unwrap_or_default())
}
