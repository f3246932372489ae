//! Append-only records: for each key a few files of lines, oldest first.
//!
//! A line is whole or absent: a crash can tear only the last one, which readers leave out and the next append cuts
//! off. Appending does not wait for the disk, so a record survives the end of the process, but its last lines may not
//! survive the end of the machine; [`AppendLog::sync`] makes them.
//!
//! A record is bounded: it has at most [`SEGMENTS_MAX`] files of about [`SEGMENT_BYTES_MAX`]. When it outgrows them the
//! second-oldest file goes, because the first one says what the record is about. How many records are kept is for
//! whoever owns them to decide ([`AppendLog::remove`]).

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Size at which a record goes on in a new file.
pub const SEGMENT_BYTES_MAX: u64 = 4 << 20;
/// Files of one record.
pub const SEGMENTS_MAX: usize = 8;
/// Longest line, in bytes.
pub const LINE_BYTES_MAX: usize = 256 << 10;
/// Longest key, in bytes as it is written in a file name.
pub const KEY_BYTES_MAX: usize = 240;
/// Records whose end is remembered, so that an append need not look for it.
const ENDS_MAX: usize = 1024;
const EXTENSION: &str = "jsonl";

/// Why a record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The key cannot be a file name.
    #[error(
        "{key:?} cannot be the key of a record: it must have 1 to {KEY_BYTES_MAX} bytes once it is a file name"
    )]
    Key {
        /// The key.
        key: String,
    },
    /// The line is not one line, or too long.
    #[error(
        "a line of {bytes} bytes cannot be appended to record {key:?}: it must be one line of at most {LINE_BYTES_MAX} bytes"
    )]
    Line {
        /// The key.
        key: String,
        /// Length of the line.
        bytes: usize,
    },
    /// The operating system failed.
    #[error("cannot {action} record {key:?}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The key.
        key: String,
        /// Why it failed.
        source: io::Error,
    },
}

/// A directory of records.
#[derive(Debug)]
pub struct AppendLog {
    directory: PathBuf,
    segment_bytes_max: u64,
    /// Number and length of the newest file of records that were appended to.
    ends: Mutex<BTreeMap<String, End>>,
}

#[derive(Debug, Clone, Copy)]
struct End {
    segment: u64,
    bytes: u64,
}

