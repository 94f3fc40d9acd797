//! `--trace`: gangs of equal pods as CSV.
//!
//! ```text
//!   name,pods,gpus_per_pod,class,count
//!   llama,16,8,h100,2                  ──▶ Gangs llama-0 and llama-1, each of 16 pods that start together or not at all
//! ```
//!
//! The header is required and names the columns, in any order; `class` and `count` may be left out, or empty in a line:
//! then any class will do, and it is one gang of the line's own name. Fields hold no commas and no quotes.

use anyhow::{anyhow, bail};
use muster_api::Gang;
use serde_json::json;

const NAME: &str = "name";
const PODS: &str = "pods";
const GPUS: &str = "gpus_per_pod";
const CLASS: &str = "class";
const COUNT: &str = "count";
const COLUMNS: [&str; 5] = [NAME, PODS, GPUS, CLASS, COUNT];
const REQUIRED: [&str; 3] = [NAME, PODS, GPUS];
const FORM: &str =
    "the first line must be name,pods,gpus_per_pod, with class and count after them if you like";
/// The API's own limit of a name, less what count may append.
const LONGEST_NAME: usize = 200;
/// The API's limit of the pods of a unit.
const MOST_PODS: u32 = 262_144;
/// The API's limit of the accelerators of a pod.
const MOST_GPUS: u32 = 256;
/// Gangs that a line may stand for; more is a typing mistake.
const MOST_GANGS: u32 = 100_000;

/// The gangs of a trace, each with its line (from 1).
///
/// # Errors
/// The line and the column that are wrong.
pub fn parse(file: &str, text: &str, namespace: &str) -> anyhow::Result<Vec<(usize, Gang)>> {
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let Some((at, header)) = lines.next() else { bail!("{file}: it is empty; {FORM}") };
    let columns = columns(file, at, header)?;
    let mut gangs = Vec::new();
    for (line, text) in lines {
        let row = Row::of(file, line, &columns, text)?;
        gangs.extend(row.gangs(namespace)?.into_iter().map(|gang| (line, gang)));
    }
    Ok(gangs)
}

fn columns(file: &str, line: usize, header: &str) -> anyhow::Result<Vec<&'static str>> {
    let mut columns = Vec::new();
    for name in header.split(',').map(str::trim) {
        let column = COLUMNS
            .into_iter()
            .find(|column| *column == name)
            .ok_or_else(|| anyhow!("{file}, line {line}: there is no column {name:?}; {FORM}"))?;
        if columns.contains(&column) {
            bail!("{file}, line {line}: column {column} is given twice; {FORM}");
        }
        columns.push(column);
    }
    match REQUIRED.into_iter().find(|column| !columns.contains(column)) {
        Some(missing) => bail!("{file}, line {line}: column {missing} is missing; {FORM}"),
        None => Ok(columns),
    }
}

/// A line under the header.
struct Row<'a> {
    file: &'a str,
    line: usize,
    fields: Vec<(&'static str, &'a str)>,
}

