//! Deletion: graceful where something runs, held by finalizers, and with it what an object owns.

use super::write::Part;
use super::{ATTEMPTS_MAX, DryRun, Engine, WriteOptions, key_of};
use crate::error::{conflict, not_found, refuse};
use crate::object::{encode, has_finalizers, is_being_deleted, meta_str, parse, set_meta, time};
use crate::registry::{DeletionRule, Kind};
use crate::selector::Selector;
use bytes::Bytes;
use futures::future::BoxFuture;
use regatta_kit::ApiError;
use regatta_store::{Entry, Expect, Key, Write};
use serde_json::{Value, json};
use std::sync::Arc;

/// Grace period of a pod that does not say.
const GRACE_SECONDS_DEFAULT: i64 = 30;

/// What becomes of the objects that a deleted one owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Propagation {
    /// They follow.
    #[default]
    Background,
    /// They stay and are nobody's.
    Orphan,
}

/// How to delete.
#[derive(Debug, Clone, Default)]
pub(crate) struct Deletion {
    pub(crate) grace_period_seconds: Option<i64>,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) propagation: Propagation,
    pub(crate) dry_run: DryRun,
    pub(crate) from: Origin,
}

/// Who deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Origin {
    /// A client: it can shorten the grace period, but it cannot know that the processes of a pod are dead.
    #[default]
    Client,
    /// A part of this program: a grace period of 0 is the word of the runtime that nothing runs any more.
    Runtime,
}

/// What a deletion did.
#[derive(Debug, Clone)]
pub(crate) struct Deleted {
    /// The last state, or the state with the deletion noted.
    pub(crate) json: Bytes,
    pub(crate) uid: String,
    /// Whether the object is gone.
    pub(crate) outcome: Outcome,
}

/// Whether an object is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Gone,
    /// It waits for its finalizers or for whoever runs it.
    Pending,
}

impl Engine {
    pub(crate) async fn delete_object(
        &self,
        kind: &Kind,
        key: &Key,
        deletion: &Deletion,
    ) -> Result<Deleted, ApiError> {
        let name = &*key.path.name;
        for _ in 0..ATTEMPTS_MAX {
            let entry = self.store.latest(key).ok_or_else(|| not_found(&kind.resource, name))?;
            check_preconditions(kind, &entry, deletion)?;
            let old = parse(&entry)?;
            let uid = meta_str(&old, "uid").to_owned();
            if kind.deletion == DeletionRule::Namespace && ["default", "kube-system"].contains(&name) {
                return Err(refuse(
                    403,
                    "Forbidden",
                    format!("namespaces {name:?} is forbidden: this namespace may not be deleted"),
                ));
            }
            if deletion.propagation == Propagation::Orphan && deletion.dry_run == DryRun::No {
                self.orphan(&uid).await?;
            }
            let (new, outcome) = self.marked(kind, &old, deletion)?;
            if deletion.dry_run == DryRun::Yes || (outcome == Outcome::Pending && new == old) {
                self.settled(kind, &entry).await?;
                return Ok(Deleted { json: entry.json.clone(), uid, outcome });
            }
            let body = encode(key, new)?;
            let write = match outcome {
                Outcome::Gone => Write::delete(key.clone(), entry.version, body),
                Outcome::Pending => Write::put(key.clone(), Expect::Version(entry.version), body),
            };
            match self.commit(kind, name, write.with_durability(kind.durability)).await {
                Ok(entry) => {
                    if outcome == Outcome::Gone {
                        self.after_removal(kind, &entry).await;
                    } else if kind.deletion == DeletionRule::Namespace {
                        self.empty_namespace(name).await;
                        self.remove_empty_namespace(name).await;
                    }
                    return Ok(Deleted { json: entry.json.clone(), uid, outcome });
                }
                Err(error) if error.is_conflict() => {}
                // Another deletion was faster, which is what was wanted.
                Err(error) if error.is_not_found() => {
                    return Ok(Deleted { json: entry.json.clone(), uid, outcome: Outcome::Gone });
                }
                Err(error) => return Err(error),
            }
        }
        Err(conflict(&kind.resource, name, "too many writers are faster; try again"))
    }

    /// The object with the deletion noted, and whether it goes at once.
    fn marked(&self, kind: &Kind, old: &Value, deletion: &Deletion) -> Result<(Value, Outcome), ApiError> {
        let grace = self.grace_seconds(kind, old, deletion);
        let mut new = old.clone();
        let sooner = old["metadata"]["deletionGracePeriodSeconds"].as_i64().is_none_or(|known| grace < known);
        if !is_being_deleted(old) || (kind.deletion == DeletionRule::Graceful && sooner) {
            let at = self.clock.now().plus_ms(grace.saturating_mul(1000));
            set_meta(&mut new, "deletionTimestamp", Some(time(at)))?;
            set_meta(&mut new, "deletionGracePeriodSeconds", Some(Value::from(grace)))?;
        }
        if kind.deletion == DeletionRule::Namespace {
            new["status"] = json!({"phase": "Terminating"});
        }
        let waits = super::write::waits_for_its_runner(kind, &new);
        let outcome = if has_finalizers(&new) || waits { Outcome::Pending } else { Outcome::Gone };
        Ok((new, outcome))
    }

