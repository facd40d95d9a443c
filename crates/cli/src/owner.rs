//! For whom a command enters a lock again.
//!
//! Whoever knows an owner gets into what he has, so nothing in here says who it is. It stands in the environment of the
//! command, as a text, for what the command runs.

use crate::args::EnterArgs;
use crate::exit::{Exit, Failure};
use crate::secret::variable;
use anyhow::{Context, anyhow};
use leasehold::Owner;

/// The environment variable that holds the text of an owner.
pub(crate) const OWNER: &str = "LEASEHOLD_OWNER";

/// Who enters a lock.
#[derive(Debug)]
pub(crate) enum Who {
    /// Nobody in particular: the lock is not entered again.
    Nobody,
    /// Somebody whom nobody has been before.
    Fresh,
    /// The one who was named.
    Named(Owner),
    /// The one for whom we were started, by another process: what is held for him ends with its lease, since that
    /// process's session is not ours.
    Inherited(Owner),
}

impl Who {
    /// Who enters the lock of a run.
    pub(crate) fn of(args: &EnterArgs) -> Result<Self, Failure> {
        if let Some(text) = &args.owner {
            let owner = Owner::new(text).context("--owner cannot be that").map_err(usage)?;
            return Ok(Self::Named(owner));
        }
        if !args.reentrant {
            return Ok(Self::Nobody);
        }
        let Some(text) = variable(OWNER)? else { return Ok(Self::Fresh) };
        let read = || Owner::from_header(Owner::new(text)?.to_header());
        let owner = read().with_context(|| {
            format!(
                "the environment variable {OWNER} holds no owner: unset it (`env -u {OWNER}`) to begin anew"
            )
        });
        owner.map(Self::Inherited).map_err(usage)
    }

    /// Fails for several locks, if somebody in particular is to enter them.
    pub(crate) fn check(&self, names: usize) -> Result<(), Failure> {
        if names < 2 || matches!(self, Self::Nobody) {
            return Ok(());
        }
        Err(usage(anyhow!(
            "--reentrant and --owner take one lock, and {names} are named: several are held together only without \
             them; or nest them, everywhere in the same order: `leasehold run --reentrant a -- leasehold run \
             --reentrant b -- …`"
        )))
    }
}

fn usage(error: anyhow::Error) -> Failure {
    Failure::new(Exit::USAGE, error)
}
