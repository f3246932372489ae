//! Bodies in protobuf, for the few small kinds that `kubectl create` and leader election send that way.
//!
//! Answers are always JSON: every client that sends protobuf takes JSON too. The tables below are the field numbers of
//! the published Kubernetes API; what is not in them is refused, not dropped.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use regatta_types::Timestamp;
use serde_json::{Map, Value};

/// What every body starts with.
const MAGIC: &[u8] = b"k8s\0";

/// How a field is read.
#[derive(Debug, Clone, Copy)]
enum Type {
    Text,
    /// Base64 in JSON.
    Bytes,
    Integer,
    Boolean,
    Time,
    Message(&'static [Field]),
    TextMap,
    BytesMap,
}

/// Whether a field comes once or any number of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    One,
    Many,
}

#[derive(Debug, Clone, Copy)]
struct Field(u64, &'static str, Type, Count);

const fn one(number: u64, name: &'static str, kind: Type) -> Field {
    Field(number, name, kind, Count::One)
}

const fn many(number: u64, name: &'static str, kind: Type) -> Field {
    Field(number, name, kind, Count::Many)
}

const OWNER: &[Field] = &[
    one(1, "kind", Type::Text),
    one(3, "name", Type::Text),
    one(4, "uid", Type::Text),
    one(5, "apiVersion", Type::Text),
    one(6, "controller", Type::Boolean),
    one(7, "blockOwnerDeletion", Type::Boolean),
];

const META: &[Field] = &[
    one(1, "name", Type::Text),
    one(2, "generateName", Type::Text),
    one(3, "namespace", Type::Text),
    one(4, "selfLink", Type::Text),
    one(5, "uid", Type::Text),
    one(6, "resourceVersion", Type::Text),
    one(7, "generation", Type::Integer),
    one(8, "creationTimestamp", Type::Time),
    one(9, "deletionTimestamp", Type::Time),
    one(10, "deletionGracePeriodSeconds", Type::Integer),
    one(11, "labels", Type::TextMap),
    one(12, "annotations", Type::TextMap),
    many(13, "ownerReferences", Type::Message(OWNER)),
    many(14, "finalizers", Type::Text),
];

const REFERENCE: &[Field] = &[
    one(1, "kind", Type::Text),
    one(2, "namespace", Type::Text),
    one(3, "name", Type::Text),
    one(4, "uid", Type::Text),
    one(5, "apiVersion", Type::Text),
    one(6, "resourceVersion", Type::Text),
    one(7, "fieldPath", Type::Text),
];

const CONFIG_MAP: &[Field] = &[
    one(1, "metadata", Type::Message(META)),
    one(2, "data", Type::TextMap),
    one(3, "binaryData", Type::BytesMap),
    one(4, "immutable", Type::Boolean),
];

const SECRET: &[Field] = &[
    one(1, "metadata", Type::Message(META)),
    one(2, "data", Type::BytesMap),
    one(3, "type", Type::Text),
    one(4, "stringData", Type::TextMap),
    one(5, "immutable", Type::Boolean),
];

const NAMESPACE: &[Field] = &[
    one(1, "metadata", Type::Message(META)),
    one(2, "spec", Type::Message(&[many(1, "finalizers", Type::Text)])),
    one(3, "status", Type::Message(&[one(1, "phase", Type::Text)])),
];

const LEASE_SPEC: &[Field] = &[
    one(1, "holderIdentity", Type::Text),
    one(2, "leaseDurationSeconds", Type::Integer),
    one(3, "acquireTime", Type::Time),
    one(4, "renewTime", Type::Time),
    one(5, "leaseTransitions", Type::Integer),
    one(6, "strategy", Type::Text),
    one(7, "preferredHolder", Type::Text),
];

const LEASE: &[Field] = &[one(1, "metadata", Type::Message(META)), one(2, "spec", Type::Message(LEASE_SPEC))];

const EVENT: &[Field] = &[
    one(1, "metadata", Type::Message(META)),
    one(2, "involvedObject", Type::Message(REFERENCE)),
    one(3, "reason", Type::Text),
    one(4, "message", Type::Text),
    one(5, "source", Type::Message(&[one(1, "component", Type::Text), one(2, "host", Type::Text)])),
    one(6, "firstTimestamp", Type::Time),
    one(7, "lastTimestamp", Type::Time),
    one(8, "count", Type::Integer),
    one(9, "type", Type::Text),
    one(10, "eventTime", Type::Time),
    one(
        11,
        "series",
        Type::Message(&[one(1, "count", Type::Integer), one(2, "lastObservedTime", Type::Time)]),
    ),
    one(12, "action", Type::Text),
    one(13, "related", Type::Message(REFERENCE)),
    one(14, "reportingComponent", Type::Text),
    one(15, "reportingInstance", Type::Text),
];

const DELETE_OPTIONS: &[Field] = &[
    one(1, "gracePeriodSeconds", Type::Integer),
    one(
        2,
        "preconditions",
        Type::Message(&[one(1, "uid", Type::Text), one(2, "resourceVersion", Type::Text)]),
    ),
    one(3, "orphanDependents", Type::Boolean),
    one(4, "propagationPolicy", Type::Text),
    many(5, "dryRun", Type::Text),
];

/// The envelope around every object.
const ENVELOPE: &[Field] = &[
    one(1, "type", Type::Message(&[one(1, "apiVersion", Type::Text), one(2, "kind", Type::Text)])),
    one(2, "raw", Type::Bytes),
    one(3, "contentEncoding", Type::Text),
    one(4, "contentType", Type::Text),
];

fn table_of(kind: &str) -> Option<&'static [Field]> {
    Some(match kind {
        "ConfigMap" => CONFIG_MAP,
        "Secret" => SECRET,
        "Namespace" => NAMESPACE,
        "Lease" => LEASE,
        "Event" => EVENT,
        "DeleteOptions" => DELETE_OPTIONS,
        _ => return None,
    })
}

