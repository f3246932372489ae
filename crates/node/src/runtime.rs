//! The runtime: from the API's pods to one actor each, and back from the driver's observations.

use crate::actor::{Actor, Progress, Seen, Shared};
use crate::api::{ExecProcess, NodeFacts, NodeOptions};
use crate::driver::{Adopted, Driver, Fact, Observation};
use crate::error::Error;
use crate::layout::Layout;
use crate::logs::{self, LogPlace};
use crate::process::ProcessDriver;
use crate::{gpus, nodes, registration};
use bytes::Bytes;
use futures::stream::BoxStream;
use regatta_agent::protocol::AgentReport;
use regatta_kit::informer::Sleep;
use regatta_kit::{Informer, InformerEvent, ListOptions, Object};
use regatta_types::pod::Pod;
use regatta_types::streams::{ExecRequest, LogRequest};
use regatta_types::{Uid, resource};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Observations that may wait to be dispatched.
const OBSERVATIONS_MAX: usize = 1_024;
/// Reports of agents that may wait for their reader.
const REPORTS_MAX: usize = 1_024;
/// Time between two looks at how much room logs take, in milliseconds.
const LOG_PRUNE_MS: u64 = 3_600_000;

/// The node runtime of one machine.
pub struct NodeRuntime {
    shared: Arc<Shared>,
    layout: Layout,
    nodes: BTreeSet<String>,
    facts: NodeFacts,
    /// Given to the one who runs it.
    inbox: Mutex<Option<Inbox>>,
    known: Mutex<BTreeMap<(String, String), Known>>,
    process: Option<Arc<ProcessDriver>>,
}

struct Inbox {
    observations: mpsc::Receiver<Observation>,
    adopted: Vec<Adopted>,
}

/// A pod that has an actor, for those who ask about it by name.
#[derive(Clone)]
struct Known {
    uid: Uid,
    seen: watch::Receiver<Seen>,
    progress: watch::Receiver<Progress>,
}

/// The dispatcher's side of an actor.
struct Handle {
    seen: watch::Sender<Seen>,
    facts: watch::Sender<Option<Fact>>,
}

impl NodeRuntime {
    /// Prepares the machine: finds out what it has and permits, registers its nodes, and adopts the pods that an earlier
    /// runtime in the same data directory had started. What agents report comes through the receiver.
    ///
    /// # Errors
    /// When the options contradict the machine, the data directory cannot be used, or the API refuses the nodes.
    pub async fn start(options: NodeOptions) -> Result<(Arc<Self>, mpsc::Receiver<AgentReport>), Error> {
        let root = options.data_dir.clone();
        std::fs::create_dir_all(&root).map_err(|e| Error::file("make", &root, e))?;
        let root = std::fs::canonicalize(&root).map_err(|e| Error::file("resolve", &root, e))?;
        let layout = Layout::new(&root);
        let (found, machine) = (gpus::detect(), nodes::Machine::read()?);
        let specs = nodes::plan(&machine, options.node_count, options.gpus, &found, options.clock.now())?;
        let (observed, observations) = mpsc::channel(OBSERVATIONS_MAX);
        let (reported, reports) = mpsc::channel(REPORTS_MAX);
        let process = ProcessDriver::new(&options, layout.clone(), &specs, observed, reported).await?;
        let adopted = process.adopt().await;
        registration::register(options.cluster.as_ref(), &specs).await?;
        let nodes: BTreeSet<String> = specs.iter().map(|spec| spec.object.metadata.name.clone()).collect();
        let facts = process.facts(&nodes, options.gpus, &found);
        let shared = Shared {
            cluster: options.cluster,
            clock: options.clock,
            driver: process.clone() as Arc<dyn Driver>,
        };
        let runtime = Self {
            shared: Arc::new(shared),
            layout,
            nodes,
            facts,
            inbox: Mutex::new(Some(Inbox { observations, adopted })),
            known: Mutex::default(),
            process: Some(process),
        };
        Ok((Arc::new(runtime), reports))
    }

    /// A runtime whose pods are `driver`'s, for tests and simulation: nothing is registered, nothing of the machine is
    /// read. `observations` is the other end of what the driver was made with.
    pub async fn with_driver(
        options: NodeOptions,
        nodes: BTreeSet<String>,
        driver: Arc<dyn Driver>,
        observations: mpsc::Receiver<Observation>,
    ) -> Arc<Self> {
        let adopted = driver.adopt().await;
        let shared = Shared { cluster: options.cluster, clock: options.clock, driver };
        Arc::new(Self {
            shared: Arc::new(shared),
            layout: Layout::new(&options.data_dir),
            facts: NodeFacts { nodes: nodes.iter().cloned().collect(), ..NodeFacts::default() },
            nodes,
            inbox: Mutex::new(Some(Inbox { observations, adopted })),
            known: Mutex::default(),
            process: None,
        })
    }

