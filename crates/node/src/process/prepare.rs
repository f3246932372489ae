//! From a pod to what its agent is told. Pure: what is on the host is asked through [`HostView`].

use super::env::{self, Given};
use super::launch;
use super::mount_plan::{self, Ability, HostView, Mount, Owner};
use super::references::References;
use super::volumes::{self, FileToMake, Places, Source, ToMake};
use crate::cgroups::Limits;
use crate::driver::StartFailure;
use crate::layout::Layout;
use crate::ledger::Device;
use crate::machine::GRACE_PERIOD_SECONDS_DEFAULT;
use crate::network::{Attachment, hosts_file};
use regatta_agent::namespaces::Mounts;
use regatta_agent::spec::{
    Access, AgentSpec, ContainerSpec, EntryKind, JobIdentity, MountNamespace, Namespaces, PodIdentity,
    UserNamespace,
};
use regatta_types::Uid;
use regatta_types::evidence::ProcessEnd;
use regatta_types::pod::{Container, LaunchSpec, Pod};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const HOSTS_FILE: &str = "/etc/hosts";
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// What the preparation needs besides the pod.
pub(crate) struct Surroundings<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) mounts: Mounts,
    pub(crate) inherited: &'a BTreeMap<String, String>,
    pub(crate) references: &'a References,
    pub(crate) facts: Option<LaunchSpec>,
    pub(crate) attachment: &'a Attachment,
    /// The pod's GPUs; none on a node without any.
    pub(crate) devices: Option<&'a [Device]>,
    /// Content of the host's hosts file.
    pub(crate) host_file: &'a str,
    pub(crate) host: &'a dyn HostView,
}

/// What is to be made, and what the agent is to be told. Control groups are filled in when they are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prepared {
    pub(crate) spec: AgentSpec,
    pub(crate) make: ToMake,
    /// Mount points to make in the pod's own volumes, after `make`.
    pub(crate) mount_points: Vec<(PathBuf, EntryKind)>,
    /// Limits of the init containers, then of the others.
    pub(crate) limits: Vec<Limits>,
}

/// The directories of one pod.
struct PodPlaces {
    root: PathBuf,
    home: PathBuf,
    temporary: PathBuf,
    staging: PathBuf,
}

/// Prepares a pod.
pub(crate) fn prepare(pod: &Pod, around: &Surroundings<'_>) -> Result<Prepared, StartFailure> {
    let uid = pod.metadata.uid();
    let root = around.layout.pod(&uid);
    let places = PodPlaces {
        home: root.join("home"),
        temporary: root.join("tmp"),
        staging: root.join("staging"),
        root,
    };
    let disk = places.root.join("volumes");
    let (sources, mut make) =
        volumes::sources(pod, &Places { disk, memory: around.layout.pod_memory(&uid) }, around.references)?;
    make.directories.splice(0..0, [(places.home.clone(), 0o700), (places.temporary.clone(), 0o1777)]);
    let ability = if around.mounts == Mounts::None { Ability::Nothing } else { Ability::Mounts };
    let names = name_mounts(&places, around, ability, &mut make);
    let mut prepared =
        Prepared { spec: agent_spec(pod, around, &uid), make, mount_points: Vec::new(), limits: Vec::new() };
    let hostname = launch::hostname(pod);
    let given = Given {
        inherited: around.inherited,
        home: places.home.to_string_lossy().into_owned(),
        temporary: places.temporary.to_string_lossy().into_owned(),
        hostname,
        visible_devices: around.devices.map(visible_devices),
        pod_ip: around.attachment.pod_ip.to_string(),
        host_ip: "127.0.0.1".to_owned(),
    };
    for (container, is_init) in all_containers(pod) {
        let made = env::container_env(pod, container, &given, around.references)?;
        let mut mounts = volumes::mounts(container, &sources, &mut prepared.make, |source, path| {
            source_kind(around.host, source, path)
        })?;
        mounts.extend(names.iter().filter(|name| !covers(&name.target, container)).cloned());
        let staging = places.staging.join(&container.name);
        let plan = mount_plan::plan(mounts, ability, &staging, around.host)?;
        prepared.make.directories.extend(plan.stagings.into_iter().map(|path| (path, 0o755)));
        prepared.mount_points.extend(plan.make);
        prepared.limits.push(limits(container));
        let spec = ContainerSpec {
            name: container.name.clone(),
            argv: argv(container, &made.env, &made.own)?,
            working_dir: container.working_dir.as_ref().map_or_else(|| places.home.clone(), PathBuf::from),
            log_dir: around
                .layout
                .pod_logs(pod.metadata.namespace(), &pod.metadata.name, &uid)
                .join(&container.name),
            env: made.env,
            own_env: made.own,
            mounts: plan.steps,
            ..ContainerSpec::default()
        };
        if is_init { &mut prepared.spec.init_containers } else { &mut prepared.spec.containers }.push(spec);
    }
    let gpus = around.devices.map_or(0, <[Device]>::len);
    let main_argv = prepared.spec.containers.first().map(|main| main.argv.clone()).unwrap_or_default();
    prepared.spec.launch =
        around.facts.clone().map(|facts| launch::launch(pod, facts, &main_argv, gpus, around.attachment));
    if prepared.spec.launch.is_none() {
        // Without a job there are no ranks, but whoever wants to may still report progress.
        for container in &mut prepared.spec.containers {
            container.env.insert(
                "REGATTA_SOCK".to_owned(),
                prepared.spec.progress_socket.to_string_lossy().into_owned(),
            );
        }
    }
    Ok(prepared)
}

