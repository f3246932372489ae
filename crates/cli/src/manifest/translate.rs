//! From a manifest to a Job. All problems are found before anything is sent.

use super::{Manifest, OneOrMany, Secrets, nearest};
use crate::text::{parse_duration_seconds, parse_money};
use regatta_types::job::{CheckpointSpec, Job, JobSpec, Launcher, Limits, Recovery, Role, Source};
use regatta_types::pod::{
    ConfigMapVolume, Container, EmptyDir, EnvFromSource, EnvVar, EnvVarSource, HostPath, KeySelector,
    LocalRef, PodTemplate, SecretVolume, Volume, VolumeMount,
};
use regatta_types::{Quantity, labels, resource};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// Where the job will run, and from where it is submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Whether it is this machine, whose paths the ranks see.
    pub(crate) runtime: Runtime,
    /// Directory in which ranks start, absolute.
    pub(crate) workdir: PathBuf,
    /// Who submits.
    pub(crate) user: String,
    /// What is known of the code.
    pub(crate) source: Source,
    /// Variables that ranks get unless the manifest sets them.
    pub(crate) variables: BTreeMap<String, String>,
}

/// What runs the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runtime {
    /// Processes of this machine.
    Local,
    /// A cluster.
    Cluster,
}

/// Says at the end of a setup that it failed, for what a failed command printed may not tell.
const SETUP_TRAP: &str =
    r#"trap 'code=$?; [ $code = 0 ] || echo "regatta: setup failed with exit code $code" >&2' EXIT"#;

/// A Job and what should be said about it, or all that is wrong.
pub(crate) fn to_job(manifest: &Manifest, place: &Place) -> Result<(Job, Vec<String>), Vec<String>> {
    let mut problems = Problems::default();
    let mut notices = Vec::new();
    let (command, command_text) = command(manifest, &mut problems);
    let checkpoint = manifest.checkpoint.as_ref().map(|path| absolute(&place.workdir, path));
    let (volumes, mounts) = volumes(manifest, place, &mut problems);
    if manifest.image.is_some() && place.runtime == Runtime::Local {
        notices.push(
            "image is ignored: on this machine ranks are processes and use what is installed".to_owned(),
        );
    }
    if place.runtime == Runtime::Cluster && manifest.image.is_none() {
        problems.add("image: a cluster needs an image to run; name one");
    }
    let mut main = Container {
        name: "main".to_owned(),
        image: manifest.image.clone(),
        command,
        env: env(manifest, place, &mut problems),
        env_from: env_from(manifest),
        working_dir: (place.runtime == Runtime::Local).then(|| place.workdir.display().to_string()),
        volume_mounts: mounts,
        ..Container::default()
    };
    main.resources.limits = amounts(manifest, &mut problems);
    let mut template = PodTemplate::default();
    if let Some(setup) = manifest.setup.as_ref().filter(|setup| !setup.trim().is_empty()) {
        let init = Container {
            name: "setup".to_owned(),
            command: vec!["/bin/sh".to_owned(), "-ec".to_owned(), literal(&format!("{SETUP_TRAP}\n{setup}"))],
            resources: regatta_types::pod::ResourceRequirements::default(),
            ..main.clone()
        };
        template.spec.init_containers.push(init);
    }
    template.spec.containers.push(main);
    template.spec.volumes = volumes;
    let role = Role {
        replicas: nodes(manifest, &mut problems),
        procs_per_node: manifest.procs_per_node,
        gpu_models: match &manifest.gpu {
            None => Vec::new(),
            Some(OneOrMany::One(model)) => vec![model.to_lowercase()],
            Some(OneOrMany::Many(models)) => models.iter().map(|model| model.to_lowercase()).collect(),
        },
        template,
        ..Role::default()
    };
    if manifest.procs_per_node == Some(0) {
        problems.add("procsPerNode: must be at least 1");
    }
    let spec = JobSpec {
        queue: manifest.queue.clone().unwrap_or_default(),
        priority: manifest.priority.unwrap_or(0),
        launcher: launcher(manifest, &mut problems),
        roles: vec![role],
        recovery: manifest.max_restarts.map_or_else(Recovery::default, |n| Recovery { max_user_restarts: n }),
        checkpoint: checkpoint.map(|path| CheckpointSpec { path: path.display().to_string() }),
        limits: limits(manifest, &mut problems),
        source: Source { command: command_text.clone(), ..place.source.clone() },
        ..JobSpec::default()
    };
    let mut job = Job {
        api_version: resource::JOBS.api_version(),
        kind: resource::JOBS.kind.to_owned(),
        spec,
        ..Job::default()
    };
    match &manifest.name {
        Some(name) => job.metadata.name = check_name(name, &mut problems),
        None => job.metadata.generate_name = Some(format!("{}-", name_from(&command_text))),
    }
    job.metadata.labels = manifest.labels.clone();
    if let Some(user) = label_value(&place.user) {
        job.metadata.labels.insert(labels::USER.to_owned(), user);
    }
    if problems.0.is_empty() { Ok((job, notices)) } else { Err(problems.0) }
}

