//! One line of a log file: time, stream, whether the line is whole, and the text. Pure.
//!
//! The format is that of the container runtime interface, which log collectors know:
//! `2026-11-30T12:00:00.250Z stdout F text`. A line longer than [`LINE_BYTES_MAX`] is cut into several with the tag `P`,
//! the last of which has `F`.

use regatta_types::Timestamp;

/// Longest text of one log line, in bytes.
pub const LINE_BYTES_MAX: usize = 16 * 1024;

/// Where a line was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// The stream as it is written in the file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Whether a line ends here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    /// The text ends the line.
    Full,
    /// The line goes on in the next log line of this stream.
    Partial,
}

/// One line of a log file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLine<'a> {
    /// When it was read.
    pub at: Timestamp,
    /// Where it came from.
    pub stream: Stream,
    /// Whether the line ends here.
    pub tag: Tag,
    /// The text, without the line's end.
    pub text: &'a [u8],
}

/// A time with exactly three digits of a second, so that times order as text.
pub fn time_text(at: Timestamp) -> String {
    let millis = at.unix_ms().rem_euclid(1000);
    let whole = Timestamp::from_unix_ms(at.unix_ms() - millis).to_string();
    format!("{}.{millis:03}Z", whole.trim_end_matches('Z'))
}

/// Appends one log line, with its end, to `out`. `time` is [`time_text`] of its time.
pub fn push(out: &mut Vec<u8>, time: &str, stream: Stream, tag: Tag, text: &[u8]) {
    out.extend_from_slice(time.as_bytes());
    out.push(b' ');
    out.extend_from_slice(stream.as_str().as_bytes());
    out.extend_from_slice(match tag {
        Tag::Full => b" F ",
        Tag::Partial => b" P ",
    });
    out.extend_from_slice(text);
    out.push(b'\n');
}

/// Parses one log line, without its end; none when it is not one.
pub fn parse(line: &[u8]) -> Option<LogLine<'_>> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let at = Timestamp::parse(std::str::from_utf8(parts.next()?).ok()?)?;
    let stream = match parts.next()? {
        b"stdout" => Stream::Stdout,
        b"stderr" => Stream::Stderr,
        _ => return None,
    };
    let tag = match parts.next()? {
        b"F" => Tag::Full,
        b"P" => Tag::Partial,
        _ => return None,
    };
    Some(LogLine { at, stream, tag, text: parts.next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_survive_a_round_trip() {
        for (ms, stream, tag, text) in [
            (1_796_040_000_000, Stream::Stdout, Tag::Full, &b"hello world"[..]),
            (1_796_040_000_007, Stream::Stderr, Tag::Partial, b""),
            (1, Stream::Stdout, Tag::Full, b"\xff not UTF-8  two spaces"),
        ] {
            let at = Timestamp::from_unix_ms(ms);
            let mut line = Vec::new();
            push(&mut line, &time_text(at), stream, tag, text);
            assert_eq!(line.pop(), Some(b'\n'));
            assert_eq!(parse(&line), Some(LogLine { at, stream, tag, text }));
        }
    }

    #[test]
    fn times_have_a_fixed_width() {
        for (ms, expected) in
            [(1_796_040_000_000, "2026-11-30T12:00:00.000Z"), (1_796_040_000_250, "2026-11-30T12:00:00.250Z")]
        {
            assert_eq!(time_text(Timestamp::from_unix_ms(ms)), expected);
        }
    }

    #[test]
    fn other_lines_are_not_log_lines() {
        for line in [
            "",
            "hello",
            "2026-11-30T12:00:00.000Z stdin F x",
            "2026-11-30T12:00:00.000Z stdout F",
            "x stdout F y",
        ] {
            assert_eq!(parse(line.as_bytes()), None, "{line}");
        }
    }
}
