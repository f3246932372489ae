//! Deletion: finalizers, grace, owners, namespaces.

use crate::support::*;
use regatta_kit::{Cluster, DeleteOptions, ListOptions, Object};
use regatta_types::{ObjectRef, Uid, resource};
use serde_json::{Value, json};

fn pod_at(name: &str) -> ObjectRef {
    ObjectRef::namespaced(resource::PODS, "default", name)
}

fn owned_by(owner: &Value, name: &str) -> Value {
    let mut object = config_map(name, "");
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": owner["apiVersion"], "kind": owner["kind"],
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
    }]);
    object
}

#[tokio::test]
async fn finalizers_hold_an_object() {
    let engine = engine().await;
    let mut object = config_map("a", "1");
    object["metadata"]["finalizers"] = json!(["x.io/a"]);
    create(&engine, resource::CONFIG_MAPS, object).await.unwrap();
    engine.delete(&config_map_at("a"), &DeleteOptions::default()).await.unwrap();
    let mut held = get(&engine, &config_map_at("a")).await.unwrap();
    assert!(held["metadata"]["deletionTimestamp"].is_string());
    held["metadata"]["finalizers"] = json!(["x.io/a", "x.io/b"]);
    assert_eq!(
        update(&engine, resource::CONFIG_MAPS, held.clone()).await.unwrap_err().code,
        422,
        "no new ones"
    );
    held["metadata"]["finalizers"] = json!([]);
    update(&engine, resource::CONFIG_MAPS, held).await.unwrap();
    assert!(get(&engine, &config_map_at("a")).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn preconditions_protect_a_namesake() {
    let engine = engine().await;
    create(&engine, resource::CONFIG_MAPS, config_map("a", "1")).await.unwrap();
    let options = DeleteOptions { uid: Some(Uid::from("another")), ..DeleteOptions::default() };
    assert_eq!(engine.delete(&config_map_at("a"), &options).await.unwrap_err().code, 409);
    assert!(get(&engine, &config_map_at("a")).await.is_ok());
}

#[tokio::test]
async fn a_pod_that_never_had_a_node_goes_at_once() {
    let engine = engine().await;
    create(&engine, resource::PODS, pod("a")).await.unwrap();
    engine.delete(&pod_at("a"), &DeleteOptions::default()).await.unwrap();
    assert!(get(&engine, &pod_at("a")).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn a_pod_waits_for_its_runtime() {
    let engine = engine().await;
    create(&engine, resource::NODES, json!({"metadata": {"name": "node-1"}})).await.unwrap();
    create(&engine, resource::PODS, pod("a")).await.unwrap();
    engine.bind("default", "a", "node-1").await.unwrap();
    engine.delete(&pod_at("a"), &DeleteOptions::default()).await.unwrap();
    let going = get(&engine, &pod_at("a")).await.unwrap();
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(going["metadata"]["deletionTimestamp"], "2026-11-30T12:00:30Z");

    // A client may shorten the grace period, but force does not make processes die.
    let routes = routes(engine.clone());
    for (asked, left) in [(60, 30), (5, 5), (0, 1)] {
        let url = format!("DELETE /api/v1/namespaces/default/pods/a?gracePeriodSeconds={asked}");
        let answer = ask(&routes, &url, &[], "").await.json();
        assert_eq!(answer["metadata"]["deletionGracePeriodSeconds"], left, "{asked}");
    }
    let confirmed = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
    engine.delete(&pod_at("a"), &confirmed).await.unwrap();
    assert!(get(&engine, &pod_at("a")).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn a_pod_that_has_ended_or_lost_its_node_goes_at_once() {
    let engine = engine().await;
    let routes = routes(engine.clone());
    for (name, node) in [("ended", "node-1"), ("lost", "node-2")] {
        create(&engine, resource::PODS, pod(name)).await.unwrap();
        engine.bind("default", name, node).await.unwrap();
    }
    create(&engine, resource::NODES, json!({"metadata": {"name": "node-1"}})).await.unwrap();
    let mut ended = get(&engine, &pod_at("ended")).await.unwrap();
    ended["status"]["phase"] = json!("Succeeded");
    engine.update_status(&resource::PODS, Object::encode(&ended).unwrap()).await.unwrap();
    for (name, query) in [("ended", ""), ("lost", "?gracePeriodSeconds=0")] {
        ask(&routes, &format!("DELETE /api/v1/namespaces/default/pods/{name}{query}"), &[], "").await;
        assert!(get(&engine, &pod_at(name)).await.unwrap_err().is_not_found(), "{name}");
    }
}

#[tokio::test]
async fn what_an_object_owns_goes_with_it() {
    let engine = engine().await;
    let owner = create(&engine, resource::JOBS, job("owner")).await.unwrap();
    let child = create(&engine, resource::CONFIG_MAPS, owned_by(&owner, "child")).await.unwrap();
    create(&engine, resource::CONFIG_MAPS, owned_by(&child, "grandchild")).await.unwrap();
    let other = create(&engine, resource::JOBS, job("other")).await.unwrap();
    let mut shared = owned_by(&owner, "shared");
    let second = owned_by(&other, "x")["metadata"]["ownerReferences"][0].clone();
    shared["metadata"]["ownerReferences"].as_array_mut().unwrap().push(second);
    create(&engine, resource::CONFIG_MAPS, shared).await.unwrap();
    let at = ObjectRef::namespaced(resource::JOBS, "default", "owner");
    engine.delete(&at, &DeleteOptions::default()).await.unwrap();
    let left = engine.list(&resource::CONFIG_MAPS, &ListOptions::default()).await.unwrap();
    let left: Vec<Value> = left.items.iter().map(|item| item.decode().unwrap()).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(left[0]["metadata"]["name"], "shared", "it has another owner that is there");
}

#[tokio::test]
async fn what_comes_after_its_owner_went_goes_too() {
    let engine = engine().await;
    let owner = create(&engine, resource::JOBS, job("owner")).await.unwrap();
    let at = ObjectRef::namespaced(resource::JOBS, "default", "owner");
    engine.delete(&at, &DeleteOptions::default()).await.unwrap();
    create(&engine, resource::CONFIG_MAPS, owned_by(&owner, "late")).await.unwrap();
    assert!(get(&engine, &config_map_at("late")).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn orphans_stay() {
    let engine = engine().await;
    let owner = create(&engine, resource::JOBS, job("owner")).await.unwrap();
    create(&engine, resource::CONFIG_MAPS, owned_by(&owner, "child")).await.unwrap();
    let routes = routes(engine.clone());
    let url = "DELETE /apis/regatta.dev/v1alpha1/namespaces/default/jobs/owner?propagationPolicy=Orphan";
    assert_eq!(ask(&routes, url, &[], "").await.status, 200);
    let child = get(&engine, &config_map_at("child")).await.unwrap();
    assert_eq!(child["metadata"]["ownerReferences"], json!([]));
}

#[tokio::test]
async fn in_the_foreground_the_owner_waits() {
    let engine = engine().await;
    let owner = create(&engine, resource::JOBS, job("owner")).await.unwrap();
    create(&engine, resource::CONFIG_MAPS, owned_by(&owner, "quick")).await.unwrap();
    let mut slow = owned_by(&owner, "slow");
    slow["metadata"]["finalizers"] = json!(["x.io/a"]);
    create(&engine, resource::CONFIG_MAPS, slow).await.unwrap();
    let routes = routes(engine.clone());
    let url = "DELETE /apis/regatta.dev/v1alpha1/namespaces/default/jobs/owner?propagationPolicy=Foreground";
    let waiting = ask(&routes, url, &[], "").await.json();
    assert_eq!(waiting["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    assert!(get(&engine, &config_map_at("quick")).await.unwrap_err().is_not_found());
    let mut slow = get(&engine, &config_map_at("slow")).await.unwrap();
    slow["metadata"]["finalizers"] = json!([]);
    let at = ObjectRef::namespaced(resource::JOBS, "default", "owner");
    assert!(get(&engine, &at).await.is_ok());
    update(&engine, resource::CONFIG_MAPS, slow).await.unwrap();
    assert!(get(&engine, &at).await.unwrap_err().is_not_found());
    assert_eq!(ask(&routes, &url.replace("Foreground", "Sideways"), &[], "").await.status, 400);
}

#[tokio::test]
async fn a_namespace_goes_when_everything_in_it_has_gone() {
    let engine = engine().await;
    create(&engine, resource::NAMESPACES, json!({"metadata": {"name": "team"}})).await.unwrap();
    let mut held = config_map("held", "");
    held["metadata"]["namespace"] = json!("team");
    held["metadata"]["finalizers"] = json!(["x.io/a"]);
    let mut plain = config_map("plain", "");
    plain["metadata"]["namespace"] = json!("team");
    create(&engine, resource::CONFIG_MAPS, held).await.unwrap();
    create(&engine, resource::CONFIG_MAPS, plain.clone()).await.unwrap();

    let namespace = ObjectRef::cluster(resource::NAMESPACES, "team");
    engine.delete(&namespace, &DeleteOptions::default()).await.unwrap();
    assert_eq!(get(&engine, &namespace).await.unwrap()["status"]["phase"], "Terminating");
    let at = |name: &str| ObjectRef::namespaced(resource::CONFIG_MAPS, "team", name);
    assert!(get(&engine, &at("plain")).await.unwrap_err().is_not_found());
    plain["metadata"]["name"] = json!("late");
    assert_eq!(create(&engine, resource::CONFIG_MAPS, plain).await.unwrap_err().code, 403);

    let mut held = get(&engine, &at("held")).await.unwrap();
    held["metadata"]["finalizers"] = json!([]);
    update(&engine, resource::CONFIG_MAPS, held).await.unwrap();
    assert!(get(&engine, &namespace).await.unwrap_err().is_not_found());
    let protected = ObjectRef::cluster(resource::NAMESPACES, "default");
    assert_eq!(engine.delete(&protected, &DeleteOptions::default()).await.unwrap_err().code, 403);
}
