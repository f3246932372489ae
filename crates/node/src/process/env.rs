//! The environment of a container: what it inherits, what it is given, what it sets itself. Pure.

use super::references::{self, References};
use crate::driver::StartFailure;
use regatta_agent::process::POD_UID_VARIABLE;
use regatta_types::pod::{Container, EnvVarSource, Pod};
use serde_json::Value;
use std::collections::BTreeMap;

/// Variables that pods inherit from the daemon: what finding and running programs of this machine needs. Anything else
/// in the daemon's environment, credentials above all, is not passed on.
const INHERITED: [&str; 26] = [
    "CONDA_DEFAULT_ENV",
    "CONDA_PREFIX",
    "CUDA_HOME",
    "CUDA_PATH",
    "CURL_CA_BUNDLE",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "LANG",
    "LD_LIBRARY_PATH",
    "LIBRARY_PATH",
    "LOGNAME",
    "NO_PROXY",
    "NVIDIA_DRIVER_CAPABILITIES",
    "PATH",
    "PYENV_ROOT",
    "PYTHONPATH",
    "REQUESTS_CA_BUNDLE",
    "SHELL",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TZ",
    "USER",
    "VIRTUAL_ENV",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];
/// Prefixes of further variables that pods inherit.
const INHERITED_PREFIXES: [&str; 5] = ["GLOO_", "LC_", "NCCL_", "OMP_", "UCX_"];
/// Where programs are when the daemon's own environment does not say.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What pods inherit of an environment.
pub(crate) fn inherited(environment: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let passes = |name: &str| {
        INHERITED.contains(&name) || INHERITED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    let mut inherited: BTreeMap<String, String> = environment.filter(|(name, _)| passes(name)).collect();
    inherited.entry("PATH".to_owned()).or_insert_with(|| PATH_DEFAULT.to_owned());
    inherited
}

/// What a container is given whatever it sets itself.
#[derive(Debug, Clone)]
pub(crate) struct Given<'a> {
    pub(crate) inherited: &'a BTreeMap<String, String>,
    pub(crate) home: String,
    pub(crate) temporary: String,
    pub(crate) hostname: String,
    /// Value of `CUDA_VISIBLE_DEVICES`; none on a node without GPUs.
    pub(crate) visible_devices: Option<String>,
    pub(crate) pod_ip: String,
    pub(crate) host_ip: String,
}

/// The environment of a container, and which of it the container set itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ContainerEnv {
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) own: Vec<String>,
}

/// Makes the environment of a container.
pub(crate) fn container_env(
    pod: &Pod,
    container: &Container,
    given: &Given<'_>,
    references: &References,
) -> Result<ContainerEnv, StartFailure> {
    let mut env = given.inherited.clone();
    env.insert("HOME".to_owned(), given.home.clone());
    env.insert("TMPDIR".to_owned(), given.temporary.clone());
    env.insert("HOSTNAME".to_owned(), given.hostname.clone());
    // Only what the container sets itself can be referred to by what it sets.
    let mut own: BTreeMap<String, String> = BTreeMap::new();
    for source in &container.env_from {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        let maps = [
            source.config_map_ref.as_ref().map(|map| references.config_map(&map.name, map.optional)),
            source.secret_ref.as_ref().map(|map| references.secret(&map.name, map.optional)),
        ];
        for data in maps.into_iter().flatten() {
            for (key, value) in data?.into_iter().flatten() {
                own.insert(format!("{prefix}{key}"), text(key, value)?);
            }
        }
    }
    for variable in &container.env {
        let value = match &variable.value_from {
            Some(source) => from_source(pod, container, &variable.name, source, given, references)?,
            None => Some(expand(variable.value.as_deref().unwrap_or_default(), &own)),
        };
        if let Some(value) = value {
            own.insert(variable.name.clone(), value);
        }
    }
    let names = own.keys().cloned().collect();
    env.extend(own);
    env.insert(POD_UID_VARIABLE.to_owned(), pod.metadata.uid().0);
    if let Some(devices) = &given.visible_devices {
        // Devices are the runtime's to give; a container that names its own would take another's.
        env.insert("CUDA_VISIBLE_DEVICES".to_owned(), devices.clone());
    }
    Ok(ContainerEnv { env, own: names })
}

fn text(key: &str, value: &[u8]) -> Result<String, StartFailure> {
    String::from_utf8(value.to_vec()).map_err(|_| {
        let message = format!(
            "the value of key {key:?} is not text, so it cannot be a variable; mount it as a file instead"
        );
        StartFailure::refused("CreateContainerConfigError", message)
    })
}