    /// What was found and chosen.
    pub fn facts(&self) -> NodeFacts {
        self.facts.clone()
    }

    /// Whether this machine can give a pod what it asks for; a sentence with the fix when it cannot.
    ///
    /// # Errors
    /// When it cannot.
    pub fn validate(&self, pod: &Pod) -> Result<(), String> {
        self.process.as_ref().map_or(Ok(()), |process| process.validate(pod))
    }

    /// Runs the pods of the nodes until told to stop. Pods run on after that; the next runtime adopts them.
    ///
    /// # Errors
    /// When it runs already.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) -> Result<(), Error> {
        let inbox = lock(&self.inbox).take().ok_or(Error::RunsAlready)?;
        let names = self.nodes.iter().cloned().collect();
        let mut beside = JoinSet::new();
        if let Some(process) = &self.process {
            let (cluster, clock) = (self.shared.cluster.clone(), self.shared.clock.clone());
            beside.spawn(registration::heartbeats(cluster, clock, names, shutdown.clone()));
            beside.spawn(process.clone().serve_agents());
            beside.spawn(prune_logs(self.clone()));
        }
        let mut dispatcher =
            Dispatcher { runtime: self.clone(), handles: BTreeMap::new(), actors: JoinSet::new() };
        dispatcher.run(inbox, shutdown).await;
        // Dropping the set ends what runs beside; pods have agents of their own.
        beside.shutdown().await;
        if let Some(process) = &self.process {
            process.close().await;
        }
        Ok(())
    }

    fn known(&self, namespace: &str, pod: &str) -> Option<Known> {
        lock(&self.known).get(&(namespace.to_owned(), pod.to_owned())).cloned()
    }

    /// The log of a pod, as chunks of bytes. With a uid, also that of a pod whose object is gone.
    ///
    /// # Errors
    /// When there is no such pod, container or rank.
    pub async fn logs(
        &self,
        namespace: &str,
        pod: &str,
        uid: Option<Uid>,
        request: LogRequest,
    ) -> Result<BoxStream<'static, Result<Bytes, io::Error>>, Error> {
        let known =
            self.known(namespace, pod).filter(|known| uid.as_ref().is_none_or(|uid| *uid == known.uid));
        let uid = uid.or_else(|| known.as_ref().map(|known| known.uid.clone()));
        let object = known.as_ref().and_then(|known| match &*known.seen.borrow() {
            Seen::Pod(pod) => Some(pod.clone()),
            Seen::Unknown | Seen::Gone => None,
        });
        let place = LogPlace {
            layout: self.layout.clone(),
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            uid,
            object,
            progress: known.map(|known| known.progress),
        };
        logs::open(place, request).await
    }

    /// Runs a command beside a pod.
    ///
    /// # Errors
    /// When the pod does not run, or the command cannot be started.
    pub async fn exec(&self, namespace: &str, pod: &str, request: ExecRequest) -> Result<ExecProcess, Error> {
        let none = || Error::PodNotFound { namespace: namespace.to_owned(), pod: pod.to_owned() };
        let known = self.known(namespace, pod).ok_or_else(none)?;
        let object = match &*known.seen.borrow() {
            Seen::Pod(pod) => pod.clone(),
            Seen::Unknown | Seen::Gone => return Err(none()),
        };
        self.shared.driver.exec(&object, request).await
    }
}

async fn prune_logs(runtime: Arc<NodeRuntime>) {
    loop {
        let live: BTreeSet<Uid> = lock(&runtime.known).values().map(|known| known.uid.clone()).collect();
        let root = runtime.layout.logs();
        let pruned = tokio::task::spawn_blocking(move || logs::prune(&root, &live)).await;
        if let Ok(Err(error)) = pruned {
            tracing::warn!(%error, "cannot make room among the logs");
        }
        tokio::time::sleep(Duration::from_millis(LOG_PRUNE_MS)).await;
    }
}

/// Brings facts to actors.
struct Dispatcher {
    runtime: Arc<NodeRuntime>,
    handles: BTreeMap<Uid, Handle>,
    actors: JoinSet<((String, String), Uid)>,
}

