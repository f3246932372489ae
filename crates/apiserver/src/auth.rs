//! Who is asking: bearer tokens.

use std::collections::BTreeMap;

/// Recognises clients by their bearer token.
#[derive(Clone, Default)]
pub struct Authenticator {
    users_by_token: BTreeMap<String, String>,
}

impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authenticator").field("users", &self.users_by_token.values()).finish_non_exhaustive()
    }
}

impl Authenticator {
    /// Knows nobody: every request is refused.
    pub fn new() -> Self {
        Self::default()
    }

    /// Also knows `user` by `token`.
    #[must_use]
    pub fn with_token(mut self, token: &str, user: &str) -> Self {
        self.users_by_token.insert(token.to_owned(), user.to_owned());
        self
    }

    /// The user of an `Authorization` header.
    pub fn user(&self, authorization: Option<&str>) -> Option<&str> {
        let (scheme, token) = authorization?.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let token = token.trim();
        // Every known token is compared, and each comparison looks at every byte: the time says nothing.
        let mut found = None;
        for (known, user) in &self.users_by_token {
            if same_bytes(known.as_bytes(), token.as_bytes()) {
                found = Some(user.as_str());
            }
        }
        found
    }
}

/// Equality whose time depends on the lengths only.
fn same_bytes(known: &[u8], given: &[u8]) -> bool {
    if known.len() != given.len() || known.is_empty() {
        return false;
    }
    let difference = known.iter().zip(given).fold(0_u8, |sum, (a, b)| std::hint::black_box(sum | (a ^ b)));
    difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_opens() {
        let authenticator = Authenticator::new().with_token("s3cret", "admin").with_token("other", "agent");
        for (header, expected) in [
            (Some("Bearer s3cret"), Some("admin")),
            (Some("bearer other"), Some("agent")),
            (Some("Bearer s3cre"), None),
            (Some("Bearer s3cret2"), None),
            (Some("Bearer "), None),
            (Some("Basic s3cret"), None),
            (Some("s3cret"), None),
            (None, None),
        ] {
            assert_eq!(authenticator.user(header), expected, "{header:?}");
        }
        assert_eq!(Authenticator::new().with_token("", "nobody").user(Some("Bearer ")), None);
    }
}
