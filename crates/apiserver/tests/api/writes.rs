//! Create, update, patch: who may change what, and what changes by itself.

use crate::support::*;
use bytes::Bytes;
use regatta_kit::{Cluster, Object, PatchKind};
use regatta_types::{ObjectRef, resource};
use serde_json::{Value, json};

#[tokio::test]
async fn the_server_gives_identity_and_time() {
    let engine = engine().await;
    let made = create(&engine, resource::CONFIG_MAPS, config_map("a", "1")).await.unwrap();
    assert_eq!(made["kind"], "ConfigMap");
    assert_eq!(made["apiVersion"], "v1");
    assert_eq!(made["metadata"]["creationTimestamp"], "2026-11-30T12:00:00Z");
    assert_eq!(made["metadata"]["uid"].as_str().unwrap().len(), 36);
    let other = create(&engine, resource::CONFIG_MAPS, config_map("b", "1")).await.unwrap();
    assert_ne!(made["metadata"]["uid"], other["metadata"]["uid"]);
    let again = create(&engine, resource::CONFIG_MAPS, config_map("a", "2")).await.unwrap_err();
    assert!(again.is_already_exists(), "{again:?}");
}

#[tokio::test]
async fn names_are_made_from_a_prefix() {
    let engine = engine().await;
    let object = json!({"metadata": {"generateName": "run-", "namespace": "default"}});
    let first = create(&engine, resource::CONFIG_MAPS, object.clone()).await.unwrap();
    let second = create(&engine, resource::CONFIG_MAPS, object).await.unwrap();
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name(&first).starts_with("run-") && name(&first).len() == 9, "{first}");
    assert_ne!(name(&first), name(&second));
}

#[tokio::test]
async fn what_cannot_be_created() {
    let engine = engine().await;
    let check = async |resource, object: Value, code: u16, part: &str| {
        let error = create(&engine, resource, object.clone()).await.expect_err(&object.to_string());
        assert_eq!(error.code, code, "{object}: {error}");
        assert!(error.message.contains(part), "{object}: {error}");
    };
    let in_namespace = |namespace: &str| json!({"metadata": {"name": "a", "namespace": namespace}});
    check(resource::CONFIG_MAPS, in_namespace("nowhere"), 404, "namespaces \"nowhere\" not found").await;
    check(resource::CONFIG_MAPS, json!({"metadata": {"namespace": "default"}}), 422, "name or generateName")
        .await;
    check(
        resource::CONFIG_MAPS,
        json!({"metadata": {"name": "A_b", "namespace": "default"}}),
        422,
        "RFC 1123",
    )
    .await;
    check(resource::NAMESPACES, json!({"metadata": {"name": "a.b"}}), 422, "").await;
    check(resource::PODS, in_namespace("default"), 422, "spec").await;
    let versioned = json!({"metadata": {"name": "a", "namespace": "default", "resourceVersion": "3"}});
    check(resource::CONFIG_MAPS, versioned, 400, "resourceVersion").await;
    let other_kind = json!({"kind": "Secret", "metadata": {"name": "a", "namespace": "default"}});
    check(resource::CONFIG_MAPS, other_kind, 400, "Secret").await;
    let mut wrong = job("a");
    wrong["spec"]["roles"][0]["replicas"] = json!("two");
    check(resource::JOBS, wrong, 422, "spec.roles[0].replicas").await;
}

#[tokio::test]
async fn a_write_that_changes_nothing_makes_no_version() {
    let engine = engine().await;
    let made = create(&engine, resource::CONFIG_MAPS, config_map("a", "1")).await.unwrap();
    let same = update(&engine, resource::CONFIG_MAPS, made.clone()).await.unwrap();
    assert_eq!(same, made);
    let patch = Bytes::from_static(b"{\"data\":{\"key\":\"1\"}}");
    let patched = engine.patch(&config_map_at("a"), PatchKind::Merge, patch).await.unwrap();
    assert_eq!(patched.decode::<Value>().unwrap(), made);
}

