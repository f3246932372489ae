//! From a container's volume mounts to the steps that make its file system. Pure: what is on the host is asked through
//! [`HostView`].
//!
//! A mount point that the host has is mounted over, in the container's own namespace. One that it lacks is added by
//! [`MountStep::Extend`] to the nearest directory that exists, without a write to it. Within another volume, a mount
//! point is made if the volume is the pod's own; a directory of the host is left as it is.

use crate::driver::StartFailure;
use regatta_agent::spec::{Access, EntryKind, MountStep, NewEntry};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// What is on the host.
pub(crate) trait HostView {
    /// What a path is, links followed; none when there is nothing.
    fn kind(&self, path: &Path) -> Option<EntryKind>;
}

/// Whose a mounted source is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The pod's: it may be written to.
    Pod,
    /// Somebody else's.
    Host,
}

/// Something to mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) source: PathBuf,
    pub(crate) kind: EntryKind,
    pub(crate) target: PathBuf,
    pub(crate) access: Access,
    pub(crate) owner: Owner,
}

/// How to make a container's file system.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<MountStep>,
    /// Mount points to make in the pod's own volumes first.
    pub(crate) make: Vec<(PathBuf, EntryKind)>,
    /// How many staging directories the steps need.
    pub(crate) stagings: Vec<PathBuf>,
}

/// Whether mount points can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ability {
    /// Each container has a mount namespace.
    Mounts,
    /// None has: only what is in its place already can be used.
    Nothing,
}

/// Plans a container's mounts. `staging` is a directory of the pod's own below which the steps may use directories.
pub(crate) fn plan(
    mut mounts: Vec<Mount>,
    ability: Ability,
    staging: &Path,
    host: &dyn HostView,
) -> Result<Plan, StartFailure> {
    for mount in &mounts {
        check_target(&mount.target)?;
    }
    mounts.sort_by_key(|mount| mount.target.components().count());
    if ability == Ability::Nothing {
        return mounts.iter().try_for_each(check_in_place).map(|()| Plan::default());
    }
    let mut plan = Plan::default();
    let mut extended: BTreeMap<PathBuf, Vec<NewEntry>> = BTreeMap::new();
    let mut binds = Vec::new();
    for (index, mount) in mounts.iter().enumerate() {
        if mounts[..index].iter().any(|other| other.target == mount.target) {
            return Err(refused(format!(
                "two volumes are mounted at {}; mount each at a path of its own",
                mount.target.display()
            )));
        }
        let within = mounts[..index].iter().rev().find(|other| mount.target.starts_with(&other.target));
        match within {
            Some(outer) => mount_point_in(outer, mount, host, &mut plan)?,
            None => mount_point_on_host(mount, host, &mut extended)?,
        }
        // A path of the host in its own place is there already, unless something was mounted over it.
        if within.is_some() || mount.source != mount.target || mount.access == Access::ReadOnly {
            let Mount { source, target, access, .. } = mount.clone();
            binds.push(MountStep::Bind { source, target, access });
        }
    }
    for (number, (directory, mut entries)) in extended.into_iter().enumerate() {
        entries.sort();
        let staging = staging.join(number.to_string());
        plan.stagings.push(staging.clone());
        plan.steps.push(MountStep::Extend { directory, entries, staging });
    }
    // Parents come before children by path order; the root first of all.
    plan.steps.extend(binds);
    Ok(plan)
}

/// Without namespaces: what is mounted must be there, as it is.
pub(crate) fn check_in_place(mount: &Mount) -> Result<(), StartFailure> {
    if mount.source == mount.target && mount.access == Access::ReadWrite {
        return Ok(());
    }
    Err(refused(format!(
        "{} cannot be mounted: this daemon may make neither mount namespaces nor user namespaces; run it as root, permit \
         user namespaces (sysctl user.max_user_namespaces), or mount a path of the host at the same path, writable",
        mount.target.display()
    )))
}

fn refused(message: String) -> StartFailure {
    StartFailure::refused("CreateContainerConfigError", message)
}

