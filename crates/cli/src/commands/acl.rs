//! `leasehold acl`: the minimal permissions for a user of the server.

use crate::args::AclArgs;
use crate::environment::{USERNAME, variable};
use crate::output::error_map::fault_exit;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log;
use crate::output::report::print;
use crate::store::args::StoreArgs;
use crate::store::{CALL_TIMEOUT, password, url};
use anyhow::{Context, anyhow};
use leasehold::store::{Permissions, RedisConfig, ServerVersion, StoreUrl};

/// Prints the command that creates such a user.
pub(crate) async fn acl(args: &AclArgs) -> Result<Exit, Failure> {
    let servers = servers(&args.store)?;
    let version = ask_any(&servers).await?;
    let permissions = permissions(servers.into_iter().next(), args.store.prefix.as_deref(), version);
    let permissions = permissions.map_err(Failure::usage)?;
    let line = permissions.acl(&args.user).context("invalid --user").map_err(Failure::usage)?;
    let servers = version.map_or_else(|| "the newest servers".to_owned(), |version| version.to_string());
    log::warning(&format!(
        "for {servers}; what begins with `#` stands for the SHA-256 of a password, or write `>` and the password"
    ));
    print(&(line + "\n")).map(|()| Exit::SUCCESS)
}

/// The permissions on servers of a version, or of the newest ones. Without a server only the prefix matters. Several
/// servers need the same permissions.
fn permissions(
    server: Option<RedisConfig>,
    prefix: Option<&str>,
    version: Option<ServerVersion>,
) -> anyhow::Result<Permissions> {
    let mut config = server.map_or_else(|| RedisConfig::from_url("redis://localhost"), Ok)?;
    if let Some(prefix) = prefix {
        config = config.prefix(prefix)?;
    }
    let permissions = Permissions::of(&config)?;
    Ok(match version {
        Some(version) => permissions.on(version),
        None => permissions,
    })
}

/// The configuration of each server of the store, with credentials; empty if no server is given. May read standard
/// input.
fn servers(args: &StoreArgs) -> Result<Vec<RedisConfig>, Failure> {
    let url = url::named(args)?.map(|(_, url)| url);
    let Some(url) = url.filter(StoreUrl::takes_credentials) else {
        if args.store.is_some() {
            return Err(Failure::usage(anyhow!(
                "only a server (redis://…) has users, and --store names no server"
            )));
        }
        if args.password_file.is_some() {
            return Err(Failure::usage(anyhow!(
                "--password-file is for a server, and none is given: give one by --store"
            )));
        }
        // A variable in the environment may be meant for other commands.
        return Ok(Vec::new());
    };
    let password = password::read(args.password_file.as_deref(), true)?;
    let user = variable(USERNAME)?;
    let with_credentials = |config: &RedisConfig| {
        let mut config = config.clone().connect_timeout(CALL_TIMEOUT);
        if let Some(password) = &password {
            config = config.password(password.reveal());
        }
        if let Some(user) = &user {
            config = config.username(user);
        }
        config
    };
    Ok(url.servers().iter().map(with_credentials).collect())
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
