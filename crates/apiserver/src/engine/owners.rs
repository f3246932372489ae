//! What an object owns goes with it: before it, after it, or not at all.
//!
//! There is no collector that looks around: whoever removes an object removes what it owned, and a start finishes what
//! a crash has interrupted ([`Engine::sweep`]).

use super::delete::Deletion;
use super::write::Part;
use super::{Engine, WriteOptions, key_of};
use crate::object::{is_being_deleted, meta_mut, meta_str, parse};
use crate::registry::Kind;
use futures::future::BoxFuture;
use regatta_kit::ApiError;
use regatta_store::{Entry, Key};
use serde_json::{Value, json};
use std::sync::Arc;

/// The finalizer of an object that waits for what it owns.
const WAITS_FOR_DEPENDENTS: &str = "foregroundDeletion";

/// Makes an object wait for what it owns.
pub(super) fn wait_for_dependents(object: &mut Value) -> Result<(), ApiError> {
    let finalizers = meta_mut(object)?.entry("finalizers").or_insert_with(|| json!([]));
    if let Some(finalizers) = finalizers.as_array_mut()
        && !finalizers.iter().any(|known| known == WAITS_FOR_DEPENDENTS)
    {
        finalizers.push(json!(WAITS_FOR_DEPENDENTS));
    }
    Ok(())
}

pub(super) fn waits_for_dependents(entry: &Entry) -> bool {
    entry.header.deletion == regatta_store::Deletion::Requested
        && parse(entry).is_ok_and(|object| is_waiting(&object))
}

fn is_waiting(object: &Value) -> bool {
    let finalizers = object["metadata"]["finalizers"].as_array();
    is_being_deleted(object)
        && finalizers.is_some_and(|all| all.iter().any(|known| known == WAITS_FOR_DEPENDENTS))
}

impl Engine {
    /// What follows the making of an object: one whose owners are gone already goes too.
    pub(crate) async fn after_creation(&self, kind: &Kind, entry: &Entry) {
        if entry.header.owners.is_empty() {
            return;
        }
        let orphaned = parse(entry).is_ok_and(|object| !self.has_living_owner(&object));
        if orphaned
            && let Err(error) = self.delete_object(kind, &entry.key, &Deletion::default()).await
            && !error.is_not_found()
        {
            tracing::warn!(%error, key = %entry.key, "an object of an owner that is gone was not deleted");
        }
    }

    /// What follows the end of an object: its dependents go, then owners and the namespace that waited for it.
    pub(crate) fn after_removal<'a>(&'a self, kind: &'a Kind, entry: &'a Arc<Entry>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.collect(&entry.header.uid).await;
            if !entry.header.owners.is_empty()
                && let Ok(object) = parse(entry)
            {
                for (kind, owner) in self.owners_of(&object) {
                    if waits_for_dependents(&owner) {
                        self.release(kind, &owner.key, &owner.header.uid).await;
                    }
                }
            }
            if kind.is_namespaced() {
                self.remove_empty_namespace(&entry.key.path.namespace).await;
            }
        })
    }

    /// Lets an object go that waited for what it owns, when nothing of that is left.
    pub(super) async fn release(&self, kind: &Kind, key: &Key, uid: &str) {
        if !self.store.owned_by(uid).is_empty() {
            return;
        }
        let change = |old: &Value| {
            let mut new = old.clone();
            if let Some(finalizers) = new["metadata"]["finalizers"].as_array_mut() {
                finalizers.retain(|known| known != WAITS_FOR_DEPENDENTS);
            }
            Ok(new)
        };
        if let Err(error) = self.modify(kind, key, Part::Server, &WriteOptions::default(), &change).await
            && !error.is_not_found()
        {
            tracing::warn!(%error, %key, "an object that owns nothing any more was not removed; delete it again");
        }
    }

    /// Deletes what was owned by the object `uid`, which is gone. An object with another owner that is there stays.
    ///
    /// Boxed, because what goes may own other objects.
    pub(super) fn collect<'a>(&'a self, uid: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(self.collect_now(uid))
    }

    async fn collect_now(&self, uid: &str) {
        if uid.is_empty() {
            return;
        }
        for key in self.store.owned_by(uid) {
            let Some((kind, entry)) = self.kind_of(&key).zip(self.store.latest(&key)) else { continue };
            let owned = parse(&entry).is_ok_and(|object| !self.has_living_owner(&object));
            if !owned {
                continue;
            }
            if let Err(error) = self.delete_object(kind, &key, &Deletion::default()).await
                && !error.is_not_found()
            {
                tracing::warn!(%error, %key, "an object whose owner is gone was not deleted; the next start tries again");
            }
        }
    }

    /// Whether somebody still owns an object. An owner that waits for what it owns does not count.
    fn has_living_owner(&self, object: &Value) -> bool {
        let owners = object["metadata"]["ownerReferences"].as_array();
        // A kind that is not served cannot be looked up, and absence is not evidence.
        let foreign = owners.into_iter().flatten().any(|owner| self.kind_of_owner(owner).is_none());
        foreign || self.owners_of(object).iter().any(|(_, owner)| !waits_for_dependents(owner))
    }

    fn kind_of_owner(&self, owner: &Value) -> Option<&Kind> {
        self.registry.kinds().find(|kind| {
            Some(kind.resource.api_version().as_str()) == owner["apiVersion"].as_str()
                && Some(kind.resource.kind) == owner["kind"].as_str()
        })
    }

    /// The owners of an object that are there.
    fn owners_of(&self, object: &Value) -> Vec<(&Kind, Arc<Entry>)> {
        let namespace = meta_str(object, "namespace");
        let owners = object["metadata"]["ownerReferences"].as_array();
        let found = owners.into_iter().flatten().filter_map(|owner| {
            let kind = self.kind_of_owner(owner)?;
            let namespace = kind.is_namespaced().then_some(namespace);
            let entry =
                self.store.latest(&key_of(kind, namespace, owner["name"].as_str().unwrap_or_default()))?;
            (Some(&*entry.header.uid) == owner["uid"].as_str()).then_some((kind, entry))
        });
        found.collect()
    }

    /// Removes `uid` from the owners of all that it owns.
    pub(super) async fn orphan(&self, uid: &str) -> Result<(), ApiError> {
        for key in self.store.owned_by(uid) {
            let Some(kind) = self.kind_of(&key) else { continue };
            let change = |old: &Value| {
                let mut new = old.clone();
                if let Some(owners) = new["metadata"]["ownerReferences"].as_array_mut() {
                    owners.retain(|owner| owner["uid"].as_str() != Some(uid));
                }
                Ok(new)
            };
            match self.modify(kind, &key, Part::Server, &WriteOptions::default(), &change).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}