impl<'a> Row<'a> {
    fn of(file: &'a str, line: usize, columns: &[&'static str], text: &'a str) -> anyhow::Result<Self> {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        if let Some(column) = columns.get(fields.len()) {
            bail!(
                "{file}, line {line}: column {column} is missing; the header names {} columns, the line has {}",
                columns.len(),
                fields.len()
            );
        }
        if let Some(more) = fields.get(columns.len()) {
            bail!(
                "{file}, line {line}: {more:?} is in column {}, which the header does not name; remove it",
                columns.len() + 1
            );
        }
        Ok(Self { file, line, fields: columns.iter().copied().zip(fields).collect() })
    }

    fn error(&self, column: &str, message: &str) -> anyhow::Error {
        anyhow!("{}, line {}, column {column}: {message}", self.file, self.line)
    }

    /// The field of a column; `None` if it is empty or not there.
    fn field(&self, column: &str) -> Option<&'a str> {
        let field = self.fields.iter().find(|(name, _)| *name == column);
        field.map(|(_, text)| *text).filter(|text| !text.is_empty())
    }

    fn number(&self, column: &str, least: u32, most: u32) -> anyhow::Result<u32> {
        let text = self.field(column).unwrap_or_default();
        text.parse().ok().filter(|number| (least..=most).contains(number)).ok_or_else(|| {
            self.error(column, &format!("{text:?} is no whole number from {least} to {most}; write one"))
        })
    }

    /// A name that Kubernetes takes for an object.
    fn name(&self) -> anyhow::Result<&'a str> {
        let name = self.field(NAME).unwrap_or_default();
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let valid = name.len() <= LONGEST_NAME
            && name.starts_with(plain)
            && name.ends_with(plain)
            && name.chars().all(|c| plain(c) || c == '-');
        if !valid {
            let rule =
                "use small letters, digits and dashes, at most 200, with a letter or digit at both ends";
            return Err(self.error(NAME, &format!("{name:?} is no name of an object; {rule}")));
        }
        Ok(name)
    }

    fn gangs(&self, namespace: &str) -> anyhow::Result<Vec<Gang>> {
        let name = self.name()?;
        let pods = self.number(PODS, 1, MOST_PODS)?;
        let gpus = self.number(GPUS, 0, MOST_GPUS)?;
        let names: Vec<String> = match self.field(COUNT) {
            None => vec![name.to_owned()],
            Some(_) => match self.number(COUNT, 1, MOST_GANGS)? {
                1 => vec![name.to_owned()],
                count => (0..count).map(|at| format!("{name}-{at}")).collect(),
            },
        };
        names.into_iter().map(|name| self.gang(&name, namespace, pods, gpus)).collect()
    }

    /// One unit: none of its pods runs without the others.
    fn gang(&self, name: &str, namespace: &str, pods: u32, gpus: u32) -> anyhow::Result<Gang> {
        let classes: Vec<&str> = self.field(CLASS).into_iter().collect();
        let object = json!({
            "metadata": { "name": name, "namespace": namespace },
            "spec": {
                "classes": classes,
                "roles": [{
                    "name": "worker",
                    "devices": gpus,
                    "podsPerUnit": pods,
                    "units": { "min": 1, "max": 1 },
                    "template": { "spec": { "containers": [{ "name": "worker", "image": "none" }] } },
                }],
            },
        });
        serde_json::from_value(object)
            .map_err(|error| anyhow!("{}, line {}: it makes no gang: {error}", self.file, self.line))
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_line_is_a_gang_or_several() {
        let text = "# a trace\ngpus_per_pod, name,pods,count,class\n8,llama,16,2,h100\n\n0,cpu,3,,\n";
        let gangs = parse("t.csv", text, "a").expect("gangs");
        let words: Vec<String> = gangs
            .iter()
            .map(|(line, gang)| {
                let (role, meta) = (&gang.spec.roles[0], &gang.metadata);
                let key = (meta.namespace.as_deref().unwrap_or(""), meta.name.as_deref().unwrap_or(""));
                format!(
                    "{line} {}/{} {}x{} {:?}",
                    key.0, key.1, role.pods_per_unit, role.devices, gang.spec.classes
                )
            })
            .collect();
        assert_eq!(words, ["3 a/llama-0 16x8 [\"h100\"]", "3 a/llama-1 16x8 [\"h100\"]", "5 a/cpu 3x0 []"]);
    }

    #[test]
    fn mistakes_name_file_line_and_column() {
        for (text, part) in [
            ("", "t.csv: it is empty; the first line must be name,pods,gpus_per_pod"),
            ("llama,16,8\n", "t.csv, line 1: there is no column \"llama\"; the first line"),
            ("name,pods\n", "t.csv, line 1: column gpus_per_pod is missing"),
            ("name,pods,pods,gpus_per_pod\n", "t.csv, line 1: column pods is given twice"),
            ("name,pods,gpus_per_pod\na,1\n", "t.csv, line 2: column gpus_per_pod is missing"),
            ("name,pods,gpus_per_pod\na,1,8,h100\n", "t.csv, line 2: \"h100\" is in column 4"),
            (
                "name,pods,gpus_per_pod\n\na,none,8\n",
                "t.csv, line 3, column pods: \"none\" is no whole number",
            ),
            ("name,pods,gpus_per_pod\na,0,8\n", "t.csv, line 2, column pods: \"0\""),
            ("name,pods,gpus_per_pod\na,1,-8\n", "t.csv, line 2, column gpus_per_pod: \"-8\""),
            ("name,pods,gpus_per_pod,count\na,1,8,0\n", "t.csv, line 2, column count: \"0\""),
            ("name,pods,gpus_per_pod\n\"a\",1,8\n", "t.csv, line 2, column name: \"\\\"a\\\"\" is no name"),
            ("name,pods,gpus_per_pod\n,1,8\n", "t.csv, line 2, column name: \"\" is no name"),
        ] {
            let said = parse("t.csv", text, "a").expect_err("a mistake").to_string();
            assert!(said.starts_with(part), "{text:?}: {said}");
        }
    }
}