/// Init containers first.
fn all_containers(pod: &Pod) -> impl Iterator<Item = (&Container, bool)> {
    let init = pod.spec.init_containers.iter().map(|container| (container, true));
    init.chain(pod.spec.containers.iter().map(|container| (container, false)))
}

fn agent_spec(pod: &Pod, around: &Surroundings<'_>, uid: &Uid) -> AgentSpec {
    let owner = pod
        .metadata
        .owner_references
        .iter()
        .find(|owner| owner.controller == Some(true) && owner.kind == "Job");
    let grace_s = pod.spec.termination_grace_period_seconds.unwrap_or(GRACE_PERIOD_SECONDS_DEFAULT);
    let has_mounts = around.mounts != Mounts::None;
    AgentSpec {
        pod: PodIdentity {
            namespace: pod.metadata.namespace().to_owned(),
            name: pod.metadata.name.clone(),
            uid: uid.clone(),
            job: owner.map(|owner| JobIdentity { name: owner.name.clone(), uid: owner.uid.clone() }),
        },
        node: pod.spec.node_name.clone().unwrap_or_default(),
        grace_period_ms: u64::try_from(grace_s).unwrap_or(0).saturating_mul(1000),
        namespaces: Namespaces {
            user: if around.mounts == Mounts::ByUserNamespace {
                UserNamespace::Own
            } else {
                UserNamespace::Host
            },
            mount: if has_mounts { MountNamespace::Own } else { MountNamespace::Host },
            network: around.attachment.namespace.clone(),
            // A name of its own is of use only with a hosts file that knows it.
            hostname: has_mounts.then(|| launch::hostname(pod)),
        },
        progress_socket: around.layout.progress_socket(uid),
        agents_socket: around.layout.agents_socket(),
        ..AgentSpec::default()
    }
}

/// The files that make names known: hosts, and the resolver's where the host's is of no use.
fn name_mounts(
    places: &PodPlaces,
    around: &Surroundings<'_>,
    ability: Ability,
    make: &mut ToMake,
) -> Vec<Mount> {
    if ability == Ability::Nothing {
        return Vec::new();
    }
    let file = |source: PathBuf, target: &str| Mount {
        source,
        kind: EntryKind::File,
        target: PathBuf::from(target),
        access: Access::ReadOnly,
        owner: Owner::Pod,
    };
    let hosts = places.root.join("hosts");
    let content = hosts_file(&around.attachment.names, around.host_file).into_bytes();
    make.files.push(FileToMake { path: hosts.clone(), content, mode: 0o644 });
    let mut mounts = vec![file(hosts, HOSTS_FILE)];
    if let Some(resolv_conf) = &around.attachment.resolv_conf {
        mounts.push(file(resolv_conf.clone(), RESOLV_CONF));
    }
    // A host without the file needs none in its pods.
    mounts.retain(|mount| around.host.kind(&mount.target) == Some(EntryKind::File));
    mounts
}

/// Whether the container mounts something of its own at the path or above it.
fn covers(path: &Path, container: &Container) -> bool {
    container.volume_mounts.iter().any(|mount| path.starts_with(&mount.mount_path))
}

fn visible_devices(devices: &[Device]) -> String {
    devices.iter().map(|device| device.visible.as_str()).collect::<Vec<_>>().join(",")
}

