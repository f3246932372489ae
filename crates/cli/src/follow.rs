//! Following a job: its state changes, its logs and its progress, merged as they come.

use crate::api::{Api, LogQuery, Watched, drain};
use crate::error::{Error, Exit, Result};
use crate::narrate;
use crate::output::StatusLine;
use futures::StreamExt;
use regatta_types::evidence::Progress;
use regatta_types::job::{Job, JobPhase, JobStatus};
use regatta_types::pod::{LaunchSpec, Pod};
use regatta_types::{Clock, SystemClock, Uid, labels, resource};
use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Messages that may wait to be shown.
const MESSAGES_MAX: usize = 1024;
/// How often the live line is drawn.
const REDRAW: Duration = Duration::from_millis(500);
/// How long logs may go on after their job has ended.
const LOGS_END: Duration = Duration::from_secs(5);
/// Within which time a second interrupt means: cancel.
const SECOND_INTERRUPT: Duration = Duration::from_secs(3);

/// What to show.
#[derive(Debug, Clone)]
pub(crate) struct Follow {
    pub(crate) logs: LogQuery,
    /// Whether state changes are told.
    pub(crate) news: News,
}

/// Whether state changes are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    Yes,
    No,
}

/// How following ended.
#[derive(Debug)]
pub(crate) enum Followed {
    /// The job has ended, or was suspended.
    Ended(Box<Job>),
    /// The person left; the job goes on.
    Detached,
}

#[expect(clippy::large_enum_variant, reason = "a handful wait at a time")]
enum Message {
    Job(Result<Watched<Job>>),
    Pod(Result<Watched<Pod>>),
    Log(Vec<u8>),
    Progress(Progress),
    Interrupt,
}

/// Follows `job` until it ends or the person leaves.
pub(crate) async fn follow(api: &Api, job: Job, options: Follow) -> Result<Followed> {
    let (sender, mut messages) = mpsc::channel(MESSAGES_MAX);
    let mut tasks = JoinSet::new();
    watch(api, &job, &mut tasks, &sender).await?;
    let mut follower = Follower {
        api: api.clone(),
        told: None,
        job,
        options,
        line: StatusLine::new(),
        progress: None,
        followed: BTreeSet::new(),
        logs: JoinSet::new(),
        sender,
        interrupted: None,
    };
    let mut redraw = tokio::time::interval(REDRAW);
    follower.tell_news();
    loop {
        if follower.job.status.phase.is_terminal() || follower.job.status.phase == JobPhase::Suspended {
            follower.finish(&mut messages).await?;
            return Ok(Followed::Ended(Box::new(follower.job)));
        }
        tokio::select! {
            message = messages.recv() => {
                let Some(message) = message else { return Ok(Followed::Detached) };
                if let Some(end) = follower.take(message).await? {
                    return Ok(end);
                }
            }
            _ = redraw.tick() => {
                if let Some(end) = follower.tick() {
                    return Ok(end);
                }
            }
        }
    }
}

async fn watch(api: &Api, job: &Job, tasks: &mut JoinSet<()>, sender: &mpsc::Sender<Message>) -> Result<()> {
    let name = &job.metadata.name;
    let mut jobs =
        api.watch::<Job>(&resource::JOBS, &format!("fieldSelector=metadata.name%3D{name}")).await?;
    let mut pods =
        api.watch::<Pod>(&resource::PODS, &format!("labelSelector={}%3D{name}", labels::JOB_NAME)).await?;
    let to = sender.clone();
    tasks.spawn(async move {
        while let Some(change) = jobs.next().await {
            if to.send(Message::Job(change)).await.is_err() {
                return;
            }
        }
        let ended =
            Error::new(Exit::Unreachable, "the server ended the watch").fix("`regatta logs -f` goes on");
        let _ = to.send(Message::Job(Err(ended))).await;
    });
    let to = sender.clone();
    tasks.spawn(async move {
        while let Some(change) = pods.next().await {
            if to.send(Message::Pod(change)).await.is_err() {
                return;
            }
        }
    });
    let (api, name, to) = (api.clone(), name.clone(), sender.clone());
    tasks.spawn(async move {
        // Where no progress is served there is none to show.
        let Ok(mut reports) = api.progress(&name).await else { return };
        while let Some(report) = reports.next().await {
            if to.send(Message::Progress(report)).await.is_err() {
                return;
            }
        }
    });
    let to = sender.clone();
    tasks.spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() && to.send(Message::Interrupt).await.is_ok() {}
    });
    Ok(())
}