impl AppendLog {
    /// The records in `directory`, which is made if it is not there.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn open(directory: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        Ok(Self {
            directory: directory.to_owned(),
            segment_bytes_max: SEGMENT_BYTES_MAX,
            ends: Mutex::default(),
        })
    }

    /// The same with smaller files, so that tests reach the limits.
    #[must_use]
    pub const fn with_segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes_max = bytes;
        self
    }

    /// Appends one line.
    ///
    /// # Errors
    /// When the line is too long or has a line break in it, or the disk fails; the record is then as before.
    pub fn append(&self, key: &str, line: &str) -> Result<(), Error> {
        if line.len() > LINE_BYTES_MAX || line.contains('\n') {
            return Err(Error::Line { key: key.to_owned(), bytes: line.len() });
        }
        let fail = |source| Error::Io { action: "append to", key: key.to_owned(), source };
        let name = file_name(key)?;
        // Held to the end: two appends to one record must not mix.
        let mut ends = self.ends();
        let mut end = match ends.get(key) {
            Some(end) => *end,
            None => self.find_end(&name).map_err(fail)?,
        };
        if end.bytes >= self.segment_bytes_max {
            end = End { segment: end.segment + 1, bytes: 0 };
            self.thin_out(&name).map_err(fail)?;
        }
        let mut bytes = Vec::with_capacity(line.len() + 1);
        bytes.extend_from_slice(line.as_bytes());
        bytes.push(b'\n');
        let path = self.path(&name, end.segment);
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(fail)?;
        if let Err(error) = file.write_all(&bytes) {
            // Half a line may be there. The next append looks for the end anew and cuts it off, if this fails.
            let _ = file.set_len(end.bytes);
            ends.remove(key);
            return Err(fail(error));
        }
        end.bytes += bytes.len() as u64;
        if ends.len() >= ENDS_MAX {
            ends.clear();
        }
        ends.insert(key.to_owned(), end);
        Ok(())
    }

    /// Returns once everything appended to the record is on stable storage.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn sync(&self, key: &str) -> Result<(), Error> {
        let fail = |source| Error::Io { action: "sync", key: key.to_owned(), source };
        let name = file_name(key)?;
        if let Some(newest) = self.segments(&name).map_err(fail)?.last() {
            File::open(self.path(&name, *newest)).and_then(|file| file.sync_all()).map_err(fail)?;
            File::open(&self.directory).and_then(|directory| directory.sync_all()).map_err(fail)?;
        }
        Ok(())
    }

    /// Every whole line, oldest first; none for a record that does not exist.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn read(&self, key: &str) -> Result<Vec<String>, Error> {
        let fail = |source| Error::Io { action: "read", key: key.to_owned(), source };
        let name = file_name(key)?;
        let mut lines = Vec::new();
        for segment in self.segments(&name).map_err(fail)? {
            let bytes = match fs::read(self.path(&name, segment)) {
                Ok(bytes) => bytes,
                // Thinned out since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(fail(error)),
            };
            let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            lines.extend(String::from_utf8_lossy(&bytes[..whole]).lines().map(str::to_owned));
        }
        Ok(lines)
    }

    /// Every record there is, in order of their keys.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn keys(&self) -> Result<Vec<String>, Error> {
        let fail = |source| Error::Io { action: "list", key: "*".to_owned(), source };
        let mut keys = Vec::new();
        for file in fs::read_dir(&self.directory).map_err(fail)? {
            let file = file.map_err(fail)?.file_name();
            if let Some((key, _)) = file.to_str().and_then(parse_segment) {
                keys.push(key);
            }
        }
        keys.sort();
        keys.dedup();
        Ok(keys)
    }

    /// Removes a record.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn remove(&self, key: &str) -> Result<(), Error> {
        let fail = |source| Error::Io { action: "remove", key: key.to_owned(), source };
        let name = file_name(key)?;
        let mut ends = self.ends();
        ends.remove(key);
        for segment in self.segments(&name).map_err(fail)? {
            fs::remove_file(self.path(&name, segment)).map_err(fail)?;
        }
        Ok(())
    }

    fn ends(&self) -> MutexGuard<'_, BTreeMap<String, End>> {
        // The map is a cache that is valid after every statement.
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, name: &str, segment: u64) -> PathBuf {
        self.directory.join(format!("{name}.{segment}.{EXTENSION}"))
    }

    fn segments(&self, name: &str) -> io::Result<Vec<u64>> {
        let mut segments = Vec::new();
        for file in fs::read_dir(&self.directory)? {
            let file = file?.file_name();
            let Some(rest) = file.to_str().and_then(|file| file.strip_prefix(name)?.strip_prefix('.')) else {
                continue;
            };
            if let Some(number) =
                rest.strip_suffix(EXTENSION).and_then(|rest| rest.strip_suffix('.')?.parse().ok())
            {
                segments.push(number);
            }
        }
        segments.sort_unstable();
        Ok(segments)
    }

    /// The end of the newest file, after cutting off a torn last line.
    fn find_end(&self, name: &str) -> io::Result<End> {
        let Some(segment) = self.segments(name)?.last().copied() else {
            return Ok(End { segment: 0, bytes: 0 });
        };
        let mut file = OpenOptions::new().read(true).write(true).open(self.path(name, segment))?;
        let length = file.metadata()?.len();
        // A torn line is no longer than a line.
        let start = length.saturating_sub(LINE_BYTES_MAX as u64 + 1);
        file.seek(SeekFrom::Start(start))?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail)?;
        let whole = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last as u64 + 1);
        let bytes = start + whole;
        if bytes < length {
            file.set_len(bytes)?;
        }
        Ok(End { segment, bytes })
    }

    /// Makes room for one more file.
    fn thin_out(&self, name: &str) -> io::Result<()> {
        let segments = self.segments(name)?;
        let excess = (segments.len() + 1).saturating_sub(SEGMENTS_MAX);
        for segment in segments.iter().skip(1).take(excess) {
            fs::remove_file(self.path(name, *segment))?;
        }
        Ok(())
    }
}

