//! `JobPreview`: asking the operator without submitting anything.

use async_trait::async_trait;
use regatta_apiserver::{VirtualDescriptor, VirtualRequest, VirtualResource, VirtualResponse};
use regatta_kit::ApiError;
use regatta_operator::Handle;
use regatta_types::preview::{JobPreview, JobPreviewSpec};
use regatta_types::{Scope, resource};
use serde_json::json;

/// The resource.
pub struct Previews {
    /// Whom to ask.
    pub operator: Handle,
}

#[async_trait]
impl VirtualResource for Previews {
    fn descriptors(&self) -> Vec<VirtualDescriptor> {
        vec![VirtualDescriptor {
            group: resource::GROUP.to_owned(),
            version: resource::VERSION.to_owned(),
            plural: resource::JOB_PREVIEWS.plural.to_owned(),
            kind: resource::JOB_PREVIEWS.kind.to_owned(),
            scope: Scope::Namespaced,
            verbs: vec!["create".to_owned()],
            subresources: Vec::new(),
            schema: Some(
                json!({"type": "object", "properties": {"spec": schemars::schema_for!(JobPreviewSpec)}}),
            ),
        }]
    }

    async fn handle(&self, request: VirtualRequest) -> Result<VirtualResponse, ApiError> {
        let body = request.body.unwrap_or_default();
        let mut preview: JobPreview = serde_json::from_value(body).map_err(|e| ApiError {
            code: 400,
            reason: "BadRequest".to_owned(),
            message: format!("the JobPreview has the wrong shape: {e}"),
        })?;
        let namespace = request.namespace.as_deref().unwrap_or("default");
        let answer = self.operator.preview(namespace, preview.clone()).await;
        preview.status = answer.map_err(|stopped| ApiError::no_answer(stopped.to_string()))?;
        preview.api_version = resource::JOB_PREVIEWS.api_version();
        preview.kind = resource::JOB_PREVIEWS.kind.to_owned();
        preview.metadata.namespace = Some(namespace.to_owned());
        serde_json::to_value(preview)
            .map(VirtualResponse::Json)
            .map_err(|e| ApiError::internal(format!("cannot encode the preview: {e}")))
    }
}
