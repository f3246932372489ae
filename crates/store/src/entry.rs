//! One stored object: its bytes, and the little that the store must know without parsing them.

use crate::error::Error;
use bytes::Bytes;
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Largest object, in bytes of JSON; the limit that clients of Kubernetes are used to.
pub const OBJECT_BYTES_MAX: usize = 1_572_864;

/// Where an object is within its resource. Ordered by namespace, then name, as lists are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: Box<str>,
    /// Name.
    pub name: Box<str>,
}

impl Path {
    /// The path of these two.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

/// Names one object of the store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Resource, such as `pods` or `regatta.dev/jobs`.
    pub resource: Arc<str>,
    /// Where it is.
    pub path: Path,
}

impl Key {
    /// The key of these three.
    pub fn new(resource: impl Into<Arc<str>>, namespace: &str, name: &str) -> Self {
        Self { resource: resource.into(), path: Path::new(namespace, name) }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.resource)?;
        if !self.path.namespace.is_empty() {
            write!(f, "{}/", self.path.namespace)?;
        }
        f.write_str(&self.path.name)
    }
}

/// What the store reads of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Header {
    /// Identity over time.
    pub uid: Box<str>,
    /// Labels, ordered by name.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// Uids of the owners.
    pub owners: Box<[Box<str>]>,
    /// Whether deletion has been asked for.
    pub deletion: Deletion,
}

/// Whether deletion has been asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Deletion {
    /// It has not.
    #[default]
    None,
    /// It has; the object waits for its finalizers or its grace period.
    Requested,
}

impl Header {
    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        let at = self.labels.binary_search_by(|(known, _)| known.as_ref().cmp(name)).ok()?;
        self.labels.get(at).map(|(_, value)| value.as_ref())
    }
}

#[derive(Deserialize)]
struct Partial<'a> {
    #[serde(borrow)]
    metadata: PartialMeta<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PartialMeta<'a> {
    #[serde(borrow, default)]
    uid: Cow<'a, str>,
    #[serde(default)]
    labels: Option<BTreeMap<Box<str>, Box<str>>>,
    #[serde(borrow, default)]
    owner_references: Option<Vec<PartialOwner<'a>>>,
    #[serde(borrow, default)]
    deletion_timestamp: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct PartialOwner<'a> {
    #[serde(borrow, default)]
    uid: Cow<'a, str>,
}

impl Header {
    fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        let metadata = serde_json::from_slice::<Partial<'_>>(json)?.metadata;
        Ok(Self {
            uid: metadata.uid.into(),
            labels: metadata.labels.unwrap_or_default().into_iter().collect(),
            owners: metadata
                .owner_references
                .unwrap_or_default()
                .into_iter()
                .map(|owner| owner.uid.into())
                .collect(),
            deletion: if metadata.deletion_timestamp.is_some() {
                Deletion::Requested
            } else {
                Deletion::None
            },
        })
    }
}

/// An object to be stored: JSON in which one place is left open for the version.
///
/// The version is only known when the write is put in order, and it belongs inside the object
/// (`metadata.resourceVersion`), so whoever encodes the object says where.
#[derive(Debug, Clone)]
pub struct Body {
    json: Vec<u8>,
    version_at: usize,
    header: Header,
}

impl Body {
    /// `json`, with the version's digits to be put in at byte `version_at`, between the quotes that are there.
    ///
    /// # Errors
    /// When `json` is not an object with metadata, is too large, or has no pair of quotes at `version_at`.
    pub fn new(key: &Key, json: Vec<u8>, version_at: usize) -> Result<Self, Error> {
        let bad = |problem: String| Error::BadObject { key: key.clone(), problem };
        if json.len() > OBJECT_BYTES_MAX {
            return Err(Error::TooLarge { key: key.clone(), bytes: json.len(), limit: OBJECT_BYTES_MAX });
        }
        let around = version_at.checked_sub(1).and_then(|start| json.get(start..=version_at));
        if around != Some(b"\"\"") {
            return Err(bad("there is no place for its version".to_owned()));
        }
        let header =
            Header::parse(&json).map_err(|e| bad(format!("it is not an object with metadata: {e}")))?;
        Ok(Self { json, version_at, header })
    }

    pub(crate) fn seal(self, key: Key, version: u64) -> Entry {
        let digits = version.to_string();
        let mut json = Vec::with_capacity(self.json.len() + digits.len());
        json.extend_from_slice(&self.json[..self.version_at]);
        json.extend_from_slice(digits.as_bytes());
        json.extend_from_slice(&self.json[self.version_at..]);
        let version_at =
            u32::try_from(self.version_at).expect("invariant: an object is far smaller than 4 GiB");
        Entry { key, version, json: json.into(), version_at, header: self.header }
    }
}

/// A stored object at one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Which object.
    pub key: Key,
    /// Version at which it was written.
    pub version: u64,
    /// The object as JSON, with the version in it.
    pub json: Bytes,
    /// What the store reads of it.
    pub header: Header,
    version_at: u32,
}

/// Bytes before the JSON in the database: version and place of the version, little-endian.
const RECORD_PREFIX_BYTES: usize = 12;

