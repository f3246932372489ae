//! Run records as an API: `runs.regatta.dev/v1alpha1`, answered from the append-only store instead of from objects.
//!
//! - `GET runs` lists a summary of each run, also of those whose job was deleted.
//! - `GET runs/NAME` gives the record, fact by fact; of namesakes the newest, or the one with `?uid=`.
//! - `GET runs/NAME/log?epoch=&role=&slot=&rank=&container=&follow=&tailLines=&timestamps=` gives what one rank
//!   wrote, or a container beside it, such as one that ran before it.
//! - `GET runs/NAME/progress[?watch=true]` gives live progress as JSON lines.

use crate::pods::{LogOf, PodLogs};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use regatta_apiserver::{VirtualDescriptor, VirtualRequest, VirtualResource, VirtualResponse};
use regatta_kit::ApiError;
use regatta_operator::{RunKey, RunLog};
use regatta_store::append_log::AppendLog;
use regatta_types::evidence::Progress;
use regatta_types::run_record::{RunEntry, RunFact};
use regatta_types::streams::LogRequest;
use regatta_types::{Clock, Epoch, Scope, Timestamp, Uid};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// API group of run records.
pub const GROUP: &str = "runs.regatta.dev";
/// Ends the key of a run's progress.
const PROGRESS: &str = "_progress";
/// How many records are kept; beyond it those of the oldest runs that have ended are removed when the daemon starts.
const RUNS_KEPT_MAX: usize = 5_000;
/// How often the progress of one run is recorded at most, in milliseconds.
const PROGRESS_RECORD_INTERVAL_MS: i64 = 1000;

/// Keeps run records and live progress.
pub struct Runs {
    log: AppendLog,
    clock: Arc<dyn Clock>,
    live: Mutex<BTreeMap<RunKey, Live>>,
}

struct Live {
    progress: watch::Sender<Option<Progress>>,
    recorded_at: Timestamp,
    /// Heard, but not recorded yet because the last record was too fresh.
    unrecorded: Option<Progress>,
}

impl Runs {
    /// Records kept in `log`.
    pub fn new(log: AppendLog, clock: Arc<dyn Clock>) -> Self {
        let runs = Self { log, clock, live: Mutex::default() };
        runs.forget_oldest(RUNS_KEPT_MAX);
        runs
    }

    /// Removes the records of the oldest runs that have ended, so that at most `kept` are left.
    fn forget_oldest(&self, kept: usize) {
        let Ok(all) = self.runs(None) else { return };
        let excess = all.len().saturating_sub(kept);
        if excess == 0 {
            return;
        }
        let ended = all.into_iter().filter_map(|run| {
            let entries = self.entries(&run).ok()?;
            let ended = entries.iter().any(|entry| matches!(entry.fact, RunFact::Finished { .. }));
            Some((entries.first()?.at, run)).filter(|_| ended)
        });
        let mut ended: Vec<(Timestamp, RunKey)> = ended.collect();
        ended.sort();
        for (_, run) in ended.into_iter().take(excess) {
            for key in [log_key(&run), progress_key(&run)] {
                if let Err(error) = self.log.remove(&key) {
                    tracing::warn!(%error, run = %run.name, "the record of an old run was not removed");
                }
            }
        }
    }

    fn live(&self) -> MutexGuard<'_, BTreeMap<RunKey, Live>> {
        // The map is valid after every statement, so a panic elsewhere does not make it unusable.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what a rank reported.
    pub fn observe(&self, run: &RunKey, progress: &Progress) {
        let now = self.clock.now();
        let mut live = self.live();
        let entry = live.entry(run.clone()).or_insert_with(|| Live {
            progress: watch::Sender::new(None),
            recorded_at: Timestamp::default(),
            unrecorded: None,
        });
        entry.progress.send_replace(Some(progress.clone()));
        let due = now.since_ms(entry.recorded_at) >= PROGRESS_RECORD_INTERVAL_MS;
        if due {
            entry.recorded_at = now;
            entry.unrecorded = None;
        } else {
            entry.unrecorded = Some(progress.clone());
        }
        drop(live);
        if due {
            self.write(run, &RunEntry { at: now, fact: RunFact::Progress { progress: progress.clone() } });
        }
    }

