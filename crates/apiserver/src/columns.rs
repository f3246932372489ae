//! Columns of `kubectl get`, per kind.

use regatta_types::Timestamp;
use regatta_types::pod::{Quantities, ResourceList};
use serde_json::{Value, json};

/// One column.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Heading.
    pub name: &'static str,
    /// 0 is always shown, 1 only with `-o wide`.
    pub priority: i32,
    /// The cell of an object.
    pub cell: fn(&Value, Timestamp) -> Value,
}

const fn column(name: &'static str, cell: fn(&Value, Timestamp) -> Value) -> Column {
    Column { name, priority: 0, cell }
}

const fn wide(name: &'static str, cell: fn(&Value, Timestamp) -> Value) -> Column {
    Column { name, priority: 1, cell }
}

const NAME: Column = column("Name", |o, _| o["metadata"]["name"].clone());
const AGE: Column = column("Age", |o, now| age(&o["metadata"]["creationTimestamp"], now));

pub(crate) const JOB: &[Column] = &[
    NAME,
    column("Phase", |o, _| text(&o["status"]["phase"], "Queued")),
    column("Epoch", |o, _| text(&o["status"]["epoch"], "0")),
    column("Slots", |o, _| json!(slots(o))),
    column("Queue", |o, _| text(&o["spec"]["queue"], "default")),
    column("Reason", |o, _| {
        let waiting = &o["status"]["waiting"]["reason"];
        if waiting.is_string() { waiting.clone() } else { text(&o["status"]["reason"], "") }
    }),
    AGE,
    wide("Restarts", |o, _| text(&o["status"]["userRestarts"], "0")),
    wide("Checkpoint", |o, _| text(&o["status"]["checkpoint"]["step"], "")),
    wide("Message", |o, _| {
        let waiting = &o["status"]["waiting"]["message"];
        if waiting.is_string() { waiting.clone() } else { text(&o["status"]["message"], "") }
    }),
];

pub(crate) const QUEUE: &[Column] = &[
    NAME,
    column("Stopped", |o, _| json!((o["spec"]["stopped"] == true).to_string())),
    AGE,
    wide("Description", |o, _| text(&o["spec"]["description"], "")),
];

pub(crate) const NODE_POOL: &[Column] = &[
    NAME,
    column("GPU", |o, _| text(&o["spec"]["gpuModel"], "")),
    column("Price-Per-GPU-Hour", |o, _| {
        let micros = o["spec"]["pricePerGpuHourMicros"].as_i64();
        let currency = o["spec"]["currency"].as_str().unwrap_or_default();
        json!(micros.map_or_else(String::new, |m| format!(
            "{}.{:02} {currency}",
            m / 1_000_000,
            m % 1_000_000 / 10_000
        )))
    }),
    AGE,
];

pub(crate) const POD: &[Column] = &[
    NAME,
    column("Ready", |o, _| {
        let ready = statuses(o).filter(|status| status["ready"] == true).count();
        let all = o["spec"]["containers"].as_array().map_or(0, Vec::len);
        json!(format!("{ready}/{all}"))
    }),
    column("Status", |o, _| json!(pod_status(o))),
    column("Restarts", |o, _| {
        json!(statuses(o).filter_map(|s| s["restartCount"].as_i64()).sum::<i64>().to_string())
    }),
    AGE,
    wide("IP", |o, _| text(&o["status"]["podIP"], "<none>")),
    wide("Node", |o, _| text(&o["spec"]["nodeName"], "<none>")),
    wide("Nominated Node", |_, _| json!("<none>")),
    wide("Readiness Gates", |_, _| json!("<none>")),
];

pub(crate) const NODE: &[Column] = &[
    NAME,
    column("Status", |o, _| {
        let conditions = o["status"]["conditions"].as_array();
        let ready = conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True");
        let cordoned = if o["spec"]["unschedulable"] == true { ",SchedulingDisabled" } else { "" };
        json!(format!("{}{cordoned}", if ready { "Ready" } else { "NotReady" }))
    }),
    column("Roles", |_, _| json!("<none>")),
    AGE,
    column("Version", |o, _| text(&o["status"]["nodeInfo"]["kubeletVersion"], "")),
    wide("GPUs", |o, _| {
        let allocatable: ResourceList =
            serde_json::from_value(o["status"]["allocatable"].clone()).unwrap_or_default();
        let simulated = !o["metadata"]["annotations"][regatta_types::labels::SIMULATED_GPUS].is_null();
        let kind = if simulated { " (simulated)" } else { "" };
        json!(format!("{}{kind}", allocatable.units(regatta_types::labels::GPU_RESOURCE)))
    }),
];

