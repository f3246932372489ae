//! Small objects for the store's tests.

use regatta_store::{Body, Entry, Expect, Key, Write};

/// The key of a test object.
pub(crate) fn key(name: &str) -> Key {
    Key::new("things", "ns", name)
}

/// An object with a number in it, large enough to span sectors.
pub(crate) fn body(key: &Key, number: u64) -> Body {
    let head = "{\"metadata\":{\"resourceVersion\":\"";
    let padding = "p".repeat(700);
    let json = format!("{head}\"}},\"number\":{number},\"padding\":\"{padding}\"}}");
    Body::new(key, json.into_bytes(), head.len()).unwrap()
}

/// The number in an object.
pub(crate) fn number(entry: &Entry) -> u64 {
    let value: serde_json::Value = serde_json::from_slice(&entry.json).unwrap();
    assert_eq!(value["metadata"]["resourceVersion"], entry.version.to_string());
    value["number"].as_u64().unwrap()
}

/// A write that stores `number`, expecting what `current` says.
pub(crate) fn put(name: &str, current: Option<u64>, number: u64) -> Write {
    let key = key(name);
    let body = body(&key, number);
    Write::put(key, current.map_or(Expect::Absent, Expect::Version), body)
}

/// A write that removes the object at version `current`.
pub(crate) fn delete(name: &str, current: u64) -> Write {
    let key = key(name);
    let body = body(&key, 0);
    Write::delete(key, current, body)
}