impl Entry {
    /// The same object, but saying that it is of `version`: the last state of an object that left a selection.
    pub fn json_as_of(&self, version: u64) -> Bytes {
        let start = self.version_at as usize;
        let end = start + self.version.to_string().len();
        let mut json = Vec::with_capacity(self.json.len() + 4);
        json.extend_from_slice(&self.json[..start]);
        json.extend_from_slice(version.to_string().as_bytes());
        json.extend_from_slice(&self.json[end..]);
        json.into()
    }

    pub(crate) fn to_record(&self) -> Vec<u8> {
        let mut record = Vec::with_capacity(RECORD_PREFIX_BYTES + self.json.len());
        record.extend_from_slice(&self.version.to_le_bytes());
        record.extend_from_slice(&self.version_at.to_le_bytes());
        record.extend_from_slice(&self.json);
        record
    }

    /// Reads what [`Entry::to_record`] wrote, and checks that it still says the same thing twice.
    pub(crate) fn from_record(key: Key, record: &[u8]) -> Result<Self, String> {
        let (prefix, json) = record.split_at_checked(RECORD_PREFIX_BYTES).ok_or("the record is too short")?;
        let (version, version_at) = prefix.split_at(8);
        let version = u64::from_le_bytes(version.try_into().expect("invariant: 8 bytes were split off"));
        let version_at =
            u32::from_le_bytes(version_at.try_into().expect("invariant: 4 bytes are left of 12"));
        let digits = version.to_string();
        let start = version_at as usize;
        if json.get(start..start + digits.len()) != Some(digits.as_bytes()) {
            return Err(format!("the object does not say that it is of version {version}"));
        }
        let header = Header::parse(json).map_err(|e| e.to_string())?;
        Ok(Self { key, version, json: Bytes::copy_from_slice(json), header, version_at })
    }
}

/// Separates the parts of a key in the database; no part has it, because names are DNS names.
const KEY_SEPARATOR: u8 = 0;

pub(crate) fn key_bytes(key: &Key) -> Vec<u8> {
    let Path { namespace, name } = &key.path;
    let mut bytes = Vec::with_capacity(key.resource.len() + namespace.len() + name.len() + 2);
    bytes.extend_from_slice(key.resource.as_bytes());
    bytes.push(KEY_SEPARATOR);
    bytes.extend_from_slice(namespace.as_bytes());
    bytes.push(KEY_SEPARATOR);
    bytes.extend_from_slice(name.as_bytes());
    bytes
}

pub(crate) fn parse_key(bytes: &[u8]) -> Option<Key> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut parts = text.splitn(3, char::from(KEY_SEPARATOR));
    Some(Key::new(parts.next()?, parts.next()?, parts.next()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A body for `key` with this text in it.
    pub(crate) fn body(key: &Key, text: &str) -> Body {
        let head =
            r#"{"metadata":{"labels":{"b":"2","a":"1"},"ownerReferences":[{"uid":"o1"}],"resourceVersion":""#;
        let json = format!("{head}\",\"uid\":\"u1\"}},\"text\":{text:?}}}");
        Body::new(key, json.into_bytes(), head.len()).unwrap()
    }

    #[test]
    fn the_version_goes_into_its_place() {
        let key = Key::new("pods", "ns", "a");
        let entry = body(&key, "x").seal(key.clone(), 41);
        let json: serde_json::Value = serde_json::from_slice(&entry.json).unwrap();
        assert_eq!(json["metadata"]["resourceVersion"], "41");
        assert_eq!(entry.header.label("a"), Some("1"));
        assert_eq!(entry.header.label("c"), None);
        assert_eq!(entry.header.owners.as_ref(), ["o1".into()]);
        let later: serde_json::Value = serde_json::from_slice(&entry.json_as_of(1000)).unwrap();
        assert_eq!(later["metadata"]["resourceVersion"], "1000");
        assert_eq!(later["text"], "x");
    }

    #[test]
    fn records_and_keys_round_trip_and_lies_are_found() {
        let key = Key::new("regatta.dev/jobs", "ns", "a");
        let entry = body(&key, "x").seal(key.clone(), 7);
        let record = entry.to_record();
        assert_eq!(Entry::from_record(key.clone(), &record), Ok(entry));
        let mut torn = record;
        torn[0] = 8;
        assert!(Entry::from_record(key.clone(), &torn).is_err());
        assert!(Entry::from_record(key.clone(), &torn[..5]).is_err());
        assert_eq!(parse_key(&key_bytes(&key)), Some(key));
        assert_eq!(parse_key(b"no separators"), None);
    }

    #[test]
    fn objects_that_are_none_are_refused() {
        let key = Key::new("pods", "ns", "a");
        for (json, at) in [("{}", 1), ("{\"metadata\":\"\"}", 13), ("\"\"", 1), ("", 0)] {
            assert!(Body::new(&key, json.as_bytes().to_vec(), at).is_err(), "{json}");
        }
        let large = format!("{{\"a\":\"\",\"b\":\"{}\"}}", "x".repeat(OBJECT_BYTES_MAX));
        assert!(matches!(Body::new(&key, large.into_bytes(), 6), Err(Error::TooLarge { .. })));
    }
}