pub(crate) const EVENT: &[Column] = &[
    column("Last Seen", |o, now| {
        let times = [&o["lastTimestamp"], &o["eventTime"], &o["metadata"]["creationTimestamp"]];
        times.into_iter().find(|time| time.is_string()).map_or(json!("<unknown>"), |time| age(time, now))
    }),
    column("Type", |o, _| text(&o["type"], "")),
    column("Reason", |o, _| text(&o["reason"], "")),
    column("Object", |o, _| {
        let kind = o["involvedObject"]["kind"].as_str().unwrap_or_default().to_lowercase();
        json!(format!("{kind}/{}", o["involvedObject"]["name"].as_str().unwrap_or_default()))
    }),
    column("Message", |o, _| text(&o["message"], "")),
];

pub(crate) const CONFIG_MAP: &[Column] =
    &[NAME, column("Data", |o, _| json!(count(&o["data"]) + count(&o["binaryData"]))), AGE];

pub(crate) const SECRET: &[Column] = &[
    NAME,
    column("Type", |o, _| text(&o["type"], "Opaque")),
    column("Data", |o, _| json!(count(&o["data"]))),
    AGE,
];

pub(crate) const NAMESPACE: &[Column] =
    &[NAME, column("Status", |o, _| text(&o["status"]["phase"], "Active")), AGE];

pub(crate) const LEASE: &[Column] =
    &[NAME, column("Holder", |o, _| text(&o["spec"]["holderIdentity"], "")), AGE];

fn text(value: &Value, otherwise: &str) -> Value {
    match value {
        Value::Null => json!(otherwise),
        Value::String(_) => value.clone(),
        other => json!(other.to_string()),
    }
}

fn count(value: &Value) -> usize {
    value.as_object().map_or(0, serde_json::Map::len)
}

fn slots(job: &Value) -> u64 {
    let roles = job["spec"]["roles"].as_array();
    roles.into_iter().flatten().map(|role| role["replicas"].as_u64().unwrap_or(1)).sum()
}

fn statuses(pod: &Value) -> impl Iterator<Item = &Value> {
    pod["status"]["containerStatuses"].as_array().into_iter().flatten()
}

/// The one word of a pod, by the rules of `kubectl`: what is going on in its containers says more than its phase.
fn pod_status(pod: &Value) -> String {
    if pod["metadata"]["deletionTimestamp"].is_string() {
        return "Terminating".to_owned();
    }
    let phase = pod["status"]["phase"].as_str().unwrap_or("Pending");
    let in_state = |state: &str| {
        statuses(pod)
            .filter_map(|status| status["state"][state]["reason"].as_str())
            .find(|reason| !reason.is_empty())
            .map(str::to_owned)
    };
    let ended_badly = statuses(pod)
        .find(|status| status["state"]["terminated"]["exitCode"].as_i64().is_some_and(|code| code != 0));
    let bad_reason =
        ended_badly.and_then(|status| status["state"]["terminated"]["reason"].as_str()).map(str::to_owned);
    let said = pod["status"]["reason"].as_str().map(str::to_owned);
    match phase {
        "Succeeded" => "Completed".to_owned(),
        "Failed" => said.or(bad_reason).unwrap_or_else(|| "Error".to_owned()),
        "Pending" => in_state("waiting").or(said).unwrap_or_else(|| phase.to_owned()),
        _ => bad_reason.unwrap_or_else(|| phase.to_owned()),
    }
}

/// How long ago, as `kubectl` writes it.
fn age(time: &Value, now: Timestamp) -> Value {
    let Some(since) = time.as_str().and_then(Timestamp::parse) else { return json!("<unknown>") };
    json!(duration(now.since_ms(since) / 1000))
}

/// A duration in at most two units.
fn duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |large: i64, unit: &str, small: i64, small_unit: &str| {
        if small == 0 { format!("{large}{unit}") } else { format!("{large}{unit}{small}{small_unit}") }
    };
    match seconds {
        s if s < 2 * MINUTE => format!("{s}s"),
        s if s < 10 * MINUTE => two(s / MINUTE, "m", s % MINUTE, "s"),
        s if s < 3 * HOUR => format!("{}m", s / MINUTE),
        s if s < 8 * HOUR => two(s / HOUR, "h", s % HOUR / MINUTE, "m"),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 8 * DAY => two(s / DAY, "d", s % DAY / HOUR, "h"),
        s if s < 2 * YEAR => format!("{}d", s / DAY),
        s => two(s / YEAR, "y", s % YEAR / DAY, "d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        for (seconds, expected) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (200_000, "2d7h"),
            (86_400 * 800, "2y70d"),
        ] {
            assert_eq!(duration(seconds), expected, "{seconds}");
        }
    }

    #[test]
    fn pods_in_one_word() {
        let check = |pod: Value, expected: &str| assert_eq!(pod_status(&pod), expected, "{pod}");
        check(json!({}), "Pending");
        check(json!({"status": {"phase": "Running"}}), "Running");
        check(json!({"status": {"phase": "Succeeded"}}), "Completed");
        check(json!({"metadata": {"deletionTimestamp": "x"}, "status": {"phase": "Running"}}), "Terminating");
        check(
            json!({"status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 1, "reason": "OOMKilled"}}}]}}),
            "OOMKilled",
        );
        check(
            json!({"status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}}),
            "ContainerCreating",
        );
    }
}
