//! The reference of the command line, from its own grammar: what `--help` says, on one page.

use clap::{Arg, ArgAction, Command};
use regatta_cli::error::Exit;
use std::fmt::Write;

/// `docs/CLI.md`.
pub(crate) fn page() -> String {
    let mut command = regatta_cli::command();
    command.build();
    let mut page = String::from(
        "# The command line\n\nGenerated from the code by `make docs`; the check in CI fails when it is not up to date.\n\
         Data goes to standard output, talk to standard error. `-o json|yaml|name` prints objects as the API has them.\n\n",
    );
    exit_codes(&mut page);
    let globals: Vec<&Arg> = command.get_arguments().filter(|arg| arg.is_global_set()).collect();
    line(&mut page, "## Where to run\n\nFor every verb:\n");
    arguments(&mut page, &globals);
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        describe(&mut page, verb);
    }
    page
}

fn line(page: &mut String, text: &str) {
    page.push_str(text);
    page.push('\n');
}

fn exit_codes(page: &mut String) {
    line(
        page,
        "## Exit codes\n\n`run` and `wait` end with the job's own exit code once the job has ended. Otherwise:\n",
    );
    line(page, "| code | meaning |\n| --- | --- |\n| 0 | done |");
    for (exit, meaning) in Exit::ALL {
        line(page, &format!("| {} | {meaning} |", *exit as u8));
    }
    line(page, "");
}

fn describe(page: &mut String, verb: &Command) {
    let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
    line(page, &format!("## `regatta {}`\n\n{about}.\n", verb.get_name()));
    let usage = verb.clone().disable_help_flag(true).render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").lines().map(str::trim).collect::<Vec<_>>().join("\n");
    line(page, &format!("```text\n{usage}\n```\n"));
    let own = |arg: &&Arg| {
        !arg.is_global_set() && !matches!(arg.get_action(), ArgAction::Help | ArgAction::Version)
    };
    let own: Vec<&Arg> = verb.get_arguments().filter(own).collect();
    arguments(page, &own);
}

fn arguments(page: &mut String, arguments: &[&Arg]) {
    if arguments.is_empty() {
        return;
    }
    line(page, "| argument | meaning |\n| --- | --- |");
    for arg in arguments {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        line(page, &format!("| `{}` | {}{} |", name(arg), help.replace('|', "\\|"), values(arg)));
    }
    line(page, "");
}

fn name(arg: &Arg) -> String {
    let value = arg.get_value_names().unwrap_or_default().first().map(ToString::to_string);
    let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let mut name = String::new();
    if let Some(short) = arg.get_short() {
        let _ = write!(name, "-{short}, ");
    }
    match arg.get_long() {
        Some(long) => {
            let _ = write!(name, "--{long}");
            if let Some(value) = value.filter(|_| takes_value) {
                let _ = write!(name, " {value}");
            }
        }
        None => name.push_str(&value.unwrap_or_else(|| arg.get_id().to_string().to_uppercase())),
    }
    name
}

fn values(arg: &Arg) -> String {
    let mut text = String::new();
    let possible: Vec<String> =
        arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    if matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
        && !possible.is_empty()
        && possible[0] != "`true`"
    {
        let _ = write!(text, " ({})", possible.join(", "));
    }
    if let Some(env) = arg.get_env() {
        let _ = write!(text, " (or `{}`)", env.to_string_lossy());
    }
    text
}
