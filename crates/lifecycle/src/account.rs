//! Resource time and money: whole milliseconds and millionths, so that sums are exact.

use regatta_types::job::{EpochRecord, Job, JobSpec, Usage};
use regatta_types::pod::ResourceTotals;
use regatta_types::{Epoch, Timestamp};

const HOUR_MS: i64 = 3_600_000;

/// What resources cost where a job runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prices {
    /// One GPU for one hour, in millionths of the currency.
    pub gpu_hour_micros: i64,
    /// One CPU core for one hour, in millionths of the currency.
    pub cpu_hour_micros: i64,
    /// ISO 4217.
    pub currency: String,
}

/// What a job holds while it holds resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    gpus_milli: i64,
    cpus_milli: i64,
    slots: i64,
}

impl Held {
    fn of(spec: &JobSpec) -> Self {
        let mut held = Self { gpus_milli: 0, cpus_milli: 0, slots: 0 };
        for role in &spec.roles {
            let each = ResourceTotals::of(&role.template.spec);
            let count = i64::from(role.replicas);
            held.gpus_milli = held.gpus_milli.saturating_add(each.gpu_milli.saturating_mul(count));
            held.cpus_milli = held.cpus_milli.saturating_add(each.cpu_milli.saturating_mul(count));
            held.slots = held.slots.saturating_add(count);
        }
        held
    }
}

/// Books `held_ms` of all that the job holds, of which `lost_ms` were of no use.
pub(crate) fn book(job: &Job, usage: &mut Usage, prices: Option<&Prices>, held_ms: i64, lost_ms: i64) {
    let held = Held::of(&job.spec);
    let lost_ms = lost_ms.clamp(0, held_ms.max(0));
    let time = |milli: i64, ms: i64| milli.saturating_mul(ms) / 1000;
    usage.gpu_ms = usage.gpu_ms.saturating_add(time(held.gpus_milli, held_ms));
    usage.cpu_ms = usage.cpu_ms.saturating_add(time(held.cpus_milli, held_ms));
    usage.slot_ms = usage.slot_ms.saturating_add(held.slots.saturating_mul(held_ms));
    usage.lost_gpu_ms = usage.lost_gpu_ms.saturating_add(time(held.gpus_milli, lost_ms));
    usage.lost_cpu_ms = usage.lost_cpu_ms.saturating_add(time(held.cpus_milli, lost_ms));
    usage.lost_slot_ms = usage.lost_slot_ms.saturating_add(held.slots.saturating_mul(lost_ms));
    if let Some(prices) = prices {
        usage.cost_micros =
            Some(usage.cost_micros.unwrap_or(0).saturating_add(cost_micros(held, prices, held_ms)));
        usage.currency = Some(prices.currency.clone());
    }
}

fn cost_micros(held: Held, prices: &Prices, held_ms: i64) -> i64 {
    let per_hour = per_hour_milli_micros(held, prices);
    let cost = per_hour * i128::from(held_ms) / (i128::from(HOUR_MS) * 1000);
    i64::try_from(cost).unwrap_or(i64::MAX)
}

/// What a job costs in an hour while it holds its resources, in millionths of the currency.
pub fn price_per_hour_micros(spec: &JobSpec, prices: &Prices) -> i64 {
    i64::try_from(per_hour_milli_micros(Held::of(spec), prices) / 1000).unwrap_or(i64::MAX)
}

/// Price of an hour in thousandths of a millionth.
fn per_hour_milli_micros(held: Held, prices: &Prices) -> i128 {
    i128::from(held.gpus_milli) * i128::from(prices.gpu_hour_micros)
        + i128::from(held.cpus_milli) * i128::from(prices.cpu_hour_micros)
}

/// Time with resources held that has been booked, in milliseconds.
pub(crate) fn booked_ms(job: &Job) -> i64 {
    let slots = Held::of(&job.spec).slots;
    if slots == 0 { 0 } else { job.status.usage.slot_ms / slots }
}

/// Since when the resources that are held now have not been booked yet.
pub(crate) fn unbooked_since(job: &Job) -> Option<Timestamp> {
    let record = job.current_epoch()?;
    job.status.phase.holds_resources().then(|| record.ended_at.unwrap_or(record.planned_at))
}

/// When the job's own limit on run time is reached, if it goes on holding resources.
pub(crate) fn runtime_limit_at(job: &Job) -> Option<Timestamp> {
    let limit_ms = job.spec.limits.runtime_seconds?.saturating_mul(1000);
    Some(unbooked_since(job)?.plus_ms(limit_ms.saturating_sub(booked_ms(job)).max(0)))
}

