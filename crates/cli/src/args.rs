//! What can be typed.

use crate::local::NetworkMode;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Run distributed training: on this machine, or on a cluster.
#[derive(Debug, Parser)]
#[command(
    name = "regatta",
    version,
    propagate_version = true,
    max_term_width = 100,
    arg_required_else_help = true
)]
pub struct Cli {
    /// Where to run, for every verb.
    #[command(flatten)]
    pub global: Global,
    /// The verb.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Where to run.
#[derive(Debug, Clone, Args)]
pub struct Global {
    /// Data directory of the local daemon [default: ~/.regatta].
    #[arg(long, global = true, env = "REGATTA_HOME", value_name = "DIR", help_heading = "Where")]
    pub data_dir: Option<PathBuf>,
    /// Context of a kubeconfig instead of the local daemon.
    #[arg(long, global = true, value_name = "NAME", help_heading = "Where")]
    pub context: Option<String>,
    /// Kubeconfig to use instead of the local daemon's.
    #[arg(long, global = true, value_name = "FILE", help_heading = "Where")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace [default: that of the context].
    #[arg(long, short = 'n', global = true, value_name = "NAME", help_heading = "Where")]
    pub namespace: Option<String>,
}

/// Form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// JSON, as the API has it.
    Json,
    /// YAML, as the API has it.
    Yaml,
    /// Names only.
    Name,
}

/// Options of verbs that print objects.
#[derive(Debug, Clone, Copy, Args)]
pub struct Output {
    /// Form of the output; a table for people when left out.
    #[arg(long, short = 'o', value_name = "FORM")]
    pub output: Option<Format>,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Start the daemon on this machine.
    Up(Up),
    /// Stop the daemon on this machine.
    Down(Down),
    /// Run a job and follow it to its end.
    Run(Box<Run>),
    /// List jobs.
    Ps(Ps),
    /// Tell everything about a job.
    Describe(Describe),
    /// Print what a job's ranks wrote.
    Logs(Logs),
    /// Tell why a job waits, or why it ended.
    Why(JobName),
    /// Run a command beside a rank, with its environment.
    Exec(Exec),
    /// Stop a job for good.
    Cancel(Cancel),
    /// Wait for a job.
    Wait(Wait),
    /// List nodes, what they have and what is free.
    Nodes(Output),
    /// List queues.
    Queues(Output),
    /// List events, oldest first.
    Events(Events),
    /// List runs, also of jobs that are gone, or tell one run's record.
    Runs(Runs),
    /// Print the completion script of a shell.
    Completion(Completion),
    /// Print the versions of the command line and of the server.
    Version(Output),
}

/// Arguments of `up`.
#[derive(Debug, Args)]
pub struct Up {
    /// Go to the background once the daemon is ready.
    #[arg(long)]
    pub detach: bool,
    /// Appear as N virtual nodes instead of as the machine itself.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub nodes: Option<u32>,
    /// Simulate G GPUs in each node; there is no such hardware.
    #[arg(long, value_name = "G", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub gpus: Option<u32>,
    /// How jobs get their network.
    #[arg(long, value_enum, default_value_t = NetworkMode::Auto, value_name = "MODE")]
    pub network: NetworkMode,
    /// Port on loopback [default: the last one, or any free one].
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
}

/// Arguments of `down`.
#[derive(Debug, Args)]
pub struct Down {
    /// Do not ask when jobs are running.
    #[arg(long, short = 'y')]
    pub yes: bool,
    /// Leave running jobs running; the next daemon takes them over.
    #[arg(long)]
    pub keep_jobs: bool,
}

