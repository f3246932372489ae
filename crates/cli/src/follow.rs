//! Follows a job: its lines on standard output, what becomes of it on standard error, its progress in a line that is
//! replaced.

use crate::api::{Api, LogQuery, named, of_job};
use crate::error::{Error, Exit, Result};
use crate::narrate;
use crate::output::StatusLine;
use crate::streams::{self, Lines, LogPlace, LogSource, Times};
use crate::watch::{AWAY_MAX, RETRY_INTERVAL, Seen, keep_watching};
use futures::{Stream, StreamExt};
use regatta_types::evidence::Progress;
use regatta_types::job::{Job, JobPhase, JobStatus};
use regatta_types::pod::Pod;
use regatta_types::run_record::RunFact;
use regatta_types::{Clock, SystemClock, resource};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Messages that may wait to be shown.
const MESSAGES_MAX: usize = 1024;
/// How often the live line is drawn.
const REDRAW: Duration = Duration::from_millis(500);
/// How long the logs of a job that has ended may be silent before they are given up.
const LOGS_SILENT_MAX: Duration = Duration::from_secs(5);
/// Within which time a second interrupt means: cancel.
const SECOND_INTERRUPT_MS: u64 = 3000;

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

enum Message {
    Job(Result<Seen<Job>>),
    Pod(Result<Seen<Pod>>),
    Log(Vec<u8>),
    Trouble(String),
    Progress(Progress),
    Interrupt,
}

/// Follows `job` until it ends or the person leaves.
pub(crate) async fn follow(api: &Api, job: Job, options: Follow) -> Result<Followed> {
    let (sender, mut messages) = mpsc::channel(MESSAGES_MAX);
    let mut listeners = JoinSet::new();
    listen(api, &job, &mut listeners, &sender);
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
        interrupted_at_ms: None,
    };
    let mut redraw = tokio::time::interval(REDRAW);
    follower.tell_news();
    loop {
        if follower.job.status.phase.is_terminal() || follower.job.status.phase == JobPhase::Suspended {
            drop(listeners);
            follower.finish(messages).await;
            return Ok(Followed::Ended(Box::new(follower.job)));
        }
        let left = tokio::select! {
            Some(message) = messages.recv() => follower.take(message).await?,
            _ = redraw.tick() => follower.tick(),
        };
        if let Some(end) = left {
            follower.line.end();
            return Ok(end);
        }
    }
}

fn listen(api: &Api, job: &Job, listeners: &mut JoinSet<()>, sender: &mpsc::Sender<Message>) {
    let name = &job.metadata.name;
    listeners.spawn(keep_watching(api.clone(), resource::JOBS, named(name), sender.clone(), Message::Job));
    listeners.spawn(keep_watching(api.clone(), resource::PODS, of_job(name), sender.clone(), Message::Pod));
    let (api, name, uid, to) = (api.clone(), name.clone(), job.metadata.uid().0, sender.clone());
    listeners.spawn(async move {
        // Where no progress is served there is none to show.
        let Ok(mut reports) = api.progress(&name, &uid).await else { return };
        while let Some(report) = reports.next().await {
            if to.send(Message::Progress(report)).await.is_err() {
                return;
            }
        }
    });
    let to = sender.clone();
    listeners.spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() && to.send(Message::Interrupt).await.is_ok() {}
    });
}

struct Follower {
    api: Api,
    /// The state that the person has been told of.
    told: Option<JobStatus>,
    job: Job,
    options: Follow,
    line: StatusLine,
    progress: Option<Progress>,
    /// Streams that are being shown, or were.
    followed: BTreeSet<(String, String)>,
    logs: JoinSet<()>,
    sender: mpsc::Sender<Message>,
    interrupted_at_ms: Option<u64>,
}

impl Follower {
    async fn take(&mut self, message: Message) -> Result<Option<Followed>> {
        match message {
            Message::Job(seen) => self.saw_job(seen).await?,
            Message::Pod(Ok(Seen::Now(pod))) => self.saw_pod(&pod),
            // The watch of the job tells the rest.
            Message::Pod(Ok(_)) => {}
            Message::Pod(Err(error)) => return Err(self.given_up(error)),
            Message::Log(bytes) => self.line.data_bytes(&bytes),
            Message::Trouble(sentence) => self.line.talk(&sentence),
            Message::Progress(progress) => self.progress = Some(progress),
            Message::Interrupt => return self.interrupt().await,
        }
        Ok(None)
    }