    fn write(&self, run: &RunKey, entry: &RunEntry) {
        let line = serde_json::to_string(entry).expect("invariant: a fact can be written as JSON");
        let key = match entry.fact {
            RunFact::Progress { .. } => progress_key(run),
            _ => log_key(run),
        };
        if let Err(error) = self.log.append(&key, &line) {
            tracing::warn!(%error, run = %run.name, "a fact of a run was not recorded");
        }
    }

    fn runs(&self, namespace: Option<&str>) -> Result<Vec<RunKey>, ApiError> {
        let keys =
            self.log.keys().map_err(|e| ApiError::internal(format!("cannot list the run records: {e}")))?;
        let runs = keys.iter().filter_map(|key| parse_log_key(key));
        Ok(runs.filter(|run| namespace.is_none_or(|namespace| run.namespace == namespace)).collect())
    }

    fn entries(&self, run: &RunKey) -> Result<Vec<RunEntry>, ApiError> {
        let fail = |e| ApiError::internal(format!("cannot read the record of run {}: {e}", run.name));
        let mut lines = self.log.read(&log_key(run)).map_err(fail)?;
        lines.extend(self.log.read(&progress_key(run)).map_err(fail)?);
        // A line of a later version may hold a fact that this one does not know; the rest is still worth reading.
        let mut entries: Vec<RunEntry> =
            lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
        entries.sort_by_key(|entry| entry.at);
        Ok(once_each(entries))
    }

