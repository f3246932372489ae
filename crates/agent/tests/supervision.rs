//! The agent with real processes. This program is both: the agent when its first argument is `agent`, else the tests.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "these are tests; the lints know only those of the standard harness"
)]

use libtest_mimic::{Arguments, Failed, Trial};
use regatta_agent::cgroup::CgroupSpec;
use regatta_agent::exit::{ContainerExit, PodExit};
use regatta_agent::files::{self, Durability};
use regatta_agent::launch::Launch;
use regatta_agent::namespaces::Mounts;
use regatta_agent::process;
use regatta_agent::protocol::{AgentMessage, ContainerKind};
use regatta_agent::spec::{
    Access, AgentSpec, ContainerSpec, EntryKind, MountNamespace, MountStep, Namespaces, NewEntry,
    PodIdentity, StopRequest, UserNamespace,
};
use regatta_types::evidence::ProcessEnd::{Exited, NotStarted, Signaled};
use regatta_types::job::Launcher;
use regatta_types::pod::LaunchSpec;
use regatta_types::{Rank, Uid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, WatchFlags};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if args.first().is_some_and(|verb| verb == "agent") {
        return regatta_agent::main(args[1..].to_vec());
    }
    let tests: &[(&str, fn())] = &[
        ("exit_code_and_output_are_kept", exit_code_and_output_are_kept),
        ("signal_is_kept", signal_is_kept),
        ("what_cannot_be_started_says_why", what_cannot_be_started_says_why),
        ("ranks_have_numbers_and_one_failure_ends_all", ranks_have_numbers_and_one_failure_ends_all),
        ("stop_ends_a_whole_tree", stop_ends_a_whole_tree),
        ("stop_is_heard_by_those_who_listen", stop_is_heard_by_those_who_listen),
        ("nothing_is_left_behind", nothing_is_left_behind),
        ("init_containers_come_first", init_containers_come_first),
        ("failed_init_container_ends_the_pod", failed_init_container_ends_the_pod),
        ("progress_is_reported_across_daemon_restarts", progress_is_reported_across_daemon_restarts),
        ("checkpoints_are_found", checkpoints_are_found),
        ("volumes_appear_where_they_are_mounted", volumes_appear_where_they_are_mounted),
        ("users_without_rights_have_mounts_too", users_without_rights_have_mounts_too),
        ("namespaces_are_probed", namespaces_are_probed),
        ("memory_kill_is_told_apart", memory_kill_is_told_apart),
        ("commands_run_beside_a_rank", commands_run_beside_a_rank),
        ("one_agent_for_one_pod", one_agent_for_one_pod),
        ("sidecars_end_with_the_ranks", sidecars_end_with_the_ranks),
    ];
    let trials = tests.iter().map(|(name, test)| {
        let test = *test;
        Trial::test(*name, move || {
            test();
            Ok::<(), Failed>(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

/// A pod's directory and what its agent shall do.
struct Pod {
    dir: tempfile::TempDir,
    spec: AgentSpec,
}

impl Pod {
    fn new(uid: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let spec = AgentSpec {
            pod: PodIdentity {
                namespace: "default".to_owned(),
                name: uid.to_owned(),
                uid: Uid::from(uid),
                job: None,
            },
            node: "node-0".to_owned(),
            grace_period_ms: 10_000,
            progress_socket: path("p.sock"),
            agents_socket: path("agents.sock"),
            ..AgentSpec::default()
        };
        Self { dir, spec }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn container(&self, name: &str, script: &str) -> ContainerSpec {
        let log_dir = self.path("logs").join(name);
        std::fs::create_dir_all(&log_dir).unwrap();
        let env = BTreeMap::from([
            ("PATH".to_owned(), std::env::var("PATH").unwrap()),
            (process::POD_UID_VARIABLE.to_owned(), self.spec.pod.uid.0.clone()),
            ("DIR".to_owned(), self.dir.path().to_string_lossy().into_owned()),
        ]);
        ContainerSpec {
            name: name.to_owned(),
            argv: vec!["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned()],
            env,
            working_dir: self.dir.path().to_owned(),
            log_dir,
            ..ContainerSpec::default()
        }
    }

    fn main(mut self, script: &str) -> Self {
        let container = self.container("main", script);
        self.spec.containers.push(container);
        self
    }

    fn ranks(mut self, procs: u32) -> Self {
        let facts = LaunchSpec {
            job: "job".to_owned(),
            role: "worker".to_owned(),
            procs,
            first_rank: Rank(4),
            world_size: 8,
            hosts: vec!["job-worker-0.job".to_owned()],
            checkpoint_dir: Some(self.path("ckpt").to_string_lossy().into_owned()),
            ..LaunchSpec::default()
        };
        self.spec.launch = Some(Launch {
            facts,
            launcher: Launcher::Ranks,
            master_address: "here".to_owned(),
            master_port: 29_500,
            ..Launch::default()
        });
        self
    }

    fn command(&self) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("agent").stdin(Stdio::null());
        command
    }

    fn start(&self) -> Child {
        files::write_json(self.dir.path(), files::SPEC, &self.spec, Durability::Cached).unwrap();
        self.command().arg("--dir").arg(self.dir.path()).spawn().unwrap()
    }

    fn exit(&self) -> PodExit {
        files::read_json(self.dir.path(), files::EXIT).unwrap().expect("the agent left an exit record")
    }

    fn run(&self) -> PodExit {
        let status = self.start().wait().unwrap();
        assert!(status.success(), "{status}");
        self.exit()
    }

    /// Waits until the pod has made this file: its processes say so themselves.
    fn wait_for(&self, name: &str) {
        wait_path(&self.path(name));
    }

    fn log(&self, container: &str, file: &str) -> String {
        let text = std::fs::read_to_string(self.path("logs").join(container).join(file)).unwrap();
        let lines = text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned() + "\n");
        lines.collect()
    }
}

/// Waits until a path is there, looking again whenever something comes into its directory.
fn wait_path(path: &Path) {
    let changes = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
    let directory = path.parent().unwrap();
    inotify::add_watch(&changes, directory, WatchFlags::CREATE | WatchFlags::MOVED_TO).unwrap();
    // Ends what hangs, and nothing else.
    let deadline = Timespec { tv_sec: 60, tv_nsec: 0 };
    while !path.exists() {
        let ready =
            rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&changes, PollFlags::IN)], Some(&deadline)));
        assert_eq!(ready, Ok(1), "{} never appeared", path.display());
        rustix::io::read(&changes, &mut [0_u8; 4096]).unwrap();
    }
}

fn marked(uid: &str) -> Vec<u32> {
    process::all()
        .iter()
        .filter(|stat| !stat.is_zombie() && process::is_marked(stat.pid, uid))
        .map(|stat| stat.pid)
        .collect()
}

fn only(exit: &PodExit) -> &ContainerExit {
    assert_eq!(exit.containers.len(), 1, "{exit:?}");
    &exit.containers[0]
}

fn exit_code_and_output_are_kept() {
    let pod = Pod::new("exit-code").main("echo out; echo err >&2; printf tail; exit 7");
    let exit = pod.run();
    let main = only(&exit);
    assert_eq!((main.end, main.reason.as_str(), main.kind), (Exited(7), "Error", ContainerKind::Main));
    assert!(main.started_at.unwrap() <= main.finished_at);
    assert_eq!(main.record.stderr_tail, "err\n");
    assert!(!main.record.stop_requested);
    let mut lines: Vec<String> = pod.log("main", "output.log").lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["stderr F err", "stdout F out", "stdout F tail"]);
}

