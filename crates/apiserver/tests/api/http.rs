//! The wire: codes, content types, discovery, tables, streams.

use crate::support::*;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use regatta_types::resource;
use serde_json::{Value, json};
use tower::ServiceExt;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const JOBS: &str = "/apis/regatta.dev/v1alpha1/namespaces/default/jobs";

#[tokio::test]
async fn refusals_are_status_objects() {
    let engine = engine().await;
    let routes = routes(engine.clone());
    create(&engine, resource::CONFIG_MAPS, config_map("a", "1")).await.unwrap();
    let check = async |request: &str, headers: &[(&str, &str)], body: &str, code: u16, reason: &str| {
        let answer = ask(&routes, request, headers, body).await;
        assert_eq!(answer.status, code, "{request}: {}", answer.text);
        let status = answer.json();
        assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(code)), "{request}");
        assert_eq!(status["reason"], reason, "{request}");
    };
    let post = format!("POST {MAPS}");
    let patch = format!("PATCH {MAPS}/a");
    let whole = config_map("a", "1").to_string();
    check("GET /api/v1/pods", &[("authorization", "Bearer no")], "", 401, "Unauthorized").await;
    check("GET /extra", &[("authorization", "")], "", 401, "Unauthorized").await;
    check(&format!("GET {MAPS}/b"), &[], "", 404, "NotFound").await;
    check("GET /apis/apps/v1/namespaces/default/deployments", &[], "", 404, "NotFound").await;
    check("GET /api/v1/namespaces/default/services", &[], "", 404, "NotFound").await;
    check(&post, &[], &whole, 409, "AlreadyExists").await;
    check(&post, &[("content-type", "text/plain")], &whole, 415, "UnsupportedMediaType").await;
    let protobuf = ("content-type", "application/vnd.kubernetes.protobuf");
    check(&post, &[protobuf], "k8s", 400, "BadRequest").await;
    let a_pod = "k8s\0\n\u{9}\n\u{2}v1\u{12}\u{3}Pod";
    check("POST /api/v1/namespaces/default/pods", &[protobuf], a_pod, 415, "UnsupportedMediaType").await;
    check(&post, &[], "{", 400, "BadRequest").await;
    check("POST /api/v1/configmaps", &[], &whole, 405, "MethodNotAllowed").await;
    check(&post, &[], &"x".repeat((3 << 20) + 1), 413, "RequestEntityTooLarge").await;
    check(&format!("GET {MAPS}"), &[("accept", "application/xml")], "", 406, "NotAcceptable").await;
    check(&format!("GET {MAPS}?labelSelector=a+in"), &[], "", 400, "BadRequest").await;
    check(&format!("GET {MAPS}?fieldSelector=spec.x%3D1"), &[], "", 400, "BadRequest").await;
    check(&format!("GET {MAPS}?resourceVersion=999"), &[], "", 504, "Timeout").await;
    check(&format!("GET {MAPS}?resourceVersion=1&resourceVersionMatch=Exact"), &[], "", 410, "Expired").await;
    check(&format!("GET {MAPS}?continue=nonsense"), &[], "", 400, "BadRequest").await;
    check(&patch, &[("content-type", "application/apply-patch+yaml")], "{}", 415, "UnsupportedMediaType")
        .await;
    check(&patch, &[("content-type", "application/json")], "{}", 415, "UnsupportedMediaType").await;
    check("GET /panic", &[], "", 500, "InternalError").await;
    check("GET /api/v1/namespaces/default/pods/a/log", &[], "", 404, "NotFound").await;
    let answer = ask(&routes, "GET /nowhere", &[], "").await;
    assert_eq!((answer.status.as_u16(), answer.text.as_str()), (404, "404 page not found\n"));
}

#[tokio::test]
async fn health_and_version_are_open_and_the_rest_is_not() {
    let routes = routes(engine().await);
    for (path, code) in [
        ("/livez", 200),
        ("/readyz", 200),
        ("/healthz", 200),
        ("/version", 200),
        ("/api", 401),
        ("/openapi/v3", 401),
    ] {
        let answer = ask(&routes, &format!("GET {path}"), &[("authorization", "")], "").await;
        assert_eq!(answer.status, code, "{path}");
    }
    assert_eq!(ask(&routes, "GET /extra", &[], "").await.text, "extra");
}

