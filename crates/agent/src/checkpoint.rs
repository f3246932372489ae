//! Checkpoints on storage: which are complete.
//!
//! A checkpoint is whatever files its manifest lists. The manifest `ckpt-STEP.json` is written last, by atomic rename,
//! so its presence says that the writer was done; the sizes it lists say that the files are still what they were.

use regatta_types::evidence::{CHECKPOINTS_REPORTED_MAX, Checkpoint};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

/// How many manifests a scan looks at, newest first.
const MANIFESTS_MAX: usize = 256;
/// Largest manifest that is read, in bytes.
const MANIFEST_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// How many bytes one scan hashes at most. Beyond it sizes must do: a scan must not hold up the restart it serves.
const HASH_BYTES_MAX: u64 = 1024 * 1024 * 1024;
const READ_BYTES: usize = 256 * 1024;

#[derive(Deserialize)]
struct Manifest {
    step: u64,
    files: Vec<ListedFile>,
}

#[derive(Deserialize)]
struct ListedFile {
    path: PathBuf,
    bytes: u64,
    #[serde(default)]
    sha256: Option<String>,
}

/// The complete checkpoints in `directory`, newest first, at most [`CHECKPOINTS_REPORTED_MAX`]. A directory that cannot
/// be read has none.
pub fn scan(directory: &Path) -> Vec<Checkpoint> {
    let mut budget = HASH_BYTES_MAX;
    let mut found = Vec::new();
    for (step, manifest) in manifests(directory) {
        if found.len() == CHECKPOINTS_REPORTED_MAX {
            break;
        }
        if is_complete(directory, &manifest, step, &mut budget) {
            found.push(Checkpoint { step, path: manifest.to_string_lossy().into_owned() });
        }
    }
    found
}

/// Manifests by step, newest first.
fn manifests(directory: &Path) -> Vec<(u64, PathBuf)> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut manifests: Vec<(u64, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| Some((step_of(entry.file_name().to_str()?)?, entry.path())))
        .collect();
    manifests.sort_by(|a, b| b.cmp(a));
    manifests.truncate(MANIFESTS_MAX);
    manifests
}

/// The step in a manifest's file name.
fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix("ckpt-")?.strip_suffix(".json")?.parse().ok()
}

fn is_complete(directory: &Path, manifest: &Path, step: u64, hash_budget: &mut u64) -> bool {
    let Some(manifest) = read_manifest(manifest) else { return false };
    // A copied or renamed manifest says nothing about the step in its name.
    manifest.step == step && manifest.files.iter().all(|file| is_whole(directory, file, hash_budget))
}

fn read_manifest(path: &Path) -> Option<Manifest> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MANIFEST_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn is_whole(directory: &Path, file: &ListedFile, hash_budget: &mut u64) -> bool {
    if file.path.components().any(|part| part == Component::ParentDir) {
        return false;
    }
    let path = directory.join(&file.path);
    let Ok(metadata) = std::fs::metadata(&path) else { return false };
    if !metadata.is_file() || metadata.len() != file.bytes {
        return false;
    }
    match &file.sha256 {
        Some(expected) if file.bytes <= *hash_budget => {
            *hash_budget -= file.bytes;
            hash(&path).is_ok_and(|actual| actual.eq_ignore_ascii_case(expected))
        }
        _ => true,
    }
}

fn hash(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hasher.update(&buffer[..n]),
        }
    }
    let mut text = String::with_capacity(64);
    for byte in hasher.finalize() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO_SHA256: &str = "2CF24DBA5FB0A30E26E83B2AC5B9E29E1B161E5C1FA7425E73043362938B9824";

    fn check(files: &[(&str, &str)], expected_steps: &[u64]) {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let found = scan(dir.path());
        let steps: Vec<u64> = found.iter().map(|checkpoint| checkpoint.step).collect();
        assert_eq!(steps, expected_steps, "{files:?}");
        for checkpoint in found {
            assert_eq!(
                checkpoint.path,
                dir.path().join(format!("ckpt-{}.json", checkpoint.step)).to_string_lossy()
            );
        }
    }

    #[test]
    fn newest_complete_first() {
        check(
            &[
                ("ckpt-9.json", r#"{"step":9,"epoch":1,"files":[{"path":"a.pt","bytes":5}]}"#),
                ("ckpt-100.json", r#"{"step":100,"epoch":1,"files":[{"path":"shards/b.pt","bytes":3}]}"#),
                ("a.pt", "hello"),
                ("shards/b.pt", "abc"),
            ],
            &[100, 9],
        );
        check(&[("ckpt-3.json", r#"{"step":3,"files":[]}"#)], &[3]);
    }

    #[test]
    fn anything_less_is_not_complete() {
        for (what, manifest) in [
            ("missing file", r#"{"step":1,"files":[{"path":"gone.pt","bytes":5}]}"#),
            ("cut file", r#"{"step":1,"files":[{"path":"a.pt","bytes":6}]}"#),
            ("cut manifest", r#"{"step":1,"files":[{"path":"a.pt","by"#),
            ("other step", r#"{"step":2,"files":[{"path":"a.pt","bytes":5}]}"#),
            ("outside", r#"{"step":1,"files":[{"path":"../a.pt","bytes":5}]}"#),
            ("other content", r#"{"step":1,"files":[{"path":"a.pt","bytes":5,"sha256":"00"}]}"#),
            ("directory", r#"{"step":1,"files":[{"path":".","bytes":4096}]}"#),
        ] {
            eprintln!("{what}");
            check(&[("ckpt-1.json", manifest), ("a.pt", "hello")], &[]);
        }
    }

    #[test]
    fn hashes_and_names_are_read() {
        let manifest =
            format!(r#"{{"step":1,"files":[{{"path":"a.pt","bytes":5,"sha256":"{HELLO_SHA256}"}}]}}"#);
        check(&[("ckpt-1.json", &manifest), ("a.pt", "hello")], &[1]);
        for (name, step) in [
            ("ckpt-12.json", Some(12)),
            ("ckpt-.json", None),
            ("ckpt-1.json.tmp", None),
            (".ckpt-1.json", None),
            ("ckpt--1.json", None),
        ] {
            assert_eq!(step_of(name), step, "{name}");
        }
        assert_eq!(scan(Path::new("/does/not/exist")), Vec::new());
    }

    #[test]
    fn at_most_so_many_are_reported() {
        let files: Vec<(String, String)> =
            (1..=9).map(|n| (format!("ckpt-{n}.json"), format!(r#"{{"step":{n},"files":[]}}"#))).collect();
        let files: Vec<(&str, &str)> =
            files.iter().map(|(name, content)| (name.as_str(), content.as_str())).collect();
        check(&files, &[9, 8, 7, 6, 5]);
    }
}
