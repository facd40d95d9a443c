//! Parser for the URLs of Redis stores.

use super::UrlError;
use crate::config::RedisConfig;
use crate::config::address::Address;
use crate::config::certificates::{Certificates, Pem};
use crate::config::quorum::QuorumConfig;
use crate::location::{ClusterSeeds, SentinelGroup, ServerLocation};
use leasehold_core::parse_duration;
use percent_encoding::percent_decode_str;
use std::net::Ipv6Addr;
use std::path::PathBuf;

pub(super) const DEFAULT_PORT: u16 = 6379;
pub(super) const DEFAULT_SENTINEL_PORT: u16 = 26379;

/// Parses a URL.
pub(super) fn parse(url: &str) -> Result<RedisConfig, UrlError> {
    let (scheme, location, query) = parts(url)?;
    let config = match scheme {
        "redis" => network(location, false)?,
        "rediss" => network(location, true)?,
        "redis+unix" => socket(location)?,
        "redis+sentinel" => sentinels(location, false)?,
        "rediss+sentinel" => sentinels(location, true)?,
        "redis+shard" | "rediss+shard" => return Err(UrlError::Shards),
        "redis+cluster" => cluster(location, false)?,
        "rediss+cluster" => cluster(location, true)?,
        _ => return Err(UrlError::Scheme),
    };
    settings(config, path_database(scheme, location), query)
}

/// The database that stands behind the servers, if one does.
fn path_database<'a>(scheme: &str, location: &'a str) -> Option<&'a str> {
    let behind_slash = |text: &'a str| Some(text.split_once('/')?.1);
    let database = match scheme {
        "redis+unix" => None,
        "redis+sentinel" | "rediss+sentinel" => behind_slash(location).and_then(behind_slash),
        _ => behind_slash(location),
    };
    database.filter(|database| !database.is_empty())
}

/// Parses a URL of several independent servers: `[user[:password]@]host[:port],…[/db]`
pub(super) fn parse_shards(url: &str) -> Result<Vec<RedisConfig>, UrlError> {
    let (scheme, location, query) = parts(url)?;
    let tls = match scheme {
        "redis+shard" => false,
        "rediss+shard" => true,
        _ => return Err(UrlError::Scheme),
    };
    let (authority, path) = location.split_once('/').unwrap_or((location, ""));
    let (credentials, servers) = split_credentials(authority);
    let shard = |server| {
        let (host, port) = host_and_port(server, DEFAULT_PORT)?;
        let config = RedisConfig::at(ServerLocation::Fixed(Address::Tcp { host, port, tls }));
        settings(logged_in(in_database(config, path)?, credentials)?, path_database(scheme, location), query)
    };
    servers.split(',').map(shard).collect()
}

/// Splits a URL into its scheme, its location (credentials, servers and path), and its query.
fn parts(url: &str) -> Result<(&str, &str, Option<&str>), UrlError> {
    let (scheme, rest) = url.split_once("://").ok_or(UrlError::Scheme)?;
    if rest.contains('#') {
        return Err(UrlError::Fragment);
    }
    Ok(match rest.split_once('?') {
        Some((location, query)) => (scheme, location, Some(query)),
        None => (scheme, rest, None),
    })
}

/// Parses the URL of a quorum: `redlock://[user[:password]@]host[:port],…[/db]`, and with TLS `redlocks://`. The rest of
/// the URL applies to each host.
pub(super) fn parse_quorum(url: &str) -> Result<QuorumConfig, UrlError> {
    let (scheme, location, query) = parts(url)?;
    let scheme = match scheme {
        "redlock" => "redis",
        "redlocks" => "rediss",
        _ => return Err(UrlError::Scheme),
    };
    let query = query.unwrap_or_default();
    let (authority, path) = location.split_once('/').unwrap_or((location, ""));
    let (login, servers) = match authority.rsplit_once('@') {
        Some((credentials, servers)) => ([credentials, "@"].concat(), servers),
        None => (String::new(), authority),
    };
    let (of_quorum, of_nodes): (Vec<_>, Vec<_>) = query
        .split('&')
        .partition(|pair| pair.starts_with("min_uptime=") || pair.starts_with("node_timeout="));
    let of_nodes = of_nodes.join("&");
    let node = |server| parse(&format!("{scheme}://{login}{server}/{path}?{of_nodes}"));
    let config = QuorumConfig::of(servers.split(',').map(node).collect::<Result<Vec<_>, _>>()?)?;
    quorum_settings(config, &of_quorum)
}

/// Applies the settings of the quorum itself.
fn quorum_settings(mut config: QuorumConfig, pairs: &[&str]) -> Result<QuorumConfig, UrlError> {
    let mut given = Given::default();
    for pair in pairs {
        config = match pair.split_once('=') {
            Some(("min_uptime", text)) => {
                given.add("min_uptime")?;
                config.min_uptime(parse_duration(text).map_err(|_| UrlError::MinUptime)?)
            }
            Some((_, text)) => {
                given.add("node_timeout")?;
                let timeout = parse_duration(text).ok().filter(|timeout| !timeout.is_zero());
                config.node_timeout(timeout.ok_or(UrlError::NodeTimeout)?)
            }
            None => config,
        };
    }
    Ok(config)
}

