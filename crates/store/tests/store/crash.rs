//! What was acknowledged is there after a crash at any moment, and what was refused is not half there.

use crate::common::{delete, key, number, put};
use proptest::prelude::*;
use regatta_store::faults::FaultyVolume;
use regatta_store::{Durability, Error, Store};
use regatta_types::seed::Seed;
use std::collections::BTreeMap;
use std::sync::Arc;

const FILE: &str = "regatta.db";
const NAMES: [&str; 3] = ["a", "b", "c"];

type Objects = BTreeMap<String, u64>;

#[derive(Debug, Clone)]
enum Operation {
    Put(usize),
    Lazy(usize),
    Delete(usize),
    Both(usize, usize),
    FailSync,
    FailWrite,
    FullDisk,
    SpaceAgain,
    Reopen,
}

fn operation() -> impl Strategy<Value = Operation> {
    let name = 0..NAMES.len();
    prop_oneof![
        6 => name.clone().prop_map(Operation::Put),
        2 => name.clone().prop_map(Operation::Lazy),
        2 => name.clone().prop_map(Operation::Delete),
        2 => (name.clone(), name).prop_map(|(a, b)| Operation::Both(a, b)),
        1 => Just(Operation::FailSync),
        1 => Just(Operation::FailWrite),
        1 => Just(Operation::FullDisk),
        1 => Just(Operation::SpaceAgain),
        1 => Just(Operation::Reopen),
    ]
}

fn objects(store: &Store) -> Objects {
    let list = store.list("things", None, None, usize::MAX);
    list.entries.iter().map(|entry| (entry.key.path.name.to_string(), number(entry))).collect()
}

/// What the store shows now, and everything that may be found after a crash now.
struct Model {
    now: Objects,
    possible: Vec<Objects>,
    counter: u64,
    version_seen: u64,
}

impl Model {
    fn commit(&mut self, store: &Store, names: &[&str], durability: Durability) {
        let mut next = self.now.clone();
        let mut batch = Vec::new();
        for name in names {
            self.counter += 1;
            let current = store.latest(&key(name)).map(|entry| entry.version);
            batch.push(put(name, current, self.counter).with_durability(durability));
            next.insert((*name).to_owned(), self.counter);
        }
        let outcome = store.commit(batch).and_then(|pending| pending.wait().map(|_| ()));
        self.learn(store, next, outcome, durability);
    }

    fn delete(&mut self, store: &Store, name: &str) {
        let Some(entry) = store.latest(&key(name)) else { return };
        let mut next = self.now.clone();
        next.remove(name);
        let outcome =
            store.commit(vec![delete(name, entry.version)]).and_then(|pending| pending.wait().map(|_| ()));
        self.learn(store, next, outcome, Durability::Synced);
    }

    fn learn(&mut self, store: &Store, next: Objects, outcome: Result<(), Error>, durability: Durability) {
        match outcome {
            Ok(()) => {
                if durability == Durability::Synced {
                    self.possible.clear();
                }
                self.possible.push(next.clone());
                self.now = next;
            }
            // Refused: not to be seen, but a crash may show that the disk had it all the same.
            Err(Error::NotDurable { .. } | Error::Closed) => self.possible.push(next),
            Err(other) => panic!("unexpected: {other}"),
        }
        assert_eq!(objects(store), self.now, "readers see what was acknowledged, no more and no less");
        self.version_seen = self.version_seen.max(store.version());
    }
}

