//! The logs of a container's ranks as one, ordered by time, as the reader wants it.

use super::rank_file::{self, Line, RankFile};
use crate::error::Error;
use bytes::Bytes;
use regatta_agent::log_line::time_text;
use regatta_types::streams::LogRequest;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};

/// Size of a chunk, in bytes; the last line may go beyond.
const CHUNK_BYTES: usize = 32 * 1024;
/// Most lines that a tail may ask for.
const TAIL_LINES_MAX: u64 = 100_000;

/// The merged log.
pub(super) struct Merge {
    directory: PathBuf,
    request: LogRequest,
    ranks: BTreeMap<Option<u32>, Source>,
    /// Lines of the tail, made at the start.
    tail: VecDeque<(Option<u32>, Line)>,
    bytes_left: u64,
}

struct Source {
    file: RankFile,
    next: Option<Line>,
}

impl Merge {
    pub(super) async fn open(directory: &Path, pod: &str, request: LogRequest) -> Result<Self, Error> {
        let bytes_left = request.limit_bytes.unwrap_or(u64::MAX);
        let mut merge = Self {
            directory: directory.to_owned(),
            request,
            ranks: BTreeMap::new(),
            tail: VecDeque::new(),
            bytes_left,
        };
        let at = directory.to_owned();
        let opened = tokio::task::spawn_blocking(move || merge.start().map(|()| merge)).await;
        let merge = opened
            .unwrap_or_else(|panic| Err(io::Error::other(panic)))
            .map_err(|e| Error::file("read the log in", at, e))?;
        match merge.request.rank {
            // A log that is followed may come yet.
            Some(rank) if merge.ranks.is_empty() && !merge.request.follow => {
                Err(Error::RankNotFound { pod: pod.to_owned(), rank })
            }
            _ => Ok(merge),
        }
    }

    fn start(&mut self) -> io::Result<()> {
        self.find_ranks()?;
        let Some(lines) = self.request.tail_lines else { return Ok(()) };
        let lines = lines.min(TAIL_LINES_MAX);
        for source in self.ranks.values_mut() {
            source.file.skip_to_tail(lines)?;
        }
        while let Some(line) = self.next_line()? {
            self.tail.push_back(line);
            if self.tail.len() as u64 > lines {
                self.tail.pop_front();
            }
        }
        Ok(())
    }

    /// Opens logs that have come since the last look.
    fn find_ranks(&mut self) -> io::Result<()> {
        for (rank, path) in rank_file::list(&self.directory)? {
            // A container without ranks has the one process that every rank's number could mean.
            let wanted = self.request.rank.is_none_or(|wanted| rank.is_none_or(|rank| rank == wanted));
            if wanted && !self.ranks.contains_key(&rank) {
                self.ranks.insert(rank, Source { file: RankFile::open(path)?, next: None });
            }
        }
        Ok(())
    }