/// Why a body cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// The kind is only read as JSON.
    Kind(String),
    /// The bytes are not what they should be.
    Bytes(&'static str),
}

/// Reads a body into the JSON that the same client could have sent.
pub(super) fn decode(body: &[u8]) -> Result<Value, Problem> {
    let bytes = body.strip_prefix(MAGIC).ok_or(Problem::Bytes("it does not start with its magic number"))?;
    let envelope = message(bytes, ENVELOPE, 0)?;
    let kind = envelope["type"]["kind"].as_str().unwrap_or_default();
    let table = table_of(kind).ok_or_else(|| Problem::Kind(kind.to_owned()))?;
    let raw = STANDARD.decode(envelope["raw"].as_str().unwrap_or_default());
    let mut object = message(&raw.map_err(|_| Problem::Bytes("its content cannot be read"))?, table, 0)?;
    object["kind"] = envelope["type"]["kind"].clone();
    object["apiVersion"] = envelope["type"]["apiVersion"].clone();
    Ok(object)
}

/// Deepest message in a message; the tables have no deeper one.
const DEPTH_MAX: usize = 8;

fn message(mut bytes: &[u8], table: &[Field], depth: usize) -> Result<Value, Problem> {
    if depth > DEPTH_MAX {
        return Err(Problem::Bytes("it is nested too deeply"));
    }
    let mut object = Map::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let Some(Field(_, name, kind, count)) = table.iter().find(|field| field.0 == tag >> 3) else {
            return Err(Problem::Bytes("it has a field that is not served; send JSON to learn which"));
        };
        let raw = raw_value(&mut bytes, tag & 7)?;
        match (kind, raw) {
            (Type::TextMap | Type::BytesMap, Raw::Bytes(entry)) => {
                let (key, value) = map_entry(entry, matches!(kind, Type::BytesMap))?;
                let map = object.entry(*name).or_insert_with(|| Value::Object(Map::new()));
                map.as_object_mut().expect("invariant: this field holds a map").insert(key, value);
            }
            (_, raw) => {
                let value = value(*kind, raw, depth)?;
                match count {
                    Count::One if value.is_null() => {}
                    Count::One => drop(object.insert((*name).to_owned(), value)),
                    Count::Many => {
                        let list = object.entry(*name).or_insert_with(|| Value::Array(Vec::new()));
                        list.as_array_mut().expect("invariant: this field holds a list").push(value);
                    }
                }
            }
        }
    }
    // The encoding writes empty text for what is not there.
    object.retain(|_, value| value.as_str() != Some(""));
    Ok(Value::Object(object))
}

enum Raw<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn raw_value<'a>(bytes: &mut &'a [u8], wire_type: u64) -> Result<Raw<'a>, Problem> {
    match wire_type {
        0 => varint(bytes).map(Raw::Number),
        2 => {
            let length = usize::try_from(varint(bytes)?).map_err(|_| Problem::Bytes("it is cut off"))?;
            let (head, rest) = bytes.split_at_checked(length).ok_or(Problem::Bytes("it is cut off"))?;
            *bytes = rest;
            Ok(Raw::Bytes(head))
        }
        _ => Err(Problem::Bytes("it has a value of an unknown form")),
    }
}

