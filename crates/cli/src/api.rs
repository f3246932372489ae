//! The API as the verbs use it: a few requests, typed.

use crate::error::{Error, Exit, Result, from_kube};
use futures::{AsyncBufReadExt, AsyncReadExt, Stream, StreamExt};
use http::{Method, Request};
use kube::Client;
use regatta_types::job::Job;
use regatta_types::pod::Pod;
use regatta_types::preview::{JobPreview, JobPreviewStatus};
use regatta_types::run_record::RunEntry;
use regatta_types::{Resource, resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// How many bytes of a log are read at once.
const LOG_CHUNK_BYTES: usize = 16 << 10;

/// A client of one server and one namespace.
#[derive(Clone)]
pub(crate) struct Api {
    client: Client,
    pub(crate) namespace: String,
}

/// A change of a watched object.
#[derive(Debug)]
pub(crate) enum Watched<T> {
    /// It is there, as it is now.
    Applied(T),
    /// It is gone.
    Deleted,
}

#[derive(Deserialize)]
struct WireEvent {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

/// Which log to read.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogQuery {
    pub(crate) follow: bool,
    pub(crate) tail: Option<u64>,
    pub(crate) timestamps: bool,
    pub(crate) rank: Option<u32>,
    /// Container; the one with the ranks when none.
    pub(crate) container: Option<String>,
    /// Uid of the run, to tell namesakes apart; the newest when none.
    pub(crate) uid: Option<String>,
}

impl LogQuery {
    fn parameters(&self) -> String {
        let mut query = format!("follow={}&timestamps={}", self.follow, self.timestamps);
        if let Some(tail) = self.tail {
            query.push_str(&format!("&tailLines={tail}"));
        }
        if let Some(rank) = self.rank {
            query.push_str(&format!("&rank={rank}"));
        }
        for (name, value) in [("container", &self.container), ("uid", &self.uid)] {
            if let Some(value) = value {
                query.push_str(&format!("&{name}={}", encode(value)));
            }
        }
        query
    }
}

impl Api {
    pub(crate) fn new(client: Client) -> Self {
        let namespace = client.default_namespace().to_owned();
        Self { client, namespace }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    fn path(&self, resource: &Resource, name: Option<&str>) -> String {
        let group =
            if resource.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", resource.group) };
        let scope = match resource.scope {
            regatta_types::Scope::Namespaced => format!("/namespaces/{}", encode(&self.namespace)),
            regatta_types::Scope::Cluster => String::new(),
        };
        let name = name.map_or_else(String::new, |name| format!("/{}", encode(name)));
        format!("{group}/{}{scope}/{}{name}", resource.version, resource.plural)
    }

    fn request(method: Method, path: &str, content_type: &str, body: &Value) -> Result<Request<Vec<u8>>> {
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, content_type)
            .body(bytes)
            .map_err(|e| Error::usage(format!("{path} is no usable path: {e}")))
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &Value,
        doing: &str,
    ) -> Result<T> {
        let content_type =
            if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Self::request(method, path, content_type, body)?;
        self.client.request(request).await.map_err(|e| from_kube(&e, doing))
    }

    /// One object.
    pub(crate) async fn get<T: DeserializeOwned>(&self, resource: &Resource, name: &str) -> Result<T> {
        self.send(
            Method::GET,
            &self.path(resource, Some(name)),
            &Value::Null,
            &format!("read {} {name}", resource.kind),
        )
        .await
    }

    /// All objects of a kind, of all namespaces where that is asked for.
    pub(crate) async fn list(&self, resource: &Resource, scope: ListScope, query: &str) -> Result<Value> {
        let path = match scope {
            ListScope::Namespace => self.path(resource, None),
            ListScope::Everywhere => {
                let group = if resource.group.is_empty() {
                    "/api".to_owned()
                } else {
                    format!("/apis/{}", resource.group)
                };
                format!("{group}/{}/{}", resource.version, resource.plural)
            }
        };
        let path = if query.is_empty() { path } else { format!("{path}?{query}") };
        self.send(Method::GET, &path, &Value::Null, &format!("list {}", resource.plural)).await
    }

    /// A job; when there is none, the error names those with a similar name.
    pub(crate) async fn job(&self, name: &str) -> Result<Job> {
        match self.get(&resource::JOBS, name).await {
            Err(error) if error.exit == Exit::NotFound => {
                let list = self.list(&resource::JOBS, ListScope::Namespace, "").await?;
                let names: Vec<&str> = list["items"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|job| job["metadata"]["name"].as_str())
                    .collect();
                let sentence = format!("there is no job {name} in namespace {}", self.namespace);
                let error = Error::new(Exit::NotFound, sentence);
                Err(match crate::manifest::nearest(name, &names) {
                    Some(near) => error.fix(format!("did you mean {near}?")),
                    None => error.fix(
                        "`regatta ps -a` lists the jobs there are, `regatta runs` also those that are gone",
                    ),
                })
            }
            other => other,
        }
    }

    /// Submits a job.
    ///
    /// # Errors
    /// One with [`Exit::Conflict`] when there is a job of this name.
    pub(crate) async fn create_job(&self, job: &Job) -> Result<Job> {
        let mut body =
            serde_json::to_value(job).map_err(|e| Error::failure(format!("cannot encode the job: {e}")))?;
        if let Some(fields) = body.as_object_mut() {
            fields.remove("status");
        }
        let path = format!("{}?fieldValidation=Strict", self.path(&resource::JOBS, None));
        self.send(Method::POST, &path, &body, "submit the job").await
    }

    pub(crate) async fn patch_job(&self, name: &str, patch: &Value) -> Result<Job> {
        self.send(
            Method::PATCH,
            &self.path(&resource::JOBS, Some(name)),
            patch,
            &format!("change job {name}"),
        )
        .await
    }

    pub(crate) async fn preview(&self, preview: &JobPreview) -> Result<JobPreviewStatus> {
        let body = serde_json::to_value(preview)
            .map_err(|e| Error::failure(format!("cannot encode the question: {e}")))?;
        let path = self.path(&resource::JOB_PREVIEWS, None);
        self.send::<JobPreview>(Method::POST, &path, &body, "ask the planner")
            .await
            .map(|answer| answer.status)
    }

    /// Changes of a kind from now on, starting with what is there.
    pub(crate) async fn watch<T: DeserializeOwned + Send + 'static>(
        &self,
        resource: &Resource,
        query: &str,
    ) -> Result<impl Stream<Item = Result<Watched<T>>> + Send + Unpin + use<T>> {
        let path = format!("{}?watch=true&{query}", self.path(resource, None));
        let doing = format!("watch {}", resource.plural);
        let request = Self::request(Method::GET, &path, "application/json", &Value::Null)?;
        let lines = self.client.request_stream(request).await.map_err(|e| from_kube(&e, &doing))?;
        let events = lines.lines().map(move |line| {
            let line = line.map_err(|e| {
                Error::new(Exit::Unreachable, format!("the server ended the answer to {doing}: {e}"))
            })?;
            let event: WireEvent = serde_json::from_str(&line)
                .map_err(|e| Error::failure(format!("the answer to {doing} is unreadable: {e}")))?;
            match event.kind.as_str() {
                "DELETED" => Ok(Watched::Deleted),
                "ERROR" => {
                    let message = event.object["message"].as_str().unwrap_or("no reason given").to_owned();
                    Err(Error::new(Exit::Unreachable, format!("cannot {doing}: {message}")))
                }
                _ => serde_json::from_value(event.object)
                    .map(Watched::Applied)
                    .map_err(|e| Error::failure(format!("the answer to {doing} is unreadable: {e}"))),
            }
        });
        Ok(Box::pin(events))
    }

    async fn bytes(
        &self,
        path: &str,
        doing: &str,
    ) -> Result<impl Stream<Item = std::io::Result<Vec<u8>>> + Send + Unpin + use<>> {
        let request = Self::request(Method::GET, path, "application/json", &Value::Null)?;
        let reader = self.client.request_stream(request).await.map_err(|e| from_kube(&e, doing))?;
        let chunks = futures::stream::try_unfold(Box::pin(reader), |mut reader| async move {
            let mut chunk = vec![0; LOG_CHUNK_BYTES];
            let read = reader.read(&mut chunk).await?;
            chunk.truncate(read);
            Ok((read > 0).then_some((chunk, reader)))
        });
        Ok(Box::pin(chunks))
    }

    /// What a pod's ranks wrote, as bytes appear.
    pub(crate) async fn pod_log(
        &self,
        pod: &str,
        query: &LogQuery,
    ) -> Result<impl Stream<Item = std::io::Result<Vec<u8>>> + Send + Unpin + use<>> {
        let path = format!("{}/log?{}", self.path(&resource::PODS, Some(pod)), query.parameters());
        self.bytes(&path, &format!("read the log of pod {pod}")).await
    }

    fn runs_path(&self, rest: &str) -> String {
        format!("/apis/runs.regatta.dev/v1alpha1/namespaces/{}/runs{rest}", encode(&self.namespace))
    }

    /// All runs of the namespace.
    pub(crate) async fn runs(&self) -> Result<Value> {
        self.send(Method::GET, &self.runs_path(""), &Value::Null, "list the runs").await
    }

    /// The record of a run.
    pub(crate) async fn run(&self, name: &str) -> Result<Value> {
        self.send(
            Method::GET,
            &self.runs_path(&format!("/{}", encode(name))),
            &Value::Null,
            &format!("read the record of run {name}"),
        )
        .await
    }

    /// Facts of a run's record.
    pub(crate) async fn run_entries(&self, name: &str) -> Result<Vec<RunEntry>> {
        let run = self.run(name).await?;
        let entries = run["entries"].as_array().into_iter().flatten();
        Ok(entries.filter_map(|entry| serde_json::from_value(entry.clone()).ok()).collect())
    }

    /// What one slot of an attempt wrote, also when its pod is gone.
    pub(crate) async fn run_log(
        &self,
        name: &str,
        epoch: u64,
        (role, slot): (&str, u32),
        query: &LogQuery,
    ) -> Result<impl Stream<Item = std::io::Result<Vec<u8>>> + Send + Unpin + use<>> {
        let path = self
            .runs_path(&format!("/{name}/log?epoch={epoch}&role={role}&slot={slot}&{}", query.parameters()));
        self.bytes(&path, &format!("read the log of run {name}")).await
    }

    /// Live progress of a run, one report a line; an empty stream where none is served.
    pub(crate) async fn progress(
        &self,
        name: &str,
        uid: &str,
    ) -> Result<impl Stream<Item = regatta_types::evidence::Progress> + Send + Unpin + use<>> {
        let path = self.runs_path(&format!("/{}/progress?watch=true&uid={}", encode(name), encode(uid)));
        let request = Self::request(Method::GET, &path, "application/json", &Value::Null)?;
        let lines =
            self.client.request_stream(request).await.map_err(|e| from_kube(&e, "read the progress"))?;
        let reports = lines.lines().filter_map(|line| async move { serde_json::from_str(&line.ok()?).ok() });
        Ok(Box::pin(reports))
    }

    /// Pods of a job.
    pub(crate) async fn pods_of(&self, job: &str) -> Result<Vec<Pod>> {
        let query = of_job(job);
        let list = self.list(&resource::PODS, ListScope::Namespace, &query).await?;
        Ok(items(list))
    }

    /// The server's version, as Kubernetes tells it.
    pub(crate) async fn version(&self) -> Result<Value> {
        self.send(Method::GET, "/version", &Value::Null, "ask for the version").await
    }

    /// Deletes a job and what belongs to it, and waits until it is gone.
    pub(crate) async fn delete_job(&self, job: &Job) -> Result<()> {
        let name = &job.metadata.name;
        let mut changes = self.watch::<Job>(&resource::JOBS, &named(name)).await?;
        let body = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground",
            "preconditions": {"uid": job.metadata.uid()},
        });
        let path = self.path(&resource::JOBS, Some(name));
        self.send::<Value>(Method::DELETE, &path, &body, &format!("delete job {name}")).await?;
        while let Some(change) = changes.next().await {
            if matches!(change?, Watched::Deleted) {
                return Ok(());
            }
        }
        Err(Error::new(Exit::Unreachable, format!("the server ended the watch of job {name}"))
            .fix("try again"))
    }

    /// Asks the daemon to stop.
    pub(crate) async fn shut_down(&self, jobs: &str) -> Result<()> {
        let body = json!({"jobs": jobs});
        self.send::<Value>(Method::POST, "/regatta/v1/shutdown", &body, "stop the daemon").await.map(drop)
    }
}

/// The query that selects the pods of a job.
pub(crate) fn of_job(job: &str) -> String {
    format!("labelSelector={}", encode(&format!("{}={job}", regatta_types::labels::JOB_NAME)))
}

/// The query that selects one object by its name.
pub(crate) fn named(name: &str) -> String {
    format!("fieldSelector={}", encode(&format!("metadata.name={name}")))
}

/// Percent-encodes what a path or query cannot hold as it is.
pub(crate) fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    text.bytes().fold(String::new(), |mut out, byte| {
        if plain(byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    })
}

/// Of which namespaces to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListScope {
    /// The client's own.
    Namespace,
    /// All.
    Everywhere,
}

/// The items of a list; what cannot be read is left out.
pub(crate) fn items<T: DeserializeOwned>(mut list: Value) -> Vec<T> {
    let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
    items.into_iter().filter_map(|item| serde_json::from_value(item).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_encoded_for_paths() {
        for (text, expected) in [("digits-0.a_b~", "digits-0.a_b~"), ("a/b=c é", "a%2Fb%3Dc%20%C3%A9")] {
            assert_eq!(encode(text), expected);
        }
        assert_eq!(named("a b"), "fieldSelector=metadata.name%3Da%20b");
    }
}
