//! `regatta logs`: what a job's ranks wrote, of the running attempt or of one that is gone.

use crate::api::{Api, LogQuery};
use crate::args::Logs;
use crate::context::Context;
use crate::error::{Error, Exit, Result};
use crate::follow::{Follow, News, follow, show_log};
use crate::{ranks, streams};
use regatta_types::job::Job;
use regatta_types::resource;
use regatta_types::run_record::{RunEntry, RunFact};
use std::collections::BTreeSet;
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

/// Whether lines say where they come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prefixes {
    /// They do.
    Shown,
    /// They all come from one place.
    None,
}

impl Prefixes {
    fn of(self, prefix: impl FnOnce() -> String) -> Option<String> {
        (self == Self::Shown).then(prefix)
    }
}

/// What is in the record of an attempt.
async fn recorded(api: &Api, args: &Logs, entries: &[RunEntry], query: &LogQuery) -> Result<()> {
    let (epoch, slots) = slots(args, entries)?;
    let job = api.get::<Job>(&resource::JOBS, &args.job).await.unwrap_or_default();
    let known = ranks::of_job(&job);
    let mut shown = 0_usize;
    let mut refused = None;
    let several = slots.len() > 1 || known.iter().any(|slot| slot.procs > 1);
    let prefixes = if several && query.rank.is_none() { Prefixes::Shown } else { Prefixes::None };
    for (role, slot) in &slots {
        // Of a job that is gone it is not known which slot has which rank; the slots are asked.
        let own = known.iter().find(|own| own.role == *role && own.slot == *slot).cloned();
        let logs = match (&own, query.rank) {
            (Some(own), Some(rank)) if !own.holds(rank) => continue,
            // They are read one after another, so it does not matter how many there are.
            (Some(own), wanted) => streams::own_logs(own, 0, wanted),
            (None, wanted) => vec![wanted],
        };
        shown += before(api, args, (epoch, role, *slot), &job, query, prefixes).await?;
        for rank in logs {
            let prefix = match &own {
                Some(own) => streams::prefix(own, rank),
                None => format!("[{role}-{slot}] "),
            };
            let prefix = prefixes.of(|| prefix);
            match api.run_log(&args.job, epoch, (role, *slot), &LogQuery { rank, ..query.clone() }).await {
                Ok(stream) => {
                    show_log(stream, prefix).await?;
                    shown += 1;
                }
                // A rank lives in one slot, which is not known of a job that is gone; and none does where the setup
                // failed.
                Err(error) if error.exit != Exit::Unreachable => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
    }
    match (shown, query.rank, refused) {
        (0, _, Some(error)) => Err(error),
        (0, Some(rank), None) => {
            let last = known.last().map_or(0, |slot| slot.first + slot.ranks.saturating_sub(1));
            let sentence = format!("job {} has no rank {rank}; its ranks are 0 to {last}", args.job);
            Err(Error::new(Exit::NotFound, sentence).fix(format!("regatta logs {} --rank {last}", args.job)))
        }
        _ => Ok(()),
    }
}

/// Shows what ran in a slot before its ranks, such as the setup, and tells how much that was.
async fn before(
    api: &Api,
    args: &Logs,
    (epoch, role, slot): (u64, &str, u32),
    job: &Job,
    query: &LogQuery,
    prefixes: Prefixes,
) -> Result<usize> {
    let own = job.spec.roles.iter().filter(|known| known.name == role);
    let mut shown = 0;
    for container in own.flat_map(|role| &role.template.spec.init_containers) {
        let name = &container.name;
        let of_it = LogQuery { rank: None, container: Some(name.clone()), ..query.clone() };
        match api.run_log(&args.job, epoch, (role, slot), &of_it).await {
            Ok(stream) => {
                let prefix = prefixes.of(|| format!("[{role}-{slot} {name}] "));
                show_log(stream, prefix).await?;
                shown += 1;
            }
            Err(error) if error.exit == Exit::Unreachable => return Err(error),
            // It has not run.
            Err(_) => {}
        }
    }
    Ok(shown)
}

/// The attempt that is wanted, and its slots.
fn slots(args: &Logs, entries: &[RunEntry]) -> Result<(u64, Vec<(String, u32)>)> {
    let pods = entries.iter().filter_map(|entry| match &entry.fact {
        RunFact::Pod { epoch, role, slot, .. } => Some((epoch.0, (role.clone(), *slot))),
        _ => None,
    });
    let pods: Vec<(u64, (String, u32))> = pods.collect();
    let Some(last) = pods.iter().map(|(epoch, _)| *epoch).max() else {
        let sentence = format!("job {} has not started yet", args.job);
        return Err(Error::new(Exit::NotFound, sentence).fix(format!("regatta why {}", args.job)));
    };
    let epoch = args.epoch.unwrap_or(if args.previous { last.saturating_sub(1) } else { last });
    let slots: BTreeSet<(String, u32)> =
        pods.into_iter().filter(|(of, _)| *of == epoch).map(|(_, slot)| slot).collect();
    if slots.is_empty() {
        let sentence = match args.previous {
            true => format!("job {} has had one attempt only", args.job),
            false => format!("job {} has no attempt {epoch}; its last one is {last}", args.job),
        };
        return Err(Error::new(Exit::NotFound, sentence).fix(format!("regatta runs {}", args.job)));
    }
    Ok((epoch, slots.into_iter().collect()))
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
