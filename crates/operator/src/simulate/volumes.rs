//! Where the volumes of jobs on a live cluster can be used, looked up once each.
//!
//! ```text
//!   templates ──sources──▶ look_up (reads) ──▶ Volumes ──learned──▶ World::request
//! ```

use k8s_openapi::api::core::v1::PodSpec;
use kube::Client;
use muster_api::RoleSpec;
use muster_cluster::{
    template::Learned,
    volumes::{Found, Source, sources},
};
use muster_model::Reason;
use std::collections::BTreeMap;

/// What was found.
#[derive(Debug, Default)]
pub struct Volumes {
    /// By namespace and source; what was not looked up is not heeded.
    known: BTreeMap<(String, Source), Result<Found, Reason>>,
}

impl Volumes {
    /// Reads what stands behind the volumes of some pods. What may not be read is not heeded, and noted.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn look_up(
        &mut self,
        client: &Client,
        namespace: &str,
        spec: &PodSpec,
        notes: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        for source in sources(spec) {
            let key = (namespace.to_owned(), source);
            if self.known.contains_key(&key) {
                continue;
            }
            match muster_controllers::volumes::look_up(client, namespace, &key.1).await {
                Ok(found) => drop(self.known.insert(key, found)),
                Err(kube::Error::Api(status)) if status.code == super::live::FORBIDDEN => {
                    let note = format!("{}: where volumes can be used is not heeded", status.message);
                    if !notes.contains(&note) {
                        notes.push(note);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// What is known of the pods of roles beyond their templates, by role.
    ///
    /// # Errors
    /// A claim that keeps them from starting.
    pub fn learned(&self, namespace: &str, roles: &[RoleSpec]) -> Result<BTreeMap<String, Learned>, Reason> {
        let mut all = BTreeMap::new();
        for role in roles {
            // What cannot be read is said with its field by whoever reads the template.
            let Ok(spec) = role.template.pod_spec() else { continue };
            let Ok(mut learned) = Learned::of(&spec) else { continue };
            for source in sources(&spec) {
                match self.known.get(&(namespace.to_owned(), source.clone())) {
                    Some(Ok(found)) => learned.add(&source, found.clone()),
                    Some(Err(reason)) => return Err(reason.clone()),
                    None => {}
                }
            }
            all.insert(role.name.clone(), learned);
        }
        Ok(all)
    }
}