fn value(kind: Type, raw: Raw<'_>, depth: usize) -> Result<Value, Problem> {
    match (kind, raw) {
        (Type::Text, Raw::Bytes(bytes)) => text(bytes).map(Value::from),
        (Type::Bytes, Raw::Bytes(bytes)) => Ok(Value::from(STANDARD.encode(bytes))),
        // Two's complement: negative numbers are written as large ones.
        (Type::Integer, Raw::Number(number)) => Ok(Value::from(number.cast_signed())),
        (Type::Boolean, Raw::Number(number)) => Ok(Value::from(number != 0)),
        (Type::Time, Raw::Bytes(bytes)) => time(bytes),
        (Type::Message(table), Raw::Bytes(bytes)) => message(bytes, table, depth + 1),
        _ => Err(Problem::Bytes("it has a value of the wrong form")),
    }
}

/// A point in time; none for the zero time, which is how "not set" is written.
fn time(mut bytes: &[u8]) -> Result<Value, Problem> {
    let (mut seconds, mut nanos) = (0_i64, 0_i64);
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        match (tag >> 3, raw_value(&mut bytes, tag & 7)?) {
            (1, Raw::Number(number)) => seconds = number.cast_signed(),
            (2, Raw::Number(number)) => nanos = number.cast_signed(),
            _ => return Err(Problem::Bytes("it has a time of an unknown form")),
        }
    }
    if seconds == 0 && nanos == 0 {
        return Ok(Value::Null);
    }
    let ms = seconds.saturating_mul(1000).saturating_add(nanos / 1_000_000);
    Ok(Value::from(Timestamp::from_unix_ms(ms).to_string()))
}

fn map_entry(mut bytes: &[u8], is_bytes: bool) -> Result<(String, Value), Problem> {
    let (mut key, mut value) = (String::new(), Value::from(""));
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        match (tag >> 3, raw_value(&mut bytes, tag & 7)?) {
            (1, Raw::Bytes(bytes)) => key = text(bytes)?,
            (2, Raw::Bytes(bytes)) if is_bytes => value = Value::from(STANDARD.encode(bytes)),
            (2, Raw::Bytes(bytes)) => value = Value::from(text(bytes)?),
            _ => return Err(Problem::Bytes("it has a map of an unknown form")),
        }
    }
    Ok((key, value))
}

fn text(bytes: &[u8]) -> Result<String, Problem> {
    String::from_utf8(bytes.to_vec()).map_err(|_| Problem::Bytes("it has text that is not UTF-8"))
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Problem> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(Problem::Bytes("it is cut off"))?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Problem::Bytes("it has a number that is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
        out.extend_from_slice(bytes);
        out
    }

    fn body(kind: &str, raw: &[u8]) -> Vec<u8> {
        let type_meta = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), field(1, &type_meta), field(2, raw), field(3, b""), field(4, b"")].concat()
    }

    #[test]
    fn a_config_map() {
        // A creation time that is not set is written as an empty message.
        let meta = [field(1, b"a"), field(3, b"ns"), field(5, b""), vec![0x38, 0], field(8, b"")].concat();
        let entry = [field(1, b"key"), field(2, b"value")].concat();
        let empty = [field(1, b"none"), field(2, b"")].concat();
        let raw = [field(1, &meta), field(2, &entry), field(2, &empty)].concat();
        assert_eq!(
            decode(&body("ConfigMap", &raw)),
            Ok(json!({
                "kind": "ConfigMap", "apiVersion": "v1", "data": {"key": "value", "none": ""},
                "metadata": {"name": "a", "namespace": "ns", "generation": 0},
            }))
        );
    }

    #[test]
    fn a_secret_is_base64_in_json() {
        let entry = [field(1, b"key"), field(2, &[255])].concat();
        let object = decode(&body("Secret", &field(2, &entry))).unwrap();
        assert_eq!(object["data"], json!({"key": "/w=="}));
    }

    #[test]
    fn options_and_times() {
        let object = decode(&body("DeleteOptions", &[0x08, 5])).unwrap();
        assert_eq!(object["gracePeriodSeconds"], 5);
        let time = [vec![0x08, 0x80, 0xe4, 0xb2, 0xcd, 0x06], vec![0x10, 0]].concat();
        let meta = field(9, &time);
        let object = decode(&body("ConfigMap", &field(1, &meta))).unwrap();
        let at = object["metadata"]["deletionTimestamp"].as_str().unwrap();
        assert!(Timestamp::parse(at).is_some_and(|at| at.unix_ms() > 1_700_000_000_000), "{at}");
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        assert_eq!(decode(&body("Pod", b"")), Err(Problem::Kind("Pod".to_owned())));
        assert!(decode(b"{}").is_err());
        assert!(decode(&body("ConfigMap", &field(9, b"x"))).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&[MAGIC, &bytes].concat());
            let _ = message(&bytes, EVENT, 0);
        }
    }
}
