//! Answers "what would happen": the planner asked without changing anything.

use crate::admission;
use crate::core::{Core, Key};
use crate::planning::{GangKey, gang_of_job};
use regatta_planner::Preview;
use regatta_types::job::{Job, JobPhase, JobSpec, SlotPlacement};
use regatta_types::preview::{JobPreview, JobPreviewStatus, Verdict};
use regatta_types::reason::WaitReason;
use regatta_types::{Incarnation, ObjectMeta, Timestamp};

impl Core {
    /// The answer to `preview`, asked in `namespace` at `now`.
    pub fn preview(&self, namespace: &str, preview: &JobPreview, now: Timestamp) -> JobPreviewStatus {
        let key = Key::new(namespace, &preview.metadata.name);
        match (&preview.spec.job, self.job(&key)) {
            (Some(spec), _) => self.preview_spec(namespace, &preview.metadata, spec, now),
            (None, Some(job)) => self.preview_job(job),
            (None, None) => JobPreviewStatus {
                verdict: Verdict::Refused,
                message: format!("there is no job {key}; `regatta ps` lists the jobs there are"),
                ..JobPreviewStatus::default()
            },
        }
    }

    fn preview_spec(
        &self,
        namespace: &str,
        meta: &ObjectMeta,
        spec: &JobSpec,
        now: Timestamp,
    ) -> JobPreviewStatus {
        let meta = ObjectMeta {
            namespace: Some(namespace.to_owned()),
            uid: Some("preview".into()),
            creation_timestamp: Some(now),
            ..meta.clone()
        };
        let gang = gang_of_job(&meta, spec);
        let mut status = JobPreviewStatus { gpus: spec.gpus(), ..JobPreviewStatus::default() };
        let job = Job { metadata: meta, spec: spec.clone(), ..Job::default() };
        if let Err(refusal) = admission::check_new_job(&job) {
            status.verdict = Verdict::Refused;
            status.message = refusal.to_string();
            return status;
        }
        match self.planning.world.preview(&gang) {
            Preview::Starts { placement } => {
                status.verdict = Verdict::Starts;
                status.message = "starts now".to_owned();
                self.price(&mut status, spec, placement.first().map(|slot| slot.node.as_str()));
                let slots = placement.into_iter().map(|slot| SlotPlacement {
                    role: slot.role,
                    slot: slot.slot,
                    node: slot.node,
                    incarnation: Incarnation(1),
                });
                status.placement = slots.collect();
            }
            Preview::Waits(verdict) => {
                status.verdict = Verdict::Waits;
                status.reason = Some(verdict.reason);
                status.message = verdict.message;
                status.ahead = self.ahead_in(&gang.queue, gang.priority, gang.submitted);
            }
            Preview::Impossible(verdict) => {
                status.verdict = Verdict::Refused;
                status.message = verdict.to_string();
            }
        }
        status
    }

    fn preview_job(&self, job: &Job) -> JobPreviewStatus {
        let mut status = JobPreviewStatus { gpus: job.spec.gpus(), ..JobPreviewStatus::default() };
        if job.status.phase.holds_resources() {
            status.verdict = Verdict::Runs;
            status.placement.clone_from(&job.status.placement);
            status.message = format!("{} in epoch {}", job.status.phase.as_str(), job.status.epoch);
            self.price(&mut status, &job.spec, job.status.placement.first().map(|slot| slot.node.as_str()));
        } else if job.status.phase.is_terminal() || job.status.phase == JobPhase::Suspended {
            status.verdict = Verdict::Refused;
            status.message = format!("{}: {}", job.status.phase.as_str(), job.status.message);
        } else {
            self.preview_waiting(job, &mut status);
        }
        status
    }

    /// Why a job waits, with the numbers as they are now.
    fn preview_waiting(&self, job: &Job, status: &mut JobPreviewStatus) {
        status.ahead = self.ahead_of(job);
        match self.planning.world.explain(&GangKey::Job(job.metadata.uid()).id()) {
            Some(Preview::Waits(verdict)) => {
                status.reason = Some(verdict.reason);
                status.message = verdict.message;
            }
            Some(Preview::Impossible(verdict)) => {
                status.reason = Some(WaitReason::NoSuchNode);
                status.message = verdict.to_string();
            }
            Some(Preview::Starts { .. }) => "it is about to start".clone_into(&mut status.message),
            None => match &job.status.waiting {
                Some(waiting) => {
                    status.reason = Some(waiting.reason);
                    status.message.clone_from(&waiting.message);
                }
                None => "it has not been planned yet".clone_into(&mut status.message),
            },
        }
    }

    fn price(&self, status: &mut JobPreviewStatus, spec: &JobSpec, node: Option<&str>) {
        let Some(prices) = node.and_then(|node| self.prices_on(node)) else { return };
        status.price_per_hour_micros = Some(regatta_lifecycle::price_per_hour_micros(spec, &prices));
        status.currency = Some(prices.currency);
    }
}
