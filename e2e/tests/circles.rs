//! The modules of the core and of the controllers import each other in no circle.
//!
//! ```text
//!   each file's `use crate::…`, `use super::…` ──through `pub use` of folders──▶ file → file ──▶ circles
//! ```
//!
//! The root of a crate (`lib.rs`) holds all together and is no part of a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// File of a module, by its path such as `gang::rt`.
type Modules = BTreeMap<String, PathBuf>;

fn modules(folder: &Path, prefix: &str, all: &mut Modules) {
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("a name").to_owned();
        let join = |name: &str| if prefix.is_empty() { name.to_owned() } else { format!("{prefix}::{name}") };
        if path.is_dir() {
            if stem != "tests" {
                modules(&path, &join(&stem), all);
            }
        } else if stem == "mod" {
            all.insert(prefix.to_owned(), path);
        } else if path.extension().is_some_and(|extension| extension == "rs") && stem != "tests" {
            all.insert(join(&stem), path);
        }
    }
}

/// The paths that a `use` tree names: `a::{b, c::d as e}` names `a::b` and `a::c::d`.
fn expand(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        return vec![tree.split(" as ").next().unwrap_or_default().trim().to_owned()];
    };
    let (head, body) = (&tree[..open], &tree[open + 1..tree.rfind('}').expect("closed")]);
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, c) in body.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&body[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&body[from..]);
    let parts = parts.into_iter().filter(|part| !part.trim().is_empty());
    parts.flat_map(expand).map(|part| format!("{head}{part}")).collect()
}

/// The paths of a file's `use` statements that begin with a word.
fn used(text: &str, begin: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (at, _) in text.match_indices(&format!("\n{begin} ")) {
        let statement = &text[at + begin.len() + 2..];
        let end = statement.find(';').expect("a statement ends");
        all.extend(expand(&statement[..end].replace('\n', " ")));
    }
    all
}

/// A path from the crate's root; `None` where it leads out of the crate.
fn absolute(module: &str, is_folder: bool, path: &str) -> Option<String> {
    if let Some(rest) = path.strip_prefix("crate::") {
        return Some(rest.to_owned());
    }
    let rest = path.strip_prefix("super::")?;
    let parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
    debug_assert!(!is_folder || !module.is_empty());
    Some(if parent.is_empty() { rest.to_owned() } else { format!("{parent}::{rest}") })
}

/// Whom each module imports.
fn arrows(modules: &Modules) -> BTreeMap<String, BTreeSet<String>> {
    let texts: BTreeMap<&String, String> =
        modules.iter().map(|(name, path)| (name, std::fs::read_to_string(path).expect("readable"))).collect();
    // What a folder hands on: the path by which it is known, to where it stands.
    let handed: BTreeMap<String, String> = texts
        .iter()
        .flat_map(|(name, text)| {
            let paths = used(text, "pub use").into_iter();
            paths.map(move |path| {
                let known = path.rsplit("::").next().unwrap_or_default();
                (format!("{name}::{known}"), format!("{name}::{path}"))
            })
        })
        .collect();
    let resolve = |path: &str| -> Option<String> {
        let mut path = handed.get(path).cloned().unwrap_or_else(|| path.to_owned());
        while !modules.contains_key(&path) {
            path = path.rsplit_once("::")?.0.to_owned();
        }
        Some(path)
    };
    texts
        .iter()
        .map(|(name, text)| {
            let is_folder = modules[*name].ends_with("mod.rs");
            let paths = used(text, "use").into_iter().filter_map(|path| absolute(name, is_folder, &path));
            let to = paths.filter_map(|path| resolve(&path)).filter(|to| to != *name && to != "lib");
            ((*name).clone(), to.collect())
        })
        .collect()
}

/// The modules that can be reached from themselves.
fn in_circles(arrows: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let returns = |from: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(to) = next.pop() {
            for to in arrows.get(to).into_iter().flatten() {
                if to == from {
                    return true;
                }
                if seen.insert(to) {
                    next.push(to);
                }
            }
        }
        false
    };
    arrows.keys().filter(|name| returns(name)).cloned().collect()
}

#[test]
fn no_module_imports_another_in_a_circle() {
    for name in ["core", "controllers"] {
        let mut all = Modules::new();
        let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates").join(name).join("src");
        modules(&src, "", &mut all);
        let arrows = arrows(&all);
        assert!(arrows.values().map(BTreeSet::len).sum::<usize>() > 3, "{name}: the imports were not read");
        assert_eq!(in_circles(&arrows), Vec::<String>::new(), "crates/{name}: {arrows:#?}");
    }
}

#[test]
fn a_circle_is_found() {
    assert_eq!(expand("crate::a::{b, c::{d, e as f}}"), ["crate::a::b", "crate::a::c::d", "crate::a::c::e"]);
    assert_eq!(
        used("\nuse crate::x::{\n    A, B,\n};\npub use y::C;\n", "use"),
        ["crate::x::A", "crate::x::B"]
    );
    let arrows = |pairs: &[(&str, &str)]| {
        let mut all = BTreeMap::<String, BTreeSet<String>>::new();
        for (from, to) in pairs {
            all.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        all
    };
    assert_eq!(in_circles(&arrows(&[("a", "b"), ("b", "c"), ("c", "b")])), ["b", "c"]);
    assert!(in_circles(&arrows(&[("a", "b"), ("a", "c"), ("b", "c")])).is_empty());
}
