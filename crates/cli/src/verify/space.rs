//! The space of a run: a random prefix on the user's servers, or a file beside the user's. Nothing of the user's is in it.

use super::nodes::Nodes;
use super::plan::store_word;
use crate::output::failure::Failure;
use crate::store::access::Access;
use crate::store::findings;
use crate::store::password::Password;
use anyhow::{Context, anyhow};
use leasehold::store::{FindingCode, RedisConfig, StoreKind, StoreUrl};
use leasehold::{Client, ClientBuilder};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long the removal may take.
const REMOVAL_LIMIT: Duration = Duration::from_secs(20);

/// How often it is looked for what a request that was on its way has written after the removal.
const ROUNDS: u32 = 20;

/// The space, and how it is reached. It may contain passwords.
pub(crate) struct Space {
    text: String,
    url: StoreUrl,
    username: Option<String>,
    password: Option<Password>,
    accepted: Vec<FindingCode>,
    /// Set on servers.
    prefix: Option<String>,
    /// Set for a file.
    file: Option<PathBuf>,
    is_default: bool,
}

impl Space {
    /// A new space in a store. Nothing is written.
    pub(crate) async fn new(access: Access) -> Result<Self, Failure> {
        let Access { mut text, mut url, password, username, prefix, is_default } = access;
        let run = format!("{:08x}", rand::random::<u32>());
        let accepted = findings::accepted(findings::store_name(&url)).await;
        let (mut space_prefix, mut file) = (None, None);
        if url.kind() == StoreKind::Sqlite {
            text = format!("{text}.verify-{run}");
            let parsed = StoreUrl::parse(&text).map_err(|error| Failure::usage(anyhow!(error)))?;
            url = parsed;
            file = text.split_once(':').map(|(_, path)| PathBuf::from(path));
        } else {
            let own = url.servers().first().map_or("", RedisConfig::key_prefix);
            let prefix = format!("{}leasehold-verify:{run}:", prefix.as_deref().unwrap_or(own));
            url = url.with_prefix(&prefix).map_err(|error| Failure::usage(anyhow!(error)))?;
            space_prefix = Some(prefix);
        }
        Ok(Self { text, url, username, password, accepted, prefix: space_prefix, file, is_default })
    }

    pub(crate) const fn kind(&self) -> StoreKind {
        self.url.kind()
    }

    /// The kind of store as a history names it.
    pub(crate) fn word(&self) -> &'static str {
        store_word(&self.url)
    }

    /// The URL as a client needs it, with its passwords, but without the prefix.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn username(&self) -> Option<&str> {
        self.username.as_deref()
    }

    pub(crate) fn prefix(&self) -> Option<&str> {
        self.prefix.as_deref()
    }

    pub(crate) fn accepted(&self) -> &[FindingCode] {
        &self.accepted
    }

    /// Whether the user has named no store.
    pub(crate) const fn is_default(&self) -> bool {
        self.is_default
    }

    /// The password at present, if it was given apart from the URL.
    pub(crate) async fn password(&self) -> Result<Option<String>, Failure> {
        let secret = match &self.password {
            None => return Ok(None),
            Some(Password::Fixed(secret)) => secret.clone(),
            Some(Password::Changing(source)) => {
                source.clone().secret().await.map_err(Failure::unavailable)?
            }
        };
        Ok(Some(secret.reveal().to_owned()))
    }

    /// A client of the coordinator's own, which does not use a relay.
    pub(crate) async fn client(&self) -> Result<ClientBuilder, Failure> {
        let mut builder = Client::builder(&self.text).accept(self.accepted.iter().copied()).statistics(false);
        if let Some(username) = &self.username {
            builder = builder.username(username);
        }
        if let Some(password) = self.password().await? {
            builder = builder.password(password);
        }
        if let Some(prefix) = &self.prefix {
            builder = builder.prefix(prefix);
        }
        Ok(builder)
    }

    /// The servers, by new connections.
    pub(crate) async fn nodes(&self) -> Result<Nodes, Failure> {
        let password = self.password().await?;
        let configured = self.url.servers().iter().cloned().map(|mut config| {
            if let Some(username) = &self.username {
                config = config.username(username);
            }
            if let Some(password) = &password {
                config = config.password(password);
            }
            // What a client refuses was refused before. Here keys are removed, whatever the server is.
            config.for_diagnosis()
        });
        Ok(Nodes::new(self.prefix.as_deref().unwrap_or_default(), configured.collect()))
    }

    /// Removes all that the run has written. No client of it may be alive.
    pub(crate) async fn remove(&self) -> Result<(), Failure> {
        if let Some(file) = &self.file {
            let removed = remove_file(file);
            return removed
                .with_context(|| format!("failed to remove `{}` and what is beside it", file.display()))
                .map_err(Failure::unavailable);
        }
        let prefix = self.prefix.clone().unwrap_or_default();
        let removed = timeout(REMOVAL_LIMIT, self.remove_keys()).await;
        let error = match removed {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(failure)) => failure.message(),
            Err(_) => "the store does not answer in time".to_owned(),
        };
        Err(Failure::unavailable(anyhow!(
            "not all keys of this run could be removed: {error}. They begin with `{prefix}`, and end by themselves"
        )))
    }

    async fn remove_keys(&self) -> Result<(), Failure> {
        let mut last = None;
        for _ in 0..ROUNDS {
            // New connections: after a fail-over, another server is the primary.
            match self.nodes().await?.remove_all().await {
                Ok(0) => return Ok(()),
                Ok(_) => sleep(Duration::from_millis(100)).await,
                Err(fault) => {
                    last = Some(fault);
                    sleep(Duration::from_millis(500)).await;
                }
            }
        }
        Err(match last {
            Some(fault) => Failure::unavailable(fault),
            None => Failure::unavailable(anyhow!("there are new ones each time")),
        })
    }
}

/// Removes the file of a store, and all files and directories beside it whose names begin with its name.
fn remove_file(file: &Path) -> io::Result<()> {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(name) = file.file_name() else { return Ok(()) };
    let name = name.to_string_lossy().into_owned();
    for entry in std::fs::read_dir(parent)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with(&name) {
            continue;
        }
        let removed = if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())
        } else {
            std::fs::remove_file(entry.path())
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_the_user_stays() {
        let dir = tempfile::TempDir::new().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        for name in ["locks.db", "locks.db-wal", "locks.db.verify-1", "locks.db.verify-1-wal"] {
            std::fs::write(path(name), "").expect("written");
        }
        std::fs::create_dir(path("locks.db.verify-1-sessions")).expect("made");
        std::fs::write(path("locks.db.verify-1-sessions/a"), "").expect("written");
        remove_file(&path("locks.db.verify-1")).expect("removed");
        let mut left: Vec<_> = std::fs::read_dir(dir.path())
            .expect("read")
            .map(|entry| entry.expect("read").file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["locks.db", "locks.db-wal"]);
    }
}
