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
    /// There is an object of that name already.
    Exists = 6,
    /// The wait took longer than it was allowed to.
    TimedOut = 124,
    /// Interrupted; the job goes on.
    Interrupted = 130,
    /// Whoever read the output has closed it; a job that was followed goes on.
    PipeClosed = 141,
}

impl Exit {
    /// All of them with their meaning, for the reference.
    pub const ALL: &'static [(Self, &'static str)] = &[
        (Self::Failure, "something failed that none of the others names"),
        (Self::Usage, "what was typed, or what the file says, cannot be"),
        (
            Self::Refused,
            "the server refused (an impossible request, a conflict), or a confirmation was not given",
        ),
        (Self::NotFound, "there is no such object"),
        (Self::Unreachable, "the server, or the local daemon, cannot be reached"),
        (Self::Exists, "there is an unfinished job of that name already"),
        (Self::TimedOut, "the wait took longer than it was allowed to"),
        (Self::Interrupted, "interrupted; the job goes on"),
        (Self::PipeClosed, "whoever read the output has closed it; a job that was followed goes on"),
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
            let exit = match (status.code, status.reason.as_str()) {
                (404, _) => Exit::NotFound,
                (409, "AlreadyExists") => Exit::Exists,
                (400 | 403 | 409 | 413 | 422 | 507, _) => Exit::Refused,
                (401 | 429 | 503 | 504, _) => Exit::Unreachable,
                _ => Exit::Failure,
            };
            let mut error = Error::new(exit, format!("cannot {doing}: {}", status.message));
            error.fix = next_step(status.code).map(str::to_owned);
            error
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

/// What to do about a status that the server's own message may leave open.
fn next_step(code: u16) -> Option<&'static str> {
    match code {
        401 => {
            Some("the token of the kubeconfig is not the server's; `regatta up` writes a fresh kubeconfig")
        }
        403 => Some("ask whoever runs the cluster for this permission, or use another --context"),
        404 => {
            Some("check the name, --namespace and --context; `regatta version` tells which server answers")
        }
        409 => Some("somebody else changed it at the same time; try again"),
        413 => Some("make the request smaller"),
        429 | 503 | 504 => Some("the server is busy, starting or stopping; try again in a moment"),
        500 => Some("read the server's log (daemon.log in the data directory)"),
        507 => Some("free some space on the server's disk, then try again; nothing that was stored is lost"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn exit_codes_are_told_apart() {
        let codes: BTreeSet<u8> = Exit::ALL.iter().map(|(exit, _)| *exit as u8).collect();
        assert_eq!(codes.len(), Exit::ALL.len());
        assert!(!codes.contains(&0));
    }

    #[test]
    fn an_error_ends_with_what_to_do() {
        let check = |code: u16, reason: &str, exit: Exit, text: &str| {
            let status = kube::core::Status::failure("it is so", reason).with_code(code);
            let error = from_kube(&kube::Error::Api(Box::new(status)), "do it");
            assert_eq!((error.exit, error.to_string().as_str()), (exit, text));
        };
        check(422, "Invalid", Exit::Refused, "error: cannot do it: it is so");
        check(
            507,
            "InsufficientStorage",
            Exit::Refused,
            "error: cannot do it: it is so\n  try: free some space on the server's disk, then try again; nothing that was stored is lost",
        );
        check(
            503,
            "ServiceUnavailable",
            Exit::Unreachable,
            "error: cannot do it: it is so\n  try: the server is busy, starting or stopping; try again in a moment",
        );
        let exists = kube::core::Status::failure("jobs \"a\" already exists", "AlreadyExists").with_code(409);
        assert_eq!(from_kube(&kube::Error::Api(Box::new(exists)), "do it").exit, Exit::Exists);
    }
}
