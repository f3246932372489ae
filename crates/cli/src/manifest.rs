//! What people write (`regatta.yaml`, flags) and its translation into a Job. Pure, except for reading the file.

mod translate;

pub(crate) use translate::{Place, Runtime, absolute, to_job};

use crate::args::Run;
use crate::error::{Error, Result};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A run as a person writes it. Every field is optional except `run`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Manifest {
    /// Name of the job; made from the command when left out.
    pub name: Option<String>,
    /// Image; ignored, with a notice, where processes run without images.
    pub image: Option<String>,
    /// Number of nodes; 1 when left out.
    pub nodes: Option<Word>,
    /// GPUs on each node.
    pub gpus: Option<u32>,
    /// GPU model, or models in order of preference.
    pub gpu: Option<OneOrMany>,
    /// CPU cores on each node, such as `4` or `500m`.
    pub cpus: Option<Word>,
    /// Memory on each node, such as `8Gi`.
    pub memory: Option<Word>,
    /// Processes on each node; each is a rank of its own.
    pub procs_per_node: Option<u32>,
    /// How ranks are started: `auto`, `torchrun`, `ranks` or `none`.
    pub launcher: Option<String>,
    /// The command, read by a shell.
    pub run: Option<String>,
    /// Shell command that runs once on each node before the ranks.
    pub setup: Option<String>,
    /// Environment variables.
    pub env: BTreeMap<String, Word>,
    /// Secrets: names, whose keys become variables, or variables with `secret/key`.
    pub secrets: Option<Secrets>,
    /// What appears where: a host path, `hostpath://`, `configmap://`, `secret://`, `emptydir://` or `pvc://`.
    pub mounts: BTreeMap<String, String>,
    /// Directory in which ranks start, relative to the file.
    pub workdir: Option<String>,
    /// Queue to wait in.
    pub queue: Option<String>,
    /// Higher is served first.
    pub priority: Option<i32>,
    /// Directory of checkpoints, relative to `workdir`.
    pub checkpoint: Option<String>,
    /// When to stop by itself.
    pub limits: Limits,
    /// How many failures of the program are retried; 3 when left out.
    pub max_restarts: Option<u32>,
    /// Labels of the job.
    pub labels: BTreeMap<String, String>,
    /// The command as arguments, from the command line only.
    #[serde(skip)]
    pub(crate) argv: Vec<String>,
}

/// When a run stops by itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    /// Longest run time, such as `12h`.
    pub runtime: Option<Word>,
    /// Highest cost, such as `500 USD`.
    pub cost: Option<String>,
}

/// A number, a word, or true or false, as it is written: to YAML `1.50` and `4Gi` are different things, to people not.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Word(pub String);

impl JsonSchema for Word {
    fn schema_name() -> Cow<'static, str> {
        "Word".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["string", "number", "boolean"]})
    }
}

/// One word or a list of words.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum OneOrMany {
    /// One.
    One(String),
    /// Several, in order.
    Many(Vec<String>),
}

/// Secrets of a run.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Secrets {
    /// Names of Secrets whose keys all become variables.
    Names(Vec<String>),
    /// Variables, each from `secret/key`.
    Variables(BTreeMap<String, String>),
}

/// Names of the fields, by level.
const FIELDS: &[&str] = &[
    "name",
    "image",
    "nodes",
    "gpus",
    "gpu",
    "cpus",
    "memory",
    "procsPerNode",
    "launcher",
    "run",
    "setup",
    "env",
    "secrets",
    "mounts",
    "workdir",
    "queue",
    "priority",
    "checkpoint",
    "limits",
    "maxRestarts",
    "labels",
];
const LIMITS: &[&str] = &["runtime", "cost"];

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<Manifest> {
    let fail = |e: std::io::Error| Error::usage(format!("cannot read {}: {e}", path.display()));
    let size = std::fs::metadata(path).map_err(fail)?.len();
    if size > FILE_BYTES_MAX {
        return Err(Error::usage(format!(
            "{} has {size} bytes; a run is described in at most {FILE_BYTES_MAX}",
            path.display()
        )));
    }
    parse(&std::fs::read_to_string(path).map_err(fail)?, &path.display().to_string())
}

