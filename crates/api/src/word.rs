//! A word of an enumeration that this version does not know.
//!
//! ```text
//!   object written by a newer version ──read──▶ Unknown(Word) ──written back──▶ the same text
//! ```
//!
//! After a rollback objects hold words that came later. They must stay readable, and what is written back must not
//! lose them. Enumerations stay `Copy`, hence a text of fixed size.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Longest word, in bytes; what the schema admits where it lists no words.
pub const MAX_WORD: usize = 40;

/// A word of at most [`MAX_WORD`] bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Word {
    /// Padded with zeros.
    text: [u8; MAX_WORD],
}

impl Word {
    /// The first [`MAX_WORD`] bytes of a text, whole characters.
    pub fn new(text: &str) -> Self {
        let mut end = text.len().min(MAX_WORD);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut word = Self { text: [0; MAX_WORD] };
        word.text[..end].copy_from_slice(&text.as_bytes()[..end]);
        word
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        let end = self.text.iter().position(|byte| *byte == 0).unwrap_or(MAX_WORD);
        std::str::from_utf8(&self.text[..end]).unwrap_or_default()
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl Serialize for Word {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self::new(&String::deserialize(from)?))
    }
}
