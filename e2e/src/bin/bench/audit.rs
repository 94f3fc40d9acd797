//! What the API server says was asked of it.

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::Path;

/// One request, from a line of the audit log (`audit.k8s.io/v1` Event, stage ResponseComplete).
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// create, update, patch, delete, get, …
    pub verb: String,
    /// Who asked.
    user: User,
    /// Path and query.
    #[serde(rename = "requestURI")]
    uri: String,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: Status,
    /// When it arrived.
    #[serde(rename = "requestReceivedTimestamp")]
    pub begun: Timestamp,
    /// When its answer was complete.
    #[serde(rename = "stageTimestamp")]
    pub ended: Timestamp,
}

#[derive(Clone, Debug, Deserialize)]
struct User {
    username: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ObjectRef {
    resource: String,
    subresource: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
}

impl Request {
    /// Resource, with its subresource: `gangs/status`.
    pub fn what(&self) -> String {
        match self.object_ref.subresource.as_str() {
            "" => self.object_ref.resource.clone(),
            sub => format!("{}/{sub}", self.object_ref.resource),
        }
    }

    /// Whether this user asked.
    pub fn by(&self, user: &str) -> bool {
        self.user.username == user
    }

    /// Whether it asked for a change; one that was refused counts as well.
    pub fn writes(&self) -> bool {
        matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection")
            && !self.uri.contains("dryRun=All")
    }

    /// Whether it was granted.
    pub fn granted(&self) -> bool {
        (200..300).contains(&self.response_status.code)
    }

    /// Whether it is this verb on this resource.
    pub fn is(&self, verb: &str, what: &str) -> bool {
        self.verb == verb && self.what() == what
    }
}

/// How long the log is now.
pub fn length(log: &Path) -> Result<u64> {
    Ok(std::fs::metadata(log).with_context(|| format!("cannot read {}", log.display()))?.len())
}

/// The requests that were logged after the log was `from` bytes long.
pub fn read(log: &Path, from: u64) -> Result<Vec<Request>> {
    let mut file = std::fs::File::open(log).with_context(|| format!("cannot read {}", log.display()))?;
    file.seek(SeekFrom::Start(from))?;
    let mut requests = Vec::new();
    for line in BufReader::new(file).lines() {
        let line = line?;
        // Watches are logged when they end, and a line may be half written.
        if let Ok(request) = serde_json::from_str::<Request>(&line) {
            requests.push(request);
        }
    }
    Ok(requests)
}

/// How often each verb was used on each resource.
pub fn count<'a>(requests: impl Iterator<Item = &'a Request>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for request in requests {
        let refused = if request.granted() { "" } else { " (refused)" };
        *counts.entry(format!("{} {}{refused}", request.verb, request.what())).or_default() += 1;
    }
    counts
}

/// How long the server took to answer each verb on each resource: median and 99th percentile, in milliseconds.
pub fn latencies<'a>(requests: impl Iterator<Item = &'a Request>) -> BTreeMap<String, (f64, f64)> {
    let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for request in requests {
        let time = request.ended.duration_since(request.begun).as_secs_f64() * 1e3;
        all.entry(format!("{} {}", request.verb, request.what())).or_default().push(time);
    }
    let of = |mut times: Vec<f64>| {
        times.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        (at(0.5), at(0.99))
    };
    all.into_iter().map(|(what, times)| (what, of(times))).collect()
}
