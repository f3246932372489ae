//! `regatta completion`: the completion script of a shell.

use crate::args::Completion;
use crate::output::data_bytes;
use std::process::ExitCode;

pub(crate) fn completion(args: &Completion) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::command(), "regatta", &mut script);
    data_bytes(&script);
    ExitCode::SUCCESS
}