fn parse(text: &str, file: &str) -> Result<Manifest> {
    let bad = |e: &serde_saphyr::Error| Error::usage(format!("{file}: {}", e.without_snippet()));
    let value: serde_json::Value = serde_saphyr::from_str(text).map_err(|e| bad(&e))?;
    if !value.is_object() {
        return Err(Error::usage(format!("{file}: expected fields such as `run:` and `gpus:`")));
    }
    check_fields(&value, FIELDS, "", text, file)?;
    check_fields(&value["limits"], LIMITS, "limits.", text, file)?;
    serde_saphyr::from_str(text).map_err(|e| bad(&e))
}

fn check_fields(
    value: &serde_json::Value,
    known: &[&str],
    prefix: &str,
    text: &str,
    file: &str,
) -> Result<()> {
    let mut names = value.as_object().into_iter().flat_map(serde_json::Map::keys);
    let Some(name) = names.find(|name| !known.contains(&name.as_str())) else { return Ok(()) };
    let is_field = |line: &str| {
        let rest = line.trim_start().strip_prefix(name.as_str());
        rest.is_some_and(|rest| rest.trim_start().starts_with(':'))
    };
    let line = text.lines().position(is_field).map_or_else(String::new, |index| format!(":{}", index + 1));
    let error = Error::usage(format!("{file}{line}: unknown field {prefix}{name}"));
    Err(match nearest(name, known) {
        Some(near) => error.fix(format!("did you mean {prefix}{near}?")),
        None => error.fix(format!("the fields are: {}", known.join(", "))),
    })
}

/// The word that was probably meant.
pub(crate) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let distance = |known: &str| strsim::damerau_levenshtein(&word.to_lowercase(), &known.to_lowercase());
    let close = known.iter().map(|known| (distance(known), *known));
    close.filter(|(distance, known)| *distance <= 1 + known.len() / 4).min().map(|(_, known)| known)
}

impl Manifest {
    /// What the flags say goes over what the file says.
    pub(crate) fn overridden_by(mut self, run: &Run) -> Result<Self> {
        fn set<T: Clone>(field: &mut Option<T>, flag: Option<&T>) {
            if let Some(value) = flag {
                *field = Some(value.clone());
            }
        }
        let word = |text: &String| Word(text.clone());
        set(&mut self.name, run.name.as_ref());
        set(&mut self.image, run.image.as_ref());
        set(&mut self.nodes, run.nodes.as_ref().map(word).as_ref());
        set(&mut self.gpus, run.gpus.as_ref());
        set(&mut self.cpus, run.cpus.as_ref().map(word).as_ref());
        set(&mut self.memory, run.memory.as_ref().map(word).as_ref());
        set(&mut self.procs_per_node, run.procs_per_node.as_ref());
        set(&mut self.launcher, run.launcher.as_ref());
        set(&mut self.setup, run.setup.as_ref());
        set(&mut self.queue, run.queue.as_ref());
        set(&mut self.priority, run.priority.as_ref());
        set(&mut self.checkpoint, run.checkpoint.as_ref());
        set(&mut self.max_restarts, run.max_restarts.as_ref());
        set(&mut self.limits.runtime, run.max_runtime.as_ref().map(word).as_ref());
        set(&mut self.limits.cost, run.max_cost.as_ref());
        if !run.gpu.is_empty() {
            self.gpu = Some(OneOrMany::Many(run.gpu.clone()));
        }
        for pair in &run.env {
            let (name, value) = split(pair, "--env", "NAME=VALUE")?;
            self.env.insert(name, Word(value));
        }
        for pair in &run.mount {
            let (path, source) = split(pair, "--mount", "PATH=SOURCE")?;
            self.mounts.insert(path, source);
        }
        for pair in &run.label {
            let (name, value) = split(pair, "--label", "NAME=VALUE")?;
            self.labels.insert(name, value);
        }
        if !run.secret.is_empty() {
            match &mut self.secrets {
                Some(Secrets::Names(names)) => names.extend(run.secret.iter().cloned()),
                Some(Secrets::Variables(_)) => {
                    return Err(Error::usage(
                        "--secret adds whole Secrets, but the file maps single keys to variables; write all of them in the file",
                    ));
                }
                None => self.secrets = Some(Secrets::Names(run.secret.clone())),
            }
        }
        if !run.command.is_empty() {
            self.argv.clone_from(&run.command);
            self.run = None;
        }
        Ok(self)
    }
}