/// Arguments of `run`.
#[derive(Debug, Default, Args)]
pub struct Run {
    /// File that describes the run; flags override it.
    #[arg(long, short = 'f', value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Name of the job [default: made from the command].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Image; ignored, with a notice, where processes run without images.
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Number of nodes.
    #[arg(long, value_name = "N")]
    pub nodes: Option<String>,
    /// GPUs on each node.
    #[arg(long, value_name = "G")]
    pub gpus: Option<u32>,
    /// GPU models in order of preference, separated by commas.
    #[arg(long, value_name = "MODEL", value_delimiter = ',')]
    pub gpu: Vec<String>,
    /// CPU cores on each node, such as 4 or 500m.
    #[arg(long, value_name = "CPUS")]
    pub cpus: Option<String>,
    /// Memory on each node, such as 8Gi.
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<String>,
    /// Processes on each node; each is a rank of its own.
    #[arg(long, value_name = "N")]
    pub procs_per_node: Option<u32>,
    /// How ranks are started: auto, torchrun, ranks or none.
    #[arg(long, value_name = "LAUNCHER")]
    pub launcher: Option<String>,
    /// Shell command that runs once on each node before the ranks.
    #[arg(long, value_name = "COMMAND")]
    pub setup: Option<String>,
    /// Environment variable; may be given several times.
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// Secret whose keys become environment variables; may be given several times.
    #[arg(long, value_name = "NAME")]
    pub secret: Vec<String>,
    /// What appears where, such as /data=/mnt/data; may be given several times.
    #[arg(long, value_name = "PATH=SOURCE")]
    pub mount: Vec<String>,
    /// Directory in which ranks start [default: that of the file, or the current one].
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<PathBuf>,
    /// Queue to wait in.
    #[arg(long, value_name = "QUEUE")]
    pub queue: Option<String>,
    /// Higher is served first.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub priority: Option<i32>,
    /// Directory of checkpoints.
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<String>,
    /// Longest run time, such as 12h.
    #[arg(long, value_name = "TIME")]
    pub max_runtime: Option<String>,
    /// Highest cost, such as "500 USD".
    #[arg(long, value_name = "COST")]
    pub max_cost: Option<String>,
    /// How many failures of the program are retried [default: 3].
    #[arg(long, value_name = "N")]
    pub max_restarts: Option<u32>,
    /// Label; may be given several times.
    #[arg(long, value_name = "NAME=VALUE")]
    pub label: Vec<String>,
    /// Print the name of the job and do not follow it.
    #[arg(long)]
    pub detach: bool,
    /// Print the Job and what the planner would do with it; submit nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// The command and its arguments, as they are; no shell reads them.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Arguments of `ps`.
#[derive(Debug, Args)]
pub struct Ps {
    /// Form of the output.
    #[command(flatten)]
    pub output: Output,
    /// Also list jobs that have ended.
    #[arg(long, short = 'a')]
    pub all: bool,
    /// Of all namespaces.
    #[arg(long, short = 'A')]
    pub all_namespaces: bool,
}

/// Arguments of `describe`.
#[derive(Debug, Args)]
pub struct Describe {
    /// The job.
    pub job: String,
    /// Form of the output.
    #[command(flatten)]
    pub output: Output,
}

/// One job.
#[derive(Debug, Args)]
pub struct JobName {
    /// The job.
    pub job: String,
    /// Form of the output.
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `logs`.
#[derive(Debug, Args)]
pub struct Logs {
    /// The job.
    pub job: String,
    /// Go on as lines appear, also across restarts, until the job ends.
    #[arg(long, short = 'f')]
    pub follow: bool,
    /// Only this rank.
    #[arg(long, value_name = "R")]
    pub rank: Option<u32>,
    /// Of the attempt before the last one.
    #[arg(long, short = 'p', conflicts_with_all = ["follow", "epoch"])]
    pub previous: bool,
    /// Of this attempt.
    #[arg(long, value_name = "E", conflicts_with = "follow")]
    pub epoch: Option<u64>,
    /// Only the last lines of each slot.
    #[arg(long, value_name = "N")]
    pub tail: Option<u64>,
    /// Start each line with its time.
    #[arg(long)]
    pub timestamps: bool,
}

/// Arguments of `exec`.
#[derive(Debug, Args)]
pub struct Exec {
    /// The job.
    pub job: String,
    /// Beside this rank.
    #[arg(long, value_name = "R", default_value_t = 0)]
    pub rank: u32,
    /// Send standard input.
    #[arg(long, short = 'i')]
    pub stdin: bool,
    /// Allocate a terminal.
    #[arg(long, short = 't')]
    pub tty: bool,
    /// The command; a shell when left out.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Arguments of `cancel`.
#[derive(Debug, Args)]
pub struct Cancel {
    /// The jobs.
    #[arg(required = true)]
    pub jobs: Vec<String>,
    /// Do not wait for the end.
    #[arg(long)]
    pub no_wait: bool,
}

/// Arguments of `wait`.
#[derive(Debug, Args)]
pub struct Wait {
    /// The job.
    pub job: String,
    /// What to wait for.
    #[arg(long = "for", value_enum, default_value_t = WaitFor::End, value_name = "STATE")]
    pub for_: WaitFor,
    /// Longest wait, such as 10m.
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<String>,
}

/// What to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WaitFor {
    /// Every rank runs, or the job has ended.
    Running,
    /// The job has ended; how tells the exit code.
    #[value(aliases = ["succeeded", "finished"])]
    End,
}

/// Arguments of `events`.
#[derive(Debug, Args)]
pub struct Events {
    /// Only of this job.
    pub job: Option<String>,
    /// Form of the output.
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `runs`.
#[derive(Debug, Args)]
pub struct Runs {
    /// Tell the record of this run.
    pub name: Option<String>,
    /// Form of the output.
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `completion`.
#[derive(Debug, Args)]
pub struct Completion {
    /// The shell.
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

impl ValueEnum for NetworkMode {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Auto, Self::Isolated, Self::Host]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        let help = match self {
            Self::Auto => "a network of its own for each job where the machine permits it, else the host's",
            Self::Isolated => "a network of its own for each job, or the daemon does not start",
            Self::Host => "the host's network for all",
        };
        Some(clap::builder::PossibleValue::new(self.as_str()).help(help))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_are_kept_as_typed() {
        let cli = Cli::try_parse_from([
            "regatta", "run", "--gpus", "2", "--", "python", "-u", "train.py", "--lr", "1",
        ])
        .unwrap();
        let Verb::Run(run) = cli.verb else { panic!("run") };
        assert_eq!(run.command, ["python", "-u", "train.py", "--lr", "1"]);
        assert!(Cli::try_parse_from(["regatta", "up", "--nodes", "0"]).is_err());
    }
}
