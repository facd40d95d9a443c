//! The password for the store, from the environment, a file, standard input or a command.
//!
//! 1. A password is rejected as an argument: the process list shows it to every user of the machine.
//! 2. A file is read, and a command runs, again for each connection: passwords change. What can be read only once, as
//!    standard input and other pipes, is read at the start.

use crate::environment::{PASSWORD, variable};
use crate::output::failure::Failure;
use crate::store::args::StoreArgs;
use crate::store::password_command::PasswordCommand;
use crate::store::secret::{Secret, first_line};
use anyhow::{Context, Error, Result, anyhow};
use leasehold::store::{Credentials, RedisConfig, StoreUrl};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long the library waits for a password: longer than a command may take, so that its own error is reported.
pub(crate) const PROVIDER_TIMEOUT: Duration = Duration::from_secs(6);

/// Where the password comes from.
pub(crate) enum Password {
    /// It does not change.
    Fixed(Secret),
    /// It is found out for each connection (2).
    Changing(Source),
}

/// What gives the password for a connection.
#[derive(Clone)]
pub(crate) enum Source {
    File(Arc<Path>),
    Command(Arc<PasswordCommand>),
}

impl Source {
    /// The credentials for one connection. May block.
    pub(crate) async fn credentials(self) -> Result<Credentials> {
        Ok(Credentials::new(self.secret().await?.reveal()))
    }

    /// The password for one connection. May block.
    pub(crate) async fn secret(self) -> Result<Secret> {
        match self {
            Self::File(path) => read_file(&path),
            Self::Command(command) => command.password().await,
        }
    }
}

/// The password for the store, if one was given apart from its URL. An option takes precedence over the environment, which
/// is read only for a store with credentials. May read standard input.
pub(crate) fn for_store(args: &StoreArgs, url: &StoreUrl) -> Result<Option<Password>, Failure> {
    let option = match (&args.password_file, &args.password_command) {
        (Some(_), _) => "--password-file",
        (None, Some(_)) => "--password-command",
        (None, None) if url.supports_credentials() => {
            return Ok(variable(PASSWORD)?.map(|text| Password::Fixed(Secret::new(text))));
        }
        (None, None) => return Ok(None),
    };
    if url.servers().iter().any(RedisConfig::has_server_password) {
        return Err(Failure::usage(anyhow!(
            "the URL of LEASEHOLD_STORE contains a password, and {option} gives another: leave out one of them"
        )));
    }
    if let Some(file) = &args.password_file {
        return of_file(file, url.supports_credentials()).map(Some).map_err(Failure::usage);
    }
    if !url.supports_credentials() {
        return Err(Failure::usage(anyhow!(
            "--password-command is for a server, and the store is none: give one by --store"
        )));
    }
    let command = args.password_command.clone().unwrap_or_default();
    if command.is_empty() {
        return Err(Failure::usage(anyhow!("--password-command needs a command that prints the password")));
    }
    Ok(Some(Password::Changing(Source::Command(Arc::new(PasswordCommand::new(command))))))
}

/// The password of a file, or of standard input. It is read now in any case: an error at the start is reported at once.
fn of_file(path: &PathBuf, may_change: bool) -> Result<Password> {
    if path == Path::new("-") {
        return first_line(stdin())
            .map(Password::Fixed)
            .context("failed to read the password from standard input");
    }
    let secret = read_file(path)?;
    let is_file = may_change && std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    Ok(if is_file {
        Password::Changing(Source::File(path.as_path().into()))
    } else {
        Password::Fixed(secret)
    })
}

fn read_file(path: &Path) -> Result<Secret> {
    File::open(path)
        .map_err(Error::from)
        .and_then(first_line)
        .with_context(|| format!("failed to read the password from `{}`", path.display()))
}

/// Standard input without a buffer: the bytes after the password belong to the command.
fn stdin() -> impl Read {
    struct Unbuffered;
    impl Read for Unbuffered {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            rustix::io::read(rustix::stdio::stdin(), buffer).map_err(Into::into)
        }
    }
    Unbuffered
}