struct Follower {
    api: Api,
    /// The state that the person has been told of.
    told: Option<JobStatus>,
    job: Job,
    options: Follow,
    line: StatusLine,
    progress: Option<Progress>,
    /// Pods whose log is being shown, or was.
    followed: BTreeSet<Uid>,
    logs: JoinSet<()>,
    sender: mpsc::Sender<Message>,
    interrupted: Option<u64>,
}

impl Follower {
    async fn take(&mut self, message: Message) -> Result<Option<Followed>> {
        match message {
            Message::Job(Ok(Watched::Applied(job))) => {
                if job.metadata.uid == self.job.metadata.uid {
                    self.job = job;
                    self.tell_news();
                }
            }
            Message::Job(Ok(Watched::Deleted)) => {
                self.line.end();
                let sentence = format!("job {} was deleted", self.job.metadata.name);
                return Err(Error::new(Exit::NotFound, sentence).fix("`regatta runs` has its record"));
            }
            Message::Job(Err(error)) | Message::Pod(Err(error)) => {
                self.line.end();
                return Err(error);
            }
            Message::Pod(Ok(Watched::Applied(pod))) => self.follow_pod(&pod),
            Message::Pod(Ok(Watched::Deleted)) => {}
            Message::Log(bytes) => self.line.data_bytes(&bytes),
            Message::Progress(progress) => self.progress = Some(progress),
            Message::Interrupt => return self.interrupt().await,
        }
        Ok(None)
    }

    fn tell_news(&mut self) {
        if self.options.news == News::Yes {
            for line in narrate::news(self.told.as_ref(), &self.job) {
                self.line.talk(&format!("{}: {line}", self.job.metadata.name));
            }
        }
        self.told = Some(self.job.status.clone());
    }

    /// Starts to show the log of a pod whose ranks run or have run.
    fn follow_pod(&mut self, pod: &Pod) {
        let owned = pod
            .metadata
            .owner_references
            .iter()
            .any(|owner| Some(&owner.uid) == self.job.metadata.uid.as_ref());
        let begun = matches!(pod.status.phase.as_str(), "Running" | "Succeeded" | "Failed");
        if !owned || !begun || !self.followed.insert(pod.metadata.uid()) {
            return;
        }
        let launch =
            pod.metadata.annotations.get(labels::LAUNCH).and_then(|text| serde_json::from_str(text).ok());
        let launch: LaunchSpec = launch.unwrap_or_default();
        let last = launch.first_rank.0 + launch.procs.max(1) - 1;
        if self.options.logs.rank.is_some_and(|rank| rank < launch.first_rank.0 || rank > last) {
            return;
        }
        let prefix =
            (self.job.slots() > 1 && launch.procs <= 1).then(|| format!("[rank {}] ", launch.first_rank));
        let (api, name, to) = (self.api.clone(), pod.metadata.name.clone(), self.sender.clone());
        let query = LogQuery { follow: true, rank: None, ..self.options.logs.clone() };
        let only = self.options.logs.rank.filter(|_| launch.procs > 1).map(|rank| format!("[rank {rank}] "));
        self.logs.spawn(async move {
            let mut lines = Lines::new(prefix, only);
            let result = async {
                let stream = api.pod_log(&name, &query).await?;
                let mut stream = stream;
                while let Some(chunk) = stream.next().await {
                    let chunk =
                        chunk.map_err(|e| Error::failure(format!("the log of {name} was cut off: {e}")))?;
                    let whole = lines.push(&chunk);
                    if !whole.is_empty() && to.send(Message::Log(whole)).await.is_err() {
                        return Ok(());
                    }
                }
                Ok::<(), Error>(())
            };
            let failed = result.await.err();
            let rest = lines.rest();
            if !rest.is_empty() {
                let _ = to.send(Message::Log(rest)).await;
            }
            if let Some(error) = failed {
                let _ = to.send(Message::Log(format!("[regatta] {}\n", error.sentence).into_bytes())).await;
            }
        });
    }

