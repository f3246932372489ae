//! Control groups: found out once, then one set for each container.
//!
//! Version 2 is one hierarchy with every controller. Version 1 has one for each. Many machines have both: the controllers
//! in version 1, and an empty version 2 beside them that still can kill a whole group at once.

use regatta_agent::cgroup::{self, CgroupSpec};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const ROOT: &str = "/sys/fs/cgroup";
/// Most processes and threads of one container.
const PIDS_MAX: u64 = 32_768;
/// Length of the period in which CPU time is counted, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;
/// How often a group that does not go is tried again; its last process may not be reaped yet.
const REMOVE_TRIES: u32 = 50;
/// Pause between two tries, in milliseconds.
const REMOVE_PAUSE_MS: u64 = 10;

/// What a container may use; no limit where none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Limits {
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) cpu_milli: Option<u64>,
}

/// The hierarchies in which groups can be made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Cgroups {
    /// Version 2: the directory for our groups, and whether its controllers can be used.
    v2: Option<(PathBuf, Controllers)>,
    /// Version 1: the directory for our groups by controller.
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
    pids: Option<PathBuf>,
    /// A sentence.
    pub(crate) description: String,
    pub(crate) notices: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Controllers {
    /// Memory, CPU and process counts are limited here.
    Usable,
    /// Groups can only be killed.
    None,
}

impl Cgroups {
    /// Finds out what this machine permits this user.
    pub(crate) fn detect(tag: &str) -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let name = format!("regatta-{tag}");
        let mut found = Self::default();
        match Probe::start() {
            Ok(mut probe) => {
                found.v2 = detect_v2(&own, &name, &mut probe);
                found.memory = detect_v1(&own, "memory", &name, &mut probe);
                found.cpu = detect_v1(&own, "cpu", &name, &mut probe);
                found.pids = detect_v1(&own, "pids", &name, &mut probe);
            }
            Err(error) => found.notices.push(format!("control groups cannot be tried: /bin/sh: {error}")),
        }
        found.describe();
        found
    }

    fn describe(&mut self) {
        let usable = matches!(self.v2, Some((_, Controllers::Usable)));
        let missing: Vec<&str> = [("memory", &self.memory), ("cpu", &self.cpu), ("pids", &self.pids)]
            .iter()
            .filter_map(|(name, path)| (path.is_none() && !usable).then_some(*name))
            .collect();
        self.description = match (usable, missing.as_slice()) {
            (true, _) => "enforced by control groups, version 2".to_owned(),
            (false, []) => "enforced by control groups, version 1".to_owned(),
            (false, missing) if missing.len() < 3 => {
                format!("enforced by control groups, but for {}", missing.join(", "))
            }
            (false, _) => "not enforced".to_owned(),
        };
        if !missing.is_empty() {
            self.notices.push(format!(
                "limits on {} are not enforced: this user may make no control groups for them; run as root, or delegate a \
                 control group with these controllers (systemd-run --user --scope -p Delegate=yes)",
                missing.join(", ")
            ));
        }
    }

    /// Makes the groups of one container.
    pub(crate) fn create(&self, pod: &str, container: &str, limits: Limits) -> io::Result<CgroupSpec> {
        let mut spec = CgroupSpec::default();
        if let Some((base, controllers)) = &self.v2 {
            if *controllers == Controllers::Usable {
                fs::create_dir_all(base.join(pod))?;
                write(&base.join(pod).join("cgroup.subtree_control"), "+memory +cpu +pids")?;
            }
            let group = enter(&mut spec, &base.join(pod).join(container))?;
            if *controllers == Controllers::Usable {
                limit_v2(&group, limits)?;
                spec.oom_file = Some(group.join("memory.events"));
                return Ok(spec);
            }
        }
        if let Some(base) = &self.memory {
            let group = enter(&mut spec, &base.join(pod).join(container))?;
            if let Some(bytes) = limits.memory_bytes {
                write(&group.join("memory.limit_in_bytes"), &bytes.to_string())?;
                // Counts swap too, where the kernel does.
                let _ = write(&group.join("memory.memsw.limit_in_bytes"), &bytes.to_string());
            }
            spec.oom_file = Some(group.join("memory.oom_control"));
        }
        if let (Some(base), Some(milli)) = (&self.cpu, limits.cpu_milli) {
            let group = enter(&mut spec, &base.join(pod).join(container))?;
            write(&group.join("cpu.cfs_period_us"), &CPU_PERIOD_US.to_string())?;
            write(&group.join("cpu.cfs_quota_us"), &quota_us(milli).to_string())?;
        }
        if let Some(base) = &self.pids {
            let group = enter(&mut spec, &base.join(pod).join(container))?;
            write(&group.join("pids.max"), &PIDS_MAX.to_string())?;
        }
        Ok(spec)
    }

    fn bases(&self) -> impl Iterator<Item = &Path> {
        let v2 = self.v2.as_ref().map(|(base, _)| base);
        v2.into_iter().chain(&self.memory).chain(&self.cpu).chain(&self.pids).map(PathBuf::as_path)
    }

    /// The processes in a pod's groups.
    pub(crate) fn processes(&self, pod: &str) -> Vec<u32> {
        let groups = self.bases().flat_map(|base| children(&base.join(pod)));
        groups.flat_map(|group| cgroup::processes(&group)).collect()
    }

    /// Kills what is in a pod's groups, and removes them. Blocks for a moment.
    pub(crate) fn remove(&self, pod: &str) {
        for base in self.bases() {
            let pod_group = base.join(pod);
            if !pod_group.exists() {
                continue;
            }
            for attempt in 0..REMOVE_TRIES {
                let mut busy = false;
                for group in children(&pod_group).into_iter().chain([pod_group.clone()]) {
                    cgroup::kill(&group);
                    busy |=
                        fs::remove_dir(&group).is_err_and(|error| error.kind() != io::ErrorKind::NotFound);
                }
                if !busy {
                    break;
                }
                if attempt + 1 == REMOVE_TRIES {
                    tracing::warn!(group = %pod_group.display(), "a control group cannot be removed");
                }
                std::thread::sleep(Duration::from_millis(REMOVE_PAUSE_MS));
            }
        }
    }

    /// Removes the directories in which groups were made, if they are empty.
    pub(crate) fn close(&self) {
        for base in self.bases() {
            // Not empty while pods run on.
            let _ = fs::remove_dir(base);
        }
    }
}

