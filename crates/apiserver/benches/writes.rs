//! How fast objects are made durably, with 64 writers: by the store alone, by the engine in process, and over TLS on
//! loopback with the clients on the same processors. Prints objects a second (the median of the runs, and their range)
//! and how long an empty server takes to start.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement has nobody to report to but its reader"
)]

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use regatta_apiserver::{
    Authenticator, Engine, ExecSession, HttpOptions, PodBackend, Registry, pki, router, serve,
};
use regatta_kit::{ApiError, Cluster, Object};
use regatta_store::{Body, Expect, Key, Store, Write};
use regatta_types::seed::Seed;
use regatta_types::streams::{ExecRequest, LogRequest};
use regatta_types::{Clock, SystemClock, resource};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

const WRITERS: usize = 64;
const OBJECTS_PER_WRITER: usize = 250;
const RUNS: usize = 5;
const TOKEN: &str = "bench";

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        println!("{WRITERS} writers, {} objects a run, {RUNS} runs", WRITERS * OBJECTS_PER_WRITER);
        let store = report("store alone", &repeat(async |at| by_store(at).await).await);
        let engine = report("engine", &repeat(async |at| by_engine(at).await).await);
        let tls = report("HTTPS on loopback", &repeat(async |at| by_https(at).await).await);
        println!("engine / store: {} %", engine * 100 / store);
        println!("HTTPS / store: {} %", tls * 100 / store);
        let mut starts: Vec<u64> = Vec::new();
        for _ in 0..RUNS {
            starts.push(start().await);
        }
        starts.sort_unstable();
        println!("start of an empty server: {} ms (median; {starts:?})", starts[RUNS / 2]);
    });
}

async fn repeat(measure: impl AsyncFn(&Path) -> u64) -> Vec<u64> {
    let mut rates = Vec::new();
    for _ in 0..RUNS {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let ms = measure(directory.path()).await;
        rates.push((WRITERS * OBJECTS_PER_WRITER) as u64 * 1000 / ms.max(1));
    }
    rates.sort_unstable();
    rates
}

fn report(what: &str, rates: &[u64]) -> u64 {
    let median = rates[rates.len() / 2];
    println!("{what}: {median} objects/s ({}..{})", rates[0], rates[rates.len() - 1]);
    median
}

fn object(writer: usize, n: usize) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": format!("w{writer}-{n}"), "namespace": "default", "labels": {"app": "bench", "writer": writer.to_string()}},
        "data": {"key": "x".repeat(256)},
    })
}

/// Runs all writers at once and gives the milliseconds until the last has finished.
async fn together<F: Future<Output = ()> + Send + 'static>(writer: impl Fn(usize) -> F) -> u64 {
    let start = SystemClock.monotonic_ms();
    let writers: Vec<_> = (0..WRITERS).map(|n| tokio::spawn(writer(n))).collect();
    for writer in writers {
        writer.await.unwrap();
    }
    SystemClock.monotonic_ms() - start
}

async fn by_store(directory: &Path) -> u64 {
    let store = Store::open(&directory.join("db")).unwrap();
    together(|writer| {
        let store = store.clone();
        async move {
            for n in 0..OBJECTS_PER_WRITER {
                let key = Key::new("configmaps", "default", &format!("w{writer}-{n}"));
                let head = r#"{"metadata":{"resourceVersion":""#;
                let text = "x".repeat(400);
                let json = format!(
                    "{head}\",\"name\":\"w{writer}-{n}\",\"uid\":\"u\"}},\"data\":{{\"key\":\"{text}\"}}}}"
                );
                let body = Body::new(&key, json.into_bytes(), head.len()).unwrap();
                store.commit(vec![Write::put(key, Expect::Absent, body)]).unwrap().await.unwrap();
            }
        }
    })
    .await
}

