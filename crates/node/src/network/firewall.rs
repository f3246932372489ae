//! Address translation for job networks, by the tool that the machine has. Rules are in a table of our own.

use super::address::Range;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where programs for administrators are, in case the daemon's PATH does not say.
const SYSTEM_DIRECTORIES: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";

/// The tool and our place in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Firewall {
    tool: Tool,
    /// Name of the table or the chains.
    name: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Tool {
    Nft(PathBuf),
    Iptables(PathBuf),
}

impl Firewall {
    /// The one that this machine has.
    pub(super) fn find(tag: &str) -> Option<Self> {
        let nft = find_program("nft").map(Tool::Nft);
        let iptables = find_program("iptables");
        // Where somebody's rules for iptables forward nothing by default, only a rule among them lets jobs through.
        let drops = iptables.as_ref().is_some_and(|iptables| drops_forwarded(iptables));
        let iptables = iptables.map(Tool::Iptables);
        let tool = if drops { iptables } else { nft.or(iptables) }?;
        Some(Self { tool, name: format!("regatta_{tag}") })
    }

    #[cfg(test)]
    pub(super) fn for_tests() -> Self {
        Self { tool: Tool::Nft("/usr/sbin/nft".into()), name: "regatta_test".to_owned() }
    }

    /// The tool, for people.
    pub(super) const fn name(&self) -> &'static str {
        match self.tool {
            Tool::Nft(_) => "nft",
            Tool::Iptables(_) => "iptables",
        }
    }

    /// Lets job networks out. May be called again.
    pub(super) fn open(&self, range: Range) -> io::Result<()> {
        if std::fs::read_to_string(FORWARDING)?.trim() != "1" {
            std::fs::write(FORWARDING, "1")?;
        }
        match &self.tool {
            Tool::Nft(nft) => run(nft, &["-f", "-"], &nft_rules(&self.name, &range.text())),
            Tool::Iptables(iptables) => {
                self.clear_iptables(iptables);
                for rule in iptables_rules(&self.name, &range.text()) {
                    let args: Vec<&str> = rule.iter().map(String::as_str).collect();
                    run(iptables, &args, "")?;
                }
                Ok(())
            }
        }
    }

    /// Takes our rules away.
    pub(super) fn close(&self) {
        match &self.tool {
            Tool::Nft(nft) => {
                if let Err(error) = run(nft, &["delete", "table", "ip", &self.name], "") {
                    tracing::warn!(%error, "the firewall's rules stay");
                }
            }
            Tool::Iptables(iptables) => self.clear_iptables(iptables),
        }
    }

    /// Rules that are not there cannot be taken away, and need not be.
    fn clear_iptables(&self, iptables: &Path) {
        let name = self.name.as_str();
        for (table, chain) in [("nat", "POSTROUTING"), ("filter", "FORWARD")] {
            for args in [["-D", chain, "-j", name].as_slice(), &["-F", name], &["-X", name]] {
                let _ = run(iptables, &[&["-w", "-t", table], args].concat(), "");
            }
        }
    }
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(SYSTEM_DIRECTORIES.iter().map(PathBuf::from));
    directories.map(|directory| directory.join(name)).find(|program| program.is_file())
}

fn drops_forwarded(iptables: &Path) -> bool {
    let listed = Command::new(iptables).args(["-w", "-S", "FORWARD"]).stdin(Stdio::null()).output();
    listed.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("-P FORWARD DROP"))
}

/// The whole table at once: what was in it before is replaced.
fn nft_rules(name: &str, range: &str) -> String {
    format!(
        "table ip {name}\n\
         delete table ip {name}\n\
         table ip {name} {{\n\
         \tchain out {{\n\
         \t\ttype nat hook postrouting priority srcnat;\n\
         \t\tip saddr {range} ip daddr != {range} masquerade\n\
         \t}}\n\
         \tchain between {{\n\
         \t\ttype filter hook forward priority filter;\n\
         \t\tip saddr {range} ip daddr {range} drop\n\
         \t}}\n\
         }}\n"
    )
}

fn iptables_rules(name: &str, range: &str) -> Vec<Vec<String>> {
    let rules = [
        format!("-w -t nat -N {name}"),
        format!("-w -t nat -A {name} -s {range} ! -d {range} -j MASQUERADE"),
        format!("-w -t nat -A POSTROUTING -j {name}"),
        format!("-w -t filter -N {name}"),
        format!("-w -t filter -A {name} -s {range} -d {range} -j DROP"),
        format!("-w -t filter -A {name} -s {range} -j ACCEPT"),
        format!("-w -t filter -A {name} -d {range} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
        format!("-w -t filter -I FORWARD -j {name}"),
    ];
    rules.iter().map(|rule| rule.split(' ').map(str::to_owned).collect()).collect()
}

fn run(program: &Path, args: &[&str], input: &str) -> io::Result<()> {
    let mut command = Command::new(program);
    let mut child =
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{} {}: {}", program.display(), args.join(" "), said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_replace_themselves() {
        let rules = nft_rules("regatta_a", "10.208.0.0/12");
        assert!(
            rules.starts_with("table ip regatta_a\ndelete table ip regatta_a\ntable ip regatta_a {"),
            "{rules}"
        );
        assert!(rules.contains("ip saddr 10.208.0.0/12 ip daddr != 10.208.0.0/12 masquerade"));
        let rules = iptables_rules("regatta_a", "10.208.0.0/12");
        assert!(rules.iter().all(|rule| rule.iter().any(|word| word == "regatta_a")), "{rules:?}");
    }

    #[test]
    fn the_machine_takes_the_rules() {
        let Some(firewall) = Firewall::find("unittest").filter(|_| rustix::process::geteuid().is_root())
        else {
            println!("skipped: needs root and nft or iptables");
            return;
        };
        let range = super::super::address::choose_range(&[]).unwrap();
        firewall.open(range).unwrap();
        firewall.open(range).unwrap();
        firewall.close();
        if let Tool::Nft(nft) = &firewall.tool {
            assert!(run(nft, &["list", "table", "ip", &firewall.name], "").is_err(), "the table is gone");
        }
    }
}
