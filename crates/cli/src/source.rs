//! Facts of what is submitted: commit, uncommitted changes, interpreter, user. Each may be missing.

use regatta_types::job::Source;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

/// Variables by which programs are found. Ranks on this machine get those of the person, so that they see what the
/// person sees: an activated virtual environment above all.
const TAKEN_ALONG: [&str; 6] =
    ["CONDA_DEFAULT_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "VIRTUAL_ENV"];

/// What git knows of `directory`.
pub(crate) fn of_git(directory: &Path) -> Source {
    let Some(commit) = git_commit(directory) else { return Source::default() };
    Source { git_commit: Some(commit), git_diff_hash: git_diff_hash(directory), ..Source::default() }
}

fn git(directory: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(directory).args(args).stdin(Stdio::null()).stderr(Stdio::null());
    // Reading must not write: no refreshed index beside somebody's own git command.
    command.env("GIT_OPTIONAL_LOCKS", "0");
    command
}

fn git_commit(directory: &Path) -> Option<String> {
    let output = git(directory, &["rev-parse", "--verify", "--quiet", "HEAD"]).output().ok()?;
    let commit = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !commit.is_empty()).then_some(commit)
}

/// SHA-256 of the changes to tracked files; none when there are none. The changes may be large, so they are not kept.
fn git_diff_hash(directory: &Path) -> Option<String> {
    let args = ["diff", "HEAD", "--no-ext-diff", "--no-color", "--binary"];
    let mut child = git(directory, &args).stdout(Stdio::piped()).spawn().ok()?;
    let mut pipe = child.stdout.take()?;
    let mut hash = Sha256::new();
    let mut buffer = [0_u8; 16 * 1024];
    let mut bytes = 0_usize;
    let read = loop {
        match pipe.read(&mut buffer) {
            Ok(0) => break true,
            Ok(n) => {
                bytes = bytes.saturating_add(n);
                hash.update(&buffer[..n]);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break false,
        }
    };
    let ended = child.wait().is_ok_and(|status| status.success());
    (read && ended && bytes > 0).then(|| hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The program that a command starts, as a full path where it is found.
pub(crate) fn interpreter(command: &str, path: Option<&OsStr>) -> Option<String> {
    let program = command.split_whitespace().find(|word| !word.contains('=') && *word != "exec")?;
    if program.contains('/') {
        return Some(program.to_owned());
    }
    let found = std::env::split_paths(path?).map(|dir| dir.join(program)).find(|file| is_executable(file));
    found.map(|file| file.display().to_string())
}

fn is_executable(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Who submits, by the name in the environment, else by number.
pub(crate) fn user() -> String {
    let named = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    let named = named.filter(|user| !user.is_empty());
    named.unwrap_or_else(|| match rustix::process::getuid().as_raw() {
        0 => "root".to_owned(),
        uid => format!("uid-{uid}"),
    })
}

/// The variables of this process that ranks on this machine get too.
pub(crate) fn taken_along() -> BTreeMap<String, String> {
    TAKEN_ALONG.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(directory: &Path, args: &[&str]) {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"];
        let status = git(directory, &[&identity[..], args].concat()).stdout(Stdio::null()).status().unwrap();
        assert!(status.success(), "git {args:?}");
    }

    #[test]
    fn git_tells_commit_and_changes() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(of_git(dir.path()), Source::default(), "no repository");
        if Command::new("git").arg("--version").stdout(Stdio::null()).status().is_err() {
            // Without git nothing is known, as has just been seen.
            return;
        }
        run(dir.path(), &["init", "-q"]);
        assert_eq!(of_git(dir.path()), Source::default(), "no commit");
        std::fs::write(dir.path().join("train.py"), "1\n").unwrap();
        run(dir.path(), &["add", "train.py"]);
        run(dir.path(), &["commit", "-q", "-m", "one"]);
        let clean = of_git(dir.path());
        assert_eq!(clean.git_commit.as_ref().map(String::len), Some(40));
        assert_eq!(clean.git_diff_hash, None);
        std::fs::write(dir.path().join("train.py"), "2\n").unwrap();
        let changed = of_git(dir.path());
        assert_eq!(changed.git_commit, clean.git_commit);
        assert_eq!(changed.git_diff_hash.map(|hash| hash.len()), Some(64));
    }

    #[test]
    fn interpreters_are_found_on_the_path() {
        let path = Some(OsStr::new("/nonexistent:/bin:/usr/bin"));
        assert_eq!(interpreter("A=1 exec sh -c x", path).as_deref(), Some("/bin/sh"));
        assert_eq!(interpreter("./train.sh", path).as_deref(), Some("./train.sh"));
        assert_eq!(interpreter("no-such-program-at-all", path), None);
        assert_eq!(interpreter("", path), None);
    }
}