#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    fn add(&mut self, problem: impl Into<String>) {
        self.0.push(problem.into());
    }
}

/// The command and how it reads.
fn command(manifest: &Manifest, problems: &mut Problems) -> (Vec<String>, String) {
    if !manifest.argv.is_empty() {
        return (manifest.argv.iter().map(|word| literal(word)).collect(), manifest.argv.join(" "));
    }
    let Some(run) = manifest.run.as_ref().map(|run| run.trim()).filter(|run| !run.is_empty()) else {
        problems.add("run: nothing to run; write `run: COMMAND`, or give the command after `--`");
        return (Vec::new(), String::new());
    };
    // The shell makes way for a single command, so that signals and exit codes are those of the program.
    let script = if is_single_command(run) { format!("exec {run}") } else { run.to_owned() };
    (vec!["/bin/sh".to_owned(), "-c".to_owned(), literal(&script)], run.to_owned())
}

fn is_single_command(run: &str) -> bool {
    let first = run.split_whitespace().next().unwrap_or_default();
    let words = [
        "cd", "export", "if", "for", "while", "until", "case", "set", "source", ".", "exec", "eval", "trap",
        "exit", "umask", "ulimit", "unset", "!", "time", "test", "[",
    ];
    !run.contains([';', '&', '|', '\n', '(', ')', '{', '}', '`'])
        && !first.contains('=')
        && !words.contains(&first)
}

/// Kubernetes replaces `$(NAME)` in commands and values; what people write is meant as it is.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

fn nodes(manifest: &Manifest, problems: &mut Problems) -> u32 {
    let Some(count) = &manifest.nodes else { return 1 };
    let text = &count.0;
    if text.contains("..") {
        problems.add(format!(
            "nodes: {text:?} asks for an elastic run, which is not supported yet; write one number"
        ));
        return 1;
    }
    match text.parse::<u32>() {
        Ok(nodes) if nodes > 0 => nodes,
        _ => {
            problems.add(format!("nodes: {text:?} is not a number of nodes; write 1 or more"));
            1
        }
    }
}

fn amounts(manifest: &Manifest, problems: &mut Problems) -> BTreeMap<String, Quantity> {
    let mut amounts = BTreeMap::new();
    if let Some(gpus) = manifest.gpus.filter(|gpus| *gpus > 0)
        && let Ok(quantity) = gpus.to_string().parse()
    {
        amounts.insert(labels::GPU_RESOURCE.to_owned(), quantity);
    }
    for (field, name, value) in [("cpus", "cpu", &manifest.cpus), ("memory", "memory", &manifest.memory)] {
        let Some(value) = value else { continue };
        match value.0.parse::<Quantity>() {
            Ok(quantity) => {
                amounts.insert(name.to_owned(), quantity);
            }
            Err(error) => {
                problems.add(format!("{field}: {error}; write for example `cpus: 4`, `memory: 8Gi`"));
            }
        }
    }
    amounts
}

