//! What explains a failure: the state of the jobs, and what was said about them.

use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use muster_api::TrainingJob;
use std::fmt::Write;

use super::stage::RESEARCH;

/// How many of the latest events are shown.
const EVENTS: usize = 20;

/// Jobs and events as text; also where the API server does not answer.
pub async fn facts(client: &Client) -> String {
    let mut text = String::new();
    match jobs(client).await {
        Ok(lines) => text.push_str(&lines),
        Err(error) => {
            let _ = writeln!(text, "the jobs cannot be read: {error}");
        }
    }
    match events(client).await {
        Ok(events) => {
            let _ = writeln!(text, "the latest events:");
            for event in events.iter().rev().take(EVENTS).rev() {
                let _ = writeln!(text, "  {}", sentence(event));
            }
        }
        Err(error) => {
            let _ = writeln!(text, "the events cannot be read: {error}");
        }
    }
    text
}

async fn jobs(client: &Client) -> kube::Result<String> {
    let mut text = "the jobs:\n".to_owned();
    let jobs: Api<TrainingJob> = Api::namespaced(client.clone(), RESEARCH);
    for job in jobs.list(&ListParams::default()).await? {
        let name = job.name_any();
        let status = job.status.unwrap_or_default();
        let phase = status.phase.map_or_else(|| "no status".to_owned(), |phase| format!("{phase:?}"));
        let _ = writeln!(
            text,
            "  {name}: {phase}, {} units, plan {}, {}: {}",
            status.units.summary,
            status.generation.unwrap_or_default(),
            status.reason.as_deref().unwrap_or("no reason"),
            status.message.as_deref().unwrap_or("no message"),
        );
    }
    Ok(text)
}

/// The events of the examples' namespace, oldest first.
///
/// # Errors
/// When the API server does not answer.
pub async fn events(client: &Client) -> kube::Result<Vec<Event>> {
    let events: Api<Event> = Api::namespaced(client.clone(), RESEARCH);
    let mut events = events.list(&ListParams::default()).await?.items;
    // Within a second their order is that of their creation, which the version tells.
    let version =
        |event: &Event| event.resource_version().and_then(|v| v.parse::<u64>().ok()).unwrap_or_default();
    events.sort_by_key(version);
    Ok(events)
}

fn sentence(event: &Event) -> String {
    let about = &event.involved_object;
    format!(
        "{} {}: {}: {}",
        about.kind.as_deref().unwrap_or_default(),
        about.name.as_deref().unwrap_or_default(),
        event.reason.as_deref().unwrap_or_default(),
        event.message.as_deref().unwrap_or_default()
    )
}