fn run(seed: u64, crash_after: u64, operations: &[Operation]) {
    let mut volume = FaultyVolume::new(Seed(seed));
    let mut store = Store::open_on(Arc::new(volume.clone()), FILE).unwrap();
    volume.crash_at(volume.operations() + crash_after);
    let mut model =
        Model { now: Objects::new(), possible: vec![Objects::new()], counter: 0, version_seen: 0 };
    for operation in operations {
        match *operation {
            Operation::Put(name) => model.commit(&store, &[NAMES[name]], Durability::Synced),
            Operation::Lazy(name) => model.commit(&store, &[NAMES[name]], Durability::Lazy),
            Operation::Both(a, b) if a != b => {
                model.commit(&store, &[NAMES[a], NAMES[b]], Durability::Synced);
            }
            Operation::Both(..) => {}
            Operation::Delete(name) => model.delete(&store, NAMES[name]),
            Operation::FailSync => volume.fail_syncs(1),
            Operation::FailWrite => volume.fail_writes(1),
            Operation::FullDisk => volume.set_capacity(Some(volume.used_bytes())),
            Operation::SpaceAgain => volume.set_capacity(None),
            Operation::Reopen => {
                drop(store);
                volume = volume.after_crash();
                store = Store::open_on(Arc::new(volume.clone()), FILE).unwrap();
                check_found(&store, &mut model);
            }
        }
    }
    drop(store);
    let found = Store::open_on(Arc::new(volume.after_crash()), FILE).unwrap();
    check_found(&found, &mut model);
}

fn check_found(store: &Store, model: &mut Model) {
    let found = objects(store);
    assert!(model.possible.contains(&found), "found {found:?}, possible {:?}", model.possible);
    assert!(store.version() >= model.version_seen, "a version that was shown is never used again");
    model.now = found.clone();
    model.possible = vec![found];
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn acknowledged_writes_survive_a_crash_at_any_operation(
        seed in any::<u64>(),
        crash_after in 1..400_u64,
        operations in proptest::collection::vec(operation(), 1..40),
    ) {
        run(seed, crash_after, &operations);
    }
}

#[test]
fn a_full_disk_refuses_writes_and_takes_them_again_when_there_is_space() {
    let volume = FaultyVolume::new(Seed(7));
    let store = Store::open_on(Arc::new(volume.clone()), FILE).unwrap();
    store.commit(vec![put("a", None, 1)]).unwrap().wait().unwrap();
    volume.set_capacity(Some(volume.used_bytes()));
    let mut refused = None;
    for name in 0..20_000 {
        let batch = (0..64).map(|i| put(&format!("n{name}-{i}"), None, 2)).collect();
        if let Err(error) = store.commit(batch).unwrap().wait() {
            refused = Some(error);
            break;
        }
    }
    let refused = refused.expect("the disk fills up");
    assert!(matches!(refused, Error::NotDurable { full: true, .. }), "{refused}");
    let before = objects(&store);
    assert_eq!(before["a"], 1);
    volume.set_capacity(None);
    store.commit(vec![put("b", None, 3)]).unwrap().wait().unwrap();
    drop(store);
    let found = objects(&Store::open_on(Arc::new(volume.after_crash()), FILE).unwrap());
    assert_eq!(found.len(), before.len() + 1);
    assert_eq!(found["b"], 3);
}

#[test]
fn a_failed_sync_is_not_believed_afterwards() {
    for seed in 0..40 {
        let volume = FaultyVolume::new(Seed(seed));
        let store = Store::open_on(Arc::new(volume.clone()), FILE).unwrap();
        store.commit(vec![put("a", None, 1)]).unwrap().wait().unwrap();
        volume.fail_syncs(1);
        assert!(store.commit(vec![put("b", None, 2)]).unwrap().wait().is_err());
        assert!(store.get(&key("b")).is_none());
        store.commit(vec![put("c", None, 3)]).unwrap().wait().unwrap();
        drop(store);
        let found = objects(&Store::open_on(Arc::new(volume.after_crash()), FILE).unwrap());
        assert_eq!(found, Objects::from([("a".to_owned(), 1), ("c".to_owned(), 3)]), "seed {seed}");
    }
}

#[test]
fn a_second_handle_is_refused_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let store = Store::open(&path).unwrap();
    let error = Store::open(&path).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    store.close();
    Store::open(&path).unwrap();
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    std::fs::write(&path, vec![b'x'; 8192]).unwrap();
    let error = Store::open(&path).unwrap_err();
    assert!(error.to_string().contains("regatta.db"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), vec![b'x'; 8192]);
}
