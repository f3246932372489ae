//! Runs a command beside a rank: in its namespaces and control groups, with its environment and directory.
//!
//! The caller has started this process for the command's sake; it becomes the command.

use crate::args::{RunBeside, Terminal};
use crate::files;
use crate::launch;
use crate::process;
use crate::spec::{AgentSpec, ContainerSpec, MountNamespace, RunningRank, RunningRanks, UserNamespace};
use crate::{Error, exit};
use rustix::process::{PidfdFlags, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Terminal type that a command gets when its environment names none.
const TERM_DEFAULT: &str = "xterm";

/// Becomes the command. Returns only when it could not be started: with the exit code that shells use.
pub(crate) fn run(request: &RunBeside) -> Result<ExitCode, Error> {
    // A group of its own, so that it is ended as a whole. Fails only for a group's leader, which has one.
    let _ = rustix::process::setsid();
    if request.terminal == Terminal::Controlling {
        rustix::process::ioctl_tiocsctty(std::io::stdin())
            .map_err(|e| Error::system("take the terminal", e))?;
    }
    let dir = &request.dir;
    let none = || Error::NotRunning {
        container: request.container.clone().unwrap_or_else(|| dir.display().to_string()),
    };
    let spec: AgentSpec = files::read_json(dir, files::SPEC)?.ok_or_else(none)?;
    let running: RunningRanks = files::read_json(dir, files::RANKS)?.unwrap_or_default();
    let rank = running.ranks.iter().find(|rank| matches(rank, request) && is_alive(rank)).ok_or_else(none)?;
    let (container, index) = find(&spec, &rank.container).ok_or_else(none)?;
    let mut env = launch::environment(&spec, container, index, rank.local_rank);
    if request.terminal == Terminal::Controlling {
        env.entry("TERM".to_owned()).or_insert_with(|| TERM_DEFAULT.to_owned());
    }
    join_cgroups(container)?;
    enter_namespaces(&spec, rank)?;
    let mut command = Command::new(&request.argv[0]);
    command.args(&request.argv[1..]).env_clear().envs(env).current_dir(&container.working_dir);
    let error = command.exec();
    let end = regatta_types::evidence::ProcessEnd::NotStarted(error.raw_os_error().unwrap_or(0));
    let sentence =
        exit::not_started_sentence(&request.argv[0].to_string_lossy(), error.raw_os_error().unwrap_or(0));
    let _ = writeln!(std::io::stderr(), "{sentence}");
    Ok(ExitCode::from(u8::try_from(end.exit_code()).unwrap_or(126)))
}

fn matches(rank: &RunningRank, request: &RunBeside) -> bool {
    request.container.as_ref().is_none_or(|name| *name == rank.container)
        && request.rank.is_none_or(|number| number == rank.rank)
}

fn is_alive(rank: &RunningRank) -> bool {
    process::stat(rank.pid).is_ok_and(|stat| stat.start_ticks == rank.start_ticks && !stat.is_zombie())
}

fn find<'a>(spec: &'a AgentSpec, name: &str) -> Option<(&'a ContainerSpec, Option<usize>)> {
    let main = spec.containers.iter().enumerate().find(|(_, container)| container.name == name);
    main.map(|(index, container)| (container, Some(index)))
        .or_else(|| Some((spec.init_containers.iter().find(|container| container.name == name)?, None)))
}

fn join_cgroups(container: &ContainerSpec) -> Result<(), Error> {
    for directory in &container.cgroup.directories {
        let path = directory.join("cgroup.procs");
        std::fs::write(&path, "0").map_err(|source| Error::File { action: "write", path, source })?;
    }
    Ok(())
}

fn enter_namespaces(spec: &AgentSpec, rank: &RunningRank) -> Result<(), Error> {
    let namespaces = &spec.namespaces;
    let mut types = ThreadNameSpaceType::empty();
    if namespaces.user == UserNamespace::Own {
        types |= ThreadNameSpaceType::USER;
    }
    if namespaces.mount == MountNamespace::Own {
        types |= ThreadNameSpaceType::MOUNT;
    }
    if namespaces.network.is_some() {
        types |= ThreadNameSpaceType::NETWORK;
    }
    if namespaces.hostname.is_some() {
        types |= ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
    }
    if types.is_empty() {
        return Ok(());
    }
    let none = || Error::NotRunning { container: rank.container.clone() };
    let pid = process::to_pid(rank.pid).ok_or_else(none)?;
    let pidfd =
        pidfd_open(pid, PidfdFlags::empty()).map_err(|e| Error::system("open the rank's process", e))?;
    // The descriptor and the number could have parted since the check; now they cannot.
    if !is_alive(rank) {
        return Err(none());
    }
    move_into_thread_name_spaces(pidfd.as_fd(), types)
        .map_err(|e| Error::system("enter the rank's namespaces", e))
}
