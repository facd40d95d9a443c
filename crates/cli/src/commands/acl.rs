//! `leasehold acl`: the minimal permissions for a user of the server.

use crate::args::AclArgs;
use crate::output::error_map::fault_exit;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log;
use crate::output::report::print;
use crate::store;
use anyhow::Context;
use leasehold::store::{Permissions, RedisConfig, ServerVersion};

/// Prints the command that creates such a user.
pub(crate) async fn acl(args: &AclArgs) -> Result<Exit, Failure> {
    let unusable = |error: anyhow::Error| Failure::usage(error);
    let servers = store::servers(&args.store)?;
    let version = ask_any(&servers).await?;
    // Without a server only the prefix matters. Several servers need the same permissions.
    let config = servers.into_iter().next().map_or_else(|| RedisConfig::from_url("redis://localhost"), Ok);
    let mut config = config.map_err(|error| unusable(error.into()))?;
    if let Some(prefix) = &args.store.prefix {
        config = config.prefix(prefix).map_err(|error| unusable(error.into()))?;
    }
    let permissions = Permissions::of(&config).map_err(|error| unusable(error.into()))?;
    let permissions = match version {
        Some(version) => permissions.on(version),
        None => permissions,
    };
    let line = permissions.acl(&args.user).context("invalid --user").map_err(unusable)?;
    let of = version.map_or_else(|| "the newest servers".to_owned(), |version| version.to_string());
    log::warning(&format!(
        "for {of}; what begins with `#` stands for the SHA-256 of a password, or write `>` and the password"
    ));
    print(&(line + "\n")).map(|()| Exit::SUCCESS)
}

/// The version of the first server that answers; `None` if there is no server.
async fn ask_any(servers: &[RedisConfig]) -> Result<Option<ServerVersion>, Failure> {
    let mut failure = None;
    for server in servers {
        match ask(server).await {
            Ok(version) => return Ok(Some(version)),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(None), Err)
}

async fn ask(config: &RedisConfig) -> Result<ServerVersion, Failure> {
    ServerVersion::ask(config).await.map_err(|fault| {
        let exit = fault_exit(&fault);
        Failure::new(exit, anyhow::Error::new(fault).context("failed to read the version of the server"))
    })
}
