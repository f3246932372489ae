//! The rules by which a launcher is chosen from a command, and ranks are counted. The operator applies them for jobs, the
//! node runtime for pods whose launch facts leave the launcher open, the command line to tell people which rank is where.

use crate::job::{Job, Launcher, Role};
use crate::pod::ResourceTotals;

/// How the slots of one role are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoleLaunch {
    /// Resolved; never `Auto`.
    pub launcher: Launcher,
    /// Processes that the agent starts in each slot.
    pub procs: u32,
    /// Ranks in each slot, whoever starts them.
    pub ranks: u32,
}

/// How the slots of `role` in `job` are started. GPUs alone never multiply processes: a program that drives all of them by
/// itself is as common as one per GPU.
pub fn of_role(job: &Job, role: &Role) -> RoleLaunch {
    let container = role.template.spec.containers.first();
    let argv: Vec<&str> =
        container.into_iter().flat_map(|c| c.command.iter().chain(&c.args)).map(String::as_str).collect();
    let gpus = u32::try_from(ResourceTotals::of(&role.template.spec).gpus()).unwrap_or(0);
    let alone = gpus == 0 && role.procs_per_node.is_none() && job.slots() <= 1;
    let launcher = resolve(job.spec.launcher, &argv, if alone { Distributed::No } else { Distributed::Yes });
    match launcher {
        Launcher::Torchrun => {
            RoleLaunch { launcher, procs: 1, ranks: role.procs_per_node.unwrap_or(gpus).max(1) }
        }
        _ => {
            let procs = role.procs_per_node.unwrap_or(1).max(1);
            RoleLaunch { launcher, procs, ranks: procs }
        }
    }
}

/// Whether a process is one of several, or has a GPU, so that it wants to know its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distributed {
    /// A lone process without GPU.
    No,
    /// One of several, or one with a GPU.
    Yes,
}

/// What `launcher` means for the command `argv`: torchrun's variables for torchrun, those of plain ranks for anything
/// else, none for a lone process without GPU. A launcher that was chosen by name stays as it is.
pub fn resolve(launcher: Launcher, argv: &[&str], distributed: Distributed) -> Launcher {
    match (launcher, distributed) {
        (Launcher::Auto, Distributed::No) => Launcher::None,
        (Launcher::Auto, Distributed::Yes) if starts_own_ranks(argv) => Launcher::Torchrun,
        (Launcher::Auto, Distributed::Yes) => Launcher::Ranks,
        (chosen, _) => chosen,
    }
}

/// Whether the command starts its ranks by itself, as torchrun does. In a shell script the last line decides.
pub fn starts_own_ranks(argv: &[&str]) -> bool {
    match argv {
        [shell, flag, script, ..] if is_shell(shell) && flag.starts_with('-') && flag.ends_with('c') => {
            let last = script.lines().map(str::trim).rfind(|line| !line.is_empty() && !line.starts_with('#'));
            let last = last.and_then(|line| line.rsplit("&&").next()).unwrap_or_default();
            let words: Vec<&str> = last.split_whitespace().collect();
            starts_own_ranks(&words)
        }
        ["exec" | "env", rest @ ..] => starts_own_ranks(rest),
        [assignment, rest @ ..] if is_assignment(assignment) => starts_own_ranks(rest),
        [first, ..] if program(first) == "torchrun" => true,
        [first, "launch", ..] => program(first) == "accelerate",
        [first, rest @ ..] if program(first).starts_with("python") => rest.windows(2).any(|pair| {
            pair[0] == "-m" && matches!(pair[1], "torch.distributed.run" | "torch.distributed.launch")
        }),
        _ => false,
    }
}

fn is_shell(path: &str) -> bool {
    matches!(program(path), "sh" | "bash" | "dash" | "zsh")
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

fn program(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_start_their_own_ranks_are_known() {
        let check = |command: &str, expected: bool| {
            let argv: Vec<&str> = command.split_whitespace().collect();
            assert_eq!(starts_own_ranks(&argv), expected, "{command}");
            assert_eq!(starts_own_ranks(&["sh", "-c", command]), expected, "sh -c {command}");
            let script = format!("set -e\npip install x\nexec {command}\n");
            assert_eq!(starts_own_ranks(&["/bin/bash", "-ec", &script]), expected, "bash -ec {script}");
        };
        check("torchrun train.py", true);
        check("OMP_NUM_THREADS=1 torchrun train.py", true);
        check("env A=b torchrun train.py", true);
        check("/opt/venv/bin/torchrun --nnodes 2 train.py", true);
        check("python3 -m torch.distributed.run train.py", true);
        check("python -u -m torch.distributed.launch train.py", true);
        check("accelerate launch train.py", true);
        check("accelerate config", false);
        check("python train.py", false);
        check("python train.py torchrun", false);
        check("echo torchrun", false);
    }

    #[test]
    fn a_chosen_launcher_stays() {
        let check = |launcher, distributed, expected| {
            assert_eq!(resolve(launcher, &["torchrun", "x.py"], distributed), expected);
        };
        check(Launcher::Auto, Distributed::Yes, Launcher::Torchrun);
        check(Launcher::Auto, Distributed::No, Launcher::None);
        check(Launcher::Ranks, Distributed::No, Launcher::Ranks);
        check(Launcher::None, Distributed::Yes, Launcher::None);
        assert_eq!(resolve(Launcher::Auto, &["python", "x.py"], Distributed::Yes), Launcher::Ranks);
    }
}
