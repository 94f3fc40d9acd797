//! The arrows between the crates, as `crates/README.md` states them, held against `cargo metadata`.
//!
//! ```text
//!   crates/README.md ──table──▶ Table ─┐
//!   cargo metadata ──packages──▶ Uses ─┴▶ what is not allowed, in sentences
//! ```

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

/// For each crate the crates of the workspace that it may depend on; `None`: any.
type Table = BTreeMap<String, Option<BTreeSet<String>>>;
/// For each crate the crates of the workspace that it does depend on.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// Crates without input, output, clock or randomness.
const PURE: [&str; 4] = ["muster-model", "muster-engine", "muster-lifecycle", "muster-check"];
/// What pure crates may use from outside the workspace. A list of what is allowed, since a list of what is not
/// would never be complete. Derives only: neither does anything at run time that the type does not say.
const PURE_MAY_USE: [&str; 2] = ["serde", "thiserror"];
/// The core decides from Kubernetes' objects and writes JSON: it may know their types, and say what it does in the log.
/// Its `clippy.toml` bans the client that comes with kube.
const CORE_MAY_USE: [&str; 7] = ["kube", "k8s-openapi", "serde", "serde_json", "jiff", "sha2", "tracing"];
/// Arrows that hold for tests only: who, to whom.
const ONLY_IN_TESTS: [(&str, &str); 2] = [
    // The oracle judges the engine.
    ("muster-check", "muster-engine"),
    // `muster simulate --cluster` is tested on the in-memory API server; what ships does not contain it.
    ("muster-operator", "kubesim"),
];
/// Arrows that the table must never allow, not even through a third crate.
const NEVER: [(&str, &str); 7] = [
    // What is scheduled must not depend on how it is written down, nor the other way round.
    ("muster-engine", "muster-api"),
    ("muster-api", "muster-engine"),
    // A judge that shares code with the judged is none.
    ("muster-check", "muster-engine"),
    // Simulated nodes know Kubernetes and nothing of us; and nothing simulated ships.
    ("kubesim", "muster-model"),
    ("kubesim", "muster-controllers"),
    // What decides does not act.
    ("muster-core", "muster-controllers"),
    ("muster-operator", "kubesim"),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// One dependency of a package: its name, and whether only tests use it.
struct Dependency {
    name: String,
    tests: bool,
}

/// The packages of the workspace and all that they depend on directly. Asked of cargo itself rather than through
/// the crate `cargo_metadata`, which switches on a feature of serde_json and thereby would have every dependency
/// compiled a second time for the tests.
fn packages() -> BTreeMap<String, Vec<Dependency>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let list = |value: &Value| value.as_array().expect("cargo metadata has this list").clone();
    let name = |value: &Value| value["name"].as_str().expect("it has a name").to_owned();
    let dependencies = |package: &Value| {
        let of = |d: &Value| Dependency { name: name(d), tests: d["kind"] == "dev" };
        list(&package["dependencies"]).iter().map(of).collect()
    };
    list(&metadata["packages"]).iter().map(|package| (name(package), dependencies(package))).collect()
}

fn in_backquotes(cell: &str) -> impl Iterator<Item = String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// Reads the rows ``| `crate` | what | `may` `use` |``.
fn table(readme: &str) -> Table {
    let mut table = Table::new();
    for row in readme.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, _, arrows] = cells[..] else { panic!("crates/README.md: not three cells: {row}") };
        let name = in_backquotes(name).next().expect("the row begins with a name");
        let allowed = (arrows != "any").then(|| in_backquotes(arrows).collect());
        assert!(table.insert(name.clone(), allowed).is_none(), "crates/README.md: two rows for {name}");
    }
    table
}

fn stated() -> Table {
    let path = root().join("crates/README.md");
    table(&std::fs::read_to_string(path).expect("crates/README.md is readable"))
}