fn source_kind(host: &dyn HostView, source: &Source, path: &Path) -> Result<EntryKind, StartFailure> {
    let refused = |problem: String| Err(StartFailure::refused("CreateContainerConfigError", problem));
    let (path_text, found) = (path.display(), host.kind(path));
    match (source.host_type.as_deref(), found) {
        (Some("DirectoryOrCreate"), None | Some(EntryKind::Directory)) => Ok(EntryKind::Directory),
        (Some("FileOrCreate"), None | Some(EntryKind::File)) => Ok(EntryKind::File),
        (Some("Directory" | "DirectoryOrCreate"), Some(EntryKind::File)) => {
            refused(format!("{path_text} on the host is not a directory"))
        }
        (Some("File" | "FileOrCreate"), Some(EntryKind::Directory)) => {
            refused(format!("{path_text} on the host is not a file"))
        }
        (Some("Directory" | "File") | None, Some(kind)) => Ok(kind),
        (Some("Socket" | "CharDevice" | "BlockDevice"), Some(EntryKind::File)) => Ok(EntryKind::File),
        (_, None) => refused(format!(
            "{path_text} does not exist on the host; make it, or use the type DirectoryOrCreate"
        )),
        (Some(other), Some(_)) => refused(format!("{path_text} on the host is not of the type {other}")),
    }
}

fn limits(container: &Container) -> Limits {
    let limit = |resource: &str| container.resources.limits.get(resource);
    let positive = |amount: i64| u64::try_from(amount).ok().filter(|amount| *amount > 0);
    Limits {
        memory_bytes: limit("memory").and_then(|amount| positive(amount.units())),
        cpu_milli: limit("cpu").and_then(|amount| positive(amount.milli())),
    }
}

/// Program and arguments, with references to the container's own variables replaced. Arguments without a program, as
/// `kubectl run NAME --image=IMAGE -- COMMAND` makes them, are the command, as they are for images without entry point.
fn argv(
    container: &Container,
    env: &BTreeMap<String, String>,
    own: &[String],
) -> Result<Vec<String>, StartFailure> {
    if container.command.is_empty() && container.args.is_empty() {
        return Err(no_command(container));
    }
    let own: BTreeMap<String, String> =
        own.iter().filter_map(|name| Some((name.clone(), env.get(name)?.clone()))).collect();
    Ok(container.command.iter().chain(&container.args).map(|word| env::expand(word, &own)).collect())
}

