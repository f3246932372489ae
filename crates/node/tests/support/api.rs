//! A small API for tests: objects in memory, watches, merge patches, graceful deletion of pods. It behaves like the real
//! one where the node runtime looks.

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use regatta_kit::{
    ApiError, Cluster, DeleteOptions, ListOptions, Object, ObjectList, PatchKind, WatchEvent, WatchStream,
};
use regatta_types::{ObjectRef, Resource};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

type Key = (&'static str, String, String);

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<Key, Value>,
    /// Changes by version.
    log: Vec<(u64, &'static str, WatchKind, Value)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WatchKind {
    Applied,
    Deleted,
}

/// The API; a clone is the same one.
#[derive(Clone)]
pub(crate) struct Api {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
}

impl Api {
    pub(crate) fn new() -> Self {
        Self { state: Arc::default(), changed: watch::channel(0).0 }
    }

    /// Changes of one kind after a version, up to another.
    fn between(&self, plural: &str, after: u64, to: u64) -> Vec<Result<WatchEvent, ApiError>> {
        let state = self.state.lock().unwrap();
        let log = state
            .log
            .iter()
            .filter(|(version, kind, ..)| *version > after && *version <= to && *kind == plural);
        let event = |(_, _, kind, object): &(u64, &str, WatchKind, Value)| {
            let object = Object::encode(object)?;
            Ok(if *kind == WatchKind::Deleted {
                WatchEvent::Deleted(object)
            } else {
                WatchEvent::Modified(object)
            })
        };
        log.map(event).collect()
    }

    pub(crate) fn read(&self, resource: Resource, namespace: &str, name: &str) -> Option<Value> {
        self.state
            .lock()
            .unwrap()
            .objects
            .get(&(resource.plural, namespace.to_owned(), name.to_owned()))
            .cloned()
    }

    pub(crate) fn put(&self, resource: Resource, mut object: Value) {
        let key = key_of(&resource, &object);
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(new_uid());
        }
        self.store(&mut state, key, WatchKind::Applied, object);
    }

    /// Names of all objects of a kind.
    pub(crate) fn names(&self, resource: Resource) -> Vec<String> {
        let state = self.state.lock().unwrap();
        state.objects.keys().filter(|key| key.0 == resource.plural).map(|key| key.2.clone()).collect()
    }

    /// Waits until the object satisfies the condition.
    pub(crate) async fn wait_for(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        what: impl Fn(Option<&Value>) -> bool,
    ) -> Option<Value> {
        let mut changed = self.changed.subscribe();
        loop {
            let object = self.read(resource, namespace, name);
            if what(object.as_ref()) {
                return object;
            }
            changed.changed().await.unwrap();
        }
    }

    fn store(&self, state: &mut State, key: Key, kind: WatchKind, object: Value) {
        let (version, plural) = (state.version, key.0);
        match kind {
            WatchKind::Applied => drop(state.objects.insert(key, object.clone())),
            WatchKind::Deleted => drop(state.objects.remove(&key)),
        }
        state.log.push((version, plural, kind, object));
        self.changed.send_replace(version);
    }

    fn change(
        &self,
        at: &ObjectRef,
        change: impl FnOnce(&mut Value) -> Result<(), ApiError>,
    ) -> Result<Object, ApiError> {
        let mut state = self.state.lock().unwrap();
        let key = key_at(at);
        let old = state.objects.get(&key).cloned().ok_or_else(|| not_found(at))?;
        let mut new = old.clone();
        change(&mut new)?;
        if new != old {
            state.version += 1;
            new["metadata"]["resourceVersion"] = json!(state.version.to_string());
            self.store(&mut state, key, WatchKind::Applied, new.clone());
        }
        Object::encode(&new)
    }
}

/// Unique on this machine: tests that run side by side look for processes by it.
fn new_uid() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let ticks = regatta_agent::process::stat(std::process::id()).unwrap().start_ticks;
    format!("{}-{ticks}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn key_of(resource: &Resource, object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (resource.plural, text("namespace"), text("name"))
}

fn key_at(at: &ObjectRef) -> Key {
    (at.resource.plural, at.namespace.clone().unwrap_or_default(), at.name.clone())
}

fn not_found(at: &ObjectRef) -> ApiError {
    ApiError { code: 404, reason: "NotFound".to_owned(), message: format!("{at} not found") }
}

