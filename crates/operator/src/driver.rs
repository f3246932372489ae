//! Feeds the core from informers and carries out its effects: the only asynchronous part of the operator.

use crate::admission::{self, Refusal};
use crate::core::{Change, Core, Input, Observation};
use crate::effects::{Effect, RunLog, perform};
use regatta_kit::informer::Sleep;
use regatta_kit::{Cluster, Informer, InformerEvent, ListOptions, Object};
use regatta_types::job::Job;
use regatta_types::preview::{JobPreview, JobPreviewStatus};
use regatta_types::{Clock, Resource, resource};
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How many effects are carried out at once.
const EFFECTS_AT_ONCE_MAX: usize = 128;
/// How many messages may wait for the core; who sends more waits.
const MESSAGES_MAX: usize = 4096;
/// How many waiting messages are taken in before the core decides again.
const BATCH_MAX: usize = 1024;

/// What the operator needs.
pub struct Options {
    /// The API.
    pub cluster: Arc<dyn Cluster>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Where facts of runs go.
    pub run_log: Arc<dyn RunLog>,
}

#[expect(clippy::large_enum_variant, reason = "nearly all messages are of the large kind")]
enum Message {
    Input(Input),
    Preview { namespace: String, preview: Box<JobPreview>, answer: oneshot::Sender<JobPreviewStatus> },
    CheckFits { job: Box<Job>, answer: oneshot::Sender<Result<(), Refusal>> },
    WhenSynced(oneshot::Sender<()>),
    Drain(oneshot::Sender<()>),
}

/// Talks to a running operator. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    messages: mpsc::Sender<Message>,
}

/// The operator has stopped; nobody answers any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the operator has stopped")]
pub struct Stopped;

impl Handle {
    async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> Message) -> Result<T, Stopped> {
        let (answer, answered) = oneshot::channel();
        self.messages.send(message(answer)).await.map_err(|_| Stopped)?;
        answered.await.map_err(|_| Stopped)
    }

    /// What would happen to a job.
    ///
    /// # Errors
    /// When the operator has stopped.
    pub async fn preview(&self, namespace: &str, preview: JobPreview) -> Result<JobPreviewStatus, Stopped> {
        let namespace = namespace.to_owned();
        self.ask(|answer| Message::Preview { namespace, preview: Box::new(preview), answer }).await
    }

    /// Whether the nodes that exist could hold the job if they were empty.
    ///
    /// # Errors
    /// When the operator has stopped.
    pub async fn check_fits(&self, job: Job) -> Result<Result<(), Refusal>, Stopped> {
        self.ask(|answer| Message::CheckFits { job: Box::new(job), answer }).await
    }

    /// Returns once every kind has been listed.
    ///
    /// # Errors
    /// When the operator has stopped.
    pub async fn synced(&self) -> Result<(), Stopped> {
        self.ask(Message::WhenSynced).await
    }

    /// Stops all that runs, to be queued again, and returns once nothing holds resources.
    ///
    /// # Errors
    /// When the operator has stopped.
    pub async fn drain(&self) -> Result<(), Stopped> {
        self.ask(Message::Drain).await
    }

    /// Passes on what an agent reported.
    ///
    /// # Errors
    /// When the operator has stopped.
    pub async fn observe(&self, observation: Observation) -> Result<(), Stopped> {
        self.messages.send(Message::Input(Input::Observed(observation))).await.map_err(|_| Stopped)
    }
}

/// An operator that is ready to run.
pub struct Operator {
    options: Options,
    core: Core,
    handle: Handle,
    messages: mpsc::Receiver<Message>,
    synced: Vec<oneshot::Sender<()>>,
    drained: Vec<oneshot::Sender<()>>,
}

impl Operator {
    /// An operator; nothing happens before [`Operator::run`].
    pub fn new(options: Options) -> (Self, Handle) {
        let (sender, messages) = mpsc::channel(MESSAGES_MAX);
        let handle = Handle { messages: sender };
        let operator = Self {
            options,
            core: Core::new(),
            handle: handle.clone(),
            messages,
            synced: Vec::new(),
            drained: Vec::new(),
        };
        (operator, handle)
    }

