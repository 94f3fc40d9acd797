//! Kubernetes quantities, exact in thousandths.

/// A quantity in thousandths of its unit; saturating.
pub(crate) type Milli = i128;

/// Parses `1`, `500m`, `1.5Gi`, `2e3`; `None` if it is no quantity. Parts below a thousandth round up.
pub(crate) fn parse(source: &str) -> Option<Milli> {
    let end = source.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(source.len());
    let (number, suffix) = source.split_at(end);
    let exponent = suffix.strip_prefix(['e', 'E']).and_then(|e| e.parse::<u32>().ok());
    // Factor as a fraction of thousandths.
    let (multiply, divide): (i128, i128) = match (suffix, exponent) {
        (_, Some(e)) => (1_000_i128.checked_mul(10_i128.checked_pow(e)?)?, 1),
        ("n", _) => (1, 1_000_000),
        ("u", _) => (1, 1_000),
        ("m", _) => (1, 1),
        ("", _) => (1_000, 1),
        ("k", _) => (1_000_000, 1),
        ("M", _) => (1_000_000_000, 1),
        ("G", _) => (1_000_000_000_000, 1),
        ("T", _) => (1_000_000_000_000_000, 1),
        ("P", _) => (1_000_000_000_000_000_000, 1),
        ("E", _) => (1_000_000_000_000_000_000_000, 1),
        ("Ki", _) => (1_000 << 10, 1),
        ("Mi", _) => (1_000 << 20, 1),
        ("Gi", _) => (1_000 << 30, 1),
        ("Ti", _) => (1_000 << 40, 1),
        ("Pi", _) => (1_000 << 50, 1),
        ("Ei", _) => (1_000 << 60, 1),
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let negative = whole.starts_with('-');
    let digits: String = whole.trim_start_matches(['+', '-']).chars().chain(fraction.chars()).collect();
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let scaled = digits.parse::<i128>().ok()?.checked_mul(multiply)?;
    let divide = divide.checked_mul(10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?)?;
    let size = (scaled + divide - 1) / divide;
    Some(if negative { -size } else { size })
}

/// Prints thousandths in the style of `like`: binary suffixes if that has one, else decimal.
pub(crate) fn format(value: Milli, like: &str) -> String {
    if value % 1_000 != 0 {
        return format!("{value}m");
    }
    let whole = value / 1_000;
    let steps: &[(&str, i128)] = if like.ends_with('i') {
        &[
            ("Ei", 1 << 60),
            ("Pi", 1 << 50),
            ("Ti", 1 << 40),
            ("Gi", 1 << 30),
            ("Mi", 1 << 20),
            ("Ki", 1 << 10),
        ]
    } else {
        &[
            ("E", 1_000_000_000_000_000_000),
            ("P", 1_000_000_000_000_000),
            ("T", 1_000_000_000_000),
            ("G", 1_000_000_000),
            ("M", 1_000_000),
            ("k", 1_000),
        ]
    };
    let suffixed = steps.iter().find(|(_, unit)| whole != 0 && whole % unit == 0);
    suffixed.map_or_else(|| whole.to_string(), |(suffix, unit)| format!("{}{suffix}", whole / unit))
}
