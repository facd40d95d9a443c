//! No scheme and no setting lets a password through.

use super::*;

const SECRET: &str = "s3cr3tPW";

/// A URL of each scheme, with `{}` where credentials go, and what its credentials are given by otherwise.
const SERVERS: [&str; 10] = [
    "redis://{}h",
    "rediss://{}h:1/2",
    "redis+sentinel://{}a,b:7/main",
    "rediss+sentinel://{}a/main/1",
    "redis+cluster://{}a,b:7",
    "rediss+cluster://{}[::1]",
    "redis+shard://{}a,b:7/1",
    "rediss+shard://{}a",
    "redlock://{}a,b:7,[::1]/3",
    "redlocks://{}a,b,c",
];
const SOCKET: &str = "redis+unix:///run/redis.sock";

/// What a URL becomes: its redacted form, or nothing if it does not parse. Either way no message shows the
/// secret.
#[track_caller]
fn redacted(url: &str) -> Option<String> {
    let parsed = StoreUrl::parse(url);
    let shown = match &parsed {
        Ok(parsed) => {
            let configs = parsed.servers().iter().map(|config| format!("{config:?} {}", config.address()));
            let configs: Vec<_> = configs.collect();
            let quorum = match parsed.clone().into_config() {
                StoreConfig::Quorum(quorum) => format!("{quorum:?} {:?}", quorum.addresses()),
                _ => String::new(),
            };
            format!("{parsed:?} {} {configs:?} {quorum}", parsed.redacted())
        }
        Err(error) => {
            let connect = crate::error::ConnectError::from(error.clone());
            format!("{error} {error:?} {connect} {connect:?}")
        }
    };
    assert!(!shown.contains(SECRET), "{url}: {shown}");
    let parsed = parsed.ok()?;
    let redacted = parsed.redacted();
    let again = StoreUrl::parse(&redacted);
    let again =
        again.unwrap_or_else(|error| panic!("{url} became {redacted}, which does not parse: {error}"));
    assert!(!again.has_password(), "{url}: {redacted}");
    assert_eq!(again.redacted(), redacted, "{url}");
    assert_eq!(again.kind(), parsed.kind(), "{url}");
    Some(redacted)
}

#[test]
fn every_scheme_loses_its_password_and_nothing_else() {
    for pattern in SERVERS {
        let plain = pattern.replace("{}", "");
        assert_eq!(redacted(&plain).as_deref(), Some(&*plain));
        assert!(!StoreUrl::parse(&plain).expect("it parses").has_password(), "{plain}");
        let with_user = pattern.replace("{}", "user@");
        assert_eq!(redacted(&with_user).as_deref(), Some(&*with_user));
        for (credentials, setting, left) in [
            (format!(":{SECRET}@"), String::new(), &plain),
            (format!("user:{SECRET}@"), String::new(), &with_user),
            (format!("user:p:@{SECRET}@"), String::new(), &with_user),
            (format!("user:%40%2F{SECRET}@"), String::new(), &with_user),
            (String::new(), format!("?password={SECRET}"), &plain),
            (String::new(), format!("?user=user&password={SECRET}"), &with_user),
        ] {
            let url = pattern.replace("{}", &credentials) + &setting;
            assert_eq!(redacted(&url), Some(left.clone()), "{url}");
            assert!(StoreUrl::parse(&url).expect("it parses").has_password(), "{url}");
        }
        // Two passwords are no URL.
        for (credentials, setting) in [
            (String::new(), format!("?password={SECRET}&password=")),
            (String::new(), format!("?password=&password={SECRET}")),
            (format!(":{SECRET}@"), "?password=".to_owned()),
        ] {
            let url = pattern.replace("{}", &credentials) + &setting;
            assert_eq!(redacted(&url), None, "{url}");
        }
    }
}

#[test]
fn every_scheme_keeps_its_settings() {
    let servers = SERVERS.map(|pattern| pattern.replace("{}", ""));
    for url in servers.iter().map(String::as_str).chain([SOCKET]) {
        let mut settings = vec!["prefix=a:b%20%26/c,", "strict=1"];
        match url {
            _ if url.contains("+cluster") => settings.extend(["replicas=2", "durable=1"]),
            _ if url.starts_with("redlock") => {
                settings.extend(["protocol=resp2", "min_uptime=0ms", "node_timeout=20ms"]);
            }
            _ => settings.extend(["replicas=2", "durable=1", "protocol=resp2"]),
        }
        if url.contains("+sentinel") {
            settings.push("sentinel_user=s%40t");
        }
        if url.starts_with("rediss") || url.starts_with("redlocks") {
            settings.extend(["ca=/ca", "cert=/a%20b", "key=/key"]);
        }
        let text = format!("{url}?{}", settings.join("&"));
        let kept = redacted(&text).unwrap_or_else(|| panic!("{text} parses"));
        let (place, query) = kept.split_once('?').expect("there are settings");
        assert_eq!(place, url);
        let mut kept: Vec<_> = query.split('&').collect();
        kept.sort_unstable();
        settings.sort_unstable();
        assert_eq!(kept, settings, "{text}");
        assert_eq!(redacted(&format!("{text}&password={SECRET}")), redacted(&text));
    }
}

