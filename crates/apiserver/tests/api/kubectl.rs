//! The server as `kubectl` sees it. Where there is no `kubectl`, the test says so and checks nothing.

use crate::support::*;
use regatta_apiserver::{pki, serve};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// A server on a port of its own, and a `kubectl` that knows it.
struct Session {
    home: tempfile::TempDir,
    stop: tokio::sync::oneshot::Sender<()>,
    server: tokio::task::JoinHandle<()>,
    runner: tokio::task::JoinHandle<()>,
}

fn kubeconfig(port: u16, ca_pem: &str) -> String {
    use base64::Engine as _;
    let authority = base64::engine::general_purpose::STANDARD.encode(ca_pem);
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\ncontexts:\n- name: test\n  context: {{cluster: test, user: test}}\nclusters:\n- name: test\n  cluster:\n    server: https://127.0.0.1:{port}\n    certificate-authority-data: {authority}\nusers:\n- name: test\n  user: {{token: {TOKEN}}}\n"
    )
}

impl Session {
    async fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let keys = pki::ensure(home.path()).unwrap();
        let engine = engine_with(std::sync::Arc::new(regatta_types::SystemClock)).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        std::fs::write(home.path().join("config"), kubeconfig(port, &keys.ca_pem)).unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let routes = routes(engine.clone());
        let server = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            serve(listener, Some(keys.tls), routes, stopped).await.unwrap();
        });
        let runner = tokio::spawn(pretend_to_run_pods(engine));
        Self { home, stop, server, runner }
    }

    async fn end(self) {
        self.runner.abort();
        self.stop.send(()).unwrap();
        self.server.await.unwrap();
    }

    /// Runs `kubectl` with these arguments, separated by spaces, and this input.
    async fn run(&self, arguments: &str, input: &str) -> std::process::Output {
        let mut command = command(self.home.path());
        command.args(arguments.split(' '));
        let input = input.to_owned();
        tokio::task::spawn_blocking(move || {
            let mut child = command.spawn().unwrap();
            child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
            child.wait_with_output().unwrap()
        })
        .await
        .unwrap()
    }

    /// What a command that must succeed prints.
    async fn ok(&self, arguments: &str, input: &str) -> String {
        let output = self.run(arguments, input).await;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "kubectl {arguments}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What a command that must fail says.
    async fn fails(&self, arguments: &str, input: &str) -> String {
        let output = self.run(arguments, input).await;
        assert!(!output.status.success(), "kubectl {arguments} succeeded");
        String::from_utf8(output.stderr).unwrap()
    }
}

