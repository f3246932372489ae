//! The agent's command line: written by the node runtime, so it is strict and small.

use crate::Error;
use regatta_types::Rank;
use std::ffi::OsString;
use std::path::PathBuf;

/// How the agent is called.
pub const USAGE: &str =
    "agent --dir DIR | agent exec --dir DIR [--container NAME] [--rank N] [--tty] -- COMMAND [ARG…]";

/// Whether a command gets a controlling terminal, which is then its standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Terminal {
    /// Standard input is a terminal and shall be the controlling one.
    Controlling,
    /// Pipes.
    None,
}

/// A command to run beside a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunBeside {
    /// Directory of the pod.
    pub(crate) dir: PathBuf,
    /// Container; the first when none.
    pub(crate) container: Option<String>,
    /// Global rank; the first that lives when none.
    pub(crate) rank: Option<Rank>,
    /// Terminal.
    pub(crate) terminal: Terminal,
    /// Program and arguments.
    pub(crate) argv: Vec<OsString>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Supervise the pod of this directory.
    Supervise { dir: PathBuf },
    /// Run a command beside it.
    RunBeside(RunBeside),
    /// Find out which namespaces can be made here.
    Probe,
}

pub(crate) fn parse(args: Vec<OsString>) -> Result<Command, Error> {
    let mut args = args.into_iter().peekable();
    let fail = |problem: String| Error::Arguments { problem };
    if args.next_if(|arg| arg == "probe").is_some() {
        return args.next().map_or(Ok(Command::Probe), |arg| Err(fail(format!("unknown argument {arg:?}"))));
    }
    let beside = args.next_if(|arg| arg == "exec").is_some();
    let (mut dir, mut container, mut rank, mut terminal) = (None, None, None, Terminal::None);
    let mut argv = Vec::new();
    while let Some(arg) = args.next() {
        let flag = arg.to_string_lossy().into_owned();
        let mut value = || args.next().ok_or_else(|| fail(format!("{flag} needs a value")));
        match (flag.as_str(), beside) {
            ("--dir", _) => dir = Some(PathBuf::from(value()?)),
            ("--container", true) => container = Some(value()?.to_string_lossy().into_owned()),
            ("--rank", true) => {
                let text = value()?.to_string_lossy().into_owned();
                rank = Some(Rank(text.parse().map_err(|_| fail(format!("{text:?} is not a rank")))?));
            }
            ("--tty", true) => terminal = Terminal::Controlling,
            ("--", true) => {
                argv = args.collect();
                break;
            }
            _ => return Err(fail(format!("unknown argument {flag:?}"))),
        }
    }
    let dir = dir.ok_or_else(|| fail("--dir is missing".to_owned()))?;
    if !beside {
        return Ok(Command::Supervise { dir });
    }
    if argv.is_empty() {
        return Err(fail("the command is missing".to_owned()));
    }
    Ok(Command::RunBeside(RunBeside { dir, container, rank, terminal, argv }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn arguments_become_commands() {
        assert_eq!(parse(args(&["--dir", "/d"])).unwrap(), Command::Supervise { dir: "/d".into() });
        assert_eq!(parse(args(&["probe"])).unwrap(), Command::Probe);
        let words =
            ["exec", "--dir", "/d", "--container", "main", "--rank", "3", "--tty", "--", "sh", "-c", "--dir"];
        assert_eq!(
            parse(args(&words)).unwrap(),
            Command::RunBeside(RunBeside {
                dir: "/d".into(),
                container: Some("main".to_owned()),
                rank: Some(Rank(3)),
                terminal: Terminal::Controlling,
                argv: args(&["sh", "-c", "--dir"]),
            })
        );
    }

    #[test]
    fn wrong_arguments_get_a_sentence() {
        for (words, problem) in [
            (&[][..], "--dir is missing"),
            (&["--dir"], "--dir needs a value"),
            (&["probe", "x"], "unknown argument \"x\""),
            (&["--dir", "/d", "--tty"], "unknown argument \"--tty\""),
            (&["exec", "--dir", "/d"], "the command is missing"),
            (&["exec", "--dir", "/d", "--rank", "x", "--", "a"], "\"x\" is not a rank"),
        ] {
            let error = parse(args(words)).unwrap_err().to_string();
            assert!(error.starts_with(problem), "{words:?}: {error}");
        }
    }
}