#[tokio::test]
async fn a_stale_writer_is_told() {
    let engine = engine().await;
    let made = create(&engine, resource::CONFIG_MAPS, config_map("a", "1")).await.unwrap();
    let mut newer = made.clone();
    newer["data"]["key"] = json!("2");
    update(&engine, resource::CONFIG_MAPS, newer).await.unwrap();
    let mut stale = made;
    stale["data"]["key"] = json!("3");
    let error = update(&engine, resource::CONFIG_MAPS, stale.clone()).await.unwrap_err();
    assert_eq!((error.code, error.reason.as_str()), (409, "Conflict"));
    // Without a version the writer does not care.
    stale["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let written = update(&engine, resource::CONFIG_MAPS, stale).await.unwrap();
    assert_eq!(written["data"]["key"], "3");
}

#[tokio::test]
async fn status_and_the_rest_are_written_apart() {
    let engine = engine().await;
    let mut object = job("a");
    object["status"] = json!({"phase": "Succeeded"});
    let made = create(&engine, resource::JOBS, object).await.unwrap();
    assert_eq!(made["status"], Value::Null, "a new job has no status");
    assert_eq!(made["metadata"]["generation"], 1);

    let mut both = made;
    both["status"] = json!({"phase": "Running"});
    both["spec"]["priority"] = json!(5);
    let encoded = Object::encode(&both).unwrap();
    let after: Value = engine.update_status(&resource::JOBS, encoded).await.unwrap().decode().unwrap();
    assert_eq!((&after["status"]["phase"], &after["spec"]["priority"]), (&json!("Running"), &Value::Null));
    assert_eq!(after["metadata"]["generation"], 1);

    both["metadata"]["resourceVersion"] = after["metadata"]["resourceVersion"].clone();
    both["status"] = json!({"phase": "Failed"});
    let after = update(&engine, resource::JOBS, both).await.unwrap();
    assert_eq!((&after["status"]["phase"], &after["spec"]["priority"]), (&json!("Running"), &json!(5)));
    assert_eq!(after["metadata"]["generation"], 2);
}

#[tokio::test]
async fn unknown_fields_of_a_job_are_not_stored() {
    let engine = engine().await;
    let mut object = job("a");
    object["spec"]["quue"] = json!("x");
    let made = create(&engine, resource::JOBS, object).await.unwrap();
    assert_eq!(made["spec"]["quue"], Value::Null);
}

#[tokio::test]
async fn what_the_server_owns_stays() {
    let engine = engine().await;
    let made = create(&engine, resource::CONFIG_MAPS, config_map("a", "1")).await.unwrap();
    let patch = json!({"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z", "labels": {"x": "y"}, "generateName": "b-"}});
    let patched =
        engine.patch(&config_map_at("a"), PatchKind::Merge, patch.to_string().into()).await.unwrap();
    let patched: Value = patched.decode().unwrap();
    assert_eq!(patched["metadata"]["creationTimestamp"], made["metadata"]["creationTimestamp"]);
    assert_eq!(patched["metadata"]["labels"]["x"], "y");
    let mut other = made;
    other["metadata"]["uid"] = json!("other");
    let error = update(&engine, resource::CONFIG_MAPS, other).await.unwrap_err();
    assert_eq!(error.code, 409, "another object of that name is not this one: {error}");
}

#[tokio::test]
async fn a_pod_is_bound_once() {
    let engine = engine().await;
    create(&engine, resource::PODS, pod("a")).await.unwrap();
    engine.bind("default", "a", "node-1").await.unwrap();
    let bound = get(&engine, &ObjectRef::namespaced(resource::PODS, "default", "a")).await.unwrap();
    assert_eq!(bound["spec"]["nodeName"], "node-1");
    assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
    assert_eq!(engine.bind("default", "a", "node-2").await.unwrap_err().code, 409);
    assert_eq!(engine.bind("default", "b", "node-2").await.unwrap_err().code, 404);
}

#[tokio::test]
async fn concurrent_patches_are_all_there() {
    let engine = engine().await;
    create(&engine, resource::CONFIG_MAPS, config_map("a", "1")).await.unwrap();
    let writers: Vec<_> = (0..32)
        .map(|n| {
            let engine = engine.clone();
            tokio::spawn(async move {
                let patch = json!({"data": {format!("k{n}"): "v"}}).to_string();
                engine.patch(&config_map_at("a"), PatchKind::Merge, patch.into()).await.unwrap();
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let object = get(&engine, &config_map_at("a")).await.unwrap();
    assert_eq!(object["data"].as_object().unwrap().len(), 33);
}

/// Many writers count in a few objects, each from the version that it read: no count is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_update_is_lost() {
    const WRITERS: usize = 64;
    const OBJECTS: usize = 8;
    const ROUNDS: usize = 5;
    let engine = engine().await;
    for n in 0..OBJECTS {
        create(&engine, resource::CONFIG_MAPS, config_map(&format!("c{n}"), "0")).await.unwrap();
    }
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let engine = engine.clone();
            tokio::spawn(async move {
                for round in 0..ROUNDS {
                    let at = config_map_at(&format!("c{}", (writer + round) % OBJECTS));
                    loop {
                        let mut object = get(&engine, &at).await.unwrap();
                        let count: u64 = object["data"]["key"].as_str().unwrap().parse().unwrap();
                        object["data"]["key"] = json!((count + 1).to_string());
                        match update(&engine, resource::CONFIG_MAPS, object).await {
                            Ok(_) => break,
                            Err(error) => assert!(error.is_conflict(), "{error}"),
                        }
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let mut sum = 0;
    for n in 0..OBJECTS {
        let object = get(&engine, &config_map_at(&format!("c{n}"))).await.unwrap();
        sum += object["data"]["key"].as_str().unwrap().parse::<usize>().unwrap();
    }
    assert_eq!(sum, WRITERS * ROUNDS);
}