impl Dispatcher {
    async fn run(&mut self, inbox: Inbox, shutdown: CancellationToken) {
        let Inbox { mut observations, adopted } = inbox;
        for pod in adopted {
            self.adopt(pod);
        }
        let sleep: Sleep = Arc::new(|ms| Box::pin(tokio::time::sleep(Duration::from_millis(ms))));
        let cluster = self.runtime.shared.cluster.clone();
        let mut informer = Informer::new(cluster, resource::PODS, ListOptions::default(), sleep);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(observation) = observations.recv() => self.observe(observation),
                Some(ended) = self.actors.join_next() => self.forget(ended),
                event = informer.next() => self.hear(event),
            }
        }
        self.actors.shutdown().await;
    }

    fn hear(&mut self, event: InformerEvent) {
        match event {
            InformerEvent::Reset(objects) => {
                let pods: Vec<Pod> = objects.iter().filter_map(decode).collect();
                let there: BTreeSet<Uid> = pods.iter().map(|pod| pod.metadata.uid()).collect();
                for (uid, handle) in &self.handles {
                    if !there.contains(uid) {
                        handle.seen.send_replace(Seen::Gone);
                    }
                }
                for pod in pods {
                    self.apply(pod);
                }
            }
            InformerEvent::Applied(object) => {
                if let Some(pod) = decode(&object) {
                    self.apply(pod);
                }
            }
            InformerEvent::Deleted(object) => {
                let handle = decode(&object).and_then(|pod| self.handles.get(&pod.metadata.uid()));
                if let Some(handle) = handle {
                    handle.seen.send_replace(Seen::Gone);
                }
            }
            InformerEvent::Unreachable(error) => {
                tracing::warn!(%error, "the API cannot be reached; pods run on");
            }
        }
    }

    fn apply(&mut self, pod: Pod) {
        let uid = pod.metadata.uid();
        if !self.handles.contains_key(&uid) {
            let ours = pod.spec.node_name.as_ref().is_some_and(|node| self.runtime.nodes.contains(node));
            // A pod that has ended, and of which nothing is left here, needs nobody until it is deleted.
            if !ours || pod.is_finished() && !pod.metadata.is_being_deleted() {
                return;
            }
            self.spawn(&uid, pod.metadata.namespace().to_owned(), pod.metadata.name.clone(), None);
        }
        if let Some(handle) = self.handles.get(&uid) {
            handle.seen.send_replace(Seen::Pod(Arc::new(pod)));
        }
    }

    fn adopt(&mut self, pod: Adopted) {
        let end = pod.end.clone();
        let uid = pod.uid.clone();
        self.spawn(&uid, pod.namespace.clone(), pod.name.clone(), Some(pod));
        if let Some(end) = end {
            self.observe(Observation { uid, fact: Fact::Ended(end) });
        }
    }

    fn spawn(&mut self, uid: &Uid, namespace: String, name: String, adopted: Option<Adopted>) {
        let (seen, seen_by_actor) = watch::channel(Seen::Unknown);
        let (facts, facts_for_actor) = watch::channel(None);
        let (progress, progress_for_readers) = watch::channel(Progress::Open);
        let known = Known { uid: uid.clone(), seen: seen_by_actor.clone(), progress: progress_for_readers };
        let key = (namespace, name);
        lock(&self.runtime.known).insert(key.clone(), known);
        let mut actor =
            Actor::new(self.runtime.shared.clone(), uid.clone(), seen_by_actor, facts_for_actor, progress);
        if let Some(adopted) = adopted {
            actor.adopt(adopted.started);
        }
        self.handles.insert(uid.clone(), Handle { seen, facts });
        let uid = uid.clone();
        self.actors.spawn(async move {
            actor.run().await;
            (key, uid)
        });
    }

    fn observe(&mut self, observation: Observation) {
        let Some(handle) = self.handles.get(&observation.uid) else { return };
        handle.facts.send_if_modified(|fact| {
            // The end is the last word, and what is known already is no news.
            if matches!(fact, Some(Fact::Ended(_))) || *fact == Some(observation.fact.clone()) {
                return false;
            }
            *fact = Some(observation.fact);
            true
        });
    }

    fn forget(&mut self, ended: Result<((String, String), Uid), tokio::task::JoinError>) {
        let Ok((key, uid)) = ended else {
            tracing::error!("a pod's task has failed; the pod runs on and is adopted at the next start");
            return;
        };
        self.handles.remove(&uid);
        let mut known = lock(&self.runtime.known);
        // A namesake may have come already.
        if known.get(&key).is_some_and(|known| known.uid == uid) {
            known.remove(&key);
        }
    }
}

fn decode(object: &Object) -> Option<Pod> {
    object.decode().inspect_err(|error| tracing::error!(%error, "a pod cannot be understood")).ok()
}

/// Locks; what a panicked holder left behind is still a map.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