    async fn saw_job(&mut self, seen: Result<Seen<Job>>) -> Result<()> {
        match seen {
            Ok(Seen::Now(job)) => self.is_now(*job),
            Ok(Seen::Gone) => return Err(self.deleted()),
            Ok(Seen::Away) => {
                self.line.talk("the server does not answer; waiting for it (the job goes on)");
            }
            Ok(Seen::Back) => {
                self.line.talk("the server answers again");
                match self.api.get::<Job>(&resource::JOBS, &self.job.metadata.name).await {
                    Ok(job) if job.metadata.uid == self.job.metadata.uid => self.is_now(job),
                    Ok(_) => return Err(self.deleted()),
                    Err(error) if error.exit == Exit::NotFound => return Err(self.deleted()),
                    // The watch goes on trying.
                    Err(_) => {}
                }
            }
            Err(error) => return Err(self.given_up(error)),
        }
        Ok(())
    }

    fn is_now(&mut self, job: Job) {
        if job.metadata.uid == self.job.metadata.uid {
            self.job = job;
            self.tell_news();
        }
    }

    fn deleted(&mut self) -> Error {
        self.line.end();
        let name = &self.job.metadata.name;
        Error::new(Exit::NotFound, format!("job {name} was deleted"))
            .fix(format!("`regatta runs {name}` has its record"))
    }

    fn given_up(&mut self, error: Error) -> Error {
        self.line.end();
        match error.exit {
            Exit::Unreachable => error.fix(format!(
                "`regatta logs -f {}` follows it again once the server is back",
                self.job.metadata.name
            )),
            _ => error,
        }
    }

    fn tell_news(&mut self) {
        if self.options.news == News::Yes {
            for line in narrate::news(self.told.as_ref(), &self.job) {
                self.line.talk(&format!("{}: {line}", self.job.metadata.name));
            }
        }
        self.told = Some(self.job.status.clone());
    }

    /// Starts to show what a pod's ranks write, once they run or have run.
    fn saw_pod(&mut self, pod: &Pod) {
        let mut owners = pod.metadata.owner_references.iter();
        if owners.any(|owner| Some(&owner.uid) == self.job.metadata.uid.as_ref()) {
            for source in streams::of_pod(&self.job, pod, self.options.logs.rank) {
                self.show(source);
            }
        }
    }

    fn show(&mut self, source: LogSource) {
        if !self.followed.insert(source.key.clone()) {
            return;
        }
        let (api, job, to) = (self.api.clone(), self.job.metadata.name.clone(), self.sender.clone());
        let times = if self.options.logs.timestamps { Times::Shown } else { Times::Hidden };
        let query = LogQuery {
            follow: true,
            // A stream that breaks is resumed by the times of its lines.
            timestamps: true,
            rank: None,
            uid: Some(self.job.metadata.uid().0),
            ..self.options.logs.clone()
        };
        self.logs.spawn(async move {
            let mut lines = Lines::new(source.prefix.clone(), times);
            if let Err(error) = copy(&api, &job, &source.place, query, &mut lines, &to).await {
                let _ = to.send(Message::Trouble(error.sentence)).await;
            }
            let rest = lines.rest();
            if !rest.is_empty() {
                let _ = to.send(Message::Log(rest)).await;
            }
        });
    }

    async fn interrupt(&mut self) -> Result<Option<Followed>> {
        let name = self.job.metadata.name.clone();
        if self.options.news == News::No {
            return Ok(Some(Followed::Detached));
        }
        if self.interrupted_at_ms.take().is_some() {
            self.line.talk(&format!("{name}: cancelling"));
            self.api.patch_job(&name, &serde_json::json!({"spec": {"cancel": true}})).await?;
            return Ok(None);
        }
        self.interrupted_at_ms = Some(SystemClock.monotonic_ms());
        let seconds = SECOND_INTERRUPT_MS / 1000;
        self.line.talk(&format!(
            "{name} goes on without you; press Ctrl-C again within {seconds} seconds to cancel it"
        ));
        Ok(None)
    }

