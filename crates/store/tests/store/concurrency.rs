//! Many writers and watchers at once: no update is lost, and everybody sees the same history.

use crate::common::{key, number, put};
use regatta_store::{Error, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const WRITERS: u64 = 8;
const INCREMENTS: u64 = 40;

fn increment(store: &Store, name: &str) -> u64 {
    loop {
        let latest = store.latest(&key(name)).expect("the object is there");
        match store.commit(vec![put(name, Some(latest.version), number(&latest) + 1)]) {
            Ok(pending) => return pending.wait().unwrap()[0].version,
            Err(error) => assert!(error.is_conflict(), "{error}"),
        }
    }
}

#[test]
fn no_update_is_lost_and_all_watchers_see_one_history() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("regatta.db")).unwrap();
    for name in NAMES {
        store.commit(vec![put(name, None, 0)]).unwrap().wait().unwrap();
    }
    let start = store.version();
    let total = WRITERS * INCREMENTS;
    let acknowledged = Arc::new(AtomicU64::new(0));
    let histories: Vec<Vec<(u64, u64)>> = std::thread::scope(|scope| {
        let watchers: Vec<_> = (0..4)
            .map(|_| {
                let mut watch = store.watch("things", start).unwrap();
                let acknowledged = acknowledged.clone();
                scope.spawn(move || {
                    let mut seen = Vec::new();
                    while (seen.len() as u64) < total {
                        let batch = futures::executor::block_on(watch.next()).unwrap().unwrap();
                        seen.extend(batch.changes.iter().map(|change| (change.version, number(&change.new))));
                    }
                    // What was acknowledged was visible by then.
                    assert!(acknowledged.load(Ordering::Acquire) <= total);
                    seen
                })
            })
            .collect();
        for writer in 0..WRITERS {
            let (store, acknowledged) = (store.clone(), acknowledged.clone());
            scope.spawn(move || {
                for turn in 0..INCREMENTS {
                    let name = NAMES[usize::try_from((writer + turn) % 4).unwrap()];
                    let version = increment(&store, name);
                    assert!(store.version() >= version, "acknowledged means visible");
                    acknowledged.fetch_add(1, Ordering::AcqRel);
                }
            });
        }
        watchers.into_iter().map(|watcher| watcher.join().unwrap()).collect()
    });
    assert!(histories.iter().all(|history| *history == histories[0]));
    assert!(histories[0].windows(2).all(|pair| pair[0].0 < pair[1].0), "in order, each once");
    let sum: u64 = NAMES.iter().map(|name| number(&store.get(&key(name)).unwrap())).sum();
    assert_eq!(sum, total);
}

#[test]
fn a_watcher_that_falls_behind_is_told_so() {
    let store = Store::in_memory();
    store.commit(vec![put("a", None, 0)]).unwrap().wait().unwrap();
    let mut slow = store.watch("things", store.version()).unwrap();
    for _ in 0..=regatta_store::HISTORY_EVENTS_MAX {
        increment(&store, "a");
    }
    assert!(matches!(slow.ready(), Err(Error::Expired { .. })));
}
