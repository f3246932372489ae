//! Chores of the repository: `cargo xtask CHORE`.
//!
//! Each check is a function from what it reads to a list of sentences, one a problem; no sentence means that it holds.
//! It knows the repository's files and `cargo metadata`, nothing of what the crates do.
//!
//! Start reading at [`run`].

mod cli_reference;
mod generate;
mod layering;
mod metadata;
mod tidy;

use anyhow::{Context, Result, bail};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask CHORE

  layering    holds that crates depend on each other only as the design allows
  generate    writes docs/CLI.md from the code; with --check, holds that it is up to date
  tidy        holds sizes, forbidden words, crate introductions and the list of dependencies
";

fn main() -> ExitCode {
    let chore = std::env::args().nth(1).unwrap_or_default();
    match run(&chore) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to do when the terminal is gone.
            let _ = writeln!(std::io::stderr(), "xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: &str) -> Result<()> {
    let root = root();
    let problems = match chore {
        "layering" => layering::check(&metadata::read(&root)?.edges()),
        "generate" if std::env::args().nth(2).is_some_and(|flag| flag == "--check") => {
            generate::run(&root, generate::Mode::Check)?
        }
        "generate" => generate::run(&root, generate::Mode::Write)?,
        "tidy" => tidy::check(&root, &metadata::read(&root)?)?,
        other => bail!("unknown chore {other:?}\n{USAGE}"),
    };
    report(chore, &problems)
}

fn report(chore: &str, problems: &[String]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for problem in problems {
        writeln!(out, "{problem}").context("cannot write")?;
    }
    match problems.len() {
        0 => writeln!(out, "{chore}: holds").context("cannot write"),
        count => bail!("{chore}: {count} problems"),
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("invariant: xtask lies in the repository")
        .to_owned()
}