    /// Seconds between SIGTERM and SIGKILL; 0 for what nobody runs.
    fn grace_seconds(&self, kind: &Kind, object: &Value, deletion: &Deletion) -> i64 {
        let node = object["spec"]["nodeName"].as_str().unwrap_or_default();
        let ended = matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        if kind.deletion != DeletionRule::Graceful || node.is_empty() || ended {
            return 0;
        }
        let own = object["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(GRACE_SECONDS_DEFAULT);
        let asked = deletion.grace_period_seconds.unwrap_or(own).max(0);
        // Force does not make processes die: as long as there is a node that can confirm their end, it must.
        let confirmable = self.store.latest(&Key::new("nodes", "", node)).is_some();
        if deletion.from == Origin::Client && confirmable { asked.max(1) } else { asked }
    }

    /// Deletes everything that `selector` selects; returns what was deleted.
    pub(crate) async fn delete_collection(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        selector: &Selector,
        deletion: &Deletion,
    ) -> Result<Vec<Bytes>, ApiError> {
        let page = self.list_page(kind, namespace, selector, 0, None)?;
        let mut deleted = Vec::new();
        for entry in page.entries {
            match self.delete_object(kind, &entry.key, deletion).await {
                Ok(done) => deleted.push(done.json),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(deleted)
    }

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

    /// What follows the end of an object: its dependents go, and the namespace that waited for it.
    pub(crate) fn after_removal<'a>(&'a self, kind: &'a Kind, entry: &'a Arc<Entry>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.collect(&entry.header.uid).await;
            let namespace = &*entry.key.path.namespace;
            if kind.is_namespaced() {
                self.remove_empty_namespace(namespace).await;
            }
        })
    }

    /// Deletes what was owned by the object `uid`, which is gone. An object with another owner that is there stays.
    async fn collect(&self, uid: &str) {
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

    fn has_living_owner(&self, object: &Value) -> bool {
        let namespace = meta_str(object, "namespace");
        let owners = object["metadata"]["ownerReferences"].as_array();
        owners.into_iter().flatten().any(|owner| {
            let (version, name, kind) = (&owner["apiVersion"], &owner["name"], &owner["kind"]);
            let of_owner = |kind_: &&Kind| {
                Some(kind_.resource.api_version().as_str()) == version.as_str()
                    && Some(kind_.resource.kind) == kind.as_str()
            };
            let Some(kind) = self.registry.kinds().find(of_owner) else {
                // A kind that is not served cannot be looked up: absence is not evidence.
                return true;
            };
            let namespace = kind.is_namespaced().then_some(namespace);
            let entry = self.store.latest(&key_of(kind, namespace, name.as_str().unwrap_or_default()));
            entry.is_some_and(|entry| Some(&*entry.header.uid) == owner["uid"].as_str())
        })
    }

    /// Removes `uid` from the owners of all that it owns.
    async fn orphan(&self, uid: &str) -> Result<(), ApiError> {
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

    /// Deletes the content of a namespace. Boxed, because what is deleted may complete the deletion of a namespace.
    fn empty_namespace<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(self.delete_content(namespace))
    }

    async fn delete_content(&self, namespace: &str) {
        for kind in self.registry.kinds().filter(|kind| kind.is_namespaced()) {
            let deletion = Deletion::default();
            if let Err(error) =
                self.delete_collection(kind, Some(namespace), &Selector::default(), &deletion).await
            {
                tracing::warn!(%error, namespace, "the content of a namespace was not deleted; delete it again");
            }
        }
    }

    /// Lets a namespace go that is being deleted and has nothing left in it.
    pub(super) async fn remove_empty_namespace(&self, namespace: &str) {
        let key = Key::new("namespaces", "", namespace);
        let Some((kind, entry)) = self.kind_of(&key).zip(self.store.latest(&key)) else { return };
        let Ok(object) = parse(&entry) else { return };
        let mut kinds = self.registry.kinds().filter(|kind| kind.is_namespaced());
        let full = kinds
            .any(|kind| !self.store.list(&kind.store_name(), Some(namespace), None, 1).entries.is_empty());
        if full || !is_being_deleted(&object) || has_finalizers(&object) {
            return;
        }
        let Ok(body) = encode(&key, object) else { return };
        if let Err(error) = self.commit(kind, namespace, Write::delete(key, entry.version, body)).await
            && !error.is_not_found()
        {
            tracing::warn!(%error, namespace, "an empty namespace was not removed; delete it again");
        }
    }

    fn kind_of(&self, key: &Key) -> Option<&Kind> {
        self.registry.kinds().find(|kind| kind.store_name() == *key.resource)
    }

    /// Deletes what owners that are gone have left behind, when the server ended between the two deletions.
    pub async fn sweep(&self) {
        let alive: std::collections::BTreeSet<Box<str>> =
            self.store.entries().iter().map(|entry| entry.header.uid.clone()).collect();
        for owner in self.store.owners() {
            if !alive.contains(&owner) {
                self.collect(&owner).await;
            }
        }
        for entry in self.store.list("namespaces", None, None, usize::MAX).entries {
            if entry.header.deletion == regatta_store::Deletion::Requested {
                self.empty_namespace(&entry.key.path.name).await;
                self.remove_empty_namespace(&entry.key.path.name).await;
            }
        }
    }
}

fn check_preconditions(kind: &Kind, entry: &Entry, deletion: &Deletion) -> Result<(), ApiError> {
    let name = &*entry.key.path.name;
    if let Some(uid) = deletion.uid.as_deref().filter(|uid| **uid != *entry.header.uid) {
        let problem = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            entry.header.uid
        );
        return Err(conflict(&kind.resource, name, &problem));
    }
    if let Some(version) =
        deletion.resource_version.as_deref().filter(|version| **version != entry.version.to_string())
    {
        let problem = format!(
            "Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta: {}",
            entry.version
        );
        return Err(conflict(&kind.resource, name, &problem));
    }
    Ok(())
}