fn signal_is_kept() {
    let exit = Pod::new("signal").main("kill -KILL $$").run();
    assert_eq!((only(&exit).end, only(&exit).record.oom_killed), (Signaled(9), false));
}

fn what_cannot_be_started_says_why() {
    let mut pod = Pod::new("missing").main("");
    pod.spec.containers[0].argv = vec!["no-such-command".to_owned()];
    let exit = pod.run();
    assert_eq!((only(&exit).end, only(&exit).reason.as_str()), (NotStarted(2), "ContainerCannotRun"));
    assert!(only(&exit).message.contains("\"no-such-command\" was not found"), "{exit:?}");

    let mut pod = Pod::new("denied").main("");
    std::fs::write(pod.path("plain"), "text").unwrap();
    pod.spec.containers[0].argv = vec!["./plain".to_owned()];
    let exit = pod.run();
    assert_eq!(only(&exit).end.exit_code(), 126);

    let mut pod = Pod::new("nowhere").main("true");
    pod.spec.containers[0].working_dir = "/no/such/place".into();
    let exit = pod.run();
    assert!(only(&exit).message.contains("the working directory /no/such/place does not exist"), "{exit:?}");
    assert_eq!(only(&exit).started_at, None);
}

fn ranks_have_numbers_and_one_failure_ends_all() {
    let script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT
        touch $DIR/up-$LOCAL_RANK
        if [ $LOCAL_RANK = 1 ]; then
            while [ ! -e $DIR/up-0 ] || [ ! -e $DIR/up-2 ]; do sleep 0.02; done
            echo broken >&2; exit 3
        fi
        exec sleep 600";
    let pod = Pod::new("ranks").ranks(3).main(script);
    let exit = pod.run();
    let main = only(&exit);
    let ends: Vec<_> = main.record.ranks.iter().map(|rank| (rank.rank.0, rank.end)).collect();
    assert_eq!(ends[0], (5, Exited(3)));
    assert_eq!(ends.len(), 3);
    assert!(ends[1..].iter().all(|(_, end)| *end == Signaled(15)), "{ends:?}");
    assert_eq!(main.end, Exited(3));
    assert_eq!(main.record.stderr_tail, "broken\n");
    assert!(!main.record.stop_requested, "the failure came before the stop");
    assert_eq!(pod.log("main", "rank-6.log"), "stdout F 6 2 8 3 here:29500\n");
}