fn split(pair: &str, flag: &str, form: &str) -> Result<(String, String)> {
    let (name, value) = pair
        .split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| Error::usage(format!("{flag} {pair:?} is not of the form {form}")))?;
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read() {
        let text = "name: digits\nnodes: 2\ngpus: 2\ngpu: [h100, a100]\nrun: torchrun train.py\nenv: {A: 1.50, B: x, C: true}\nmounts: {/data: /mnt/data}\nlimits: {runtime: 12h, cost: 500 USD}\n";
        let manifest = parse(text, "regatta.yaml").unwrap();
        assert_eq!(manifest.nodes, Some(Word("2".into())));
        assert_eq!(manifest.env["A"].0, "1.50");
        assert_eq!(manifest.env["C"].0, "true");
        assert_eq!(manifest.limits.cost.as_deref(), Some("500 USD"));
    }

    #[test]
    fn unknown_fields_are_told_with_the_nearest_known_one() {
        let check = |text: &str, sentence: &str, fix: &str| {
            let error = parse(text, "regatta.yaml").unwrap_err();
            assert_eq!((error.sentence.as_str(), error.fix.as_deref()), (sentence, Some(fix)));
        };
        check("run: x\nGpus: 2\n", "regatta.yaml:2: unknown field Gpus", "did you mean gpus?");
        check(
            "run: x\nlimits:\n  runtme: 5\n",
            "regatta.yaml:3: unknown field limits.runtme",
            "did you mean limits.runtime?",
        );
        check(
            "completely: other\n",
            "regatta.yaml:1: unknown field completely",
            "the fields are: name, image, nodes, gpus, gpu, cpus, memory, procsPerNode, launcher, run, setup, env, secrets, mounts, workdir, queue, priority, checkpoint, limits, maxRestarts, labels",
        );
    }

    #[test]
    fn the_list_of_fields_is_complete() {
        let schema = serde_json::to_value(schemars::schema_for!(Manifest)).unwrap();
        let mut fields: Vec<&str> =
            schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        let mut known = FIELDS.to_vec();
        fields.sort_unstable();
        known.sort_unstable();
        assert_eq!(fields, known);
    }

    #[test]
    fn every_field_is_in_the_reference() {
        let page = include_str!("../../../docs/regatta-yaml.md");
        let missing: Vec<_> =
            FIELDS.iter().chain(LIMITS).filter(|field| !page.contains(&format!("`{field}`"))).collect();
        assert_eq!(missing, Vec::<&&str>::new());
    }

    #[test]
    fn flags_go_over_the_file() {
        let manifest = parse("run: x\nnodes: 2\nenv: {A: 1}\n", "f").unwrap();
        let run = Run {
            nodes: Some("3".into()),
            env: vec!["B=2=3".into()],
            command: vec!["y".into()],
            ..Run::default()
        };
        let manifest = manifest.overridden_by(&run).unwrap();
        assert_eq!(manifest.nodes, Some(Word("3".into())));
        assert_eq!(manifest.env.keys().collect::<Vec<_>>(), ["A", "B"]);
        assert_eq!((manifest.run, manifest.argv), (None, vec!["y".to_owned()]));
        let run = Run { env: vec!["=x".into()], ..Run::default() };
        assert!(Manifest::default().overridden_by(&run).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_file_breaks_the_reader(text in "[a-zA-Z:{}\\[\\], \n~\"'#&*!|>%-]{0,80}") {
            let _ = parse(&text, "regatta.yaml");
        }

        #[test]
        fn what_is_written_is_what_runs(word in "[ -~]{1,40}") {
            let argv = Manifest { argv: vec!["echo".to_owned(), word.clone()], ..Manifest::default() };
            let place = Place {
                runtime: Runtime::Local,
                workdir: "/".into(),
                user: String::new(),
                source: regatta_types::job::Source::default(),
                variables: BTreeMap::new(),
            };
            let job = to_job(&argv, &place).unwrap().0;
            let container = &job.spec.roles[0].template.spec.containers[0];
            // Kubernetes turns `$$` into `$`.
            proptest::prop_assert_eq!(container.command[1].replace("$$", "$"), word);
            proptest::prop_assert!(!container.command[1].replace("$$", "").contains('$'));
        }
    }
}
