//! What `cargo metadata` says of the workspace, as far as the checks read it.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    /// Its own packages; others are not read.
    pub(crate) packages: Vec<Package>,
}

/// One package of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    /// Name.
    pub(crate) name: String,
    /// Path of its `Cargo.toml`.
    pub(crate) manifest_path: PathBuf,
    /// What it depends on.
    pub(crate) dependencies: Vec<Dependency>,
}

/// One dependency of a package.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    /// Name of the package.
    pub(crate) name: String,
    /// `dev`, `build`, or nothing for an ordinary one.
    pub(crate) kind: Option<String>,
    /// Set for packages of the workspace.
    pub(crate) path: Option<PathBuf>,
}

/// That one crate of the workspace depends on another, outside its tests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Edge {
    /// The crate that depends.
    pub(crate) from: String,
    /// The crate that it depends on.
    pub(crate) to: String,
}

/// Asks cargo.
pub(crate) fn read(root: &Path) -> Result<Metadata> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("cannot read what cargo metadata printed")
}

impl Metadata {
    /// The arrows between crates of the workspace; those of tests are left out, as testkit is used by all.
    pub(crate) fn edges(&self) -> BTreeSet<Edge> {
        let short = |name: &str| name.strip_prefix("regatta-").unwrap_or(name).to_owned();
        let ordinary = |dependency: &&Dependency| dependency.kind.is_none() && dependency.path.is_some();
        let edges = self.packages.iter().flat_map(|package| {
            let inner = package.dependencies.iter().filter(ordinary);
            inner.map(|to| Edge { from: short(&package.name), to: short(&to.name) })
        });
        edges.collect()
    }
}
