//! A log file that is rotated by size and never stops its writer: what cannot be written is dropped and counted.

use crate::log_line::{self, Stream, Tag};
use regatta_types::Timestamp;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Size at which a log file is set aside, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Files kept for one log, the current one included.
const FILES_MAX: u32 = 4;

/// Where the lines of one process go: `NAME`, and before that `NAME.1`, the older the larger the number.
#[derive(Debug)]
pub(crate) struct LogWriter {
    path: PathBuf,
    file: Option<File>,
    bytes: u64,
    file_bytes_max: u64,
    lost_lines: u64,
    problem: Option<io::Error>,
}

impl LogWriter {
    /// A log at `path`. It is opened now, and again later if that fails.
    pub(crate) fn open(path: PathBuf) -> Self {
        Self::with_limit(path, FILE_BYTES_MAX)
    }

    fn with_limit(path: PathBuf, file_bytes_max: u64) -> Self {
        let mut log = Self { path, file: None, bytes: 0, file_bytes_max, lost_lines: 0, problem: None };
        log.problem = log.reopen().err();
        log
    }

    fn reopen(&mut self) -> io::Result<()> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?;
        self.bytes = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    /// Appends whole log lines, `lines` in number.
    pub(crate) fn append(&mut self, bytes: &[u8], lines: u64, now: Timestamp) {
        let mut notice = Vec::new();
        if self.lost_lines > 0 {
            let why = self.problem.as_ref().map_or_else(String::new, |problem| format!(": {problem}"));
            let text = format!("regatta: {} lines were lost here{why}", self.lost_lines);
            log_line::push(
                &mut notice,
                &log_line::time_text(now),
                Stream::Stderr,
                Tag::Full,
                text.as_bytes(),
            );
        }
        match self.write_all(&notice, bytes) {
            Ok(()) => {
                self.lost_lines = 0;
                self.problem = None;
            }
            Err(error) => {
                self.lost_lines += lines;
                self.problem = Some(error);
            }
        }
    }

    fn write_all(&mut self, notice: &[u8], bytes: &[u8]) -> io::Result<()> {
        if self.file.is_none() {
            self.reopen()?;
        }
        if self.bytes >= self.file_bytes_max {
            self.rotate()?;
        }
        let before = self.bytes;
        let Some(file) = &mut self.file else { return Ok(()) };
        for part in [notice, bytes] {
            if let Err(error) = file.write_all(part) {
                // A half line would glue itself to the next one; a full disk may have taken half.
                let _ = file.set_len(before);
                self.bytes = before;
                return Err(error);
            }
            self.bytes += part.len() as u64;
        }
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        for number in (1..FILES_MAX - 1).rev() {
            rename_if_there(&rotated(&self.path, number), &rotated(&self.path, number + 1))?;
        }
        std::fs::rename(&self.path, rotated(&self.path, 1))?;
        self.file = None;
        self.reopen()
    }
}

/// Path of the rotated file with this number.
fn rotated(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

fn rename_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::rename(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_ms(1_796_040_000_000);

    #[test]
    fn old_files_are_set_aside_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank-0.log");
        let mut log = LogWriter::with_limit(path, 10);
        for n in 0..12 {
            log.append(format!("line-{n:02}\n").as_bytes(), 1, NOW);
        }
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("rank-0.log"), "line-10\nline-11\n");
        assert_eq!(read("rank-0.log.1"), "line-08\nline-09\n");
        assert_eq!(read("rank-0.log.3"), "line-04\nline-05\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4);
    }

    #[test]
    fn a_log_goes_on_where_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output.log");
        LogWriter::open(path.clone()).append(b"one\n", 1, NOW);
        LogWriter::open(path.clone()).append(b"two\n", 1, NOW);
        assert_eq!(std::fs::read_to_string(path).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("logs");
        let mut log = LogWriter::open(missing.join("output.log"));
        log.append(b"lost\nlost\n", 2, NOW);
        log.append(b"lost\n", 1, NOW);
        std::fs::create_dir(&missing).unwrap();
        log.append(b"kept\n", 1, NOW);
        let text = std::fs::read_to_string(missing.join("output.log")).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].contains("stderr F regatta: 3 lines were lost here: No such file"), "{text}");
        assert_eq!(lines[1], "kept");
    }
}
