//! Maps an error reply to a fault, and to whether the operation may have been executed.
//!
//! 1. An error counts as "not executed" only if the server sends it before the script has written anything.
//! 2. Only the server's own part of an error text is passed on: what follows "with args beginning with" is what the
//!    client sent, and may be a token.

use super::config::address::Address;
use super::config::tls;
use super::conn::bounded;
use leasehold_store::{Executed, Fault, FaultKind, Outcome, Phase, TlsFault};
use redis::{ErrorKind, RedisError, ServerError, Value};
use std::error::Error;
use std::io;
use std::sync::Arc;

/// Text for a server that rejects the RESP3 handshake.
const NO_RESP3: &str = "it does not support RESP3, as every server that Leasehold works with does (Redis 6.2, Valkey 7.2, and newer ones): if it is a proxy in front of one of them, set `?protocol=resp2`";
const NO_REDIS: &str = "the server does not speak the Redis protocol";

/// Meaning of an error reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ErrorMeaning {
    /// The fault.
    pub(crate) kind: FaultKind,
    /// Whether the operation was executed (1).
    pub(crate) executed: Executed,
    /// Whether another connection may lead to a server that can.
    pub(crate) elsewhere: bool,
}

impl ErrorMeaning {
    /// The outcome of the operation that got the error.
    pub(crate) fn outcome<T>(self, node: &Arc<str>) -> Outcome<T> {
        let fault = Fault::new(self.kind, Phase::Reply, Arc::clone(node));
        Outcome::Failed(self.executed, fault)
    }
}

/// Whether a cluster node reports that the slot is elsewhere, is migrating or has no primary.
pub(crate) fn goes_elsewhere(error: &ServerError) -> bool {
    matches!(error.code(), "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN")
}

/// Whether the server does not know the script.
pub(crate) fn is_unknown_script(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// Whether nothing was executed because only some of the keys are on this node.
pub(crate) fn is_try_again(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "TRYAGAIN")
}

/// Interprets an error reply.
pub(crate) fn classify(error: &ServerError) -> ErrorMeaning {
    classify_text(error.code(), error.details().unwrap_or_default())
}

pub(crate) fn classify_text(code: &str, details: &str) -> ErrorMeaning {
    // Redis 6.2 puts the place in the script before an error that a script catches: `@user_script: 69: -OOM …`.
    let caught = details.split_once(": ").filter(|_| code == "@user_script:");
    let (code, details) =
        caught.map_or((code, details), |(_, error)| error.split_once(' ').unwrap_or((error, "")));
    // Some servers pass the sign of an error in the protocol on to its text.
    let code = code.strip_prefix('-').unwrap_or(code);
    let refused = |kind| ErrorMeaning { kind, executed: Executed::No, elsewhere: false };
    // Redis 6.2 wraps the error of a command in a script into one of its own.
    let inner = details.rsplit_once(": -").filter(|_| code == "ERR" && details.contains("user_script"));
    let inner = inner.and_then(|(_, inner)| inner.split_once(' '));
    let (code, in_script) = inner.map_or((code, details.contains("script: ")), |(code, _)| (code, true));
    match code {
        "NOAUTH" | "WRONGPASS" => ErrorMeaning { elsewhere: true, ..refused(FaultKind::Unauthenticated) },
        // A user that may run the script, but not all of its commands, may have been stopped in the middle.
        "NOPERM" => {
            let half_way = in_script || details.contains("executing the script");
            let executed = if half_way { Executed::Unknown } else { Executed::No };
            ErrorMeaning { executed, ..refused(FaultKind::Forbidden) }
        }
        // The same error from Valkey.
        _ if details.starts_with("ACL failure in script") => {
            ErrorMeaning { executed: Executed::Unknown, ..refused(FaultKind::Forbidden) }
        }
        _ if details.contains("executing the script can't") => {
            ErrorMeaning { executed: Executed::Unknown, ..refused(FaultKind::Forbidden) }
        }
        // A script gets these at its first write, or not at all.
        "OOM" => refused(FaultKind::OutOfMemory),
        "READONLY" => ErrorMeaning { elsewhere: true, ..refused(FaultKind::ReadOnly) },
        "MISCONF" | "NOREPLICAS" => refused(FaultKind::ReadOnly),
        // A server that became a replica while one waited there.
        "UNBLOCKED" => {
            ErrorMeaning { executed: Executed::Unknown, elsewhere: true, ..refused(FaultKind::ReadOnly) }
        }
        "MASTERDOWN" => ErrorMeaning { elsewhere: true, ..refused(FaultKind::Busy) },
        "LOADING" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" => refused(FaultKind::Busy),
        // Redis sends this to a new connection, before it reads any command.
        "ERR" if details.starts_with("max number of clients") => refused(FaultKind::Busy),
        "DENIED" => refused(FaultKind::Forbidden),
        "MOVED" | "ASK" | "CROSSSLOT" => refused(FaultKind::Unsupported(
            "the server is a cluster node, but the URL, or the lent connection, is that of a single server: write `redis+cluster://`"
                .to_owned(),
        )),
        _ => {
            let not_begun = details.starts_with("unknown command") || code == "NOSCRIPT";
            let executed = if not_begun { Executed::No } else { Executed::Unknown };
            ErrorMeaning { executed, ..refused(FaultKind::Failed(shown(code, details))) }
        }
    }
}

