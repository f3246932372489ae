//! Files that are written by the code they describe, and the check that they are up to date.

use crate::cli_reference;
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// Whether files are written or only compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Write,
    Check,
}

/// Path and content of every generated file.
fn files() -> Vec<(&'static str, String)> {
    vec![("docs/CLI.md", cli_reference::page())]
}

/// Writes what has changed, or tells what is not up to date.
pub(crate) fn run(root: &Path, mode: Mode) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for (path, content) in files() {
        let full = root.join(path);
        if fs::read_to_string(&full).is_ok_and(|known| known == content) {
            continue;
        }
        match mode {
            Mode::Write => fs::write(&full, content).with_context(|| format!("cannot write {path}"))?,
            Mode::Check => problems.push(format!("{path} is not up to date; run `make docs`")),
        }
    }
    Ok(problems)
}
