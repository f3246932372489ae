//! Where things are in the data directory.

use regatta_types::Uid;
use regatta_types::seed::Seed;
use std::path::{Path, PathBuf};

/// Longest path of a Unix socket that ranks can name, in bytes: the kernel's limit less the closing zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Where files live that must not touch a disk.
const MEMORY_ROOT: &str = "/dev/shm";

/// Paths of one data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    root: PathBuf,
    tag: String,
}

impl Layout {
    /// The layout of the data directory at `root`, which is absolute and free of links.
    pub(crate) fn new(root: &Path) -> Self {
        let hash = Seed(0).child(&root.to_string_lossy()).0;
        Self { root: root.to_owned(), tag: format!("{:08x}", hash >> 32) }
    }

    /// A short name for this data directory, for things that live outside of it.
    pub(crate) fn tag(&self) -> &str {
        &self.tag
    }

    pub(crate) fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }

    pub(crate) fn pod(&self, uid: &Uid) -> PathBuf {
        self.pods().join(uid.as_str())
    }

    pub(crate) fn networks(&self) -> PathBuf {
        self.root.join("net")
    }

    pub(crate) fn agents_socket(&self) -> PathBuf {
        self.root.join("agents.sock")
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// The logs of one pod, by container.
    pub(crate) fn pod_logs(&self, namespace: &str, pod: &str, uid: &Uid) -> PathBuf {
        self.logs().join(namespace).join(format!("{pod}_{uid}"))
    }

    /// Everything of this data directory that is kept in memory.
    pub(crate) fn memory(&self) -> PathBuf {
        Path::new(MEMORY_ROOT).join(format!("regatta-{}", self.tag))
    }

    /// What one pod has in memory.
    pub(crate) fn pod_memory(&self, uid: &Uid) -> PathBuf {
        self.memory().join(uid.as_str())
    }

    /// The socket on which a pod's ranks report. It has to have a short path, because ranks have to name it.
    pub(crate) fn progress_socket(&self, uid: &Uid) -> PathBuf {
        let path = self.pod(uid).join("p.sock");
        if path.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
            path
        } else {
            self.pod_memory(uid).join("p.sock")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_have_short_paths() {
        let uid = Uid::from("7b1fc1de-5a0f-4a52-9f0e-0a7f3f0c9a11");
        let near = Layout::new(Path::new("/root/.regatta"));
        assert_eq!(near.progress_socket(&uid), near.pod(&uid).join("p.sock"));
        let far = Layout::new(Path::new(&format!("/{}", "d".repeat(200))));
        let socket = far.progress_socket(&uid);
        assert!(
            socket.starts_with(MEMORY_ROOT) && socket.as_os_str().len() <= SOCKET_PATH_BYTES_MAX,
            "{socket:?}"
        );
        assert_ne!(near.tag(), far.tag());
    }
}
