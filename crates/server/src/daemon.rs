//! One daemon: what it starts, in which order, and how it stops.
//!
//! Start: lock, store, API, nodes, operator, and only then the word that it is ready. Stop: the API refuses new
//! requests, the operator finishes its writes, the node runtime lets go of its pods, the store closes. Pods run on
//! unless somebody asked for them to be stopped; the next daemon adopts them.

use crate::admission::LocalAdmission;
use crate::data_dir::{DataDir, Lock};
use crate::local::{DETACHED_VARIABLE, READY_LINE};
use crate::pods::LocalPods;
use crate::previews::Previews;
use crate::runs::{Runs, RunsApi};
use crate::{bootstrap, data_dir, kubeconfig};
use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::post;
use regatta_agent::protocol::AgentReport;
use regatta_apiserver::{Authenticator, Engine, HttpOptions, Registry, pki, router, serve};
use regatta_cli::{NetworkMode, UpOptions};
use regatta_kit::{ApiError, Cluster};
use regatta_node::{Gpus, NodeCount, NodeOptions, NodeRuntime};
use regatta_operator::{Handle, Observation, Operator, Options, RunKey};
use regatta_store::{Store, append_log::AppendLog};
use regatta_types::seed::Seed;
use regatta_types::{Clock, SystemClock};
use serde::Deserialize;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Who the token in the kubeconfig belongs to.
const ADMIN: &str = "admin";
/// Threads for requests and controllers; ranks, not the daemon, shall have the machine.
const WORKER_THREADS: usize = 2;
/// How often the lock of a daemon that is just ending is tried again.
const LOCK_ATTEMPTS: u32 = 100;
/// Pause between these attempts.
const LOCK_RETRY: std::time::Duration = std::time::Duration::from_millis(20);

/// What the daemon shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonOptions {
    /// Data directory.
    pub data_dir: PathBuf,
    /// Number of virtual nodes; the machine itself when none.
    pub nodes: Option<u32>,
    /// Simulated GPUs in each node; the real ones when none.
    pub gpus: Option<u32>,
    /// How pods get their network.
    pub network: NetworkMode,
    /// TCP port on loopback; any free one when none.
    pub port: Option<u16>,
}

impl From<&UpOptions> for DaemonOptions {
    fn from(options: &UpOptions) -> Self {
        Self {
            data_dir: options.data_dir.clone(),
            nodes: options.nodes,
            gpus: options.gpus,
            network: options.network,
            port: options.port,
        }
    }
}

/// Why the daemon could not start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] data_dir::Error),
    /// The store cannot be opened.
    #[error("cannot open the store in {path}: {source}")]
    Store {
        /// Where it is.
        path: PathBuf,
        /// Why.
        source: regatta_store::Error,
    },
    /// The keys and certificates cannot be made or read.
    #[error("cannot prepare the keys in {path}: {problem}")]
    Pki {
        /// Where they are.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// The port cannot be had.
    #[error("cannot listen on {address}: {source}; choose another with --port")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The nodes cannot be set up.
    #[error("cannot set up the node runtime: {0}")]
    Node(#[from] regatta_node::Error),
    /// The first objects cannot be made.
    #[error("cannot prepare the first objects: {0}")]
    Bootstrap(ApiError),
    /// Something of the operating system.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A part of the daemon ended although nobody asked it to.
    #[error(
        "a part of the daemon ended by itself; what runs goes on, start the daemon again to take it over"
    )]
    PartEnded,
    /// The operator has stopped by itself.
    #[error("the operator stopped before it was ready")]
    Operator,
}

/// Runs the daemon until it is told to stop. Blocks.
///
/// # Errors
/// When it cannot start.
pub fn run(options: &DaemonOptions) -> Result<(), Error> {
    let detached = std::env::var_os(DETACHED_VARIABLE).is_some();
    if detached {
        // Fails only for a process group's leader, which then has what it needs already.
        let _ = rustix::process::setsid();
    }
    let filter = tracing_subscriber::EnvFilter::try_from_env("REGATTA_LOG")
        .unwrap_or_else(|_| "warn,regatta=info".into());
    // A second daemon in one process, in tests, keeps the first one's subscriber.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .try_init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .enable_all()
        .build()
        .map_err(|source| Error::System { action: "start the runtime", source })?;
    runtime.block_on(async {
        let daemon = Daemon::start(options).await?;
        if detached {
            say_ready()?;
        }
        daemon.run().await
    })
}

