//! What a URL names.

use super::query::{Plus, decode};

/// A collection, an object or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) namespace: Option<String>,
    pub(crate) plural: String,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
}

/// Takes the path of a resource apart; none for other paths.
pub(crate) fn parse(path: &str) -> Option<Target> {
    let segments: Vec<String> =
        path.trim_start_matches('/').split('/').map(|part| decode(part, Plus::IsPlus)).collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let (group, version, rest) = match segments.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return None,
    };
    if rest.is_empty() || rest.iter().any(|segment| segment.is_empty()) {
        return None;
    }
    let (namespace, rest) = match rest {
        // The subresources of a namespace itself look like kinds in it.
        ["namespaces", _, "status" | "finalize"] => (None, rest),
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some((*namespace).to_owned()), rest),
        _ => (None, rest),
    };
    let (plural, name, subresource) = match rest {
        [plural] => (*plural, None, None),
        [plural, name] => (*plural, Some(*name), None),
        [plural, name, subresource] => (*plural, Some(*name), Some(*subresource)),
        _ => return None,
    };
    Some(Target {
        group: group.to_owned(),
        version: version.to_owned(),
        namespace,
        plural: plural.to_owned(),
        name: name.map(str::to_owned),
        subresource: subresource.map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Group, namespace, plural, name, subresource.
    type Parts<'a> = (&'a str, Option<&'a str>, &'a str, Option<&'a str>, Option<&'a str>);

    #[test]
    fn paths() {
        let check = |path: &str, expected: Option<Parts<'_>>| {
            let found = parse(path);
            let found = found.as_ref().map(|t| {
                (
                    t.group.as_str(),
                    t.namespace.as_deref(),
                    t.plural.as_str(),
                    t.name.as_deref(),
                    t.subresource.as_deref(),
                )
            });
            assert_eq!(found, expected, "{path}");
        };
        check("/api/v1/pods", Some(("", None, "pods", None, None)));
        check("/api/v1/namespaces/a/pods/b/log", Some(("", Some("a"), "pods", Some("b"), Some("log"))));
        check("/api/v1/namespaces", Some(("", None, "namespaces", None, None)));
        check("/api/v1/namespaces/a", Some(("", None, "namespaces", Some("a"), None)));
        check("/api/v1/namespaces/a/status", Some(("", None, "namespaces", Some("a"), Some("status"))));
        check("/api/v1/namespaces/a/pods", Some(("", Some("a"), "pods", None, None)));
        check("/apis/regatta.dev/v1alpha1/queues/q", Some(("regatta.dev", None, "queues", Some("q"), None)));
        check(
            "/apis/regatta.dev/v1alpha1/namespaces/a/jobs/b/status",
            Some(("regatta.dev", Some("a"), "jobs", Some("b"), Some("status"))),
        );
        check("/apis/regatta.dev/v1alpha1", None);
        check("/api/v1", None);
        check("/api/v1/namespaces/a/pods/b/log/more", None);
        check("/api/v1//pods", None);
        check("/metrics", None);
    }
}
