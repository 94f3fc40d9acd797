//! What follows a write: serving CRDs, garbage collection, emptying namespaces, recounting quotas.
//!
//! ```text
//! after_write / remove_object ──► queue ──► run_controllers (at the end of the request)
//! ```
//!
//! A real cluster does this some time later in its controller manager; here it is done when the
//! request ends, so that a run does not depend on background tasks.

use std::sync::Arc;

use serde_json::{Value, json};

use super::delete::{DeleteOptions, FOREGROUND, ORPHAN};
use super::json::{at, list, remove, set, text};
use super::metadata::stamp;
use super::resources::{Resource, Scale, table_name};
use super::schema::Schema;
use super::server::State;
use super::store::Place;
use super::write::finished_deleting;

/// Work that a write leaves behind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// An owner is gone: its dependents may be garbage.
    OwnerGone(String),
    /// An object with owners appeared or changed: it may be garbage already.
    CheckOwners(Place),
    /// An object is being deleted with a propagation policy.
    Propagate(Place),
    /// A namespace is terminating, or lost content while it is.
    EmptyNamespace(String),
    Recount(String),
}

const CRDS: &str = "customresourcedefinitions.apiextensions.k8s.io";
const POLICIES: &str = "validatingadmissionpolicies.admissionregistration.k8s.io";
const BINDINGS: &str = "validatingadmissionpolicybindings.admissionregistration.k8s.io";

impl State {
    /// Notes what a stored object calls for.
    pub fn after_write(&mut self, place: &Place, object: &Arc<Value>) {
        let deleting = !text(object, &["metadata", "deletionTimestamp"]).is_empty();
        if !list(object, &["metadata", "ownerReferences"]).is_empty() && !deleting {
            self.work.push_back(Work::CheckOwners(place.clone()));
        }
        if deleting && !list(object, &["metadata", "finalizers"]).is_empty() {
            self.work.push_back(Work::Propagate(place.clone()));
        }
        let namespace = &place.key.0;
        match place.table.as_ref() {
            CRDS => self.serve(place, object),
            POLICIES | BINDINGS => self.policies.forget(),
            "namespaces" if deleting => self.work.push_back(Work::EmptyNamespace(place.key.1.clone())),
            "resourcequotas" => self.work.push_back(Work::Recount(namespace.clone())),
            "pods"
                if matches!(text(object, &["status", "phase"]), "Succeeded" | "Failed")
                    && self.has_quotas(namespace) =>
            {
                self.work.push_back(Work::Recount(namespace.clone()));
            }
            _ => {}
        }
    }

    /// Removes an object and notes what follows; its last state.
    pub fn remove_object(&mut self, place: &Place) -> Option<Arc<Value>> {
        let last = self.store.remove(place)?;
        let uid = text(&last, &["metadata", "uid"]).to_owned();
        self.applied.retain(|(owner, _, _), _| *owner != uid);
        self.work.push_back(Work::OwnerGone(uid));
        for owner in list(&last, &["metadata", "ownerReferences"]) {
            // An owner that is deleted in the foreground may have waited for this one.
            if let Some(owner) = self.store.place_of_uid(text(owner, &["uid"])) {
                self.work.push_back(Work::Propagate(owner.clone()));
            }
        }
        let namespace = &place.key.0;
        if !namespace.is_empty() {
            if self.has_quotas(namespace) {
                self.work.push_back(Work::Recount(namespace.clone()));
            }
            let terminating = self
                .store
                .get("namespaces", "", namespace)
                .is_some_and(|n| !text(n, &["metadata", "deletionTimestamp"]).is_empty());
            if terminating {
                self.work.push_back(Work::EmptyNamespace(namespace.clone()));
            }
        }
        match place.table.as_ref() {
            CRDS => self.unserve(&last),
            POLICIES | BINDINGS => self.policies.forget(),
            _ => {}
        }
        Some(last)
    }