pub(crate) fn check_target(target: &Path) -> Result<(), StartFailure> {
    let plain = target.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !target.is_absolute() || !plain {
        return Err(refused(format!(
            "the mount path {} is not absolute; write it from the root, without ..",
            target.display()
        )));
    }
    let forbidden = ["/", "/proc", "/sys", "/dev"].iter().any(|path| target == Path::new(path))
        || target.starts_with("/proc")
        || target.starts_with("/sys");
    if forbidden {
        return Err(refused(format!(
            "nothing can be mounted at {}: it belongs to the system; choose another path",
            target.display()
        )));
    }
    Ok(())
}

/// The mount point lies within another volume.
fn mount_point_in(
    outer: &Mount,
    mount: &Mount,
    host: &dyn HostView,
    plan: &mut Plan,
) -> Result<(), StartFailure> {
    let relative = mount.target.strip_prefix(&outer.target).unwrap_or(Path::new(""));
    let point = outer.source.join(relative);
    match (host.kind(&point), outer.owner) {
        (Some(kind), _) if kind == mount.kind => Ok(()),
        (Some(_), _) => Err(wrong_kind(mount)),
        (None, Owner::Pod) if outer.kind == EntryKind::Directory => {
            plan.make.push((point, mount.kind));
            Ok(())
        }
        (None, _) => Err(refused(format!(
            "the mount point {} does not exist in the volume that is mounted at {}; make {} first",
            mount.target.display(),
            outer.target.display(),
            point.display()
        ))),
    }
}

fn mount_point_on_host(
    mount: &Mount,
    host: &dyn HostView,
    extended: &mut BTreeMap<PathBuf, Vec<NewEntry>>,
) -> Result<(), StartFailure> {
    match host.kind(&mount.target) {
        Some(kind) if kind == mount.kind => return Ok(()),
        Some(_) => return Err(wrong_kind(mount)),
        None => {}
    }
    let existing =
        mount.target.ancestors().skip(1).find_map(|ancestor| Some((ancestor, host.kind(ancestor)?)));
    match existing {
        Some((directory, EntryKind::Directory)) => {
            let path = mount.target.strip_prefix(directory).unwrap_or(&mount.target).to_owned();
            let entries = extended.entry(directory.to_owned()).or_default();
            if let (Some(parent), EntryKind::File) =
                (path.parent().filter(|parent| *parent != Path::new("")), mount.kind)
            {
                entries.push(NewEntry { path: parent.to_owned(), kind: EntryKind::Directory });
            }
            entries.push(NewEntry { path, kind: mount.kind });
            Ok(())
        }
        _ => Err(refused(format!(
            "{} cannot be a mount point: a part of the path is a file",
            mount.target.display()
        ))),
    }
}