/// Says once that the daemon is ready, then gives standard output to the log.
fn say_ready() -> Result<(), Error> {
    let fail = |source| Error::System { action: "say that the daemon is ready", source };
    let mut stdout = std::io::stdout();
    // Who started the daemon may be gone; the daemon stays.
    let _ = writeln!(stdout, "{READY_LINE}").and_then(|()| stdout.flush());
    rustix::stdio::dup2_stdout(std::io::stderr()).map_err(|e| fail(e.into()))
}

/// A daemon that serves.
pub struct Daemon {
    dir: DataDir,
    _lock: Lock,
    store: Store,
    operator: Handle,
    stop: Stop,
    tasks: Tasks,
}

/// What ends the parts, in this order.
struct Stop {
    /// Asks the daemon to end.
    asked: CancellationToken,
    /// Says that a part has ended, which none does before it is told to.
    part_ended: CancellationToken,
    http: CancellationToken,
    operator: CancellationToken,
    node: CancellationToken,
}

struct Tasks {
    http: JoinHandle<()>,
    operator: JoinHandle<()>,
    node: JoinHandle<()>,
    reports: JoinHandle<()>,
}

impl Daemon {
    /// Starts everything; returns once the API serves, the nodes are registered and the operator knows them.
    ///
    /// # Errors
    /// When a part cannot start.
    pub async fn start(options: &DaemonOptions) -> Result<Self, Error> {
        let dir = DataDir::create(&options.data_dir)?;
        let lock = lock(&dir).await?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (engine, store, admission) = open_engine(&dir, clock.clone())?;
        let cluster: Arc<dyn Cluster> = Arc::new(engine.clone());
        bootstrap::ensure(cluster.as_ref()).await.map_err(Error::Bootstrap)?;
        engine.sweep().await;

        let (listener, address) = listen(&dir, options.port).await?;
        let (node, reports) =
            NodeRuntime::start(node_options(options, cluster.clone(), clock.clone())?).await?;
        let runs = Arc::new(Runs::new(open_runs(&dir)?, clock.clone()));
        let (operator, handle) =
            Operator::new(Options { cluster, clock: clock.clone(), run_log: runs.clone() });
        let stop = Stop {
            asked: CancellationToken::new(),
            part_ended: CancellationToken::new(),
            http: CancellationToken::new(),
            operator: CancellationToken::new(),
            node: CancellationToken::new(),
        };
        let (tls, authenticator) = access(&dir, address)?;
        let pods = Arc::new(LocalPods { node: node.clone() });
        let http_options = HttpOptions {
            pods: pods.clone(),
            virtuals: vec![
                Arc::new(RunsApi { runs: runs.clone(), logs: pods }),
                Arc::new(Previews { operator: handle.clone() }),
            ],
            authenticator,
            extra: control_routes(handle.clone(), stop.asked.clone()),
        };
        let routes = router(engine, http_options);
        admission.set_node(node.clone());
        let tasks = Tasks {
            http: part(&stop.part_ended, serve_until(listener, tls, routes, stop.http.clone())),
            operator: part(&stop.part_ended, operator.run(stop.operator.clone())),
            node: part(&stop.part_ended, run_node(node, stop.node.clone())),
            reports: part(&stop.part_ended, pass_on(reports, handle.clone(), runs)),
        };
        handle.synced().await.map_err(|_| Error::Operator)?;
        admission.set_operator(handle.clone());
        dir.announce(address)?;
        tracing::info!(%address, data_dir = %dir.root().display(), "the daemon is ready");
        Ok(Self { dir, _lock: lock, store, operator: handle, stop, tasks })
    }