/// Makes one group, which processes will join.
fn enter(spec: &mut CgroupSpec, directory: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(directory)?;
    spec.directories.push(directory.to_owned());
    Ok(directory.to_owned())
}

fn children(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

/// CPU time in one period, in microseconds; the kernel takes no less than a millisecond.
fn quota_us(milli: u64) -> u64 {
    milli.saturating_mul(CPU_PERIOD_US / 1000).max(1_000)
}

fn limit_v2(group: &Path, limits: Limits) -> io::Result<()> {
    if let Some(bytes) = limits.memory_bytes {
        write(&group.join("memory.max"), &bytes.to_string())?;
        // Not there when the kernel has no swap.
        let _ = write(&group.join("memory.swap.max"), "0");
    }
    if let Some(milli) = limits.cpu_milli {
        write(&group.join("cpu.max"), &format!("{} {CPU_PERIOD_US}", quota_us(milli)))?;
    }
    write(&group.join("pids.max"), &PIDS_MAX.to_string())
}

/// The path of the calling process in a hierarchy, from `/proc/self/cgroup`. Version 2 has no controller's name.
fn own_path<'a>(own: &'a str, controller: &str) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        (controllers.split(',').any(|known| known == controller)).then_some(path)
    })
}

/// A directory for our groups, below that of the calling process: limits on the daemon's own group hold for its pods.
fn detect_v1(own: &str, controller: &str, name: &str, probe: &mut Probe) -> Option<PathBuf> {
    let root = Path::new(ROOT).join(controller);
    // A tmpfs or a version 2 directory is no hierarchy of version 1.
    if !root.join("cgroup.procs").exists() || root.join("cgroup.controllers").exists() {
        return None;
    }
    let path = own_path(own, controller)?.trim_start_matches('/');
    let base = if root.join(path).exists() { root.join(path) } else { root };
    probe.usable(&base.join(name))
}

