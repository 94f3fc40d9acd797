//! The files of `examples/`, as they are, and what is done with them.

use anyhow::{Context, Result};
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, Client, ResourceExt};

/// A file of `examples/`.
pub struct Example {
    /// Its name there.
    pub file: &'static str,
    text: &'static str,
}

macro_rules! examples {
    ($($file:literal),* $(,)?) => {
        &[$(Example { file: $file, text: include_str!(concat!("../../../../examples/", $file)) }),*]
    };
}

/// What an admin applies once.
pub const ADMIN: &[Example] = examples!["topology.yaml", "queue.yaml", "accelerator-class.yaml"];
/// Jobs that run.
pub const JOBS: &[Example] =
    examples!["llama-70b.yaml", "moe-8x22b.yaml", "elastic.yaml", "deepspeed.yaml", "finetune.yaml"];
/// A job that cannot.
pub const IMPOSSIBLE: Example =
    Example { file: "impossible.yaml", text: include_str!("../../../../examples/impossible.yaml") };

impl Example {
    /// The object in it.
    ///
    /// # Errors
    /// When it is no YAML of one object.
    pub fn object(&self) -> Result<DynamicObject> {
        serde_yaml_ng::from_str(self.text).with_context(|| format!("examples/{}", self.file))
    }

    /// The name of the object in it.
    ///
    /// # Errors
    /// As [`Self::object`].
    pub fn name(&self) -> Result<String> {
        Ok(self.object()?.name_any())
    }

    /// Creates the object. Returns false when there is one of the name already: it is left as it is.
    ///
    /// # Errors
    /// When the API server refuses it, with what it says.
    pub async fn create(&self, client: &Client) -> Result<bool> {
        self.create_as(client, self.object()?).await
    }

    /// The same for an object that was changed since.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub async fn create_as(&self, client: &Client, object: DynamicObject) -> Result<bool> {
        match self.api(client, &object)?.create(&PostParams::default(), &object).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
            Err(error) => Err(error).with_context(|| format!("examples/{}", self.file)),
        }
    }

    /// Deletes the object.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn delete(&self, client: &Client) -> Result<()> {
        let object = self.object()?;
        let deleted = self.api(client, &object)?.delete(&object.name_any(), &DeleteParams::default()).await;
        match deleted {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            other => other.map(|_| ()).with_context(|| format!("examples/{}", self.file)),
        }
    }

    fn api(&self, client: &Client, object: &DynamicObject) -> Result<Api<DynamicObject>> {
        let types = object
            .types
            .as_ref()
            .with_context(|| format!("examples/{}: apiVersion or kind is missing", self.file))?;
        let gvk = GroupVersionKind::try_from(types).with_context(|| format!("examples/{}", self.file))?;
        let resource = ApiResource::from_gvk(&gvk);
        Ok(match object.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        })
    }
}

/// The topology of `examples/`.
#[cfg(test)]
pub fn topology() -> Result<muster_api::Topology> {
    serde_yaml_ng::from_str(ADMIN[0].text).context("examples/topology.yaml")
}

#[cfg(test)]
mod tests {
    use super::{ADMIN, IMPOSSIBLE, JOBS, topology};
    use crate::demo::nodes;
    use muster_api::TrainingJob;

    #[test]
    fn all_jobs_parse_and_live_where_the_queue_lets_them() {
        for example in JOBS.iter().chain([&IMPOSSIBLE]) {
            let job: TrainingJob = serde_yaml_ng::from_str(example.text).expect(example.file);
            assert_eq!(job.metadata.namespace.as_deref(), Some("research"), "{}", example.file);
            assert_eq!(job.spec.queue, "research", "{}", example.file);
        }
    }

    #[test]
    fn every_file_of_examples_is_used() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
        let mut there: Vec<String> = std::fs::read_dir(folder)
            .expect("examples/")
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
            .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .collect();
        let mut used: Vec<String> =
            ADMIN.iter().chain(JOBS).chain([&IMPOSSIBLE]).map(|example| example.file.to_owned()).collect();
        there.sort();
        used.sort();
        assert_eq!(there, used);
    }

    #[test]
    fn the_nodes_carry_a_label_of_every_level_but_nvlink() {
        let topology = topology().expect("a topology").spec.to_model();
        for node in nodes::all() {
            for (at, level) in
                topology.levels.iter().enumerate().filter(|(_, level)| level.name != "NvlinkDomain")
            {
                assert!(topology.label(at, &node.labels).is_some(), "{} has no {}", node.name, level.name);
            }
        }
    }
}
