//! Kubernetes quantities as the integers a kubelet counts with.
//!
//! ```text
//! "1500m" (cpu) ──► 1500 milli-CPU        "2Gi" (anything else) ──► 2147483648 units
//! ```

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Amounts by resource name: `cpu` in milli-CPU, everything else in its own unit (bytes, devices).
pub type Amounts = BTreeMap<String, i64>;

/// A quantity that Kubernetes would refuse as well.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{resource}: {text:?} is no quantity; write a number with an optional suffix such as 500m, 4, 2Gi")]
pub struct QuantityError {
    /// The resource whose amount it is.
    pub resource: String,
    /// What was written.
    pub text: String,
}

/// Suffix and the factor it stands for, as (numerator, denominator).
const SUFFIXES: [(&str, i128, i128); 15] = [
    ("Ki", 1 << 10, 1),
    ("Mi", 1 << 20, 1),
    ("Gi", 1 << 30, 1),
    ("Ti", 1 << 40, 1),
    ("Pi", 1 << 50, 1),
    ("Ei", 1 << 60, 1),
    ("n", 1, 1_000_000_000),
    ("u", 1, 1_000_000),
    ("m", 1, 1_000),
    ("k", 1_000, 1),
    ("M", 1_000_000, 1),
    ("G", 1_000_000_000, 1),
    ("T", 1_000_000_000_000, 1),
    ("P", 1_000_000_000_000_000, 1),
    ("E", 1_000_000_000_000_000_000, 1),
];

/// The amount of `resource` that `text` stands for, rounded up as Kubernetes does.
pub fn parse(resource: &str, text: &str) -> Result<i64, QuantityError> {
    let scale = if resource == "cpu" { 1000 } else { 1 };
    parse_scaled(text.trim(), scale)
        .ok_or_else(|| QuantityError { resource: resource.to_owned(), text: text.to_owned() })
}

fn parse_scaled(text: &str, scale: i128) -> Option<i64> {
    let (number, numerator, denominator) = SUFFIXES
        .iter()
        .find_map(|&(suffix, n, d)| Some((text.strip_suffix(suffix)?, n, d)))
        .unwrap_or((text, 1, 1));
    let (mantissa, exponent) = match number.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (number, 0),
    };
    let (digits, decimals) = decimal(mantissa)?;
    let power = exponent.checked_sub(decimals)?;
    let ten = 10i128.checked_pow(power.unsigned_abs())?;
    let (up, down) = if power >= 0 { (ten, 1) } else { (1, ten) };
    let top = digits.checked_mul(numerator)?.checked_mul(scale)?.checked_mul(up)?;
    let bottom = denominator.checked_mul(down)?;
    let rounded = top.div_euclid(bottom) + i128::from(top.rem_euclid(bottom) != 0);
    i64::try_from(rounded).ok()
}

/// `-12.50` as (-1250, 2).
fn decimal(text: &str) -> Option<(i128, i32)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let unsigned = whole.trim_start_matches(['+', '-']);
    if unsigned.is_empty() && fraction.is_empty() || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits = format!("{whole}{fraction}").parse::<i128>().ok()?;
    Some((digits, i32::try_from(fraction.len()).ok()?))
}

/// All amounts of a resource list.
pub fn parse_list(list: &BTreeMap<String, Quantity>) -> Result<Amounts, QuantityError> {
    list.iter().map(|(name, quantity)| Ok((name.clone(), parse(name, &quantity.0)?))).collect()
}

/// Adds `more` to `total`, resource by resource.
pub fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = total.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

/// Raises `total` to at least `other`, resource by resource.
pub fn raise(total: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let most = total.entry(name.clone()).or_default();
        *most = (*most).max(*amount);
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn quantities_read_as_kubernetes_reads_them() {
        for (resource, text, expected) in [
            ("cpu", "4", 4000),
            ("cpu", "250m", 250),
            ("cpu", "0.5", 500),
            ("cpu", "1u", 1),
            ("memory", "2Gi", 2 << 30),
            ("memory", "1.5Ki", 1536),
            ("memory", "1e3", 1000),
            ("memory", "100M", 100_000_000),
            ("memory", "1500m", 2),
            ("nvidia.com/gpu", "8", 8),
        ] {
            assert_eq!(parse(resource, text), Ok(expected), "{resource} {text}");
        }
    }

    #[test]
    fn nonsense_names_the_resource() {
        for text in ["", "Gi", "four", "1..2", "1e", "99999999999999999999Ei"] {
            let error = parse("memory", text).expect_err(text);
            assert_eq!(error.resource, "memory");
        }
    }
}
