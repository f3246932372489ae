//! Starts one process: its group, its control groups, its pipes.

use rustix::fs::{Mode, OFlags, open};
use rustix::pipe::{PipeFlags, pipe_with};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What to start.
pub(crate) struct Start<'a> {
    /// Program and arguments; not empty.
    pub(crate) argv: &'a [String],
    /// The whole environment.
    pub(crate) env: &'a BTreeMap<String, String>,
    /// Directory in which it starts.
    pub(crate) working_dir: &'a Path,
    /// Control groups that it joins.
    pub(crate) cgroups: &'a [OwnedFd],
}

/// A process that was started, and our ends of its pipes.
pub(crate) struct Started {
    pub(crate) pid: u32,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

/// Opens the files through which a process joins control groups.
pub(crate) fn open_cgroups(directories: &[PathBuf]) -> io::Result<Vec<OwnedFd>> {
    let open_one = |directory: &PathBuf| {
        let path = directory.join("cgroup.procs");
        open(&path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| io::Error::new(io::Error::from(e).kind(), format!("{}: {e}", path.display())))
    };
    directories.iter().map(open_one).collect()
}

/// Starts it, as the leader of a process group of its own.
pub(crate) fn start(what: &Start<'_>) -> io::Result<Started> {
    let (program, arguments) =
        what.argv.split_first().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let (stdout, stdout_writer) = pipe()?;
    let (stderr, stderr_writer) = pipe()?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(what.env)
        .current_dir(what.working_dir)
        .stdin(Stdio::null())
        .stdout(stdout_writer)
        .stderr(stderr_writer)
        .process_group(0);
    join_cgroups(&mut command, what.cgroups)?;
    let child = command.spawn()?;
    // The agent reaps every child of its own and of others by one call, so the handle is not needed.
    Ok(Started { pid: child.id(), stdout, stderr })
}

/// A pipe whose reading end does not block; the ranks' end is an ordinary one.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&read, true)?;
    Ok((read, write))
}

/// The child puts itself into its control groups before it becomes the program, so that no instruction of the program
/// runs outside of them, and the agent never runs inside.
#[expect(unsafe_code, reason = "only the child itself can join a control group before it runs the program")]
fn join_cgroups(command: &mut Command, cgroups: &[OwnedFd]) -> io::Result<()> {
    if cgroups.is_empty() {
        return Ok(());
    }
    let files: Vec<OwnedFd> = cgroups.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
    // SAFETY: between fork and exec the closure makes only write(2) calls on descriptors that are open and that it owns;
    // it neither allocates nor takes locks. "0" means the calling process.
    unsafe {
        command.pre_exec(move || {
            for file in &files {
                rustix::io::write(file, b"0")?;
            }
            Ok(())
        });
    }
    Ok(())
}