    fn tick(&mut self) -> Option<Followed> {
        let now_ms = SystemClock.monotonic_ms();
        if self.interrupted_at_ms.is_some_and(|at| now_ms.saturating_sub(at) > SECOND_INTERRUPT_MS) {
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
    async fn finish(&mut self, mut messages: mpsc::Receiver<Message>) {
        for source in self.unseen().await {
            self.show(source);
        }
        // With the last stream the channel ends, for nobody else holds a sender any more.
        let (nobody, _) = mpsc::channel(1);
        self.sender = nobody;
        loop {
            let next = tokio::select! {
                next = tokio::time::timeout(LOGS_SILENT_MAX, messages.recv()) => next,
                // The job has ended; only reading on can be interrupted.
                _ = tokio::signal::ctrl_c() => break,
            };
            match next {
                Ok(Some(Message::Log(bytes))) => self.line.data_bytes(&bytes),
                Ok(Some(Message::Trouble(sentence))) => self.line.talk(&sentence),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => {
                    let name = &self.job.metadata.name;
                    self.line.talk(&format!("a log does not end; `regatta logs {name}` has what is in it"));
                    break;
                }
            }
        }
        self.line.end();
    }

    /// Streams of pods that came and went between two looks: of those that are there, and of those in the record.
    async fn unseen(&self) -> Vec<LogSource> {
        let pods = self.api.pods_of(&self.job.metadata.name).await.unwrap_or_default();
        let rank = self.options.logs.rank;
        let mut sources: Vec<LogSource> =
            pods.iter().flat_map(|pod| streams::of_pod(&self.job, pod, rank)).collect();
        let record = self.api.run_entries(&self.job.metadata.name).await.unwrap_or_default();
        for entry in record {
            let RunFact::Pod { epoch, role, slot, uid, .. } = entry.fact else { continue };
            let known = self.followed.iter().any(|(pod, _)| *pod == uid)
                || sources.iter().any(|source| source.key.0 == uid)
                || pods.iter().any(|pod| pod.metadata.uid().0 == uid);
            // Which ranks it had is not in the record, so one that was asked for cannot be told from the others.
            if known || rank.is_some() {
                continue;
            }
            let prefix = (self.job.slots() > 1).then(|| format!("[{role}-{slot}] "));
            let place = LogPlace::Run { epoch: epoch.0, role, slot, rank: None, pod: None };
            sources.push(LogSource { key: (uid, "main".to_owned()), place, prefix });
        }
        sources
    }
}

/// Copies a stream to its end; one that breaks is opened again for as long as the server may be away.
async fn copy(
    api: &Api,
    job: &str,
    place: &LogPlace,
    mut query: LogQuery,
    lines: &mut Lines,
    to: &mpsc::Sender<Message>,
) -> Result<()> {
    let mut away = Duration::ZERO;
    loop {
        match open(api, job, place, query.clone()).await {
            Ok(mut stream) => loop {
                match stream.next().await {
                    None => return Ok(()),
                    Some(Err(_)) => break,
                    Some(Ok(chunk)) => {
                        away = Duration::ZERO;
                        let whole = lines.push(&chunk);
                        if !whole.is_empty() && to.send(Message::Log(whole)).await.is_err() {
                            return Ok(());
                        }
                    }
                }
            },
            Err(error) if error.exit == Exit::Unreachable && away < AWAY_MAX => {}
            Err(error) => return Err(error),
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
        away = away.saturating_add(RETRY_INTERVAL);
        lines.again();
        query.tail = None;
    }
}

type Bytes = std::pin::Pin<Box<dyn Stream<Item = std::io::Result<Vec<u8>>> + Send>>;

async fn open(api: &Api, job: &str, place: &LogPlace, query: LogQuery) -> Result<Bytes> {
    match place {
        LogPlace::Container { pod, container } => {
            let query = LogQuery { container: Some(container.clone()), ..query };
            Ok(Box::pin(api.pod_log(pod, &query).await?))
        }
        LogPlace::Run { epoch, role, slot, rank, pod } => {
            let of_rank = LogQuery { rank: *rank, ..query.clone() };
            match (api.run_log(job, *epoch, (role, *slot), &of_rank).await, pod) {
                (Err(error), Some(pod)) if error.exit == Exit::NotFound => {
                    Ok(Box::pin(api.pod_log(pod, &query).await?))
                }
                (stream, _) => Ok(Box::pin(stream?)),
            }
        }
    }
}

/// Reads what is there of a log and shows it.
pub(crate) async fn show_log(
    mut stream: impl Stream<Item = std::io::Result<Vec<u8>>> + Unpin,
    prefix: Option<String>,
) -> Result<()> {
    let mut lines = Lines::new(prefix, Times::Unread);
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|e| {
            Error::new(Exit::Unreachable, format!("the log was cut off: {e}")).fix("try again")
        })?;
        crate::output::data_bytes(&lines.push(&chunk));
    }
    crate::output::data_bytes(&lines.rest());
    Ok(())
}
