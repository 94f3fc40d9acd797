//! A list of node names as text.
//!
//! ```text
//!   names in order ──equal ones counted──▶ consecutive numbers folded──▶ common ends left out──▶ text
//! ```
//!
//! Items are separated by commas. Names are DNS names, so `,`, `:`, `*`, `[` and `]` are free:
//!
//! | item | stands for |
//! | --- | --- |
//! | `hgx-001` | one name |
//! | `hgx-[001-004]`, `n[9-11].x` | names with consecutive numbers, as wide as the first |
//! | `N:rest` | the first N characters of the name before, then `rest` |
//! | `N:middle:M` | the first N characters of the name before, `middle`, and its last M characters |
//! | `item*k` | each name of the item k times in a row |
//!
//! `rest` and `middle` may hold a range.

use super::PlanError;

/// Shorter common beginnings are written out: `hgx-001` reads better than `1:gx-001`.
const WORTH: usize = 4;
/// Longest name of a node: that of a DNS subdomain. It bounds what a text can stand for.
const MAX_NAME: usize = 253;

/// The text of a list.
pub fn encode<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut counted: Vec<(&str, usize)> = Vec::new();
    for name in names {
        match counted.last_mut() {
            Some((last, count)) if *last == name => *count += 1,
            _ => counted.push((name, 1)),
        }
    }
    let mut text = String::new();
    let mut before = "";
    let mut at = 0;
    while at < counted.len() {
        let count = counted[at].1;
        let (pattern, length) = fold(&counted[at..]);
        if at > 0 {
            text.push(',');
        }
        text.push_str(&shorten(before, &pattern));
        if count > 1 {
            text.push('*');
            text.push_str(&count.to_string());
        }
        before = counted[at + length - 1].0;
        at += length;
    }
    text
}

/// The longest run of consecutive numbers at the beginning of `counted`, as a pattern, and its length.
fn fold(counted: &[(&str, usize)]) -> (String, usize) {
    let (first, count) = counted[0];
    let Some(split) = counted.get(1).filter(|next| next.1 == count).and_then(|next| step(first, next.0))
    else {
        return (first.to_owned(), 1);
    };
    let length = 1 + counted
        .windows(2)
        .take_while(|pair| {
            pair[1].1 == count && step(pair[0].0, pair[1].0).is_some_and(|other| other.start == split.start)
        })
        .count();
    let last = counted[length - 1].0;
    let end = &last[split.start..last.len() - (first.len() - split.end)];
    (format!("{}[{}-{end}]{}", &first[..split.start], &first[split.clone()], &first[split.end..]), length)
}

/// Where the number lies in `a` that `b` has one higher, if that is all in which they differ.
fn step(a: &str, b: &str) -> Option<std::ops::Range<usize>> {
    let digit = |text: &str, at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    let mut start = common_prefix(a, b);
    while start > 0 && digit(a, start - 1) {
        start -= 1;
    }
    let mut end = start;
    while digit(a, end) {
        end += 1;
    }
    let number = &a[start..end];
    let next = number.parse::<u64>().ok().filter(|_| number.len() <= 18)? + 1;
    let expected = format!("{}{next:0width$}{}", &a[..start], &a[end..], width = number.len());
    (expected == b).then_some(start..end)
}

fn common_prefix(a: &str, b: &str) -> usize {
    a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count()
}

fn common_suffix(a: &str, b: &str) -> usize {
    a.bytes().rev().zip(b.bytes().rev()).take_while(|(x, y)| x == y).count()
}

/// `pattern` with what it has in common with the name before left out. Names are ASCII, as DNS names are.
fn shorten(before: &str, pattern: &str) -> String {
    if !before.is_ascii() || !pattern.is_ascii() {
        return pattern.to_owned();
    }
    let prefix = common_prefix(before, pattern);
    let kept = &pattern[prefix..];
    let suffix = common_suffix(&before[prefix..], kept);
    if suffix >= WORTH {
        return format!("{prefix}:{}:{suffix}", &kept[..kept.len() - suffix]);
    }
    if prefix >= WORTH { format!("{prefix}:{kept}") } else { pattern.to_owned() }
}

/// The names of a text; at most `limit`.
///
/// # Errors
/// When the text is not in the notation or stands for more names.
pub fn decode(text: &str, limit: usize) -> Result<Vec<String>, PlanError> {
    let mut names: Vec<String> = Vec::new();
    for item in text.split(',').filter(|_| !text.is_empty()) {
        let fail = |problem| PlanError::Nodes { item: item.to_owned(), problem };
        let (short, count) = match item.split_once('*') {
            Some((short, count)) => {
                (short, count.parse::<usize>().map_err(|_| fail("has no number after *"))?)
            }
            None => (item, 1),
        };
        let before = names.last().map_or("", String::as_str);
        let pattern = lengthen(before, short).ok_or_else(|| fail("does not fit the name before it"))?;
        let each = expand(&pattern, limit).ok_or_else(|| fail("is no name and no range of names"))?;
        if each.len().saturating_mul(count).saturating_add(names.len()) > limit {
            return Err(PlanError::TooLarge);
        }
        for name in each {
            names.extend(std::iter::repeat_n(name, count));
        }
    }
    Ok(names)
}

/// Undoes [`shorten`].
fn lengthen(before: &str, item: &str) -> Option<String> {
    let mut parts = item.split(':');
    let pattern = match (parts.next()?, parts.next(), parts.next(), parts.next()) {
        (pattern, None, None, None) => pattern.to_owned(),
        (prefix, Some(rest), None, None) => format!("{}{rest}", before.get(..prefix.parse().ok()?)?),
        (prefix, Some(middle), Some(suffix), None) => {
            let from = before.len().checked_sub(suffix.parse().ok()?)?;
            format!("{}{middle}{}", before.get(..prefix.parse().ok()?)?, before.get(from..)?)
        }
        _ => return None,
    };
    (!pattern.is_empty() && pattern.len() <= MAX_NAME + 2 * 18).then_some(pattern)
}

/// The names of a pattern: itself, or those of its range.
fn expand(pattern: &str, limit: usize) -> Option<Vec<String>> {
    let Some((head, rest)) = pattern.split_once('[') else {
        return (!pattern.contains(']')).then(|| vec![pattern.to_owned()]);
    };
    let (range, tail) = rest.split_once(']')?;
    let (first, last) = range.split_once('-')?;
    let (low, high): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    if low > high || high - low >= limit.max(1) as u64 || tail.contains(['[', ']']) {
        return None;
    }
    let width = first.len();
    Some((low..=high).map(|number| format!("{head}{number:0width$}{tail}")).collect())
}
