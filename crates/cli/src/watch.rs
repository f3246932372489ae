//! A watch that outlives a server that goes away for a while, such as a daemon that is restarted.

use crate::api::{Api, Watched};
use crate::error::{Error, Exit, Result};
use futures::StreamExt;
use regatta_types::Resource;
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a server may be away before it is given up.
pub(crate) const AWAY_MAX: Duration = Duration::from_secs(60);
/// Time between attempts to reach it again.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// What a watch sees.
#[derive(Debug)]
pub(crate) enum Seen<T> {
    /// An object as it is now.
    Now(Box<T>),
    /// An object is gone.
    Gone,
    /// The server does not answer.
    Away,
    /// It answers again; an object that went meanwhile is not told of.
    Back,
}

/// Watches until nobody listens to `to` any more; a failure is the last thing that is sent.
pub(crate) async fn keep_watching<T, M>(
    api: Api,
    resource: Resource,
    query: String,
    to: mpsc::Sender<M>,
    message: impl Fn(Result<Seen<T>>) -> M + Send,
) where
    T: DeserializeOwned + Send + 'static,
    M: Send,
{
    let mut away = Duration::ZERO;
    let mut lost = false;
    loop {
        match api.watch::<T>(&resource, &query).await {
            Ok(mut changes) => {
                if lost && to.send(message(Ok(Seen::Back))).await.is_err() {
                    return;
                }
                (lost, away) = (false, Duration::ZERO);
                // A change that cannot be had ends this watch, and the next one begins with the present state.
                while let Some(Ok(change)) = changes.next().await {
                    let seen = match change {
                        Watched::Applied(object) => Seen::Now(Box::new(object)),
                        Watched::Deleted => Seen::Gone,
                    };
                    if to.send(message(Ok(seen))).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) if error.exit == Exit::Unreachable && away < AWAY_MAX => {}
            Err(error) => {
                // Whoever does not listen any more does not need to know.
                let _ = to.send(message(Err(given_up(error)))).await;
                return;
            }
        }
        if to.is_closed() || (!lost && to.send(message(Ok(Seen::Away))).await.is_err()) {
            return;
        }
        lost = true;
        tokio::time::sleep(RETRY_INTERVAL).await;
        away = away.saturating_add(RETRY_INTERVAL);
    }
}

fn given_up(error: Error) -> Error {
    match error.exit {
        Exit::Unreachable => {
            let sentence = format!("{}; jobs go on without it", error.sentence);
            Error { sentence, ..error }
        }
        _ => error,
    }
}
