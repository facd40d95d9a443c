//! `leasehold acl`: the minimal permissions for a user of the server.

use crate::environment::{USERNAME, variable};
use crate::output::error_map::fault_exit;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log::{self, LogArgs};
use crate::output::report::print;
use crate::store::args::StoreArgs;
use crate::store::password::{self, PROVIDER_TIMEOUT, Password};
use crate::store::{CALL_TIMEOUT, url};
use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use leasehold::store::{Permissions, Purpose, RedisConfig, ServerVersion, StoreUrl};

/// Print the minimal permissions for a user of the server, as the command that creates the user.
///
/// For the locks of one prefix, or for all, the user can do whatever this program and the library do, and nothing else; or
/// with --for only what one purpose needs.
/// The version of the server is read first, since a server refuses a list with a command that it does not know. Nothing
/// is changed.
#[derive(Args)]
#[command(about = "Print the minimal permissions for a user of the server", after_long_help = AFTER_HELP)]
pub(crate) struct AclArgs {
    /// What the user is for
    #[arg(long = "for", value_name = "PURPOSE", value_enum, default_value_t = UserPurpose::Locks)]
    purpose: UserPurpose,

    /// Name of the user
    #[arg(long, value_name = "NAME", default_value = "leasehold")]
    user: String,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// What a user is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum UserPurpose {
    /// All that this program and the library do with locks
    Locks,
    /// To look, and to change nothing: `ls`, `show`, `wait`, `doctor`
    Operator,
    /// The same, and `free`
    OperatorFree,
    /// `monitor`
    Monitor,
}

impl From<UserPurpose> for Purpose {
    fn from(purpose: UserPurpose) -> Self {
        match purpose {
            UserPurpose::Locks => Self::Locks,
            UserPurpose::Operator => Self::Operator,
            UserPurpose::OperatorFree => Self::FreeingOperator,
            UserPurpose::Monitor => Self::Monitor,
        }
    }
}

/// Prints the command that creates such a user.
pub(crate) async fn acl(args: &AclArgs) -> Result<Exit, Failure> {
    let servers = servers(&args.store)?;
    let version = ask_any(&servers).await?;
    let permissions = permissions(servers.into_iter().next(), args.store.prefix.as_deref(), version);
    let permissions = permissions.map_err(Failure::usage)?.purpose(args.purpose.into());
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
    let Some(url) = url.filter(StoreUrl::supports_credentials) else {
        if args.store.is_some() {
            return Err(Failure::usage(anyhow!(
                "only a server (redis://…) has users, and --store names no server"
            )));
        }
        let options = [
            ("--password-file", args.password_file.is_some()),
            ("--password-command", args.password_command.is_some()),
        ];
        if let Some((option, _)) = options.into_iter().find(|(_, is_given)| *is_given) {
            return Err(Failure::usage(anyhow!(
                "{option} is for a server, and none is given: give one by --store"
            )));
        }
        // A variable in the environment may be meant for other commands.
        return Ok(Vec::new());
    };
    let password = password::for_store(args, &url)?;
    let user = variable(USERNAME)?;
    let with_credentials = |config: &RedisConfig| {
        let mut config = config.clone().connect_timeout(CALL_TIMEOUT);
        config = match &password {
            Some(Password::Fixed(secret)) => config.password(secret.reveal()),
            Some(Password::Changing(source)) => {
                let source = source.clone();
                let provider = move || source.clone().credentials();
                config.credentials(provider).credentials_timeout(PROVIDER_TIMEOUT)
            }
            None => config,
        };
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
        match server_version(server).await {
            Ok(version) => return Ok(Some(version)),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(None), Err)
}

async fn server_version(config: &RedisConfig) -> Result<ServerVersion, Failure> {
    ServerVersion::query(config).await.map_err(|fault| {
        let exit = fault_exit(&fault);
        Failure::new(exit, anyhow::Error::new(fault).context("failed to read the version of the server"))
    })
}

const AFTER_HELP: &str = "\
Without a server (--store or LEASEHOLD_STORE) the list is for the newest
versions. It applies to the database of the URL.

Replace the word that begins with `#` by the SHA-256 of a password, in
hexadecimal, preceded by `#`, or by `>` and the password. The server refuses the
line as it is printed. An existing user of that name loses all other
permissions. Type the line into `redis-cli`: a shell would interpret the
patterns and redirections in it, and show it in the process list.

Exit status:
    0  it is printed
    2  the prefix, the name or another setting cannot be used
   69  the server cannot be reached, or does not report its version

Examples:
  leasehold acl --prefix app: --user app
  leasehold acl --prefix app: --user reader --for operator
  leasehold acl --store redis://db.example.org      for that server's version";
