//! The output of one process: from its pipes to its log, with an ear for progress and a memory of the last words.

use crate::log_line::{self, LINE_BYTES_MAX, Stream, Tag};
use crate::log_writer::LogWriter;
use regatta_types::Timestamp;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes read from a pipe at a time: what a pipe holds.
const READ_BYTES: usize = 64 * 1024;
/// Reads from one pipe before others get their turn.
const READS_MAX: usize = 8;
/// Reads from one pipe when its process has ended: somebody else who floods it is not listened to for ever.
const FINAL_READS_MAX: usize = 256;
/// Lines of standard error that are remembered.
const TAIL_LINES_MAX: usize = 24;
/// Bytes of one remembered line.
const TAIL_LINE_BYTES_MAX: usize = 512;
/// How a line of standard output says that it is a progress message.
pub(crate) const PROGRESS_MARK: &[u8] = b"::regatta:: ";

/// Cuts a byte stream into lines of bounded length.
#[derive(Debug)]
struct LineSplitter {
    held: Vec<u8>,
    line_bytes_max: usize,
}

impl LineSplitter {
    const fn new(line_bytes_max: usize) -> Self {
        Self { held: Vec::new(), line_bytes_max }
    }

    /// Takes in bytes; gives each line, or part of one, that is complete.
    fn feed(&mut self, mut bytes: &[u8], mut emit: impl FnMut(Tag, &[u8])) {
        while !bytes.is_empty() {
            let room = self.line_bytes_max - self.held.len();
            let end = bytes.iter().take(room + 1).position(|byte| *byte == b'\n');
            match end {
                Some(end) => {
                    if self.held.is_empty() {
                        emit(Tag::Full, &bytes[..end]);
                    } else {
                        self.held.extend_from_slice(&bytes[..end]);
                        emit(Tag::Full, &self.held);
                        self.held.clear();
                    }
                    bytes = &bytes[end + 1..];
                }
                None if bytes.len() > room => {
                    self.held.extend_from_slice(&bytes[..room]);
                    emit(Tag::Partial, &self.held);
                    self.held.clear();
                    bytes = &bytes[room..];
                }
                None => {
                    self.held.extend_from_slice(bytes);
                    return;
                }
            }
        }
    }

    /// Gives what is left when no more will come.
    fn finish(&mut self, mut emit: impl FnMut(Tag, &[u8])) {
        if !self.held.is_empty() {
            emit(Tag::Full, &self.held);
            self.held.clear();
        }
    }
}

/// The pipes and the log of one process.
#[derive(Debug)]
pub(crate) struct Output {
    log: LogWriter,
    stdout: Source,
    stderr: Source,
    tail: VecDeque<Vec<u8>>,
}

#[derive(Debug)]
struct Source {
    pipe: Option<OwnedFd>,
    splitter: LineSplitter,
}

impl Output {
    pub(crate) fn new(log: LogWriter, stdout: OwnedFd, stderr: OwnedFd) -> Self {
        let source = |pipe| Source { pipe: Some(pipe), splitter: LineSplitter::new(LINE_BYTES_MAX) };
        Self { log, stdout: source(stdout), stderr: source(stderr), tail: VecDeque::new() }
    }

    /// The pipe of a stream, while it is open.
    pub(crate) fn pipe(&self, stream: Stream) -> Option<BorrowedFd<'_>> {
        match stream {
            Stream::Stdout => self.stdout.pipe.as_ref(),
            Stream::Stderr => self.stderr.pipe.as_ref(),
        }
        .map(AsFd::as_fd)
    }

    /// Moves what a pipe holds to the log. Progress messages among it go to `progress`.
    pub(crate) fn drain(&mut self, stream: Stream, now: Timestamp, progress: &mut dyn FnMut(&[u8])) {
        for _ in 0..READS_MAX {
            if !self.read_once(stream, now, progress) {
                return;
            }
        }
    }

    /// Moves all that is left to the log and closes the pipes. Called when the process has ended: whoever else still
    /// holds the pipe is not waited for.
    pub(crate) fn finish(&mut self, now: Timestamp, progress: &mut dyn FnMut(&[u8])) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            for _ in 0..FINAL_READS_MAX {
                if !self.read_once(stream, now, progress) {
                    break;
                }
            }
            self.close(stream, now, progress);
        }
    }

    /// The last lines of standard error.
    pub(crate) fn stderr_tail(&self) -> String {
        let mut text = String::new();
        for line in &self.tail {
            text.push_str(&String::from_utf8_lossy(line));
            text.push('\n');
        }
        text
    }

    /// Whether there may be more to read at once.
    fn read_once(&mut self, stream: Stream, now: Timestamp, progress: &mut dyn FnMut(&[u8])) -> bool {
        let Some(pipe) = self.pipe(stream) else { return false };
        let mut buffer = [0_u8; READ_BYTES];
        match rustix::io::read(pipe, &mut buffer) {
            Ok(0) => {
                self.close(stream, now, progress);
                false
            }
            Ok(n) => {
                self.take(stream, Some(&buffer[..n]), now, progress);
                n == READ_BYTES
            }
            Err(Errno::INTR) => true,
            Err(Errno::AGAIN) => false,
            Err(_) => {
                self.close(stream, now, progress);
                false
            }
        }
    }

    fn close(&mut self, stream: Stream, now: Timestamp, progress: &mut dyn FnMut(&[u8])) {
        self.take(stream, None, now, progress);
        match stream {
            Stream::Stdout => self.stdout.pipe = None,
            Stream::Stderr => self.stderr.pipe = None,
        }
    }

    fn take(
        &mut self,
        stream: Stream,
        bytes: Option<&[u8]>,
        now: Timestamp,
        progress: &mut dyn FnMut(&[u8]),
    ) {
        let time = log_line::time_text(now);
        let mut out = Vec::with_capacity(bytes.map_or(0, <[u8]>::len) + 1024);
        let mut lines = 0;
        let tail = &mut self.tail;
        let mut emit = |tag: Tag, text: &[u8]| {
            if stream == Stream::Stdout
                && let Some(message) = text.strip_prefix(PROGRESS_MARK)
            {
                progress(message);
                return;
            }
            if stream == Stream::Stderr {
                remember(tail, text);
            }
            log_line::push(&mut out, &time, stream, tag, text);
            lines += 1;
        };
        let source = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        match bytes {
            Some(bytes) => source.splitter.feed(bytes, &mut emit),
            None => source.splitter.finish(&mut emit),
        }
        if lines > 0 {
            self.log.append(&out, lines, now);
        }
    }
}