fn detect_v2(own: &str, name: &str, probe: &mut Probe) -> Option<(PathBuf, Controllers)> {
    let root = [Path::new(ROOT).to_owned(), Path::new(ROOT).join("unified")];
    let root = root.into_iter().find(|root| root.join("cgroup.controllers").exists())?;
    let path = own_path(own, "").unwrap_or("/").trim_start_matches('/');
    let here = root.join(path);
    let parent = here.parent().filter(|parent| parent.starts_with(&root)).map(Path::to_owned);
    let candidates: Vec<PathBuf> = [Some(here), parent, Some(root)].into_iter().flatten().collect();
    // A group with processes of its own gives its controllers to no child; the next one up may.
    let with_controllers = candidates.iter().find_map(|base| {
        let available = fs::read_to_string(base.join("cgroup.controllers")).unwrap_or_default();
        let all = ["memory", "cpu", "pids"]
            .iter()
            .all(|wanted| available.split_whitespace().any(|has| has == *wanted));
        if !all || fs::write(base.join("cgroup.subtree_control"), "+memory +cpu +pids").is_err() {
            return None;
        }
        probe.usable(&base.join(name))
    });
    if let Some(base) = with_controllers {
        // Our own group must give them on, too.
        if fs::write(base.join("cgroup.subtree_control"), "+memory +cpu +pids").is_ok() {
            return Some((base, Controllers::Usable));
        }
    }
    candidates.iter().find_map(|base| probe.usable(&base.join(name))).map(|base| (base, Controllers::None))
}

/// A process that does nothing, to find out whether processes can be moved into a group.
struct Probe {
    child: Child,
}

impl Probe {
    fn start() -> io::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read nothing"]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map(|child| Self { child })
    }

    /// Makes the directory and sees whether processes can be moved into groups in it: the right that starting pods needs.
    fn usable(&mut self, base: &Path) -> Option<PathBuf> {
        fs::create_dir_all(base).ok()?;
        let group = base.join(format!("probe-{}", self.child.id()));
        let moved = fs::create_dir(&group)
            .and_then(|()| fs::write(group.join("cgroup.procs"), self.child.id().to_string()));
        let is_usable = moved.is_ok();
        // It must leave before the group can go.
        if let Some(above) = base.parent().filter(|_| is_usable) {
            let _ = fs::write(above.join("cgroup.procs"), self.child.id().to_string());
        }
        let _ = fs::remove_dir(&group);
        is_usable.then(|| base.to_owned())
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_groups_are_found_in_both_versions() {
        let own = "9:name=systemd:/\n4:memory:/a/b\n2:cpu,cpuacct:/c\n0::/user.slice\n";
        for (controller, expected) in [
            ("memory", Some("/a/b")),
            ("cpu", Some("/c")),
            ("cpuacct", Some("/c")),
            ("", Some("/user.slice")),
            ("pids", None),
        ] {
            assert_eq!(own_path(own, controller), expected, "{controller:?}");
        }
    }

    #[test]
    fn cpu_quota_is_never_too_small_for_the_kernel() {
        for (milli, expected) in
            [(1_000, 100_000), (250, 25_000), (1, 1_000), (0, 1_000), (64_000, 6_400_000)]
        {
            assert_eq!(quota_us(milli), expected, "{milli}");
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        let mut nothing = Cgroups::default();
        nothing.describe();
        assert_eq!(nothing.description, "not enforced");
        assert!(
            nothing.notices[0].starts_with("limits on memory, cpu, pids are not enforced"),
            "{nothing:?}"
        );
        let mut some = Cgroups { memory: Some("/m".into()), pids: Some("/p".into()), ..Cgroups::default() };
        some.describe();
        assert_eq!(some.description, "enforced by control groups, but for cpu");
        let mut all = Cgroups { v2: Some(("/v2".into(), Controllers::Usable)), ..Cgroups::default() };
        all.describe();
        assert!(all.notices.is_empty());
    }

    #[test]
    fn groups_are_made_limited_and_removed() {
        let cgroups = Cgroups::detect("unit-test");
        let limits = Limits { memory_bytes: Some(64 << 20), cpu_milli: Some(500) };
        let spec = cgroups.create("pod", "main", limits).unwrap();
        assert_eq!(spec.oom_kills(), 0);
        let limited = ["memory.limit_in_bytes", "memory.max"];
        let files = spec.directories.iter().flat_map(|directory| limited.map(|name| directory.join(name)));
        for file in files.filter(|file| file.exists()) {
            assert_eq!(fs::read_to_string(file).unwrap().trim(), (64 << 20).to_string());
        }
        cgroups.remove("pod");
        assert!(spec.directories.iter().all(|directory| !directory.exists()), "{spec:?}");
        cgroups.close();
        assert!(cgroups.bases().all(|base| !base.exists()), "{cgroups:?}");
    }
}
