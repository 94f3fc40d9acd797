//! `/livez`, `/readyz` and `/metrics`.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::{Router, routing::get};
use muster_controllers::Snapshot;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::watch::Receiver;
use tokio_util::sync::CancellationToken;

/// Serves until `stop`.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    shown: Receiver<Snapshot>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(shown);
    axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await
}

/// Ready: it leads with everything known, or it stands by. Not ready: it has the Lease but cannot lead.
async fn ready(State(shown): State<Receiver<Snapshot>>) -> impl IntoResponse {
    let shown = shown.borrow().clone();
    match (shown.epoch, shown.synced, shown.trouble) {
        (_, _, Some(trouble)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{trouble}\n")),
        (Some(epoch), true, None) => (StatusCode::OK, format!("leading, epoch {epoch}\n")),
        (Some(_), false, None) => {
            (StatusCode::SERVICE_UNAVAILABLE, "reading the cluster's state\n".to_owned())
        }
        (None, ..) => (StatusCode::OK, "standing by\n".to_owned()),
    }
}

async fn metrics(State(shown): State<Receiver<Snapshot>>) -> impl IntoResponse {
    let shown = shown.borrow().clone();
    match text(&shown) {
        Ok(text) => (
            StatusCode::OK,
            [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")],
            text,
        ),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            [(header::CONTENT_TYPE, "text/plain; charset=utf-8")],
            format!("{error}\n"),
        ),
    }
}

/// The metrics as OpenMetrics text.
///
/// # Errors
/// Never in practice: writing to a string.
pub fn text(shown: &Snapshot) -> Result<String, std::fmt::Error> {
    type Labelled = Family<Vec<(String, String)>, Gauge>;
    let mut registry = Registry::with_prefix("muster");
    let counters = &shown.counters;
    registry.register(
        "leader",
        "1 while this process leads",
        ConstGauge::new(i64::from(shown.epoch.is_some())),
    );
    registry.register(
        "epoch",
        "Epoch of this leader's term, 0 without one",
        ConstGauge::new(shown.epoch.unwrap_or(0)),
    );
    for (name, help, value) in [
        ("plans_committed", "Plans put in force in this term", counters.placed),
        ("plans_failed", "Plans taken back because the API server refused a pod", counters.plans_failed),
        ("pods_created", "Pods created in this term", counters.pods_created),
        ("decisions", "Decisions of the engine in this term", counters.decisions),
        ("faults", "Gangs over which the operator failed in this term: please report them", counters.tripped),
    ] {
        registry.register(name, help, ConstCounter::new(value));
    }
    let family = |entries: Vec<(&str, String, i64)>| {
        let family = Labelled::default();
        for (label, value, count) in entries {
            family.get_or_create(&vec![(label.to_owned(), value)]).set(count);
        }
        family
    };
    let phases = shown.phases.iter().map(|(phase, count)| ("phase", phase.clone(), *count as i64)).collect();
    registry.register("gangs", "Gangs by phase", family(phases));
    let refused =
        counters.refused.iter().map(|(code, count)| ("reason", (*code).to_owned(), *count as i64)).collect();
    registry.register(
        "refusals",
        "Refusals by reason in this term, counted when a gang's reason changes",
        family(refused),
    );
    let restarts =
        counters.restarts.iter().map(|(cause, count)| ("cause", cause.clone(), *count as i64)).collect();
    registry.register("restarts", "Restarts by cause in this term", family(restarts));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_say_what_the_snapshot_says() {
        let mut shown = Snapshot { epoch: Some(7), synced: true, ..Snapshot::default() };
        shown.counters.pods_created = 3;
        shown.counters.refused.insert("NoNodeFits", 2);
        shown.phases.insert("Running".into(), 4);
        let text = text(&shown).expect("text");
        for line in [
            "muster_leader 1",
            "muster_epoch 7",
            "muster_pods_created_total 3",
            "muster_refusals{reason=\"NoNodeFits\"} 2",
            "muster_gangs{phase=\"Running\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }
}
