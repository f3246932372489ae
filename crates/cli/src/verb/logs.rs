//! `regatta logs`: what a job's ranks wrote, of the running attempt or of one that is gone.

use crate::api::{Api, LogQuery};
use crate::args::Logs;
use crate::context::Context;
use crate::error::{Error, Exit, Result};
use crate::follow::{Follow, News, follow, show_log};
use regatta_types::run_record::{RunEntry, RunFact};
use std::process::ExitCode;

pub(crate) async fn logs(context: &Context<'_>, args: &Logs) -> Result<ExitCode> {
    let api = context.api().await?;
    let query =
        LogQuery { tail: args.tail, timestamps: args.timestamps, rank: args.rank, ..LogQuery::default() };
    if args.follow {
        let job = api.job(&args.job).await?;
        let ended = job.status.phase.is_terminal();
        if !ended {
            follow(&api, job, Follow { logs: query, news: News::No }).await?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    match api.run_entries(&args.job).await {
        Ok(entries) => recorded(&api, args, &entries, &query).await?,
        // A server without run records still has the pods.
        Err(error) if error.exit == Exit::NotFound => of_pods(&api, args, &query).await?,
        Err(error) => return Err(error),
    }
    Ok(ExitCode::SUCCESS)
}

/// One slot of an attempt.
struct Slot {
    role: String,
    slot: u32,
}

async fn recorded(api: &Api, args: &Logs, entries: &[RunEntry], query: &LogQuery) -> Result<()> {
    let pods = entries.iter().filter_map(|entry| match &entry.fact {
        RunFact::Pod { epoch, role, slot, .. } => Some((epoch.0, role.clone(), *slot)),
        _ => None,
    });
    let pods: Vec<(u64, String, u32)> = pods.collect();
    let last = pods.iter().map(|(epoch, ..)| *epoch).max();
    let wanted = match (args.epoch, args.previous, last) {
        (Some(epoch), ..) => Some(epoch),
        (None, true, Some(last)) => Some(last.saturating_sub(1)),
        (None, false, last) => last,
        (None, true, None) => None,
    };
    let mut slots: Vec<Slot> = Vec::new();
    for (epoch, role, slot) in &pods {
        let known = slots.iter().any(|known| known.role == *role && known.slot == *slot);
        if Some(*epoch) == wanted && !known {
            slots.push(Slot { role: role.clone(), slot: *slot });
        }
    }
    let Some(epoch) = wanted.filter(|_| !slots.is_empty()) else {
        let what = wanted
            .map_or_else(|| "has not started yet".to_owned(), |epoch| format!("has no attempt {epoch}"));
        let sentence = format!("job {} {what}", args.job);
        return Err(Error::new(Exit::NotFound, sentence).fix(format!("regatta why {}", args.job)));
    };
    let several = slots.len() > 1;
    let mut shown = 0_usize;
    let mut refused = None;
    for slot in &slots {
        let prefix = several.then(|| format!("[{}-{}] ", slot.role, slot.slot));
        match api.run_log(&args.job, epoch, (&slot.role, slot.slot), query).await {
            Ok(stream) => {
                show_log(stream, prefix).await?;
                shown += 1;
            }
            // A rank lives in one slot; the others say that they do not have it.
            Err(error) if query.rank.is_some() => refused = Some(error),
            Err(error) => return Err(error),
        }
    }
    match refused {
        Some(error) if shown == 0 => Err(error),
        _ => Ok(()),
    }
}

async fn of_pods(api: &Api, args: &Logs, query: &LogQuery) -> Result<()> {
    let job = api.job(&args.job).await?;
    let pods = api.pods_of(&args.job).await?;
    if pods.is_empty() {
        let sentence = format!("job {} has no pods ({})", args.job, job.status.phase.as_str());
        return Err(Error::new(Exit::NotFound, sentence).fix(format!("regatta why {}", args.job)));
    }
    for pod in &pods {
        let stream = api.pod_log(&pod.metadata.name, query).await?;
        show_log(stream, (pods.len() > 1).then(|| format!("[{}] ", pod.metadata.name))).await?;
    }
    Ok(())
}
