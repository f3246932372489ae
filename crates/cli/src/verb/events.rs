//! `regatta events`: what happened, oldest first.

use crate::api::{Api, ListScope, encode};
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
    let list = read(&api, args.job.as_deref()).await?;
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    print(args.output.output, &list, || table(items, SystemClock.now()), "there are no events")?;
    Ok(ExitCode::SUCCESS)
}

/// Events of the object of this name, oldest first; of all objects when none is named.
pub(crate) async fn read(api: &Api, name: Option<&str>) -> Result<Value> {
    let query = name.map_or_else(String::new, |name| {
        format!("fieldSelector={}", encode(&format!("involvedObject.name={name}")))
    });
    let mut list = api.list(&resource::EVENTS, ListScope::Namespace, &query).await?;
    if let Some(items) = list["items"].as_array_mut() {
        items.sort_by_key(when);
    }
    Ok(list)
}

/// Events as a table, in the order given.
pub(crate) fn table(events: &[Value], now: Timestamp) -> Table {
    let mut table = Table::new(&["AGE", "TYPE", "REASON", "OBJECT", "MESSAGE"]);
    for event in events {
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
}

fn when(event: &Value) -> Option<Timestamp> {
    let times = [&event["lastTimestamp"], &event["metadata"]["creationTimestamp"]];
    times.into_iter().find_map(|time| Timestamp::parse(time.as_str()?))
}
