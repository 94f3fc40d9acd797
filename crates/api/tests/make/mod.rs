//! JSON that a structural schema admits, made from a seed, and whether one admits a value.

use proptest::{
    strategy::{Strategy, ValueTree},
    string::{RegexGeneratorStrategy, string_regex},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use serde_json::{Map, Value, json};
use std::{cell::RefCell, collections::BTreeMap};

thread_local! {
    /// Building a strategy from a pattern takes longer than a case.
    static PATTERNS: RefCell<BTreeMap<String, RegexGeneratorStrategy<String>>> = RefCell::default();
}

pub struct Maker {
    state: u64,
    depth: u32,
    runner: TestRunner,
}

impl Maker {
    pub fn new(seed: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        Self { state: seed, depth: 0, runner: TestRunner::new_with_rng(Config::default(), rng) }
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// A value that the schema admits.
    pub fn value(&mut self, schema: &Value) -> Value {
        if let Some(words) = schema["enum"].as_array() {
            return words[self.below(words.len() as u64) as usize].clone();
        }
        if schema["x-kubernetes-int-or-string"] == json!(true) {
            return if self.below(2) == 0 { self.integer(schema) } else { self.text(schema) };
        }
        self.depth += 1;
        let made = match schema["type"].as_str() {
            Some("object") => self.object(schema),
            Some("array") => self.array(schema),
            Some("string") => self.text(schema),
            Some("integer") => self.integer(schema),
            Some("boolean") => json!(self.below(2) == 0),
            None if schema["x-kubernetes-preserve-unknown-fields"] == json!(true) => self.anything(),
            other => panic!("a schema of type {other:?}: {schema}"),
        };
        self.depth -= 1;
        made
    }

    fn object(&mut self, schema: &Value) -> Value {
        let mut map = Map::new();
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (name, below) in schema["properties"].as_object().into_iter().flatten() {
            // Fewer the deeper, so that a pod of two thousand fields stays small.
            let chance = u64::from(self.depth.saturating_sub(2)) + 1;
            if required.contains(&name.as_str()) || self.below(chance) == 0 {
                map.insert(name.clone(), self.value(below));
            }
        }
        if schema["additionalProperties"].is_object() {
            for _ in 0..self.below(3) {
                let key = self.characters(0, 20);
                map.insert(key, self.value(&schema["additionalProperties"]));
            }
        }
        if schema["x-kubernetes-preserve-unknown-fields"] == json!(true) {
            for name in ["spec", "metadata", "other"] {
                map.insert(name.into(), self.anything());
            }
        }
        Value::Object(map)
    }

    fn array(&mut self, schema: &Value) -> Value {
        let least = schema["minItems"].as_u64().unwrap_or(0);
        let most = schema["maxItems"].as_u64().unwrap_or(u64::MAX).min(least + 2);
        let count = least + self.below(most - least + 1);
        (0..count).map(|_| self.value(&schema["items"])).collect()
    }

    fn integer(&mut self, schema: &Value) -> Value {
        let (least, most) = range(schema);
        let span = (i128::from(most) - i128::from(least) + 1) as u128;
        let number = match self.below(4) {
            0 => least,
            1 => most,
            _ => (i128::from(least) + (u128::from(self.next()) % span) as i128) as i64,
        };
        json!(number)
    }

    fn text(&mut self, schema: &Value) -> Value {
        if schema["format"] == json!("date-time") {
            return self.time();
        }
        let most = schema["maxLength"].as_u64().unwrap_or(80);
        let least = schema["minLength"].as_u64().unwrap_or(0);
        if let Some(pattern) = schema["pattern"].as_str() {
            for _ in 0..200 {
                let text = self.matching(pattern);
                if (least..=most).contains(&(text.chars().count() as u64)) {
                    return json!(text);
                }
            }
            panic!("no text of at most {most} characters for {pattern}");
        }
        json!(self.characters(least, most.min(80)))
    }

    fn matching(&mut self, pattern: &str) -> String {
        let bare = pattern.trim_start_matches('^').trim_end_matches('$');
        PATTERNS.with_borrow_mut(|all| {
            let strategy = all
                .entry(pattern.to_owned())
                .or_insert_with(|| string_regex(bare).unwrap_or_else(|error| panic!("{pattern}: {error}")));
            strategy.new_tree(&mut self.runner).expect("a text").current()
        })
    }

    /// A time stamp as the pattern and Kubernetes' reading of `date-time` admit it.
    fn time(&mut self) -> Value {
        let mut n = |least: u64, most: u64| least + self.below(most - least + 1);
        let (day, second) = ((n(1000, 2999), n(1, 12), n(1, 28)), (n(0, 23), n(0, 59), n(0, 59)));
        let fraction = if n(0, 1) == 0 { String::new() } else { format!(".{}", n(0, 999_999_999)) };
        let zone = match n(0, 2) {
            0 => "Z".to_owned(),
            1 => format!("+{:02}:{:02}", n(0, 23), n(0, 59)),
            _ => format!("-{:02}:{:02}", n(0, 23), n(0, 59)),
        };
        json!(format!(
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}{fraction}{zone}",
            day.0, day.1, day.2, second.0, second.1, second.2
        ))
    }

    fn characters(&mut self, least: u64, most: u64) -> String {
        const SET: [char; 12] = ['a', 'Z', '0', '-', '.', '/', ' ', '\n', '\0', '"', 'é', '🦀'];
        let count = least + self.below((most - least).min(12) + 1);
        (0..count).map(|_| SET[self.below(SET.len() as u64) as usize]).collect()
    }

    fn anything(&mut self) -> Value {
        self.depth += 1;
        let kinds = if self.depth > 8 { 5 } else { 8 };
        let made = match self.below(kinds) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(self.next() as i64),
            3 => json!(self.next() as f64 / 3.0),
            4 => json!(self.characters(0, 20)),
            5 => (0..self.below(3)).map(|_| self.anything()).collect(),
            _ => {
                let names = ["spec", "metadata", "containers", "labels", "name", "resources", "volumes"];
                let mut map = Map::new();
                for _ in 0..self.below(4) {
                    let name = names[self.below(names.len() as u64) as usize];
                    map.insert(name.into(), self.anything());
                }
                Value::Object(map)
            }
        };
        self.depth -= 1;
        made
    }
}

