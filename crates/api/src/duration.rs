//! A duration as users write it in a resource: `90s`, `1h30m`.
//!
//! ```text
//!   YAML text ──(CEL rule in the schema: muster_model::duration::PATTERN)──▶ Duration ──millis()──▶ model::Millis
//! ```

use muster_model::{
    Millis,
    duration::{self, DurationError},
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, fmt};

/// A duration text. The API server refuses what [`Duration::millis`] would not read; objects made elsewhere may
/// still hold anything.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Duration(pub String);

impl Duration {
    /// The text of a number of milliseconds.
    pub fn from_millis(millis: Millis) -> Self {
        Self(duration::format(millis))
    }

    /// Its length in milliseconds.
    ///
    /// # Errors
    /// When the text is not a duration.
    pub fn millis(&self) -> Result<Millis, DurationError> {
        duration::parse(&self.0)
    }
}

impl From<&str> for Duration {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the API server says of a text that is no duration: the words of [`DurationError`] without the text.
pub const REFUSAL: &str = "is not a duration: write numbers with units h, m, s or ms, such as 90s or 1h30m";

impl JsonSchema for Duration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            // Room for `999999999h59m59s999ms`; a bound keeps the rule's cost known.
            "maxLength": 40,
            "x-kubernetes-validations": [
                { "rule": format!("self.matches('{}')", duration::PATTERN), "message": REFUSAL }
            ],
        })
    }
}
