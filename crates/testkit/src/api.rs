//! The API as a client sees it: read, create, delete, and wait for an object to become what a test is waiting for.

use crate::DEADLINE_S;
use futures::{StreamExt, TryStreamExt};
use kube::core::WatchEvent;
use regatta_types::job::Job;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Paths of the kinds that tests use, in the namespace `default`.
const JOBS: &str = "/apis/regatta.dev/v1alpha1/namespaces/default/jobs";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// A connection to one daemon.
pub struct Api {
    client: kube::Client,
    runtime: tokio::runtime::Runtime,
}

/// What the server answered instead of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub code: u16,
    /// The sentence.
    pub message: String,
}

impl Api {
    /// Connects as the kubeconfig says.
    #[track_caller]
    pub fn connect(kubeconfig: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let kubeconfig =
                kube::config::Kubeconfig::read_from(kubeconfig).expect("the kubeconfig can be read");
            let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await;
            kube::Client::try_from(config.expect("the kubeconfig is complete")).expect("a client can be made")
        });
        Self { client, runtime }
    }

    /// The connection itself and the runtime it lives on, for many requests at once.
    pub fn parts(&self) -> (&kube::Client, &tokio::runtime::Runtime) {
        (&self.client, &self.runtime)
    }

    /// Sends a request and reads an answer of type `T`.
    pub fn request<T: DeserializeOwned>(&self, method: &str, path: &str, body: &Value) -> Result<T, Refusal> {
        let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request =
            http::Request::builder().method(method).uri(path).header("content-type", content).body(body);
        let answer = self
            .runtime
            .block_on(self.client.request::<T>(request.expect("invariant: the request is whole")));
        answer.map_err(|error| match error {
            kube::Error::Api(status) => Refusal { code: status.code, message: status.message.clone() },
            other => Refusal { code: 0, message: other.to_string() },
        })
    }

    /// Reads what is at `path`.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Refusal> {
        self.request("GET", path, &Value::Null)
    }

    /// The job of this name.
    #[track_caller]
    pub fn job(&self, name: &str) -> Job {
        self.get(&format!("{JOBS}/{name}")).unwrap_or_else(|e| panic!("job {name}: {e:?}"))
    }

    /// Submits a job.
    pub fn submit(&self, job: &Value) -> Result<Job, Refusal> {
        self.request("POST", JOBS, job)
    }

    /// Waits until the job is what `holds` says; `what` says it in words.
    #[track_caller]
    pub fn wait_job(&self, name: &str, what: &str, holds: impl Fn(&Job) -> bool) -> Job {
        self.wait(JOBS, name, what, |value| {
            let job: Job = serde_json::from_value(value.clone()).expect("a job");
            holds(&job).then_some(job)
        })
    }

    /// Waits until the job has ended, well or badly.
    #[track_caller]
    pub fn wait_end(&self, name: &str) -> Job {
        self.wait_job(name, "ended", |job| job.status.phase.is_terminal())
    }

    /// Waits until there is no job of this name.
    #[track_caller]
    pub fn wait_gone(&self, name: &str) {
        let watch = async {
            let uri = format!("{JOBS}?watch=true&fieldSelector=metadata.name%3D{name}");
            let request = http::Request::get(uri).body(Vec::new()).expect("invariant: the request is whole");
            let events = self.client.request_events::<Value>(request).await.expect("a watch");
            let mut events = std::pin::pin!(events);
            let look = || {
                self.client.request::<Value>(
                    http::Request::get(format!("{JOBS}/{name}"))
                        .body(Vec::new())
                        .expect("invariant: the request is whole"),
                )
            };
            // The watch is open, so an end that comes after this look is seen by it.
            if look().await.is_err() {
                return;
            }
            while let Some(event) = events.next().await {
                if matches!(event, Ok(WatchEvent::Deleted(_))) {
                    return;
                }
            }
        };
        let deadline = Duration::from_secs(DEADLINE_S);
        let gone = self.runtime.block_on(async { tokio::time::timeout(deadline, watch).await });
        assert!(gone.is_ok(), "job {name} never went");
    }

    /// Waits until a pod is what `holds` says.
    #[track_caller]
    pub fn wait_pod(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        self.wait(PODS, name, what, |pod| holds(pod).then(|| pod.clone()))
    }

    /// Watches one object until `find` finds something in it.
    #[track_caller]
    fn wait<T>(&self, path: &str, name: &str, what: &str, find: impl Fn(&Value) -> Option<T>) -> T {
        let watch = async {
            loop {
                // A watch without a version starts with the object as it is.
                let uri = format!("{path}?watch=true&fieldSelector=metadata.name%3D{name}");
                let request =
                    http::Request::get(uri).body(Vec::new()).expect("invariant: the request is whole");
                let events = self.client.request_events::<Value>(request).await.expect("a watch");
                let mut events = std::pin::pin!(events);
                while let Some(event) = events.next().await {
                    let Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) = event else {
                        continue;
                    };
                    if let Some(found) = find(&object) {
                        return found;
                    }
                }
            }
        };
        let deadline = Duration::from_secs(DEADLINE_S);
        let found = self.runtime.block_on(async { tokio::time::timeout(deadline, watch).await });
        found.unwrap_or_else(|_| {
            let now: Result<Value, Refusal> = self.get(&format!("{path}/{name}"));
            panic!("{name} never was what was waited for ({what}); it is {now:#?}")
        })
    }

    /// Follows a pod's log until a line has `part`.
    #[track_caller]
    pub fn wait_log(&self, pod: &str, part: &str) -> String {
        let follow = async {
            let request = http::Request::get(format!("{PODS}/{pod}/log?follow=true")).body(Vec::new());
            let stream = self
                .client
                .request_stream(request.expect("invariant: the request is whole"))
                .await
                .expect("a log");
            let mut lines = futures::AsyncBufReadExt::lines(stream);
            while let Some(line) = lines.try_next().await.expect("a line") {
                if line.contains(part) {
                    return line;
                }
            }
            panic!("the log of {pod} ended without {part:?}")
        };
        let deadline = Duration::from_secs(DEADLINE_S);
        let found = self.runtime.block_on(async { tokio::time::timeout(deadline, follow).await });
        found.unwrap_or_else(|_| panic!("{part:?} never was in the log of {pod}"))
    }
}
