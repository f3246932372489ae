//! Which server a verb speaks to: the local daemon, or any kubeconfig context.

use crate::api::Api;
use crate::args::Global;
use crate::error::{Error, Exit, Result};
use crate::local::{LocalDaemon, UpOptions};
use crate::manifest::Runtime;
use crate::output::talk;
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::path::PathBuf;

/// Everything a verb needs to know of where it is.
pub(crate) struct Context<'a> {
    pub(crate) global: Global,
    pub(crate) local: &'a dyn LocalDaemon,
}

/// What to do when the local daemon does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfDown {
    /// Start it.
    Start,
    /// Say so.
    Fail,
}

impl Context<'_> {
    /// What runs the pods there.
    pub(crate) fn runtime(&self) -> Runtime {
        if self.global.context.is_some() || self.global.kubeconfig.is_some() {
            Runtime::Cluster
        } else {
            Runtime::Local
        }
    }

    /// The data directory, absolute.
    pub(crate) fn data_dir(&self) -> Result<PathBuf> {
        let dir = match &self.global.data_dir {
            Some(dir) => dir.clone(),
            None => {
                let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
                let home = home.ok_or_else(|| {
                    Error::usage("there is no home directory").fix("name one with --data-dir")
                })?;
                PathBuf::from(home).join(".regatta")
            }
        };
        std::path::absolute(&dir)
            .map_err(|e| Error::usage(format!("{} is no usable path: {e}", dir.display())))
    }

    /// Makes sure that the local daemon runs. Blocks; not for use inside the runtime.
    pub(crate) fn ensure_daemon(&self, if_down: IfDown) -> Result<()> {
        if self.runtime() == Runtime::Cluster {
            return Ok(());
        }
        let dir = self.data_dir()?;
        if self.local.status(&dir).is_some() {
            return Ok(());
        }
        if if_down == IfDown::Fail {
            let sentence = format!("the daemon for {} does not run", dir.display());
            return Err(Error::new(Exit::Unreachable, sentence).fix("regatta up --detach"));
        }
        let started = self.local.start_detached(&UpOptions::new(dir));
        let info = started.map_err(|e| Error::new(Exit::Unreachable, e.sentence).fix(e.fix))?;
        talk(&format!("started the daemon (pid {}); `regatta down` stops it", info.pid));
        Ok(())
    }

    /// A client for the server.
    pub(crate) async fn api(&self) -> Result<Api> {
        let options =
            KubeConfigOptions { context: self.global.context.clone(), ..KubeConfigOptions::default() };
        let path = match &self.global.kubeconfig {
            Some(path) => Some(path.clone()),
            None if self.runtime() == Runtime::Local => Some(self.data_dir()?.join("kubeconfig")),
            None => None,
        };
        let bad = |e: &dyn std::fmt::Display| {
            let what =
                path.as_ref().map_or_else(|| "the kubeconfig".to_owned(), |path| path.display().to_string());
            Error::new(Exit::Unreachable, format!("cannot use {what}: {e}"))
        };
        let kubeconfig = match &path {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let kubeconfig = kubeconfig.map_err(|e| bad(&e))?;
        let mut config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|e| bad(&e))?;
        // Watches and logs are quiet for as long as nothing happens.
        config.read_timeout = None;
        if let Some(namespace) = &self.global.namespace {
            config.default_namespace.clone_from(namespace);
        }
        let client = kube::Client::try_from(config).map_err(|e| bad(&e))?;
        Ok(Api::new(client))
    }
}
