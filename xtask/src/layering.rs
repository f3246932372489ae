//! Which crate may depend on which: the design's table, held by a test. An arrow that is not here is a decision to be
//! made, not a line to be added: say in docs/ARCHITECTURE.md why.

use crate::metadata::Edge;
use std::collections::BTreeSet;

/// Crate, what it may depend on, and why it may not depend on more.
const ALLOWED: &[(&str, &[&str], &str)] = &[
    ("types", &[], "the vocabulary knows nobody"),
    ("planner", &["types"], "decisions are functions over values"),
    ("lifecycle", &["types"], "decisions are functions over values"),
    ("store", &["types"], "storage knows neither HTTP nor what the objects mean"),
    ("kit", &["types"], "controllers see one door to a cluster, not what is behind it"),
    (
        "apiserver",
        &["store", "kit", "types"],
        "it serves objects; it implements kit's Cluster over the store",
    ),
    ("agent", &["types"], "it runs in pods, where there is neither a cluster nor a queue"),
    ("operator", &["planner", "lifecycle", "kit", "types"], "it must not know whether the cluster is real"),
    ("node", &["agent", "kit", "types"], "it runs what is bound to it and never plans"),
    ("cli", &["types"], "it speaks the API, as kubectl does"),
    (
        "server",
        &["types", "planner", "lifecycle", "store", "kit", "apiserver", "agent", "operator", "node", "cli"],
        "the composition knows all",
    ),
    ("regatta", &["server", "agent", "cli", "types"], "the binary only chooses an entry point"),
    ("testkit", &["types"], "fixtures are used by all tests, so they must depend on little"),
    ("xtask", &["cli", "types", "testkit"], "the CLI reference is generated from the CLI"),
];

/// A sentence for each arrow that the table does not have.
pub(crate) fn check(edges: &BTreeSet<Edge>) -> Vec<String> {
    let problem = |edge: &Edge| match ALLOWED.iter().find(|(name, ..)| *name == edge.from) {
        None => Some(format!(
            "crate {} is not in the table of xtask/src/layering.rs; add what it may depend on",
            edge.from
        )),
        Some((_, allowed, _)) if allowed.contains(&edge.to.as_str()) => None,
        Some((_, allowed, reason)) => Some(format!(
            "crate {} depends on {}, but may depend only on [{}]: {reason}",
            edge.from,
            edge.to,
            allowed.join(", ")
        )),
    };
    edges.iter().filter_map(problem).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_that_the_table_lacks_are_told() {
        let check = |from: &str, to: &str, expected: &[&str]| {
            let edges = BTreeSet::from([Edge { from: from.to_owned(), to: to.to_owned() }]);
            assert_eq!(super::check(&edges), expected);
        };
        check("planner", "types", &[]);
        check(
            "planner",
            "kit",
            &[
                "crate planner depends on kit, but may depend only on [types]: decisions are functions over values",
            ],
        );
        check(
            "novelty",
            "types",
            &["crate novelty is not in the table of xtask/src/layering.rs; add what it may depend on"],
        );
    }

    #[test]
    fn the_table_has_no_circle() {
        // Kahn's algorithm: take away crates whose dependencies are all gone, until none is left.
        let mut left: Vec<_> = ALLOWED.iter().map(|(name, allowed, _)| (*name, allowed.to_vec())).collect();
        while !left.is_empty() {
            let free: Vec<&str> =
                left.iter().filter(|(_, allowed)| allowed.is_empty()).map(|(name, _)| *name).collect();
            assert!(!free.is_empty(), "these depend on each other: {left:?}");
            left.retain(|(name, _)| !free.contains(name));
            for (_, allowed) in &mut left {
                allowed.retain(|name| !free.contains(name));
            }
        }
    }

    #[test]
    fn this_workspace_keeps_to_the_table() {
        let edges = crate::metadata::read(&crate::root()).unwrap().edges();
        assert!(edges.len() > 10, "cargo metadata was read");
        assert_eq!(super::check(&edges), Vec::<String>::new());
    }
}
