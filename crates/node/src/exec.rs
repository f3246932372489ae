//! Commands beside pods: starts the agent's `exec`, and carries bytes to and fro.

use crate::api::ExecProcess;
use crate::error::Error;
use crate::readiness;
use bytes::Bytes;
use regatta_agent::process;
use regatta_types::streams::{ExecRequest, TerminalSize};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

/// Chunks that may wait in one direction.
const CHUNKS_MAX: usize = 32;
/// Size of one chunk, in bytes.
const CHUNK_BYTES: usize = 16 * 1024;

/// Ends the command as a whole when it is dropped before the command has ended: the agent's `exec` leads a session.
struct Guard {
    pid: Option<u32>,
}

impl Guard {
    /// The command has ended: its number may be somebody else's soon.
    fn disarm(&mut self) {
        self.pid = None;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(pid) = self.pid {
            process::signal_group(pid, Signal::KILL);
        }
    }
}

/// Starts a command beside the pod of `dir`.
pub(crate) fn start(
    agent: &[OsString],
    dir: &Path,
    pod: &str,
    request: &ExecRequest,
) -> Result<ExecProcess, Error> {
    let fail = |action| move |source| Error::Exec { action, pod: pod.to_owned(), source };
    if request.command.is_empty() {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "it is empty");
        return Err(fail("use the command")(source));
    }
    let mut command = command(agent, dir, request).map_err(fail("find the agent"))?;
    if request.tty {
        let (master, slave) = terminal().map_err(fail("make a terminal"))?;
        let clone = || slave.try_clone().map(Stdio::from);
        command.stdin(clone().map_err(fail("make a terminal"))?);
        command.stdout(clone().map_err(fail("make a terminal"))?);
        command.stderr(clone().map_err(fail("make a terminal"))?);
        let child = command.spawn().map_err(fail("start the agent"))?;
        drop((command, slave));
        return with_terminal(child, master, pod, request).map_err(fail("use the terminal"));
    }
    let piped = |wanted| if wanted { Stdio::piped() } else { Stdio::null() };
    command.stdin(piped(request.stdin)).stdout(piped(request.stdout)).stderr(piped(request.stderr));
    let child = command.spawn().map_err(fail("start the agent"))?;
    Ok(with_pipes(child, pod))
}

fn command(agent: &[OsString], dir: &Path, request: &ExecRequest) -> io::Result<Command> {
    let (program, args) = agent.split_first().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let mut command = Command::new(program);
    command.args(args).arg("exec").arg("--dir").arg(dir);
    if let Some(container) = &request.container {
        command.arg("--container").arg(container);
    }
    if let Some(rank) = request.rank {
        command.arg("--rank").arg(rank.to_string());
    }
    if request.tty {
        command.arg("--tty");
    }
    command.arg("--").args(&request.command);
    Ok(command)
}

fn terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&master, true)?;
    Ok((master, slave))
}

fn with_pipes(mut child: Child, pod: &str) -> ExecProcess {
    let stdin = child.stdin.take().map(|mut pipe| {
        let (sender, mut receiver) = mpsc::channel::<Bytes>(CHUNKS_MAX);
        tokio::spawn(async move {
            while let Some(chunk) = receiver.recv().await {
                if pipe.write_all(&chunk).await.is_err() {
                    return;
                }
            }
        });
        sender
    });
    let stdout = child.stdout.take().map(read_all);
    let stderr = child.stderr.take().map(read_all);
    ExecProcess { stdin, stdout, stderr, resize: None, exit: exit(child, pod) }
}

fn read_all(mut pipe: impl AsyncRead + Unpin + Send + 'static) -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
    tokio::spawn(async move {
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Ok(bytes @ 1..) = pipe.read(&mut buffer).await {
            if sender.send(Bytes::copy_from_slice(&buffer[..bytes])).await.is_err() {
                return;
            }
        }
    });
    receiver
}

fn exit(mut child: Child, pod: &str) -> futures::future::BoxFuture<'static, Result<i32, Error>> {
    let mut guard = Guard { pid: child.id() };
    let pod = pod.to_owned();
    Box::pin(async move {
        let status = child.wait().await.map_err(|source| Error::Exec { action: "wait", pod, source })?;
        guard.disarm();
        Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
    })
}

fn with_terminal(child: Child, master: OwnedFd, pod: &str, request: &ExecRequest) -> io::Result<ExecProcess> {
    let master = Arc::new(readiness::watch(master)?);
    let stdin = request.stdin.then(|| {
        let (sender, mut receiver) = mpsc::channel::<Bytes>(CHUNKS_MAX);
        let master = master.clone();
        tokio::spawn(async move {
            while let Some(chunk) = receiver.recv().await {
                if write_terminal(&master, &chunk).await.is_err() {
                    return;
                }
            }
        });
        sender
    });
    let (output, stdout) = mpsc::channel(CHUNKS_MAX);
    let reader = master.clone();
    tokio::spawn(async move {
        // A terminal whose last user is gone gives an error, which is its end.
        while let Ok(chunk @ Some(_)) = read_terminal(&reader).await {
            let Some(chunk) = chunk else { return };
            if output.send(chunk).await.is_err() {
                return;
            }
        }
    });
    let (resize, mut sizes) = mpsc::channel::<TerminalSize>(1);
    tokio::spawn(async move {
        while let Some(size) = sizes.recv().await {
            let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
            // A terminal that is gone has no size.
            let _ = tcsetwinsize(master.get_ref().as_fd(), size);
        }
    });
    Ok(ExecProcess {
        stdin,
        stdout: Some(stdout),
        stderr: None,
        resize: Some(resize),
        exit: exit(child, pod),
    })
}

async fn read_terminal(master: &AsyncFd<OwnedFd>) -> io::Result<Option<Bytes>> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let mut ready = master.readable().await?;
        match ready.try_io(|fd| rustix::io::read(fd.get_ref(), &mut buffer).map_err(io::Error::from)) {
            Ok(bytes) => {
                buffer.truncate(bytes?);
                return Ok((!buffer.is_empty()).then(|| Bytes::from(buffer)));
            }
            Err(_would_block) => {}
        }
    }
}

async fn write_terminal(master: &AsyncFd<OwnedFd>, mut chunk: &[u8]) -> io::Result<()> {
    while !chunk.is_empty() {
        let mut ready = master.writable().await?;
        match ready.try_io(|fd| rustix::io::write(fd.get_ref(), chunk).map_err(io::Error::from)) {
            Ok(written) => chunk = &chunk[written?..],
            Err(_would_block) => {}
        }
    }
    Ok(())
}
