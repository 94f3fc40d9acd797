//! Text from pods, nodes and kubelets, made fit for messages: it may be of any length and hold anything.

/// Longest reason, in characters.
pub const REASON: usize = 64;
/// Longest message, in characters.
pub const MESSAGE: usize = 512;

/// At most `most` characters of a text, on one line: control characters become spaces, and what is cut off is marked.
pub fn bounded(text: &str, most: usize) -> String {
    let mut chars = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut kept: String = chars.by_ref().take(most).collect();
    if chars.next().is_some() {
        kept.pop();
        kept.push('…');
    }
    kept
}
