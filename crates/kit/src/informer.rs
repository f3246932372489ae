//! List and watch as one ordered stream of facts.
//!
//! An informer lists, then watches from the list's version. When the watch ends it resumes from the last version it
//! has seen; when that is too old (410) it lists again and says so by [`InformerEvent::Reset`], so that the consumer
//! can drop what is no longer there. It retries for ever with growing pauses: losing sight of the API is no reason to
//! stop.

use crate::cluster::{ApiError, Cluster, ListOptions, Object, WatchEvent, WatchStream};
use futures::StreamExt;
use regatta_types::Resource;
use serde::Deserialize;
use std::sync::Arc;

/// Shortest pause before the API is asked again.
const RETRY_MS_MIN: u64 = 50;
/// Longest pause before the API is asked again.
const RETRY_MS_MAX: u64 = 10_000;

/// A fact about the watched kind.
#[derive(Debug, Clone)]
pub enum InformerEvent {
    /// These are all the objects there are; whatever else was known is gone.
    Reset(Vec<Object>),
    /// The object was created or changed.
    Applied(Object),
    /// The object is gone; its last state.
    Deleted(Object),
    /// The API cannot be reached; the informer keeps trying.
    Unreachable(ApiError),
}

/// How an informer waits between attempts: given milliseconds, a future that is done after them. Injected, so that the
/// kit needs no runtime and the simulator can use its own time.
pub type Sleep = Arc<dyn Fn(u64) -> futures::future::BoxFuture<'static, ()> + Send + Sync>;

/// List and watch of one kind.
pub struct Informer {
    cluster: Arc<dyn Cluster>,
    resource: Resource,
    options: ListOptions,
    sleep: Sleep,
    position: Position,
    retry_ms: u64,
}

enum Position {
    Start,
    At(String),
    Watching(String, WatchStream),
}

#[derive(Deserialize)]
struct Versioned {
    metadata: VersionedMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VersionedMeta {
    #[serde(default)]
    resource_version: String,
}

impl Informer {
    /// An informer for what `options` select of `resource`. It does nothing before [`Informer::next`] is called.
    pub fn new(cluster: Arc<dyn Cluster>, resource: Resource, options: ListOptions, sleep: Sleep) -> Self {
        Self { cluster, resource, options, sleep, position: Position::Start, retry_ms: RETRY_MS_MIN }
    }

    /// The next fact. Cancel-safe between facts: dropping the future loses nothing that was already returned.
    pub async fn next(&mut self) -> InformerEvent {
        loop {
            match std::mem::replace(&mut self.position, Position::Start) {
                Position::Start => match self.cluster.list(&self.resource, &self.options).await {
                    Ok(list) => {
                        self.position = Position::At(list.resource_version);
                        return InformerEvent::Reset(list.items);
                    }
                    Err(error) => return self.unreachable(Position::Start, error).await,
                },
                Position::At(version) => {
                    match self.cluster.watch(&self.resource, &self.options, &version).await {
                        Ok(stream) => self.position = Position::Watching(version, stream),
                        Err(error) if error.is_expired() => {}
                        Err(error) => return self.unreachable(Position::At(version), error).await,
                    }
                }
                Position::Watching(version, mut stream) => match stream.next().await {
                    Some(Ok(event)) => {
                        self.retry_ms = RETRY_MS_MIN;
                        let (object, deleted) = match event {
                            WatchEvent::Bookmark(version) => {
                                self.position = Position::Watching(version, stream);
                                continue;
                            }
                            WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                            WatchEvent::Deleted(object) => (object, true),
                        };
                        let seen =
                            object.decode::<Versioned>().map_or(version, |o| o.metadata.resource_version);
                        self.position = Position::Watching(seen, stream);
                        return if deleted {
                            InformerEvent::Deleted(object)
                        } else {
                            InformerEvent::Applied(object)
                        };
                    }
                    Some(Err(error)) if error.is_expired() => {}
                    Some(Err(error)) => return self.unreachable(Position::At(version), error).await,
                    None => self.position = Position::At(version),
                },
            }
        }
    }

    async fn unreachable(&mut self, resume: Position, error: ApiError) -> InformerEvent {
        self.position = resume;
        (self.sleep)(self.retry_ms).await;
        self.retry_ms = (self.retry_ms * 2).min(RETRY_MS_MAX);
        InformerEvent::Unreachable(error)
    }
}