fn wrong_kind(mount: &Mount) -> StartFailure {
    let (source, target) = match mount.kind {
        EntryKind::Directory => ("a directory", "something else"),
        EntryKind::File => ("a file", "a directory"),
    };
    refused(format!("{source} cannot be mounted at {}, which is {target}", mount.target.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    struct Host(BTreeSet<&'static str>, BTreeSet<&'static str>);

    impl HostView for Host {
        fn kind(&self, path: &Path) -> Option<EntryKind> {
            let path = path.to_str()?;
            if self.0.contains(path) {
                Some(EntryKind::Directory)
            } else {
                self.1.contains(path).then_some(EntryKind::File)
            }
        }
    }

    fn host() -> Host {
        let directories = ["/", "/data", "/data/sets", "/home", "/home/me", "/home/me/work"];
        Host(directories.into(), ["/etc/hosts", "/home/me/file"].into())
    }

    fn mount(source: &str, target: &str) -> Mount {
        Mount {
            source: source.into(),
            kind: EntryKind::Directory,
            target: target.into(),
            access: Access::ReadWrite,
            owner: Owner::Host,
        }
    }

    fn summary(mounts: &[Mount]) -> Result<Vec<String>, String> {
        let plan = plan(mounts.to_vec(), Ability::Mounts, Path::new("/s"), &host())
            .map_err(|failure| failure.message)?;
        let steps = plan.steps.iter().map(|step| match step {
            MountStep::Bind { source, target, access } => {
                let access = if *access == Access::ReadOnly { " ro" } else { "" };
                format!("{} -> {}{access}", source.display(), target.display())
            }
            MountStep::Extend { directory, entries, staging } => {
                let names: Vec<String> =
                    entries.iter().map(|entry| entry.path.display().to_string()).collect();
                format!("{} + {} by {}", directory.display(), names.join(" "), staging.display())
            }
        });
        let made = plan.make.iter().map(|(path, _)| format!("make {}", path.display()));
        Ok(made.chain(steps).collect())
    }

    fn check(mounts: &[Mount], expected: &[&str]) {
        assert_eq!(
            summary(mounts).as_deref(),
            Ok(&expected.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()[..]),
            "{mounts:?}"
        );
    }

    #[test]
    fn mount_points_are_found_or_added() {
        check(&[mount("/vol", "/data/sets")], &["/vol -> /data/sets"]);
        check(&[mount("/vol", "/ckpt")], &["/ + ckpt by /s/0", "/vol -> /ckpt"]);
        check(
            &[mount("/a", "/data/new/deep"), mount("/b", "/ckpt"), mount("/c", "/ckpt2")],
            &[
                "/ + ckpt ckpt2 by /s/0",
                "/data + new/deep by /s/1",
                "/b -> /ckpt",
                "/c -> /ckpt2",
                "/a -> /data/new/deep",
            ],
        );
        check(&[mount("/home/me/work", "/home/me/work")], &[]);
        let read_only = Mount { access: Access::ReadOnly, ..mount("/home/me/work", "/home/me/work") };
        check(&[read_only], &["/home/me/work -> /home/me/work ro"]);
    }

    #[test]
    fn volumes_may_lie_within_volumes() {
        let own = Mount { owner: Owner::Pod, ..mount("/pod/vol", "/ckpt") };
        check(
            &[mount("/data/sets", "/ckpt/in"), own],
            &["make /pod/vol/in", "/ + ckpt by /s/0", "/pod/vol -> /ckpt", "/data/sets -> /ckpt/in"],
        );
        check(
            &[mount("/home", "/work"), mount("/v", "/work/me")],
            &["/ + work by /s/0", "/home -> /work", "/v -> /work/me"],
        );
        let error = summary(&[mount("/home", "/work"), mount("/v", "/work/gone")]).unwrap_err();
        assert!(error.contains("make /home/gone first"), "{error}");
    }

    #[test]
    fn what_cannot_be_mounted_is_refused() {
        let file = Mount { kind: EntryKind::File, ..mount("/f", "/home/me/file/below") };
        for (mounts, expected) in [
            (vec![mount("/v", "relative")], "is not absolute"),
            (vec![mount("/v", "/a/../b")], "is not absolute"),
            (vec![mount("/v", "/")], "belongs to the system"),
            (vec![mount("/v", "/proc/1")], "belongs to the system"),
            (vec![mount("/v", "/ckpt"), mount("/w", "/ckpt")], "two volumes are mounted at /ckpt"),
            (vec![mount("/v", "/etc/hosts")], "a directory cannot be mounted at /etc/hosts"),
            (vec![file], "a part of the path is a file"),
        ] {
            let error = summary(&mounts).unwrap_err();
            assert!(error.contains(expected), "{mounts:?}: {error}");
        }
    }

    #[test]
    fn without_namespaces_only_what_is_in_its_place_works() {
        let plan = |mounts| plan(mounts, Ability::Nothing, Path::new("/s"), &host());
        assert_eq!(plan(vec![mount("/home/me/work", "/home/me/work")]), Ok(Plan::default()));
        let error = plan(vec![mount("/vol", "/ckpt")]).unwrap_err();
        assert!(error.message.contains("run it as root"), "{error}");
    }
}
