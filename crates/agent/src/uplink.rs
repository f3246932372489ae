//! The line to the node runtime: one message at a time, newest only, across any number of its restarts.

use crate::protocol::{AgentMessage, PROGRESS_INTERVAL_MS};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Shortest pause before a lost connection is tried again, in milliseconds.
const RETRY_MS_MIN: u64 = 50;
/// Longest such pause: what a new node runtime waits at most for a word from its pods.
const RETRY_MS_MAX: u64 = 2_000;

/// How urgent news is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// May wait for its turn.
    Progress,
    /// Shall be said at once.
    State,
}

#[derive(Debug)]
pub(crate) struct Uplink {
    path: PathBuf,
    connection: Option<OwnedFd>,
    retry_at_ms: u64,
    retry_ms: u64,
    news: Option<Urgency>,
    /// When progress was last sent for its own sake.
    last_progress_ms: Option<u64>,
    unsent: Vec<u8>,
}

impl Uplink {
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            connection: None,
            retry_at_ms: 0,
            retry_ms: RETRY_MS_MIN,
            news: Some(Urgency::State),
            last_progress_ms: None,
            unsent: Vec::new(),
        }
    }

    /// Something new is to be said.
    pub(crate) fn note(&mut self, urgency: Urgency) {
        self.news = self.news.max(Some(urgency));
    }

    /// When to be called again, on the monotonic clock in milliseconds.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        if self.connection.is_none() {
            return Some(self.retry_at_ms);
        }
        match self.news {
            _ if !self.unsent.is_empty() => None,
            None => None,
            Some(Urgency::State) => Some(0),
            Some(Urgency::Progress) => {
                Some(self.last_progress_ms.map_or(0, |last| last + PROGRESS_INTERVAL_MS))
            }
        }
    }

    /// The connection, to be watched for its end, and whether it waits for room.
    pub(crate) fn connection(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.connection.as_ref().map(|connection| (connection.as_fd(), !self.unsent.is_empty()))
    }

    /// The other side has closed.
    pub(crate) fn hung_up(&mut self, now_ms: u64) {
        self.connection = None;
        self.unsent.clear();
        // Whoever comes next knows nothing.
        self.news = Some(Urgency::State);
        self.retry_at_ms = now_ms + self.retry_ms;
        self.retry_ms = (self.retry_ms * 2).min(RETRY_MS_MAX);
    }

    /// Connects and sends what is due.
    pub(crate) fn tend(&mut self, now_ms: u64, message: impl FnOnce() -> AgentMessage) {
        if self.connection.is_none() && now_ms >= self.retry_at_ms {
            match dial(&self.path) {
                Ok(connection) => self.connection = Some(connection),
                Err(_) => self.hung_up(now_ms),
            }
        }
        if self.connection.is_none() {
            return;
        }
        if self.unsent.is_empty() && self.deadline_ms().is_some_and(|due| now_ms >= due) {
            if let Ok(mut line) = serde_json::to_vec(&message()) {
                line.push(b'\n');
                self.unsent = line;
            }
            if self.news == Some(Urgency::Progress) {
                self.last_progress_ms = Some(now_ms);
            }
            self.news = None;
        }
        self.flush(now_ms);
    }

    fn flush(&mut self, now_ms: u64) {
        while let (Some(connection), false) = (&self.connection, self.unsent.is_empty()) {
            match send(connection, &self.unsent, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => {
                    self.unsent.drain(..sent);
                    self.retry_ms = RETRY_MS_MIN;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => return self.hung_up(now_ms),
            }
        }
    }
}

/// Connects without ever waiting. A path too long for a socket address is reached through its directory.
fn dial(path: &Path) -> Result<OwnedFd, Errno> {
    use rustix::fs::{Mode, OFlags, open};
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    match SocketAddrUnix::new(path) {
        Ok(address) => connect(&socket, &address)?,
        Err(_) => {
            let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(Errno::INVAL);
            };
            let directory = open(directory, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            let short = Path::new("/proc/self/fd").join(fd_number(&directory)).join(name);
            connect(&socket, &SocketAddrUnix::new(&short)?)?;
        }
    }
    Ok(socket)
}

fn fd_number(fd: &OwnedFd) -> String {
    use std::os::fd::AsRawFd;
    fd.as_raw_fd().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    fn message(pid: u32) -> AgentMessage {
        AgentMessage { pid, ..AgentMessage::default() }
    }

    fn accept(listener: &UnixListener) -> BufReader<std::os::unix::net::UnixStream> {
        BufReader::new(listener.accept().unwrap().0)
    }

    fn read(reader: &mut impl BufRead) -> AgentMessage {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn it_says_the_newest_to_whoever_listens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x".repeat(90)).join("agents.sock");
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        let mut uplink = Uplink::new(&path);
        uplink.tend(0, || message(1));
        assert_eq!(uplink.deadline_ms(), Some(50), "nobody listens yet");

        // A listener cannot be bound to so long a path either, but it can be moved there.
        let short = dir.path().join("s");
        let listener = UnixListener::bind(&short).unwrap();
        std::fs::rename(&short, &path).unwrap();
        uplink.tend(50, || message(2));
        let mut reader = accept(&listener);
        assert_eq!(read(&mut reader).pid, 2);
        assert_eq!(uplink.deadline_ms(), None);

        uplink.note(Urgency::Progress);
        assert_eq!(uplink.deadline_ms(), Some(0), "the first progress is news");
        uplink.tend(55, || message(2));
        assert_eq!(read(&mut reader).pid, 2);
        uplink.note(Urgency::Progress);
        assert_eq!(uplink.deadline_ms(), Some(55 + PROGRESS_INTERVAL_MS));
        uplink.tend(60, || unreachable!("progress waits for its turn"));
        uplink.note(Urgency::State);
        uplink.tend(70, || message(3));
        assert_eq!(read(&mut reader).pid, 3);

        drop(reader);
        uplink.hung_up(100);
        uplink.tend(1_000, || message(4));
        assert_eq!(read(&mut accept(&listener)).pid, 4, "the next one is told everything");
    }
}
