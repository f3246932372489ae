//! The store against a map and a list: whatever is done, both say the same.

use crate::common::{delete, key, number, put};
use proptest::prelude::*;
use regatta_store::{Error, Store};
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
enum Operation {
    /// Stores with the right expectation.
    Put(usize, u64),
    /// Removes with the right expectation.
    Delete(usize),
    /// Expects a version that is not there.
    Stale(usize),
    /// Two writes at once.
    Both(usize, usize, u64),
    /// Two writes at once, of which the second must fail.
    HalfStale(usize, usize),
    /// Closes and opens again.
    Reopen,
}

fn operation() -> impl Strategy<Value = Operation> {
    let name = 0..NAMES.len();
    prop_oneof![
        4 => (name.clone(), any::<u64>()).prop_map(|(name, number)| Operation::Put(name, number)),
        2 => name.clone().prop_map(Operation::Delete),
        1 => name.clone().prop_map(Operation::Stale),
        2 => (name.clone(), name.clone(), any::<u64>()).prop_map(|(a, b, number)| Operation::Both(a, b, number)),
        1 => (name.clone(), name).prop_map(|(a, b)| Operation::HalfStale(a, b)),
        1 => Just(Operation::Reopen),
    ]
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Version and number of each object, and every change so far.
#[derive(Default)]
struct Model {
    objects: BTreeMap<&'static str, (u64, u64)>,
    log: Vec<(u64, &'static str, Option<u64>)>,
}

impl Model {
    fn version(&self, name: &str) -> Option<u64> {
        self.objects.get(name).map(|(version, _)| *version)
    }

    fn run(&mut self, store: &Store, operation: &Operation) {
        match *operation {
            Operation::Put(name, value) => self.put(store, &[(NAMES[name], value)]),
            Operation::Both(a, b, value) if a != b => {
                self.put(store, &[(NAMES[a], value), (NAMES[b], value ^ 1)]);
            }
            Operation::Both(..) | Operation::Reopen => {}
            Operation::Delete(name) => {
                let name = NAMES[name];
                match self.version(name) {
                    Some(version) => {
                        let entries = store.commit(vec![delete(name, version)]).unwrap().wait().unwrap();
                        self.objects.remove(name);
                        self.log.push((entries[0].version, name, None));
                    }
                    None => assert!(store.commit(vec![delete(name, 1)]).unwrap_err().is_conflict()),
                }
            }
            Operation::Stale(name) => {
                let wrong = self.version(NAMES[name]).map_or(Some(1), |version| Some(version + 1));
                assert!(store.commit(vec![put(NAMES[name], wrong, 0)]).unwrap_err().is_conflict());
            }
            Operation::HalfStale(a, b) => {
                let good = put(NAMES[a], self.version(NAMES[a]), 9);
                let wrong = self.version(NAMES[b]).map_or(Some(1), |version| Some(version + 1));
                assert!(store.commit(vec![good, put(NAMES[b], wrong, 0)]).unwrap_err().is_conflict());
            }
        }
    }

    fn put(&mut self, store: &Store, writes: &[(&'static str, u64)]) {
        let batch = writes.iter().map(|(name, value)| put(name, self.version(name), *value)).collect();
        let entries = store.commit(batch).unwrap().wait().unwrap();
        for ((name, value), entry) in writes.iter().zip(&entries) {
            self.objects.insert(name, (entry.version, *value));
            self.log.push((entry.version, name, Some(*value)));
        }
    }

    fn check(&self, store: &Store) {
        let listed: Vec<(String, u64, u64)> = store
            .list("things", Some("ns"), None, usize::MAX)
            .entries
            .iter()
            .map(|entry| (entry.key.path.name.to_string(), entry.version, number(entry)))
            .collect();
        let expected: Vec<(String, u64, u64)> = self
            .objects
            .iter()
            .map(|(name, (version, value))| ((*name).to_owned(), *version, *value))
            .collect();
        assert_eq!(listed, expected);
        for name in NAMES {
            assert_eq!(store.get(&key(name)).map(|entry| entry.version), self.version(name));
            assert_eq!(store.latest(&key(name)).map(|entry| entry.version), self.version(name));
        }
    }

    /// A watch from `from` shows exactly what happened since.
    fn check_watch(&self, store: &Store, from: u64) {
        let mut watch = store.watch("things", from).unwrap();
        let mut seen = Vec::new();
        loop {
            let batch = watch.ready().unwrap();
            if batch.changes.is_empty() {
                assert_eq!(batch.version, store.version());
                break;
            }
            seen.extend(batch.changes);
        }
        let expected: Vec<_> = self.log.iter().filter(|(version, ..)| *version > from).collect();
        assert_eq!(seen.len(), expected.len());
        for (change, (version, name, value)) in seen.iter().zip(expected) {
            assert_eq!((change.version, &*change.new.key.path.name), (*version, *name));
            if let Some(value) = value {
                assert_eq!(number(&change.new), *value);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn in_memory(operations in proptest::collection::vec(operation(), 1..60)) {
        let store = Store::in_memory();
        let mut model = Model::default();
        for operation in &operations {
            model.run(&store, operation);
            model.check(&store);
        }
        for from in [0, store.version() / 2, store.version()] {
            model.check_watch(&store, from);
        }
    }

    #[test]
    fn on_disk(operations in proptest::collection::vec(operation(), 1..24)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("regatta.db");
        let mut store = Store::open(&path).unwrap();
        let (mut model, mut opened_at) = (Model::default(), 0);
        for operation in &operations {
            if matches!(operation, Operation::Reopen) {
                let before = store.version();
                store.close();
                store = Store::open(&path).unwrap();
                assert_eq!(store.version(), before, "a clean stop skips no version");
                opened_at = before;
            }
            model.run(&store, operation);
            model.check(&store);
        }
        model.check_watch(&store, opened_at);
        if opened_at > 0 {
            assert!(matches!(store.watch("things", opened_at - 1), Err(Error::Expired { .. })), "history does not outlive the process");
        }
    }
}

#[test]
fn lists_are_cut_into_pages() {
    let store = Store::in_memory();
    for name in NAMES {
        store.commit(vec![put(name, None, 1)]).unwrap().wait().unwrap();
    }
    let first = store.list("things", Some("ns"), None, 3);
    assert_eq!((first.entries.len(), first.remaining), (3, 1));
    let after = first.entries[2].key.path.clone();
    let second = store.list("things", None, Some(&after), 3);
    assert_eq!((second.entries.len(), second.remaining), (1, 0));
    assert!(store.list("things", Some("other"), None, 3).entries.is_empty());
    assert!(store.list("nothings", None, None, 3).entries.is_empty());
}

#[test]
fn the_future_cannot_be_watched() {
    let store = Store::in_memory();
    assert!(matches!(store.watch("things", 1), Err(Error::Future { version: 1, current: 0 })));
    let mut watch = store.watch("things", 0).unwrap();
    store.close();
    assert!(matches!(futures::executor::block_on(watch.next()), Ok(None)));
    assert!(matches!(store.commit(vec![put("a", None, 1)]), Err(Error::Closed)));
    assert!(matches!(store.watch("things", 0), Err(Error::Closed)));
}