fn from_source(
    pod: &Pod,
    container: &Container,
    name: &str,
    source: &EnvVarSource,
    given: &Given<'_>,
    references: &References,
) -> Result<Option<String>, StartFailure> {
    if let Some(key) = &source.secret_key_ref {
        let data = references.secret(&key.name, key.optional)?;
        return references::value("Secret", key, data)?.map(|value| text(&key.key, value)).transpose();
    }
    if let Some(key) = &source.config_map_key_ref {
        let data = references.config_map(&key.name, key.optional)?;
        return references::value("ConfigMap", key, data)?.map(|value| text(&key.key, value)).transpose();
    }
    if let Some(field) = &source.field_ref {
        return pod_field(pod, &field.field_path, given).map(Some);
    }
    if let Some(field) = source.other.get("resourceFieldRef") {
        return resource_field(container, field).map(Some);
    }
    let message = format!(
        "variable {name:?} of container {:?} takes its value from a source that is not known",
        container.name
    );
    Err(StartFailure::refused("CreateContainerConfigError", message))
}

fn pod_field(pod: &Pod, path: &str, given: &Given<'_>) -> Result<String, StartFailure> {
    let subscript = |prefix: &str| path.strip_prefix(prefix)?.strip_suffix("']").map(str::to_owned);
    if let Some(key) = subscript("metadata.labels['") {
        return Ok(pod.metadata.labels.get(&key).cloned().unwrap_or_default());
    }
    if let Some(key) = subscript("metadata.annotations['") {
        return Ok(pod.metadata.annotations.get(&key).cloned().unwrap_or_default());
    }
    match path {
        "metadata.name" => Ok(pod.metadata.name.clone()),
        "metadata.namespace" => Ok(pod.metadata.namespace().to_owned()),
        "metadata.uid" => Ok(pod.metadata.uid().0),
        "spec.nodeName" => Ok(pod.spec.node_name.clone().unwrap_or_default()),
        "spec.serviceAccountName" => Ok(pod
            .spec
            .other
            .get("serviceAccountName")
            .and_then(Value::as_str)
            .unwrap_or("default")
            .to_owned()),
        "status.podIP" | "status.podIPs" => Ok(given.pod_ip.clone()),
        "status.hostIP" | "status.hostIPs" => Ok(given.host_ip.clone()),
        _ => Err(StartFailure::refused(
            "CreateContainerConfigError",
            format!("{path:?} is not a field of a pod that a variable can have"),
        )),
    }
}

fn resource_field(container: &Container, field: &Value) -> Result<String, StartFailure> {
    let path = field["resource"].as_str().unwrap_or_default();
    let divisor: regatta_types::Quantity = field["divisor"]
        .as_str()
        .unwrap_or("1")
        .parse()
        .unwrap_or_else(|_| regatta_types::Quantity::from_units(1));
    let (kind, resource) = path.split_once('.').unwrap_or(("", path));
    let amount = match kind {
        "limits" => container.resources.limits.get(resource),
        "requests" => container.resources.request(resource),
        _ => {
            let message = format!("{path:?} is not a resource of a container, such as limits.cpu");
            return Err(StartFailure::refused("CreateContainerConfigError", message));
        }
    };
    let amount = amount.map_or(0, regatta_types::Quantity::milli);
    let divisor = match divisor.milli() {
        0 => 1_000,
        milli => milli,
    };
    Ok(amount.div_euclid(divisor).saturating_add(i64::from(amount.rem_euclid(divisor) != 0)).to_string())
}

