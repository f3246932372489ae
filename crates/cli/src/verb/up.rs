//! `regatta up`: start the daemon on this machine.

use crate::args::Up;
use crate::context::Context;
use crate::error::{Error, Exit, Result};
use crate::local::UpOptions;
use crate::manifest::Runtime;
use crate::output::talk;
use std::process::ExitCode;

pub(crate) fn up(context: &Context<'_>, args: &Up) -> Result<ExitCode> {
    if context.runtime() == Runtime::Cluster {
        return Err(Error::usage(
            "`up` starts the daemon of this machine; it has no use for --context and --kubeconfig",
        ));
    }
    let data_dir = context.data_dir()?;
    let options =
        UpOptions { data_dir, nodes: args.nodes, gpus: args.gpus, network: args.network, port: args.port };
    if let Some(info) = context.local.status(&options.data_dir) {
        let sentence = format!(
            "a daemon already runs on {} (pid {}, {})",
            options.data_dir.display(),
            info.pid,
            info.address
        );
        return Err(Error::new(Exit::Refused, sentence)
            .fix("use it, stop it with `regatta down`, or name another --data-dir"));
    }
    let fail = |error: crate::local::DaemonError| Error::failure(error.sentence).fix(error.fix);
    if !args.detach {
        context.local.run_foreground(&options).map_err(fail)?;
        return Ok(ExitCode::SUCCESS);
    }
    let info = context.local.start_detached(&options).map_err(fail)?;
    talk(&format!("the daemon runs (pid {}) and serves https://{}", info.pid, info.address));
    talk(&format!("kubectl works with KUBECONFIG={}", options.data_dir.join("kubeconfig").display()));
    Ok(ExitCode::SUCCESS)
}