/// A tree whose members ignore SIGTERM, one of which has left its session and its parent.
const STUBBORN: &str = "trap '' TERM
    (setsid sh -c 'trap \"\" TERM; touch $DIR/grandchild; sleep 600' &)
    touch $DIR/up
    while :; do sleep 600; done";

fn stop_ends_a_whole_tree() {
    let pod = Pod::new("stubborn-tree").main(STUBBORN);
    let mut agent = pod.start();
    pod.wait_for("up");
    pod.wait_for("grandchild");
    files::write_json(pod.dir.path(), files::STOP, &StopRequest { grace_period_ms: 100 }, Durability::Cached)
        .unwrap();
    process::signal(agent.id(), Signal::TERM);
    assert!(agent.wait().unwrap().success());
    let exit = pod.exit();
    assert_eq!(only(&exit).end, Signaled(9));
    assert!(only(&exit).record.stop_requested);
    assert_eq!(marked("stubborn-tree"), Vec::<u32>::new());
}

fn stop_is_heard_by_those_who_listen() {
    let pod = Pod::new("listener")
        .main("trap 'echo saving; exit 0' TERM; touch $DIR/up; while :; do sleep 0.02; done");
    let mut agent = pod.start();
    pod.wait_for("up");
    process::signal(agent.id(), Signal::TERM);
    assert!(agent.wait().unwrap().success());
    assert_eq!(only(&pod.exit()).end, Exited(0));
    assert!(only(&pod.exit()).record.stop_requested);
    // The shell may have something to say about the sleep that was ended with it.
    assert!(pod.log("main", "output.log").contains("stdout F saving\n"));
}

fn nothing_is_left_behind() {
    let pod = Pod::new("leaver").main("(setsid sleep 600 &); sleep 600 & exit 0");
    let exit = pod.run();
    assert_eq!(only(&exit).end, Exited(0));
    assert_eq!(marked("leaver"), Vec::<u32>::new());
}

