//! Effects: the few things the operator does to the world, and how they are carried out.
//!
//! Each is idempotent: names are deterministic, deletions carry the uid, status writes carry the version they were
//! decided on. Carrying one out twice changes nothing more than once.

use crate::core::Key;
use bytes::Bytes;
use regatta_kit::{ApiError, Cluster, DeleteOptions, Object, PatchKind};
use regatta_lifecycle::EventNote;
use regatta_types::job::Job;
use regatta_types::pod::Pod;
use regatta_types::reason::WaitReason;
use regatta_types::run_record::{RunEntry, RunFact};
use regatta_types::seed::Seed;
use regatta_types::{Epoch, ObjectRef, Timestamp, Uid, labels, resource};
use serde_json::json;

/// Names a run in the append-only store of run records.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunKey {
    /// Namespace of the job.
    pub namespace: String,
    /// Name of the job.
    pub name: String,
    /// Uid of the job: a namesake is another run.
    pub uid: Uid,
}

impl RunKey {
    /// The run of `job`.
    pub fn of(job: &Job) -> Self {
        Self {
            namespace: job.metadata.namespace().to_owned(),
            name: job.metadata.name.clone(),
            uid: job.metadata.uid(),
        }
    }
}

/// Where facts of runs are kept. Appending the same fact twice must be harmless to readers.
pub trait RunLog: Send + Sync {
    /// Appends one fact. Failures are the log's to report; a run goes on without its record.
    fn append(&self, run: &RunKey, entry: &RunEntry);
}

/// Something to do.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Store a decision. `job` carries the version it was decided on.
    WriteJobStatus {
        /// The job with its new status.
        job: Box<Job>,
        /// To be told once it is stored.
        events: Vec<EventNote>,
        /// To be recorded before it is stored.
        records: Vec<RunFact>,
        /// Pods that must not exist, looked up afresh, or else the decision is void.
        verify_absent: Vec<String>,
        /// When it was decided.
        at: Timestamp,
    },
    /// Create a pod of a job.
    CreatePod {
        /// The job.
        job: Key,
        /// The pod.
        pod: Box<Pod>,
    },
    /// Delete a pod.
    DeletePod {
        /// The job it belongs to, if any.
        job: Option<Key>,
        /// The pod.
        key: Key,
        /// Only if it still is this one.
        uid: Uid,
        /// Seconds between SIGTERM and SIGKILL.
        grace_period_seconds: Option<i64>,
    },
    /// Bind a bare pod.
    BindPod {
        /// The pod.
        key: Key,
        /// Its uid.
        uid: Uid,
        /// The node.
        node: String,
    },
    /// Tell why a bare pod waits.
    ExplainPod {
        /// The pod.
        key: Key,
        /// Its uid.
        uid: Uid,
        /// One word.
        reason: WaitReason,
        /// A sentence.
        message: String,
        /// Since when.
        at: Timestamp,
    },
    /// Let a job go whose pods are gone.
    RemoveFinalizer {
        /// The job.
        job: Box<Job>,
    },
    /// Delete a finished job.
    DeleteJob {
        /// The job.
        key: Key,
        /// Its uid.
        uid: Uid,
    },
}

/// What became of an effect.
#[derive(Debug)]
pub enum Outcome {
    /// Of [`Effect::WriteJobStatus`].
    JobStatusWritten {
        /// The job.
        key: Key,
        /// The stored job.
        result: Result<Object, ApiError>,
    },
    /// Of [`Effect::CreatePod`].
    PodCreated {
        /// The job.
        job: Key,
        /// The stored pod.
        result: Result<Object, ApiError>,
    },
    /// Of [`Effect::DeletePod`] for a pod of a job.
    PodDeleted {
        /// The job.
        job: Key,
        /// The pod's uid.
        uid: Uid,
        /// Whether the deletion was accepted.
        result: Result<(), ApiError>,
    },
    /// Of [`Effect::RemoveFinalizer`] and [`Effect::DeleteJob`].
    JobChanged {
        /// The job.
        key: Key,
        /// Whether it was accepted.
        result: Result<(), ApiError>,
    },
    /// Of [`Effect::BindPod`].
    PodBound {
        /// The pod's uid.
        uid: Uid,
        /// Whether it was accepted.
        result: Result<(), ApiError>,
    },
    /// Of effects on bare pods that nothing waits for.
    BarePodTouched {
        /// The pod's uid.
        uid: Uid,
        /// Whether it was accepted.
        result: Result<(), ApiError>,
    },
}

