//! Names, ports and mounts of jobs, where the machine permits networks of their own.

use crate::{Gate, daemon, skip};
use regatta_testkit::TestDaemon;

/// A daemon whose jobs have networks of their own; none where the machine does not permit them.
fn isolated(test: &str) -> Option<TestDaemon> {
    let daemon = daemon().nodes(2, 1).up(&["--network", "isolated"]).prepare();
    let up = daemon.up();
    if up.code == 0 {
        return Some(daemon);
    }
    skip(test, &format!("no networks of jobs here: {}", up.stderr.trim()));
    None
}

/// A python3 without any packages.
fn python() -> Option<std::path::PathBuf> {
    regatta_testkit::daemon::find_program("python3")
}

#[test]
fn slots_find_each_other_by_name() {
    let Some(daemon) = isolated("slots_find_each_other_by_name") else { return };
    let script = "for host in worker-0 worker-1; do getent hosts names-$host.names | sed 's/  */ /'; done; hostname; echo $REGATTA_HOSTS";
    let run = daemon.run_script(&["--name", "names", "--nodes", "2"], script).ok();
    let of = |rank: u32| -> Vec<&str> {
        let prefix = format!("[worker-{rank} r{rank}] ");
        run.stdout.lines().filter_map(|line| line.strip_prefix(prefix.as_str())).collect()
    };
    let (first, second) = (of(0), of(1));
    assert_eq!(first[..2], second[..2], "both see the same addresses: {}", run.stdout);
    assert_ne!(
        first[0].split(' ').next(),
        first[1].split(' ').next(),
        "and each has its own: {}",
        run.stdout
    );
    assert!(first[0].contains("names-worker-0.names"), "{}", run.stdout);
    assert_eq!((first[2], second[2]), ("names-worker-0", "names-worker-1"));
    assert_eq!(first[3], "names-worker-0.names,names-worker-1.names");
}

/// Rank 0 listens on the port that it is told, rank 1 calls and hangs up when the test lets it.
const CALL: &str = r#"
import os, socket, sys
rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
if rank == 0:
    server = socket.create_server(("0.0.0.0", port))
    print("listens on", port, flush=True)
    connection, _ = server.accept()
    print("heard", connection.recv(100).decode(), flush=True)
else:
    open(sys.argv[1]).read()
    call = socket.create_connection((os.environ["MASTER_ADDR"], port))
    call.send(("hello from " + os.environ["REGATTA_JOB"]).encode())
"#;

#[test]
fn two_jobs_use_the_same_port() {
    let Some(python) = python() else { return skip("two_jobs_use_the_same_port", "no python3 here") };
    let Some(daemon) = isolated("two_jobs_use_the_same_port") else { return };
    let program = daemon.write("call.py", CALL);
    let start = |name: &str| {
        let gate = Gate::new(&daemon, name);
        let mut command =
            daemon.command(["run", "--name", name, "--nodes", "2", "--env", "MASTER_PORT=29500", "--"]);
        command.arg(&python).arg(&program).arg(daemon.work().join(name));
        let mut run = regatta_testkit::Running::start(&mut command);
        run.wait_for("[worker-0 r0] listens on 29500");
        (run, gate)
    };
    // Both listen before either is called.
    let (red, red_gate) = start("red");
    let (blue, blue_gate) = start("blue");
    blue_gate.open();
    red_gate.open();
    red.finish().ok().prints(&["[worker-0 r0] heard hello from red"]);
    blue.finish().ok().prints(&["[worker-0 r0] heard hello from blue"]);
}

#[test]
fn the_hosts_network_gives_each_job_a_port_of_its_own() {
    let Some(python) = python() else { return skip("the_hosts_network", "no python3 here") };
    let daemon = daemon().nodes(2, 1).up(&["--network", "host"]).start();
    let program = daemon.write("call.py", CALL);
    let start = |name: &str| {
        let gate = Gate::new(&daemon, name);
        let mut command = daemon.command(["run", "--name", name, "--nodes", "2", "--"]);
        command.arg(&python).arg(&program).arg(daemon.work().join(name));
        let mut run = regatta_testkit::Running::start(&mut command);
        let line = run.wait_for("[worker-0 r0] listens on ");
        (run, gate, line)
    };
    let (red, red_gate, red_line) = start("red");
    let (blue, blue_gate, blue_line) = start("blue");
    assert_ne!(red_line, blue_line, "two ports");
    blue_gate.open();
    red_gate.open();
    red.finish().ok().prints(&["heard hello from red"]);
    blue.finish().ok().prints(&["heard hello from blue"]);
}

#[test]
fn a_directory_appears_where_it_is_mounted() {
    let Some(daemon) = isolated("a_directory_appears_where_it_is_mounted") else { return };
    let data = daemon.work().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("input"), "from outside\n").unwrap();
    let mount = format!("/regatta-test-data={}", data.display());
    let script = "cat /regatta-test-data/input; echo from inside > /regatta-test-data/output";
    let run = daemon.run_script(&["--mount", &mount], script).ok();
    assert_eq!(run.stdout, "from outside\n");
    assert_eq!(std::fs::read_to_string(data.join("output")).unwrap(), "from inside\n");
    assert!(!std::path::Path::new("/regatta-test-data").exists(), "only the job sees it");
}