fn init_containers_come_first() {
    let mut pod = Pod::new("init").main("cat $DIR/order");
    let (first, second) = (
        pod.container("first", "echo first >> $DIR/order"),
        pod.container("second", "echo second >> $DIR/order"),
    );
    pod.spec.init_containers = vec![first, second];
    let exit = pod.run();
    let kinds: Vec<_> = exit
        .containers
        .iter()
        .map(|container| (container.name.as_str(), container.kind, container.end))
        .collect();
    assert_eq!(
        kinds,
        [
            ("first", ContainerKind::Init, Exited(0)),
            ("second", ContainerKind::Init, Exited(0)),
            ("main", ContainerKind::Main, Exited(0))
        ]
    );
    assert_eq!(pod.log("main", "output.log"), "stdout F first\nstdout F second\n");
}

fn failed_init_container_ends_the_pod() {
    let mut pod = Pod::new("bad-init").main("touch $DIR/ran");
    pod.spec.init_containers =
        vec![pod.container("first", "exit 4"), pod.container("second", "touch $DIR/ran")];
    let exit = pod.run();
    assert_eq!((only(&exit).name.as_str(), only(&exit).end), ("first", Exited(4)));
    assert!(!pod.path("ran").exists());
}

fn progress_is_reported_across_daemon_restarts() {
    let script = r#"echo '::regatta:: {"type":"step","step":3,"total":9,"metrics":{"loss":0.5}}'; while [ ! -e $DIR/go ]; do sleep 0.02; done"#;
    let pod = Pod::new("progress").ranks(1).main(script);
    let listener = UnixListener::bind(pod.path("agents.sock")).unwrap();
    let mut agent = pod.start();
    let read_until = |reader: &mut BufReader<std::os::unix::net::UnixStream>,
                      wanted: &dyn Fn(&AgentMessage) -> bool| loop {
        let mut line = String::new();
        assert!(reader.read_line(&mut line).unwrap() > 0, "the agent hung up");
        let message: AgentMessage = serde_json::from_str(&line).unwrap();
        assert_eq!(message.pod_uid, Uid::from("progress"));
        if wanted(&message) {
            return message;
        }
    };
    let step = |message: &AgentMessage| message.progress.as_ref().map(|progress| progress.step);
    let mut reader = BufReader::new(listener.accept().unwrap().0);
    let message = read_until(&mut reader, &|message| step(message) == Some(3));
    assert_eq!(message.progress.unwrap().metrics["loss"], "0.5");
    assert_eq!((message.containers[0].name.as_str(), message.containers[0].ended), ("main", false));

    // The node runtime dies; another takes its place and is told everything.
    drop(reader);
    let ranks = UnixDatagram::unbound().unwrap();
    ranks.send_to(br#"{"type":"checkpoint","step":4,"path":"/c/ckpt-4.json"}"#, pod.path("p.sock")).unwrap();
    let mut reader = BufReader::new(listener.accept().unwrap().0);
    let message = read_until(&mut reader, &|message| !message.checkpoints.is_empty());
    assert_eq!((step(&message), message.checkpoints[0].step), (Some(3), 4));
    std::fs::write(pod.path("go"), "").unwrap();
    assert!(agent.wait().unwrap().success());
    assert_eq!(only(&pod.exit()).record.last_step, Some(3));
    let log = pod.path("logs/main/rank-4.log");
    assert_eq!(std::fs::read_to_string(log).unwrap(), "", "progress is no output");
}

fn checkpoints_are_found() {
    let script = r#"mkdir -p $REGATTA_CHECKPOINT_DIR && cd $REGATTA_CHECKPOINT_DIR
        printf hello > a.pt
        echo '{"step":5,"epoch":1,"files":[{"path":"a.pt","bytes":5}]}' > ckpt-5.json
        echo '{"step":6,"epoch":1,"files":[{"path":"b.pt","bytes":5}]}' > ckpt-6.json
        echo '::regatta:: {"type":"bad_checkpoint","path":"/old"}'
        exit 1"#;
    let pod = Pod::new("checkpoints").ranks(1).main(script);
    let exit = pod.run();
    let record = &only(&exit).record;
    assert_eq!(record.checkpoints.iter().map(|checkpoint| checkpoint.step).collect::<Vec<_>>(), [5]);
    assert_eq!(record.checkpoints[0].path, pod.path("ckpt/ckpt-5.json").to_string_lossy());
    assert_eq!(record.bad_checkpoints, ["/old"]);
}

/// A pod with its own file system: volumes at paths that the host lacks, and one over a file that it has.
fn with_mounts(pod: &mut Pod) {
    for dir in ["vol", "deep", "stage", "stage2", "host"] {
        std::fs::create_dir(pod.path(dir)).unwrap();
    }
    std::fs::write(pod.path("host/kept"), "kept").unwrap();
    std::fs::write(pod.path("hosts"), "10.0.0.1 somewhere\n").unwrap();
    let new = |path: &str, kind| NewEntry { path: path.into(), kind };
    let bind =
        |source: &str, target: PathBuf, access| MountStep::Bind { source: pod.path(source), target, access };
    let steps = vec![
        MountStep::Extend {
            directory: "/".into(),
            entries: vec![new("regatta-test-volume", EntryKind::Directory)],
            staging: pod.path("stage"),
        },
        MountStep::Extend {
            directory: pod.path("host"),
            entries: vec![new("new/deep", EntryKind::Directory), new("file", EntryKind::File)],
            staging: pod.path("stage2"),
        },
        bind("vol", "/regatta-test-volume".into(), Access::ReadWrite),
        bind("deep", pod.path("host/new/deep"), Access::ReadOnly),
        bind("hosts", "/etc/hosts".into(), Access::ReadOnly),
    ];
    pod.spec.containers[0].mounts = steps;
    pod.spec.namespaces = Namespaces {
        mount: MountNamespace::Own,
        hostname: Some("job-worker-0".to_owned()),
        ..Namespaces::default()
    };
}

const USE_MOUNTS: &str = "set -e
    echo data > /regatta-test-volume/out
    cat $DIR/host/kept; echo; cat /etc/hosts; uname -n
    if touch $DIR/host/new/deep/x 2>/dev/null; then echo writable; fi
    if touch /new-at-the-root 2>/dev/null; then echo root writable; fi
    touch $DIR/seen-by-the-host
    exit 5";

fn check_mounts(pod: &Pod) {
    let exit = pod.run();
    assert_eq!(only(&exit).end, Exited(5), "{exit:?}\n{}", pod.log("main", "output.log"));
    assert_eq!(
        pod.log("main", "output.log"),
        "stdout F kept\nstdout F 10.0.0.1 somewhere\nstdout F job-worker-0\n"
    );
    assert_eq!(std::fs::read_to_string(pod.path("vol/out")).unwrap(), "data\n");
    assert!(pod.path("seen-by-the-host").exists());
    assert_eq!(
        std::fs::read_dir(pod.path("host")).unwrap().count(),
        1,
        "nothing was written to the host's directory"
    );
    assert!(!Path::new("/regatta-test-volume").exists());
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn volumes_appear_where_they_are_mounted() {
    if !is_root() {
        println!("skipped: mounts without a user namespace need root");
        return;
    }
    let mut pod = Pod::new("mounts").main(USE_MOUNTS);
    with_mounts(&mut pod);
    check_mounts(&pod);
}

fn users_without_rights_have_mounts_too() {
    let allowed =
        Command::new("unshare").args(["-U", "-m", "true"]).status().is_ok_and(|status| status.success());
    if !allowed {
        println!("skipped: this machine permits no user namespaces");
        return;
    }
    let mut pod = Pod::new("user-mounts").main(USE_MOUNTS);
    with_mounts(&mut pod);
    pod.spec.namespaces.user = UserNamespace::Own;
    check_mounts(&pod);
}

fn namespaces_are_probed() {
    let status = Pod::new("probe").command().arg("probe").status().unwrap();
    let answer = Mounts::from_exit_code(status.code());
    assert_eq!(i32::from(answer.exit_code()), status.code().unwrap());
    let with_unshare =
        Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|status| status.success());
    assert_eq!(answer == Mounts::Direct, with_unshare, "{answer:?}");
}

fn memory_kill_is_told_apart() {
    let Some(group) = memory_group("regatta-agent-test") else {
        println!("skipped: no memory control group can be made here");
        return;
    };
    let oom_file = ["memory.events", "memory.oom_control"]
        .map(|name| group.join(name))
        .into_iter()
        .find(|path| path.exists());
    // Doubling a variable passes any limit soon.
    let mut pod = Pod::new("memory").main("x=0123456789abcdef; while :; do x=$x$x; done");
    pod.spec.containers[0].cgroup = CgroupSpec { directories: vec![group.clone()], oom_file };
    let exit = pod.run();
    std::fs::remove_dir(group).unwrap();
    assert_eq!((only(&exit).end, only(&exit).reason.as_str()), (Signaled(9), "OOMKilled"), "{exit:?}");
    assert!(only(&exit).record.oom_killed);
}

/// A memory control group with a small limit, in either version.
fn memory_group(name: &str) -> Option<PathBuf> {
    let candidates = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
    candidates.iter().find_map(|(root, limit)| {
        let group = Path::new(root).join(name);
        std::fs::create_dir_all(&group).ok()?;
        if std::fs::write(group.join(limit), "33554432").is_ok() {
            return Some(group);
        }
        let _ = std::fs::remove_dir(&group);
        None
    })
}

fn commands_run_beside_a_rank() {
    let mut pod = Pod::new("beside")
        .ranks(2)
        .main("touch $DIR/up-$LOCAL_RANK; while [ ! -e $DIR/go ]; do sleep 0.02; done");
    if is_root() {
        for dir in ["vol", "stage"] {
            std::fs::create_dir(pod.path(dir)).unwrap();
        }
        let entry = NewEntry { path: "regatta-test-beside".into(), kind: EntryKind::Directory };
        let target = PathBuf::from("/regatta-test-beside");
        pod.spec.namespaces.mount = MountNamespace::Own;
        pod.spec.containers[0].mounts = vec![
            MountStep::Extend { directory: "/".into(), entries: vec![entry], staging: pod.path("stage") },
            MountStep::Bind { source: pod.path("vol"), target, access: Access::ReadWrite },
        ];
    }
    let mut agent = pod.start();
    pod.wait_for("up-0");
    pod.wait_for("up-1");
    wait_path(&pod.path("ranks.json"));
    let beside = |args: &[&str]| {
        let mut command = pod.command();
        command.args(["exec", "--dir"]).arg(pod.dir.path()).args(args).output().unwrap()
    };
    let output = beside(&[
        "--rank",
        "5",
        "--",
        "sh",
        "-c",
        "echo $RANK $(pwd); ls -d /regatta-test-beside >&2; exit 9",
    ]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("5 {}\n", pod.dir.path().display()));
    assert_eq!(output.status.code(), Some(9));
    if is_root() {
        assert_eq!(String::from_utf8_lossy(&output.stderr), "/regatta-test-beside\n");
    }
    assert_eq!(beside(&["--", "no-such-command"]).status.code(), Some(127));
    let output = beside(&["--rank", "17", "--", "true"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("does not run"), "{output:?}");
    std::fs::write(pod.path("go"), "").unwrap();
    assert!(agent.wait().unwrap().success());
    assert!(!beside(&["--", "true"]).status.success(), "the ranks are gone");
}

fn one_agent_for_one_pod() {
    let pod = Pod::new("locked").main("touch $DIR/up; while [ ! -e $DIR/go ]; do sleep 0.02; done");
    let mut agent = pod.start();
    pod.wait_for("up");
    let mut second = pod.command();
    let output = second.arg("--dir").arg(pod.dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("another agent serves this pod"), "{output:?}");
    std::fs::write(pod.path("go"), "").unwrap();
    assert!(agent.wait().unwrap().success());
}

fn sidecars_end_with_the_ranks() {
    let mut pod = Pod::new("sidecar").ranks(1).main("exit 0");
    pod.spec.containers.push(pod.container("beside", "exec sleep 600"));
    let exit = pod.run();
    let ends: Vec<_> =
        exit.containers.iter().map(|container| (container.name.as_str(), container.end)).collect();
    assert_eq!(ends, [("main", Exited(0)), ("beside", Signaled(15))]);
    assert!(exit.containers[1].record.stop_requested);
}
