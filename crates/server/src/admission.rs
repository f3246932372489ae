//! What is checked at each write on one machine: jobs by the operator's rules and the planner, pods by what the runtime
//! can give.

use async_trait::async_trait;
use regatta_apiserver::{Admission, AdmissionRequest, AdmissionVerb};
use regatta_kit::ApiError;
use regatta_node::NodeRuntime;
use regatta_operator::{Handle, admission};
use regatta_types::job::Job;
use regatta_types::pod::Pod;
use regatta_types::resource;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::{Arc, OnceLock};

/// The checks of the local daemon. The operator and the runtime come to life after the API, so they are set later.
#[derive(Default)]
pub struct LocalAdmission {
    operator: OnceLock<Handle>,
    node: OnceLock<Arc<NodeRuntime>>,
}

impl LocalAdmission {
    /// From now on jobs are checked against what the operator knows.
    pub fn set_operator(&self, operator: Handle) {
        // Set once by the composition; a second value would be the same operator.
        let _ = self.operator.set(operator);
    }

    /// From now on pods are checked against what the runtime can give.
    pub fn set_node(&self, node: Arc<NodeRuntime>) {
        let _ = self.node.set(node);
    }

    async fn admit_job(&self, request: AdmissionRequest<'_>) -> Result<(), ApiError> {
        let mut job: Job = decode(request.object)?;
        match (request.verb, request.old) {
            (AdmissionVerb::Update, Some(old)) => {
                // Somebody who takes the finalizer off, or deletes, changes nothing that could be wrong.
                let old: Job = decode(old)?;
                if old.spec != job.spec {
                    admission::check_changed_job(&old, &job).map_err(|refusal| refused(&refusal))?;
                }
                return Ok(());
            }
            _ => admission::default_job(&mut job),
        }
        admission::check_new_job(&job).map_err(|refusal| refused(&refusal))?;
        if let Some(node) = self.node.get() {
            for role in &job.spec.roles {
                let pod = Pod {
                    spec: role.template.spec.clone(),
                    metadata: role.template.metadata.clone(),
                    ..Pod::default()
                };
                node.validate(&pod)
                    .map_err(|problem| refused_because(format!("role {:?}: {problem}", role.name)))?;
            }
        }
        if let Some(operator) = self.operator.get() {
            let answer = operator.check_fits(job.clone()).await;
            answer
                .map_err(|stopped| ApiError::no_answer(stopped.to_string()))?
                .map_err(|refusal| refused(&refusal))?;
        }
        request.object["spec"]["queue"] = Value::from(job.spec.queue);
        request.object["metadata"]["finalizers"] = Value::from(job.metadata.finalizers);
        Ok(())
    }

    fn admit_pod(&self, request: &AdmissionRequest<'_>) -> Result<Vec<String>, ApiError> {
        if request.verb != AdmissionVerb::Create {
            return Ok(Vec::new());
        }
        let pod: Pod = decode(request.object)?;
        if let Some(node) = self.node.get() {
            node.validate(&pod).map_err(refused_because)?;
        }
        Ok(runs_once(&pod).into_iter().collect())
    }
}

#[async_trait]
impl Admission for LocalAdmission {
    async fn admit(&self, request: AdmissionRequest<'_>) -> Result<Vec<String>, ApiError> {
        if request.resource == resource::JOBS {
            self.admit_job(request).await?;
        } else if request.resource == resource::PODS {
            return self.admit_pod(&request);
        }
        Ok(Vec::new())
    }
}

/// What is said to whoever expects a pod to be restarted: that is what jobs are for.
fn runs_once(pod: &Pod) -> Option<String> {
    let policy = pod.spec.restart_policy.as_deref().filter(|policy| *policy != "Never")?;
    Some(format!(
        "spec.restartPolicy: {policy} has no effect here: a pod without a job runs once; use `regatta run`, whose jobs are restarted"
    ))
}

fn decode<T: DeserializeOwned>(object: &Value) -> Result<T, ApiError> {
    T::deserialize(object).map_err(|e| refused_because(format!("the object has the wrong shape: {e}")))
}

fn refused(refusal: &admission::Refusal) -> ApiError {
    refused_because(refusal.to_string())
}

fn refused_because(message: String) -> ApiError {
    ApiError { code: 422, reason: "Invalid".to_owned(), message }
}
