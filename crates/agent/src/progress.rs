//! What ranks say of themselves: parsed, bounded, newest values only. Pure.
//!
//! A rank sends JSON datagrams to `$REGATTA_SOCK`, or prints the same JSON on a line that starts with `::regatta:: `.
//! Nobody answers: a training loop must not wait for its supervisor. What is not understood is ignored.

use crate::protocol::CHECKPOINTS_MAX;
use regatta_types::evidence::{Checkpoint, Progress};
use regatta_types::{Epoch, Timestamp};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Largest progress message, in bytes.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 16 * 1024;
/// Messages of one rank in a second that are looked at; of more, the newest waits for the next second.
const MESSAGES_PER_SECOND_MAX: u32 = 10;
/// How many metrics are kept.
const METRICS_MAX: usize = 64;
/// Longest name or value of a metric, in bytes.
const METRIC_BYTES_MAX: usize = 128;
/// Longest path of a checkpoint, in bytes.
const PATH_BYTES_MAX: usize = 1024;

#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Message {
    Step {
        step: u64,
        #[serde(default)]
        total: Option<u64>,
        #[serde(default)]
        metrics: BTreeMap<String, Value>,
    },
    Checkpoint {
        step: u64,
        path: String,
    },
    BadCheckpoint {
        path: String,
    },
}

/// All that was heard.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    epoch: Epoch,
    messages_per_second_max: u32,
    /// Newest progress.
    pub(crate) progress: Option<Progress>,
    /// Completed checkpoints, newest last.
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// Unreadable checkpoints, newest last.
    pub(crate) bad_checkpoints: Vec<String>,
    window: Option<(u64, u32)>,
    deferred: Option<Vec<u8>>,
}

impl Heard {
    /// Nothing heard yet, from `ranks` ranks of `epoch`.
    pub(crate) fn new(epoch: Epoch, ranks: u32) -> Self {
        Self {
            epoch,
            messages_per_second_max: ranks.max(1).saturating_mul(MESSAGES_PER_SECOND_MAX),
            ..Self::default()
        }
    }

    /// Takes in a message. Returns whether something is new.
    pub(crate) fn hear(&mut self, message: &[u8], now: Timestamp, monotonic_ms: u64) -> bool {
        let second = monotonic_ms / 1000;
        let count = match self.window {
            Some((window, count)) if window == second => count + 1,
            _ => 1,
        };
        self.window = Some((second, count));
        // Checkpoints are rare and are facts; steps are many and only the newest matters.
        if count > self.messages_per_second_max && !is_about_checkpoint(message) {
            self.deferred = Some(message.to_vec());
            return false;
        }
        self.deferred = None;
        self.take(message, now)
    }

    /// When a deferred message is due, on the monotonic clock in milliseconds.
    pub(crate) fn deferred_until_ms(&self) -> Option<u64> {
        let (second, _) = self.window?;
        self.deferred.as_ref().map(|_| (second + 1) * 1000)
    }

    /// Takes in the deferred message if its time has come. Returns whether something is new.
    pub(crate) fn hear_deferred(&mut self, now: Timestamp, monotonic_ms: u64) -> bool {
        if self.deferred_until_ms().is_none_or(|due| monotonic_ms < due) {
            return false;
        }
        self.deferred.take().is_some_and(|message| self.take(&message, now))
    }

    /// The last step that was heard, with what was put off.
    pub(crate) fn finish(&mut self, now: Timestamp) -> Option<u64> {
        if let Some(message) = self.deferred.take() {
            self.take(&message, now);
        }
        self.progress.as_ref().map(|progress| progress.step)
    }

    fn take(&mut self, message: &[u8], now: Timestamp) -> bool {
        match serde_json::from_slice::<Message>(message) {
            Ok(Message::Step { step, total, metrics }) => self.take_step(step, total, metrics, now),
            Ok(Message::Checkpoint { step, path }) if path.len() <= PATH_BYTES_MAX => {
                push_newest(&mut self.checkpoints, Checkpoint { step, path })
            }
            Ok(Message::BadCheckpoint { path }) if path.len() <= PATH_BYTES_MAX => {
                push_newest(&mut self.bad_checkpoints, path)
            }
            _ => false,
        }
    }

