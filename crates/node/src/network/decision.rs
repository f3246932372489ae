//! Which kind of network pods get on this machine. Pure.

use super::firewall::Firewall;
use crate::api::NetworkMode;

/// What the machine permits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) is_root: bool,
    pub(super) can_make_namespaces: bool,
    pub(super) firewall: Option<Firewall>,
    pub(super) has_default_route: bool,
}

/// What is done about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) isolated: bool,
    pub(super) way_out: Option<Firewall>,
    pub(super) description: String,
    pub(super) notices: Vec<String>,
}

/// Decides; a sentence when what is wanted cannot be had.
pub(super) fn decide(wanted: NetworkMode, facts: &Facts) -> Result<Decision, String> {
    let host = |why: &str, notice: Option<&str>| Decision {
        isolated: false,
        way_out: None,
        description: format!("the host's ({why}): each attempt of a job gets a free port as MASTER_PORT"),
        notices: notice.map(str::to_owned).into_iter().collect(),
    };
    let isolated = |notice: Option<&str>| Decision {
        isolated: true,
        way_out: facts.firewall.clone(),
        description: match &facts.firewall {
            Some(firewall) => format!("one for each job, with a way out by {}", firewall.name()),
            None => "one for each job, without a way out".to_owned(),
        },
        notices: notice.map(str::to_owned).into_iter().collect(),
    };
    let possible = facts.is_root && facts.can_make_namespaces;
    match wanted {
        NetworkMode::Host => Ok(host("as asked for", None)),
        NetworkMode::Isolated if !facts.is_root => {
            Err("a network for each job needs root; run the daemon as root, or use --network host".to_owned())
        }
        NetworkMode::Isolated if !possible => {
            Err("this machine permits no network namespaces; use --network host".to_owned())
        }
        NetworkMode::Isolated if facts.firewall.is_none() => Ok(isolated(Some(
            "jobs cannot reach anything outside of themselves: neither nft nor iptables is installed; install nftables for a way out",
        ))),
        NetworkMode::Isolated => Ok(isolated(None)),
        NetworkMode::Auto if !facts.is_root => Ok(host("a network for each job needs root", None)),
        NetworkMode::Auto if !possible => Ok(host("this machine permits no network namespaces", None)),
        NetworkMode::Auto if facts.firewall.is_none() && facts.has_default_route => Ok(host(
            "neither nft nor iptables is installed",
            Some(
                "jobs share the host's ports: install nftables, then restart the daemon, and each job has a network of its own",
            ),
        )),
        NetworkMode::Auto => Ok(isolated(None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_machine_gets_the_best_it_permits() {
        let firewall = Firewall::for_tests();
        let facts = |is_root, has_firewall: bool, has_default_route| Facts {
            is_root,
            can_make_namespaces: is_root,
            firewall: has_firewall.then(|| firewall.clone()),
            has_default_route,
        };
        let cases = [
            (NetworkMode::Host, facts(true, true, true), Some((false, false, 0))),
            (NetworkMode::Auto, facts(true, true, true), Some((true, true, 0))),
            (NetworkMode::Auto, facts(true, false, true), Some((false, false, 1))),
            (NetworkMode::Auto, facts(true, false, false), Some((true, false, 0))),
            (NetworkMode::Auto, facts(false, true, true), Some((false, false, 0))),
            (NetworkMode::Isolated, facts(true, true, false), Some((true, true, 0))),
            (NetworkMode::Isolated, facts(true, false, true), Some((true, false, 1))),
            (NetworkMode::Isolated, facts(false, true, true), None),
        ];
        for (wanted, facts, expected) in cases {
            let decision = decide(wanted, &facts);
            let summary = decision.as_ref().ok().map(|d| (d.isolated, d.way_out.is_some(), d.notices.len()));
            assert_eq!(summary, expected, "{wanted:?} {facts:?} {decision:?}");
        }
        let locked = Facts { can_make_namespaces: false, ..facts(true, true, true) };
        assert!(!decide(NetworkMode::Auto, &locked).unwrap().isolated);
        assert!(decide(NetworkMode::Isolated, &locked).unwrap_err().contains("--network host"));
    }
}
