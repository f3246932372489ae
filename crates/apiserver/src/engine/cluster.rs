//! The engine behind the kit's door: what controllers in this process use. Same rules as over HTTP.

use super::delete::{Deletion, Origin};
use super::watch::EventKind;
use super::write::Part;
use super::{Engine, WriteOptions, key_of};
use crate::error::{bad_request, no_such_resource};
use crate::object::{meta_str, parse_object};
use crate::patch::PatchType;
use crate::registry::Kind;
use crate::selector::Selector;
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use regatta_kit::{
    ApiError, Cluster, DeleteOptions, ListOptions, Object, ObjectList, PatchKind, WatchEvent, WatchStream,
};
use regatta_types::{ObjectRef, Resource};
use serde_json::Value;
use std::collections::VecDeque;

/// Who writes when a controller of this process does.
const USER: &str = "system:regatta";

fn options() -> WriteOptions {
    WriteOptions { user: USER.to_owned(), ..WriteOptions::default() }
}

impl Engine {
    fn kind(&self, resource: &Resource) -> Result<&Kind, ApiError> {
        self.registry.of(resource).ok_or_else(no_such_resource)
    }

    fn selector(kind: &Kind, options: &ListOptions) -> Result<Selector, ApiError> {
        Selector::parse(options.label_selector.as_deref(), options.field_selector.as_deref(), kind.fields)
    }

    async fn replace_part(
        &self,
        resource: &Resource,
        object: &Object,
        part: Part,
    ) -> Result<Object, ApiError> {
        let kind = self.kind(resource)?;
        let value = parse_object(object)?;
        let namespace = meta_str(&value, "namespace");
        let key = key_of(kind, kind.is_namespaced().then_some(namespace), meta_str(&value, "name"));
        self.replace(kind, &key, part, value, &options()).await.map(|written| Object(written.json))
    }

    async fn patch_part(
        &self,
        at: &ObjectRef,
        kind: PatchKind,
        body: &[u8],
        part: Part,
    ) -> Result<Object, ApiError> {
        let patch: Value =
            serde_json::from_slice(body).map_err(|e| bad_request(format!("the patch is not JSON: {e}")))?;
        let patch_type = match kind {
            PatchKind::Merge => PatchType::Merge,
            PatchKind::Json => PatchType::Json,
        };
        let kind = self.kind(&at.resource)?;
        let key = key_of(kind, at.namespace.as_deref(), &at.name);
        let written = self.patch_object(kind, &key, part, (patch_type, &patch), &options()).await?;
        Ok(Object(written.json))
    }
}

#[async_trait]
impl Cluster for Engine {
    async fn get(&self, at: &ObjectRef) -> Result<Object, ApiError> {
        let kind = self.kind(&at.resource)?;
        self.get_entry(kind, at.namespace.as_deref(), &at.name).map(|entry| Object(entry.json.clone()))
    }

    async fn list(&self, resource: &Resource, options: &ListOptions) -> Result<ObjectList, ApiError> {
        let kind = self.kind(resource)?;
        let selector = Self::selector(kind, options)?;
        let page = self.list_page(kind, options.namespace.as_deref(), &selector, 0, None)?;
        let items = page.entries.iter().map(|entry| Object(entry.json.clone())).collect();
        Ok(ObjectList { items, resource_version: page.version.to_string() })
    }

    async fn watch(
        &self,
        resource: &Resource,
        options: &ListOptions,
        resource_version: &str,
    ) -> Result<WatchStream, ApiError> {
        let kind = self.kind(resource)?;
        let selector = Self::selector(kind, options)?;
        let version = resource_version
            .parse()
            .map_err(|_| bad_request(format!("{resource_version:?} is not a resource version")))?;
        let watching = self.start_watch(kind, options.namespace.as_deref(), selector, version)?;
        let state = (watching, VecDeque::new());
        let stream = futures::stream::unfold(state, |(mut watching, mut queue)| async move {
            loop {
                if let Some(event) = queue.pop_front() {
                    return Some((Ok(event), (watching, queue)));
                }
                match watching.next().await {
                    Ok(Some((events, _))) => queue.extend(events.into_iter().map(|event| match event.kind {
                        EventKind::Added => WatchEvent::Added(Object(event.json)),
                        EventKind::Modified => WatchEvent::Modified(Object(event.json)),
                        EventKind::Deleted => WatchEvent::Deleted(Object(event.json)),
                    })),
                    Ok(None) => return None,
                    Err(error) => return Some((Err(error), (watching, queue))),
                }
            }
        });
        Ok(stream.boxed())
    }

    async fn create(&self, resource: &Resource, object: Object) -> Result<Object, ApiError> {
        let kind = self.kind(resource)?;
        let value = parse_object(&object)?;
        let namespace = meta_str(&value, "namespace").to_owned();
        let namespace = kind.is_namespaced().then_some(namespace.as_str());
        self.create_object(kind, namespace, value, &options()).await.map(|written| Object(written.json))
    }

    async fn update(&self, resource: &Resource, object: Object) -> Result<Object, ApiError> {
        self.replace_part(resource, &object, Part::Main).await
    }

    async fn update_status(&self, resource: &Resource, object: Object) -> Result<Object, ApiError> {
        self.replace_part(resource, &object, Part::Status).await
    }

    async fn patch(&self, at: &ObjectRef, kind: PatchKind, body: Bytes) -> Result<Object, ApiError> {
        self.patch_part(at, kind, &body, Part::Main).await
    }

    async fn patch_status(&self, at: &ObjectRef, kind: PatchKind, body: Bytes) -> Result<Object, ApiError> {
        self.patch_part(at, kind, &body, Part::Status).await
    }

    async fn bind(&self, namespace: &str, pod: &str, node: &str) -> Result<(), ApiError> {
        self.bind_pod(namespace, pod, node).await
    }

    async fn delete(&self, at: &ObjectRef, options: &DeleteOptions) -> Result<(), ApiError> {
        let kind = self.kind(&at.resource)?;
        let key = key_of(kind, at.namespace.as_deref(), &at.name);
        let deletion = Deletion {
            grace_period_seconds: options.grace_period_seconds,
            uid: options.uid.as_ref().map(|uid| uid.0.clone()),
            from: Origin::Runtime,
            ..Deletion::default()
        };
        self.delete_object(kind, &key, &deletion).await.map(drop)
    }
}
