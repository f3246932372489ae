//! Namespaces: what a pod does not share with the host.
//!
//! The agent enters the pod's user, network and host-name namespaces for good. Mount namespaces are one a container;
//! the agent goes into each to make it and to start processes in it, and comes back to where it was.

use crate::Error;
use crate::mounts;
use crate::spec::{Access, MountNamespace, MountStep, Namespaces, UserNamespace};
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getgid, getuid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Which mount namespaces can be made on this machine, by this user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounts {
    /// Directly.
    Direct,
    /// In a user namespace.
    ByUserNamespace,
    /// None.
    None,
}

impl Mounts {
    /// The answer as the exit code of `agent probe`.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Direct => 0,
            Self::ByUserNamespace => 10,
            Self::None => 11,
        }
    }

    /// The answer back from the exit code; anything unknown is no.
    pub const fn from_exit_code(code: Option<i32>) -> Self {
        match code {
            Some(0) => Self::Direct,
            Some(10) => Self::ByUserNamespace,
            _ => Self::None,
        }
    }
}

/// Tries what containers need. The calling process is of no further use: it may have changed its namespaces.
pub(crate) fn probe() -> Mounts {
    for (user, answer) in
        [(UserNamespace::Host, Mounts::Direct), (UserNamespace::Own, Mounts::ByUserNamespace)]
    {
        let namespaces = Namespaces { user, mount: MountNamespace::Own, ..Namespaces::default() };
        let here = || MountStep::Bind { source: "/".into(), target: "/".into(), access: Access::ReadWrite };
        let made = enter_pod(&namespaces).and_then(|base| base.make_container(&[here()], || ()));
        if made.is_ok() {
            return answer;
        }
    }
    Mounts::None
}

/// Where the agent itself lives, and whether its containers live elsewhere.
#[derive(Debug)]
pub(crate) struct Base {
    /// The agent's own mount namespace, when containers have others.
    mount: Option<OwnedFd>,
}

/// Enters what the whole pod shares.
pub(crate) fn enter_pod(namespaces: &Namespaces) -> Result<Base, Error> {
    if namespaces.user == UserNamespace::Own {
        let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS, "make a user namespace")?;
        write_map("/proc/self/setgroups", "deny")?;
        write_map("/proc/self/uid_map", &format!("{uid} {uid} 1"))?;
        write_map("/proc/self/gid_map", &format!("{gid} {gid} 1"))?;
    }
    if let Some(path) = &namespaces.network {
        let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| Error::system(format!("open the network namespace {}", path.display()), e))?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|e| Error::system(format!("enter the network namespace {}", path.display()), e))?;
    }
    if let Some(hostname) = &namespaces.hostname {
        unshare(UnshareFlags::NEWUTS, "make a host-name namespace")?;
        rustix::system::sethostname(hostname.as_bytes())
            .map_err(|e| Error::system(format!("set the host name {hostname:?}"), e))?;
    }
    let mount = match namespaces.mount {
        MountNamespace::Host => None,
        MountNamespace::Own => Some(current_mount_namespace()?),
    };
    Ok(Base { mount })
}

fn write_map(path: &str, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(|e| Error::system(format!("write {path}"), e))
}

fn current_mount_namespace() -> Result<OwnedFd, Error> {
    open("/proc/self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| Error::system("open the mount namespace", e))
}

#[expect(
    unsafe_code,
    reason = "the kernel call is marked unsafe for one of its flags, which is not used here"
)]
fn unshare(flags: UnshareFlags, action: &str) -> Result<(), Error> {
    // SAFETY: the call is unsafe only with `FILES`, which makes threads disagree about descriptors; no caller passes it,
    // and the agent has one thread.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(|e| Error::system(action, e))
}

impl Base {
    /// Makes a container's mount namespace and calls `inside` in it. The namespace lives on as long as the descriptor or
    /// a process in it. Without one to make, `inside` is called right here.
    pub(crate) fn make_container<T>(
        &self,
        steps: &[MountStep],
        inside: impl FnOnce() -> T,
    ) -> Result<(Option<OwnedFd>, T), Error> {
        if self.mount.is_none() {
            return Ok((None, inside()));
        }
        let made = self.make_mount_namespace(steps);
        let outcome = made.map(|namespace| (Some(namespace), inside()));
        self.come_back()?;
        outcome
    }

    fn make_mount_namespace(&self, steps: &[MountStep]) -> Result<OwnedFd, Error> {
        unshare(UnshareFlags::NEWNS, "make a mount namespace")?;
        // What is mounted here stays here; what the host mounts or unmounts later is seen.
        mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
            .map_err(|e| Error::system("keep the container's mounts from the host", e))?;
        for step in steps {
            mounts::execute(step)?;
        }
        current_mount_namespace()
    }

    /// Calls `inside` in a container's mount namespace, made before.
    pub(crate) fn inside<T>(
        &self,
        container: Option<&OwnedFd>,
        inside: impl FnOnce() -> T,
    ) -> Result<T, Error> {
        let Some(container) = container else { return Ok(inside()) };
        enter_mount_namespace(container.as_fd())?;
        let outcome = inside();
        self.come_back()?;
        Ok(outcome)
    }

    fn come_back(&self) -> Result<(), Error> {
        self.mount.as_ref().map_or(Ok(()), |mount| enter_mount_namespace(mount.as_fd()))
    }
}

fn enter_mount_namespace(namespace: BorrowedFd<'_>) -> Result<(), Error> {
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::Mount))
        .map_err(|e| Error::system("change the mount namespace", e))
}

/// Moves the calling thread into a new network namespace, in which there is only a loopback interface that is down.
///
/// # Errors
/// When this user may not.
pub fn enter_new_network() -> Result<(), Error> {
    unshare(UnshareFlags::NEWNET, "make a network namespace")
}

/// Whether `path` is a directory, as the caller's namespace sees it.
pub(crate) fn is_directory(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_dir())
}