fn no_command(container: &Container) -> StartFailure {
    let end = ProcessEnd::NotStarted(rustix::io::Errno::NOENT.raw_os_error());
    let message = format!(
        "container {:?} has no command: images and their entry points do not exist on this runtime; set command to the \
         program to run",
        container.name
    );
    StartFailure { end, ..StartFailure::refused("NoCommand", message) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Name;
    use serde_json::{Value, json};
    use std::net::{IpAddr, Ipv4Addr};

    struct Host;

    impl HostView for Host {
        fn kind(&self, path: &Path) -> Option<EntryKind> {
            match path.to_str()? {
                "/" | "/etc" | "/data" | "/home/me" => Some(EntryKind::Directory),
                "/etc/hosts" | "/etc/resolv.conf" => Some(EntryKind::File),
                _ => None,
            }
        }
    }

    fn pod(spec: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "job-worker-0-1", "namespace": "default", "uid": "u-1",
                "ownerReferences": [{"apiVersion": "regatta.dev/v1alpha1", "kind": "Job", "name": "job", "uid": "j-1", "controller": true}],
            },
            "spec": spec,
        }))
        .unwrap()
    }

    fn prepare_with(pod: &Pod, mounts: Mounts, devices: Option<&[Device]>) -> Result<Prepared, StartFailure> {
        let here = IpAddr::V4(Ipv4Addr::new(10, 208, 0, 4));
        let attachment = Attachment {
            namespace: Some("/net/ns".into()),
            names: vec![Name::new(here, "job-worker-0.job")],
            resolv_conf: None,
            master_address: "job-worker-0.job".to_owned(),
            master_port: 29_500,
            pod_ip: here,
        };
        let around = Surroundings {
            layout: &Layout::new(Path::new("/r")),
            mounts,
            inherited: &BTreeMap::from([("PATH".to_owned(), "/bin".to_owned())]),
            references: &References::default(),
            facts: None,
            attachment: &attachment,
            devices,
            host_file: "",
            host: &Host,
        };
        prepare(pod, &around)
    }

    #[test]
    fn a_pod_becomes_what_its_agent_is_told() {
        let pod = pod(&json!({
            "nodeName": "box-1", "hostname": "job-worker-0", "terminationGracePeriodSeconds": 5,
            "volumes": [{"name": "ckpt", "hostPath": {"path": "/data"}}],
            "initContainers": [{"name": "setup", "command": ["true"]}],
            "containers": [{
                "name": "main", "command": ["train", "--lr=$(LR)", "$(PATH)"], "args": ["x"],
                "env": [{"name": "LR", "value": "0.1"}],
                "workingDir": "/home/me",
                "volumeMounts": [{"name": "ckpt", "mountPath": "/ckpt"}],
                "resources": {"limits": {"memory": "64Mi", "cpu": "500m"}},
            }],
        }));
        let device = Device { index: 2, visible: "GPU-2".to_owned() };
        let prepared = prepare_with(&pod, Mounts::Direct, Some(&[device])).unwrap();
        let spec = &prepared.spec;
        assert_eq!(spec.pod.job, Some(JobIdentity { name: "job".to_owned(), uid: Uid::from("j-1") }));
        assert_eq!((spec.node.as_str(), spec.grace_period_ms), ("box-1", 5_000));
        assert_eq!(spec.namespaces.hostname.as_deref(), Some("job-worker-0"));
        let main = &spec.containers[0];
        assert_eq!(main.argv, ["train", "--lr=0.1", "$(PATH)", "x"], "only its own variables are replaced");
        assert_eq!(main.env["CUDA_VISIBLE_DEVICES"], "GPU-2");
        assert_eq!(main.env["HOME"], "/r/pods/u-1/home");
        assert_eq!(main.log_dir, Path::new("/r/logs/default/job-worker-0-1_u-1/main"));
        assert_eq!(main.working_dir, Path::new("/home/me"));
        assert_eq!(
            main.mounts.len(),
            3,
            "the root's entry, the volume and the hosts file: {:?}",
            main.mounts
        );
        assert_eq!(spec.init_containers[0].working_dir, Path::new("/r/pods/u-1/home"));
        assert_eq!(prepared.limits[1], Limits { memory_bytes: Some(64 << 20), cpu_milli: Some(500) });
        let hosts = prepared.make.files.iter().find(|file| file.path.ends_with("hosts")).unwrap();
        assert!(
            String::from_utf8_lossy(&hosts.content).contains("10.208.0.4\tjob-worker-0.job\tjob-worker-0\n")
        );
    }

    #[test]
    fn without_namespaces_nothing_is_promised() {
        let container = |mounts: &Value| {
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/data"}}],
            "containers": [{"name": "main", "command": ["true"], "volumeMounts": mounts}]})
        };
        let in_place = pod(&container(&json!([{"name": "v", "mountPath": "/data"}])));
        let prepared = prepare_with(&in_place, Mounts::None, None).unwrap();
        assert_eq!(prepared.spec.namespaces.mount, MountNamespace::Host);
        assert_eq!(prepared.spec.namespaces.hostname, None);
        assert!(!prepared.spec.containers[0].env.contains_key("CUDA_VISIBLE_DEVICES"));
        let elsewhere = pod(&container(&json!([{"name": "v", "mountPath": "/ckpt"}])));
        assert!(
            prepare_with(&elsewhere, Mounts::None, None)
                .unwrap_err()
                .message
                .contains("/ckpt cannot be mounted")
        );
        let by_user = prepare_with(&elsewhere, Mounts::ByUserNamespace, None).unwrap();
        assert_eq!(by_user.spec.namespaces.user, UserNamespace::Own);
    }

    #[test]
    fn a_container_without_a_command_says_so() {
        let failure = prepare_with(
            &pod(&json!({"containers": [{"name": "main", "image": "busybox"}]})),
            Mounts::Direct,
            None,
        )
        .unwrap_err();
        assert_eq!((failure.reason, failure.end), ("NoCommand", ProcessEnd::NotStarted(2)));
        assert!(failure.message.contains("set command"), "{failure}");
        let args_only = json!({"containers": [{"name": "main", "image": "busybox", "args": ["sleep", "1"]}]});
        assert!(prepare_with(&pod(&args_only), Mounts::Direct, None).is_ok());
    }

    #[test]
    fn paths_of_the_host_are_checked() {
        for (path, kind, expected) in [
            ("/data", None, Ok(EntryKind::Directory)),
            ("/data", Some("Directory"), Ok(EntryKind::Directory)),
            ("/new", Some("DirectoryOrCreate"), Ok(EntryKind::Directory)),
            ("/new", Some("FileOrCreate"), Ok(EntryKind::File)),
            ("/etc/hosts", Some("File"), Ok(EntryKind::File)),
            ("/new", None, Err("does not exist on the host")),
            ("/new", Some("Directory"), Err("does not exist on the host")),
            ("/data", Some("File"), Err("is not a file")),
            ("/etc/hosts", Some("Directory"), Err("is not a directory")),
            ("/data", Some("Socket"), Err("is not of the type Socket")),
        ] {
            let source = Source { path: path.into(), owner: Owner::Host, host_type: kind.map(str::to_owned) };
            let found = source_kind(&Host, &source, Path::new(path)).map_err(|failure| failure.message);
            match (&found, expected) {
                (Ok(kind), Ok(expected)) => assert_eq!(*kind, expected, "{path}"),
                (Err(message), Err(part)) => assert!(message.contains(part), "{message}"),
                _ => panic!("{path} {kind:?}: {found:?}"),
            }
        }
    }
}