    /// Works until `shutdown`. Effects under way are finished; nothing that runs is stopped.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut informers = JoinSet::new();
        self.inform(&mut informers, resource::JOBS, Input::Jobs);
        self.inform(&mut informers, resource::PODS, Input::Pods);
        self.inform(&mut informers, resource::NODES, Input::Nodes);
        self.inform(&mut informers, resource::QUEUES, Input::Queues);
        self.inform(&mut informers, resource::NODE_POOLS, Input::Pools);
        let slots = Arc::new(Semaphore::new(EFFECTS_AT_ONCE_MAX));
        let mut effects = JoinSet::new();
        loop {
            let sleep_ms = self.core.next_wake().map_or(i64::MAX, |at| at.since_ms(self.options.clock.now()));
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(_) = effects.join_next() => {}
                message = self.messages.recv() => {
                    let Some(message) = message else { break };
                    self.take_in(message);
                    for _ in 0..BATCH_MAX {
                        let Ok(message) = self.messages.try_recv() else { break };
                        self.take_in(message);
                    }
                }
                () = tokio::time::sleep(std::time::Duration::from_millis(u64::try_from(sleep_ms).unwrap_or(0))) => {}
            }
            for effect in self.core.step(self.options.clock.now()) {
                self.carry_out(&mut effects, &slots, effect);
            }
            self.answer_waiters();
        }
        informers.abort_all();
        // Nobody reads any more, so nobody may wait for room: effects under way end by telling their outcome.
        self.messages.close();
        while effects.join_next().await.is_some() {}
    }

    fn carry_out(&self, effects: &mut JoinSet<()>, slots: &Arc<Semaphore>, effect: Effect) {
        let (cluster, log) = (self.options.cluster.clone(), self.options.run_log.clone());
        let (slots, messages) = (slots.clone(), self.handle.messages.clone());
        effects.spawn(async move {
            let _slot = slots.acquire().await;
            let outcome = perform(cluster.as_ref(), log.as_ref(), effect).await;
            // When the operator has stopped, its successor learns the outcome from the API.
            let _ = messages.send(Message::Input(Input::Done(outcome))).await;
        });
    }

    fn take_in(&mut self, message: Message) {
        let now = self.options.clock.now();
        match message {
            Message::Input(input) => self.core.handle(input, now),
            Message::Preview { namespace, preview, answer } => {
                let _ = answer.send(self.core.preview(&namespace, &preview, now));
            }
            Message::CheckFits { job, answer } => {
                let _ = answer.send(self.core.check_fits(&job));
            }
            Message::WhenSynced(answer) => self.synced.push(answer),
            Message::Drain(answer) => {
                self.core.handle(Input::ShutDown, now);
                self.drained.push(answer);
            }
        }
    }

    fn answer_waiters(&mut self) {
        let waiters = if self.core.is_synced() { std::mem::take(&mut self.synced) } else { Vec::new() };
        let quiet = !self.drained.is_empty() && self.core.is_synced() && self.core.is_quiet();
        let drained = if quiet { std::mem::take(&mut self.drained) } else { Vec::new() };
        for waiter in waiters.into_iter().chain(drained) {
            let _ = waiter.send(());
        }
    }

    fn inform<T, F>(&self, tasks: &mut JoinSet<()>, resource: Resource, wrap: F)
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(Change<T>) -> Input + Send + 'static,
    {
        let sleep: Sleep = Arc::new(|ms| Box::pin(tokio::time::sleep(std::time::Duration::from_millis(ms))));
        let mut informer =
            Informer::new(self.options.cluster.clone(), resource, ListOptions::default(), sleep);
        let messages = self.handle.messages.clone();
        tasks.spawn(async move {
            loop {
                let change = match informer.next().await {
                    InformerEvent::Reset(objects) => Some(Change::Reset(objects.iter().filter_map(|o| read(&resource, o)).collect())),
                    InformerEvent::Applied(object) => read(&resource, &object).map(Change::Applied),
                    InformerEvent::Deleted(object) => read(&resource, &object).map(Change::Deleted),
                    InformerEvent::Unreachable(error) => {
                        tracing::warn!(%error, kind = resource.kind, "the API cannot be reached; trying again");
                        None
                    }
                };
                if let Some(change) = change
                    && messages.send(Message::Input(wrap(change))).await.is_err()
                {
                    return;
                }
            }
        });
    }
}

impl Core {
    /// Whether the nodes that exist could hold the job if they were empty. Without any node nothing can be said, and
    /// the job may wait for one.
    fn check_fits(&self, job: &Job) -> Result<(), Refusal> {
        admission::check_new_job(job)?;
        if !self.planning.has_nodes() {
            return Ok(());
        }
        let gang = crate::planning::gang_of_job(&job.metadata, &job.spec);
        self.planning.world.fits_ever(&gang).map_err(|verdict| Refusal::Impossible(verdict.to_string()))
    }
}

fn read<T: DeserializeOwned>(resource: &Resource, object: &Object) -> Option<T> {
    object
        .decode()
        .map_err(
            |error| tracing::error!(%error, kind = resource.kind, "an object cannot be read and is ignored"),
        )
        .ok()
}