fn remember(tail: &mut VecDeque<Vec<u8>>, text: &[u8]) {
    if tail.len() == TAIL_LINES_MAX {
        tail.pop_front();
    }
    tail.push_back(text[..text.len().min(TAIL_LINE_BYTES_MAX)].to_vec());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    const LIMIT: usize = 16;

    fn split(chunks: &[&[u8]]) -> Vec<(Tag, Vec<u8>)> {
        let mut splitter = LineSplitter::new(LIMIT);
        let mut lines = Vec::new();
        for chunk in chunks {
            splitter.feed(chunk, |tag, text| lines.push((tag, text.to_vec())));
        }
        splitter.finish(|tag, text| lines.push((tag, text.to_vec())));
        lines
    }

    #[test]
    fn lines_are_cut_where_they_end() {
        let full = |text: &[u8]| (Tag::Full, text.to_vec());
        assert_eq!(
            split(&[b"a\nb", b"c\n", b"\n", b"rest"]),
            [full(b"a"), full(b"bc"), full(b""), full(b"rest")]
        );
        let long = vec![b'x'; LIMIT];
        let exact = [long.clone(), b"\n".to_vec()].concat();
        assert_eq!(split(&[&exact]), [full(&long)]);
        let longer = [long.clone(), b"yz\n".to_vec()].concat();
        assert_eq!(split(&[&longer]), [(Tag::Partial, long), full(b"yz")]);
    }

    proptest! {
        #[test]
        fn no_byte_is_lost_however_it_arrives(
            text in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'a'), any::<u8>()], 0..300),
            cuts in proptest::collection::vec(1_usize..100, 1..8),
        ) {
            let mut rest = &text[..];
            let mut chunks = Vec::new();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (chunk, more) = rest.split_at(rest.len().min(*cut));
                chunks.push(chunk);
                rest = more;
            }
            let mut joined = Vec::new();
            for (tag, line) in split(&chunks) {
                prop_assert!(line.len() <= LIMIT);
                joined.extend(line);
                if tag == Tag::Full {
                    joined.push(b'\n');
                }
            }
            let mut expected = text.clone();
            if expected.last().is_some_and(|last| *last != b'\n') {
                expected.push(b'\n');
            }
            prop_assert_eq!(joined, expected);
        }
    }

    #[test]
    fn progress_is_heard_and_the_last_words_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank-0.log");
        let pipe = || {
            let (read, write) = rustix::pipe::pipe().unwrap();
            rustix::io::ioctl_fionbio(&read, true).unwrap();
            (read, std::fs::File::from(write))
        };
        let ((stdout, mut to_stdout), (stderr, mut to_stderr)) = (pipe(), pipe());
        let mut output = Output::new(LogWriter::open(path.clone()), stdout, stderr);
        to_stdout.write_all(b"hello\n::regatta:: {\"type\":\"step\"}\nno end").unwrap();
        for n in 0..100 {
            writeln!(to_stderr, "error {n}").unwrap();
        }
        let mut heard = Vec::new();
        let now = Timestamp::from_unix_ms(0);
        output.drain(Stream::Stdout, now, &mut |message| heard.push(message.to_vec()));
        // The writers are still open, as with a process that left a child behind.
        output.finish(now, &mut |_| unreachable!("there is one message"));
        assert_eq!(heard, [b"{\"type\":\"step\"}".to_vec()]);
        let log = std::fs::read_to_string(path).unwrap();
        assert!(
            log.starts_with(
                "1970-01-01T00:00:00.000Z stdout F hello\n1970-01-01T00:00:00.000Z stdout F no end\n"
            ),
            "{log}"
        );
        let tail = output.stderr_tail();
        assert_eq!((tail.lines().count(), tail.lines().last()), (TAIL_LINES_MAX, Some("error 99")));
        assert!(output.pipe(Stream::Stdout).is_none());
    }
}
