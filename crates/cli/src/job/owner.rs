//! The owner for which a command acquires a reentrant lock.
//!
//! A process that knows an owner can acquire the owner's locks, so no message here contains one. The command receives
//! the owner in its environment, as text, for nested commands.

use crate::args::EnterArgs;
use crate::environment::{OWNER, variable};
use crate::output::failure::Failure;
use anyhow::{Context, anyhow};
use leasehold::Owner;

/// The owner for which a lock is acquired.
#[derive(Debug)]
pub(crate) enum Who {
    /// No owner: the lock is not reentrant.
    None,
    /// A new, unique owner.
    Fresh,
    /// The owner of `--owner`.
    Named(Owner),
    /// The owner that another process has put into the environment. Holds for it end with their lease, since they do
    /// not belong to the session of that process.
    Inherited(Owner),
}

impl Who {
    /// The owner for a run.
    pub(crate) fn of(args: &EnterArgs) -> Result<Self, Failure> {
        if let Some(text) = &args.owner {
            let owner = Owner::new(text).context("invalid --owner").map_err(usage)?;
            return Ok(Self::Named(owner));
        }
        if !args.reentrant {
            return Ok(Self::None);
        }
        let Some(text) = variable(OWNER)? else { return Ok(Self::Fresh) };
        let read = || Owner::from_header(Owner::new(text)?.to_header());
        let owner = read().with_context(|| {
            format!(
                "the environment variable {OWNER} holds no owner: unset it (`env -u {OWNER}`) to start with a new one"
            )
        });
        owner.map(Self::Inherited).map_err(usage)
    }

    /// Fails if several locks are named and there is an owner.
    pub(crate) fn check(&self, names: usize) -> Result<(), Failure> {
        if names < 2 || matches!(self, Self::None) {
            return Ok(());
        }
        Err(usage(anyhow!(
            "--reentrant and --owner take one lock, and {names} are named: several can be held together only without \
             them; or nest them, everywhere in the same order: `leasehold run --reentrant a -- leasehold run \
             --reentrant b -- …`"
        )))
    }
}

fn usage(error: anyhow::Error) -> Failure {
    Failure::usage(error)
}