/// The server's own part of an error (2), limited to one line.
fn shown(code: &str, details: &str) -> String {
    let own = details.split(", with args").next().unwrap_or_default();
    let line: String = own.chars().take_while(|c| !c.is_control()).take(200).collect();
    format!("the server reports: {code} {line}")
}

/// The fault of a failed connection attempt.
pub(crate) fn unconnected(error: RedisError, address: &Address, node: &Arc<str>) -> Fault {
    let fault = |kind, phase| Fault::new(kind, phase, Arc::clone(node));
    if let Some((_, error)) = error.clone().into_server_errors().and_then(|errors| errors.first().cloned()) {
        // The command contained a password, so no text is shown except known ones.
        let unknown = error.code() == "NOPROTO"
            || error.details().is_some_and(|details| details.starts_with("unknown command"));
        let kind = match classify(&error).kind {
            // The handshake begins with HELLO.
            FaultKind::Failed(_) if unknown => FaultKind::Unsupported(NO_RESP3.to_owned()),
            FaultKind::Failed(_) => {
                FaultKind::Failed(format!("the server refuses the handshake: {}", error.code()))
            }
            kind => kind,
        };
        return fault(kind, Phase::Handshake);
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => fault(FaultKind::Unauthenticated, Phase::Handshake),
        ErrorKind::RESP3NotSupported => fault(FaultKind::Unsupported(NO_RESP3.to_owned()), Phase::Handshake),
        ErrorKind::Io => {
            let (kind, phase) = io_kind(&error, address);
            fault(kind, phase).with_source(error)
        }
        ErrorKind::Server(_) => fault(no_database(error.detail().unwrap_or_default()), Phase::Handshake),
        ErrorKind::InvalidClientConfig => {
            fault(FaultKind::Unusable(format!("the settings cannot be used: {error}")), Phase::Connect)
        }
        _ => fault(FaultKind::Failed(NO_REDIS.to_owned()), Phase::Handshake),
    }
}