/// Carries out one effect.
pub async fn perform(cluster: &dyn Cluster, log: &dyn RunLog, effect: Effect) -> Outcome {
    match effect {
        Effect::WriteJobStatus { job, events, records, verify_absent, at } => {
            let key = Key::of(&job.metadata);
            let result = write_status(cluster, log, &job, records, &verify_absent, at).await;
            if result.is_ok() {
                for event in events {
                    tell(cluster, &job, &event, at).await;
                }
            }
            Outcome::JobStatusWritten { key, result }
        }
        Effect::CreatePod { job, pod } => {
            let result = create_pod(cluster, &pod).await;
            if let Ok(created) = &result {
                record_pod(log, &job, created);
            }
            Outcome::PodCreated { job, result }
        }
        Effect::DeletePod { job, key, uid, grace_period_seconds } => {
            let options = DeleteOptions { grace_period_seconds, uid: Some(uid.clone()) };
            let result = accept_gone(
                cluster
                    .delete(&ObjectRef::namespaced(resource::PODS, &key.namespace, &key.name), &options)
                    .await,
            );
            match job {
                Some(job) => Outcome::PodDeleted { job, uid, result },
                None => Outcome::BarePodTouched { uid, result },
            }
        }
        Effect::BindPod { key, uid, node } => {
            let result = cluster.bind(&key.namespace, &key.name, &node).await;
            Outcome::PodBound { uid, result }
        }
        Effect::ExplainPod { key, uid, reason, message, at } => {
            let condition = json!({"type": "PodScheduled", "status": "False", "reason": reason.as_str(), "message": message, "lastTransitionTime": at});
            let body =
                json!({"metadata": {"uid": uid}, "status": {"phase": "Pending", "conditions": [condition]}});
            let at = ObjectRef::namespaced(resource::PODS, &key.namespace, &key.name);
            let result =
                cluster.patch_status(&at, PatchKind::Merge, Bytes::from(body.to_string())).await.map(drop);
            Outcome::BarePodTouched { uid, result }
        }
        Effect::RemoveFinalizer { mut job } => {
            let key = Key::of(&job.metadata);
            job.metadata.finalizers.retain(|finalizer| finalizer != labels::JOB_FINALIZER);
            let result = match Object::encode(&job) {
                Ok(object) => accept_gone(cluster.update(&resource::JOBS, object).await.map(drop)),
                Err(error) => Err(error),
            };
            Outcome::JobChanged { key, result }
        }
        Effect::DeleteJob { key, uid } => {
            let at = ObjectRef::namespaced(resource::JOBS, &key.namespace, &key.name);
            let options = DeleteOptions { grace_period_seconds: None, uid: Some(uid) };
            let result = accept_gone(cluster.delete(&at, &options).await);
            Outcome::JobChanged { key, result }
        }
    }
}

async fn write_status(
    cluster: &dyn Cluster,
    log: &dyn RunLog,
    job: &Job,
    records: Vec<RunFact>,
    verify_absent: &[String],
    at: Timestamp,
) -> Result<Object, ApiError> {
    for name in verify_absent {
        let pod = ObjectRef::namespaced(resource::PODS, job.metadata.namespace(), name);
        match cluster.get(&pod).await {
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
            Ok(_) => {
                let message = format!("{pod} exists after all; the decision to replace it is void");
                return Err(ApiError { code: 409, reason: "Conflict".to_owned(), message });
            }
        }
    }
    // Recorded first: after a crash the fact is there at most twice, never missing.
    for fact in records {
        log.append(&RunKey::of(job), &RunEntry { at, fact });
    }
    cluster.update_status(&resource::JOBS, Object::encode(job)?).await
}

/// Creates a pod; one that exists already is ours only if it has the same owner.
async fn create_pod(cluster: &dyn Cluster, pod: &Pod) -> Result<Object, ApiError> {
    match cluster.create(&resource::PODS, Object::encode(pod)?).await {
        Err(error) if error.is_already_exists() => {
            let at = ObjectRef::namespaced(resource::PODS, pod.metadata.namespace(), &pod.metadata.name);
            let existing = cluster.get(&at).await?;
            let owners = existing.decode::<Pod>()?.metadata.owner_references;
            if owners == pod.metadata.owner_references { Ok(existing) } else { Err(error) }
        }
        other => other,
    }
}

/// Notes where the logs of an attempt's slot are, for when the pod object is gone.
fn record_pod(log: &dyn RunLog, job: &Key, created: &Object) {
    let Ok(pod) = created.decode::<Pod>() else { return };
    let Some(owner) = pod.metadata.owner_references.first() else { return };
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let label = |name: &str| pod.metadata.labels.get(name);
    let run = RunKey { namespace: job.namespace.clone(), name: job.name.clone(), uid: owner.uid.clone() };
    let fact = RunFact::Pod {
        epoch: Epoch(number(pod.metadata.annotations.get(labels::EPOCH))),
        role: label(labels::ROLE).cloned().unwrap_or_default(),
        slot: u32::try_from(number(label(labels::SLOT))).unwrap_or(u32::MAX),
        pod: pod.metadata.name.clone(),
        uid: pod.metadata.uid().0,
        node: pod.spec.node_name.clone().unwrap_or_default(),
    };
    log.append(&run, &RunEntry { at: pod.metadata.creation_timestamp.unwrap_or_default(), fact });
}

fn accept_gone(result: Result<(), ApiError>) -> Result<(), ApiError> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

/// Writes an Event about a job. Losing one loses a line of text, so a failure is only logged.
async fn tell(cluster: &dyn Cluster, job: &Job, note: &EventNote, at: Timestamp) {
    let uid = job.metadata.uid();
    let suffix = Seed(0).child(&format!("{uid}/{}/{}/{}", note.reason, note.message, at.unix_ms())).0;
    let event = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": format!("{}.{suffix:016x}", job.metadata.name), "namespace": job.metadata.namespace()},
        "involvedObject": {
            "apiVersion": "regatta.dev/v1alpha1", "kind": "Job", "name": job.metadata.name,
            "namespace": job.metadata.namespace(), "uid": uid,
        },
        "type": note.kind.as_str(),
        "reason": note.reason,
        "message": note.message,
        "count": 1,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "source": {"component": "regatta"},
        "reportingComponent": "regatta",
    });
    let written = match Object::encode(&event) {
        Ok(object) => cluster.create(&resource::EVENTS, object).await.map(drop),
        Err(error) => Err(error),
    };
    match written {
        Err(error) if !error.is_already_exists() => tracing::debug!(%error, "an event was not written"),
        _ => {}
    }
}