    async fn interrupt(&mut self) -> Result<Option<Followed>> {
        let name = self.job.metadata.name.clone();
        if self.options.news == News::No {
            return Ok(Some(Followed::Detached));
        }
        if self.interrupted.take().is_some() {
            self.line.talk(&format!("{name}: cancelling"));
            self.api.patch_job(&name, &serde_json::json!({"spec": {"cancel": true}})).await?;
            return Ok(None);
        }
        self.interrupted = Some(SystemClock.monotonic_ms());
        self.line
            .talk(&format!("{name} goes on without you; press Ctrl-C again within 3 seconds to cancel it"));
        Ok(None)
    }

    fn tick(&mut self) -> Option<Followed> {
        let now_ms = SystemClock.monotonic_ms();
        let limit = u64::try_from(SECOND_INTERRUPT.as_millis()).unwrap_or(u64::MAX);
        if self.interrupted.is_some_and(|at| now_ms.saturating_sub(at) > limit) {
            self.line.end();
            return Some(Followed::Detached);
        }
        if self.options.news == News::Yes && self.line.is_live() {
            let heard = self.progress.as_ref().filter(|progress| progress.epoch == self.job.status.epoch);
            let text = narrate::status_line(&self.job, heard, SystemClock.now());
            self.line.show(&text);
        }
        None
    }

    /// Shows what is left of the logs of a job that has ended.
    async fn finish(&mut self, messages: &mut mpsc::Receiver<Message>) -> Result<()> {
        // The last pods may have ended before the watch told of them.
        if let Ok(pods) = self.api.pods_of(&self.job.metadata.name).await {
            pods.iter().for_each(|pod| self.follow_pod(pod));
        }
        let deadline = tokio::time::sleep(LOGS_END);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                biased;
                Some(message) = messages.recv() => if let Message::Log(bytes) = message {
                    self.line.data_bytes(&bytes);
                },
                next = self.logs.join_next() => if next.is_none() {
                    while let Ok(message) = messages.try_recv() {
                        if let Message::Log(bytes) = message {
                            self.line.data_bytes(&bytes);
                        }
                    }
                    break;
                },
                () = &mut deadline => break,
            }
        }
        self.line.end();
        Ok(())
    }
}

/// Puts whole lines together, with a prefix, so that the lines of several logs do not mix.
struct Lines {
    prefix: Option<String>,
    only: Option<String>,
    partial: Vec<u8>,
}

impl Lines {
    fn new(prefix: Option<String>, only: Option<String>) -> Self {
        Self { prefix, only, partial: Vec::new() }
    }

    fn push(&mut self, chunk: &[u8]) -> Vec<u8> {
        self.partial.extend_from_slice(chunk);
        let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        let rest = self.partial.split_off(end + 1);
        let whole = std::mem::replace(&mut self.partial, rest);
        self.decorate(&whole)
    }

    fn rest(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.partial);
        if rest.is_empty() {
            return rest;
        }
        rest.push(b'\n');
        self.decorate(&rest)
    }

    fn decorate(&self, lines: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(lines.len());
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let line = match &self.only {
                None => line,
                Some(only) => match line.strip_prefix(only.as_bytes()) {
                    Some(line) => line,
                    None => continue,
                },
            };
            if let Some(prefix) = &self.prefix {
                let _ = out.write_all(prefix.as_bytes());
            }
            out.extend_from_slice(line);
        }
        out
    }
}

/// Reads what is there of a log and shows it.
pub(crate) async fn show_log(
    stream: impl futures::Stream<Item = std::io::Result<Vec<u8>>> + Unpin,
    prefix: Option<String>,
) -> Result<()> {
    let mut lines = Lines::new(prefix, None);
    let mut shown = Vec::new();
    drain(stream, |chunk| {
        shown.extend(lines.push(chunk));
        if !shown.is_empty() {
            crate::output::data_bytes(&std::mem::take(&mut shown));
        }
    })
    .await?;
    let rest = lines.rest();
    if !rest.is_empty() {
        crate::output::data_bytes(&rest);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_whole() {
        let mut lines = Lines::new(Some("[rank 1] ".into()), None);
        assert_eq!(lines.push(b"one\ntw"), b"[rank 1] one\n");
        assert_eq!(lines.push(b"o\nthree"), b"[rank 1] two\n");
        assert_eq!(lines.rest(), b"[rank 1] three\n");
        assert_eq!(lines.rest(), b"");
        let mut only = Lines::new(None, Some("[rank 2] ".into()));
        assert_eq!(only.push(b"[rank 1] a\n[rank 2] b\n"), b"b\n");
    }
}
