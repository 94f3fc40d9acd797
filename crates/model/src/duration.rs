//! Durations as Kubernetes users write them (`90s`, `1h30m`, `500ms`), in milliseconds.

use crate::Millis;

/// Why a text is not a duration. The text tells the user what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration: write numbers with units h, m, s or ms, such as 90s or 1h30m")]
pub struct DurationError {
    /// What was given.
    pub text: String,
}

/// The pattern that the CRDs give the API server, which therefore refuses what [`parse`] would.
pub const PATTERN: &str = "^([0-9]{1,9}(ms|h|m|s))+$";

/// Milliseconds of a duration text.
///
/// # Errors
/// When the text is empty, has an unknown unit, lacks a unit or overflows.
pub fn parse(text: &str) -> Result<Millis, DurationError> {
    let fail = || DurationError { text: text.to_owned() };
    let mut rest = text;
    let mut total: Millis = 0;
    if rest.is_empty() {
        return Err(fail());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(fail)?;
        let number: Millis = rest[..digits].parse().map_err(|_| fail())?;
        rest = &rest[digits..];
        // `ms` before `m`: the longer unit first.
        let (unit, length) = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)]
            .into_iter()
            .find(|(unit, _)| rest.starts_with(unit))
            .ok_or_else(fail)?;
        rest = &rest[unit.len()..];
        total = number.checked_mul(length).and_then(|ms| total.checked_add(ms)).ok_or_else(fail)?;
    }
    Ok(total)
}

/// The shortest text of a duration, for messages: `1h30m`, `90s` becomes `1m30s`, below a second `250ms`.
pub fn format(millis: Millis) -> String {
    if millis < 0 {
        return format!("-{}", format(millis.saturating_neg()));
    }
    let (h, m, s, ms) = (millis / 3_600_000, millis / 60_000 % 60, millis / 1_000 % 60, millis % 1_000);
    let mut text = String::new();
    for (value, unit) in [(h, "h"), (m, "m"), (s, "s"), (ms, "ms")] {
        if value > 0 {
            text = format!("{text}{value}{unit}");
        }
    }
    if text.is_empty() { "0s".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_that_users_write() {
        for (text, millis) in
            [("90s", 90_000), ("1h30m", 5_400_000), ("500ms", 500), ("2m", 120_000), ("0s", 0)]
        {
            assert_eq!(parse(text), Ok(millis), "{text}");
        }
        for text in ["", "90", "s", "1d", "1.5h", "-3s", "1h 3m", "99999999999999999999h"] {
            assert!(parse(text).is_err(), "{text} must be refused");
        }
    }

    #[test]
    fn formatting_is_read_back() {
        for millis in [0, 1, 999, 1_000, 61_000, 5_400_000, 86_400_123] {
            assert_eq!(parse(&format(millis)), Ok(millis));
        }
    }
}
