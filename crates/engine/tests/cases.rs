//! The shared case collection: problems with proven optima. Skips loudly where the folder is absent.

mod common;

use common::Case;
use muster_engine::solve;
use std::path::PathBuf;

fn folder() -> Option<PathBuf> {
    let given = std::env::var_os("MUSTER_CASES").map(PathBuf::from);
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/cases");
    given.or(Some(beside)).map(|folder| folder.join("placement")).filter(|folder| folder.is_dir())
}

fn cases() -> Vec<Case> {
    let Some(folder) = folder() else {
        eprintln!("SKIPPED: no case collection; set MUSTER_CASES to the folder that holds placement/*.jsonl");
        return Vec::new();
    };
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
        .iter()
        .filter(|file| file.extension().is_some_and(|e| e == "jsonl"))
        .flat_map(|file| {
            let text = std::fs::read_to_string(file).expect("a file");
            text.lines()
                .filter(|line| !line.trim().is_empty())
                .map(|line| Case::parse(&serde_json::from_str(line).expect("a case")))
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn every_case_reaches_its_optimum() {
    let mut wrong = Vec::new();
    let cases = cases();
    for case in &cases {
        let answers = solve(&case.topology, &case.nodes, &case.gangs);
        let placed: Vec<_> = case
            .gangs
            .iter()
            .zip(&answers)
            .filter_map(|((gang, _), answer)| answer.as_ref().ok().map(|a| (gang, &a.placement)))
            .collect();
        let errors = common::errors(&case.topology, &case.nodes, &placed);
        if !errors.is_empty() {
            wrong.push(format!("{}: {errors:?}", case.name));
        }
        for (((gang, order), answer), best) in case.gangs.iter().zip(&answers).zip(&case.best) {
            let order = order.as_deref().unwrap_or_default();
            let got = answer
                .as_ref()
                .ok()
                .map(|a| common::vector(&case.topology, &case.nodes, gang, order, &a.placement));
            if got != *best && !case.bound {
                wrong.push(format!("{} {}: got {got:?}, best {best:?}", case.name, gang.key.name));
            }
            if let Ok(answer) = answer {
                assert_eq!(Some(&answer.vector), got.as_ref(), "{}: the stated values hold", case.name);
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    eprintln!("{} cases", cases.len());
}