fn env(manifest: &Manifest, place: &Place, problems: &mut Problems) -> Vec<EnvVar> {
    let secrets = match &manifest.secrets {
        Some(Secrets::Variables(variables)) => Some(variables),
        _ => None,
    };
    let set = |name: &str| {
        manifest.env.contains_key(name) || secrets.is_some_and(|secrets| secrets.contains_key(name))
    };
    let taken_along = place.variables.iter().filter(|(name, _)| !set(name));
    let plain = |(name, value): (&String, &String)| EnvVar {
        name: name.clone(),
        value: Some(literal(value)),
        value_from: None,
    };
    let mut env: Vec<EnvVar> = taken_along.map(plain).collect();
    for (name, value) in &manifest.env {
        if name.is_empty() || name.contains(|c: char| c == '=' || c.is_whitespace() || c.is_control()) {
            problems.add(format!("env: {name:?} is not the name of a variable"));
        }
        env.push(EnvVar { name: name.clone(), value: Some(literal(&value.0)), value_from: None });
    }
    if let Some(variables) = secrets {
        for (name, source) in variables {
            let Some((secret, key)) = source.split_once('/') else {
                problems.add(format!("secrets: {name}: {source:?} is not of the form secret/key"));
                continue;
            };
            let selector = KeySelector { name: secret.to_owned(), key: key.to_owned(), optional: None };
            let from = EnvVarSource { secret_key_ref: Some(selector), ..EnvVarSource::default() };
            env.push(EnvVar { name: name.clone(), value: None, value_from: Some(from) });
        }
    }
    env
}

fn env_from(manifest: &Manifest) -> Vec<EnvFromSource> {
    let Some(Secrets::Names(names)) = &manifest.secrets else { return Vec::new() };
    let one = |name: &String| EnvFromSource {
        secret_ref: Some(LocalRef { name: name.clone(), optional: None }),
        ..EnvFromSource::default()
    };
    names.iter().map(one).collect()
}

fn launcher(manifest: &Manifest, problems: &mut Problems) -> Launcher {
    match manifest.launcher.as_deref() {
        None | Some("auto") => Launcher::Auto,
        Some("torchrun") => Launcher::Torchrun,
        Some("ranks") => Launcher::Ranks,
        Some("none") => Launcher::None,
        Some(other) => {
            let near = nearest(other, &["auto", "torchrun", "ranks", "none"]);
            let hint = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
            problems.add(format!("launcher: {other:?} is not one of auto, torchrun, ranks, none{hint}"));
            Launcher::Auto
        }
    }
}

fn limits(manifest: &Manifest, problems: &mut Problems) -> Limits {
    let mut limits = Limits::default();
    if let Some(runtime) = &manifest.limits.runtime {
        limits.runtime_seconds = parse_duration_seconds(&runtime.0);
        if limits.runtime_seconds.is_none() {
            problems.add(format!(
                "limits.runtime: {:?} is not a duration; write for example 12h or 90m",
                runtime.0
            ));
        }
    }
    if let Some(cost) = &manifest.limits.cost {
        match parse_money(cost) {
            Some((micros, currency)) => {
                limits.cost_micros = Some(micros);
                limits.currency = Some(currency);
            }
            None => problems
                .add(format!("limits.cost: {cost:?} is not an amount of money; write for example 500 USD")),
        }
    }
    limits
}

fn volumes(manifest: &Manifest, place: &Place, problems: &mut Problems) -> (Vec<Volume>, Vec<VolumeMount>) {
    let mut volumes = Vec::new();
    let mut mounts = Vec::new();
    for (path, source) in &manifest.mounts {
        if !path.starts_with('/') {
            problems.add(format!("mounts: {path:?} must be an absolute path"));
            continue;
        }
        let mut volume = Volume { name: format!("mount-{}", volumes.len()), ..Volume::default() };
        let (kind, rest) = source.split_once("://").unwrap_or(("hostpath", source));
        match kind {
            "hostpath" => {
                let host = absolute(&place.workdir, rest);
                if place.runtime == Runtime::Local && host == Path::new(path) {
                    // It is there already.
                    continue;
                }
                let host_path = HostPath { path: host.display().to_string(), type_: None };
                volume.host_path = Some(host_path);
            }
            "configmap" => {
                volume.config_map =
                    Some(ConfigMapVolume { name: rest.to_owned(), ..ConfigMapVolume::default() });
            }
            "secret" => {
                volume.secret =
                    Some(SecretVolume { secret_name: rest.to_owned(), ..SecretVolume::default() });
            }
            "emptydir" => volume.empty_dir = Some(EmptyDir::default()),
            "pvc" if place.runtime == Runtime::Cluster => {
                volume.other.insert("persistentVolumeClaim".to_owned(), json!({"claimName": rest}));
            }
            "pvc" => {
                problems.add(format!("mounts: {path}: there are no volume claims on this machine; write a path of the machine instead of {source:?}"));
                continue;
            }
            other => {
                let known = ["hostpath", "configmap", "secret", "emptydir", "pvc"];
                let hint = nearest(other, &known)
                    .map_or_else(String::new, |near| format!("; did you mean {near}://?"));
                problems.add(format!(
                    "mounts: {path}: {other}:// is not one of {}{hint}",
                    known.map(|k| format!("{k}://")).join(", ")
                ));
                continue;
            }
        }
        mounts.push(VolumeMount {
            name: volume.name.clone(),
            mount_path: path.clone(),
            ..VolumeMount::default()
        });
        volumes.push(volume);
    }
    (volumes, mounts)
}