    /// The earliest line that has not been given.
    fn next_line(&mut self) -> io::Result<Option<(Option<u32>, Line)>> {
        let mut earliest: Option<(&Option<u32>, &mut Source)> = None;
        for (rank, source) in &mut self.ranks {
            if source.next.is_none() {
                source.next = source.file.next()?;
            }
            let is_earlier = match (&source.next, &earliest) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(line), Some((_, best))) => best.next.as_ref().is_none_or(|best| line.at < best.at),
            };
            if is_earlier {
                earliest = Some((rank, source));
            }
        }
        Ok(earliest.and_then(|(rank, source)| source.next.take().map(|line| (*rank, line))))
    }

    /// Whether as much was given as was asked for.
    pub(super) const fn is_full(&self) -> bool {
        self.bytes_left == 0
    }

    /// The next chunk; none when there is nothing more for now. Gives itself back.
    pub(super) async fn next_chunk(mut self) -> (Self, io::Result<Option<Bytes>>) {
        let directory = self.directory.clone();
        let request = self.request.clone();
        let read = tokio::task::spawn_blocking(move || {
            let chunk = self.read_chunk();
            (self, chunk)
        });
        read.await.unwrap_or_else(|panic| {
            let empty =
                Self { directory, request, ranks: BTreeMap::new(), tail: VecDeque::new(), bytes_left: 0 };
            (empty, Err(io::Error::other(panic)))
        })
    }

    fn read_chunk(&mut self) -> io::Result<Option<Bytes>> {
        self.find_ranks()?;
        let mut chunk = Vec::new();
        while chunk.len() < CHUNK_BYTES && self.bytes_left > 0 {
            let next = match self.tail.pop_front() {
                Some(line) => Some(line),
                None => self.next_line()?,
            };
            let Some((rank, line)) = next else { break };
            if self.request.since_time.is_some_and(|since| line.at < since) {
                continue;
            }
            let before = chunk.len();
            self.write(&mut chunk, rank, &line);
            let room = usize::try_from(self.bytes_left).unwrap_or(usize::MAX);
            chunk.truncate(before.saturating_add(room));
            self.bytes_left -= (chunk.len() - before) as u64;
        }
        Ok((!chunk.is_empty()).then(|| Bytes::from(chunk)))
    }

    fn write(&self, out: &mut Vec<u8>, rank: Option<u32>, line: &Line) {
        if let Some(rank) = rank.filter(|_| self.request.rank.is_none() && self.ranks.len() > 1) {
            out.extend_from_slice(format!("[rank {rank}] ").as_bytes());
        }
        if self.request.timestamps {
            out.extend_from_slice(time_text(line.at).as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice(&line.text);
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_agent::log_line::{Stream, Tag, push};
    use regatta_types::Timestamp;

    fn write(directory: &Path, name: &str, lines: &[(i64, &str)]) {
        let mut bytes = Vec::new();
        for (ms, text) in lines {
            let time = time_text(Timestamp::from_unix_ms(*ms));
            push(&mut bytes, &time, Stream::Stdout, Tag::Full, text.as_bytes());
        }
        std::fs::write(directory.join(name), bytes).unwrap();
    }

    async fn read(directory: &Path, request: LogRequest) -> String {
        let mut merge = Merge::open(directory, "pod", request).await.unwrap();
        let mut text = Vec::new();
        loop {
            let (back, chunk) = merge.next_chunk().await;
            merge = back;
            match chunk.unwrap() {
                Some(chunk) => text.extend_from_slice(&chunk),
                None => return String::from_utf8(text).unwrap(),
            }
        }
    }

    #[tokio::test]
    async fn ranks_are_merged_by_time() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "rank-0.log", &[(1, "a"), (4, "d")]);
        write(dir.path(), "rank-10.log", &[(2, "b"), (3, "c"), (4, "e")]);
        let all = LogRequest::default();
        assert_eq!(
            read(dir.path(), all.clone()).await,
            "[rank 0] a\n[rank 10] b\n[rank 10] c\n[rank 0] d\n[rank 10] e\n"
        );
        let one = LogRequest { rank: Some(10), ..all.clone() };
        assert_eq!(read(dir.path(), one.clone()).await, "b\nc\ne\n");
        for (request, expected) in [
            (LogRequest { tail_lines: Some(2), ..all.clone() }, "[rank 0] d\n[rank 10] e\n"),
            (LogRequest { tail_lines: Some(0), ..all.clone() }, ""),
            (LogRequest { tail_lines: Some(1), ..one.clone() }, "e\n"),
            (LogRequest { since_time: Some(Timestamp::from_unix_ms(3)), ..one.clone() }, "c\ne\n"),
            (LogRequest { limit_bytes: Some(3), ..one.clone() }, "b\nc"),
            (
                LogRequest { timestamps: true, tail_lines: Some(1), ..one.clone() },
                "1970-01-01T00:00:00.004Z e\n",
            ),
        ] {
            assert_eq!(read(dir.path(), request.clone()).await, expected, "{request:?}");
        }
    }

    #[tokio::test]
    async fn a_rank_that_is_not_there_is_said_to_be_so() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "rank-0.log", &[(1, "a")]);
        let request = LogRequest { rank: Some(7), ..LogRequest::default() };
        let error = Merge::open(dir.path(), "pod", request).await.err().unwrap();
        assert_eq!(error.to_string(), "pod pod has no log of rank 7");
        write(dir.path(), "output.log", &[(1, "plain")]);
        let plain = LogRequest { rank: Some(7), ..LogRequest::default() };
        assert_eq!(read(dir.path(), plain).await, "plain\n");
    }
}