fn conflict(message: &str) -> ApiError {
    ApiError { code: 409, reason: "Conflict".to_owned(), message: message.to_owned() }
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let target = target.as_object_mut().unwrap();
    for (name, value) in patch {
        if value.is_null() {
            target.remove(name);
        } else {
            merge(target.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

#[async_trait]
impl Cluster for Api {
    async fn get(&self, at: &ObjectRef) -> Result<Object, ApiError> {
        let state = self.state.lock().unwrap();
        state.objects.get(&key_at(at)).ok_or_else(|| not_found(at)).and_then(Object::encode)
    }

    async fn list(&self, resource: &Resource, _options: &ListOptions) -> Result<ObjectList, ApiError> {
        let state = self.state.lock().unwrap();
        let items = state
            .objects
            .iter()
            .filter(|(key, _)| key.0 == resource.plural)
            .map(|(_, object)| Object::encode(object));
        Ok(ObjectList {
            items: items.collect::<Result<_, _>>()?,
            resource_version: state.version.to_string(),
        })
    }

    async fn watch(
        &self,
        resource: &Resource,
        _options: &ListOptions,
        version: &str,
    ) -> Result<WatchStream, ApiError> {
        let since: u64 = version.parse().unwrap();
        let plural = resource.plural;
        let api = self.clone();
        let stream =
            futures::stream::unfold((self.changed.subscribe(), since), move |(mut changed, since)| {
                let api = api.clone();
                async move {
                    let newest = *changed.wait_for(|version| *version > since).await.ok()?;
                    Some((futures::stream::iter(api.between(plural, since, newest)), (changed, newest)))
                }
            });
        Ok(stream.flatten().boxed())
    }

    async fn create(&self, resource: &Resource, object: Object) -> Result<Object, ApiError> {
        let value: Value = object.decode()?;
        let key = key_of(resource, &value);
        if self.state.lock().unwrap().objects.contains_key(&key) {
            return Err(ApiError {
                code: 409,
                reason: "AlreadyExists".to_owned(),
                message: format!("{key:?} exists"),
            });
        }
        self.put(*resource, value);
        Ok(object)
    }

    async fn update(&self, _resource: &Resource, _object: Object) -> Result<Object, ApiError> {
        Err(conflict("the node runtime updates nothing"))
    }

    async fn update_status(&self, _resource: &Resource, _object: Object) -> Result<Object, ApiError> {
        Err(conflict("the node runtime updates nothing"))
    }

    async fn patch(&self, at: &ObjectRef, _kind: PatchKind, body: Bytes) -> Result<Object, ApiError> {
        let mut patch: Value = serde_json::from_slice(&body).unwrap();
        patch.as_object_mut().unwrap().remove("status");
        self.change(at, |object| {
            merge(object, &patch);
            Ok(())
        })
    }

    async fn patch_status(&self, at: &ObjectRef, _kind: PatchKind, body: Bytes) -> Result<Object, ApiError> {
        let patch: Value = serde_json::from_slice(&body).unwrap();
        self.change(at, |object| {
            let uid = &patch["metadata"]["uid"];
            if !uid.is_null() && *uid != object["metadata"]["uid"] {
                return Err(conflict("another uid"));
            }
            merge(&mut object["status"], &patch["status"]);
            Ok(())
        })
    }

    async fn bind(&self, _namespace: &str, _pod: &str, _node: &str) -> Result<(), ApiError> {
        Err(conflict("the node runtime binds nothing"))
    }

    async fn delete(&self, at: &ObjectRef, options: &DeleteOptions) -> Result<(), ApiError> {
        let key = key_at(at);
        let old = self.read(at.resource, &key.1, &key.2).ok_or_else(|| not_found(at))?;
        if options.uid.as_ref().is_some_and(|uid| old["metadata"]["uid"] != json!(uid)) {
            return Err(conflict("another uid"));
        }
        let grace = options.grace_period_seconds.unwrap_or(30);
        let is_graceful = at.resource.plural == "pods" && grace > 0 && !old["spec"]["nodeName"].is_null();
        if is_graceful {
            let patch = json!({"metadata": {"deletionTimestamp": "2026-11-30T12:00:00Z", "deletionGracePeriodSeconds": grace}});
            return self
                .change(at, |object| {
                    merge(object, &patch);
                    Ok(())
                })
                .map(drop);
        }
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        self.store(&mut state, key, WatchKind::Deleted, old);
        Ok(())
    }
}
