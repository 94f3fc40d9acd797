//! Jobs from manifests and traces, by the operator's own derivation.
//!
//! ```text
//!   TrainingJob ──derive──▶ Gang object ──World::request──▶ model::Gang
//!   Gang ─────────────────────┘   ▲ classes, queues, priorities, products of the nodes
//! ```

use anyhow::anyhow;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::{Client, Resource, ResourceExt, api::ObjectMeta};
use muster_api::{AcceleratorClass, Gang as Object, Queue, Topology, TrainingJob, common::DEFAULT_QUEUE};
use muster_cluster::template;
use muster_core::{World, derive};
use muster_model::{self as model, GangState, Millis, ObjectKey, Reason};
use std::collections::BTreeSet;

use super::{
    changes::Fields,
    place::{Ground, Job, Refusal, Scenario},
    trace,
    volumes::Volumes,
    yaml::Document,
};

/// What the job files hold.
#[derive(Debug)]
pub struct Manifests {
    /// Namespace of jobs that name none.
    namespace: String,
    topology: Option<model::Topology>,
    world: World,
    volumes: Volumes,
    queues_given: bool,
    priorities_given: bool,
    /// The jobs, in the order of the files.
    given: Vec<(ObjectKey, Given)>,
    known: BTreeSet<ObjectKey>,
}

#[derive(Debug)]
enum Given {
    Training(Box<TrainingJob>),
    Gang(Box<Object>),
}

/// What is wrong with a job's metadata: field, message and remedy.
type Mistake = (&'static str, String, &'static str);

