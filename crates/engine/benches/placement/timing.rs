//! The clock, limits, and how figures are printed.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

/// How often each question is asked.
pub const PASSES: usize = 15;

pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Runs `work` and says how long it took, in microseconds.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = black_box(work());
    (result, micros(start.elapsed()))
}

/// The machine's load averages, where the system tells them.
pub fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}

/// What merely looking at every node costs on this machine, now.
pub fn calibrate() {
    let bytes: Vec<u8> = (0..129_996_u32).map(|i| (i % 9) as u8).collect();
    let records: Vec<[u64; 8]> = (0..129_996).map(|i| [i; 8]).collect();
    let least = |work: &dyn Fn() -> u64| (0..200).map(|_| timed(work).1).fold(f64::MAX, f64::min);
    let pass = least(&|| bytes.iter().map(|b| u64::from(*b)).sum());
    let wide = least(&|| records.iter().map(|r| r[3]).sum());
    println!("\nlimit: one pass over 129,996 byte counters {pass:.1}, over 64-byte records {wide:.1}");
}

/// The least time of every question over several passes.
#[derive(Default)]
pub struct Least(Vec<f64>);

impl Least {
    /// Notes one pass's time of a question.
    pub fn note(&mut self, question: usize, time: f64) {
        if self.0.len() <= question {
            self.0.resize(question + 1, f64::MAX);
        }
        self.0[question] = self.0[question].min(time);
    }

    /// Prints P50, P99 and the largest. `limit`: what P99 should not exceed.
    pub fn print(mut self, name: &str, limit: Option<f64>, more: &str) {
        self.0.sort_by(f64::total_cmp);
        let at = |share: f64| self.0[((self.0.len() - 1) as f64 * share) as usize];
        let limit = limit.map_or_else(|| "-".into(), |limit| format!("{limit}"));
        println!(
            "{name:46} n {:6}  P50 {:8.2}  P99 {:8.2} (limit {limit})  max {:8.2}  {more}",
            self.0.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
}
