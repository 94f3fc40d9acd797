//! What a simulated pod does once it runs: read from its annotations, or given by the caller.
//!
//! ```text
//! annotations kubesim.dev/* ──► Script ──► node::NodeMachine
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

/// The prefix of every annotation read here.
pub const PREFIX: &str = "kubesim.dev/";

/// How one pod behaves. The default starts at once, is ready at once, runs until deleted, and
/// ends one second after SIGTERM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// `start-delay`: from admission to the containers' start (image pulls, volumes).
    pub start_delay: Duration,
    /// `ready-delay`: from a container's start to its readiness.
    pub ready_delay: Duration,
    /// `run-for`: how long each container runs before it exits by itself; `None` runs on.
    pub run_for: Option<Duration>,
    /// `exit-code`: what the containers exit with after `run_for`.
    pub exit_code: i32,
    /// `fail-once-at`: the first run of each container ends after this with a non-zero code
    /// (`exit_code`, or 1 where that is 0); later runs follow `run_for`.
    pub fail_once_at: Option<Duration>,
    /// `term-delay`: from SIGTERM to exit; the grace period cuts it short with SIGKILL.
    pub term_delay: Duration,
    /// `exit-on-term`: the code after SIGTERM.
    pub exit_on_term: i32,
    /// `ignore-sigterm`: only SIGKILL at the end of the grace period ends the containers.
    pub ignore_sigterm: bool,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            start_delay: Duration::ZERO,
            ready_delay: Duration::ZERO,
            run_for: None,
            exit_code: 0,
            fail_once_at: None,
            term_delay: Duration::from_secs(1),
            exit_on_term: SIGTERM_EXIT,
            ignore_sigterm: false,
        }
    }
}

/// 128 + SIGTERM: a process that has no handler for it.
const SIGTERM_EXIT: i32 = 143;

/// An annotation that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {PREFIX}{key}: {value:?} is not {expected}")]
pub struct ScriptError {
    /// The annotation's name without the prefix.
    pub key: String,
    /// Its value.
    pub value: String,
    /// What would have been read.
    pub expected: &'static str,
}

impl Script {
    /// Reads the `kubesim.dev/` annotations; an unknown one is an error, so that a typo does not
    /// go unseen.
    pub fn from_annotations(annotations: &BTreeMap<String, String>) -> Result<Self, ScriptError> {
        let mut script = Self::default();
        for (key, value) in annotations {
            if let Some(key) = key.strip_prefix(PREFIX) {
                script.set(key, value).map_err(|expected| ScriptError {
                    key: key.to_owned(),
                    value: value.clone(),
                    expected,
                })?;
            }
        }
        Ok(script)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        let duration = || parse_duration(value).ok_or("a duration such as 30s, 1m30s or 200ms");
        let code = || value.parse::<i32>().map_err(|_| "an exit code");
        match key {
            "start-delay" => self.start_delay = duration()?,
            "ready-delay" => self.ready_delay = duration()?,
            "run-for" => self.run_for = Some(duration()?),
            "exit-code" => self.exit_code = code()?,
            "fail-once-at" => self.fail_once_at = Some(duration()?),
            "term-delay" => self.term_delay = duration()?,
            "exit-on-term" => self.exit_on_term = code()?,
            "ignore-sigterm" => {
                self.ignore_sigterm = value.parse().map_err(|_| "true or false")?;
            }
            _ => {
                return Err("known: write start-delay, ready-delay, run-for, exit-code, fail-once-at, \
                            term-delay, exit-on-term or ignore-sigterm");
            }
        }
        Ok(())
    }

    /// When a run that is the container's `restarts`-th (0 is the first) ends by itself, counted
    /// from its start, and with which code.
    pub(crate) fn end_of_run(&self, restarts: u32) -> Option<(Duration, i32)> {
        match self.fail_once_at {
            Some(at) if restarts == 0 => Some((at, if self.exit_code == 0 { 1 } else { self.exit_code })),
            _ => self.run_for.map(|after| (after, self.exit_code)),
        }
    }

    /// How long after SIGTERM the containers end, and with which code.
    pub(crate) fn end_on_term(&self, grace: Duration) -> (Duration, i32) {
        if self.ignore_sigterm || self.term_delay > grace {
            (grace, crate::kubelet::node::SIGKILL_EXIT)
        } else {
            (self.term_delay, self.exit_on_term)
        }
    }
}

/// Unit suffixes of Go's durations and their length in nanoseconds; longer suffixes first.
const UNITS: [(&str, f64); 7] =
    [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("h", 3.6e12), ("m", 6e10), ("s", 1e9)];

/// A Go duration without sign: `1h30m`, `1.5s`, `200ms`, `0`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut nanos = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let &(suffix, unit) = UNITS.iter().find(|(suffix, _)| rest.starts_with(suffix))?;
        nanos += number * unit;
        rest = &rest[suffix.len()..];
    }
    (!text.is_empty() && nanos < u64::MAX as f64).then(|| Duration::from_nanos(nanos.round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations() {
        for (text, millis) in [
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            ("200ms", 200),
            ("0", 0),
            ("1h1ms", 3_600_001),
        ] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "30", "s", "1x", "-1s", "1.2.3s"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn a_typo_is_named() {
        let annotations = BTreeMap::from([(format!("{PREFIX}run-fro"), "1s".to_owned())]);
        let error = Script::from_annotations(&annotations).expect_err("unknown annotation");
        assert!(error.to_string().contains("kubesim.dev/run-fro"), "{error}");
    }

    #[test]
    fn the_first_run_can_fail_once() {
        let script = Script { fail_once_at: Some(Duration::from_secs(5)), ..Script::default() };
        assert_eq!(script.end_of_run(0), Some((Duration::from_secs(5), 1)));
        assert_eq!(script.end_of_run(1), None);
    }
}
