//! Points in time as whole milliseconds, so that decisions compare integers.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::borrow::Cow;
use std::fmt;

/// A point in time: milliseconds since the Unix epoch. Written as RFC 3339 in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The point `unix_ms` milliseconds after 1970-01-01T00:00:00Z.
    pub const fn from_unix_ms(unix_ms: i64) -> Self {
        Self(unix_ms)
    }

    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub const fn unix_ms(self) -> i64 {
        self.0
    }

    /// This time moved `ms` milliseconds into the future, saturating.
    #[must_use]
    pub const fn plus_ms(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to this time; 0 if `earlier` is not earlier.
    pub const fn since_ms(self, earlier: Self) -> i64 {
        let gap = self.0.saturating_sub(earlier.0);
        if gap > 0 { gap } else { 0 }
    }

    /// Parses RFC 3339, with or without fractional seconds.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse::<jiff::Timestamp>().ok().map(|t| Self(t.as_millisecond()))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC; fractional seconds only when there are some.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(t) if self.0.rem_euclid(1000) == 0 => write!(f, "{t:.0}"),
            Ok(t) => write!(f, "{t:.3}"),
            Err(_) => write!(f, "1970-01-01T00:00:00Z"),
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is not an RFC 3339 time")))
    }
}

impl JsonSchema for Timestamp {
    fn schema_name() -> Cow<'static, str> {
        "Timestamp".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "date-time"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_rfc3339() {
        for (text, ms) in [
            ("2026-11-30T12:00:00Z", 1_796_040_000_000),
            ("2026-11-30T12:00:00.250Z", 1_796_040_000_250),
            ("1970-01-01T00:00:00Z", 0),
        ] {
            assert_eq!(Timestamp::parse(text), Some(Timestamp::from_unix_ms(ms)), "{text}");
            assert_eq!(Timestamp::from_unix_ms(ms).to_string(), text);
        }
        assert_eq!(
            Timestamp::parse("2026-11-30T13:00:00.000001+01:00"),
            Timestamp::parse("2026-11-30T12:00:00Z")
        );
        assert_eq!(Timestamp::parse("yesterday"), None);
    }
}
