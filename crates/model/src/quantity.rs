//! Kubernetes quantities (`500m`, `2Gi`, `1e3`), as exact integers.

/// Why a text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a quantity: write a number with an optional suffix, such as 500m, 8, 64Gi or 1e3")]
pub struct QuantityError {
    /// What was given.
    pub text: String,
}

/// Suffixes of the Kubernetes quantity format and their factors, in thousandths.
const SUFFIXES: &[(&str, i128)] = &[
    ("Ki", 1_000 << 10),
    ("Mi", 1_000 << 20),
    ("Gi", 1_000 << 30),
    ("Ti", 1_000 << 40),
    ("Pi", 1_000 << 50),
    ("Ei", 1_000 << 60),
    ("m", 1),
    ("k", 1_000_000),
    ("M", 1_000_000_000),
    ("G", 1_000_000_000_000),
    ("T", 1_000_000_000_000_000),
    ("P", 1_000_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000_000),
];

/// The quantity in thousandths, rounded up as Kubernetes rounds (a request is never made smaller).
///
/// # Errors
/// When the text is no quantity or does not fit 64 bits of thousandths.
pub fn parse_milli(text: &str) -> Result<i64, QuantityError> {
    let fail = || QuantityError { text: text.to_owned() };
    let (negative, body) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let end = body.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(body.len());
    let (number, suffix) = body.split_at(end);
    let (mut numerator, mut denominator) = decimal(number).ok_or_else(fail)?;
    match SUFFIXES.iter().find(|(name, _)| *name == suffix) {
        Some((_, factor)) => numerator = numerator.checked_mul(*factor).ok_or_else(fail)?,
        None if suffix.is_empty() => numerator = numerator.checked_mul(1_000).ok_or_else(fail)?,
        None => {
            let exponent: i32 = suffix
                .strip_prefix(['e', 'E'])
                .and_then(|digits| digits.parse().ok())
                .filter(|e: &i32| (-18..=18).contains(e))
                .ok_or_else(fail)?;
            let power = 10_i128.pow(exponent.unsigned_abs());
            numerator = numerator.checked_mul(1_000).ok_or_else(fail)?;
            if exponent >= 0 {
                numerator = numerator.checked_mul(power).ok_or_else(fail)?;
            } else {
                denominator = denominator.checked_mul(power).ok_or_else(fail)?;
            }
        }
    }
    let rounded_up = numerator / denominator + i128::from(numerator % denominator != 0);
    i64::try_from(if negative { -rounded_up } else { rounded_up }).map_err(|_| fail())
}

/// The quantity in whole units, rounded up.
///
/// # Errors
/// When the text is no quantity or does not fit 64 bits.
pub fn parse_units(text: &str) -> Result<i64, QuantityError> {
    // Memory in thousandths of a byte may pass 64 bits (8 EiB); nodes do not come so large.
    parse_milli(text).map(|milli| milli.div_euclid(1_000) + i64::from(milli.rem_euclid(1_000) != 0))
}

/// Numerator and denominator of `12`, `1.5`, `.5` or `5.`.
fn decimal(number: &str) -> Option<(i128, i128)> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || whole.len() + fraction.len() > 20 || fraction.contains('.') {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    Some((digits, 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_as_kubernetes_reads_them() {
        for (text, milli) in [
            ("500m", 500),
            ("8", 8_000),
            ("1.5", 1_500),
            (".5", 500),
            ("2Ki", 2_048_000),
            ("1k", 1_000_000),
            ("1e3", 1_000_000),
            ("1E-3", 1),
            ("0.0001", 1),
            ("-1", -1_000),
            ("64Gi", 64 * 1_000 * (1 << 30)),
        ] {
            assert_eq!(parse_milli(text), Ok(milli), "{text}");
        }
        for text in ["", "x", "1.2.3", "1Q", "1e99", "Gi", "1 Gi", "99999999999999E", "--1"] {
            assert!(parse_milli(text).is_err(), "{text} must be refused");
        }
        assert_eq!(parse_units("1500m"), Ok(2));
        assert_eq!(parse_units("2Ti"), Ok(2 << 40));
    }
}
