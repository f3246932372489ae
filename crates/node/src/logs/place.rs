//! Where the log of a container is.

use crate::actor::Progress;
use crate::error::Error;
use crate::layout::Layout;
use regatta_types::Uid;
use regatta_types::pod::Pod;
use regatta_types::streams::LogRequest;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::watch;

/// All that is known of the pod whose log is wanted.
pub(crate) struct LogPlace {
    pub(crate) layout: Layout,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    /// Its uid; that of its newest log when none.
    pub(crate) uid: Option<Uid>,
    /// Its object, while it exists.
    pub(crate) object: Option<Arc<Pod>>,
    /// How far it is, while it is known.
    pub(crate) progress: Option<watch::Receiver<Progress>>,
}

/// A container's log.
pub(crate) struct ContainerLog {
    pub(crate) name: String,
    pub(crate) directory: PathBuf,
}

impl LogPlace {
    /// The container that is meant.
    pub(crate) fn container(&self, request: &LogRequest) -> Result<ContainerLog, Error> {
        let root = self.pod_directory()?;
        let known = self.containers(&root);
        let name = match &request.container {
            Some(name) if known.contains(name) => name.clone(),
            Some(name) => {
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(Error::ContainerNotFound {
                    pod: self.pod.clone(),
                    container: name.clone(),
                    known,
                });
            }
            None => known.first().cloned().ok_or_else(|| self.not_found())?,
        };
        Ok(ContainerLog { directory: root.join(&name), name })
    }

    fn not_found(&self) -> Error {
        Error::PodNotFound { namespace: self.namespace.clone(), pod: self.pod.clone() }
    }

    fn pod_directory(&self) -> Result<PathBuf, Error> {
        match &self.uid {
            Some(uid) => {
                let directory = self.layout.pod_logs(&self.namespace, &self.pod, uid);
                if self.object.is_some() || directory.exists() {
                    Ok(directory)
                } else {
                    Err(self.not_found())
                }
            }
            None => self.newest_directory().ok_or_else(|| self.not_found()),
        }
    }

    /// The pod's name may have been had by several.
    fn newest_directory(&self) -> Option<PathBuf> {
        let prefix = format!("{}_", self.pod);
        let entries = std::fs::read_dir(self.layout.logs().join(&self.namespace)).ok()?.flatten();
        let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
        ours.max_by_key(|entry| entry.metadata().and_then(|metadata| metadata.modified()).ok())
            .map(|entry| entry.path())
    }

    /// Its containers, the main one first.
    fn containers(&self, root: &Path) -> Vec<String> {
        if let Some(pod) = &self.object {
            let spec = &pod.spec;
            return spec
                .containers
                .iter()
                .chain(&spec.init_containers)
                .map(|container| container.name.clone())
                .collect();
        }
        let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        // Only the main container of a job's pod has ranks.
        names.sort_by_key(|name| (!has_ranks(&root.join(name)), name.clone()));
        names
    }

    /// Waits until the pod's log directory is there or never will be.
    pub(crate) async fn wait_for_directory(
        &self,
        directory: &Path,
        progress: &mut watch::Receiver<Progress>,
    ) {
        while !directory.exists() && *progress.borrow_and_update() == Progress::Open {
            if progress.changed().await.is_err() {
                return;
            }
        }
    }
}

fn has_ranks(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| super::rank_file::rank_of(&entry.file_name().to_string_lossy()).is_some())
}
