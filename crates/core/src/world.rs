//! The small objects that others are judged by: classes, queues, the topology, priority classes, quotas.

use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use muster_api::{
    AcceleratorClass, AcceleratorClassSpec, Framework, Gang as Object, GangSpec, OutcomePolicy, Queue,
    catalogue, common,
};
use muster_cluster::Cluster;
use muster_cluster::template::{self, Around, Learned};
use muster_lifecycle::launch;
use muster_model::{self as model, Gang, GangState, Millis, ObjectKey, Reason, Resources, resources};
use std::collections::{BTreeMap, BTreeSet};

use crate::launch::framework;

/// What a ResourceQuota leaves, by the names it uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaLeft(BTreeMap<String, i64>);

/// The small objects.
#[derive(Debug)]
pub struct World {
    built_in: BTreeMap<String, AcceleratorClassSpec>,
    classes: BTreeMap<String, AcceleratorClassSpec>,
    queues: BTreeSet<String>,
    priorities: BTreeMap<String, (i32, bool)>,
    quotas: BTreeMap<String, BTreeMap<String, QuotaLeft>>,
    /// Values of product labels that nodes carry, by label.
    products: BTreeMap<String, BTreeSet<String>>,
    /// Most of a class's own resource that a node has, by resource and product.
    per_node: BTreeMap<(String, String), u32>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            built_in: catalogue::all().into_iter().map(|(name, class)| (name.to_owned(), class)).collect(),
            classes: BTreeMap::new(),
            queues: BTreeSet::new(),
            priorities: BTreeMap::new(),
            quotas: BTreeMap::new(),
            products: BTreeMap::new(),
            per_node: BTreeMap::new(),
        }
    }
}

impl World {
    /// Takes in an AcceleratorClass, or its deletion. Returns whether anything changed that others are judged by.
    pub fn set_class(&mut self, name: &str, class: Option<AcceleratorClass>) -> bool {
        match class.map(|class| class.spec) {
            Some(spec) => self.classes.insert(name.to_owned(), spec.clone()).as_ref() != Some(&spec),
            None => self.classes.remove(name).is_some(),
        }
    }

    /// Takes in a Queue, or its deletion. Returns whether anything changed that others are judged by.
    pub fn set_queue(&mut self, name: &str, queue: Option<&Queue>) -> bool {
        if queue.is_some() { self.queues.insert(name.to_owned()) } else { self.queues.remove(name) }
    }

    /// Takes in a PriorityClass, or its deletion.
    pub fn set_priority(&mut self, name: &str, class: Option<&PriorityClass>) {
        match class {
            Some(class) => self
                .priorities
                .insert(name.to_owned(), (class.value.unwrap_or(0), class.global_default.unwrap_or(false))),
            None => self.priorities.remove(name),
        };
    }

    /// Takes in a ResourceQuota, or its deletion. Quotas with scopes concern only some pods and are left to the
    /// API server. Returns whether anything changed.
    pub fn set_quota(&mut self, key: &ObjectKey, quota: Option<&ResourceQuota>) -> bool {
        let of_namespace = self.quotas.entry(key.namespace.clone()).or_default();
        let scoped = |q: &ResourceQuota| {
            q.spec.as_ref().is_some_and(|s| {
                s.scopes.as_ref().is_some_and(|l| !l.is_empty()) || s.scope_selector.is_some()
            })
        };
        let changed = match quota.filter(|quota| !scoped(quota)) {
            Some(quota) => {
                let left = quota_left(quota);
                of_namespace.insert(key.name.clone(), left.clone()).as_ref() != Some(&left)
            }
            None => of_namespace.remove(&key.name).is_some(),
        };
        if of_namespace.is_empty() {
            self.quotas.remove(&key.namespace);
        }
        changed
    }

    /// Looks at all nodes for the products they carry. Returns whether that changed.
    pub fn look_at_nodes(&mut self, cluster: &Cluster) -> bool {
        // A node has other resources by the hundred (network devices, shares of cards): only the class's own counts.
        let kinds: BTreeSet<(&str, &str)> = self
            .all_classes()
            .map(|(_, class)| (class.product_label.as_str(), class.resource.as_str()))
            .collect();
        let mut products: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut per_node: BTreeMap<(String, String), u32> = BTreeMap::new();
        for node in cluster.nodes() {
            for (label, resource) in &kinds {
                let Some(product) = node.labels.get(*label) else { continue };
                products.entry((*label).to_owned()).or_default().insert(product.clone());
                let count = u32::try_from(node.allocatable.get(resource)).unwrap_or(0);
                let most = per_node.entry(((*resource).to_owned(), product.clone())).or_default();
                *most = (*most).max(count);
            }
        }
        let changed = products != self.products || per_node != self.per_node;
        self.products = products;
        self.per_node = per_node;
        changed
    }

    /// The classes in force: the objects, and the catalogue's entries that no object replaces.
    fn all_classes(&self) -> impl Iterator<Item = (&str, &AcceleratorClassSpec)> {
        let built_in = self.built_in.iter().filter(|(name, _)| !self.classes.contains_key(name.as_str()));
        self.classes.iter().chain(built_in).map(|(name, class)| (name.as_str(), class))
    }