/// `[user[:password]@]host[:port][/db]`
fn network(location: &str, tls: bool) -> Result<RedisConfig, UrlError> {
    let (authority, path) = location.split_once('/').unwrap_or((location, ""));
    let (credentials, server) = split_credentials(authority);
    let (host, port) = host_and_port(server, DEFAULT_PORT)?;
    let config = RedisConfig::at(ServerLocation::Fixed(Address::Tcp { host, port, tls }));
    logged_in(in_database(config, path)?, credentials)
}

/// `[user[:password]@]host[:port],…/name[/db]`
fn sentinels(location: &str, tls: bool) -> Result<RedisConfig, UrlError> {
    let (authority, path) = location.split_once('/').unwrap_or((location, ""));
    let (credentials, servers) = split_credentials(authority);
    let (name, path) = path.split_once('/').unwrap_or((path, ""));
    let sentinel = |server| -> Result<_, UrlError> {
        let (host, port) = host_and_port(server, DEFAULT_SENTINEL_PORT)?;
        Ok(Address::Tcp { host, port, tls })
    };
    let sentinels = servers.split(',').map(sentinel).collect::<Result<Vec<_>, _>>()?;
    // An unescaped `/` in a password puts the rest of the password, and the host, here.
    if name.contains('@') {
        return Err(UrlError::Primary);
    }
    let name = decoded(name, "name of the primary")?;
    if name.is_empty() || name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(UrlError::Primary);
    }
    let config = RedisConfig::at(ServerLocation::Sentinel(SentinelGroup::new(sentinels, name, tls)));
    logged_in(in_database(config, path)?, credentials)
}

/// `[user[:password]@]host[:port],…[/db]`
fn cluster(location: &str, tls: bool) -> Result<RedisConfig, UrlError> {
    let (authority, path) = location.split_once('/').unwrap_or((location, ""));
    let (credentials, servers) = split_credentials(authority);
    let node = |server| -> Result<_, UrlError> {
        let (host, port) = host_and_port(server, DEFAULT_PORT)?;
        Ok(Address::Tcp { host, port, tls })
    };
    let nodes = servers.split(',').map(node).collect::<Result<Vec<_>, _>>()?;
    let config = RedisConfig::at(ServerLocation::Cluster(ClusterSeeds::new(nodes, tls)));
    logged_in(in_database(config, path)?, credentials)
}

fn split_credentials(authority: &str) -> (Option<&str>, &str) {
    match authority.rsplit_once('@') {
        Some((credentials, server)) => (Some(credentials), server),
        None => (None, authority),
    }
}

fn in_database(config: RedisConfig, path: &str) -> Result<RedisConfig, UrlError> {
    if path.is_empty() { Ok(config) } else { Ok(config.db(database(path)?)) }
}

fn logged_in(mut config: RedisConfig, credentials: Option<&str>) -> Result<RedisConfig, UrlError> {
    let Some(credentials) = credentials else { return Ok(config) };
    let (user, password) = match credentials.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (credentials, None),
    };
    if !user.is_empty() {
        config = config.username(decoded(user, "user")?);
    }
    match password {
        Some(password) => Ok(config.password(decoded(password, "password")?)),
        None => Ok(config),
    }
}

fn host_and_port(server: &str, default: u16) -> Result<(String, u16), UrlError> {
    let (host, port) = match server.strip_prefix('[') {
        Some(server) => {
            let (host, rest) = server.split_once(']').ok_or(UrlError::Host)?;
            host.parse::<Ipv6Addr>().map_err(|_| UrlError::Host)?;
            match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if rest.is_empty() => (host, None),
                None => return Err(UrlError::Host),
            }
        }
        None => match server.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (server, None),
        },
    };
    let port = match port {
        None => default,
        Some(port) => match port.parse() {
            Ok(port) if port > 0 => port,
            _ => return Err(UrlError::Port),
        },
    };
    let host = decoded(host, "host")?;
    if host.is_empty() || host.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(UrlError::Host);
    }
    Ok((host, port))
}

fn socket(location: &str) -> Result<RedisConfig, UrlError> {
    match location.find('/') {
        Some(0) if location.len() > 1 => {
            let path = decoded(location, "path")?;
            if path.contains('\0') {
                return Err(UrlError::SocketPath);
            }
            Ok(RedisConfig::at(ServerLocation::Fixed(Address::Unix(PathBuf::from(path)))))
        }
        Some(at) if at > 0 && location[..at].contains('@') => Err(UrlError::SocketHost),
        _ => Err(UrlError::SocketPath),
    }
}

/// The settings that a URL has given. Each may be given once: of two, a reader and the parser may choose different ones.
#[derive(Default)]
struct Given<'a>(Vec<&'a str>);

