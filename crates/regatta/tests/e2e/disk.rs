//! A disk that is full: writes are refused with a sentence, what was acknowledged is intact, and room helps.

use crate::{daemon, is_root, skip};
use regatta_types::job::JobPhase;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small file system in memory.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    fn mount(path: &Path, bytes: u64) -> Option<Self> {
        std::fs::create_dir_all(path).ok()?;
        let options = format!("size={bytes},mode=700");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(path).output().ok()?;
        mounted.status.success().then(|| Self { path: path.to_owned() })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, as the daemon's last files may still be open.
        let _ = Command::new("umount").arg("-l").arg(&self.path).output();
    }
}

#[test]
fn a_full_disk_refuses_writes_and_loses_nothing() {
    if !is_root() {
        return skip("a_full_disk", "needs root to mount a small file system");
    }
    let scratch = tempfile::tempdir().unwrap();
    let home = scratch.path().join("home");
    let Some(disk) = SmallDisk::mount(&home, 32 << 20) else {
        return skip("a_full_disk", "this machine lets root mount nothing");
    };
    let daemon = daemon().home(&home).start();
    daemon.regatta(["run", "--name", "before", "--", "echo", "kept"]).ok();
    fill(&disk.path.join("filler"));
    // Small writes may still fit into what the database has reserved, so go on until one is refused.
    let refused = (0..2000).map(|index| {
        let name = format!("more-{index}");
        let padding = format!("PADDING={}", "x".repeat(20_000));
        daemon
            .regatta(["run", "--detach", "--name", &name, "--nodes", "900", "--env", &padding, "--", "true"])
    });
    let (mut acknowledged, mut refusal) = (0_u32, None);
    for answer in refused {
        if answer.code == 0 {
            acknowledged += 1;
        } else {
            refusal = Some(answer);
            break;
        }
    }
    let refusal = refusal.expect("a full disk refuses at last").expect_code(3);
    assert!(refusal.stderr.contains("disk") || refusal.stderr.contains("space"), "{}", refusal.stderr);
    let check_intact = || {
        assert_eq!(daemon.api().job("before").status.phase, JobPhase::Succeeded);
        for index in 0..acknowledged {
            daemon.api().job(&format!("more-{index}"));
        }
    };
    check_intact();
    std::fs::remove_file(disk.path.join("filler")).unwrap();
    daemon.kill();
    daemon.start();
    check_intact();
    daemon.regatta(["run", "--name", "after", "--", "echo", "room"]).ok().prints(&["room"]);
    drop(daemon);
}

fn fill(path: &Path) {
    let mut file = std::fs::File::create(path).unwrap();
    let block = vec![0_u8; 1 << 16];
    // Ends with ENOSPC, which is the aim.
    while std::io::Write::write_all(&mut file, &block).is_ok() {}
}
