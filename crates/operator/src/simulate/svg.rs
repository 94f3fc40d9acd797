//! The map as a picture: one self-contained SVG, readable on light and dark ground.

use muster_cluster::map::{Cell, MapDomain, MapInput, letter};
use std::fmt::Write;

/// Side of a cell, and the gaps between cells, nodes and lines, in pixels.
const CELL: usize = 12;
const GAP: usize = 2;
const NODE_GAP: usize = 8;
const LINE_GAP: usize = 14;
/// Width of the picture, room for names included.
const WIDTH: usize = 1_200;
/// Width of a character of the names' font.
const CHARACTER: usize = 8;
const MARGIN: usize = 20;

/// Colours that people with the common colour blindnesses tell apart (after Okabe and Ito), then their darker shades.
const COLOURS: &[&str] = &[
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7a6cc4", "#8c6d31", "#00505f",
    "#a03b6f", "#4d7a1f", "#6b4a2b",
];

fn colour(cell: Cell) -> &'static str {
    match cell {
        Cell::Free => "#e8eaed",
        Cell::Job(job) => COLOURS[job % COLOURS.len()],
        Cell::Other => "#80868b",
        Cell::Cordoned => "#f5d565",
        Cell::NotReady => "#d93025",
    }
}

fn words(input: &MapInput, cell: Cell) -> String {
    match cell {
        Cell::Free => "free".to_owned(),
        Cell::Job(job) => input.jobs.get(job).map_or_else(String::new, |job| job.name.clone()),
        Cell::Other => "used by others".to_owned(),
        Cell::Cordoned => "cordoned".to_owned(),
        Cell::NotReady => "not ready".to_owned(),
    }
}

/// Text that XML may hold.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn label(out: &mut String, x: usize, y: usize, class: &str, text: &str) {
    let _ = writeln!(out, r#"<text class="{class}" x="{x}" y="{y}">{}</text>"#, escaped(text));
}

/// The map with a title and, below it, the sentences of `notes`.
pub fn draw(input: &MapInput, title: &str, notes: &[String]) -> String {
    let mut body = String::new();
    let mut y = MARGIN + 16;
    label(&mut body, MARGIN, y, "title", title);
    y += 14;
    let names = input.domains.iter().map(|domain| domain.name.chars().count()).max().unwrap_or(0);
    let start = MARGIN + (names + 2) * CHARACTER;
    let mut outer: &[String] = &[];
    for domain in &input.domains {
        if domain.outer != outer {
            outer = &domain.outer;
            y += LINE_GAP + 8;
            label(&mut body, MARGIN, y, "outer", &outer.join(" / "));
            y += 4;
        }
        y = line(&mut body, input, domain, start, y);
    }
    y += LINE_GAP;
    y = legend(&mut body, input, y);
    for note in notes {
        y += 20;
        label(&mut body, MARGIN, y, "note", note);
    }
    let height = y + MARGIN;
    let longest = notes.iter().map(|note| note.chars().count() * 7 + 2 * MARGIN).max().unwrap_or(0);
    let width = WIDTH.max(longest);
    format!(
        concat!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img">"#,
            "\n<style>text{{font:13px ui-monospace,monospace;fill:#202124}}.title{{font-weight:bold;font-size:16px}}",
            ".outer{{font-weight:bold}}.in{{font-size:9px;fill:#fff;text-anchor:middle}}</style>\n",
            "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n{2}</svg>\n"
        ),
        width, height, body
    )
}

/// One domain; nodes that do not fit the width go on below. Returns where it ends.
fn line(out: &mut String, input: &MapInput, domain: &MapDomain, start: usize, top: usize) -> usize {
    let mut y = top + LINE_GAP;
    label(out, MARGIN, y + CELL - 2, "name", &domain.name);
    let mut x = start;
    for node in &domain.nodes {
        let width = node.cells.len() * (CELL + GAP);
        if x > start && x + width > WIDTH - MARGIN {
            x = start;
            y += CELL + NODE_GAP;
        }
        let _ = writeln!(out, "<g><title>{}</title>", escaped(&described(input, &node.name, &node.cells)));
        for cell in &node.cells {
            let _ = writeln!(
                out,
                r##"<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="2" fill="{}" stroke="#bdc1c6" stroke-width="0.5"/>"##,
                colour(*cell)
            );
            if let Cell::Job(job) = cell {
                label(out, x + CELL / 2, y + CELL - 3, "in", &letter(*job).to_string());
            }
            x += CELL + GAP;
        }
        out.push_str("</g>\n");
        x += NODE_GAP;
    }
    y + CELL
}

/// `n1: research/llama 4, free 4`.
fn described(input: &MapInput, name: &str, cells: &[Cell]) -> String {
    let mut counts: Vec<(Cell, usize)> = Vec::new();
    for cell in cells {
        match counts.iter_mut().find(|(seen, _)| seen == cell) {
            Some((_, count)) => *count += 1,
            None => counts.push((*cell, 1)),
        }
    }
    let parts: Vec<String> =
        counts.iter().map(|(cell, count)| format!("{} {count}", words(input, *cell))).collect();
    format!("{name}: {}", parts.join(", "))
}

/// One line a job, then the other colours that occur. Returns where it ends.
fn legend(out: &mut String, input: &MapInput, top: usize) -> usize {
    let shown =
        |cell: Cell| input.domains.iter().flat_map(|d| &d.nodes).any(|node| node.cells.contains(&cell));
    let mut y = top;
    let mut entry = |cell: Cell, text: String, y: &mut usize| {
        *y += 20;
        let _ = writeln!(
            out,
            r#"<rect x="{MARGIN}" y="{}" width="{CELL}" height="{CELL}" rx="2" fill="{}"/>"#,
            *y - CELL + 1,
            colour(cell)
        );
        if let Cell::Job(job) = cell {
            label(out, MARGIN + CELL / 2, *y - 2, "in", &letter(job).to_string());
        }
        label(out, MARGIN + CELL + 8, *y, "note", &text);
    };
    for (at, job) in input.jobs.iter().enumerate() {
        entry(Cell::Job(at), format!("{}  {}", job.name, job.note), &mut y);
    }
    for cell in [Cell::Free, Cell::Other, Cell::Cordoned, Cell::NotReady] {
        if shown(cell) {
            entry(cell, words(input, cell), &mut y);
        }
    }
    y
}