#[test]
fn sockets_and_sentinels_lose_their_passwords() {
    for (url, left) in [
        (format!("{SOCKET}?db=1&password={SECRET}"), "redis+unix:///run/redis.sock?db=1"),
        (format!("{SOCKET}?password={SECRET}&user=u"), "redis+unix:///run/redis.sock?user=u"),
        (format!("redis+unix:///r%20s?password={SECRET}"), "redis+unix:///r%20s"),
        (format!("redis+sentinel://a/m?sentinel_password={SECRET}"), "redis+sentinel://a/m"),
        (
            format!("rediss+sentinel://u:{SECRET}@a:1/m%2Fn?sentinel_user=s&sentinel_password={SECRET}"),
            "rediss+sentinel://u@a:1/m%2Fn?sentinel_user=s",
        ),
        (format!("rediss://user:p:{SECRET}@h:1/2?prefix=a"), "rediss://user@h:1/2?prefix=a"),
        (format!("redis://h%40i:7?password={SECRET}&db=0"), "redis://h%40i:7"),
    ] {
        assert_eq!(redacted(&url).as_deref(), Some(left), "{url}");
        assert!(StoreUrl::parse(&url).expect("it parses").has_password(), "{url}");
    }
}

#[test]
fn stores_without_users_have_no_password() {
    for url in ["memory:", "memory:a?b", "sqlite:/a:b@c"] {
        let parsed = StoreUrl::parse(url).expect("it parses");
        assert!(!parsed.has_password() && !parsed.supports_credentials(), "{url}");
        assert_eq!(parsed.redacted(), url);
        assert!(parsed.servers().is_empty(), "{url}");
    }
}

#[test]
fn settings_that_are_unknown_make_the_url_unusable() {
    let names = [
        "pass",
        "passwd",
        "passphrase",
        "Password",
        "PASSWORD",
        "p%61ssword",
        "pwd",
        "pw",
        "auth",
        "token",
        "secret",
        "credentials",
        "apikey",
        "username",
        "sentinel_pass",
        "sentinel-password",
        "sentinelPassword",
        "key_password",
        "x",
    ];
    for base in SERVERS.map(|pattern| pattern.replace("{}", "")).iter().map(String::as_str).chain([SOCKET]) {
        for name in names {
            assert_eq!(redacted(&format!("{base}?{name}={SECRET}")), None, "{base} {name}");
            assert_eq!(redacted(&format!("{base}?password=a&{name}={SECRET}")), None, "{base} {name}");
        }
        for query in [
            SECRET.to_owned(),
            format!("password=a&{SECRET}"),
            format!("password=a&{SECRET}="),
            format!("password=a?{SECRET}="),
        ] {
            let url = format!("{base}?{query}");
            // A `?` in a password is one of its characters.
            let expected = query.starts_with("password=a?").then(|| base.to_owned());
            assert_eq!(redacted(&url), expected, "{url}");
        }
        if !base.contains("+sentinel") {
            assert_eq!(redacted(&format!("{base}?sentinel_password={SECRET}")), None, "{base}");
        }
    }
}

#[test]
fn a_secret_in_the_wrong_place_makes_the_url_unusable() {
    for pattern in SERVERS {
        for credentials in [
            format!(":x/{SECRET}@"),
            format!("u:12/{SECRET}@"),
            format!(":x?{SECRET}@"),
            format!(":x#{SECRET}@"),
            format!(":%zz{SECRET}@"),
            format!("h:{SECRET},"),
        ] {
            let url = pattern.replace("{}", &credentials);
            assert_eq!(redacted(&url), None, "{url}");
        }
    }
    for url in [
        "s3cr3tPW",
        "s3cr3tPW:",
        ":s3cr3tPW",
        "",
        "redis:s3cr3tPW",
        "REDIS://:s3cr3tPW@h",
        " redis://:s3cr3tPW@h",
        "valkey://:s3cr3tPW@h",
        "http://u:s3cr3tPW@h",
        "redlock://:s3cr3tPW@a,b",
        "redlock://:s3cr3tPW@a,b,a",
        "redlock://:s3cr3tPW@a,b,c?replicas=1",
        "redlock://:s3cr3tPW@a,b,c?min_uptime=s3cr3tPW",
        "redlock://:s3cr3tPW@a,b,c?node_timeout=s3cr3tPW",
        "redis+unix://u:s3cr3tPW@/s",
        "redis+sentinel://u:12/s3cr3tPW@a",
        "redis+sentinel://:s3cr3tPW@a",
        "redis://h?db=s3cr3tPW",
        "redis://h?replicas=s3cr3tPW",
        "redis://h/s3cr3tPW",
        "redis://h?protocol=s3cr3tPW",
        "redis://h?strict=s3cr3tPW",
        "redis://h?ca=s3cr3tPW",
        "rediss://h?key=s3cr3tPW",
        "redis://h?prefix={s3cr3tPW",
        "redlock+x://:s3cr3tPW@a,b,c",
        "sqlite:",
        "sqlite:locks.db?key=s3cr3tPW",
    ] {
        assert_eq!(redacted(url), None, "{url}");
    }
}