impl Manifests {
    /// None yet, beside the objects that jobs on this ground are judged by.
    pub fn new(ground: &mut Ground, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            topology: None,
            world: std::mem::take(&mut ground.world),
            volumes: std::mem::take(&mut ground.volumes),
            queues_given: ground.queues_known,
            priorities_given: ground.priorities_known,
            given: Vec::new(),
            known: BTreeSet::new(),
        }
    }

    /// Takes in one document.
    ///
    /// # Errors
    /// The place and field that is wrong.
    pub fn take(&mut self, document: &Document) -> anyhow::Result<()> {
        match document.kind() {
            Some("TrainingJob") => {
                let mut job: TrainingJob = document.typed()?;
                let key = self.note(job.meta_mut()).map_err(|it| document.error(it.0, it.1, it.2))?;
                self.given.push((key, Given::Training(Box::new(job))));
            }
            Some("Gang") => {
                let mut gang: Object = document.typed()?;
                let key = self.note(gang.meta_mut()).map_err(|it| document.error(it.0, it.1, it.2))?;
                self.given.push((key, Given::Gang(Box::new(gang))));
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

    /// Takes in a trace.
    ///
    /// # Errors
    /// The line and column that is wrong.
    pub fn take_trace(&mut self, file: &str, text: &str) -> anyhow::Result<()> {
        for (line, mut gang) in trace::parse(file, text, &self.namespace)? {
            let key = self.note(gang.meta_mut()).map_err(|(_, message, remedy)| {
                anyhow!("{file}, line {line}, column name: {message}; {remedy}")
            })?;
            self.given.push((key, Given::Gang(Box::new(gang))));
        }
        Ok(())
    }

    /// Looks up where the jobs' volumes can be used.
    ///
    /// # Errors
    /// When the cluster does not answer.
    pub async fn look_up_volumes(&mut self, client: &Client, notes: &mut Vec<String>) -> anyhow::Result<()> {
        for (key, given) in &self.given {
            let specs: Vec<_> = match given {
                Given::Training(job) => job.spec.template.spec.iter().cloned().collect(),
                Given::Gang(gang) => {
                    gang.spec.roles.iter().filter_map(|role| role.template.pod_spec().ok()).collect()
                }
            };
            for spec in &specs {
                self.volumes.look_up(client, &key.namespace, spec, notes).await?;
            }
        }
        Ok(())
    }

    /// Gives the job a namespace if it has none. Returns its key.
    fn note(&mut self, meta: &mut ObjectMeta) -> Result<ObjectKey, Mistake> {
        if meta.name.as_deref().unwrap_or_default().is_empty() {
            return Err(("metadata.name", "it is missing".to_owned(), "name the job"));
        }
        meta.namespace.get_or_insert_with(|| self.namespace.clone());
        let key = key(meta);
        if !self.known.insert(key.clone()) {
            return Err(("metadata.name", format!("{key} is given twice"), "rename one of the jobs"));
        }
        Ok(key)
    }

    /// The jobs on their ground, in the order of the files.
    pub fn scenario(mut self, mut ground: Ground) -> Scenario {
        self.world.look_at_nodes(&ground.cluster);
        self.assume();
        // What is given replaces what waits in the cluster under the same name.
        ground.waiting.retain(|gang| !self.known.contains(&gang.key));
        ground.topology = self.topology.take().or(ground.topology);
        let asked = std::mem::take(&mut self.given).into_iter().enumerate().map(|(at, (key, given))| {
            let since = ground.since + at as i64;
            let job = match given {
                Given::Training(job) => self.of_training(key, &job, since),
                Given::Gang(gang) => self.of_gang(key, &gang, since),
            };
            taken(job, &ground.held)
        });
        let jobs = asked.collect();
        Scenario { ground, jobs, classes: self.world.models_present() }
    }

    fn of_training(&self, key: ObjectKey, job: &TrainingJob, since: Millis) -> Job {
        let object = self.derived(job);
        let review = derive::review(&job.spec);
        let replicas = object.as_ref().map_or(1, |object| object.spec.launch.replicas_per_unit);
        Job {
            key,
            kind: "TrainingJob",
            gang: object.and_then(|object| self.request(&object, since, derive::field_of_job)),
            notes: review.notes.iter().map(ToString::to_string).collect(),
            fields: Fields::of(&job.spec, replicas),
        }
    }

    fn of_gang(&self, key: ObjectKey, object: &Object, since: Millis) -> Job {
        Job {
            key,
            kind: "Gang",
            gang: self.request(object, since, str::to_owned),
            notes: template::notes_of(&object.spec.roles).map(|note| note.to_string()).collect(),
            fields: Fields::Gang,
        }
    }

    /// Where no queue or no priority class is given, those that jobs name are taken to exist.
    fn assume(&mut self) {
        let queue = |given: &Given| match given {
            Given::Training(job) => job.spec.queue.clone(),
            Given::Gang(gang) => gang.spec.queue.clone(),
        };
        if !self.queues_given {
            let queues = self.given.iter().map(|(_, given)| queue(given));
            for name in queues.filter(|name| name != DEFAULT_QUEUE).collect::<BTreeSet<_>>() {
                self.world.set_queue(&name, Some(&Queue::new(&name, muster_api::QueueSpec::default())));
            }
        }
        if !self.priorities_given {
            for (_, given) in &self.given {
                let class = match given {
                    Given::Training(job) => &job.spec.priority_class_name,
                    Given::Gang(gang) => &gang.spec.priority_class_name,
                };
                if let Some(name) = class {
                    self.world.set_priority(name, Some(&PriorityClass::default()));
                }
            }
        }
    }

    /// The Gang that the operator would make for a TrainingJob.
    fn derived(&self, job: &TrainingJob) -> Result<Object, Refusal> {
        let spec = &job.spec;
        let mut problems = Vec::new();
        if self.world.priority(spec.priority_class_name.as_deref()).is_none() {
            let name = spec.priority_class_name.as_deref().unwrap_or_default();
            return Err(Refusal::new(
                "Invalid",
                format!("spec.priorityClassName: PriorityClass {name:?} does not exist"),
                "add its manifest to a job file, name another, or leave the field out",
            ));
        }
        let derived = derive::derive(spec, &self.world, None, &mut problems);
        if let Some(problem) = problems.first() {
            return Err(Refusal::new(
                "Invalid",
                format!("{}: {}", problem.field, problem.message),
                &problem.remedy,
            ));
        }
        let derived = derived.ok_or_else(|| {
            Refusal::new(
                "Invalid",
                "it comes to no gang".to_owned(),
                "see `kubectl explain trainingjob.spec`",
            )
        })?;
        let gang = derive::gang_spec(spec, derived);
        Ok(Object { metadata: job.metadata.clone(), spec: gang, status: None })
    }

    /// What the gang asks of the engine. `field` tells where its user has written what a field of the Gang says.
    fn request(
        &self,
        object: &Object,
        since: Millis,
        field: impl Fn(&str) -> String,
    ) -> Result<model::Gang, Refusal> {
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        let learned = self.volumes.learned(namespace, &object.spec.roles);
        let gang =
            learned.and_then(|learned| self.world.request(object, &|role| learned.get(role).cloned(), since));
        let mut gang = gang.map_err(|reason| match reason {
            Reason::Invalid { field: of_gang, message, remedy } => {
                Refusal::from(&Reason::Invalid { field: field(&of_gang), message, remedy })
            }
            reason => Refusal::from(&reason),
        })?;
        if object.spec.suspend {
            return Ok(gang);
        }
        if let Some(reason) = self.world.fit_into_quotas(&mut gang, &model::Resources::default()) {
            return Err(Refusal::from(&reason));
        }
        let uid = format!("simulated/{}", gang.key);
        Ok(model::Gang { uid: uid.as_str().into(), state: GangState::Waiting, ..gang })
    }
}

/// The job, unless the cluster has a gang of its name that holds nodes: placing it again would count it twice.
fn taken(job: Job, held: &BTreeSet<ObjectKey>) -> Job {
    if !held.contains(&job.key) {
        return job;
    }
    let refusal = Refusal::new(
        "AlreadyPlaced",
        format!("the cluster has a gang {} that holds its nodes", job.key),
        "give the job another name to see where one more would go",
    );
    Job { gang: Err(refusal), ..job }
}

fn key(meta: &ObjectMeta) -> ObjectKey {
    ObjectKey::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}
