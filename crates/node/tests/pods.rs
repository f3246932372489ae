//! The node runtime with real processes. This program is several: the agent when its first argument is `agent`, a small
//! server or client for pods to run, else the tests.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "these are tests; the lints know only those of the standard harness"
)]

mod support;

use libtest_mimic::{Arguments, Failed, Trial};
use regatta_agent::exit::parse_termination_message;
use regatta_agent::process;
use regatta_node::{Gpus, NetworkMode};
use regatta_types::evidence::ProcessEnd;
use regatta_types::pod::{ContainerTerminated, Pod};
use regatta_types::streams::{ExecRequest, LogRequest, TerminalSize};
use regatta_types::{Uid, resource};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use support::{World, container, is_empty, run, script, slot, until, wait_ended, wait_path};

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match args.first().and_then(|verb| verb.to_str()) {
        Some("agent") => return regatta_agent::main(args[1..].to_vec()),
        Some("serve") => return serve(&args[1..]),
        Some("call") => return call(&args[1..]),
        _ => {}
    }
    let tests: &[(&str, fn())] = &[
        ("ends_are_told", ends_are_told),
        ("deletion_ends_the_whole_tree", deletion_ends_the_whole_tree),
        ("memory_limit_is_enforced", memory_limit_is_enforced),
        ("environment_and_volumes", environment_and_volumes),
        ("missing_reference_is_told", missing_reference_is_told),
        ("jobs_have_networks_of_their_own", jobs_have_networks_of_their_own),
        ("slots_meet_on_the_host_too", slots_meet_on_the_host_too),
        ("pods_reach_the_world", pods_reach_the_world),
        ("gpus_have_one_holder", gpus_have_one_holder),
        ("logs_are_followed_and_outlive_the_pod", logs_are_followed_and_outlive_the_pod),
        ("commands_run_beside", commands_run_beside),
        ("commands_have_terminals", commands_have_terminals),
        ("pods_outlive_the_runtime", pods_outlive_the_runtime),
        ("lost_agents_are_told", lost_agents_are_told),
        ("pods_without_objects_go", pods_without_objects_go),
        ("progress_is_reported", progress_is_reported),
        ("port_clash_is_refused_on_the_host", port_clash_is_refused_on_the_host),
        ("nodes_are_registered", nodes_are_registered),
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

/// `serve PORT FILE`: listens, makes the file, answers one caller.
fn serve(args: &[OsString]) -> ExitCode {
    let port: u16 = args[0].to_str().unwrap().parse().unwrap();
    let listener = TcpListener::bind(("0.0.0.0", port)).unwrap();
    std::fs::write(&args[1], "").unwrap();
    listener.accept().unwrap().0.write_all(b"hello\n").unwrap();
    ExitCode::SUCCESS
}

/// `call HOST PORT`: prints what the server says.
fn call(args: &[OsString]) -> ExitCode {
    let address = (args[0].to_str().unwrap(), args[1].to_str().unwrap().parse::<u16>().unwrap());
    let mut text = String::new();
    TcpStream::connect(address).unwrap().read_to_string(&mut text).unwrap();
    print!("{text}");
    ExitCode::SUCCESS
}

fn this_program() -> String {
    std::env::current_exe().unwrap().to_string_lossy().into_owned()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn terminated(pod: &Pod) -> ContainerTerminated {
    pod.status.container_statuses[0].state.terminated.clone().unwrap()
}

fn marked(uid: &Uid) -> Vec<u32> {
    let processes = process::all().into_iter().filter(|stat| !stat.is_zombie());
    processes.filter(|stat| process::is_marked(stat.pid, uid.as_str())).map(|stat| stat.pid).collect()
}

fn ends_are_told() {
    run(async {
        let world = World::new(NetworkMode::Host);
        let node = world.start().await;
        world.create(&node, 0, "well", script("echo fine"));
        world.create(&node, 1, "badly", script("echo broken >&2; exit 3"));
        world.create(&node, 0, "killed", script("kill -KILL $$$$"));
        world.create(&node, 0, "none", json!({"containers": [{"name": "main", "image": "busybox"}]}));
        world.create(
            &node,
            0,
            "missing",
            json!({"containers": [{"name": "main", "command": ["no-such-command"]}]}),
        );
        let pod = world.wait_phase("well", "Succeeded").await;
        assert_eq!(terminated(&pod).reason, "Completed");
        assert!(pod.status.start_time.is_some());
        for (name, code, signal, reason, words) in [
            ("badly", 3, None, "Error", "exited with code 3"),
            ("killed", 137, Some(9), "Error", "ended by SIGKILL"),
            ("none", 127, None, "NoCommand", "has no command"),
            ("missing", 127, None, "ContainerCannotRun", "was not found"),
        ] {
            let pod = world.wait_phase(name, "Failed").await;
            let end = terminated(&pod);
            assert_eq!((end.exit_code, end.signal, end.reason.as_str()), (code, signal, reason), "{name}");
            let message = end.message.unwrap();
            assert!(message.contains(words), "{name}: {message}");
            assert!(parse_termination_message(&message).is_some(), "{name}: {message}");
        }
        let record = parse_termination_message(
            &terminated(&world.wait_phase("badly", "Failed").await).message.unwrap(),
        )
        .unwrap();
        assert_eq!(record.stderr_tail, "broken\n");
        assert_eq!(record.ranks[0].end, ProcessEnd::Exited(3));
        world.delete("well", 30).await;
        world.wait_gone("well").await;
        node.finish(&world).await;
    });
}

const STUBBORN: &str = "trap '' TERM
    (setsid sh -c 'trap \"\" TERM; touch $HOME/grandchild; sleep 600' &)
    touch $HOME/up; while :; do sleep 600; done";

fn deletion_ends_the_whole_tree() {
    run(async {
        let world = World::new(NetworkMode::Host);
        let node = world.start().await;
        world.create(&node, 0, "stubborn", script(STUBBORN));
        let pod = world.wait_phase("stubborn", "Running").await;
        let uid = pod.metadata.uid();
        let dir = world.path("data/pods").join(uid.as_str());
        wait_path(&dir.join("home/up")).await;
        wait_path(&dir.join("home/grandchild")).await;
        assert!(marked(&uid).len() >= 3);
        world.delete("stubborn", 1).await;
        world.wait_gone("stubborn").await;
        assert_eq!(marked(&uid), Vec::<u32>::new(), "an object that is gone has no processes");
        until(&world.path("data/pods"), || !dir.exists()).await;
        node.finish(&world).await;
    });
}

fn memory_limit_is_enforced() {
    run(async {
        let world = World::new(NetworkMode::Host);
        let node = world.start().await;
        if !node.node.facts().cgroups.contains("enforced by") {
            println!("skipped: {}", node.node.facts().cgroups);
            return;
        }
        let mut spec = script("x=0123456789abcdef; while :; do x=$x$x; done");
        spec["containers"][0]["resources"] = json!({"limits": {"memory": "32Mi"}});
        world.create(&node, 0, "greedy", spec);
        let pod = world.wait_phase("greedy", "Failed").await;
        assert_eq!(terminated(&pod).reason, "OOMKilled");
        let record = parse_termination_message(&terminated(&pod).message.unwrap()).unwrap();
        assert!(record.oom_killed);
        node.finish(&world).await;
    });
}

fn environment_and_volumes() {
    run(async {
        let world = World::new(NetworkMode::Host);
        let node = world.start().await;
        if node.node.facts().mounts == "the host's" {
            println!("skipped: no mount namespaces here");
            return;
        }
        world.api.put(
            resource::CONFIG_MAPS,
            json!({"metadata": {"name": "settings", "namespace": "default"}, "data": {"lr": "0.1"}}),
        );
        world.api.put(
            resource::SECRETS,
            json!({"metadata": {"name": "token", "namespace": "default"}, "data": {"key": "czNjcmV0"}}),
        );
        std::fs::create_dir(world.path("host")).unwrap();
        let text = "set -e
            echo env $GREETING $TOKEN $(cat /regatta-test/map/lr)
            echo secret $(cat /regatta-test/secret/key) $(stat -L -c %a /regatta-test/secret/key)
            echo scratch $(cat /regatta-test/scratch/from-init)
            echo out > /regatta-test/host/out
            if (echo x > /regatta-test/map/lr) 2>/dev/null; then echo writable; fi
            case $HOME in */pods/*) echo home ok;; esac
            pwd";
        let mounts = json!([
            {"name": "map", "mountPath": "/regatta-test/map", "readOnly": true},
            {"name": "secret", "mountPath": "/regatta-test/secret"},
            {"name": "scratch", "mountPath": "/regatta-test/scratch"},
            {"name": "host", "mountPath": "/regatta-test/host"},
        ]);
        let mut spec = script(text);
        spec["containers"][0]["volumeMounts"] = mounts;
        spec["containers"][0]["workingDir"] = json!("/tmp");
        spec["containers"][0]["env"] = json!([
            {"name": "NAME", "value": "world"},
            {"name": "GREETING", "value": "hello-$(NAME)"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "key"}}},
        ]);
        let mut init = container("init", "echo made > /regatta-test/scratch/from-init");
        init["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/regatta-test/scratch"}]);
        spec["initContainers"] = json!([init]);
        spec["volumes"] = json!([
            {"name": "map", "configMap": {"name": "settings"}},
            {"name": "secret", "secret": {"secretName": "token"}},
            {"name": "scratch", "emptyDir": {}},
            {"name": "host", "hostPath": {"path": world.path("host"), "type": "Directory"}},
        ]);
        world.create(&node, 0, "full", spec);
        let pod = world.wait("full", Pod::is_finished).await;
        let log = node.log("full", None, LogRequest::default()).await;
        assert_eq!(
            log, "env hello-world s3cret 0.1\nsecret s3cret 600\nscratch made\nhome ok\n/tmp\n",
            "{:?}",
            pod.status
        );
        assert_eq!(pod.status.phase, "Succeeded");
        assert_eq!(std::fs::read_to_string(world.path("host/out")).unwrap(), "out\n");
        assert!(!std::path::Path::new("/regatta-test").exists(), "nothing was made on the host");
        world.delete("full", 0).await;
        node.finish(&world).await;
    });
}

fn missing_reference_is_told() {
    run(async {
        let world = World::new(NetworkMode::Host);
        let node = world.start().await;
        let mut spec = script("true");
        spec["containers"][0]["envFrom"] = json!([{"secretRef": {"name": "gone"}}]);
        world.create(&node, 0, "lacking", spec);
        let pod = world.wait_phase("lacking", "Failed").await;
        assert_eq!(pod.status.reason.as_deref(), Some("CreateContainerConfigError"));
        assert!(pod.status.message.unwrap().contains("Secret \"gone\" does not exist"));
        node.finish(&world).await;
    });
}

/// Two jobs of two slots, all of which listen on or call the port that torchrun would use.
async fn two_jobs(world: &World, node: &support::Running) -> Vec<Pod> {
    let program = this_program();
    for job in ["one", "two"] {
        let serve = format!("exec {program} serve $MASTER_PORT {}/up-{job}", world.dir.path().display());
        // Nobody is called before both jobs listen: they hold their ports at the same time.
        let call = format!(
            "while [ ! -e {dir}/up-one ] || [ ! -e {dir}/up-two ]; do sleep 0.02; done
             exec {program} call $MASTER_ADDR $MASTER_PORT",
            dir = world.dir.path().display()
        );
        let host = |slot: u32| json!({"hostname": format!("{job}-worker-{slot}"), "subdomain": job, "restartPolicy": "Never"});
        for (index, text) in [(0, serve), (1, call)] {
            let mut spec = script(&text);
            support_merge(&mut spec, &host(index));
            world.create_with(node, index as usize, &slot(job, index, 2, 1), spec);
        }
    }
    let mut pods = Vec::new();
    for name in ["one-worker-1-1", "two-worker-1-1"] {
        let pod = world.wait(name, Pod::is_finished).await;
        let log = node.log(name, None, LogRequest::default()).await;
        assert_eq!(
            (pod.status.phase.as_str(), log.as_str()),
            ("Succeeded", "hello\n"),
            "{name}: {:?}",
            pod.status
        );
        pods.push(pod);
    }
    pods
}

fn support_merge(target: &mut Value, fields: &Value) {
    for (name, value) in fields.as_object().unwrap() {
        target[name] = value.clone();
    }
}

fn jobs_have_networks_of_their_own() {
    run(async {
        if !is_root() {
            println!("skipped: networks of their own need root");
            return;
        }
        let world = World::new(NetworkMode::Isolated);
        let node = world.start().await;
        let pods = two_jobs(&world, &node).await;
        assert_ne!(pods[0].status.pod_ip, pods[1].status.pod_ip);
        assert_ne!(pods[0].status.pod_ip.as_deref(), Some("127.0.0.1"));
        // Names resolve in full and in short, and a slot knows its own.
        let text = "getent hosts names-worker-1.names; getent hosts names-worker-0; uname -n; echo $MASTER_ADDR $MASTER_PORT";
        let mut spec = script(text);
        spec["hostname"] = json!("names-worker-0");
        world.create_with(&node, 0, &slot("names", 0, 2, 1), spec);
        let pod = world.wait_phase("names-worker-0-1", "Succeeded").await;
        let log = node.log("names-worker-0-1", None, LogRequest::default()).await;
        let lines: Vec<&str> = log.lines().collect();
        assert!(lines[0].ends_with("names-worker-1.names names-worker-1"), "{log}");
        assert!(lines[1].starts_with(&pod.status.pod_ip.unwrap()), "{log}");
        assert_eq!(lines[2..], ["names-worker-0", "names-worker-0.names 29500"]);
        for name in
            ["one-worker-0-1", "one-worker-1-1", "two-worker-0-1", "two-worker-1-1", "names-worker-0-1"]
        {
            world.delete(name, 0).await;
        }
        let networks = world.path("data/net");
        until(&networks, || is_empty(&networks)).await;
        node.finish(&world).await;
    });
}

fn slots_meet_on_the_host_too() {
    run(async {
        let world = World::new(NetworkMode::Host);
        let node = world.start().await;
        two_jobs(&world, &node).await;
        node.finish(&world).await;
    });
}

fn pods_reach_the_world() {
    run(async {
        if !is_root() {
            println!("skipped: networks of their own need root");
            return;
        }
        let world = World::new(NetworkMode::Isolated);
        let node = world.start().await;
        if !node.node.facts().network.contains("with a way out") {
            println!("skipped: neither nft nor iptables is installed");
            return;
        }
        // An address of this machine that is not its loopback: reached through the way out.
        let Some(address) = host_address() else {
            println!("skipped: this machine has no address but its loopback");
            return;
        };
        let listener = TcpListener::bind((address.as_str(), 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || listener.accept().unwrap().0.write_all(b"world\n").unwrap());
        world.create(&node, 0, "caller", script(&format!("exec {} call {address} {port}", this_program())));
        let pod = world.wait("caller", Pod::is_finished).await;
        assert_eq!(node.log("caller", None, LogRequest::default()).await, "world\n", "{:?}", pod.status);
        server.join().unwrap();
        world.delete("caller", 0).await;
        world.wait_gone("caller").await;
        node.finish(&world).await;
    });
}

fn host_address() -> Option<String> {
    // No packet is sent: the kernel only chooses the source.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.200:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback()).then(|| address.to_string())
}

fn gpus_have_one_holder() {
    run(async {
        let mut world = World::new(NetworkMode::Host);
        world.gpus = Gpus::Simulated(2);
        let node = world.start().await;
        let text = "echo devices=$CUDA_VISIBLE_DEVICES; while [ ! -e $DIR/go-$NAME ]; do sleep 0.02; done";
        let spec = |name: &str, gpus: u32| {
            let mut spec = script(text);
            spec["containers"][0]["env"] =
                json!([{"name": "NAME", "value": name}, {"name": "DIR", "value": world.dir.path()}]);
            spec["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": gpus.to_string()}});
            spec
        };
        world.create(&node, 0, "a", spec("a", 1));
        world.wait_phase("a", "Running").await;
        world.create(&node, 0, "b", spec("b", 1));
        let b = world
            .wait("b", |pod| {
                pod.status.phase == "Running"
                    && pod.metadata.annotations.contains_key("regatta.dev/gpu-devices")
            })
            .await;
        assert_eq!(b.metadata.annotations["regatta.dev/gpu-devices"], "1");
        world.create(&node, 0, "none", spec("none", 0));
        world.create(&node, 0, "c", spec("c", 2));
        let c = world.wait("c", |pod| !pod.status.container_statuses.is_empty()).await;
        let waiting = c.status.container_statuses[0].state.waiting.as_ref().unwrap();
        assert_eq!(waiting.reason, "InsufficientGPUs");
        for name in ["a", "b", "none", "c"] {
            std::fs::write(world.path(&format!("go-{name}")), "").unwrap();
        }
        for (name, expected) in [("a", "0"), ("b", "1"), ("none", ""), ("c", "0,1")] {
            world.wait_phase(name, "Succeeded").await;
            assert_eq!(
                node.log(name, None, LogRequest::default()).await,
                format!("devices={expected}\n"),
                "{name}"
            );
        }
        node.finish(&world).await;
    });
}

fn logs_are_followed_and_outlive_the_pod() {
    run(async {
        let world = World::new(NetworkMode::Host);
        let node = world.start().await;
        let text = format!(
            "echo first; while [ ! -e {dir}/go ]; do sleep 0.02; done; echo second >&2; printf third",
            dir = world.dir.path().display()
        );
        world.create(&node, 0, "talker", script(&text));
        let pod = world.wait_phase("talker", "Running").await;
        let follow = LogRequest { follow: true, ..LogRequest::default() };
        let mut stream = node.node.logs("default", "talker", None, follow).await.unwrap();
        use futures::StreamExt;
        let first = stream.next().await.unwrap().unwrap();
        assert_eq!(&first[..], b"first\n");
        std::fs::write(world.path("go"), "").unwrap();
        let mut rest = Vec::new();
        while let Some(chunk) = stream.next().await {
            rest.extend_from_slice(&chunk.unwrap());
        }
        assert_eq!(String::from_utf8(rest).unwrap(), "second\nthird\n", "the stream ends with the pod");
        let tail = LogRequest { tail_lines: Some(1), ..LogRequest::default() };
        world.wait_phase("talker", "Succeeded").await;
        assert_eq!(node.log("talker", None, tail.clone()).await, "third\n");
        world.delete("talker", 0).await;
        world.wait_gone("talker").await;
        assert_eq!(node.log("talker", Some(pod.metadata.uid()), tail).await, "third\n");
        let error = node.node.logs("default", "nobody", None, LogRequest::default()).await.err().unwrap();
        assert!(error.is_not_found(), "{error}");
        node.finish(&world).await;
    });
}

async fn collect(receiver: Option<tokio::sync::mpsc::Receiver<bytes::Bytes>>) -> String {
    let mut text = Vec::new();
    if let Some(mut receiver) = receiver {
        while let Some(chunk) = receiver.recv().await {
            text.extend_from_slice(&chunk);
        }
    }
    String::from_utf8(text).unwrap()
}

const IDLE: &str = "touch $HOME/up; while :; do sleep 600; done";

fn commands_run_beside() {
    run(async {
        let world = World::new(NetworkMode::Host);
        let node = world.start().await;
        let mut spec = script(IDLE);
        spec["containers"][0]["env"] = json!([{"name": "FACT", "value": "42"}]);
        world.create(&node, 0, "host", spec);
        let pod = world.wait_phase("host", "Running").await;
        let request = |command: &[&str]| ExecRequest {
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            stdin: true,
            stdout: true,
            stderr: true,
            ..ExecRequest::default()
        };
        let process = node
            .node
            .exec("default", "host", request(&["sh", "-c", "cat; echo $FACT; echo err >&2; exit 6"]))
            .await
            .unwrap();
        let stdin = process.stdin.unwrap();
        stdin.send("typed\n".into()).await.unwrap();
        drop(stdin);
        assert_eq!(collect(process.stdout).await, "typed\n42\n");
        assert_eq!(collect(process.stderr).await, "err\n");
        assert_eq!(process.exit.await.unwrap(), 6);

        // Who hangs up ends the command.
        let process = node
            .node
            .exec("default", "host", request(&["sh", "-c", "echo $$; exec sleep 600"]))
            .await
            .unwrap();
        let mut stdout = process.stdout.unwrap();
        let pid: u32 =
            String::from_utf8(stdout.recv().await.unwrap().to_vec()).unwrap().trim().parse().unwrap();
        drop(process.exit);
        wait_ended(pid).await;

        let wrong = ExecRequest { container: Some("other".to_owned()), ..request(&["true"]) };
        let error = node.node.exec("default", "host", wrong).await.unwrap_err();
        assert!(error.to_string().contains("it has main"), "{error}");
        world.delete("host", 1).await;
        world.wait_gone("host").await;
        let error = node.node.exec("default", "host", request(&["true"])).await.unwrap_err();
        assert!(error.is_not_found() || error.to_string().contains("does not run"), "{error}");
        assert_eq!(marked(&pod.metadata.uid()), Vec::<u32>::new());
        node.finish(&world).await;
    });
}

fn commands_have_terminals() {
    run(async {
        let world = World::new(NetworkMode::Host);
        let node = world.start().await;
        world.create(&node, 0, "host", script(IDLE));
        world.wait_phase("host", "Running").await;
        let text = "tty >/dev/null && echo terminal; read line; stty size; echo got $line; exit 3";
        let request = ExecRequest {
            command: ["sh", "-c", text].map(str::to_owned).to_vec(),
            stdin: true,
            stdout: true,
            tty: true,
            ..ExecRequest::default()
        };
        let process = node.node.exec("default", "host", request).await.unwrap();
        process.resize.as_ref().unwrap().send(TerminalSize { columns: 132, rows: 43 }).await.unwrap();
        let mut stdout = process.stdout.unwrap();
        let first = stdout.recv().await.unwrap();
        assert!(first.starts_with(b"terminal"), "{first:?}");
        process.stdin.as_ref().unwrap().send("word\n".into()).await.unwrap();
        let rest = collect(Some(stdout)).await;
        assert!(rest.contains("43 132") && rest.contains("got word"), "{rest}");
        assert_eq!(process.exit.await.unwrap(), 3);
        world.delete("host", 0).await;
        world.wait_gone("host").await;
        node.finish(&world).await;
    });
}

fn pods_outlive_the_runtime() {
    run(async {
        let world = World::new(if is_root() { NetworkMode::Auto } else { NetworkMode::Host });
        let node = world.start().await;
        let wait = |name: &str, code: u32| {
            let text = format!(
                "while [ ! -e {}/go-{name} ]; do sleep 0.02; done; exit {code}",
                world.dir.path().display()
            );
            let mut spec = script(&text);
            spec["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": "1"}});
            spec
        };
        world.create(&node, 0, "meanwhile", wait("meanwhile", 5));
        world.create(&node, 0, "later", wait("later", 6));
        world.create(&node, 0, "deleted", wait("deleted", 7));
        for name in ["meanwhile", "later", "deleted"] {
            world.wait_phase(name, "Running").await;
        }
        let agent_gone = {
            let uid = world.wait_phase("meanwhile", "Running").await.metadata.uid();
            world.path("data/pods").join(uid.as_str()).join("exit.json")
        };
        node.stop().await;
        // One ends while nobody looks, one is deleted while nobody looks.
        std::fs::write(world.path("go-meanwhile"), "").unwrap();
        wait_path(&agent_gone).await;
        world.delete("deleted", 1).await;

        let node = world.start().await;
        assert_eq!(terminated(&world.wait_phase("meanwhile", "Failed").await).exit_code, 5);
        world.wait_gone("deleted").await;
        // The devices of what still runs are still taken.
        let mut spec = script("echo devices=$CUDA_VISIBLE_DEVICES");
        spec["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": "3"}});
        world.create(&node, 0, "new", spec);
        world.wait_phase("new", "Succeeded").await;
        assert_eq!(node.log("new", None, LogRequest::default()).await.matches(',').count(), 2);
        std::fs::write(world.path("go-later"), "").unwrap();
        assert_eq!(terminated(&world.wait_phase("later", "Failed").await).exit_code, 6);
        node.finish(&world).await;
    });
}

fn agent_of(world: &World, uid: &Uid) -> u32 {
    let text = std::fs::read_to_string(world.path("data/pods").join(uid.as_str()).join("agent.pid")).unwrap();
    let identity: process::ProcessIdentity = serde_json::from_str(&text).unwrap();
    identity.pid
}

fn lost_agents_are_told() {
    run(async {
        let world = World::new(NetworkMode::Host);
        let node = world.start().await;
        // One agent is killed under the runtime, one while there is none, one in another boot of the machine.
        for name in ["under", "without", "before"] {
            world.create(&node, 0, name, script(STUBBORN));
        }
        let mut uids = Vec::new();
        for name in ["under", "without", "before"] {
            let uid = world.wait_phase(name, "Running").await.metadata.uid();
            wait_path(&world.path("data/pods").join(uid.as_str()).join("home/grandchild")).await;
            uids.push(uid);
        }
        process::signal(agent_of(&world, &uids[0]), Signal::KILL);
        let pod = world.wait_phase("under", "Failed").await;
        assert_eq!(pod.status.reason.as_deref(), Some("AgentLost"));
        assert_eq!(marked(&uids[0]), Vec::<u32>::new());
        node.stop().await;

        process::signal(agent_of(&world, &uids[1]), Signal::KILL);
        process::signal(agent_of(&world, &uids[2]), Signal::KILL);
        for pid in marked(&uids[2]) {
            process::signal(pid, Signal::KILL);
        }
        let identity = world.path("data/pods").join(uids[2].as_str()).join("agent.pid");
        let text = std::fs::read_to_string(&identity).unwrap();
        let boot_id = process::boot_id().unwrap();
        std::fs::write(&identity, text.replace(&boot_id, "another")).unwrap();
        let node = world.start().await;
        let pod = world.wait_phase("without", "Failed").await;
        assert_eq!(pod.status.reason.as_deref(), Some("AgentLost"));
        assert_eq!(marked(&uids[1]), Vec::<u32>::new());
        let pod = world.wait_phase("before", "Failed").await;
        assert_eq!(pod.status.reason.as_deref(), Some("NodeRebooted"));
        node.finish(&world).await;
    });
}

fn pods_without_objects_go() {
    run(async {
        let world = World::new(NetworkMode::Host);
        let node = world.start().await;
        world.create(&node, 0, "forced", script(STUBBORN));
        world.create(&node, 0, "unseen", script(STUBBORN));
        let forced = world.wait_phase("forced", "Running").await.metadata.uid();
        let unseen = world.wait_phase("unseen", "Running").await.metadata.uid();
        world.delete("forced", 0).await;
        let pods = world.path("data/pods");
        let gone = |uid: &Uid| !pods.join(uid.as_str()).exists();
        until(&pods, || gone(&forced)).await;
        assert_eq!(marked(&forced), Vec::<u32>::new());
        node.stop().await;
        world.delete("unseen", 0).await;
        assert!(!marked(&unseen).is_empty());
        let node = world.start().await;
        until(&pods, || gone(&unseen)).await;
        assert_eq!(marked(&unseen), Vec::<u32>::new());
        node.finish(&world).await;
    });
}

fn progress_is_reported() {
    run(async {
        let world = World::new(NetworkMode::Host);
        let mut node = world.start().await;
        let text = r#"echo '::regatta:: {"type":"step","step":3,"total":9}'
            echo '::regatta:: {"type":"checkpoint","step":3,"path":"/c/ckpt-3.json"}'
            echo '::regatta:: {"type":"bad_checkpoint","path":"/c/ckpt-2.json"}'
            echo rank $RANK of $WORLD_SIZE; while [ ! -e $HOME/go ]; do sleep 0.02; done"#;
        world.create_with(&node, 0, &slot("train", 1, 2, 4), script(text));
        let (mut step, mut checkpoint, mut bad) = (None, None, None);
        while step.is_none() || checkpoint.is_none() || bad.is_none() {
            let report = node.reports.recv().await.unwrap();
            assert_eq!((report.job.as_str(), report.job_uid.as_str()), ("train", "uid-of-train"));
            assert_eq!((report.namespace.as_str(), report.pod.as_str()), ("default", "train-worker-1-1"));
            step = report.progress.map(|progress| (progress.step, progress.epoch.0)).or(step);
            checkpoint = report.checkpoint.map(|checkpoint| checkpoint.step).or(checkpoint);
            bad = report.bad_checkpoint.or(bad);
        }
        assert_eq!((step, checkpoint, bad.as_deref()), (Some((3, 4)), Some(3), Some("/c/ckpt-2.json")));
        let uid = world.wait_phase("train-worker-1-1", "Running").await.metadata.uid();
        std::fs::write(world.path("data/pods").join(uid.as_str()).join("home/go"), "").unwrap();
        let pod = world.wait_phase("train-worker-1-1", "Succeeded").await;
        let record = parse_termination_message(&terminated(&pod).message.unwrap()).unwrap();
        assert_eq!((record.last_step, record.epoch.0), (Some(3), 4));
        let rank = LogRequest { rank: Some(1), ..LogRequest::default() };
        assert_eq!(node.log("train-worker-1-1", None, rank).await, "rank 1 of 2\n");
        node.finish(&world).await;
    });
}

fn port_clash_is_refused_on_the_host() {
    run(async {
        let world = World::new(NetworkMode::Host);
        let node = world.start().await;
        let mut spec = script(IDLE);
        spec["containers"][0]["ports"] = json!([{"containerPort": 8_123}]);
        let candidate = |port: u16| -> Pod {
            serde_json::from_value(json!({"spec": {"containers": [
                {"name": "main", "command": ["true"], "env": [{"name": "MASTER_PORT", "value": port.to_string()}]},
            ]}}))
            .unwrap()
        };
        assert_eq!(node.node.validate(&candidate(8_123)), Ok(()));
        world.create(&node, 0, "holder", spec);
        world.wait_phase("holder", "Running").await;
        let refusal = node.node.validate(&candidate(8_123)).unwrap_err();
        assert!(
            refusal.contains("port 8123 is in use by pod holder") && refusal.contains("$MASTER_PORT"),
            "{refusal}"
        );
        assert_eq!(node.node.validate(&candidate(8_124)), Ok(()));
        world.delete("holder", 0).await;
        world.wait_gone("holder").await;
        node.finish(&world).await;
    });
}

fn nodes_are_registered() {
    run(async {
        let world = World::new(NetworkMode::Host);
        world.api.put(
            resource::NODES,
            json!({"metadata": {"name": "old-7", "labels": {"regatta.dev/runtime": "process"}}}),
        );
        world.api.put(resource::NODES, json!({"metadata": {"name": "foreign"}}));
        let node = world.start().await;
        for name in node.node.facts().nodes {
            let object = world.api.read(resource::NODES, "", &name).unwrap();
            assert_eq!(object["status"]["capacity"]["nvidia.com/gpu"], "4");
            assert_eq!(object["metadata"]["annotations"]["regatta.dev/simulated-gpus"], "true");
            assert_eq!(object["status"]["conditions"][0]["status"], "True");
            world.api.wait_for(resource::LEASES, "kube-node-lease", &name, |lease| lease.is_some()).await;
        }
        assert!(world.api.read(resource::NODES, "", "old-7").is_none());
        assert!(world.api.read(resource::NODES, "", "foreign").is_some());
        assert!(node.node.facts().gpus.contains("simulated"));
        node.finish(&world).await;
    });
}
