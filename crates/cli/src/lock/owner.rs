//! The owner for which a command acquires a reentrant lock.
//!
//! A process that knows an owner can acquire the owner's locks, so no message here contains one. The command receives
//! the owner in its environment, as text, for nested commands.

use crate::environment::{OWNER, variable};
use crate::output::failure::Failure;
use anyhow::Context;
use clap::Args;
use leasehold::{Client, Owner};

#[derive(Args)]
#[command(next_help_heading = "Lock")]
pub(crate) struct OwnerArgs {
    #[arg(long, help = REENTRANT_HELP)]
    reentrant: bool,

    /// Reentrant, for this owner: 1 to 256 bytes of text
    #[arg(long, value_name = "ID")]
    owner: Option<String>,
}

const REENTRANT_HELP: &str = "Reentrant, for the owner LEASEHOLD_OWNER or a new one";

/// Where the owner of a lock comes from.
#[derive(Debug)]
pub(crate) enum OwnerSource {
    /// A new, unique owner.
    New,
    /// The owner of `--owner`.
    Named(Owner),
    /// The owner that another process has put into the environment. Holds for it end with their lease, since they do
    /// not belong to the session of that process.
    Inherited(Owner),
}

impl OwnerArgs {
    /// Where the owner comes from; `None` if the lock is not reentrant.
    pub(crate) fn source(&self) -> Result<Option<OwnerSource>, Failure> {
        if let Some(text) = &self.owner {
            let owner = Owner::new(text).context("invalid --owner").map_err(Failure::usage)?;
            return Ok(Some(OwnerSource::Named(owner)));
        }
        if !self.reentrant {
            return Ok(None);
        }
        let Some(text) = variable(OWNER)? else { return Ok(Some(OwnerSource::New)) };
        let read = || Owner::from_header(Owner::new(text)?.to_header());
        let owner = read().with_context(|| {
            format!(
                "the environment variable {OWNER} contains no owner: unset it (`env -u {OWNER}`) to start with a new one"
            )
        });
        owner.map(OwnerSource::Inherited).map(Some).map_err(Failure::usage)
    }
}

impl OwnerSource {
    /// The owner itself.
    pub(crate) fn owner(&self, client: &Client) -> Owner {
        match self {
            Self::New => client.new_owner(),
            Self::Named(owner) | Self::Inherited(owner) => owner.clone(),
        }
    }
}
