//! `regatta version`: which command line this is, and which server answers.

use crate::args::Output;
use crate::context::Context;
use crate::error::Result;
use crate::manifest::Runtime;
use crate::output::{Table, print};
use serde_json::{Value, json};
use std::process::ExitCode;

pub(crate) async fn version(context: &Context<'_>, args: Output) -> Result<ExitCode> {
    let versions =
        json!({"name": "regatta", "client": env!("CARGO_PKG_VERSION"), "server": server(context).await?});
    let table = || {
        let mut table = Table::new(&["PART", "VERSION"]);
        for part in ["client", "server"] {
            table.row([part.to_owned(), versions[part].as_str().unwrap_or("does not run").to_owned()]);
        }
        table
    };
    print(args.output, &versions, table, "")?;
    Ok(ExitCode::SUCCESS)
}

/// The server's version; null for a local daemon that does not run.
async fn server(context: &Context<'_>) -> Result<Value> {
    if context.runtime() == Runtime::Local && context.local.status(&context.data_dir()?).is_none() {
        return Ok(Value::Null);
    }
    let version = context.api().await?.version().await?;
    Ok(version["gitVersion"].clone())
}
