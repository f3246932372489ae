//! Events do not last.

use crate::support::*;
use regatta_apiserver::{EVENT_TTL_MS, EVENTS_MAX};
use regatta_kit::{Cluster, ListOptions};
use regatta_types::resource;
use serde_json::{Value, json};

fn event(name: &str, last: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default"}, "reason": "Started", "type": "Normal", "lastTimestamp": last,
        "involvedObject": {"kind": "Job", "name": "a", "namespace": "default"},
    })
}

async fn names(routes: &axum::Router) -> Vec<String> {
    let list = ask(routes, "GET /api/v1/namespaces/default/events", &[], "").await.json();
    let items = list["items"].as_array().unwrap();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn an_event_goes_an_hour_after_it_last_happened() {
    let clock = clock();
    let engine = engine_with(clock.clone()).await;
    let routes = routes(engine.clone());
    for name in ["once", "again"] {
        create(&engine, resource::EVENTS, event(name, "2026-11-30T12:00:00Z")).await.unwrap();
    }
    clock.advance_ms(EVENT_TTL_MS - 1);
    assert_eq!(names(&routes).await, ["again", "once"]);
    update(&engine, resource::EVENTS, event("again", "2026-11-30T12:59:00Z")).await.unwrap();
    clock.advance_ms(1);
    assert_eq!(names(&routes).await, ["again"]);
    clock.advance_ms(EVENT_TTL_MS);
    assert_eq!(names(&routes).await, Vec::<String>::new());
}

#[tokio::test]
async fn of_too_many_events_the_oldest_go() {
    let engine = engine().await;
    for n in 0..EVENTS_MAX + 5 {
        create(&engine, resource::EVENTS, event(&format!("e{n:06}"), "2026-11-30T12:00:00Z")).await.unwrap();
    }
    let list = engine.list(&resource::EVENTS, &ListOptions::default()).await.unwrap();
    assert_eq!(list.items.len(), EVENTS_MAX);
    assert_eq!(list.items[0].decode::<Value>().unwrap()["metadata"]["name"], "e000005");
}
