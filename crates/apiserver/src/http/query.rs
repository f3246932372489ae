//! Query parameters, decoded.

use crate::error::bad_request;
use regatta_kit::ApiError;
use std::collections::BTreeMap;

/// The parameters of a URL, in order; a name may come more than once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name, Plus::IsSpace), decode(value, Plus::IsSpace))
        });
        Self { pairs: pairs.collect() }
    }

    /// The first value of a parameter; an empty one counts as absent.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.pairs.iter().find(|(known, _)| known == name)?;
        (!value.is_empty()).then_some(value.as_str())
    }

    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.all(name).next().is_some_and(|value| matches!(value, "true" | "1" | "True" | "t"))
    }

    /// A number.
    ///
    /// # Errors
    /// When the value is none.
    pub(crate) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| bad_request(format!("{name}={text:?} is not a valid number")))
    }

    /// The last value of each name.
    pub(crate) fn to_map(&self) -> BTreeMap<String, String> {
        self.pairs.iter().cloned().collect()
    }
}

/// What a plus sign means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plus {
    /// A space: in queries.
    IsSpace,
    /// Itself: in paths.
    IsPlus,
}

/// Decodes percent signs. What is no UTF-8 afterwards is replaced: no name or value that means something has it.
pub(crate) fn decode(text: &str, plus: Plus) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = tail
            .get(..2)
            .and_then(|two| std::str::from_utf8(two).ok())
            .and_then(|two| u8::from_str_radix(two, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = tail.get(2..).unwrap_or_default();
                continue;
            }
            (b'+', _) if plus == Plus::IsSpace => bytes.push(b' '),
            _ => bytes.push(first),
        }
        rest = tail;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters() {
        let query =
            Query::parse("labelSelector=a%3Db%2Cc&command=sh&command=-c&watch=true&limit=500&x&plus=a+b%2B");
        assert_eq!(query.get("labelSelector"), Some("a=b,c"));
        assert_eq!(query.all("command").collect::<Vec<_>>(), ["sh", "-c"]);
        assert!(query.is_set("watch") && !query.is_set("x"));
        assert_eq!(query.number::<u32>("limit").unwrap(), Some(500));
        assert_eq!(query.get("plus"), Some("a b+"));
        assert!(Query::parse("limit=many").number::<u32>("limit").is_err());
        assert_eq!(decode("100%", Plus::IsPlus), "100%");
        assert_eq!(decode("a+b%20c", Plus::IsPlus), "a+b c");
    }
}
