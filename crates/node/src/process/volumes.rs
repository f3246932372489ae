//! Volumes: from what a pod declares to files and directories on this machine. Pure.

use super::mount_plan::{Mount, Owner};
use super::references::{Data, References};
use crate::driver::StartFailure;
use regatta_agent::spec::{Access, EntryKind};
use regatta_types::pod::{Container, HostPath, KeyToPath, Pod, Volume};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

const CONFIG_MAP_MODE: u32 = 0o644;
/// Secrets are for the one user who runs the pod.
const SECRET_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o755;
const SECRET_DIRECTORY_MODE: u32 = 0o700;

/// Where the volumes of a pod are made.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// On the disk.
    pub(crate) disk: PathBuf,
    /// In memory.
    pub(crate) memory: PathBuf,
}

/// What is to be made before a pod starts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ToMake {
    pub(crate) directories: Vec<(PathBuf, u32)>,
    pub(crate) files: Vec<FileToMake>,
}

/// A file to make.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct FileToMake {
    pub(crate) path: PathBuf,
    pub(crate) content: Vec<u8>,
    pub(crate) mode: u32,
}

impl std::fmt::Debug for FileToMake {
    /// Without the content, which may be a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({:o}, {} bytes)", self.path.display(), self.mode, self.content.len())
    }
}

/// A volume on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) owner: Owner,
    /// What a path of the host must be.
    pub(crate) host_type: Option<String>,
}

/// The volumes of a pod by name, and what is to be made for them.
pub(crate) fn sources(
    pod: &Pod,
    places: &Places,
    references: &References,
) -> Result<(BTreeMap<String, Source>, ToMake), StartFailure> {
    let mut sources = BTreeMap::new();
    let mut make = ToMake::default();
    for volume in &pod.spec.volumes {
        check_name(&volume.name)?;
        let source = source(volume, places, references, &mut make)?;
        if sources.insert(volume.name.clone(), source).is_some() {
            return Err(refused(format!("two volumes have the name {:?}", volume.name)));
        }
    }
    Ok((sources, make))
}

fn refused(message: String) -> StartFailure {
    StartFailure::refused("CreateContainerConfigError", message)
}

/// A volume's name becomes a directory's.
fn check_name(name: &str) -> Result<(), StartFailure> {
    let is_label =
        !name.is_empty() && name.len() <= 63 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if is_label {
        Ok(())
    } else {
        Err(refused(format!("{name:?} is not the name of a volume: use letters, digits and dashes")))
    }
}

fn source(
    volume: &Volume,
    places: &Places,
    references: &References,
    make: &mut ToMake,
) -> Result<Source, StartFailure> {
    let own = |path: PathBuf| Source { path, owner: Owner::Pod, host_type: None };
    if let Some(empty) = &volume.empty_dir {
        let root = if empty.medium.as_deref() == Some("Memory") { &places.memory } else { &places.disk };
        let path = root.join(&volume.name);
        make.directories.push((path.clone(), 0o777));
        return Ok(own(path));
    }
    if let Some(host) = &volume.host_path {
        return host_source(&volume.name, host);
    }
    if let Some(map) = &volume.config_map {
        let data = references.config_map(&map.name, map.optional)?;
        let path = places.disk.join(&volume.name);
        let mode = map.default_mode.unwrap_or(CONFIG_MAP_MODE);
        keys_as_files(
            &path,
            "ConfigMap",
            &map.name,
            data,
            &map.items,
            (DIRECTORY_MODE, mode),
            map.optional,
            make,
        )?;
        return Ok(own(path));
    }
    if let Some(secret) = &volume.secret {
        let data = references.secret(&secret.secret_name, secret.optional)?;
        let path = places.memory.join(&volume.name);
        let mode = secret.default_mode.unwrap_or(SECRET_MODE);
        let modes = (SECRET_DIRECTORY_MODE, mode);
        keys_as_files(
            &path,
            "Secret",
            &secret.secret_name,
            data,
            &secret.items,
            modes,
            secret.optional,
            make,
        )?;
        return Ok(own(path));
    }
    Err(unknown_kind(volume))
}

/// A kind of volume that this runtime does not have.
pub(crate) fn unknown_kind(volume: &Volume) -> StartFailure {
    let kind = volume.other.keys().next().map_or("no kind", String::as_str);
    refused(format!(
        "volume {:?} has the kind {kind}, which does not exist on one machine; use hostPath for a directory of this machine, or \
         emptyDir, configMap or secret",
        volume.name
    ))
}