    /// Does everything that writes left behind, until nothing is left.
    pub fn run_controllers(&mut self) {
        while let Some(work) = self.work.pop_front() {
            match work {
                Work::OwnerGone(uid) => {
                    for place in self.store.dependents_of(&uid) {
                        self.collect(&place);
                    }
                }
                Work::CheckOwners(place) => self.collect(&place),
                Work::Propagate(place) => self.propagate(&place),
                Work::EmptyNamespace(name) => self.empty_namespace(&name),
                Work::Recount(namespace) => {
                    if !self.work.iter().any(|w| *w == Work::Recount(namespace.clone())) {
                        self.recount_quotas(&namespace);
                    }
                }
            }
        }
    }

    /// Deletes an object none of whose owners exists; then looks after owners that wait for it.
    fn collect(&mut self, place: &Place) {
        let Some(object) = self.store.get(&place.table, &place.key.0, &place.key.1).cloned() else { return };
        let owners = list(&object, &["metadata", "ownerReferences"]);
        let alive = |owner: &Value| {
            let found = self.store.place_of_uid(text(owner, &["uid"]));
            // A namespaced owner must be in the same namespace.
            found.is_some_and(|p| p.key.0.is_empty() || p.key.0 == place.key.0)
        };
        if owners.is_empty() || owners.iter().any(alive) {
            return;
        }
        self.delete_in_background(place, &object, "");
    }

    fn delete_in_background(&mut self, place: &Place, object: &Arc<Value>, propagation: &str) {
        let Some(resource) = self.catalogue.of_table(&place.table).cloned() else { return };
        if !text(object, &["metadata", "deletionTimestamp"]).is_empty() {
            return;
        }
        let options = DeleteOptions { propagation: propagation.to_owned(), ..DeleteOptions::default() };
        self.delete_now(place, &resource, object, &options);
    }

    /// Carries out the `orphan` and `foregroundDeletion` finalizers.
    fn propagate(&mut self, place: &Place) {
        let Some(object) = self.store.get(&place.table, &place.key.0, &place.key.1).cloned() else { return };
        let uid = text(&object, &["metadata", "uid"]).to_owned();
        if text(&object, &["metadata", "deletionTimestamp"]).is_empty() {
            return;
        }
        let finalizers = list(&object, &["metadata", "finalizers"]);
        if finalizers.iter().any(|f| f == ORPHAN) {
            for dependent in self.store.dependents_of(&uid) {
                self.drop_owner(&dependent, &uid);
            }
            self.drop_finalizer(place, &object, ORPHAN);
        } else if finalizers.iter().any(|f| f == FOREGROUND) {
            let mut blocking = false;
            for dependent in self.store.dependents_of(&uid) {
                let Some(child) =
                    self.store.get(&dependent.table, &dependent.key.0, &dependent.key.1).cloned()
                else {
                    continue;
                };
                self.delete_in_background(&dependent, &child, "Foreground");
                let owners = list(&child, &["metadata", "ownerReferences"]);
                let blocks =
                    owners.iter().any(|o| o["uid"] == uid.as_str() && o["blockOwnerDeletion"] == true);
                let lives = self.store.get(&dependent.table, &dependent.key.0, &dependent.key.1).is_some();
                blocking |= blocks && lives;
            }
            if !blocking {
                self.drop_finalizer(place, &object, FOREGROUND);
            }
        }
    }

    fn drop_owner(&mut self, place: &Place, uid: &str) {
        let Some(object) = self.store.get(&place.table, &place.key.0, &place.key.1) else { return };
        let mut object = (**object).clone();
        let kept: Vec<Value> = list(&object, &["metadata", "ownerReferences"])
            .iter()
            .filter(|o| o["uid"] != uid)
            .cloned()
            .collect();
        if kept.is_empty() {
            remove(&mut object, &["metadata", "ownerReferences"]);
        } else {
            set(&mut object, &["metadata", "ownerReferences"], kept);
        }
        self.store.put(place, object);
    }

    fn drop_finalizer(&mut self, place: &Place, object: &Arc<Value>, finalizer: &str) {
        let mut object = (**object).clone();
        let kept: Vec<Value> =
            list(&object, &["metadata", "finalizers"]).iter().filter(|f| *f != finalizer).cloned().collect();
        if kept.is_empty() {
            remove(&mut object, &["metadata", "finalizers"]);
        } else {
            set(&mut object, &["metadata", "finalizers"], kept);
        }
        self.store.put(place, object.clone());
        if finished_deleting(&object) {
            self.remove_object(place);
        }
    }