impl<'a> Given<'a> {
    /// What stands in front of the `?`.
    fn before_query(config: &RedisConfig, database: Option<&str>) -> Self {
        let login = config.login();
        let given = [
            ("user", login.username.is_some()),
            ("password", login.password.is_some()),
            ("db", database.is_some()),
        ];
        Self(given.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name).collect())
    }

    /// Adds a setting. One that was accepted before is known, so that the error may show its name.
    fn add(&mut self, setting: &'a str) -> Result<(), UrlError> {
        if self.0.contains(&setting) {
            return Err(UrlError::Twice { setting: setting.to_owned() });
        }
        self.0.push(setting);
        Ok(())
    }
}

/// Applies the settings after the `?`.
fn settings(
    mut config: RedisConfig,
    database: Option<&str>,
    query: Option<&str>,
) -> Result<RedisConfig, UrlError> {
    let query = query.unwrap_or_default();
    let mut given = Given::before_query(&config, database);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or(UrlError::Setting)?;
        given.add(name)?;
        config = setting(config, name, value, query)?;
    }
    let certificates = config.certificates();
    if certificates.own.is_some() != certificates.key.is_some() {
        return Err(UrlError::KeyPair);
    }
    Ok(config)
}

/// The error for a setting that does not exist. It shows the name only if that cannot be part of a password. A `?` in
/// a password in front of the host puts the `@` behind it into the query; a `&` in one may stand behind `password=`.
fn unknown_setting(name: &str, query: &str) -> UrlError {
    let is_plain =
        (1..=32).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    if is_plain && !query.contains('@') && !query.contains("password=") {
        UrlError::UnknownSetting { name: name.to_owned() }
    } else {
        UrlError::Setting
    }
}

/// Applies one setting of a query.
fn setting(config: RedisConfig, name: &str, value: &str, query: &str) -> Result<RedisConfig, UrlError> {
    Ok(match name {
        "prefix" => config.prefix(&decoded(value, "prefix")?)?,
        "user" => config.username(decoded(value, "user")?),
        "password" => config.password(decoded(value, "password")?),
        "db" => config.db(database(value)?),
        "replicas" => {
            let replicas = value.parse().ok().filter(|replicas| (1..=100).contains(replicas));
            config.replicas(replicas.ok_or(UrlError::Replicas)?)
        }
        "durable" => match value {
            "1" => config.durable(),
            "0" => config,
            _ => return Err(UrlError::Durable),
        },
        "protocol" => match (value, config.location()) {
            ("resp2" | "2", ServerLocation::Cluster(_)) => return Err(UrlError::ClusterProtocol),
            ("resp2" | "2", _) => config.resp2(),
            ("resp3" | "3", _) => config.resp3(),
            _ => return Err(UrlError::Protocol),
        },
        "tracking" => match value {
            "1" => config.client_tracking(),
            "0" => config.without_client_tracking(),
            _ => return Err(UrlError::Tracking),
        },
        "probe" => match value {
            "skip" => config.skip_trials(),
            _ => return Err(UrlError::Probe),
        },
        "accept" => {
            let codes = value.split(',').map(|code| decoded(code, "code of a finding"));
            let codes = codes.collect::<Result<Vec<_>, _>>()?;
            let codes = codes.iter().map(|code| code.parse()).collect::<Result<Vec<_>, _>>();
            config.accept(codes.map_err(UrlError::Accept)?)
        }
        "strict" => match value {
            "1" => config.strict(),
            "0" => config.lenient(),
            _ => return Err(UrlError::Strict),
        },
        "sentinel_user" => {
            let user = decoded(value, "Sentinels' user")?;
            config.with_sentinels(|group| group.login.username = Some(user)).ok_or(UrlError::NoSentinels)?
        }
        "sentinel_password" => {
            let password = decoded(value, "Sentinels' password")?;
            config
                .with_sentinels(|group| group.login.password = Some(password))
                .ok_or(UrlError::NoSentinels)?
        }
        "ca" => with_file(config, value, "ca", |certificates| &mut certificates.roots)?,
        "cert" => with_file(config, value, "cert", |certificates| &mut certificates.own)?,
        "key" => with_file(config, value, "key", |certificates| &mut certificates.key)?,
        _ => return Err(unknown_setting(name, query)),
    })
}

/// Sets a certificate or key whose file is read for each connection.
fn with_file(
    config: RedisConfig,
    value: &str,
    part: &'static str,
    field: impl FnOnce(&mut Certificates) -> &mut Option<Pem>,
) -> Result<RedisConfig, UrlError> {
    let path = decoded(value, part)?;
    if path.is_empty() || path.contains('\0') {
        return Err(UrlError::File { part });
    }
    let change = |certificates: &mut Certificates| *field(certificates) = Some(Pem::File(path.into()));
    config.with_certificates(change).ok_or(UrlError::NoTls)
}

fn database(text: &str) -> Result<u32, UrlError> {
    // Redis numbers databases with a C int.
    text.parse().ok().filter(|db| i32::try_from(*db).is_ok()).ok_or(UrlError::Database)
}

fn decoded(text: &str, part: &'static str) -> Result<String, UrlError> {
    let invalid = UrlError::Percent { part };
    for (at, _) in text.match_indices('%') {
        let digits = text.as_bytes().get(at + 1..at + 3);
        if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            return Err(invalid);
        }
    }
    percent_decode_str(text).decode_utf8().map(String::from).map_err(|_| invalid)
}
