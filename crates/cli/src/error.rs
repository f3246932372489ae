//! Failures as people read them: what failed, and what to do next. Each kind has an exit code of its own.

use std::fmt;

/// Exit codes of the command line. `run` and `wait` end with the job's own code instead, once there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Something failed that none of the others names.
    Failure = 1,
    /// What was typed, or what the file says, cannot be.
    Usage = 2,
    /// The server refused: policy, an impossible request, a conflict.
    Refused = 3,
    /// There is no such object.
    NotFound = 4,
    /// The server, or the local daemon, cannot be reached.
    Unreachable = 5,
    /// The wait took longer than it was allowed to.
    TimedOut = 124,
    /// Interrupted; the job goes on.
    Interrupted = 130,
}

impl Exit {
    /// All of them with their meaning, for the reference.
    pub const ALL: &'static [(Self, &'static str)] = &[
        (Self::Failure, "something failed that none of the others names"),
        (Self::Usage, "what was typed, or what the file says, cannot be"),
        (
            Self::Refused,
            "the server refused: an impossible request, a conflict, or a confirmation that was not given",
        ),
        (Self::NotFound, "there is no such object"),
        (Self::Unreachable, "the server, or the local daemon, cannot be reached"),
        (Self::TimedOut, "the wait took longer than it was allowed to"),
        (Self::Interrupted, "interrupted; the job goes on"),
    ];
}

/// A failure.
#[derive(Debug)]
pub struct Error {
    /// What failed, on what, and why.
    pub sentence: String,
    /// What to do next; none when the sentence says it.
    pub fix: Option<String>,
    /// How the program ends.
    pub exit: Exit,
}

impl Error {
    pub(crate) fn new(exit: Exit, sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), fix: None, exit }
    }

    pub(crate) fn usage(sentence: impl Into<String>) -> Self {
        Self::new(Exit::Usage, sentence)
    }

    pub(crate) fn failure(sentence: impl Into<String>) -> Self {
        Self::new(Exit::Failure, sentence)
    }

    #[must_use]
    pub(crate) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.sentence)?;
        match &self.fix {
            Some(fix) => write!(f, "\n  try: {fix}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// What went wrong on the way to the server and back.
pub(crate) fn from_kube(error: &kube::Error, doing: &str) -> Error {
    match error {
        kube::Error::Api(status) => {
            let exit = match status.code {
                404 => Exit::NotFound,
                400 | 403 | 409 | 413 | 422 | 507 => Exit::Refused,
                401 => Exit::Unreachable,
                _ => Exit::Failure,
            };
            let error = Error::new(exit, format!("cannot {doing}: {}", status.message));
            match status.code {
                401 => error.fix(
                    "the token of the kubeconfig is not the server's; `regatta up` writes a fresh kubeconfig",
                ),
                _ => error,
            }
        }
        kube::Error::HyperError(_) | kube::Error::Service(_) => {
            let mut reason = error.to_string();
            let mut source = std::error::Error::source(error);
            while let Some(inner) = source {
                reason = inner.to_string();
                source = inner.source();
            }
            Error::new(Exit::Unreachable, format!("cannot {doing}: the server does not answer ({reason})"))
                .fix("`regatta up` starts the daemon on this machine; for a cluster, check `kubectl version`")
        }
        other => Error::failure(format!("cannot {doing}: {other}")),
    }
}