/// `path` seen from `base`, without `.` and `..`.
pub(crate) fn absolute(base: &Path, path: &str) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in base.join(path).components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            other => clean.push(other),
        }
    }
    clean
}

fn check_name(name: &str, problems: &mut Problems) -> String {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let ok = !name.is_empty()
        && name.len() <= 50
        && name.chars().all(allowed)
        && !name.starts_with('-')
        && !name.ends_with('-');
    if !ok {
        problems.add(format!("name: {name:?} must be at most 50 lower-case letters, digits and '-', with a letter or digit at both ends"));
    }
    name.to_owned()
}

/// A short name that tells what runs: the script, or else the program.
fn name_from(command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().filter(|word| !word.contains('=')).collect();
    let stem = |word: &str| {
        let base = word.rsplit('/').next().unwrap_or_default();
        base.split('.').next().unwrap_or_default().to_lowercase()
    };
    let script = words.iter().find(|word| [".py", ".sh"].iter().any(|end| word.ends_with(end)));
    let raw = script.or(words.first()).map(|word| stem(word)).unwrap_or_default();
    let clean: String =
        raw.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(20).collect();
    let clean = clean.trim_matches('-');
    if clean.is_empty() { "job".to_owned() } else { clean.to_owned() }
}

/// A text as the value of a label; none when nothing of it can be.
fn label_value(text: &str) -> Option<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let clean: String = text.chars().filter(|c| allowed(*c)).take(63).collect();
    let clean = clean.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    (!clean.is_empty()).then(|| clean.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Word;

    fn place(runtime: Runtime) -> Place {
        Place {
            runtime,
            workdir: "/home/ada/work".into(),
            user: "ada".into(),
            source: Source::default(),
            variables: BTreeMap::new(),
        }
    }

    fn manifest(run: &str) -> Manifest {
        Manifest { run: Some(run.to_owned()), ..Manifest::default() }
    }

    fn job(manifest: &Manifest) -> Job {
        to_job(manifest, &place(Runtime::Local)).unwrap().0
    }

    #[test]
    fn commands() {
        let check = |run: &str, expected: &str| {
            let job = job(&manifest(run));
            assert_eq!(
                job.spec.roles[0].template.spec.containers[0].command,
                ["/bin/sh", "-c", expected],
                "{run}"
            );
            assert_eq!(job.spec.source.command, run);
        };
        check("torchrun train.py --lr 1e-4", "exec torchrun train.py --lr 1e-4");
        check("cd src && python x.py", "cd src && python x.py");
        check("A=1 python x.py", "A=1 python x.py");
        check("echo $HOME", "exec echo $$HOME");
        check("python x.py | tee log", "python x.py | tee log");
        let argv =
            Manifest { argv: vec!["python".into(), "a b.py".into(), "$(X)".into()], ..Manifest::default() };
        assert_eq!(
            job(&argv).spec.roles[0].template.spec.containers[0].command,
            ["python", "a b.py", "$$(X)"]
        );
    }

    #[test]
    fn names() {
        let check = |run: &str, expected: &str| {
            assert_eq!(job(&manifest(run)).metadata.generate_name.as_deref(), Some(expected), "{run}");
        };
        check("torchrun --nnodes 2 src/Train_GPT.py", "train-gpt-");
        check("sleep 5", "sleep-");
        check("/usr/bin/env", "env-");
        let named = Manifest { name: Some("digits".into()), ..manifest("x") };
        assert_eq!(job(&named).metadata.name, "digits");
        assert_eq!(job(&named).metadata.labels[labels::USER], "ada");
    }

    #[test]
    fn everything_at_once() {
        let full = Manifest {
            nodes: Some(Word("2".into())),
            gpus: Some(8),
            gpu: Some(OneOrMany::One("H100".into())),
            cpus: Some(Word("4".into())),
            memory: Some(Word("8Gi".into())),
            procs_per_node: Some(8),
            setup: Some("pip install -r requirements.txt".into()),
            env: BTreeMap::from([("A".to_owned(), Word("$x".into()))]),
            secrets: Some(Secrets::Names(vec!["wandb".into()])),
            mounts: BTreeMap::from([
                ("/data".into(), "/mnt/data".into()),
                ("/same".into(), "/same".into()),
                ("/tmp/x".into(), "emptydir://".into()),
            ]),
            checkpoint: Some("ckpt".into()),
            limits: super::super::Limits { runtime: Some(Word("12h".into())), cost: Some("500 USD".into()) },
            ..manifest("torchrun train.py")
        };
        let job = job(&full);
        let role = &job.spec.roles[0];
        assert_eq!(
            (role.replicas, role.procs_per_node, role.gpu_models.as_slice()),
            (2, Some(8), &["h100".to_owned()][..])
        );
        let pod = &role.template.spec;
        assert_eq!(
            pod.containers[0].resources.limits.keys().collect::<Vec<_>>(),
            ["cpu", "memory", "nvidia.com/gpu"]
        );
        let setup = &pod.init_containers[0].command;
        assert_eq!(setup[..2], ["/bin/sh", "-ec"]);
        assert!(setup[2].ends_with("EXIT\npip install -r requirements.txt"), "{}", setup[2]);
        assert_eq!(pod.containers[0].env[0].value.as_deref(), Some("$$x"));
        assert_eq!(pod.containers[0].env_from[0].secret_ref.as_ref().unwrap().name, "wandb");
        let mounted: Vec<&str> =
            pod.containers[0].volume_mounts.iter().map(|m| m.mount_path.as_str()).collect();
        assert_eq!(mounted, ["/data", "/tmp/x"], "what is there already is not mounted again");
        assert_eq!(job.spec.checkpoint.unwrap().path, "/home/ada/work/ckpt");
        assert_eq!(
            (job.spec.limits.runtime_seconds, job.spec.limits.cost_micros),
            (Some(43_200), Some(500_000_000))
        );
        assert_eq!(pod.containers[0].working_dir.as_deref(), Some("/home/ada/work"));
    }

    #[test]
    fn problems_are_told_all_at_once() {
        let wrong = Manifest {
            name: Some("Bad Name".into()),
            nodes: Some(Word("2..8".into())),
            cpus: Some(Word("many".into())),
            launcher: Some("torchrn".into()),
            mounts: BTreeMap::from([
                ("/a".into(), "pvc://x".into()),
                ("b".into(), "/b".into()),
                ("/c".into(), "s3://x".into()),
            ]),
            limits: super::super::Limits { runtime: Some(Word("long".into())), cost: Some("5".into()) },
            ..Manifest::default()
        };
        let problems = to_job(&wrong, &place(Runtime::Local)).unwrap_err();
        let starts = [
            "run: ",
            "mounts: /a: there are no volume claims",
            "mounts: /c: s3://",
            "mounts: \"b\" must be",
            "cpus: ",
            "nodes: \"2..8\" asks for an elastic run",
            "launcher: \"torchrn\" is not one of auto, torchrun, ranks, none; did you mean torchrun?",
            "limits.runtime: ",
            "limits.cost: ",
            "name: ",
        ];
        assert_eq!(problems.len(), starts.len(), "{problems:#?}");
        for (problem, start) in problems.iter().zip(starts) {
            assert!(problem.starts_with(start), "{problem} does not start with {start}");
        }
    }

    #[test]
    fn a_cluster_wants_an_image_and_has_claims() {
        let mut manifest = manifest("x");
        manifest.mounts.insert("/ckpt".into(), "pvc://shared".into());
        assert_eq!(
            to_job(&manifest, &place(Runtime::Cluster)).unwrap_err(),
            ["image: a cluster needs an image to run; name one"]
        );
        manifest.image = Some("pytorch".into());
        let (job, notices) = to_job(&manifest, &place(Runtime::Cluster)).unwrap();
        assert_eq!(
            job.spec.roles[0].template.spec.volumes[0].other["persistentVolumeClaim"]["claimName"],
            "shared"
        );
        assert!(notices.is_empty());
        assert_eq!(to_job(&manifest, &place(Runtime::Local)).unwrap_err().len(), 1);
    }
}