    /// Serves until a signal or a request asks it to stop.
    ///
    /// # Errors
    /// When a part ended by itself; the next daemon takes everything over.
    pub async fn run(self) -> Result<(), Error> {
        let (Ok(mut terminate), Ok(mut interrupt)) =
            (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
        else {
            tracing::error!("signals cannot be received; stopping");
            self.shut_down().await;
            return Ok(());
        };
        let mut broken = false;
        tokio::select! {
            _ = terminate.recv() => tracing::info!("asked to stop by a signal; what runs goes on and is adopted by the next daemon"),
            _ = interrupt.recv() => tracing::info!("interrupted; what runs goes on and is adopted by the next daemon"),
            () = self.stop.asked.cancelled() => tracing::info!("asked to stop"),
            () = self.stop.part_ended.cancelled() => broken = true,
        }
        self.shut_down().await;
        if broken { Err(Error::PartEnded) } else { Ok(()) }
    }

    /// Stops every part in order. Pods run on.
    pub async fn shut_down(self) {
        self.stop.http.cancel();
        let _ = self.tasks.http.await;
        self.stop.operator.cancel();
        let _ = self.tasks.operator.await;
        self.stop.node.cancel();
        let _ = self.tasks.node.await;
        self.tasks.reports.abort();
        self.store.close();
        // Last, so that whoever waits for the end of the daemon waits for all of it.
        self.dir.withdraw();
    }

    /// Speaks to the operator.
    pub fn operator(&self) -> &Handle {
        &self.operator
    }
}

/// Takes the data directory. A daemon that is just ending no longer says that it serves, and has the lock for a moment.
async fn lock(dir: &DataDir) -> Result<Lock, Error> {
    for _ in 0..LOCK_ATTEMPTS {
        match dir.lock() {
            Err(data_dir::Error::Owned { pid: None, .. }) => tokio::time::sleep(LOCK_RETRY).await,
            other => return other.map_err(Error::from),
        }
    }
    dir.lock().map_err(Error::from)
}

fn open_engine(dir: &DataDir, clock: Arc<dyn Clock>) -> Result<(Engine, Store, Arc<LocalAdmission>), Error> {
    let path = dir.database();
    if let Some(parent) = path.parent() {
        dir.make(parent)?;
    }
    let store = Store::open(&path).map_err(|source| Error::Store { path, source })?;
    let admission = Arc::new(LocalAdmission::default());
    let engine = Engine::new(store.clone(), Registry::builtin(), clock, Seed(seed_now()?))
        .with_admission(admission.clone());
    Ok((engine, store, admission))
}

/// The seed of uids and generated names: from the kernel, so that no two daemons make the same.
fn seed_now() -> Result<u64, Error> {
    let token =
        kubeconfig::new_token().map_err(|source| Error::System { action: "read random numbers", source })?;
    Ok(u64::from_str_radix(&token[..16], 16).unwrap_or_default())
}

fn open_runs(dir: &DataDir) -> Result<AppendLog, Error> {
    dir.make(&dir.runs())?;
    AppendLog::open(&dir.runs()).map_err(|source| Error::System { action: "open the run records", source })
}

/// The port asked for, or that of the last daemon so that kubeconfigs stay true, or any.
async fn listen(dir: &DataDir, port: Option<u16>) -> Result<(TcpListener, SocketAddr), Error> {
    let bind = |port| async move {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener =
            TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
        let address = listener.local_addr().map_err(|source| Error::Listen { address, source })?;
        Ok((listener, address))
    };
    if let Some(port) = port {
        return bind(port).await;
    }
    let last = std::fs::read_to_string(dir.kubeconfig()).ok().and_then(|text| kubeconfig::port_in(&text));
    if let Some(port) = last
        && let Ok(bound) = bind(port).await
    {
        return Ok(bound);
    }
    bind(0).await
}

fn access(
    dir: &DataDir,
    address: SocketAddr,
) -> Result<(regatta_apiserver::TlsConfig, Authenticator), Error> {
    dir.make(&dir.pki())?;
    let keys = pki::ensure(&dir.pki()).map_err(|e| Error::Pki { path: dir.pki(), problem: e.to_string() })?;
    let known = std::fs::read_to_string(dir.kubeconfig()).ok().and_then(|text| kubeconfig::token_in(&text));
    let token = match known {
        Some(token) => token,
        None => kubeconfig::new_token()
            .map_err(|source| Error::System { action: "read random numbers", source })?,
    };
    dir.write_private(&dir.kubeconfig(), kubeconfig::render(address, &keys.ca_pem, &token).as_bytes())?;
    Ok((keys.tls, Authenticator::new().with_token(&token, ADMIN)))
}

fn node_options(
    options: &DaemonOptions,
    cluster: Arc<dyn Cluster>,
    clock: Arc<dyn Clock>,
) -> Result<NodeOptions, Error> {
    let program = std::env::current_exe()
        .map_err(|source| Error::System { action: "find this program's own file", source })?;
    Ok(NodeOptions {
        data_dir: options.data_dir.clone(),
        node_count: options.nodes.map_or(NodeCount::Machine, NodeCount::Virtual),
        gpus: options.gpus.map_or(Gpus::Detect, Gpus::Simulated),
        network: match options.network {
            NetworkMode::Auto => regatta_node::NetworkMode::Auto,
            NetworkMode::Isolated => regatta_node::NetworkMode::Isolated,
            NetworkMode::Host => regatta_node::NetworkMode::Host,
        },
        agent_command: vec![program.into_os_string(), "agent".into()],
        cluster,
        clock,
    })
}

/// Runs one part; its end, also by a panic, is told.
fn part(ended: &CancellationToken, work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    let told = ended.clone().drop_guard();
    tokio::spawn(async move {
        let _told = told;
        work.await;
    })
}

async fn serve_until(
    listener: TcpListener,
    tls: regatta_apiserver::TlsConfig,
    routes: axum::Router,
    stop: CancellationToken,
) {
    if let Err(error) = serve(listener, Some(tls), routes, stop.cancelled_owned()).await {
        tracing::error!(%error, "the API stopped serving");
    }
}

async fn run_node(node: Arc<NodeRuntime>, stop: CancellationToken) {
    if let Err(error) = node.run(stop).await {
        tracing::error!(%error, "the node runtime stopped");
    }
}

/// What agents report goes to the run's record and to the operator.
async fn pass_on(mut reports: mpsc::Receiver<AgentReport>, operator: Handle, runs: Arc<Runs>) {
    while let Some(report) = reports.recv().await {
        if let Some(progress) = &report.progress {
            let run = RunKey {
                namespace: report.namespace.clone(),
                name: report.job.clone(),
                uid: report.job_uid.clone(),
            };
            runs.observe(&run, progress);
        }
        let observation = Observation {
            namespace: report.namespace,
            job: report.job,
            pod_uid: report.pod_uid,
            progress: report.progress,
            checkpoint: report.checkpoint,
            bad_checkpoint: report.bad_checkpoint,
        };
        if operator.observe(observation).await.is_err() {
            return;
        }
    }
}

/// What shall become of running jobs when the daemon stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum JobsAtShutdown {
    /// They are stopped and queued again, to resume when the daemon is back.
    Stop,
    /// They run on.
    Keep,
}

#[derive(Debug, Deserialize)]
struct ShutdownRequest {
    jobs: JobsAtShutdown,
}

/// Routes beside the API's resources: stopping the daemon.
fn control_routes(operator: Handle, stop: CancellationToken) -> axum::Router {
    let shut_down = move |body: Bytes| async move {
        let request: ShutdownRequest = match serde_json::from_slice(&body) {
            Ok(request) => request,
            Err(error) => {
                let message =
                    format!("the body must be {{\"jobs\": \"stop\"}} or {{\"jobs\": \"keep\"}}: {error}\n");
                return (StatusCode::BAD_REQUEST, message).into_response();
            }
        };
        // A task of its own: who asked may go away, and a drain that is half done must not be left behind.
        let ended = tokio::spawn(async move {
            if request.jobs == JobsAtShutdown::Stop {
                // A stopped operator has nothing left to drain.
                let _ = operator.drain().await;
            }
            stop.cancel();
        });
        let _ = ended.await;
        ([(header::CONTENT_TYPE, "application/json")], r#"{"stopping":true}"#).into_response()
    };
    axum::Router::new().route("/regatta/v1/shutdown", post(shut_down))
}
