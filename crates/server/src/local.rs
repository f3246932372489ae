//! The daemon as the command line sees it: started, found, run in this process.

use crate::daemon::{self, DaemonOptions};
use crate::data_dir::DataDir;
use regatta_cli::{DaemonError, DaemonInfo, LocalDaemon, UpOptions};
use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Command, Stdio};

/// Tells a daemon that it was started in the background: it leaves the session of who started it, and says on
/// standard output, once, when it is ready.
pub(crate) const DETACHED_VARIABLE: &str = "REGATTA_DETACHED";
/// What a daemon in the background says when it is ready.
pub(crate) const READY_LINE: &str = "ready";
/// How much of the log is shown when the daemon does not start.
const LOG_TAIL_BYTES: u64 = 2048;

/// The daemon on this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct Local;

impl LocalDaemon for Local {
    fn start_detached(&self, options: &UpOptions) -> Result<DaemonInfo, DaemonError> {
        let dir = DataDir::create(&options.data_dir)
            .map_err(|e| DaemonError::new(e.to_string(), "choose another --data-dir"))?;
        let log = dir.open_log().map_err(|e| DaemonError::new(e.to_string(), "choose another --data-dir"))?;
        let fix = format!("read {}", dir.log_file().display());
        let program = std::env::current_exe().map_err(|e| {
            DaemonError::new(format!("cannot find this program's own file: {e}"), "run it by its full path")
        })?;
        let mut child = Command::new(program)
            .args(options.to_args())
            .env(DETACHED_VARIABLE, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::from(log))
            .spawn()
            .map_err(|e| DaemonError::new(format!("cannot start the daemon: {e}"), fix.clone()))?;
        let stdout = child.stdout.take().expect("invariant: standard output was asked for as a pipe");
        let mut line = String::new();
        // The pipe closes when the daemon is ready or gone, so this waits for neither too long nor too short.
        let heard = BufReader::new(stdout).read_line(&mut line);
        if heard.is_ok()
            && line.trim_end() == READY_LINE
            && let Some(info) = dir.daemon()
        {
            return Ok(info);
        }
        // Reaped, so that it is not left as a zombie of a long-lived caller.
        let _ = child.wait();
        Err(DaemonError::new(format!("the daemon did not start: {}", log_tail(&dir)), fix))
    }

    fn run_foreground(&self, options: &UpOptions) -> Result<(), DaemonError> {
        let options = DaemonOptions::from(options);
        daemon::run(&options).map_err(|error| {
            let fix = format!("read {}, then try again", DataDir::at(&options.data_dir).log_file().display());
            DaemonError::new(error.to_string(), fix)
        })
    }

    fn status(&self, data_dir: &Path) -> Option<DaemonInfo> {
        DataDir::at(data_dir).daemon()
    }
}

/// The last line of the log that says something.
fn log_tail(dir: &DataDir) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = fs::File::open(dir.log_file())?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let mut said =
        text.lines().rev().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("try:"));
    said.next().unwrap_or("it said nothing").trim_start_matches("error: ").to_owned()
}