/// The key with everything but letters, digits, `-` and `_` as `%XX`, so that it is a file name and can be read back.
fn file_name(key: &str) -> Result<String, Error> {
    let mut name = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    if name.is_empty() || name.len() > KEY_BYTES_MAX {
        Err(Error::Key { key: key.to_owned() })
    } else {
        Ok(name)
    }
}

fn parse_segment(file: &str) -> Option<(String, u64)> {
    let (name, segment) = file.strip_suffix(EXTENSION)?.strip_suffix('.')?.rsplit_once('.')?;
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        if first == '%' {
            bytes.push(u8::from_str_radix(rest.get(1..3)?, 16).ok()?);
            rest = &rest[3..];
        } else {
            bytes.push(u8::try_from(first).ok()?);
            rest = &rest[1..];
        }
    }
    Some((String::from_utf8(bytes).ok()?, segment.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_in_order_by_key() {
        let dir = tempfile::tempdir().unwrap();
        let log = AppendLog::open(dir.path()).unwrap();
        for line in ["{\"a\":1}", "{\"a\":2}"] {
            log.append("default_digits_1.2/ä", line).unwrap();
        }
        log.append("default_digits_1", "{}").unwrap();
        log.sync("default_digits_1").unwrap();
        assert_eq!(log.keys().unwrap(), ["default_digits_1", "default_digits_1.2/ä"]);
        assert_eq!(log.read("default_digits_1.2/ä").unwrap(), ["{\"a\":1}", "{\"a\":2}"]);
        assert_eq!(log.read("unknown").unwrap(), [""; 0]);
        log.remove("default_digits_1").unwrap();
        assert_eq!(log.keys().unwrap(), ["default_digits_1.2/ä"]);
    }

    #[test]
    fn a_torn_last_line_is_left_out_and_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        AppendLog::open(dir.path()).unwrap().append("k", "one").unwrap();
        let path = dir.path().join("k.0.jsonl");
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"tw").unwrap();
        let log = AppendLog::open(dir.path()).unwrap();
        assert_eq!(log.read("k").unwrap(), ["one"]);
        log.append("k", "three").unwrap();
        assert_eq!(log.read("k").unwrap(), ["one", "three"]);
        assert_eq!(fs::read_to_string(path).unwrap(), "one\nthree\n");
    }

    #[test]
    fn a_record_is_bounded_and_keeps_its_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let log = AppendLog::open(dir.path()).unwrap().with_segment_bytes(10);
        for number in 0..100 {
            log.append("k", &format!("line-{number:03}")).unwrap();
        }
        let lines = log.read("k").unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), SEGMENTS_MAX);
        assert_eq!(lines.first().map(String::as_str), Some("line-000"));
        assert_eq!(lines.last().map(String::as_str), Some("line-099"));
        assert!(lines.len() <= 2 * SEGMENTS_MAX, "{}", lines.len());
    }

    #[test]
    fn what_cannot_be_a_line_or_a_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let log = AppendLog::open(dir.path()).unwrap();
        assert!(matches!(log.append("k", "a\nb"), Err(Error::Line { .. })));
        assert!(matches!(log.append("k", &"x".repeat(LINE_BYTES_MAX + 1)), Err(Error::Line { .. })));
        assert!(matches!(log.append("", "a"), Err(Error::Key { .. })));
        assert!(matches!(log.read(&"k".repeat(KEY_BYTES_MAX + 1)), Err(Error::Key { .. })));
    }
}
