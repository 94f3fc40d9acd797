//! The end of a log file, for errors that must say why a program ended.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// How many lines an error quotes: enough for a program's last words, and for a short Go trace.
const LINES: usize = 20;
/// How far back from the end to look for them.
const BYTES: u64 = 16 * 1024;

/// The last lines of `path`, or why they cannot be read.
pub(crate) fn tail(path: &Path) -> String {
    match read_end(path) {
        Ok(text) => {
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(LINES)..].join("\n")
        }
        Err(e) => format!("(the log {} cannot be read: {e})", path.display()),
    }
}

fn read_end(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
