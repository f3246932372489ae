//! Asking without submitting: `POST …/jobpreviews` answers what the planner would do with a job now. Nothing is stored.

use crate::job::{JobSpec, SlotPlacement};
use crate::meta::ObjectMeta;
use crate::reason::WaitReason;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A question and, in the response, its answer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobPreview {
    /// Always `regatta.dev/v1alpha1`.
    pub api_version: String,
    /// Always `JobPreview`.
    pub kind: String,
    /// Metadata; the name of an existing job asks about that job.
    pub metadata: ObjectMeta,
    /// The question.
    pub spec: JobPreviewSpec,
    /// The answer.
    pub status: JobPreviewStatus,
}

/// The question.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct JobPreviewSpec {
    /// The job as it would be submitted. When left out, the existing job of that name is asked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobSpec>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct JobPreviewStatus {
    /// Whether it would start, wait or be refused.
    pub verdict: Verdict,
    /// The numbers, in a sentence, and what would change it.
    pub message: String,
    /// Why it would wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<WaitReason>,
    /// Where it would run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub placement: Vec<SlotPlacement>,
    /// GPUs in all.
    pub gpus: i64,
    /// Price per hour in millionths of the currency; none where no pool has a price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_per_hour_micros: Option<i64>,
    /// Currency of the price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// How many jobs of the same queue are ahead.
    pub ahead: u32,
}

/// What would happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum Verdict {
    /// It would start at once.
    Starts,
    /// It would wait.
    #[default]
    Waits,
    /// It would be refused.
    Refused,
    /// It runs already.
    Runs,
}