fn command(home: &Path) -> Command {
    let mut command = Command::new("kubectl");
    command.env("HOME", home).env("KUBECONFIG", home.join("config"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn has_kubectl() -> bool {
    let home = tempfile::tempdir().unwrap();
    let found = command(home.path())
        .args(["version", "--client"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !found {
        println!("there is no kubectl here, so nothing was checked");
    }
    found
}

fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects() {
    if !has_kubectl() {
        return;
    }
    let session = Session::start().await;
    contains(&session.ok("api-resources", "").await, &["rjob", "configmaps", "leases", "NodePool"]);
    contains(&session.ok("create configmap a --from-literal=key=1", "").await, &["configmap/a created"]);
    contains(&session.fails("create configmap a", "").await, &["already exists"]);
    contains(&session.ok("get cm", "").await, &["NAME", "DATA", "AGE"]);
    contains(&session.ok("get cm a -o yaml", "").await, &["key: \"1\""]);
    contains(&session.ok("label cm a x=y", "").await, &["labeled"]);
    contains(&session.ok("get cm -l x=y -o name", "").await, &["configmap/a"]);
    contains(&session.ok("patch cm a --type=merge -p {\"data\":{\"key\":\"2\"}}", "").await, &["patched"]);
    contains(&session.ok("patch cm a -p {\"data\":{\"key\":\"3\"}}", "").await, &["patched"]);
    contains(&session.ok("annotate cm a note=hello", "").await, &["annotated"]);
    contains(&session.ok("describe cm a", "").await, &["hello", "key:"]);
    contains(&session.ok("create secret generic s --from-literal=p=w", "").await, &["created"]);
    contains(&session.ok("get secret s -o jsonpath={.data.p}", "").await, &["dw=="]);
    contains(&session.ok("get all", "").await, &[]);
    contains(&session.ok("delete cm a", "").await, &["deleted"]);
    contains(&session.fails("get cm a", "").await, &["(NotFound)", "\"a\" not found"]);
    contains(&session.fails("get deployments", "").await, &["doesn't have a resource type"]);
    contains(&session.ok("create namespace team", "").await, &["created"]);
    contains(&session.ok("-n team create configmap b", "").await, &["created"]);
    contains(&session.ok("delete namespace team", "").await, &["deleted"]);
    contains(&session.ok("get ns", "").await, &["default", "Active"]);
    session.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs() {
    if !has_kubectl() {
        return;
    }
    let session = Session::start().await;
    let manifest = job("digits").to_string();
    contains(&session.ok("apply -f -", &manifest).await, &["job.regatta.dev/digits created"]);
    contains(&session.ok("apply -f -", &manifest).await, &["unchanged"]);
    let changed = manifest.replace("\"replicas\":2", "\"replicas\":3");
    contains(&session.ok("apply -f -", &changed).await, &["configured"]);
    contains(&session.ok("diff -f -", &changed).await, &[]);
    contains(&session.ok("get rjob", "").await, &["PHASE", "EPOCH", "SLOTS", "digits", "Queued", "3"]);
    contains(&session.ok("describe rjob digits", "").await, &["Kind:", "Replicas:"]);
    contains(&session.ok("explain rjob.spec.queue", "").await, &["Queue to wait in"]);
    contains(&session.ok("explain pod.spec.containers", "").await, &["Image"]);
    let typo = manifest.replace("\"replicas\"", "\"replica\"").replace("digits", "typo");
    contains(&session.fails("create -f -", &typo).await, &["unknown field", "did you mean"]);
    contains(
        &session.fails("apply --server-side -f -", &manifest).await,
        &["server-side apply is not served"],
    );
    let status = "patch rjob digits --subresource=status --type=merge -p {\"status\":{\"conditions\":[{\"type\":\"Succeeded\",\"status\":\"True\"}]}}";
    contains(&session.ok(status, "").await, &["patched"]);
    contains(
        &session.ok("wait --for=condition=Succeeded rjob/digits --timeout=30s", "").await,
        &["condition met"],
    );
    contains(&session.ok("delete rjob digits", "").await, &["deleted"]);
    contains(&session.ok("get queues,nodepools", "").await, &[]);
    session.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods() {
    if !has_kubectl() {
        return;
    }
    let session = Session::start().await;
    contains(&session.ok("run once --image=any --restart=Never -- true", "").await, &["pod/once created"]);
    let ended = "wait --for=jsonpath={.status.phase}=Succeeded pod/once --timeout=30s";
    contains(&session.ok(ended, "").await, &["condition met"]);
    contains(&session.ok("get pods -o wide", "").await, &["once", "Completed", "node-1"]);
    contains(&session.ok("logs once", "").await, &["once line 1", "once line 3"]);
    assert_eq!(session.ok("logs once --tail=1", "").await, "once line 3\n");
    contains(
        &session.ok("run stays --image=any --restart=Never --labels=stays=yes -- sleep", "").await,
        &["created"],
    );
    contains(&session.ok("wait --for=condition=Ready pod/stays --timeout=30s", "").await, &["condition met"]);
    assert_eq!(session.ok("exec stays -- say hello", "").await, "say hello\n");
    assert_eq!(session.ok("exec -i stays -- cat", "round and back\n").await, "round and back\n");
    let failed = session.run("exec stays -- exit 3", "").await;
    assert_eq!(failed.status.code(), Some(3), "{}", String::from_utf8_lossy(&failed.stderr));
    contains(&session.ok("describe pod stays", "").await, &["Node:", "node-1", "Running"]);
    contains(&session.ok("describe node node-1", "").await, &["Name:", "node-1"]);
    contains(&session.ok("get nodes", "").await, &["Ready"]);
    contains(&session.ok("delete pod stays", "").await, &["deleted"]);
    contains(&session.ok("delete pod once --force --grace-period=0", "").await, &["deleted"]);
    assert_eq!(session.ok("get pods -o name", "").await, "");
    session.end().await;
}
