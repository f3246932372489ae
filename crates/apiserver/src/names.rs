//! Names of objects (RFC 1123), as Kubernetes demands them.

use crate::error::invalid;
use crate::registry::Kind;
use regatta_kit::ApiError;

/// Longest name.
pub(crate) const NAME_CHARS_MAX: usize = 253;
/// Longest name of a namespace, which becomes a label of host names.
const LABEL_CHARS_MAX: usize = 63;

/// Checks a name.
pub(crate) fn check(kind: &Kind, name: &str) -> Result<(), ApiError> {
    let host_part = kind.resource.kind == "Namespace";
    let (longest, form) = if host_part { (LABEL_CHARS_MAX, "label") } else { (NAME_CHARS_MAX, "subdomain") };
    if is_subdomain(name) && name.len() <= longest && !(host_part && name.contains('.')) {
        return Ok(());
    }
    let characters = if host_part { "'-'" } else { "'-' or '.'" };
    let problem = format!(
        "metadata.name: Invalid value: {name:?}: a lowercase RFC 1123 {form} must consist of lower case alphanumeric characters, {characters}, must start and end with an alphanumeric character, and have at most {longest} characters"
    );
    Err(invalid(&kind.resource, name, problem))
}

fn is_subdomain(name: &str) -> bool {
    let label = |label: &str| {
        let inner = label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        !label.is_empty() && inner && !label.starts_with('-') && !label.ends_with('-')
    };
    !name.is_empty() && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, expected) in [
            ("a", true),
            ("a-1.b", true),
            ("", false),
            ("A", false),
            ("-a", false),
            ("a-", false),
            ("a..b", false),
            ("a_b", false),
            ("ä", false),
        ] {
            assert_eq!(is_subdomain(name), expected, "{name}");
        }
    }
}
