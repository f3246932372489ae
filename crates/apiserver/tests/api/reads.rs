//! Lists, selections and watches.

use crate::support::*;
use proptest::prelude::*;
use regatta_kit::{Cluster, DeleteOptions, ListOptions, WatchEvent};
use regatta_types::resource;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn labelled(name: &str, label: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "labels": {"app": label}}})
}

fn selecting(labels: &str) -> ListOptions {
    ListOptions { label_selector: Some(labels.to_owned()), ..ListOptions::default() }
}

#[tokio::test]
async fn objects_come_into_a_selection_and_leave_it() {
    let engine = engine().await;
    let (_, mut watch) = list_and_watch(&engine, resource::CONFIG_MAPS, &selecting("app=web")).await;
    create(&engine, resource::CONFIG_MAPS, labelled("a", "db")).await.unwrap();
    update(&engine, resource::CONFIG_MAPS, labelled("a", "web")).await.unwrap();
    assert_eq!(next_event(&mut watch).await, ("added", "a".to_owned()));
    let mut changed = labelled("a", "web");
    changed["data"] = json!({"x": "y"});
    update(&engine, resource::CONFIG_MAPS, changed).await.unwrap();
    assert_eq!(next_event(&mut watch).await, ("modified", "a".to_owned()));
    update(&engine, resource::CONFIG_MAPS, labelled("a", "db")).await.unwrap();
    assert_eq!(next_event(&mut watch).await, ("deleted", "a".to_owned()));
    engine.delete(&config_map_at("a"), &DeleteOptions::default()).await.unwrap();
    create(&engine, resource::CONFIG_MAPS, labelled("b", "web")).await.unwrap();
    assert_eq!(next_event(&mut watch).await, ("added", "b".to_owned()), "what was not shown does not go");
}

