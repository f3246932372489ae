//! What the disk does to clients: refusals, and what is there after a crash.

use crate::support::*;
use regatta_apiserver::{Engine, Registry};
use regatta_kit::{Cluster, ListOptions};
use regatta_store::{Store, faults::FaultyVolume};
use regatta_types::resource;
use regatta_types::seed::Seed;
use serde_json::{Value, json};
use std::sync::Arc;

fn open(volume: &FaultyVolume) -> Engine {
    let store = Store::open_on(Arc::new(volume.clone()), "regatta.redb").unwrap();
    Engine::new(store, Registry::builtin(), clock(), Seed(7))
}

async fn names(engine: &Engine) -> Vec<String> {
    let list = engine.list(&resource::CONFIG_MAPS, &ListOptions::default()).await.unwrap();
    let name = |object: &regatta_kit::Object| {
        object.decode::<Value>().unwrap()["metadata"]["name"].as_str().unwrap().to_owned()
    };
    list.items.iter().map(name).collect()
}

#[tokio::test]
async fn a_full_disk_refuses_writes_and_loses_nothing() {
    let volume = FaultyVolume::new(Seed(1));
    let engine = open(&volume);
    create(&engine, resource::NAMESPACES, json!({"metadata": {"name": "default"}})).await.unwrap();
    create(&engine, resource::CONFIG_MAPS, config_map("before", "1")).await.unwrap();
    volume.set_capacity(Some(volume.used_bytes()));
    let routes = routes(engine.clone());
    let large = "x".repeat(1_000_000);
    let mut refused = None;
    for n in 0..8 {
        let body = config_map(&format!("large-{n}"), &large).to_string();
        let answer = ask(&routes, "POST /api/v1/namespaces/default/configmaps", &[], &body).await;
        if answer.status != 201 {
            refused = Some((n, answer));
            break;
        }
    }
    let (n, answer) = refused.expect("the disk took more than it holds");
    assert_eq!(
        (answer.status.as_u16(), answer.json()["reason"].clone()),
        (507, json!("InsufficientStorage"))
    );
    let mut expected: Vec<String> = (0..n).map(|n| format!("large-{n}")).collect();
    expected.insert(0, "before".to_owned());
    assert_eq!(names(&engine).await, expected, "reads go on");
    volume.set_capacity(None);
    create(&engine, resource::CONFIG_MAPS, config_map("z-after", "1")).await.unwrap();
    expected.push("z-after".to_owned());
    assert_eq!(names(&engine).await, expected);
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_crash() {
    for seed in 0..8 {
        let volume = FaultyVolume::new(Seed(seed));
        let engine = open(&volume);
        create(&engine, resource::NAMESPACES, json!({"metadata": {"name": "default"}})).await.unwrap();
        volume.crash_at(volume.operations() + 20 + seed * 17);
        let mut acknowledged = Vec::new();
        for n in 0..200 {
            let name = format!("n{n:03}");
            match create(&engine, resource::CONFIG_MAPS, config_map(&name, "1")).await {
                Ok(_) => acknowledged.push(name),
                Err(_) => break,
            }
        }
        assert!(volume.has_crashed(), "seed {seed} never crashed");
        drop(engine);
        let left = names(&open(&volume.after_crash())).await;
        // One more may be there: it was written, but nobody was told.
        assert!(
            left.starts_with(&acknowledged),
            "seed {seed}: {acknowledged:?} is not the start of {left:?}"
        );
        assert!(left.len() <= acknowledged.len() + 1, "seed {seed}: {left:?}");
    }
}
