//! Text for people: colours and a map that is drawn over itself on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::process::{Command, Stdio};

/// Columns where no terminal says how many it has.
const WIDTH: usize = 100;
/// Lines longer than this are hard to read, however wide the terminal.
const PROSE: usize = 96;

/// Where text goes, and how.
pub struct Paint {
    terminal: bool,
    /// Lines of the terminal: a picture that is higher cannot be drawn over.
    rows: usize,
    /// Whether colours are written.
    pub color: bool,
    /// Columns.
    pub width: usize,
    steps: usize,
    /// Lines of the picture that the next one is drawn over.
    drawn: usize,
    last: String,
}

impl Paint {
    /// Standard output as it is.
    pub fn of_stdout() -> Self {
        let terminal = std::io::stdout().is_terminal();
        let (rows, columns) = if terminal { size() } else { None }.unwrap_or((0, WIDTH));
        Self {
            terminal,
            rows,
            color: terminal && std::env::var_os("NO_COLOR").is_none(),
            width: columns,
            steps: 0,
            drawn: 0,
            last: String::new(),
        }
    }

    /// A line.
    pub fn line(&mut self, text: &str) {
        self.drawn = 0;
        let mut out = std::io::stdout().lock();
        // A reader that went away (`| head`) is no reason to leave a cluster behind: the demo ends in order.
        let _ = writeln!(out, "{text}");
        let _ = out.flush();
    }

    /// The first line.
    pub fn title(&mut self, text: &str) {
        let text = self.bold(text);
        self.line(&text);
        self.line("");
    }

    /// What is being done, for those who wait.
    pub fn note(&mut self, text: &str) {
        let text = self.dim(&format!("   {text}"));
        self.line(&text);
    }

    /// The heading of the next step.
    pub fn step(&mut self, text: &str) {
        self.steps += 1;
        let text = self.bold(&format!("{}  {text}", self.steps));
        self.line("");
        self.line(&text);
    }

    /// A paragraph.
    pub fn say(&mut self, text: &str) {
        for line in wrapped(text, self.width.min(PROSE).saturating_sub(3)) {
            self.line(&format!("   {line}"));
        }
    }

    /// A picture while it changes: drawn over the last one on a terminal, else not at all.
    pub fn frame(&mut self, picture: &str) {
        if self.terminal && picture != self.last && picture.lines().count() < self.rows {
            self.draw(picture);
        }
    }

    /// A picture as it stays.
    pub fn settle(&mut self, picture: &str) {
        if self.drawn == 0 || picture != self.last {
            if picture.lines().count() >= self.rows {
                self.drawn = 0;
            }
            self.draw(picture);
        }
        self.drawn = 0;
        self.last.clear();
    }

    fn draw(&mut self, picture: &str) {
        let mut text = String::new();
        if self.drawn > 0 {
            text = format!("\x1b[{}F\x1b[J", self.drawn);
        }
        text.push_str(picture);
        text.push('\n');
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text.as_bytes());
        let _ = out.flush();
        self.drawn = picture.lines().count();
        picture.clone_into(&mut self.last);
    }

    /// Bold, where colours are written.
    pub fn bold(&self, text: &str) -> String {
        self.painted("1", text)
    }

    /// Dim, where colours are written.
    pub fn dim(&self, text: &str) -> String {
        self.painted("2", text)
    }

    fn painted(&self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The terminal's lines and columns, as stty tells them: the standard library cannot ask.
fn size() -> Option<(usize, usize)> {
    let out = Command::new("stty").arg("size").stdin(Stdio::inherit()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    let mut numbers = text.split_whitespace().map_while(|number| number.parse().ok());
    let (rows, columns) = (numbers.next()?, numbers.next()?);
    (columns > 0).then_some((rows, columns))
}

/// A text in lines of at most `width` columns, broken at spaces.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Rows in columns; the first row is the heading. The last column is not padded.
pub fn table(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|at| {
            rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("   ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::{table, wrapped};

    #[test]
    fn lines_break_at_spaces_and_long_words_stay_whole() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("a-very-long-word is kept", 8), ["a-very-long-word", "is kept"]);
        assert!(wrapped("", 8).is_empty());
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["POD".into(), "NODE".into()], vec!["a-long-pod".into(), "n1".into()]];
        assert_eq!(table(&rows), ["POD          NODE", "a-long-pod   n1"]);
    }
}
