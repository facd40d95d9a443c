//! Findings about the store's servers: those that the user has accepted, and those that are shown.
//!
//! A command that takes locks reports each warning once a day. The state file remembers what was reported; it may be on
//! a file system that does not answer, so it is used on a thread that is not awaited for long.

use crate::output::log;
use crate::output::printable::printable;
use crate::store::state_file::StateFile;
use leasehold::Client;
use leasehold::store::{FindingCode, RedisConfig, StoreUrl};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::timeout;

/// How long the state file may take.
const STATE_LIMIT: Duration = Duration::from_secs(3);

/// Reports findings about one store, each once.
#[derive(Debug)]
pub(crate) struct FindingReporter {
    /// The addresses of the servers; `None` for a store without servers, which has no findings.
    store: Option<String>,
    /// What this process has looked at already.
    seen: BTreeSet<FindingCode>,
}

impl FindingReporter {
    pub(crate) const fn new(store: Option<String>) -> Self {
        Self { store, seen: BTreeSet::new() }
    }

    /// Warns of what is known by now. Servers that are used later may add to it.
    pub(crate) async fn report(&mut self, client: &Client) {
        // The log shows each warning anyway, or the user wants none. Then none counts as shown.
        if log::shows_warnings_of_library() || log::is_quiet() {
            return;
        }
        let Some(store) = &self.store else { return };
        let mut found: BTreeMap<FindingCode, (Vec<String>, String)> = BTreeMap::new();
        for about in client.findings().into_iter().filter(|found| found.finding.needs_action()) {
            let code = about.finding.kind.code();
            if !self.seen.contains(&code) {
                let (nodes, _) = found.entry(code).or_insert_with(|| (Vec::new(), about.finding.to_string()));
                nodes.push(about.node);
            }
        }
        let codes: Vec<_> = found.keys().copied().collect();
        if codes.is_empty() {
            return;
        }
        self.seen.extend(&codes);
        let (store, asked) = (store.clone(), codes.clone());
        let due = with_state(move |state| state.take_due(&store, &asked)).await.unwrap_or(codes);
        for (code, (nodes, text)) in found.iter().filter(|(code, _)| due.contains(code)) {
            log::warning(&printable(&message(*code, nodes, text)));
        }
    }
}

/// The warning, which is shown once a day.
fn message(code: FindingCode, nodes: &[String], text: &str) -> String {
    let nodes = nodes.join(", ");
    let accept = if code.is_acceptable() {
        format!("; or accept it, by `leasehold doctor --accept {code}`")
    } else {
        String::new()
    };
    format!("warning: {nodes}: {text}{accept} (shown once a day)")
}

/// The name of a store among the findings: the addresses of its servers, which contain no user and no password. `None` if
/// it has no servers.
pub(crate) fn store_name(url: &StoreUrl) -> Option<String> {
    let mut addresses: Vec<_> = url.servers().iter().map(RedisConfig::address).collect();
    addresses.sort();
    (!addresses.is_empty()).then(|| addresses.join(","))
}

/// What the user has accepted of a store.
pub(crate) async fn accepted(store: Option<String>) -> Vec<FindingCode> {
    let Some(store) = store else { return Vec::new() };
    with_state(move |state| state.accepted(&store)).await.unwrap_or_default()
}

/// Uses the state file; `None` if there is none, or if it takes too long.
async fn with_state<T: Send + 'static>(use_it: impl FnOnce(&StateFile) -> T + Send + 'static) -> Option<T> {
    let used = tokio::task::spawn_blocking(move || StateFile::of_this_user().map(|state| use_it(&state)));
    timeout(STATE_LIMIT, used).await.ok()?.ok()?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_named_without_its_login() {
        let name = |url: &str| store_name(&StoreUrl::parse(url).expect("a good URL"));
        let of = |name: &str| Some(name.to_owned());
        assert_eq!(name("redis://u:hunter2@h/1?prefix=a:&accept=eviction"), of("h:6379"));
        assert_eq!(name("redlock://u:hunter2@b,a:7,c"), of("a:7,b:6379,c:6379"));
        let sentinels = name("redis+sentinel://u:hunter2@a/m?sentinel_password=hunter2").expect("servers");
        assert!(sentinels.contains('m') && !sentinels.contains("hunter2"), "{sentinels}");
        assert_eq!(name("sqlite:/f"), None);
        assert_eq!(name("memory:"), None);
    }
}
