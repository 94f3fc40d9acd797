//! How many accelerators a pod takes: those of the container that the gang gives them to, and those that others ask for.
//!
//! ```text
//!   PodSpec with the gang's accelerators given ──convert::pod_requests (sidecars, peak of init containers)──▶ total
//! ```

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use muster_model::Reason;
use std::collections::{BTreeMap, BTreeSet};

use crate::convert;

/// Where a user has written what a pod gets.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    /// Path of the pod's specification, such as `spec.template.spec`.
    pub spec: &'a str,
    /// Field that gives the number of accelerators, such as `spec.accelerator.perPod`.
    pub devices: &'a str,
    /// Field that names the container, such as `spec.accelerator.container`.
    pub container: &'a str,
    /// Field that names the accelerator classes, such as `spec.accelerator.classes`.
    pub classes: &'a str,
}

/// Position of the container that gets the accelerators, and whose exit decides: the one that is named, else the first.
/// `None` where there is none.
pub fn container(spec: &PodSpec, named: Option<&str>) -> Option<usize> {
    match named {
        Some(name) => spec.containers.iter().position(|container| container.name == name),
        None => (!spec.containers.is_empty()).then_some(0),
    }
}

/// Accelerators of one pod, where `given` go to the container `named`. `resources` are those of the allowed classes.
///
/// # Errors
/// [`Reason::Invalid`]: no such container, another number than the one that is given, or accelerators of which only some
/// of the allowed classes have the resource.
pub fn total(
    fields: &Fields<'_>,
    spec: &PodSpec,
    named: Option<&str>,
    given: u32,
    resources: &BTreeSet<&str>,
) -> Result<u32, Reason> {
    let invalid = |field: String, message: String, remedy: String| Reason::Invalid { field, message, remedy };
    let Some(at) = container(spec, named) else {
        return match named {
            Some(name) => Err(invalid(
                fields.container.to_owned(),
                format!("{} has no container named {name:?}", fields.spec),
                "name one that exists".into(),
            )),
            None => Ok(given),
        };
    };
    if resources.len() > 1
        && let Some((path, resource)) = asks(spec, resources)
    {
        return Err(invalid(
            format!("{}.{path}", fields.spec),
            format!("asks for {resource}, which only some of the allowed accelerator classes have"),
            format!("leave it out, or allow only classes with that resource in {}", fields.classes),
        ));
    }
    let mut most = given;
    for resource in resources {
        if given > 0 {
            agrees(fields, at, &spec.containers[at], resource, given)?;
        }
        let requests = convert::pod_requests(&with(spec, at, resource, given), &BTreeMap::new());
        let all = requests.map_or(0, |requests| requests.get(resource));
        most = most.max(u32::try_from(all).unwrap_or(u32::MAX));
    }
    Ok(most)
}

/// The template with the accelerators given to one container.
fn with(spec: &PodSpec, at: usize, resource: &str, given: u32) -> PodSpec {
    let mut spec = PodSpec {
        containers: spec.containers.clone(),
        init_containers: spec.init_containers.clone(),
        ..PodSpec::default()
    };
    if let (Some(container), true) = (spec.containers.get_mut(at), given > 0) {
        let own = container.resources.get_or_insert_default();
        let amount = Quantity(given.to_string());
        own.requests.get_or_insert_default().insert(resource.to_owned(), amount.clone());
        own.limits.get_or_insert_default().insert(resource.to_owned(), amount);
    }
    spec
}

/// A template may state the number that is given itself, but no other.
fn agrees(
    fields: &Fields<'_>,
    at: usize,
    container: &Container,
    resource: &str,
    given: u32,
) -> Result<(), Reason> {
    let Some(own) = &container.resources else { return Ok(()) };
    for (list, amounts) in [("requests", &own.requests), ("limits", &own.limits)] {
        let stated = amounts.as_ref().and_then(|amounts| amounts.get(resource));
        if let Some(stated) = stated.filter(|stated| stated.0 != given.to_string()) {
            return Err(Reason::Invalid {
                field: format!("{}.containers[{at}].resources.{list}[{resource}]", fields.spec),
                message: format!("is {}, but each pod gets {given}", crate::text::bounded(&stated.0, 32)),
                remedy: format!("leave it out, or set {} to the same", fields.devices),
            });
        }
    }
    Ok(())
}

/// The first container that asks for one of these resources itself: its field, and the resource.
fn asks<'a>(spec: &PodSpec, resources: &BTreeSet<&'a str>) -> Option<(String, &'a str)> {
    let inits =
        spec.init_containers.iter().flatten().enumerate().map(|(at, one)| ("initContainers", at, one));
    let all = spec.containers.iter().enumerate().map(|(at, one)| ("containers", at, one)).chain(inits);
    for (list, at, container) in all {
        let Some(own) = &container.resources else { continue };
        for (kind, amounts) in [("requests", &own.requests), ("limits", &own.limits)] {
            let asked = resources.iter().find(|name| amounts.iter().any(|all| all.contains_key(**name)));
            if let Some(resource) = asked {
                return Some((format!("{list}[{at}].resources.{kind}[{resource}]"), resource));
            }
        }
    }
    None
}