    /// The run of this name: the one with `uid`, or else the newest.
    fn find(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> Result<(RunKey, Vec<RunEntry>), ApiError> {
        let mut found: Option<(Timestamp, RunKey, Vec<RunEntry>)> = None;
        for run in self.runs(Some(namespace))? {
            if run.name != name || uid.is_some_and(|uid| run.uid.as_str() != uid) {
                continue;
            }
            let entries = self.entries(&run)?;
            let at = entries.first().map_or(Timestamp::default(), |entry| entry.at);
            if found.as_ref().is_none_or(|(newest, ..)| at >= *newest) {
                found = Some((at, run, entries));
            }
        }
        found.map(|(_, run, entries)| (run, entries)).ok_or_else(|| ApiError {
            code: 404,
            reason: "NotFound".to_owned(),
            message: format!(
                "there is no record of a run {namespace}/{name}; `regatta runs` lists those there are"
            ),
        })
    }

    fn progress(&self, run: &RunKey) -> watch::Receiver<Option<Progress>> {
        let mut live = self.live();
        let entry = live.entry(run.clone()).or_insert_with(|| Live {
            progress: watch::Sender::new(None),
            recorded_at: Timestamp::default(),
            unrecorded: None,
        });
        entry.progress.subscribe()
    }
}

impl RunLog for Runs {
    fn append(&self, run: &RunKey, entry: &RunEntry) {
        let ends = matches!(entry.fact, RunFact::Finished { .. });
        let last = self.live().get_mut(run).and_then(|live| live.unrecorded.take());
        if let Some(progress) = last {
            self.write(run, &RunEntry { at: progress.at, fact: RunFact::Progress { progress } });
        }
        self.write(run, entry);
        if ends {
            // Dropping the sender ends the streams that watch the progress.
            self.live().remove(run);
        }
    }
}

fn log_key(run: &RunKey) -> String {
    format!("{}_{}_{}", run.namespace, run.name, run.uid)
}

/// Progress has a log of its own: it is thinned out when it grows, the facts that say where logs are must not be.
fn progress_key(run: &RunKey) -> String {
    format!("{}{PROGRESS}", log_key(run))
}

/// Namespaces and names have no underscore in them (RFC 1123), so the key can be taken apart again.
fn parse_log_key(key: &str) -> Option<RunKey> {
    if key.ends_with(PROGRESS) {
        return None;
    }
    let mut parts = key.splitn(3, '_');
    let (namespace, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
    Some(RunKey { namespace: namespace.to_owned(), name: name.to_owned(), uid: Uid::from(uid) })
}

/// Facts are recorded before they are stored, so one can be there twice, or once in vain; of those that can only be
/// true once for each epoch the last one counts.
fn once_each(entries: Vec<RunEntry>) -> Vec<RunEntry> {
    let identity = |fact: &RunFact| match fact {
        RunFact::Submitted { .. } => Some((0_u8, Epoch(0), String::new())),
        RunFact::Placed { epoch, .. } => Some((1, *epoch, String::new())),
        RunFact::Running { epoch } => Some((2, *epoch, String::new())),
        RunFact::Pod { epoch, uid, .. } => Some((3, *epoch, uid.clone())),
        RunFact::Checkpoint { epoch, checkpoint } => Some((4, *epoch, checkpoint.path.clone())),
        RunFact::EpochEnded { record } => Some((5, record.epoch, String::new())),
        RunFact::Finished { .. } => Some((6, Epoch(0), String::new())),
        RunFact::Progress { .. } => None,
    };
    let mut last = BTreeMap::new();
    for (index, entry) in entries.iter().enumerate() {
        if let Some(identity) = identity(&entry.fact) {
            last.insert(identity, index);
        }
    }
    let keep = |index: usize, entry: &RunEntry| {
        identity(&entry.fact).is_none_or(|identity| last.get(&identity) == Some(&index))
    };
    entries
        .into_iter()
        .enumerate()
        .filter(|(index, entry)| keep(*index, entry))
        .map(|(_, entry)| entry)
        .collect()
}

fn summary(run: &RunKey, entries: &[RunEntry]) -> Value {
    let mut summary = json!({
        "apiVersion": "runs.regatta.dev/v1alpha1", "kind": "Run",
        "metadata": {"name": run.name, "namespace": run.namespace, "uid": run.uid},
        "name": run.name, "namespace": run.namespace, "uid": run.uid, "phase": "Queued", "epochs": 0,
    });
    for entry in entries {
        match &entry.fact {
            RunFact::Submitted { user, queue, source, slots, gpus, .. } => {
                summary["user"] = json!(user);
                summary["queue"] = json!(queue);
                summary["submittedAt"] = json!(entry.at);
                summary["slots"] = json!(slots);
                summary["gpus"] = json!(gpus);
                summary["command"] = json!(source.command);
                summary["gitCommit"] = json!(source.git_commit);
            }
            RunFact::Placed { epoch, .. } => {
                summary["phase"] = json!("Starting");
                summary["epochs"] = json!(epoch);
                if summary["startedAt"].is_null() {
                    summary["startedAt"] = json!(entry.at);
                }
            }
            RunFact::Running { .. } => summary["phase"] = json!("Running"),
            RunFact::Progress { progress } => {
                summary["lastMetrics"] = json!(progress.metrics);
                summary["lastStep"] = json!(progress.step);
            }
            RunFact::EpochEnded { record } => summary["reason"] = json!(record.reason),
            RunFact::Finished { phase, reason, usage } => {
                summary["phase"] = json!(phase);
                summary["reason"] = json!(reason);
                summary["usage"] = json!(usage);
                summary["finishedAt"] = json!(entry.at);
            }
            RunFact::Pod { .. } | RunFact::Checkpoint { .. } => {}
        }
    }
    summary
}

/// The runs as a resource of the API.
pub struct RunsApi {
    /// The records.
    pub runs: Arc<Runs>,
    /// Where logs come from.
    pub logs: Arc<dyn PodLogs>,
}

#[async_trait]
impl VirtualResource for RunsApi {
    fn descriptors(&self) -> Vec<VirtualDescriptor> {
        vec![VirtualDescriptor {
            group: GROUP.to_owned(),
            version: "v1alpha1".to_owned(),
            plural: "runs".to_owned(),
            kind: "Run".to_owned(),
            scope: Scope::Namespaced,
            verbs: vec!["get".to_owned(), "list".to_owned()],
            subresources: vec!["log".to_owned(), "progress".to_owned()],
            schema: None,
        }]
    }

    async fn handle(&self, request: VirtualRequest) -> Result<VirtualResponse, ApiError> {
        let Some(name) = request.name.as_deref() else {
            let mut items = Vec::new();
            for run in self.runs.runs(request.namespace.as_deref())? {
                items.push(summary(&run, &self.runs.entries(&run)?));
            }
            items.sort_by_key(|item| item["submittedAt"].as_str().map(str::to_owned));
            return Ok(VirtualResponse::Json(
                json!({"apiVersion": "runs.regatta.dev/v1alpha1", "kind": "RunList", "metadata": {}, "items": items}),
            ));
        };
        let namespace = request.namespace.as_deref().unwrap_or("default");
        let (run, entries) = self.runs.find(namespace, name, request.query.get("uid").map(String::as_str))?;
        match request.subresource.as_deref() {
            None => Ok(VirtualResponse::Json(json!({
                "apiVersion": "runs.regatta.dev/v1alpha1", "kind": "Run",
                "metadata": {"name": run.name, "namespace": run.namespace, "uid": run.uid},
                "summary": summary(&run, &entries), "entries": entries,
            }))),
            Some("log") => self.log(&run, &entries, &request.query).await,
            Some("progress") => Ok(self.progress(&run, &entries, &request.query)),
            Some(other) => Err(ApiError {
                code: 404,
                reason: "NotFound".to_owned(),
                message: format!("a run has no {other:?}; it has log and progress"),
            }),
        }
    }
}

impl RunsApi {
    async fn log(
        &self,
        run: &RunKey,
        entries: &[RunEntry],
        query: &BTreeMap<String, String>,
    ) -> Result<VirtualResponse, ApiError> {
        let number = |name: &str| -> Result<Option<u64>, ApiError> {
            let Some(text) = query.get(name) else { return Ok(None) };
            text.parse().map(Some).map_err(|_| bad_request(format!("{name}={text:?} is not a whole number")))
        };
        let flag = |name: &str| query.get(name).is_some_and(|value| value == "true" || value == "1");
        let (epoch, slot, rank) = (number("epoch")?, number("slot")?, number("rank")?);
        let pods = entries.iter().filter_map(|entry| match &entry.fact {
            RunFact::Pod { epoch: of, role, slot: at, pod, uid, .. } => {
                Some((of.0, role, u64::from(*at), pod, uid))
            }
            _ => None,
        });
        let pods: Vec<_> = pods.collect();
        let epoch = match (epoch, flag("previous")) {
            (Some(epoch), _) => Some(epoch),
            (None, previous) => pods
                .iter()
                .map(|pod| pod.0)
                .max()
                .map(|last| if previous { last.saturating_sub(1) } else { last }),
        };
        let wanted = |pod: &&(u64, &String, u64, &String, &String)| {
            Some(pod.0) == epoch
                && query.get("role").is_none_or(|role| role == pod.1)
                && slot.is_none_or(|slot| slot == pod.2)
        };
        let Some((_, _, _, pod, uid)) = pods.iter().find(wanted) else {
            let message = format!(
                "run {} has no such slot in epoch {}",
                run.name,
                epoch.map_or("0".to_owned(), |e| e.to_string())
            );
            return Err(ApiError { code: 404, reason: "NotFound".to_owned(), message });
        };
        let stream = self
            .logs
            .open(LogOf {
                namespace: run.namespace.clone(),
                pod: (*pod).clone(),
                uid: Some(Uid((*uid).clone())),
                request: LogRequest {
                    container: query.get("container").cloned(),
                    rank: rank.map(|rank| u32::try_from(rank).unwrap_or(u32::MAX)),
                    follow: flag("follow"),
                    tail_lines: number("tailLines")?,
                    timestamps: flag("timestamps"),
                    ..LogRequest::default()
                },
            })
            .await?;
        Ok(VirtualResponse::Stream(stream))
    }

    fn progress(
        &self,
        run: &RunKey,
        entries: &[RunEntry],
        query: &BTreeMap<String, String>,
    ) -> VirtualResponse {
        let line = |progress: &Progress| {
            let mut text =
                serde_json::to_string(progress).expect("invariant: progress can be written as JSON");
            text.push('\n');
            Bytes::from(text)
        };
        let finished = entries.iter().any(|entry| matches!(entry.fact, RunFact::Finished { .. }));
        if query.get("watch").is_none_or(|watch| watch != "true") || finished {
            let last = entries.iter().rev().find_map(|entry| match &entry.fact {
                RunFact::Progress { progress } => Some(progress.clone()),
                _ => None,
            });
            let live = if finished { None } else { self.runs.progress(run).borrow().clone() };
            let lines: Vec<Result<Bytes, ApiError>> =
                live.or(last).iter().map(|progress| Ok(line(progress))).collect();
            return VirtualResponse::Stream(futures::stream::iter(lines).boxed());
        }
        let stream = futures::stream::unfold(
            (self.runs.progress(run), true),
            move |(mut receiver, first)| async move {
                loop {
                    if !first && receiver.changed().await.is_err() {
                        return None;
                    }
                    let progress = receiver.borrow_and_update().clone();
                    match progress {
                        Some(progress) => return Some((Ok(line(&progress)), (receiver, false))),
                        None if receiver.changed().await.is_err() => return None,
                        None => {
                            receiver.mark_changed();
                        }
                    }
                }
            },
        );
        VirtualResponse::Stream(stream.boxed())
    }
}

fn bad_request(message: String) -> ApiError {
    ApiError { code: 400, reason: "BadRequest".to_owned(), message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_types::job::JobPhase;

    fn at(ms: i64, fact: RunFact) -> RunEntry {
        RunEntry { at: Timestamp::from_unix_ms(ms), fact }
    }

    #[test]
    fn the_last_of_a_repeated_fact_counts() {
        let placed = |epoch| RunFact::Placed { epoch: Epoch(epoch), placement: Vec::new(), resume: None };
        let progress = RunFact::Progress { progress: Progress::default() };
        let entries = once_each(vec![
            at(1, placed(1)),
            at(2, progress.clone()),
            at(3, placed(1)),
            at(4, progress),
            at(5, placed(2)),
        ]);
        let times: Vec<i64> = entries.iter().map(|entry| entry.at.unix_ms()).collect();
        assert_eq!(times, [2, 3, 4, 5]);
    }

    #[test]
    fn the_oldest_ended_runs_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let log = AppendLog::open(directory.path()).unwrap();
        let runs = Runs::new(log, Arc::new(regatta_types::SystemClock));
        let run = |name: &str| RunKey { namespace: "default".into(), name: name.into(), uid: Uid::from("u") };
        let finished = || RunFact::Finished {
            phase: JobPhase::Succeeded,
            reason: None,
            usage: regatta_types::job::Usage::default(),
        };
        for (name, at_ms) in [("old", 1), ("running", 2), ("new", 3)] {
            runs.append(&run(name), &at(at_ms, RunFact::Running { epoch: Epoch(1) }));
            runs.append(&run(name), &at(at_ms, RunFact::Progress { progress: Progress::default() }));
        }
        runs.append(&run("old"), &at(4, finished()));
        runs.append(&run("new"), &at(5, finished()));
        assert_eq!(runs.entries(&run("old")).unwrap().len(), 3, "progress is part of the record");
        runs.forget_oldest(2);
        let left: Vec<String> = runs.runs(None).unwrap().into_iter().map(|run| run.name).collect();
        assert_eq!(left, ["new", "running"]);
    }

    #[test]
    fn keys_can_be_taken_apart() {
        let run = RunKey { namespace: "team-a".into(), name: "digits".into(), uid: Uid::from("1-2") };
        assert_eq!(parse_log_key(&progress_key(&run)), None);
        assert_eq!(parse_log_key(&log_key(&run)), Some(run));
        assert_eq!(parse_log_key("no-underscore"), None);
    }

    #[test]
    fn a_summary_tells_the_end() {
        let run = RunKey { namespace: "default".into(), name: "digits".into(), uid: Uid::from("u") };
        let finished = RunFact::Finished {
            phase: JobPhase::Failed,
            reason: None,
            usage: regatta_types::job::Usage::default(),
        };
        let value = summary(&run, &[at(1, RunFact::Running { epoch: Epoch(1) }), at(2, finished)]);
        assert_eq!(value["phase"], "Failed");
        assert_eq!(value["finishedAt"], "1970-01-01T00:00:00.002Z");
    }
}
