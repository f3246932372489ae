//! `regatta events`: what happened, oldest first.

use crate::api::{ListScope, encode};
use crate::args::Events;
use crate::context::Context;
use crate::error::Result;
use crate::output::{Table, print};
use crate::text::age;
use regatta_types::{Clock, SystemClock, Timestamp, resource};
use serde_json::Value;
use std::process::ExitCode;

pub(crate) async fn events(context: &Context<'_>, args: &Events) -> Result<ExitCode> {
    let api = context.api().await?;
    let query = args.job.as_ref().map_or_else(String::new, |job| {
        format!("fieldSelector={}", encode(&format!("involvedObject.name={job}")))
    });
    let mut list = api.list(&resource::EVENTS, ListScope::Namespace, &query).await?;
    if let Some(items) = list["items"].as_array_mut() {
        items.sort_by_key(when);
    }
    let table = || {
        let mut table = Table::new(&["AGE", "TYPE", "REASON", "OBJECT", "MESSAGE"]);
        let now = SystemClock.now();
        for event in list["items"].as_array().into_iter().flatten() {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let object = &event["involvedObject"];
            let object = format!("{}/{}", text(&object["kind"]).to_lowercase(), text(&object["name"]));
            table.row([
                age(when(event), now),
                text(&event["type"]),
                text(&event["reason"]),
                object,
                text(&event["message"]),
            ]);
        }
        table
    };
    print(args.output.output, &list, table, "there are no events")?;
    Ok(ExitCode::SUCCESS)
}

fn when(event: &Value) -> Option<Timestamp> {
    let times = [&event["lastTimestamp"], &event["metadata"]["creationTimestamp"]];
    times.into_iter().find_map(|time| Timestamp::parse(time.as_str()?))
}
