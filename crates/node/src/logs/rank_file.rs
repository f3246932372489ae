//! The log of one process: its rotated files, oldest first, as lines.

use regatta_agent::log_line::{self, Tag};
use regatta_agent::spec::LOG_FILE_PLAIN;
use regatta_types::Timestamp;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Rotated files that are looked for beside the current one.
const ROTATED_MAX: u32 = 8;
/// Bytes read at a time.
const READ_BYTES: usize = 64 * 1024;
/// Longest line that is put together from parts, in bytes; a longer one is given in pieces.
const LINE_BYTES_MAX: usize = 1024 * 1024;

/// One line as the process wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) at: Timestamp,
    pub(super) text: Vec<u8>,
}

/// The log of one process.
#[derive(Debug)]
pub(super) struct RankFile {
    path: PathBuf,
    /// Files that are still to be read, the first of them now.
    files: VecDeque<File>,
    buffer: Vec<u8>,
    /// Where the unread part of the buffer starts.
    from: usize,
    /// Parts of a line that is not complete.
    parts: Option<Line>,
}

/// The rank in a log file's name.
pub(super) fn rank_of(name: &str) -> Option<u32> {
    name.strip_prefix("rank-")?.strip_suffix(".log")?.parse().ok()
}

/// The logs in a container's directory by rank.
pub(super) fn list(directory: &Path) -> io::Result<Vec<(Option<u32>, PathBuf)>> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(rank) = rank_of(&name) {
            found.push((Some(rank), entry.path()));
        } else if name == LOG_FILE_PLAIN {
            found.push((None, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

impl RankFile {
    /// Opens a log at its oldest line.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let files = open_all(&path)?.into();
        Ok(Self { path, files, buffer: Vec::new(), from: 0, parts: None })
    }

    /// Skips all but the last `lines` lines.
    pub(super) fn skip_to_tail(&mut self, lines: u64) -> io::Result<()> {
        let mut missing = lines;
        let mut keep = VecDeque::new();
        while let Some(mut file) = self.files.pop_back() {
            let (position, found) = tail_position(&mut file, missing)?;
            file.seek(SeekFrom::Start(position))?;
            keep.push_front(file);
            missing -= found;
            if missing == 0 {
                break;
            }
        }
        self.files = keep;
        Ok(())
    }

    /// The next line; none when there is no complete one yet.
    pub(super) fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            if let Some(end) = self.buffer[self.from..].iter().position(|byte| *byte == b'\n') {
                let raw = self.from..self.from + end;
                self.from += end + 1;
                if let Some(line) = take(&mut self.parts, &self.buffer[raw]) {
                    return Ok(Some(line));
                }
            } else if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Reads on. Returns whether something was read.
    fn fill(&mut self) -> io::Result<bool> {
        self.buffer.drain(..self.from);
        self.from = 0;
        loop {
            if self.files.is_empty() {
                self.files = open_all(&self.path)?.into();
            }
            let Some(file) = self.files.front_mut() else { return Ok(false) };
            let held = self.buffer.len();
            self.buffer.resize(held + READ_BYTES, 0);
            let read = file.read(&mut self.buffer[held..]);
            self.buffer.truncate(held + *read.as_ref().unwrap_or(&0));
            if read? > 0 {
                return Ok(true);
            }
            if self.files.len() == 1 {
                // Files that came while this one was read; this one may have been set aside.
                let newer = self.newer_files()?;
                if newer.is_empty() {
                    return Ok(false);
                }
                // Lines that came between the read and the setting aside are still in this file.
                let file = self.files.front_mut();
                let more = file.map_or(Ok(0), |file| file.read_to_end(&mut self.buffer))?;
                self.files.pop_front();
                self.files.extend(newer);
                if more > 0 {
                    return Ok(true);
                }
            } else {
                self.files.pop_front();
            }
        }
    }

    fn newer_files(&self) -> io::Result<Vec<File>> {
        let Some(current) = self.files.front() else { return Ok(Vec::new()) };
        let inode = current.metadata()?.ino();
        let mut all = open_all(&self.path)?;
        let mut at = None;
        for (index, file) in all.iter().enumerate() {
            if file.metadata()?.ino() == inode {
                at = Some(index);
            }
        }
        // When it is not among them any more, all of them are newer.
        Ok(all.split_off(at.map_or(0, |at| at + 1)))
    }
}

/// All files of a log, oldest first.
fn open_all(path: &Path) -> io::Result<Vec<File>> {
    let mut files = Vec::new();
    for number in (0..=ROTATED_MAX).rev() {
        let mut name = path.as_os_str().to_owned();
        if number > 0 {
            name.push(format!(".{number}"));
        }
        match File::open(PathBuf::from(name)) {
            Ok(file) => files.push(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(files)
}

/// Takes in one raw line; gives the whole line when it is complete. What is not a log line is passed over.
fn take(parts: &mut Option<Line>, raw: &[u8]) -> Option<Line> {
    let line = log_line::parse(raw)?;
    let whole = parts.get_or_insert_with(|| Line { at: line.at, text: Vec::new() });
    whole.text.extend_from_slice(line.text);
    let complete = line.tag == Tag::Full || whole.text.len() >= LINE_BYTES_MAX;
    if complete { parts.take() } else { None }
}

/// Where the last `lines` lines of a file start, and how many there are from there.
fn tail_position(file: &mut File, lines: u64) -> io::Result<(u64, u64)> {
    let mut position = file.metadata()?.len();
    if lines == 0 {
        return Ok((position, 0));
    }
    let mut found = 0;
    let mut buffer = vec![0; READ_BYTES];
    let length = position;
    while position > 0 {
        let size = usize::try_from(position.min(READ_BYTES as u64)).unwrap_or(READ_BYTES);
        position -= size as u64;
        file.seek(SeekFrom::Start(position))?;
        file.read_exact(&mut buffer[..size])?;
        for (index, byte) in buffer[..size].iter().enumerate().rev() {
            let at = position + index as u64;
            // The line's end at the end of the file starts no further line.
            if *byte == b'\n' && at + 1 < length {
                found += 1;
                if found == lines {
                    return Ok((at + 1, found));
                }
            }
        }
    }
    Ok((0, (found + u64::from(length > 0)).min(lines)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_agent::log_line::{Stream, push, time_text};
    use std::io::Write;

    fn record(ms: i64, tag: Tag, text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        push(&mut out, &time_text(Timestamp::from_unix_ms(ms)), Stream::Stdout, tag, text.as_bytes());
        out
    }

    fn texts(file: &mut RankFile) -> Vec<String> {
        let mut texts = Vec::new();
        while let Some(line) = file.next().unwrap() {
            texts.push(String::from_utf8(line.text).unwrap());
        }
        texts
    }

    fn write(path: &Path, texts: &[&str]) {
        let bytes: Vec<u8> = texts.iter().flat_map(|text| record(1, Tag::Full, text)).collect();
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn rotated_files_are_read_oldest_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank-0.log");
        write(&dir.path().join("rank-0.log.2"), &["a", "b"]);
        write(&dir.path().join("rank-0.log.1"), &["c"]);
        write(&path, &["d", "e"]);
        let mut file = RankFile::open(path.clone()).unwrap();
        assert_eq!(texts(&mut file), ["a", "b", "c", "d", "e"]);
        for (lines, expected) in [
            (0, &[][..]),
            (1, &["e"]),
            (3, &["c", "d", "e"]),
            (4, &["b", "c", "d", "e"]),
            (99, &["a", "b", "c", "d", "e"]),
        ] {
            let mut file = RankFile::open(path.clone()).unwrap();
            file.skip_to_tail(lines).unwrap();
            assert_eq!(texts(&mut file), expected, "{lines}");
        }
    }

    #[test]
    fn a_growing_log_is_followed_across_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank-0.log");
        let mut file = RankFile::open(path.clone()).unwrap();
        assert_eq!(texts(&mut file), Vec::<String>::new(), "there is no file yet");
        let mut log = std::fs::File::create(&path).unwrap();
        log.write_all(&record(1, Tag::Full, "a")).unwrap();
        log.write_all(b"1970-01-01T00:00:00.001Z std").unwrap();
        assert_eq!(texts(&mut file), ["a"], "a half line waits");
        log.write_all(b"out F b\n").unwrap();
        std::fs::rename(&path, dir.path().join("rank-0.log.2")).unwrap();
        write(&dir.path().join("rank-0.log.1"), &["c"]);
        write(&path, &["d"]);
        assert_eq!(texts(&mut file), ["b", "c", "d"]);
    }

    #[test]
    fn parts_make_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output.log");
        let mut bytes = record(5, Tag::Partial, "one ");
        bytes.extend(record(6, Tag::Full, "two"));
        bytes.extend(b"not a log line\n");
        bytes.extend(record(7, Tag::Full, ""));
        std::fs::write(&path, bytes).unwrap();
        let mut file = RankFile::open(path).unwrap();
        let first = file.next().unwrap().unwrap();
        assert_eq!(first, Line { at: Timestamp::from_unix_ms(5), text: b"one two".to_vec() });
        assert_eq!(texts(&mut file), [""]);
    }

    #[test]
    fn names_tell_ranks() {
        for (name, rank) in
            [("rank-12.log", Some(12)), ("rank-12.log.1", None), ("output.log", None), ("rank-x.log", None)]
        {
            assert_eq!(rank_of(name), rank, "{name}");
        }
    }
}
