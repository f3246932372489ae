//! House rules that no compiler knows: sizes, words, introductions, the list of dependencies.

use crate::metadata::{Metadata, Package};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A file of code with more lines than this has more than one idea in it.
const FILE_LINES_MAX: usize = 750;
/// How many packages the lock file may hold, ours included.
const LOCKED_PACKAGES_MAX: usize = 350;
/// Larger files are not read as text.
const TEXT_BYTES_MAX: u64 = 1 << 20;
/// What people read in a text file; others are not searched for words.
const TEXT_ENDINGS: &[&str] =
    &["rs", "md", "toml", "py", "sh", "yaml", "yml", "Makefile", "run", "python-env", "demo"];

/// All problems of the repository at `root`.
pub(crate) fn check(root: &Path, metadata: &Metadata) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in tracked_files(root)? {
        let full = root.join(&path);
        let is_text = TEXT_ENDINGS.iter().any(|ending| path.ends_with(ending));
        if !is_text || fs::metadata(&full).map_or(true, |meta| !meta.is_file() || meta.len() > TEXT_BYTES_MAX)
        {
            continue;
        }
        let text = fs::read_to_string(&full).with_context(|| format!("cannot read {path}"))?;
        problems.extend(check_text(&path, &text));
    }
    let lock = fs::read_to_string(root.join("Cargo.lock")).context("cannot read Cargo.lock")?;
    problems.extend(check_lock(&lock));
    let list =
        fs::read_to_string(root.join("docs/DEPENDENCIES.md")).context("cannot read docs/DEPENDENCIES.md")?;
    problems.extend(check_dependencies(&metadata.packages, &list));
    Ok(problems)
}

/// What git knows, also files that are new and not yet added.
fn tracked_files(root: &Path) -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root)
        .output()
        .context("cannot start git")?;
    let text = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    Ok(text.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect())
}

/// Words that must not appear, each with the reason. They are put together here so that this file does not hold them.
fn forbidden() -> Vec<(String, &'static str)> {
    let join = |parts: &[&str]| parts.concat();
    vec![
        (join(&["TO", "DO"]), "do it, or write an issue"),
        (join(&["FIX", "ME"]), "do it, or write an issue"),
        (join(&["X", "XX"]), "do it, or write an issue"),
        (join(&["/wo", "rk/main"]), "a path of one machine"),
        (join(&["/wo", "rk/shared"]), "a path of one machine"),
        (join(&["crates", ".io"]), "hosts of registries are configuration"),
        (join(&["py", "pi.org"]), "hosts of registries are configuration"),
        (join(&["python", "hosted"]), "hosts of registries are configuration"),
        (join(&["deb.deb", "ian"]), "hosts of registries are configuration"),
    ]
}

fn check_text(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for (word, reason) in forbidden() {
            if has_word(line, &word) {
                problems.push(format!("{path}:{}: {word:?} must not appear: {reason}", index + 1));
            }
        }
    }
    if path.ends_with(".rs") {
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            problems.push(format!("{path}: {lines} lines; split it by ideas (at most {FILE_LINES_MAX})"));
        }
        if path.ends_with("src/lib.rs") && !text.starts_with("//! ") {
            problems.push(format!(
                "{path}: open with `//!`: what the crate is, what it does not know, where to start"
            ));
        }
    }
    problems
}

/// Whether `line` has `word`, not as a part of a longer word.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        let after = line[at + word.len()..].chars().next();
        !word.ends_with(char::is_alphanumeric)
            || (!is_part(line[..at].chars().next_back()) && !is_part(after))
    })
}

fn check_lock(lock: &str) -> Option<String> {
    let count = lock.lines().filter(|line| *line == "[[package]]").count();
    (count >= LOCKED_PACKAGES_MAX)
        .then(|| format!("Cargo.lock: {count} packages; keep below {LOCKED_PACKAGES_MAX}"))
}

/// Each direct dependency has a line `| name | ...` in the list, and each line a dependency.
fn check_dependencies(packages: &[Package], list: &str) -> Vec<String> {
    let outside = packages.iter().flat_map(|package| &package.dependencies).filter(|one| one.path.is_none());
    let used: BTreeSet<&str> = outside.map(|one| one.name.as_str()).collect();
    let listed: BTreeSet<&str> = list
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name)
        .collect();
    let missing = used.difference(&listed).map(|name| {
        format!("docs/DEPENDENCIES.md: {name} is used but not listed; say who uses it, why, and what else was considered")
    });
    let stale =
        listed.difference(&used).map(|name| format!("docs/DEPENDENCIES.md: {name} is listed but not used"));
    let unread = packages.iter().filter(|package| !package.manifest_path.exists());
    let unread = unread.map(|package| format!("{} is gone", package.manifest_path.display()));
    missing.chain(stale).chain(unread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_whole() {
        let todo = forbidden()[0].0.clone();
        let check = |line: &str, expected: usize| {
            assert_eq!(check_text("a.rs", &line.replace("@", &todo)).len(), expected, "{line}");
        };
        check("// @: later", 1);
        check("MY@S", 0);
        check("@_LIST", 0);
        check("nothing", 0);
    }

    #[test]
    fn long_files_and_silent_crates_are_told() {
        let check = |path: &str, text: &str, expected: usize| {
            assert_eq!(check_text(path, text).len(), expected, "{path}");
        };
        check("crates/a/src/lib.rs", "//! What it is.\n", 0);
        check("crates/a/src/lib.rs", "mod a;\n", 1);
        check("crates/a/src/b.rs", &"a\n".repeat(FILE_LINES_MAX + 1), 1);
        check("notes.md", &"a\n".repeat(FILE_LINES_MAX + 1), 0);
    }

    #[test]
    fn the_list_of_dependencies_matches_what_is_used() {
        let metadata: Metadata = serde_json::from_value(serde_json::json!({"packages": [{
            "name": "a", "manifest_path": "/", "dependencies": [
                {"name": "serde", "kind": null, "path": null},
                {"name": "own", "kind": null, "path": "/own"},
            ],
        }]}))
        .unwrap();
        let check = |list: &str, expected: usize| {
            assert_eq!(check_dependencies(&metadata.packages, list).len(), expected, "{list}");
        };
        check("| `serde` | all | why |\n", 0);
        check("", 1);
        check("| `serde` | x |\n| `bytes` | x |\n", 1);
    }

    #[test]
    fn the_lock_file_has_a_limit() {
        assert_eq!(check_lock("[[package]]\n"), None);
        assert!(check_lock(&"[[package]]\n".repeat(LOCKED_PACKAGES_MAX)).is_some());
    }
}