/// Whether the server rejected a login, by an error or by what caused it.
pub(crate) fn is_rejected_login(error: &(dyn Error + 'static)) -> bool {
    let rejects = |error: &RedisError| {
        error.kind() == ErrorKind::AuthenticationFailed
            || error.clone().into_server_errors().is_some_and(|errors| {
                errors.iter().any(|(_, error)| classify(error).kind == FaultKind::Unauthenticated)
            })
    };
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.filter_map(|error| error.downcast_ref()).any(rejects)
}

/// Why the server does not select the database of the URL, from the text of its error, which the client library passes on
/// without the code. Only the configuration can make another database of that number.
fn no_database(details: &str) -> FaultKind {
    if details.starts_with("DB index is out of range") || details.starts_with("invalid DB index") {
        FaultKind::Unusable(
            "it has no database of that number: the databases are numbered from 0, and a server has 16 unless its \
             `databases` setting says otherwise"
                .to_owned(),
        )
    } else if details.starts_with("SELECT is not allowed in cluster mode") {
        FaultKind::Unusable(
            "a cluster has only database 0: only one of Valkey 9 has others, by its `cluster-databases` setting".to_owned(),
        )
    } else if details.contains("no permissions") {
        FaultKind::Forbidden
    } else {
        FaultKind::Failed(shown("ERR", details))
    }
}

fn io_kind(error: &RedisError, address: &Address) -> (FaultKind, Phase) {
    // The client library wraps the cause in an `Arc`.
    let source = error.source().and_then(|source| source.downcast_ref::<Arc<dyn Error + Send + Sync>>());
    let source = source.and_then(|source| source.downcast_ref::<io::Error>());
    if let Some(report) = source.and_then(tls::fault_of) {
        return report;
    }
    if source.is_some_and(bounded::is_refused) {
        return (FaultKind::Failed(NO_REDIS.to_owned()), Phase::Handshake);
    }
    match source.map(io::Error::kind) {
        Some(io::ErrorKind::PermissionDenied) => (FaultKind::Forbidden, Phase::Connect),
        Some(io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {
            // A TLS server closes the connection on plain text, without a message.
            let kind = match address {
                Address::Tcp { tls: false, .. } => FaultKind::Tls(TlsFault::ConnectionClosed),
                _ => FaultKind::Disconnected,
            };
            (kind, Phase::Handshake)
        }
        _ => (FaultKind::Unreachable, Phase::Connect),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_distinguished() {
        for (code, details, kind, executed) in [
            (
                "OOM",
                "command not allowed when used memory > 'maxmemory'. script: f, on @user_script:9.",
                FaultKind::OutOfMemory,
                Executed::No,
            ),
            (
                "ERR",
                "Error running script (call to f_0): @user_script:9: -OOM command not allowed",
                FaultKind::OutOfMemory,
                Executed::No,
            ),
            (
                "ERR",
                "Error running script (call to f_0): @user_script:9: @user_script: 9: -READONLY You can't write",
                FaultKind::ReadOnly,
                Executed::No,
            ),
            (
                "READONLY",
                "You can't write against a read only replica. script: f",
                FaultKind::ReadOnly,
                Executed::No,
            ),
            (
                "NOPERM",
                "this user has no permissions to run the 'evalsha' command",
                FaultKind::Forbidden,
                Executed::No,
            ),
            (
                "NOPERM",
                "User x has no permissions to run the 'set' command script: f, on @user_script:3.",
                FaultKind::Forbidden,
                Executed::Unknown,
            ),
            (
                "ERR",
                "The user executing the script can't run this command or subcommand script: f",
                FaultKind::Forbidden,
                Executed::Unknown,
            ),
            (
                "ERR",
                "ACL failure in script: User x has no permissions to run the 'set' command script: on @user_script:3.",
                FaultKind::Forbidden,
                Executed::Unknown,
            ),
            (
                "UNBLOCKED",
                "force unblock from blocking operation, instance state changed (master -> replica?)",
                FaultKind::ReadOnly,
                Executed::Unknown,
            ),
            ("LOADING", "Redis is loading the dataset in memory", FaultKind::Busy, Executed::No),
            ("BUSY", "Redis is busy running a script", FaultKind::Busy, Executed::No),
            ("NOAUTH", "Authentication required.", FaultKind::Unauthenticated, Executed::No),
            ("MISCONF", "Redis is configured to save RDB snapshots", FaultKind::ReadOnly, Executed::No),
        ] {
            let meaning = classify_text(code, details);
            assert_eq!((meaning.kind, meaning.executed), (kind, executed), "{code} {details}");
        }
    }

    #[test]
    fn a_database_that_does_not_exist_is_a_matter_of_the_url() {
        assert!(matches!(no_database("DB index is out of range"), FaultKind::Unusable(_)));
        let denied = "User x has no permissions to run the 'select' command";
        assert_eq!(no_database(denied), FaultKind::Forbidden);
        let cluster = no_database("SELECT is not allowed in cluster mode");
        assert!(
            matches!(&cluster, FaultKind::Unusable(why) if why.contains("cluster-databases")),
            "{cluster:?}"
        );
        let other = FaultKind::Failed("the server reports: ERR something else".to_owned());
        assert_eq!(no_database("something else"), other);
    }

    #[test]
    fn what_we_sent_is_not_shown() {
        let meaning = classify_text("ERR", "unknown command 'EVALSHA', with args beginning with: 'secret'");
        assert_eq!(
            meaning.kind,
            FaultKind::Failed("the server reports: ERR unknown command 'EVALSHA'".to_owned())
        );
        assert_eq!(meaning.executed, Executed::No);
    }
}