/// Dependencies within the workspace; those of tests only, or all others.
fn uses(packages: &BTreeMap<String, Vec<Dependency>>, tests: bool) -> Uses {
    let ours = |all: &[Dependency]| {
        let wanted = all.iter().filter(|d| d.tests == tests && packages.contains_key(&d.name));
        wanted.map(|d| d.name.clone()).collect()
    };
    packages.iter().map(|(name, all)| (name.clone(), ours(all))).collect()
}

/// What the table does not allow, in sentences.
fn faults(table: &Table, uses: &Uses, excused: &[(&str, &str)]) -> Vec<String> {
    let mut faults = Vec::new();
    for (from, targets) in uses {
        let Some(allowed) = table.get(from) else {
            faults.push(format!("{from} has no row in crates/README.md"));
            continue;
        };
        let Some(allowed) = allowed else { continue };
        for to in targets.difference(allowed).filter(|to| !excused.contains(&(from, to))) {
            faults.push(format!("{from} depends on {to}, which crates/README.md does not allow"));
        }
    }
    faults.extend(table.keys().filter(|n| !uses.contains_key(*n)).map(|n| format!("there is no crate {n}")));
    faults
}

/// Everything that can be reached from a crate by the table's arrows.
fn reachable<'t>(table: &'t Table, from: &str) -> BTreeSet<&'t str> {
    let mut seen = BTreeSet::new();
    let mut next: Vec<&str> = vec![from];
    while let Some(name) = next.pop() {
        for to in table.get(name).into_iter().flatten().flatten() {
            if seen.insert(to.as_str()) {
                next.push(to);
            }
        }
    }
    seen
}

#[test]
fn crates_depend_on_each_other_as_the_table_allows() {
    assert_eq!(faults(&stated(), &uses(&packages(), false), &[]), Vec::<String>::new());
}

#[test]
fn tests_depend_on_no_more_but_for_the_named_exceptions() {
    assert_eq!(faults(&stated(), &uses(&packages(), true), &ONLY_IN_TESTS), Vec::<String>::new());
}

#[test]
fn the_table_allows_nothing_that_the_design_forbids() {
    let table = stated();
    for (from, to) in NEVER {
        assert!(!reachable(&table, from).contains(to), "crates/README.md leads from {from} to {to}");
    }
    for sink in ["muster-model", "kubesim"] {
        assert!(reachable(&table, sink).is_empty(), "{sink} must depend on no crate of the workspace");
    }
    let free: Vec<&String> = table.iter().filter(|(_, a)| a.is_none()).map(|(name, _)| name).collect();
    assert_eq!(free, ["muster-e2e"], "only the suite may depend on any crate");
}

#[test]
fn pure_crates_use_nothing_that_acts() {
    let packages = packages();
    let core = ("muster-core", CORE_MAY_USE.as_slice());
    for (pure, may_use) in PURE.map(|name| (name, PURE_MAY_USE.as_slice())).into_iter().chain([core]) {
        let dependencies = packages.get(pure).expect("pure crates are in the workspace");
        for used in dependencies.iter().filter(|d| !d.tests).map(|d| d.name.as_str()) {
            assert!(
                packages.contains_key(used) || may_use.contains(&used),
                "{pure} is pure and uses {used}: take it out, or add it to the list with the reason"
            );
        }
    }
}

#[test]
fn a_wrong_arrow_is_found() {
    let table =
        table("| `a` | first | `b` |\n| `b` | second | |\n| `c` | third | any |\n| `gone` | none | |");
    let uses = |pairs: &[(&str, &[&str])]| -> Uses {
        pairs.iter().map(|(n, d)| ((*n).into(), d.iter().map(|d| (*d).into()).collect())).collect()
    };
    let actual = uses(&[("a", &["b"]), ("b", &["a", "c"]), ("c", &["a", "b"]), ("d", &[])]);
    assert_eq!(
        faults(&table, &actual, &[("b", "c")]),
        [
            "b depends on a, which crates/README.md does not allow",
            "d has no row in crates/README.md",
            "there is no crate gone",
        ]
    );
    assert_eq!(reachable(&table, "a"), BTreeSet::from(["b"]));
}