/// Replaces `$(NAME)` by the value of a known variable; `$$` is a dollar; everything else stays.
pub(crate) fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("$$") {
            out.push('$');
            rest = after;
            continue;
        }
        let reference = rest.strip_prefix("$(").and_then(|inner| inner.split_once(')'));
        match reference.and_then(|(name, after)| variables.get(name).map(|value| (value, after))) {
            Some((value, after)) => {
                out.push_str(value);
                rest = after;
            }
            None => {
                out.push('$');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_types::Uid;
    use regatta_types::pod::{EnvFromSource, EnvVar, FieldSelector, KeySelector, LocalRef};
    use serde_json::json;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn references_are_expanded_as_in_kubernetes() {
        let known = map(&[("A", "1"), ("B_C", "two")]);
        for (text, expected) in [
            ("plain", "plain"),
            ("$(A)", "1"),
            ("x$(A)y$(B_C)z", "x1ytwoz"),
            ("$(MISSING)", "$(MISSING)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$A", "$A"),
            ("$(A", "$(A"),
            ("$", "$"),
            ("$()", "$()"),
            ("é$(A)", "é1"),
        ] {
            assert_eq!(expand(text, &known), expected, "{text:?}");
        }
    }

    #[test]
    fn only_what_is_needed_is_inherited() {
        let environment = [
            ("PATH", "/bin"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("NCCL_DEBUG", "WARN"),
            ("LC_ALL", "C"),
            ("HOME", "/root"),
        ];
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        assert_eq!(inherited(environment), map(&[("PATH", "/bin"), ("NCCL_DEBUG", "WARN"), ("LC_ALL", "C")]));
        assert_eq!(inherited(std::iter::empty()), map(&[("PATH", PATH_DEFAULT)]));
    }

    fn variable(name: &str, value: &str) -> EnvVar {
        EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None }
    }

    fn sourced(name: &str, source: EnvVarSource) -> EnvVar {
        EnvVar { name: name.to_owned(), value: None, value_from: Some(source) }
    }

    fn pod() -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = "p".to_owned();
        pod.metadata.uid = Some(Uid::from("u-1"));
        pod.metadata.labels.insert("app".to_owned(), "train".to_owned());
        pod.spec.node_name = Some("node-0".to_owned());
        pod
    }

    fn env(container: &Container, references: &References) -> Result<ContainerEnv, StartFailure> {
        let inherited = map(&[("PATH", "/bin")]);
        let given = Given {
            inherited: &inherited,
            home: "/home/p".to_owned(),
            temporary: "/tmp/p".to_owned(),
            hostname: "p".to_owned(),
            visible_devices: Some("0,1".to_owned()),
            pod_ip: "10.0.0.4".to_owned(),
            host_ip: "127.0.0.1".to_owned(),
        };
        container_env(&pod(), container, &given, references)
    }

    #[test]
    fn sources_are_resolved() {
        let mut references = References::default();
        references
            .config_maps
            .insert("settings".to_owned(), BTreeMap::from([("LR".to_owned(), b"0.1".to_vec())]));
        references
            .secrets
            .insert("token".to_owned(), BTreeMap::from([("key".to_owned(), b"s3cret".to_vec())]));
        let key = |name: &str, key: &str, optional| KeySelector {
            name: name.to_owned(),
            key: key.to_owned(),
            optional,
        };
        let field = |path: &str| EnvVarSource {
            field_ref: Some(FieldSelector { field_path: path.to_owned() }),
            ..EnvVarSource::default()
        };
        let mut cpu = EnvVarSource::default();
        cpu.other.insert("resourceFieldRef".to_owned(), json!({"resource": "limits.cpu"}));
        let mut container = Container {
            env_from: vec![EnvFromSource {
                prefix: Some("CFG_".to_owned()),
                config_map_ref: Some(LocalRef { name: "settings".to_owned(), optional: None }),
                secret_ref: None,
            }],
            env: vec![
                variable("FIRST", "1"),
                variable("SECOND", "$(FIRST)-$(CFG_LR)-$(LATER)"),
                variable("LATER", "x"),
                variable("CUDA_VISIBLE_DEVICES", "7"),
                sourced(
                    "TOKEN",
                    EnvVarSource {
                        secret_key_ref: Some(key("token", "key", None)),
                        ..EnvVarSource::default()
                    },
                ),
                sourced(
                    "MAYBE",
                    EnvVarSource {
                        config_map_key_ref: Some(key("none", "k", Some(true))),
                        ..EnvVarSource::default()
                    },
                ),
                sourced("NAME", field("metadata.name")),
                sourced("APP", field("metadata.labels['app']")),
                sourced("IP", field("status.podIP")),
                sourced("CPUS", cpu),
            ],
            ..Container::default()
        };
        container.resources.limits.insert("cpu".to_owned(), "1500m".parse().unwrap());
        let made = env(&container, &references).unwrap();
        for (name, expected) in [
            ("PATH", Some("/bin")),
            ("HOME", Some("/home/p")),
            ("CFG_LR", Some("0.1")),
            ("SECOND", Some("1-0.1-$(LATER)")),
            ("TOKEN", Some("s3cret")),
            ("MAYBE", None),
            ("NAME", Some("p")),
            ("APP", Some("train")),
            ("IP", Some("10.0.0.4")),
            ("CPUS", Some("2")),
            ("CUDA_VISIBLE_DEVICES", Some("0,1")),
            (POD_UID_VARIABLE, Some("u-1")),
        ] {
            assert_eq!(made.env.get(name).map(String::as_str), expected, "{name}");
        }
        assert!(made.own.contains(&"CFG_LR".to_owned()) && !made.own.contains(&"PATH".to_owned()));
    }

    #[test]
    fn what_is_missing_is_named() {
        let missing = KeySelector { name: "token".to_owned(), key: "gone".to_owned(), optional: None };
        let sources = [
            (
                EnvVarSource { secret_key_ref: Some(missing.clone()), ..EnvVarSource::default() },
                "Secret \"token\" does not exist",
            ),
            (
                EnvVarSource { config_map_key_ref: Some(missing), ..EnvVarSource::default() },
                "ConfigMap \"token\" has no key \"gone\"",
            ),
            (
                EnvVarSource {
                    field_ref: Some(FieldSelector { field_path: "spec.x".to_owned() }),
                    ..EnvVarSource::default()
                },
                "\"spec.x\" is not a field",
            ),
            (EnvVarSource::default(), "source that is not known"),
        ];
        let mut references = References::default();
        references.config_maps.insert("token".to_owned(), BTreeMap::new());
        for (source, expected) in sources {
            let container = Container { env: vec![sourced("X", source)], ..Container::default() };
            let failure = env(&container, &references).unwrap_err();
            assert!(failure.message.contains(expected), "{failure}");
            assert_eq!(failure.reason, "CreateContainerConfigError");
        }
    }
}