    /// The resources that count as accelerators.
    pub fn device_names(&self) -> BTreeSet<String> {
        self.all_classes().map(|(_, class)| class.resource.clone()).collect()
    }

    /// A class by name.
    pub fn class(&self, name: &str) -> Option<&AcceleratorClassSpec> {
        self.classes.get(name).or_else(|| self.built_in.get(name))
    }

    /// A class as the engine knows it, by the products that nodes carry.
    fn model(&self, name: &str) -> Option<model::AcceleratorClass> {
        let class = self.class(name)?;
        let seen = self.products.get(&class.product_label).into_iter().flatten().map(String::as_str);
        Some(class.to_model(name, seen))
    }

    /// The classes of which the cluster has nodes, as the engine knows them, strongest first.
    pub fn models_present(&self) -> Vec<model::AcceleratorClass> {
        self.classes_present().iter().filter_map(|name| self.model(name)).collect()
    }

    /// Names of all classes, for messages.
    pub fn class_names(&self) -> Vec<String> {
        self.all_classes().map(|(name, _)| name.to_owned()).collect()
    }

    /// Names of the classes of which the cluster has nodes, strongest first.
    pub fn classes_present(&self) -> Vec<String> {
        let mut present: Vec<(u32, String)> = self
            .all_classes()
            .filter(|(_, class)| self.products_of(class).next().is_some())
            .map(|(name, class)| (class.compute_units.unwrap_or(0), name.to_owned()))
            .collect();
        present.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        present.into_iter().map(|(_, name)| name).collect()
    }

    fn products_of<'a>(&'a self, class: &'a AcceleratorClassSpec) -> impl Iterator<Item = &'a str> {
        let all = self.products.get(&class.product_label).into_iter().flatten();
        all.map(String::as_str).filter(|product| !class.products.is_empty() && class.matches(product))
    }

    /// Accelerators of a node of a class: the most that one has, or what is typical where there is none.
    pub fn gpus_per_node(&self, class: &AcceleratorClassSpec) -> u32 {
        let of = |product: &str| self.per_node.get(&(class.resource.clone(), product.to_owned())).copied();
        let seen = self.products_of(class).filter_map(of).max();
        seen.filter(|count| *count > 0).unwrap_or(class.gpus_per_node)
    }

    /// Whether a queue exists. The default queue always does.
    pub fn has_queue(&self, name: &str) -> bool {
        name == common::DEFAULT_QUEUE || self.queues.contains(name)
    }

    /// The value of a PriorityClass; without a name, that of the cluster's default class, else 0.
    pub fn priority(&self, name: Option<&str>) -> Option<i32> {
        match name {
            Some(name) => self.priorities.get(name).map(|(value, _)| *value),
            None => {
                Some(self.priorities.values().find(|(_, default)| *default).map_or(0, |(value, _)| *value))
            }
        }
    }

