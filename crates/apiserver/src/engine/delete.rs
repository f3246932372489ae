//! Deletion: graceful where something runs, held by finalizers, and with it what an object owns.

use super::{ATTEMPTS_MAX, DryRun, Engine, owners};
use crate::error::{conflict, not_found, refuse};
use crate::object::{encode, has_finalizers, is_being_deleted, meta_str, parse, set_meta, time};
use crate::registry::{DeletionRule, Kind};
use crate::selector::Selector;
use bytes::Bytes;
use futures::future::BoxFuture;
use regatta_kit::ApiError;
use regatta_store::{Entry, Expect, Key, Write};
use serde_json::{Value, json};

/// Grace period of a pod that does not say.
const GRACE_SECONDS_DEFAULT: i64 = 30;

/// What becomes of the objects that a deleted one owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Propagation {
    /// They follow.
    #[default]
    Background,
    /// They go first, and the object waits for them.
    Foreground,
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
            let (new, outcome) = self.marked(kind, &old, deletion, &uid)?;
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
                    } else if owners::waits_for_dependents(&entry) {
                        self.collect(&uid).await;
                        self.release(kind, &entry.key, &uid).await;
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
    fn marked(
        &self,
        kind: &Kind,
        old: &Value,
        deletion: &Deletion,
        uid: &str,
    ) -> Result<(Value, Outcome), ApiError> {
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
        if deletion.propagation == Propagation::Foreground && !self.store.owned_by(uid).is_empty() {
            owners::wait_for_dependents(&mut new)?;
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

    pub(super) fn kind_of(&self, key: &Key) -> Option<&Kind> {
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
