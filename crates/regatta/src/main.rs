//! The one binary: the agent beside ranks, or the command line with the local daemon behind it.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    // The agent is started once for every pod, so it goes no long way round.
    if args.next().is_some_and(|verb| verb == "agent") {
        return regatta_agent::main(args.collect());
    }
    regatta_cli::main(std::env::args_os().collect(), &regatta_server::Local)
}