fn host_source(name: &str, host: &HostPath) -> Result<Source, StartFailure> {
    let path = Path::new(&host.path);
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !path.is_absolute() || !plain {
        return Err(refused(format!(
            "the path {:?} of volume {name:?} is not absolute; write it from the root, without ..",
            host.path
        )));
    }
    let host_type = host.type_.clone().filter(|kind| !kind.is_empty());
    Ok(Source { path: path.to_owned(), owner: Owner::Host, host_type })
}

#[expect(clippy::too_many_arguments, reason = "the two kinds of volume differ in all of these")]
fn keys_as_files(
    root: &Path,
    kind: &str,
    name: &str,
    data: Option<&Data>,
    items: &[KeyToPath],
    (directory_mode, mode): (u32, u32),
    optional: Option<bool>,
    make: &mut ToMake,
) -> Result<(), StartFailure> {
    make.directories.push((root.to_owned(), directory_mode));
    if items.is_empty() {
        for (key, value) in data.into_iter().flatten() {
            make.files.push(FileToMake { path: root.join(key), content: value.clone(), mode });
        }
        return Ok(());
    }
    for item in items {
        let Some(value) = data.and_then(|data| data.get(&item.key)) else {
            if optional == Some(true) {
                continue;
            }
            return Err(refused(format!(
                "{kind} {name:?} has no key {:?}; add it, or mark the volume as optional",
                item.key
            )));
        };
        let path = relative(&item.path).ok_or_else(|| {
            refused(format!("the path {:?} of key {:?} is not relative", item.path, item.key))
        })?;
        if let Some(parent) = path.parent().filter(|parent| *parent != Path::new("")) {
            make.directories.push((root.join(parent), directory_mode));
        }
        make.files.push(FileToMake {
            path: root.join(path),
            content: value.clone(),
            mode: item.mode.unwrap_or(mode),
        });
    }
    Ok(())
}

/// A path that stays below where it starts.
fn relative(path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
    (inside && path != Path::new("")).then(|| path.to_owned())
}