#[tokio::test]
async fn discovery_has_both_forms() {
    let routes = routes(engine().await);
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
    let answer = ask(&routes, "GET /apis", &[("accept", accept)], "").await;
    let kind = answer.headers["content-type"].to_str().unwrap().to_owned();
    assert_eq!(kind, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    let document = answer.json();
    let groups: Vec<&str> = document["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(groups, ["coordination.k8s.io", "regatta.dev"]);
    let core = ask(&routes, "GET /api", &[("accept", accept)], "").await.json();
    assert_eq!(core["items"][0]["versions"][0]["version"], "v1");

    assert_eq!(ask(&routes, "GET /api", &[], "").await.json()["kind"], "APIVersions");
    assert_eq!(ask(&routes, "GET /apis", &[], "").await.json()["kind"], "APIGroupList");
    assert_eq!(ask(&routes, "GET /apis/regatta.dev", &[], "").await.json()["kind"], "APIGroup");
    let own = ask(&routes, "GET /apis/regatta.dev/v1alpha1", &[], "").await.json();
    let names: Vec<&str> =
        own["resources"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"jobs") && names.contains(&"jobs/status"), "{names:?}");
}

#[tokio::test]
async fn openapi_says_that_the_server_checks_fields() {
    let routes = routes(engine().await);
    let index = ask(&routes, "GET /openapi/v3", &[], "").await.json();
    for (group, _) in index["paths"].as_object().unwrap() {
        let document = ask(&routes, &format!("GET /openapi/v3/{group}"), &[], "").await.json();
        for (path, item) in document["paths"].as_object().unwrap() {
            let Some(patch) = item.get("patch") else { continue };
            let parameters = patch["parameters"].as_array().unwrap();
            assert!(parameters.iter().any(|p| p["name"] == "fieldValidation"), "{path}");
            assert!(patch["x-kubernetes-group-version-kind"]["kind"].is_string(), "{path}");
        }
    }
    assert_eq!(ask(&routes, "GET /openapi/v2", &[], "").await.status, 404);
}

#[tokio::test]
async fn fields_are_validated_as_asked() {
    let routes = routes(engine().await);
    let mut object = job("a");
    object["spec"]["quue"] = json!("x");
    let body = object.to_string();
    let strict = ask(&routes, &format!("POST {JOBS}?fieldValidation=Strict"), &[], &body).await;
    assert_eq!(strict.status, 400);
    assert!(
        strict.json()["message"].as_str().unwrap().contains("did you mean \"queue\"?"),
        "{}",
        strict.text
    );
    let dry = ask(&routes, &format!("POST {JOBS}?dryRun=All"), &[], &body).await;
    assert_eq!(dry.status, 201);
    assert!(dry.headers["warning"].to_str().unwrap().contains("spec.quue"));
    assert_eq!(ask(&routes, &format!("GET {JOBS}/a"), &[], "").await.status, 404, "a dry run stores nothing");
    let quiet = ask(&routes, &format!("POST {JOBS}?fieldValidation=Ignore"), &[], &body).await;
    assert!(quiet.status == 201 && !quiet.headers.contains_key("warning"));
}

#[tokio::test]
async fn bodies_may_be_yaml_or_have_no_type_at_all() {
    let routes = routes(engine().await);
    let yaml = "metadata:\n  name: a\ndata:\n  key: \"1\"\n";
    let made = ask(&routes, &format!("POST {MAPS}"), &[("content-type", "application/yaml")], yaml).await;
    assert_eq!(made.status, 201, "{}", made.text);
    assert_eq!(made.json()["kind"], "ConfigMap");
    let bare = ask(&routes, &format!("POST {MAPS}"), &[], r#"{"metadata":{"name":"b"}}"#).await;
    assert_eq!(bare.json()["metadata"]["namespace"], "default");
}

#[tokio::test]
async fn tables_are_what_kubectl_prints() {
    let engine = engine().await;
    let routes = routes(engine.clone());
    create(&engine, resource::PODS, pod("a")).await.unwrap();
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
    let table = ask(&routes, "GET /api/v1/pods", &[("accept", accept)], "").await.json();
    assert_eq!(table["kind"], "Table");
    let names: Vec<&str> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names[..5], ["Name", "Ready", "Status", "Restarts", "Age"]);
    assert_eq!(
        table["rows"][0]["cells"].as_array().unwrap()[..5],
        ["a", "0/1", "Pending", "0", "0s"].map(Value::from)
    );
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
}

#[tokio::test]
async fn patches_by_content_type() {
    let engine = engine().await;
    let routes = routes(engine.clone());
    create(&engine, resource::CONFIG_MAPS, config_map("a", "1")).await.unwrap();
    let patch = async |kind: &str, body: &str| {
        let answer = ask(&routes, &format!("PATCH {MAPS}/a"), &[("content-type", kind)], body).await;
        assert_eq!(answer.status, 200, "{kind}: {}", answer.text);
        answer.json()["data"].clone()
    };
    let json = r#"[{"op":"add","path":"/data/b","value":"2"}]"#;
    assert_eq!(patch("application/json-patch+json", json).await, json!({"key": "1", "b": "2"}));
    let merge = r#"{"data":{"b":null}}"#;
    assert_eq!(patch("application/merge-patch+json", merge).await, json!({"key": "1"}));
    let strategic = r#"{"data":{"$patch":"replace","c":"3"}}"#;
    assert_eq!(patch("application/strategic-merge-patch+json", strategic).await, json!({"c": "3"}));
}

/// Lines of a watch until `count` have come.
async fn watch_lines(routes: &axum::Router, path: &str, count: usize) -> Vec<Value> {
    let request = Request::builder().uri(path).header("authorization", format!("Bearer {TOKEN}"));
    let response = routes.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    let mut text = String::new();
    while text.matches('\n').count() < count {
        let frame = body.frame().await.expect("the watch ended early").unwrap();
        text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
    }
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_watch_can_start_with_what_is_there() {
    let engine = engine().await;
    let routes = routes(engine.clone());
    create(&engine, resource::CONFIG_MAPS, config_map("a", "1")).await.unwrap();
    let path = format!(
        "{MAPS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    let lines = watch_lines(&routes, &path, 2).await;
    assert_eq!(lines[0]["type"], "ADDED");
    assert_eq!(lines[1]["type"], "BOOKMARK");
    assert_eq!(lines[1]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(lines[1]["object"]["metadata"]["resourceVersion"], "3");
    let refused = ask(&routes, &format!("GET {MAPS}?watch=true&sendInitialEvents=true"), &[], "").await;
    assert_eq!(refused.status, 422);
}

#[tokio::test]
async fn a_watch_tells_changes_and_ends_in_time() {
    let engine = engine().await;
    let routes = routes(engine.clone());
    create(&engine, resource::CONFIG_MAPS, config_map("a", "1")).await.unwrap();
    update(&engine, resource::CONFIG_MAPS, config_map("a", "2")).await.unwrap();
    let lines = watch_lines(&routes, &format!("{MAPS}?watch=true&resourceVersion=2"), 2).await;
    assert_eq!([&lines[0]["type"], &lines[1]["type"]], ["ADDED", "MODIFIED"]);
    let none =
        ask(&routes, &format!("GET {MAPS}?watch=true&resourceVersion=4&timeoutSeconds=0"), &[], "").await;
    assert_eq!((none.status.as_u16(), none.text.as_str()), (200, ""));
}

#[tokio::test]
async fn a_watch_that_is_too_old_says_so_in_the_stream() {
    let engine = engine().await;
    let routes = routes(engine.clone());
    create(&engine, resource::CONFIG_MAPS, config_map("a", "x")).await.unwrap();
    for n in 0..regatta_store::HISTORY_EVENTS_MAX + 1 {
        update(&engine, resource::CONFIG_MAPS, config_map("a", &n.to_string())).await.unwrap();
    }
    let lines = watch_lines(&routes, &format!("{MAPS}?watch=true&resourceVersion=1"), 1).await;
    assert_eq!((&lines[0]["type"], &lines[0]["object"]["code"]), (&json!("ERROR"), &json!(410)));
}

#[tokio::test]
async fn deletions_answer_as_clients_expect() {
    let engine = engine().await;
    let routes = routes(engine.clone());
    let made = create(&engine, resource::CONFIG_MAPS, config_map("a", "1")).await.unwrap();
    create(&engine, resource::PODS, pod("a")).await.unwrap();
    let options = r#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}"#;
    let answer = ask(&routes, &format!("DELETE {MAPS}/a"), &[], options).await.json();
    assert_eq!((&answer["kind"], &answer["status"]), (&json!("Status"), &json!("Success")));
    assert_eq!(answer["details"]["uid"], made["metadata"]["uid"]);
    let answer = ask(&routes, "DELETE /api/v1/namespaces/default/pods/a", &[], "").await.json();
    assert_eq!(answer["kind"], "Pod");
    for name in ["a", "b", "c"] {
        create(&engine, resource::CONFIG_MAPS, config_map(name, "1")).await.unwrap();
    }
    let gone = ask(&routes, &format!("DELETE {MAPS}?fieldSelector=metadata.name!%3Db"), &[], "").await.json();
    assert_eq!(gone["items"].as_array().unwrap().len(), 2);
    assert_eq!(
        ask(&routes, &format!("GET {MAPS}"), &[], "").await.json()["items"].as_array().unwrap().len(),
        1
    );
}

#[tokio::test]
async fn logs_are_text_and_bindings_bind() {
    let engine = engine().await;
    let routes = routes(engine.clone());
    create(&engine, resource::PODS, pod("a")).await.unwrap();
    let pod = "/api/v1/namespaces/default/pods/a";
    let log = ask(&routes, &format!("GET {pod}/log?tailLines=2"), &[], "").await;
    assert_eq!(log.headers["content-type"], "text/plain");
    assert_eq!(log.text, "a line 2\na line 3\n");
    let binding = r#"{"target":{"kind":"Node","name":"node-1"}}"#;
    assert_eq!(ask(&routes, &format!("POST {pod}/binding"), &[], binding).await.status, 201);
    assert_eq!(ask(&routes, &format!("GET {pod}"), &[], "").await.json()["spec"]["nodeName"], "node-1");
    let exec = ask(&routes, &format!("POST {pod}/exec?command=x&stdout=true"), &[], "").await;
    assert_eq!(exec.status, 400, "other protocols than WebSocket are refused");
}