    /// Deletes the content of a terminating namespace, and the namespace once it is empty.
    fn empty_namespace(&mut self, name: &str) {
        let content: Vec<(Place, Arc<Value>)> = self
            .store
            .tables()
            .flat_map(|(table, t)| {
                t.scan(name).map(|(key, o)| (Place { table: table.clone(), key: key.clone() }, o.clone()))
            })
            .collect();
        for (place, object) in &content {
            self.delete_in_background(place, object, "");
        }
        let empty = self.store.tables().all(|(_, t)| t.scan(name).next().is_none());
        let place = Place { table: "namespaces".into(), key: (String::new(), name.to_owned()) };
        let held = self
            .store
            .get("namespaces", "", name)
            .is_none_or(|n| !list(n, &["metadata", "finalizers"]).is_empty());
        if empty && !held {
            self.remove_object(&place);
        }
    }

    /// Starts serving what a CustomResourceDefinition defines.
    fn serve(&mut self, place: &Place, crd: &Arc<Value>) {
        let group = text(crd, &["spec", "group"]);
        let plural = text(crd, &["spec", "names", "plural"]);
        self.catalogue.remove(group, plural);
        let mut stored_versions = Vec::new();
        for version in list(crd, &["spec", "versions"]) {
            if version["storage"] == true {
                stored_versions.push(version["name"].clone());
            }
            if version["served"] == true {
                self.catalogue.add(custom_resource(crd, version));
            }
        }
        let table = table_name(group, plural);
        self.store.table_mut(&table);
        let status = json!({
            "acceptedNames": crd["spec"]["names"], "storedVersions": stored_versions,
            "conditions": [
                condition("NamesAccepted", "NoConflicts", "no conflicts found", self.now),
                condition("Established", "InitialNamesAccepted", "the initial names have been accepted", self.now),
            ],
        });
        // Only once: the conditions' times must not move with every change.
        if at(crd, &["status", "acceptedNames"]) != Some(&crd["spec"]["names"]) {
            let mut established = (**crd).clone();
            set(&mut established, &["status"], status);
            self.store.put(place, established);
        }
    }

    fn unserve(&mut self, crd: &Value) {
        let group = text(crd, &["spec", "group"]);
        let plural = text(crd, &["spec", "names", "plural"]);
        let table = table_name(group, plural);
        let objects: Vec<Place> = self
            .store
            .table(&table)
            .into_iter()
            .flat_map(|t| t.objects.keys())
            .map(|key| Place { table: table.clone(), key: key.clone() })
            .collect();
        for place in objects {
            self.remove_object(&place);
        }
        self.catalogue.remove(group, plural);
    }
}

fn condition(kind: &str, reason: &str, message: &str, now: jiff::Timestamp) -> Value {
    json!({"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": stamp(now)})
}

fn custom_resource(crd: &Value, version: &Value) -> Resource {
    let path = |value: &Value| -> Vec<String> {
        let text = value.as_str().unwrap_or("");
        text.split('.').filter(|p| !p.is_empty()).map(str::to_owned).collect()
    };
    let group = text(crd, &["spec", "group"]);
    let plural = text(crd, &["spec", "names", "plural"]);
    let scale = at(version, &["subresources", "scale"]).map(|scale| Scale {
        spec: path(&scale["specReplicasPath"]),
        status: path(&scale["statusReplicasPath"]),
        selector: scale.get("labelSelectorPath").map(path),
    });
    Resource {
        group: group.to_owned(),
        version: text(version, &["name"]).to_owned(),
        plural: plural.to_owned(),
        singular: text(crd, &["spec", "names", "singular"]).to_owned(),
        kind: text(crd, &["spec", "names", "kind"]).to_owned(),
        namespaced: text(crd, &["spec", "scope"]) != "Cluster",
        status: at(version, &["subresources", "status"]).is_some(),
        scale,
        table: table_name(group, plural),
        custom: Some(Arc::new(Schema::root(
            at(version, &["schema", "openAPIV3Schema"]).unwrap_or(&Value::Null),
        ))),
        generation: true,
    }
}
