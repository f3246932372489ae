//! What is written, and where: data on standard output, talk on standard error. Colour only on terminals.

use crate::args::Format;
use crate::error::{Error, Exit, Result};
use rustix::termios::isatty;
use serde_json::Value;
use std::io::{Write, stderr, stdout};

/// Width of a terminal that does not tell its own, in columns.
const WIDTH_DEFAULT: usize = 80;

/// Writes a line of data. A closed pipe is no failure: whoever read has read enough.
pub(crate) fn data(line: &str) {
    let mut out = stdout().lock();
    if writeln!(out, "{line}").is_err() {
        std::process::exit(Exit::PipeClosed as i32);
    }
}

/// Writes bytes of data as they are.
pub(crate) fn data_bytes(bytes: &[u8]) {
    let mut out = stdout().lock();
    if out.write_all(bytes).and_then(|()| out.flush()).is_err() {
        std::process::exit(Exit::PipeClosed as i32);
    }
}

/// Says something to the person.
pub(crate) fn talk(line: &str) {
    let _ = writeln!(stderr().lock(), "{line}");
}

/// Whether the person sees standard error on a terminal.
pub(crate) fn talks_to_terminal() -> bool {
    isatty(stderr())
}

/// Whether somebody can answer a question.
pub(crate) fn can_ask() -> bool {
    isatty(std::io::stdin()) && talks_to_terminal()
}

/// Asks a question that is answered by yes or no; no is the default.
pub(crate) fn ask(question: &str) -> bool {
    let _ = write!(stderr().lock(), "{question} [y/N] ");
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

/// Rows under headings, in aligned columns.
#[derive(Debug, Default)]
pub(crate) struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(headings: &[&'static str]) -> Self {
        Self { headings: headings.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text.
    pub(crate) fn render(&self) -> String {
        self.lines().join("\n")
    }

    /// The table as lines, none when it has no rows; the last column is not padded.
    pub(crate) fn lines(&self) -> Vec<String> {
        if self.rows.is_empty() {
            return Vec::new();
        }
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([self.headings[column].chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.headings.len()).map(width).collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let padded = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            padded.collect::<Vec<_>>().join("   ").trim_end().to_owned()
        };
        let mut lines = vec![line(&mut self.headings.iter().copied())];
        lines.extend(self.rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
        lines
    }
}

/// Prints objects in the form that was asked for; `table` is made only for people.
pub(crate) fn print(
    format: Option<Format>,
    value: &Value,
    table: impl FnOnce() -> Table,
    nothing: &str,
) -> Result<()> {
    match format {
        None => {
            let table = table();
            if table.is_empty() { talk(nothing) } else { data(&table.render()) }
        }
        Some(Format::Json) => data(&format!("{value:#}")),
        Some(Format::Yaml) => data(to_yaml(value)?.trim_end()),
        Some(Format::Name) => {
            let one = std::slice::from_ref(value);
            for item in value["items"].as_array().map_or(one, Vec::as_slice) {
                data(item["metadata"]["name"].as_str().or_else(|| item["name"].as_str()).unwrap_or_default());
            }
        }
    }
    Ok(())
}

pub(crate) fn to_yaml(value: &Value) -> Result<String> {
    serde_saphyr::to_string(value).map_err(|e| Error::failure(format!("cannot write YAML: {e}")))
}

/// Writes one line that is replaced by the next one, where a terminal allows it. Other output goes through it too, so
/// that lines do not run into each other.
#[derive(Debug)]
pub(crate) struct StatusLine {
    shown: bool,
    live: bool,
}

impl StatusLine {
    pub(crate) fn new() -> Self {
        Self {
            shown: false,
            live: talks_to_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb"),
        }
    }

    pub(crate) fn is_live(&self) -> bool {
        self.live
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(stderr().lock(), "\r\x1b[2K");
        }
    }

    /// Shows the line, cut to the width of the terminal.
    pub(crate) fn show(&mut self, line: &str) {
        if self.live {
            // A terminal that does not know its width says 0.
            let width = rustix::termios::tcgetwinsize(stderr()).map_or(0, |size| usize::from(size.ws_col));
            let width = if width == 0 { WIDTH_DEFAULT } else { width };
            let line: String = line.chars().take(width.saturating_sub(1)).collect();
            let mut out = stderr().lock();
            let _ = write!(out, "\r\x1b[2K{line}").and_then(|()| out.flush());
            self.shown = true;
        }
    }

    pub(crate) fn talk(&mut self, line: &str) {
        self.clear();
        talk(line);
    }

    pub(crate) fn data_bytes(&mut self, bytes: &[u8]) {
        self.clear();
        data_bytes(bytes);
    }

    pub(crate) fn end(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["NAME", "PHASE"]);
        table.row(["digits".to_owned(), "Running".to_owned()]);
        table.row(["a".to_owned(), "Queued".to_owned()]);
        assert_eq!(table.render(), "NAME     PHASE\ndigits   Running\na        Queued");
    }
}
