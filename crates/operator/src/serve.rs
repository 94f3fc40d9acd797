//! `/livez`, `/readyz` and `/metrics`.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::{Router, routing::get};
use muster_controllers::pulse::View;
use muster_controllers::{Pulse, Snapshot};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::watch::Receiver;
use tokio_util::sync::CancellationToken;

/// What a process shows of itself.
#[derive(Clone)]
struct Shown {
    snapshot: Receiver<Snapshot>,
    pulse: Pulse,
}

/// Serves until `stop`.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    snapshot: Receiver<Snapshot>,
    pulse: Pulse,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(Shown { snapshot, pulse });
    axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await
}

/// Not live: only a restart helps.
async fn live(State(shown): State<Shown>) -> impl IntoResponse {
    match shown.pulse.live() {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

async fn ready(State(shown): State<Shown>) -> impl IntoResponse {
    let snapshot = shown.snapshot.borrow().clone();
    match readiness(snapshot, &shown.pulse.views()) {
        Ok(words) => (StatusCode::OK, format!("{words}\n")),
        Err(words) => (StatusCode::SERVICE_UNAVAILABLE, format!("{words}\n")),
    }
}

/// Ready: it leads with everything known, or it stands by. Not ready: it has the Lease but cannot lead.
fn readiness(shown: Snapshot, views: &[View]) -> Result<String, String> {
    match (shown.epoch, shown.synced, shown.trouble) {
        (_, _, Some(trouble)) => Err(trouble),
        (Some(epoch), true, None) => Ok(format!("leading, epoch {epoch}")),
        (Some(_), false, None) => {
            let missing: Vec<String> = views.iter().filter(|v| !v.synced).map(ToString::to_string).collect();
            let colon = if missing.is_empty() { "" } else { ": " };
            Err(format!("reading the cluster's state{colon}{}", missing.join("; ")))
        }
        (None, ..) => Ok("standing by".into()),
    }
}

async fn metrics(State(shown): State<Shown>) -> impl IntoResponse {
    let snapshot = shown.snapshot.borrow().clone();
    match text(&snapshot, &shown.pulse.views()) {
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
pub fn text(shown: &Snapshot, views: &[View]) -> Result<String, std::fmt::Error> {
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
    registry.register(
        "node_brakes",
        "Groups of nodes (the cluster, domains) of which none counts as lost for its silence now",
        ConstGauge::new(shown.brakes as i64),
    );
    for (name, help, value) in [
        ("plans_committed", "Plans put in force in this term", counters.placed),
        (
            "plans_failed",
            "Plans taken back because they could not be carried out: a pod refused or not started",
            counters.plans_failed,
        ),
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
    let of_kind = |value: fn(&View) -> i64| {
        family(views.iter().map(|view| ("kind", view.kind.clone(), value(view))).collect())
    };
    registry.register(
        "watch_age_seconds",
        "Seconds since something was heard of a watched kind: an event, a bookmark, a page of a list",
        of_kind(|view| view.age.as_secs() as i64),
    );
    registry.register(
        "unreadable_objects",
        "Objects that cannot be read, by kind; the log names them and the field",
        of_kind(|view| view.unreadable as i64),
    );
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn view(kind: &str, synced: bool) -> View {
        View {
            kind: kind.into(),
            age: Duration::from_millis(32_900),
            listing: (!synced).then_some(Duration::from_secs(50)),
            synced,
            unreadable: 2,
            trouble: (!synced).then(|| "cannot list: no answer within 20s".into()),
        }
    }

    #[test]
    fn metrics_say_what_the_snapshot_says() {
        let mut shown = Snapshot { epoch: Some(7), synced: true, ..Snapshot::default() };
        shown.counters.pods_created = 3;
        shown.counters.refused.insert("NoNodeFits", 2);
        shown.phases.insert("Running".into(), 4);
        let text = text(&shown, &[view("pods", true)]).expect("text");
        for line in [
            "muster_leader 1",
            "muster_epoch 7",
            "muster_pods_created_total 3",
            "muster_refusals{reason=\"NoNodeFits\"} 2",
            "muster_gangs{phase=\"Running\"} 4",
            "muster_watch_age_seconds{kind=\"pods\"} 32",
            "muster_unreadable_objects{kind=\"pods\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn readiness_names_the_kinds_that_are_missing() {
        let views = [view("nodes", true), view("pods", false)];
        let shown = |epoch, synced| Snapshot { epoch, synced, ..Snapshot::default() };
        assert_eq!(readiness(shown(None, false), &[]), Ok("standing by".into()));
        assert_eq!(readiness(shown(Some(7), true), &views), Ok("leading, epoch 7".into()));
        assert_eq!(readiness(shown(Some(7), false), &[]), Err("reading the cluster's state".into()));
        assert_eq!(
            readiness(shown(Some(7), false), &views).expect_err("not yet"),
            "reading the cluster's state: pods, listed for 50s, nothing heard for 32s (cannot list: no answer within \
             20s)"
        );
    }
}