async fn open_engine(directory: &Path) -> Engine {
    let store = Store::open(&directory.join("db")).unwrap();
    let engine = Engine::new(store, Registry::builtin(), Arc::new(SystemClock), Seed(1));
    let namespace = json!({"metadata": {"name": "default"}});
    engine.create(&resource::NAMESPACES, Object::encode(&namespace).unwrap()).await.unwrap();
    engine
}

async fn by_engine(directory: &Path) -> u64 {
    let engine = open_engine(directory).await;
    together(|writer| {
        let engine = engine.clone();
        async move {
            for n in 0..OBJECTS_PER_WRITER {
                let object = Object::encode(&object(writer, n)).unwrap();
                engine.create(&resource::CONFIG_MAPS, object).await.unwrap();
            }
        }
    })
    .await
}

struct NoPods;

#[async_trait]
impl PodBackend for NoPods {
    async fn logs(
        &self,
        _: &str,
        _: &str,
        _: LogRequest,
    ) -> Result<BoxStream<'static, Result<Bytes, ApiError>>, ApiError> {
        Err(ApiError::internal("no pods here".to_owned()))
    }
    async fn exec(&self, _: &str, _: &str, _: ExecRequest) -> Result<ExecSession, ApiError> {
        Err(ApiError::internal("no pods here".to_owned()))
    }
}

/// A server on a free port, and the authority that its clients trust.
async fn start_server(directory: &Path) -> (u16, String, tokio::task::JoinHandle<()>) {
    let engine = open_engine(directory).await;
    let keys = pki::ensure(directory).unwrap();
    let options = HttpOptions {
        pods: Arc::new(NoPods),
        virtuals: Vec::new(),
        authenticator: Authenticator::new().with_token(TOKEN, "bench"),
        extra: axum::Router::new(),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let routes = router(engine, options);
    let server = tokio::spawn(async move {
        serve(listener, Some(keys.tls), routes, std::future::pending()).await.unwrap();
    });
    (port, keys.ca_pem, server)
}

type Connection = BufReader<tokio_rustls::client::TlsStream<TcpStream>>;

async fn connect(port: u16, ca_pem: &str) -> Connection {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    BufReader::new(tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap())
}

/// One request on a connection that is kept; gives the status.
async fn request(connection: &mut Connection, method: &str, path: &str, body: &str) -> u16 {
    let text = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(text.as_bytes()).await.unwrap();
    connection.flush().await.unwrap();
    let mut line = String::new();
    connection.read_line(&mut line).await.unwrap();
    let status = line.split(' ').nth(1).unwrap().parse().unwrap();
    let mut length = 0;
    loop {
        line.clear();
        connection.read_line(&mut line).await.unwrap();
        let header = line.trim_end().to_ascii_lowercase();
        if let Some(value) = header.strip_prefix("content-length: ") {
            length = value.parse().unwrap();
        }
        if header.is_empty() {
            break;
        }
    }
    let mut content = vec![0; length];
    connection.read_exact(&mut content).await.unwrap();
    status
}

async fn by_https(directory: &Path) -> u64 {
    let (port, ca_pem, server) = start_server(directory).await;
    let ca_pem = Arc::new(ca_pem);
    let ms = together(|writer| {
        let ca_pem = ca_pem.clone();
        async move {
            let mut connection = connect(port, &ca_pem).await;
            for n in 0..OBJECTS_PER_WRITER {
                let body = object(writer, n).to_string();
                let path = "/api/v1/namespaces/default/configmaps";
                let status = request(&mut connection, "POST", path, &body).await;
                assert_eq!(status, 201, "writer {writer}, object {n}");
            }
        }
    })
    .await;
    server.abort();
    ms
}

/// From nothing, keys included, to the first answer.
async fn start() -> u64 {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let before = SystemClock.monotonic_ms();
    let (port, ca_pem, server) = start_server(directory.path()).await;
    let mut connection = connect(port, &ca_pem).await;
    assert_eq!(request(&mut connection, "GET", "/readyz", "").await, 200);
    let ms = SystemClock.monotonic_ms() - before;
    server.abort();
    ms
}
