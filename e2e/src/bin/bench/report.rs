//! The figures, for people.

use std::collections::BTreeMap;

use crate::case::Row;
use crate::{CONCURRENCY, GPUS, NODES, cpu};

/// Share of C that is aimed at.
const SHARE: f64 = 0.90;
/// Writes per pod that are aimed at.
const WRITES: f64 = 1.05;

impl Row {
    fn rate(&self) -> f64 {
        self.case.total() as f64 / self.time
    }

    fn share(&self) -> f64 {
        self.rate() / self.c.rate()
    }

    fn per_pod(&self, counts: &BTreeMap<String, usize>) -> f64 {
        counts.values().sum::<usize>() as f64 / self.case.total() as f64
    }

    /// Milliseconds of CPU for each pod.
    fn cost(&self, seconds: f64) -> f64 {
        seconds * 1000.0 / self.case.total() as f64
    }
}

fn counts(counts: &BTreeMap<String, usize>) -> String {
    counts.iter().map(|(what, count)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
}

/// One case, in words.
pub fn row(row: &Row) {
    let of_c = &row.c.parts;
    println!("\n{}", row.case);
    println!(
        "  C {:.0} pods/s; placed {:.0} pods/s = {:.1} % of C; {:.2} s from apply to the last pod",
        row.c.rate(),
        row.rate(),
        row.share() * 100.0,
        row.time
    );
    println!(
        "  first plan committed after {:.0} ms, last after {:.0} ms; first pod after {:.0} ms",
        row.first_plan * 1e3,
        row.last_plan * 1e3,
        row.first_pod * 1e3
    );
    println!("  {:.4} writes per pod: {}", row.per_pod(&row.writes), counts(&row.writes));
    println!(
        "  {:.4} over the whole life: {}; and {} of the Lease",
        row.per_pod(&row.life),
        counts(&row.life),
        row.leases
    );
    let answers = row.latencies.iter().map(|(what, (half, most))| format!("{what} {half:.0} and {most:.0}"));
    println!("  answered within ms (median, 99 %): {}", answers.collect::<Vec<_>>().join("; "));
    println!("  deleted {:.0} pods/s ({:.2} s)", row.case.total() as f64 / row.deletion, row.deletion);
    println!(
        "  CPU ms per pod (C's in brackets): operator {:.3} (loop {:.3}), {}",
        row.cost(row.operator),
        row.cost(row.c.own),
        of_c.0
            .iter()
            .map(|(name, used)| {
                format!("{name} {:.3} ({:.3})", row.cost(row.parts.of(name)), row.cost(*used))
            })
            .collect::<Vec<_>>()
            .join(", ")
    );
    println!("  {}", bound(row));
}

/// What keeps it from more.
fn bound(row: &Row) -> String {
    let cores = cpu::cores() as f64;
    let (busy, ours) = (row.machine / row.time, row.parts.total() / row.time);
    let operator = row.operator / row.time;
    let server =
        row.cost(row.parts.of("kube-apiserver")) / row.cost(row.c.parts.of("kube-apiserver")).max(1e-9);
    let usage = format!(
        "{busy:.2} of {cores:.0} cores busy, {:.2} of them by other programs; the operator used {operator:.2}, the \
         API server {server:.2} times the CPU per pod that it needs in the loop",
        (busy - ours).max(0.0)
    );
    if row.share() >= SHARE && row.per_pod(&row.writes) <= WRITES {
        return format!("target met ({usage})");
    }
    let reason = if busy > 0.9 * cores {
        "the machine's cores are used up: every CPU second of operator and watch is one that the API server lacks"
    } else if operator > 0.8 {
        "the operator's one loop is busy all the time"
    } else {
        "neither the cores nor the operator's loop: it waits for answers"
    };
    format!("bound by: {reason} ({usage})")
}

/// All cases, as a table of Markdown.
pub fn table(rows: &[Row], server: &str) {
    let model = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or("")
        .trim_matches([' ', '\t', ':']);
    println!(
        "\n{} cores ({model}), Kubernetes {server}, etcd in memory without fsync, muster {}, {NODES} nodes of {GPUS} \
         GPUs, pods of 1 GPU ({} bytes of JSON), {CONCURRENCY} requests at once, no randomness and no seeds",
        cpu::cores(),
        env!("CARGO_PKG_VERSION"),
        rows.first().map_or(0, |row| row.c.bytes)
    );
    println!("target: at least {:.0} % of C, at most {WRITES} writes per pod\n", SHARE * 100.0);
    println!(
        "| case | share of C | writes per pod | whole life | CPU per pod: operator ÷ loop | API server ÷ its own in C | \
         C, pods/s | apply → last pod | last plan | deletion |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        println!(
            "| {} | {:.1} % | {:.4} | {:.4} | {:.2} | {:.2} | {:.0} | {:.2} s | {:.0} ms | {:.0} pods/s |",
            row.case,
            row.share() * 100.0,
            row.per_pod(&row.writes),
            row.per_pod(&row.life),
            row.operator / row.c.own.max(1e-9),
            row.parts.of("kube-apiserver") / row.c.parts.of("kube-apiserver").max(1e-9),
            row.c.rate(),
            row.time,
            row.last_plan * 1e3,
            row.case.total() as f64 / row.deletion
        );
    }
}
