//! Watches on the wire: one JSON object a line, for as long as the client wants.

use super::{App, Call, table};
use crate::engine::watch::{Event, EventKind, Watching};
use crate::error::{bad_request, refuse, to_status};
use crate::registry::Kind;
use crate::selector::Selector;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::stream;
use regatta_kit::ApiError;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// How often a client that wants bookmarks gets one.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// How long a watch lasts whose client does not say; clients start the next one by themselves.
const TIMEOUT_SECONDS_DEFAULT: u64 = 3600;
/// Longest watch.
const TIMEOUT_SECONDS_MAX: u64 = 24 * 3600;
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// A bookmark wanted or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bookmarks {
    Yes,
    No,
}

struct Lines {
    app: Arc<App>,
    kind_at: (String, String, String),
    watching: Watching,
    query: super::query::Query,
    tables: Option<table::Headings>,
    bookmarks: Bookmarks,
    bookmark_at: Instant,
    ends_at: Instant,
    waiting: Option<Bytes>,
    ended: bool,
}

pub(super) fn answer(
    app: &Arc<App>,
    kind: &Kind,
    namespace: Option<&str>,
    selector: Selector,
    call: &Call,
) -> Result<Response, ApiError> {
    let query = &call.query;
    let version = query.number::<u64>("resourceVersion")?;
    let bookmarks = if query.is_set("allowWatchBookmarks") { Bookmarks::Yes } else { Bookmarks::No };
    let wants_initial = query.get("sendInitialEvents").is_some_and(|value| value == "true");
    if wants_initial
        && (query.get("resourceVersionMatch") != Some("NotOlderThan") || bookmarks == Bookmarks::No)
    {
        let problem =
            "sendInitialEvents requires resourceVersionMatch=NotOlderThan and allowWatchBookmarks=true";
        return Err(refuse(422, "Invalid", problem));
    }
    let seconds = query.number::<u64>("timeoutSeconds")?.unwrap_or(TIMEOUT_SECONDS_DEFAULT);
    if seconds > TIMEOUT_SECONDS_MAX {
        return Err(bad_request(format!("timeoutSeconds is at most {TIMEOUT_SECONDS_MAX}")));
    }
    // Without a version, or with "any", the state comes first and changes follow it without a gap.
    let start = version.filter(|version| *version > 0 && !wants_initial);
    let (initial, from) = match start {
        Some(version) => (None, version),
        None => {
            let page = app.engine.list_page(kind, namespace, &selector, 0, None)?;
            let events =
                page.entries.iter().map(|entry| Event { kind: EventKind::Added, json: entry.json.clone() });
            (Some(events.collect::<Vec<_>>()), page.version)
        }
    };
    let started = app.engine.start_watch(kind, namespace, selector, from);
    let watching = match started {
        Ok(watching) => watching,
        // Too old is an event of the watch, not a failure of the request.
        Err(error) if error.is_expired() => {
            return Ok(stream_response(Body::from(line("ERROR", &to_status(&error).to_string()))));
        }
        Err(error) => return Err(error),
    };
    let now = Instant::now();
    let resource = &kind.resource;
    let mut lines = Lines {
        app: app.clone(),
        kind_at: (resource.group.to_owned(), resource.version.to_owned(), resource.plural.to_owned()),
        watching,
        query: query.clone(),
        tables: table::is_wanted(&call.headers).then_some(table::Headings::Yes),
        bookmarks,
        bookmark_at: now + BOOKMARK_INTERVAL,
        ends_at: now + Duration::from_secs(seconds),
        waiting: None,
        ended: false,
    };
    if let Some(events) = initial {
        let mut first = lines.render(&events).to_vec();
        if wants_initial {
            first.extend_from_slice(&lines.bookmark(from, &json!({INITIAL_END: "true"})));
        }
        lines.waiting = (!first.is_empty()).then(|| first.into());
    }
    let body = stream::unfold(lines, |mut lines| async move {
        lines.next().await.map(|bytes| (Ok::<_, Infallible>(bytes), lines))
    });
    Ok(stream_response(Body::from_stream(body)))
}

fn stream_response(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn line(kind: &str, object: &str) -> Bytes {
    Bytes::from(format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n"))
}

impl Lines {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(bytes) = self.waiting.take() {
            return Some(bytes);
        }
        while !self.ended {
            let bookmark_at = if self.bookmarks == Bookmarks::Yes { self.bookmark_at } else { self.ends_at };
            tokio::select! {
                biased;
                () = sleep_until(self.ends_at) => return None,
                events = self.watching.next() => match events {
                    Ok(Some((events, _))) if events.is_empty() => {}
                    Ok(Some((events, _))) => return Some(self.render(&events)),
                    Ok(None) => return None,
                    Err(error) => return Some(self.fail(&error)),
                },
                () = sleep_until(bookmark_at) => {
                    self.bookmark_at = Instant::now() + BOOKMARK_INTERVAL;
                    match self.watching.ready() {
                        Ok((events, version)) => {
                            let mut bytes = self.render(&events).to_vec();
                            bytes.extend_from_slice(&self.bookmark(version, &Value::Null));
                            return Some(bytes.into());
                        }
                        Err(error) => return Some(self.fail(&error)),
                    }
                }
            }
        }
        None
    }

    fn fail(&mut self, error: &ApiError) -> Bytes {
        self.ended = true;
        line("ERROR", &to_status(error).to_string())
    }

    fn render(&mut self, events: &[Event]) -> Bytes {
        let mut bytes = Vec::new();
        for event in events {
            let object = std::str::from_utf8(&event.json).unwrap_or("null");
            match self.tables {
                None => bytes.extend_from_slice(&line(event.kind.as_str(), object)),
                Some(headings) => {
                    let (group, version, plural) = &self.kind_at;
                    let Some(kind) = self.app.engine.registry.find(group, version, plural) else { continue };
                    let now = self.app.engine.clock.now();
                    let meta = json!({"resourceVersion": version_of(&event.json)});
                    let table =
                        table::of(kind, std::iter::once(&event.json), &meta, &self.query, now, headings);
                    self.tables = Some(table::Headings::No);
                    bytes.extend_from_slice(&line(event.kind.as_str(), &table.to_string()));
                }
            }
        }
        bytes.into()
    }

    fn bookmark(&self, version: u64, annotations: &Value) -> Bytes {
        let (group, api_version, plural) = &self.kind_at;
        let Some(kind) = self.app.engine.registry.find(group, api_version, plural) else {
            return Bytes::new();
        };
        let mut meta = json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
        if !annotations.is_null() {
            meta["annotations"] = annotations.clone();
        }
        let object =
            json!({"kind": kind.resource.kind, "apiVersion": kind.resource.api_version(), "metadata": meta});
        line("BOOKMARK", &object.to_string())
    }
}

fn version_of(json: &[u8]) -> String {
    let object: Value = serde_json::from_slice(json).unwrap_or_default();
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}