/// When the job's own limit on cost is reached, if it goes on holding resources.
pub(crate) fn cost_limit_at(job: &Job, prices: Option<&Prices>) -> Option<Timestamp> {
    let limit = i128::from(job.spec.limits.cost_micros?);
    let since = unbooked_since(job)?;
    let per_hour = per_hour_milli_micros(Held::of(&job.spec), prices?);
    if per_hour <= 0 {
        return None;
    }
    let left = (limit - i128::from(job.status.usage.cost_micros.unwrap_or(0))).max(0);
    // Rounded up: at this time the limit is reached, not one millisecond earlier.
    let ms = (left * i128::from(HOUR_MS) * 1000 + per_hour - 1) / per_hour;
    Some(since.plus_ms(i64::try_from(ms).unwrap_or(i64::MAX)))
}

/// Whether a limit of the job is used up by what has been booked.
pub(crate) fn is_over_limit(job: &Job) -> bool {
    let limits = &job.spec.limits;
    let over_time = limits.runtime_seconds.is_some_and(|limit| booked_ms(job) >= limit.saturating_mul(1000));
    let over_cost =
        limits.cost_micros.is_some_and(|limit| job.status.usage.cost_micros.unwrap_or(0) >= limit);
    over_time || over_cost
}

/// How much of an attempt was of no use, in milliseconds.
///
/// `kept_step` is the step at which a later attempt goes on; an attempt that ended well kept all its steps. Between two
/// steps time is taken as proportional to steps. An attempt after the first also loses the time until its ranks ran.
pub(crate) fn lost_ms(record: &EpochRecord, kept: Kept, ended_at: Timestamp) -> i64 {
    let failed_at = record.failed_at.unwrap_or(ended_at);
    let running_at = record.running_at.unwrap_or(failed_at);
    let start_up_ms = if record.epoch > Epoch(1) { running_at.since_ms(record.planned_at) } else { 0 };
    let Kept::Until(kept_step) = kept else { return start_up_ms };
    let stop_ms = ended_at.since_ms(failed_at);
    let ran_ms = failed_at.since_ms(running_at);
    let first = record.resumed_from.as_ref().map_or(0, |checkpoint| checkpoint.step);
    let kept_steps = kept_step.unwrap_or(first).saturating_sub(first);
    // Without reports the last checkpoint is all that is known to have been done.
    let last = record.last_step.unwrap_or(0).max(first.saturating_add(kept_steps));
    let done = last.saturating_sub(first);
    let redo = done.saturating_sub(kept_steps);
    let lost_run_ms = if kept_steps == 0 {
        ran_ms
    } else {
        i64::try_from(i128::from(ran_ms) * i128::from(redo) / i128::from(done.max(1))).unwrap_or(ran_ms)
    };
    start_up_ms.saturating_add(lost_run_ms).saturating_add(stop_ms)
}

/// What is left of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// All of it.
    All,
    /// What was done until this step; nothing new when there is no checkpoint.
    Until(Option<u64>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_types::evidence::Checkpoint;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_unix_ms(ms)
    }

    fn record(epoch: u64, resumed: Option<u64>, last_step: Option<u64>) -> EpochRecord {
        EpochRecord {
            epoch: Epoch(epoch),
            planned_at: at(0),
            running_at: Some(at(1_000)),
            failed_at: Some(at(11_000)),
            resumed_from: resumed.map(|step| Checkpoint { step, path: format!("ckpt-{step}.json") }),
            last_step,
            ..EpochRecord::default()
        }
    }

    #[test]
    fn lost_time_goes_back_to_the_checkpoint() {
        let check =
            |record: EpochRecord, kept, expected| assert_eq!(lost_ms(&record, kept, at(12_000)), expected);
        // Ended well: nothing is lost, except start-up of a second attempt.
        check(record(1, None, Some(100)), Kept::All, 0);
        check(record(2, Some(50), Some(100)), Kept::All, 1_000);
        // No checkpoint: the whole run and the stopping.
        check(record(1, None, Some(100)), Kept::Until(None), 10_000 + 1_000);
        // Half of the steps are kept.
        check(record(1, None, Some(100)), Kept::Until(Some(50)), 5_000 + 1_000);
        // Resumed at 50, reached 100, checkpoint at 75: half of the run, and the start-up.
        check(record(2, Some(50), Some(100)), Kept::Until(Some(75)), 1_000 + 5_000 + 1_000);
        // No steps were reported, but a checkpoint was made: only the stopping is known to be lost.
        check(record(1, None, None), Kept::Until(Some(50)), 1_000);
        // No newer checkpoint than the one resumed from.
        check(record(2, Some(50), Some(60)), Kept::Until(Some(50)), 1_000 + 10_000 + 1_000);
    }
}
