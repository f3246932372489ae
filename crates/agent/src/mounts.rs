//! Executes the steps that make a container's file system. Which steps, is decided by the node runtime.
//!
//! Nothing here writes to a directory of the host: mount points that the host lacks are made in memory.

use crate::Error;
use crate::spec::{Access, EntryKind, MountStep, NewEntry};
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::mount::{
    MountFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_remount, unmount,
};
use rustix::process::{chdir, pivot_root};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// How many entries a directory may have that gets others beside them: each is a mount of its own.
const ENTRIES_MAX: usize = 4096;
/// Size of a directory in memory that holds nothing but mount points.
const SKELETON_OPTIONS: &std::ffi::CStr = c"mode=0755,size=1m";

pub(crate) fn execute(step: &MountStep) -> Result<(), Error> {
    match step {
        MountStep::Bind { source, target, access } => bind(source, target, *access),
        MountStep::Extend { directory, entries, staging } if directory == Path::new("/") => {
            extend_root(entries, staging)
        }
        MountStep::Extend { directory, entries, staging } => extend(directory, entries, staging),
    }
}

fn bind(source: &Path, target: &Path, access: Access) -> Result<(), Error> {
    let what = || format!("mount {} at {}", source.display(), target.display());
    mount_bind_recursive(source, target).map_err(|e| Error::system(what(), e))?;
    if access == Access::ReadOnly {
        make_read_only(target)?;
    }
    Ok(())
}

/// A bind mount becomes read-only only by a second call, which must repeat the flags that the source has.
fn make_read_only(target: &Path) -> Result<(), Error> {
    let what = || format!("make {} read-only", target.display());
    let has = statvfs(target).map_err(|e| Error::system(what(), e))?.f_flag;
    let mut flags = MountFlags::BIND | MountFlags::RDONLY;
    for (have, want) in [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        if has.contains(have) {
            flags |= want;
        }
    }
    mount_remount(target, flags, c"").map_err(|e| Error::system(what(), e))
}

/// A directory in memory for mount points.
fn skeleton(target: &Path) -> Result<(), Error> {
    mount("regatta", target, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, SKELETON_OPTIONS)
        .map_err(|e| Error::system(format!("mount memory at {}", target.display()), e))
}

/// A directory other than the root: its content is set aside, memory takes its place, the content is bound back.
fn extend(directory: &Path, entries: &[NewEntry], staging: &Path) -> Result<(), Error> {
    mount_bind_recursive(directory, staging)
        .map_err(|e| Error::system(format!("set {} aside", directory.display()), e))?;
    skeleton(directory)?;
    copy_entries(staging, directory, None)?;
    make_entries(directory, entries)?;
    detach(staging)?;
    make_read_only(directory)
}

/// The root: a new one is made at `staging` and becomes the root.
fn extend_root(entries: &[NewEntry], staging: &Path) -> Result<(), Error> {
    skeleton(staging)?;
    // The entry that holds the staging directory goes first, while there is little in it that would be bound twice.
    let first = staging.components().nth(1).map(|name| PathBuf::from(name.as_os_str()));
    copy_entries(Path::new("/"), staging, first.as_deref())?;
    make_entries(staging, entries)?;
    if let Ok(relative) = staging.strip_prefix("/") {
        detach(&staging.join(relative))?;
    }
    let action = || format!("change the root to {}", staging.display());
    make_read_only(staging)?;
    chdir(staging).map_err(|e| Error::system(action(), e))?;
    pivot_root(".", ".").map_err(|e| Error::system(action(), e))?;
    // The old root lies on top of the new one now.
    unmount(".", UnmountFlags::DETACH).map_err(|e| Error::system("let go of the old root", e))?;
    chdir("/").map_err(|e| Error::system(action(), e))
}

fn detach(path: &Path) -> Result<(), Error> {
    unmount(path, UnmountFlags::DETACH).map_err(|e| Error::system(format!("unmount {}", path.display()), e))
}

/// Gives every entry of `from` a likeness in `to`: a mount of it, or the same link.
fn copy_entries(from: &Path, to: &Path, first: Option<&Path>) -> Result<(), Error> {
    let action = || format!("list {}", from.display());
    let mut names: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(from).map_err(|e| Error::system(action(), e))? {
        names.push(entry.map_err(|e| Error::system(action(), e))?.file_name().into());
    }
    if names.len() > ENTRIES_MAX {
        let source = io::Error::from(io::ErrorKind::ArgumentListTooLong);
        let action =
            format!("add a mount point to {}, which has more than {ENTRIES_MAX} entries", from.display());
        return Err(Error::system(action, source));
    }
    names.sort_by_key(|name| (Some(name.as_path()) != first, name.clone()));
    for name in names {
        copy_entry(&from.join(&name), &to.join(&name))?;
    }
    Ok(())
}

fn copy_entry(from: &Path, to: &Path) -> Result<(), Error> {
    let what = || format!("mount {} at {}", from.display(), to.display());
    // An entry that is gone by now need not be there.
    let Ok(metadata) = fs::symlink_metadata(from) else { return Ok(()) };
    if metadata.is_symlink() {
        let link = fs::read_link(from).map_err(|e| Error::system(what(), e))?;
        return symlink(link, to).map_err(|e| Error::system(what(), e));
    }
    if metadata.is_dir() {
        fs::create_dir(to).map_err(|e| Error::system(what(), e))?;
        return mount_bind_recursive(from, to).map_err(|e| Error::system(what(), e));
    }
    File::create(to).map_err(|e| Error::system(what(), e))?;
    mount_bind(from, to).map_err(|e| Error::system(what(), e))
}

fn make_entries(directory: &Path, entries: &[NewEntry]) -> Result<(), Error> {
    for entry in entries {
        let path = directory.join(&entry.path);
        let made = match entry.kind {
            EntryKind::Directory => fs::create_dir_all(&path),
            EntryKind::File => File::create(&path).map(drop),
        };
        made.map_err(|e| Error::system(format!("make the mount point {}", path.display()), e))?;
    }
    Ok(())
}