/// A container's mounts. `kind` tells what a source is; sources and subpaths of the pod's own are directories.
pub(crate) fn mounts(
    container: &Container,
    sources: &BTreeMap<String, Source>,
    make: &mut ToMake,
    kind: impl Fn(&Source, &Path) -> Result<EntryKind, StartFailure>,
) -> Result<Vec<Mount>, StartFailure> {
    let mut mounts = Vec::new();
    for mount in &container.volume_mounts {
        let source = sources.get(&mount.name).ok_or_else(|| {
            refused(format!(
                "container {:?} mounts volume {:?}, which the pod does not have",
                container.name, mount.name
            ))
        })?;
        let mut path = source.path.clone();
        if let Some(sub) = mount.sub_path.as_deref().filter(|sub| !sub.is_empty()) {
            let sub = relative(sub).ok_or_else(|| {
                refused(format!("the subPath {sub:?} of volume {:?} leads out of it", mount.name))
            })?;
            path = path.join(sub);
            let is_file = make.files.iter().any(|file| file.path == path);
            if source.owner == Owner::Pod && !is_file {
                make.directories.push((path.clone(), DIRECTORY_MODE));
            }
        }
        let kind = match source.owner {
            Owner::Pod if make.files.iter().any(|file| file.path == path) => EntryKind::File,
            Owner::Pod => EntryKind::Directory,
            Owner::Host => kind(source, &path)?,
        };
        let access = if mount.read_only == Some(true) { Access::ReadOnly } else { Access::ReadWrite };
        mounts.push(Mount {
            source: path,
            kind,
            target: PathBuf::from(&mount.mount_path),
            access,
            owner: source.owner,
        });
    }
    Ok(mounts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(volumes: &serde_json::Value, mounts: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({"spec": {
            "volumes": volumes,
            "containers": [{"name": "main", "volumeMounts": mounts}],
        }}))
        .unwrap()
    }

    fn references() -> References {
        let data = BTreeMap::from([("a.yaml".to_owned(), b"1".to_vec()), ("b".to_owned(), b"2".to_vec())]);
        let mut references = References::default();
        references.config_maps.insert("map".to_owned(), data.clone());
        references.secrets.insert("secret".to_owned(), data);
        references
    }

    fn resolve(
        volumes: &serde_json::Value,
        mounts_json: &serde_json::Value,
    ) -> Result<(Vec<Mount>, ToMake), String> {
        let pod = pod(volumes, mounts_json);
        let places = Places { disk: "/d".into(), memory: "/m".into() };
        let (sources, mut make) = sources(&pod, &places, &references()).map_err(|f| f.message)?;
        let mounts = mounts(&pod.spec.containers[0], &sources, &mut make, |_, _| Ok(EntryKind::Directory))
            .map_err(|f| f.message)?;
        Ok((mounts, make))
    }

    #[test]
    fn each_kind_has_its_place() {
        let volumes = json!([
            {"name": "scratch", "emptyDir": {}},
            {"name": "fast", "emptyDir": {"medium": "Memory"}},
            {"name": "host", "hostPath": {"path": "/data", "type": "Directory"}},
            {"name": "map", "configMap": {"name": "map"}},
            {"name": "secret", "secret": {"secretName": "secret", "items": [{"key": "b", "path": "deep/key"}]}},
        ]);
        let mounts = json!([
            {"name": "scratch", "mountPath": "/scratch", "subPath": "run/1"},
            {"name": "host", "mountPath": "/in", "readOnly": true},
            {"name": "map", "mountPath": "/etc/a.yaml", "subPath": "a.yaml"},
            {"name": "secret", "mountPath": "/keys"},
        ]);
        let (mounts, make) = resolve(&volumes, &mounts).unwrap();
        let sources: Vec<_> =
            mounts.iter().map(|m| (m.source.to_str().unwrap(), m.kind, m.access, m.owner)).collect();
        assert_eq!(
            sources,
            [
                ("/d/scratch/run/1", EntryKind::Directory, Access::ReadWrite, Owner::Pod),
                ("/data", EntryKind::Directory, Access::ReadOnly, Owner::Host),
                ("/d/map/a.yaml", EntryKind::File, Access::ReadWrite, Owner::Pod),
                ("/m/secret", EntryKind::Directory, Access::ReadWrite, Owner::Pod),
            ]
        );
        let files: Vec<String> = make.files.iter().map(|file| format!("{file:?}")).collect();
        assert_eq!(
            files,
            ["/d/map/a.yaml (644, 1 bytes)", "/d/map/b (644, 1 bytes)", "/m/secret/deep/key (600, 1 bytes)"]
        );
        assert!(make.directories.contains(&("/m/secret".into(), 0o700)));
        assert!(make.directories.contains(&("/m/fast".into(), 0o777)));
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_fix() {
        let none = json!([]);
        for (volumes, mounts, expected) in [
            (
                json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]),
                none.clone(),
                "use hostPath",
            ),
            (json!([{"name": "v", "hostPath": {"path": "data"}}]), none.clone(), "is not absolute"),
            (json!([{"name": "v", "hostPath": {"path": "/data/../etc"}}]), none.clone(), "is not absolute"),
            (json!([{"name": "../x", "emptyDir": {}}]), none.clone(), "is not the name of a volume"),
            (
                json!([{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]),
                none.clone(),
                "two volumes have the name",
            ),
            (
                json!([{"name": "v", "configMap": {"name": "gone"}}]),
                none.clone(),
                "ConfigMap \"gone\" does not exist",
            ),
            (
                json!([{"name": "v", "secret": {"secretName": "secret", "items": [{"key": "zz", "path": "z"}]}}]),
                none.clone(),
                "has no key \"zz\"",
            ),
            (
                json!([{"name": "v", "secret": {"secretName": "secret", "items": [{"key": "b", "path": "../z"}]}}]),
                none,
                "is not relative",
            ),
            (json!([]), json!([{"name": "v", "mountPath": "/v"}]), "which the pod does not have"),
            (
                json!([{"name": "v", "emptyDir": {}}]),
                json!([{"name": "v", "mountPath": "/v", "subPath": "../../etc"}]),
                "leads out of it",
            ),
        ] {
            let error = resolve(&volumes, &mounts).unwrap_err();
            assert!(error.contains(expected), "{volumes}: {error}");
        }
    }

    #[test]
    fn an_optional_source_may_be_missing() {
        let volumes = json!([{"name": "v", "secret": {"secretName": "gone", "optional": true}}]);
        let (_, make) = resolve(&volumes, &json!([])).unwrap();
        assert_eq!((make.directories.len(), make.files.len()), (1, 0));
    }
}