#[tokio::test]
async fn fields_select() {
    let engine = engine().await;
    for name in ["a", "b"] {
        create(&engine, resource::PODS, pod(name)).await.unwrap();
    }
    engine.bind("default", "b", "node-1").await.unwrap();
    let names = async |fields: &str| {
        let options = ListOptions { field_selector: Some(fields.to_owned()), ..ListOptions::default() };
        let list = engine.list(&resource::PODS, &options).await.unwrap();
        let name = |item: &regatta_kit::Object| {
            item.decode::<Value>().unwrap()["metadata"]["name"].as_str().unwrap().to_owned()
        };
        list.items.iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(names("spec.nodeName=node-1").await, ["b"]);
    assert_eq!(names("spec.nodeName=").await, ["a"]);
    assert_eq!(names("metadata.name=a").await, ["a"]);
    assert_eq!(names("status.phase!=Pending").await, Vec::<String>::new());
}

#[tokio::test]
async fn history_that_is_gone_is_said_to_be() {
    let engine = engine().await;
    for n in 0..regatta_store::HISTORY_EVENTS_MAX + 2 {
        let object = config_map("a", &n.to_string());
        let written = if n == 0 {
            create(&engine, resource::CONFIG_MAPS, object).await
        } else {
            update(&engine, resource::CONFIG_MAPS, object).await
        };
        written.unwrap();
    }
    let old = engine.watch(&resource::CONFIG_MAPS, &ListOptions::default(), "1").await;
    assert!(old.err().unwrap().is_expired());
    assert!(engine.watch(&resource::CONFIG_MAPS, &ListOptions::default(), "99999999").await.is_err());
}

/// Whoever lists and then watches knows, whatever happens meanwhile, what is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_and_its_watch_tell_everything_once() {
    let engine = engine().await;
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let engine = engine.clone();
            tokio::spawn(async move {
                for n in 0..200 {
                    let name = format!("w{writer}-{}", n % 7);
                    let object = config_map(&name, &n.to_string());
                    if n % 3 == 2 {
                        let _ = engine.delete(&config_map_at(&name), &DeleteOptions::default()).await;
                    } else if create(&engine, resource::CONFIG_MAPS, object.clone()).await.is_err() {
                        let _ = update(&engine, resource::CONFIG_MAPS, object).await;
                    }
                }
            })
        })
        .collect();
    let (items, mut watch) = list_and_watch(&engine, resource::CONFIG_MAPS, &ListOptions::default()).await;
    for writer in writers {
        writer.await.unwrap();
    }
    create(&engine, resource::CONFIG_MAPS, config_map("z-last", "")).await.unwrap();
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    let mut seen: BTreeMap<String, Value> = items.into_iter().map(|item| (name(&item), item)).collect();
    while !seen.contains_key("z-last") {
        match futures::StreamExt::next(&mut watch).await.unwrap().unwrap() {
            WatchEvent::Added(object) => {
                let object: Value = object.decode().unwrap();
                assert_eq!(seen.insert(name(&object), object.clone()), None, "added twice: {object}");
            }
            WatchEvent::Modified(object) => {
                let object: Value = object.decode().unwrap();
                let old = seen.insert(name(&object), object.clone());
                assert!(old.is_some_and(|old| version(&old) < version(&object)), "out of order: {object}");
            }
            WatchEvent::Deleted(object) => {
                let object: Value = object.decode().unwrap();
                assert!(seen.remove(&name(&object)).is_some(), "gone twice: {object}");
            }
            WatchEvent::Bookmark(_) => {}
        }
    }
    let now = engine.list(&resource::CONFIG_MAPS, &ListOptions::default()).await.unwrap();
    let now: Vec<Value> = now.items.iter().map(|item| item.decode().unwrap()).collect();
    assert_eq!(seen.into_values().collect::<Vec<_>>(), now);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_watchers_see_the_same_history() {
    const WATCHERS: usize = 200;
    const CHANGES: usize = 100;
    let engine = engine().await;
    let version =
        engine.list(&resource::CONFIG_MAPS, &ListOptions::default()).await.unwrap().resource_version;
    let mut watchers = Vec::new();
    for _ in 0..WATCHERS {
        let watch = engine.watch(&resource::CONFIG_MAPS, &ListOptions::default(), &version).await.unwrap();
        let history = futures::StreamExt::collect::<Vec<_>>(futures::StreamExt::take(watch, CHANGES));
        watchers.push(tokio::spawn(history));
    }
    for n in 0..CHANGES {
        let object = config_map(&format!("n{}", n % 10), &n.to_string());
        if n < 10 {
            create(&engine, resource::CONFIG_MAPS, object).await.unwrap();
        } else {
            update(&engine, resource::CONFIG_MAPS, object).await.unwrap();
        }
    }
    let mut histories = Vec::new();
    for watcher in watchers {
        let history: Vec<String> =
            watcher.await.unwrap().into_iter().map(|event| format!("{:?}", event.unwrap())).collect();
        histories.push(history);
    }
    assert_eq!(histories[0].len(), CHANGES);
    assert!(histories.iter().all(|history| *history == histories[0]));
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Pages put together are the list.
    #[test]
    fn pages_are_the_list(count in 0_usize..40, limit in 1_usize..12, selected in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async move {
            let engine = engine().await;
            for n in 0..count {
                let label = if n % 3 == 0 { "web" } else { "db" };
                create(&engine, resource::CONFIG_MAPS, labelled(&format!("n{n:02}"), label)).await.unwrap();
            }
            let routes = routes(engine);
            let selector = if selected { "&labelSelector=app%3Dweb" } else { "" };
            let base = format!("/api/v1/namespaces/default/configmaps?x=y{selector}");
            let whole = ask(&routes, &format!("GET {base}"), &[], "").await.json();
            let mut items = Vec::new();
            let mut next = String::new();
            loop {
                let page = ask(&routes, &format!("GET {base}&limit={limit}&continue={next}"), &[], "").await.json();
                let these = page["items"].as_array().unwrap();
                assert!(these.len() <= limit);
                items.extend(these.iter().cloned());
                match page["metadata"]["continue"].as_str() {
                    Some(token) => next = token.to_owned(),
                    None => break,
                }
            }
            assert_eq!(Value::from(items), whole["items"]);
        });
    }
}
