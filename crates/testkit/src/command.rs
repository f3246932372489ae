//! Processes with their output: run to the end, or followed line by line.

use crate::DEADLINE_S;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// A command that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// What was run, for messages.
    pub command: String,
    /// Exit code; 128 + signal when a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Finished {
    /// Holds that it ended with `code`, or shows what it said instead.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}", self.told());
        self
    }

    /// Holds that it ended well.
    #[track_caller]
    pub fn ok(self) -> Self {
        self.expect_code(0)
    }

    /// Holds that standard error has every one of `parts`.
    #[track_caller]
    pub fn says(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is not in standard error of {}", self.told());
        }
        self
    }

    /// Holds that standard output has every one of `parts`.
    #[track_caller]
    pub fn prints(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(self.stdout.contains(part), "{part:?} is not in standard output of {}", self.told());
        }
        self
    }

    /// Standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {}", self.told()))
    }

    fn told(&self) -> String {
        let Self { command, code, stdout, stderr } = self;
        format!("{command}\n-- exit code {code}\n-- stdout\n{stdout}\n-- stderr\n{stderr}")
    }
}

/// Runs a command to its end.
#[track_caller]
pub fn run(command: &mut Command) -> Finished {
    Running::start(command).finish()
}

/// A command that runs, its output heard as it comes. It is killed when dropped.
#[derive(Debug)]
pub struct Running {
    command: String,
    child: Child,
    lines: Receiver<Line>,
    stdout: String,
    stderr: String,
}

#[derive(Debug)]
enum Line {
    Out(String),
    Err(String),
}

impl Running {
    /// Starts it, without standard input.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let told = format!("{command:?}");
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|e| panic!("cannot start {told}: {e}"));
        let (sender, lines) = channel();
        let out = sender.clone();
        read_lines(child.stdout.take().unwrap(), move |line| out.send(Line::Out(line)).is_ok());
        read_lines(child.stderr.take().unwrap(), move |line| sender.send(Line::Err(line)).is_ok());
        Self { command: told, child, lines, stdout: String::new(), stderr: String::new() }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until either stream has a line with `part`, and gives that line.
    #[track_caller]
    pub fn wait_for(&mut self, part: &str) -> String {
        let heard = self
            .stdout
            .lines()
            .chain(self.stderr.lines())
            .find(|line| line.contains(part))
            .map(str::to_owned);
        if let Some(line) = heard {
            return line;
        }
        loop {
            match self.next_line() {
                Ok(line) if line.contains(part) => return line,
                Ok(_) => {}
                Err(reason) => panic!(
                    "{part:?} was never said ({reason}) by {}\n-- stdout\n{}\n-- stderr\n{}",
                    self.command, self.stdout, self.stderr
                ),
            }
        }
    }

    fn next_line(&mut self) -> Result<String, &'static str> {
        match self.lines.recv_timeout(Duration::from_secs(DEADLINE_S)) {
            Ok(Line::Out(line)) => {
                self.stdout.push_str(&line);
                Ok(line)
            }
            Ok(Line::Err(line)) => {
                self.stderr.push_str(&line);
                Ok(line)
            }
            Err(RecvTimeoutError::Disconnected) => Err("it ended"),
            Err(RecvTimeoutError::Timeout) => Err("the deadline passed"),
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        crate::processes::kill(self.child.id(), signal);
    }

    /// Waits for its end.
    #[track_caller]
    pub fn finish(mut self) -> Finished {
        loop {
            match self.next_line() {
                Ok(_) => {}
                Err("it ended") => break,
                Err(reason) => panic!(
                    "{reason} for {}\n-- stdout\n{}\n-- stderr\n{}",
                    self.command, self.stdout, self.stderr
                ),
            }
        }
        let status = self.child.wait().expect("the process can be waited for");
        let code = status
            .code()
            .unwrap_or_else(|| 128 + std::os::unix::process::ExitStatusExt::signal(&status).unwrap_or(0));
        Finished {
            command: std::mem::take(&mut self.command),
            code,
            stdout: std::mem::take(&mut self.stdout),
            stderr: std::mem::take(&mut self.stderr),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Already gone is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Hands over each line, with its end, until the stream closes or nobody listens.
fn read_lines(
    stream: impl Read + Send + 'static,
    mut hand_over: impl FnMut(String) -> bool + Send + 'static,
) {
    thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        loop {
            let mut bytes = Vec::new();
            match reader.read_until(b'\n', &mut bytes) {
                Ok(0) | Err(_) => return,
                Ok(_) if !hand_over(String::from_utf8_lossy(&bytes).into_owned()) => return,
                Ok(_) => {}
            }
        }
    });
}