/// Bounds of an integer. Kubernetes holds those of the format as well.
fn range(schema: &Value) -> (i64, i64) {
    let (low, high) = match schema["format"].as_str() {
        Some("int32") => (i64::from(i32::MIN), i64::from(i32::MAX)),
        _ => (i64::MIN, i64::MAX),
    };
    let bound = |name: &str| schema[name].as_f64().map(|bound| bound as i64);
    (bound("minimum").unwrap_or(low).max(low), bound("maximum").unwrap_or(high).min(high))
}

/// Takes away the fields that the schema does not name, as the API server does.
pub fn prune(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(map) => {
            let all = schema["additionalProperties"].is_object();
            let keep = schema["x-kubernetes-preserve-unknown-fields"] == json!(true);
            let root = ["apiVersion", "kind", "metadata"];
            let is_root =
                schema["properties"]["spec"]["properties"].is_object() && schema["title"].is_string();
            map.retain(|name, _| {
                all || keep
                    || schema["properties"].get(name).is_some()
                    || (is_root && root.contains(&name.as_str()))
            });
            for (name, below) in map {
                if let Some(schema) = schema["properties"].get(name).or(schema.get("additionalProperties")) {
                    prune(schema, below);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| prune(&schema["items"], item)),
        _ => {}
    }
}

/// Whether the schema admits a value, CEL rules aside. Fields that it does not name are pruned.
pub fn admits(schema: &Value, value: &Value) -> bool {
    let int_or_string = schema["x-kubernetes-int-or-string"] == json!(true);
    if let Some(words) = schema["enum"].as_array() {
        return words.contains(value);
    }
    match value {
        Value::String(text) => {
            let length = text.chars().count() as u64;
            (int_or_string || schema["type"] == json!("string"))
                && schema["maxLength"].as_u64().is_none_or(|most| length <= most)
                && schema["minLength"].as_u64().is_none_or(|least| length >= least)
                && schema["pattern"]
                    .as_str()
                    .is_none_or(|pattern| regex::Regex::new(pattern).expect("a pattern").is_match(text))
        }
        Value::Number(number) => {
            let (least, most) = range(schema);
            let within = number.as_i64().is_some_and(|number| (least..=most).contains(&number));
            (int_or_string || schema["type"] == json!("integer")) && within
        }
        Value::Bool(_) => schema["type"] == json!("boolean"),
        Value::Array(items) => {
            schema["type"] == json!("array")
                && schema["maxItems"].as_u64().is_none_or(|most| items.len() as u64 <= most)
                && items.iter().all(|item| admits(&schema["items"], item))
        }
        Value::Object(map) => {
            let known = |(name, below): (&String, &Value)| match schema["properties"].get(name) {
                Some(property) => admits(property, below),
                None if schema["additionalProperties"].is_object() => {
                    admits(&schema["additionalProperties"], below)
                }
                None => true,
            };
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            schema["type"] == json!("object")
                && required.into_iter().all(|name| map.contains_key(name))
                && map.iter().all(known)
        }
        Value::Null => false,
    }
}