    fn take_step(
        &mut self,
        step: u64,
        total: Option<u64>,
        metrics: BTreeMap<String, Value>,
        now: Timestamp,
    ) -> bool {
        let epoch = self.epoch;
        let progress =
            self.progress.get_or_insert_with(|| Progress { epoch, at: now, ..Progress::default() });
        // Ranks of one pod report side by side; one that lags must not turn the step back.
        progress.step = progress.step.max(step);
        progress.total_steps = total.or(progress.total_steps);
        progress.at = now;
        for (name, value) in metrics {
            let value = match value {
                Value::String(text) => text,
                Value::Number(number) => number.to_string(),
                Value::Bool(flag) => flag.to_string(),
                _ => continue,
            };
            let known = progress.metrics.contains_key(&name);
            let fits = name.len() <= METRIC_BYTES_MAX && value.len() <= METRIC_BYTES_MAX;
            if fits && (known || progress.metrics.len() < METRICS_MAX) {
                progress.metrics.insert(name, value);
            }
        }
        true
    }
}

fn is_about_checkpoint(message: &[u8]) -> bool {
    message.windows(b"checkpoint\"".len()).any(|window| window == b"checkpoint\"")
}

/// Appends `item` unless it is there; the oldest gives way.
fn push_newest<T: PartialEq>(list: &mut Vec<T>, item: T) -> bool {
    if list.contains(&item) {
        return false;
    }
    if list.len() == CHECKPOINTS_MAX {
        list.remove(0);
    }
    list.push(item);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_ms(5);

    fn heard(messages: &[&str]) -> Heard {
        let mut heard = Heard::new(Epoch(2), 1);
        for message in messages {
            heard.hear(message.as_bytes(), NOW, 0);
        }
        heard
    }

    #[test]
    fn newest_values_win() {
        let heard = heard(&[
            r#"{"type":"step","step":7,"total":90,"metrics":{"loss":"0.5","lr":0.25,"done":false,"odd":[1]}}"#,
            r#"{"type":"step","step":6,"metrics":{"loss":"0.4"}}"#,
        ]);
        let metrics = [("loss", "0.4"), ("lr", "0.25"), ("done", "false")];
        let metrics = metrics.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        assert_eq!(
            heard.progress,
            Some(Progress { epoch: Epoch(2), step: 7, total_steps: Some(90), metrics, at: NOW })
        );
    }

    #[test]
    fn checkpoints_are_facts() {
        let heard = heard(&[
            r#"{"type":"checkpoint","step":5,"path":"/c/ckpt-5.json"}"#,
            r#"{"type":"checkpoint","step":5,"path":"/c/ckpt-5.json"}"#,
            r#"{"type":"bad_checkpoint","path":"/c/ckpt-4.json"}"#,
        ]);
        assert_eq!(heard.checkpoints, [Checkpoint { step: 5, path: "/c/ckpt-5.json".to_owned() }]);
        assert_eq!(heard.bad_checkpoints, ["/c/ckpt-4.json"]);
        assert_eq!(heard.progress, None);
    }

    #[test]
    fn nonsense_is_ignored() {
        for message in
            ["", "{", "[]", r#"{"type":"party"}"#, r#"{"type":"step"}"#, r#"{"type":"step","step":-1}"#]
        {
            assert!(!Heard::new(Epoch(1), 1).hear(message.as_bytes(), NOW, 0), "{message}");
        }
    }

    #[test]
    fn a_flood_is_thinned_to_the_newest() {
        let mut heard = Heard::new(Epoch(1), 1);
        for step in 1..=100 {
            heard.hear(format!(r#"{{"type":"step","step":{step}}}"#).as_bytes(), NOW, 1500);
        }
        let step = |heard: &Heard| heard.progress.as_ref().map(|progress| progress.step);
        assert_eq!(step(&heard), Some(u64::from(MESSAGES_PER_SECOND_MAX)));
        assert!(
            heard.hear(br#"{"type":"checkpoint","step":9,"path":"/c"}"#, NOW, 1600),
            "a checkpoint is never put off"
        );
        assert_eq!(heard.deferred_until_ms(), None, "newer news has come");
        heard.hear(br#"{"type":"step","step":101}"#, NOW, 1700);
        assert_eq!(heard.deferred_until_ms(), Some(2000));
        assert!(!heard.hear_deferred(NOW, 1999));
        assert!(heard.hear_deferred(NOW, 2000));
        assert_eq!(step(&heard), Some(101));
        heard.hear(br#"{"type":"step","step":102}"#, NOW, 2001);
        assert_eq!(heard.finish(NOW), Some(102));
    }
}
