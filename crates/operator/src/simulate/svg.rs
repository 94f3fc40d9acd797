//! The map as a picture: one self-contained SVG, readable on light and dark ground.

use muster_cluster::map::{Cell, MapDomain, MapInput, MapJob, MapNode, letter};
use std::fmt::Write;

/// Side of a cell, and the gaps between cells, nodes and lines, in pixels.
const CELL: usize = 12;
const GAP: usize = 2;
const NODE_GAP: usize = 8;
const LINE_GAP: usize = 14;
/// Least and most width of the picture, room for names included. The most holds a rack of 18 nodes of four in one row.
const LEAST_WIDTH: usize = 720;
const MOST_WIDTH: usize = 1_440;
/// Height of a line of text, and the gap between two paragraphs.
const TEXT: usize = 20;
const PARAGRAPH: usize = 12;
/// Width of a character of the names' font.
const CHARACTER: usize = 8;
const MARGIN: usize = 20;

/// Colours that people with the common colour blindnesses tell apart (after Okabe and Ito), then their darker shades;
/// and whether a letter on it is dark.
const COLOURS: &[(&str, bool)] = &[
    ("#0072b2", false),
    ("#e69f00", true),
    ("#009e73", false),
    ("#cc79a7", true),
    ("#56b4e9", true),
    ("#d55e00", false),
    ("#7a6cc4", false),
    ("#8c6d31", false),
    ("#00505f", false),
    ("#a03b6f", false),
    ("#4d7a1f", false),
    ("#6b4a2b", false),
];

fn colour(cell: Cell) -> &'static str {
    match cell {
        Cell::Free => "#e8eaed",
        Cell::Job(job) => COLOURS[job % COLOURS.len()].0,
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

/// The letter of a job in its cell.
fn initial(out: &mut String, x: usize, y: usize, job: usize) {
    let class = if COLOURS[job % COLOURS.len()].1 { "in dark" } else { "in" };
    label(out, x + CELL / 2, y + CELL - 3, class, &letter(job).to_string());
}

fn width_of(node: &MapNode) -> usize {
    node.cells.len() * (CELL + GAP)
}

/// Where the cells begin and where the picture ends: as wide as its longest row, within bounds.
fn columns(input: &MapInput, title: &str) -> (usize, usize) {
    let names = input.domains.iter().map(|domain| domain.name.chars().count()).max().unwrap_or(0);
    let start = MARGIN + (names + 2) * CHARACTER;
    let row = |domain: &MapDomain| -> usize {
        domain.nodes.iter().map(|node| width_of(node) + NODE_GAP).sum::<usize>().saturating_sub(NODE_GAP)
    };
    let longest = start + input.domains.iter().map(row).max().unwrap_or(0);
    let legend = input.jobs.iter().map(|job| entry_of(job).chars().count() + 4).max().unwrap_or(0);
    let text = MARGIN + CHARACTER * legend.max(title.chars().count() + 8);
    (start, (longest.max(text) + MARGIN).clamp(LEAST_WIDTH, MOST_WIDTH))
}

/// The map with a title and, below it, the sentences of `notes`.
pub fn draw(input: &MapInput, title: &str, notes: &[String]) -> String {
    let mut body = String::new();
    let mut y = MARGIN + 16;
    label(&mut body, MARGIN, y, "title", title);
    y += 14;
    let (start, width) = columns(input, title);
    let mut outer: &[String] = &[];
    for domain in &input.domains {
        if domain.outer != outer {
            outer = &domain.outer;
            y += LINE_GAP + PARAGRAPH;
            label(&mut body, MARGIN, y, "outer", &outer.join(" / "));
            y += 4;
        }
        y = line(&mut body, input, domain, (start, width - MARGIN), y);
    }
    y = legend(&mut body, input, y + LINE_GAP);
    for note in notes {
        y += PARAGRAPH;
        for text in wrapped(note, (width - 2 * MARGIN) / CHARACTER) {
            y += TEXT;
            label(&mut body, MARGIN, y, "note", &text);
        }
    }
    let height = y + MARGIN;
    format!(
        concat!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img">"#,
            "\n<style>text{{font:13px ui-monospace,monospace;fill:#202124}}.title{{font-weight:bold;font-size:16px}}",
            ".outer{{font-weight:bold}}.in{{font-size:9px;fill:#fff;text-anchor:middle}}.dark{{fill:#202124}}</style>\n",
            "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n{2}</svg>\n"
        ),
        width, height, body
    )
}

/// Text in lines of at most so many characters, broken between words; lines after the first are indented.
fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if line.is_empty() {
            word.clone_into(&mut line);
        } else if line.chars().count() + 1 + word.chars().count() > most {
            // No-break spaces: XML drops others at the beginning of a line.
            lines.push(std::mem::replace(&mut line, format!("\u{a0}\u{a0}{word}")));
        } else {
            line.push(' ');
            line.push_str(word);
        }
    }
    lines.push(line);
    lines
}

/// One domain; nodes that do not fit the width go on below, in rows of equally many. Returns where it ends.
fn line(
    out: &mut String,
    input: &MapInput,
    domain: &MapDomain,
    (start, end): (usize, usize),
    top: usize,
) -> usize {
    let mut y = top + LINE_GAP;
    label(out, MARGIN, y + CELL - 2, "name", &domain.name);
    let widest = domain.nodes.iter().map(width_of).max().unwrap_or(0) + NODE_GAP;
    let fit = ((end + NODE_GAP).saturating_sub(start) / widest).max(1);
    let rows = domain.nodes.len().div_ceil(fit).max(1);
    let in_row = domain.nodes.len().div_ceil(rows).max(1);
    for (row, nodes) in domain.nodes.chunks(in_row).enumerate() {
        let mut x = start;
        y += if row > 0 { CELL + NODE_GAP } else { 0 };
        for node in nodes {
            draw_node(out, input, node, x, y);
            x += width_of(node) + NODE_GAP;
        }
    }
    y + CELL
}

fn draw_node(out: &mut String, input: &MapInput, node: &MapNode, mut x: usize, y: usize) {
    let _ = writeln!(out, "<g><title>{}</title>", escaped(&described(input, &node.name, &node.cells)));
    for cell in &node.cells {
        let _ = writeln!(
            out,
            r##"<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="2" fill="{}" stroke="#bdc1c6" stroke-width="0.5"/>"##,
            colour(*cell)
        );
        if let Cell::Job(job) = cell {
            initial(out, x, y, *job);
        }
        x += CELL + GAP;
    }
    out.push_str("</g>\n");
}

/// A job's line in the legend.
fn entry_of(job: &MapJob) -> String {
    format!("{}: {}", job.name, job.note)
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
        *y += TEXT;
        let _ = writeln!(
            out,
            r#"<rect x="{MARGIN}" y="{}" width="{CELL}" height="{CELL}" rx="2" fill="{}"/>"#,
            *y - CELL + 1,
            colour(cell)
        );
        if let Cell::Job(job) = cell {
            initial(out, MARGIN, *y - CELL + 1, job);
        }
        label(out, MARGIN + CELL + 8, *y, "note", &text);
    };
    for (at, job) in input.jobs.iter().enumerate() {
        entry(Cell::Job(at), entry_of(job), &mut y);
    }
    for cell in [Cell::Free, Cell::Other, Cell::Cordoned, Cell::NotReady] {
        if shown(cell) {
            entry(cell, words(input, cell), &mut y);
        }
    }
    y
}