    /// The accelerator classes that a gang may use.
    fn classes_of(&self, spec: &GangSpec) -> Result<Vec<model::AcceleratorClass>, Reason> {
        let wants_devices = spec.roles.iter().any(|role| role.devices > 0);
        let names = if spec.classes.is_empty() && wants_devices {
            self.classes_present()
        } else {
            spec.classes.clone()
        };
        let mut classes = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let Some(class) = self.model(name) else {
                return Err(invalid(
                    format!("spec.classes[{at}]"),
                    format!("AcceleratorClass {name:?} does not exist"),
                    &format!("create it or use one of {}", self.class_names().join(", ")),
                ));
            };
            classes.push(class);
        }
        Ok(classes)
    }

    /// The gang as the engine wants it, state aside. `learned` gives what the API server makes of a role's
    /// pods.
    ///
    /// # Errors
    /// What is wrong with the gang, given the other objects.
    pub fn request(
        &self,
        object: &Object,
        learned: &dyn Fn(&str) -> Option<Learned>,
        since: Millis,
    ) -> Result<Gang, Reason> {
        let spec = &object.spec;
        if !self.has_queue(&spec.queue) {
            return Err(Reason::QueueUnknown { queue: spec.queue.clone() });
        }
        let newer = match (spec.launch.framework, spec.outcome.policy) {
            (Framework::Unknown(word), _) => Some(("spec.launch.framework", word)),
            (_, OutcomePolicy::Unknown(word)) => Some(("spec.outcome.policy", word)),
            _ => None,
        };
        if let Some((field, word)) = newer {
            return Err(invalid(
                field.into(),
                format!("{word:?} is not known to this version of Muster"),
                "use a word that it knows (see the documentation), or a newer version",
            ));
        }
        let priority = self.priority(spec.priority_class_name.as_deref()).ok_or_else(|| {
            let name = spec.priority_class_name.as_deref().unwrap_or_default();
            invalid(
                "spec.priorityClassName".into(),
                format!("PriorityClass {name:?} does not exist"),
                "create it or name one that exists",
            )
        })?;
        let classes = self.classes_of(spec)?;
        let ports = launch::ports(framework(spec.launch.framework), spec.launch.port);
        let mut roles = Vec::new();
        for (at, role) in spec.roles.iter().enumerate() {
            let path = format!("spec.roles[{at}]");
            // Ranks meet at pods of the first role.
            let ports = if at == 0 { &ports[..] } else { &[] };
            let around = Around { classes: &classes, ports, within: spec.within.as_ref() };
            roles.push(template::role(&path, role, learned(&role.name), &around)?);
        }
        let known = spec.roles.iter().map(|role| learned(&role.name));
        if let Some((at, claim)) = template::shared_claim(known, spec.within.as_ref()) {
            return Err(invalid(
                format!("spec.roles[{at}].template.spec.volumes"),
                format!("PersistentVolumeClaim {claim:?} is ReadWriteOnce, and another role uses it as well"),
                "use a claim with access mode ReadWriteMany, or keep the gang on one node (within Node, Required)",
            ));
        }
        let meta = &object.metadata;
        Ok(Gang {
            key: ObjectKey::new(
                meta.namespace.clone().unwrap_or_default(),
                meta.name.clone().unwrap_or_default(),
            ),
            uid: model::Uid(meta.uid.clone().unwrap_or_default()),
            queue: spec.queue.clone(),
            priority,
            since,
            classes,
            roles,
            within: spec.within.clone(),
            rules: spec.rules.clone(),
            avoid: BTreeSet::new(),
            state: GangState::Inactive,
        })
    }

    /// Whether a namespace has quotas.
    pub fn has_quotas(&self, namespace: &str) -> bool {
        self.quotas.contains_key(namespace)
    }

    /// Lowers what an elastic gang asks for to what the namespace's quotas leave, given what others there have planned and
    /// not created; returns the first quota that has no room for its minimum.
    pub fn fit_into_quotas(&self, gang: &mut Gang, beside: &Resources) -> Option<Reason> {
        let quotas = self.quotas.get(&gang.key.namespace)?;
        let unit = |gang: &Gang, role: &model::Role| {
            role.pod_requests(gang.classes.first()).times(i64::from(role.pods_per_unit))
        };
        let mut needed = Resources::default();
        for role in &gang.roles {
            needed.add(&unit(gang, role).times(i64::from(role.min)));
        }
        for (name, QuotaLeft(left)) in quotas {
            for (resource, left) in left {
                let left = left - beside.get(plain(resource));
                let needed = needed.get(plain(resource));
                if needed > left {
                    let (quota, resource) = (name.clone(), resource.clone());
                    return Some(Reason::QuotaExceeded { quota, resource, left, needed });
                }
            }
        }
        // What is left beyond the minima goes to the roles in order.
        for at in 0..gang.roles.len() {
            let one = unit(gang, &gang.roles[at]);
            let role = &gang.roles[at];
            let room = quotas.values().flat_map(|QuotaLeft(left)| left).filter_map(|(resource, left)| {
                let resource = plain(resource);
                let left = left - beside.get(resource) - needed.get(resource);
                (one.get(resource) > 0).then(|| left.max(0) / one.get(resource))
            });
            let more = u32::try_from(room.min().unwrap_or(i64::MAX)).unwrap_or(u32::MAX);
            let most = role.allowed_at_most(role.min.saturating_add(more)).unwrap_or(role.min);
            if most < role.max {
                needed.add(&one.times(i64::from(most - role.min)));
                gang.roles[at].max = most;
            } else {
                needed.add(&one.times(i64::from(role.max - role.min)));
            }
        }
        None
    }
}

/// The resource that a quota's name is about.
fn plain(resource: &str) -> &str {
    match resource {
        "count/pods" => resources::PODS,
        other => other.strip_prefix("requests.").unwrap_or(other),
    }
}

/// `hard − used`, for the resources that pods use.
fn quota_left(quota: &ResourceQuota) -> QuotaLeft {
    let status = quota.status.clone().unwrap_or_default();
    let hard = quota.spec.as_ref().and_then(|spec| spec.hard.clone()).unwrap_or_default();
    let used = status.used.unwrap_or_default();
    let amount = |resource: &str, text: &str| {
        let cpu = resource == "cpu" || resource == "requests.cpu";
        let parse = if cpu { model::quantity::parse_milli } else { model::quantity::parse_units };
        parse(text).ok()
    };
    let concerns_requests = |name: &str| {
        name.starts_with("requests.") || matches!(name, "pods" | "count/pods" | "cpu" | "memory")
    };
    let left = hard.iter().filter(|(name, _)| concerns_requests(name)).filter_map(|(name, hard)| {
        let used = used.get(name).and_then(|used| amount(name, &used.0)).unwrap_or(0);
        Some((name.clone(), amount(name, &hard.0)? - used))
    });
    QuotaLeft(left.collect())
}

/// What is wrong with a field, and what to do.
fn invalid(field: String, message: String, remedy: &str) -> Reason {
    Reason::Invalid { field, message, remedy: remedy.to_owned() }
}
