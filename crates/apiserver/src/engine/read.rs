//! Get and list.

use super::{Engine, key_of};
use crate::error::{bad_request, not_found};
use crate::registry::Kind;
use crate::selector::Selector;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use regatta_kit::ApiError;
use regatta_store::{Entry, Path};
use std::sync::Arc;

/// Objects that one look into the store takes at most, so that readers do not hold writers up.
const CHUNK: usize = 1000;

/// A page of a list.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) entries: Vec<Arc<Entry>>,
    /// State that a watch can start from.
    pub(crate) version: u64,
    /// Where the next page starts.
    pub(crate) next: Option<String>,
    /// How many objects follow; unknown with a selector.
    pub(crate) remaining: Option<usize>,
}

impl Engine {
    pub(crate) fn get_entry(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Arc<Entry>, ApiError> {
        self.store.get(&key_of(kind, namespace, name)).ok_or_else(|| not_found(&kind.resource, name))
    }

    /// One page. `limit` of 0 is no limit.
    pub(crate) fn list_page(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        selector: &Selector,
        limit: usize,
        start: Option<&str>,
    ) -> Result<Page, ApiError> {
        let resource = kind.store_name();
        if let (Some(name), None) = (selector.single_name(), start)
            && (namespace.is_some() || !kind.is_namespaced())
        {
            // The version first: what is read is at least that new, so a watch from there misses nothing.
            let version = self.store.version();
            let entry =
                self.store.get(&key_of(kind, namespace, name)).filter(|entry| selector.matches(entry));
            return Ok(Page { entries: entry.into_iter().collect(), version, next: None, remaining: None });
        }
        let (first, mut after) = start.map(decode_continue).transpose()?.unzip();
        let wanted = if limit == 0 { usize::MAX } else { limit };
        if limit == 0 && start.is_none() {
            // In one look, so that the list is one state.
            let listing = self.store.list(&resource, namespace, None, usize::MAX);
            let entries = listing.entries.into_iter().filter(|entry| selector.matches(entry)).collect();
            return Ok(Page { entries, version: listing.version, next: None, remaining: None });
        }
        let version = first.unwrap_or_default();
        let mut page = Page { entries: Vec::new(), version, next: None, remaining: None };
        loop {
            let listing = self.store.list(&resource, namespace, after.as_ref(), CHUNK);
            // A watch must start from the oldest state that is part of the list: that of the first page.
            page.version = if page.version == 0 { listing.version } else { page.version };
            let last = listing.entries.last().map(|entry| entry.key.path.clone());
            let mut rest = listing.entries.into_iter();
            for entry in rest.by_ref().filter(|entry| selector.matches(entry)) {
                page.entries.push(entry);
                if page.entries.len() == wanted {
                    break;
                }
            }
            let left = rest.len() + listing.remaining;
            if page.entries.len() == wanted {
                if left > 0 {
                    page.next =
                        page.entries.last().map(|entry| encode_continue(page.version, &entry.key.path));
                    page.remaining = selector.is_empty().then_some(left);
                }
                return Ok(page);
            }
            match last {
                Some(last) if listing.remaining > 0 => after = Some(last),
                _ => return Ok(page),
            }
        }
    }
}

fn encode_continue(version: u64, path: &Path) -> String {
    URL_SAFE_NO_PAD.encode(format!("{version}\0{}\0{}", path.namespace, path.name))
}

fn decode_continue(token: &str) -> Result<(u64, Path), ApiError> {
    let parts = |text: &str| -> Option<(u64, Path)> {
        let mut parts = text.splitn(3, '\0');
        let version = parts.next()?.parse().ok()?;
        Some((version, Path::new(parts.next()?, parts.next()?)))
    };
    let text = URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    text.as_deref().and_then(parts).ok_or_else(|| bad_request("the continue token is not valid"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continue_tokens_round_trip() {
        let path = Path::new("team-a", "digits");
        assert_eq!(decode_continue(&encode_continue(7, &path)).unwrap(), (7, path));
        assert!(decode_continue("%%%").is_err());
        assert!(decode_continue(&URL_SAFE_NO_PAD.encode("x\0y")).is_err());
    }
}
