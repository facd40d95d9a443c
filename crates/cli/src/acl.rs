//! `leasehold acl`: what a user of the server needs at least.

use crate::args::AclArgs;
use crate::exit::{Exit, Failure};
use crate::log;
use crate::report::print;
use crate::store;
use anyhow::Context;
use leasehold::store::{Permissions, RedisConfig, ServerVersion};

/// Prints the command that makes such a user.
pub(crate) async fn acl(args: &AclArgs) -> Result<Exit, Failure> {
    let unusable = |error: anyhow::Error| Failure::new(Exit::USAGE, error);
    let server = store::server(&args.store)?;
    let version = match &server {
        Some(config) => Some(ask(config).await?),
        None => None,
    };
    // Of a server that is nowhere nothing is asked but what its prefix would be.
    let config = server.map_or_else(|| RedisConfig::from_url("redis://localhost"), Ok);
    let mut config = config.map_err(|error| unusable(error.into()))?;
    if let Some(prefix) = &args.store.prefix {
        config = config.prefix(prefix).map_err(|error| unusable(error.into()))?;
    }
    let permissions = Permissions::of(&config).map_err(|error| unusable(error.into()))?;
    let permissions = match version {
        Some(version) => permissions.on(version),
        None => permissions,
    };
    let line = permissions.acl(&args.user).context("--user cannot be that").map_err(unusable)?;
    let of = version.map_or_else(|| "the newest servers".to_owned(), |version| version.to_string());
    log::warning(&format!(
        "for {of}; what begins with `#` stands for the SHA-256 of a password, or write `>` and the password"
    ));
    print(&(line + "\n")).map(|()| Exit::SUCCESS).map_err(|error| Failure::new(Exit::UNAVAILABLE, error))
}

async fn ask(config: &RedisConfig) -> Result<ServerVersion, Failure> {
    ServerVersion::ask(config).await.map_err(|fault| {
        let exit = store::exit_of(&fault);
        Failure::new(exit, anyhow::Error::new(fault).context("failed to ask which server it is"))
    })
}
