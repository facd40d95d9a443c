//! What URLs mean, and which ones are refused.

use super::parse::{parse, parse_quorum};
use crate::config::RedisConfig;

fn shown(url: &str) -> String {
    match parse(url) {
        Ok(config) => config.summary_for_test(),
        Err(error) => format!("{error:?}"),
    }
}

#[test]
fn urls_and_what_they_mean() {
    for (url, meaning) in [
        ("redis://h", "tcp h:6379 db 0 prefix ``"),
        ("redis://h:7/2", "tcp h:7 db 2 prefix ``"),
        ("redis://h/", "tcp h:6379 db 0 prefix ``"),
        ("rediss://u:p@h:1?prefix=app:", "tls h:1 db 0 prefix `app:` user u password p"),
        ("redis://:p%40:%2F@h", "tcp h:6379 db 0 prefix `` password p@:/"),
        ("redis://:p@ss@h", "tcp h:6379 db 0 prefix `` password p@ss"),
        ("redis://u@h", "tcp h:6379 db 0 prefix `` user u"),
        ("redis://u:@h", "tcp h:6379 db 0 prefix `` user u password "),
        ("redis://[::1]:7000/1", "tcp ::1:7000 db 1 prefix ``"),
        ("redis://[::1]", "tcp ::1:6379 db 0 prefix ``"),
        ("redis://h?db=3&user=u&password=a%26b", "tcp h:6379 db 3 prefix `` user u password a&b"),
        ("redis+unix:///run/r%20s.sock?db=1", "unix /run/r s.sock db 1 prefix ``"),
        ("redis+sentinel://a,b:7,[::1]/main", "tcp main of a:26379, b:7, ::1:26379 db 0 prefix ``"),
        (
            "rediss+sentinel://u:p@a/m%2Fn/2?sentinel_user=s&sentinel_password=t&prefix=app:",
            "tls by s with t m/n of a:26379 db 2 prefix `app:` user u password p",
        ),
        ("redis+cluster://a,b:7,[::1]", "tcp a:6379, b:7, ::1:6379 db 0 prefix ``"),
        ("redis+cluster://u:p@a/?db=0&strict=1", "tcp a:6379 db 0 prefix `` user u password p strict"),
        ("rediss+cluster://a,b?ca=/ca&replicas=1", "tls a:6379, b:6379 db 0 prefix `` ca /ca 1 replicas"),
        ("redis+cluster://a,b/1", "tcp a:6379, b:6379 db 1 prefix ``"),
        ("redis+cluster://a?db=1", "tcp a:6379 db 1 prefix ``"),
        ("redis+cluster://a/x", "Database"),
        ("redis+cluster://a,,b", "Host"),
        ("redis+cluster://a?ca=/ca", "NoTls"),
        ("redis://h?strict=1", "tcp h:6379 db 0 prefix `` strict"),
        ("redis://h?protocol=resp2", "tcp h:6379 db 0 prefix `` resp2"),
        ("rediss://h?protocol=2&strict=1", "tls h:6379 db 0 prefix `` resp2 strict"),
        ("redis+unix:///s?protocol=resp2&protocol=resp3", "Twice { setting: \"protocol\" }"),
        ("redis://h?prefix=a&prefix=a", "Twice { setting: \"prefix\" }"),
        ("redis://u@h?user=v", "Twice { setting: \"user\" }"),
        ("redis://:p@h?password=", "Twice { setting: \"password\" }"),
        ("redis://h/1?db=2", "Twice { setting: \"db\" }"),
        ("redis+sentinel://a/m/1?db=2", "Twice { setting: \"db\" }"),
        ("rediss://h?ca=/a&ca=/b", "Twice { setting: \"ca\" }"),
        ("redis+sentinel://a/main?protocol=resp2", "tcp main of a:26379 db 0 prefix `` resp2"),
        ("redis+cluster://a?protocol=resp3", "tcp a:6379 db 0 prefix ``"),
        ("redis+cluster://a?protocol=resp2", "ClusterProtocol"),
        ("redis://h?protocol=RESP2", "Protocol"),
        ("redis://h?protocol=", "Protocol"),
        ("redis+sentinel://a/main?strict=1", "tcp main of a:26379 db 0 prefix `` strict"),
        ("redis://h?strict=1&strict=0", "Twice { setting: \"strict\" }"),
        ("redis://h?strict=", "Strict"),
        ("redis://h?strict=true", "Strict"),
        ("redis://h?strict", "Setting"),
        ("http://h", "Scheme"),
        ("redis://h?replicas=2", "tcp h:6379 db 0 prefix `` 2 replicas"),
        ("redis://h?durable=1", "tcp h:6379 db 0 prefix `` durable"),
        ("redis://h?durable=0", "tcp h:6379 db 0 prefix ``"),
        ("redis://h?durable=yes", "Durable"),
        ("redis://h?replicas=0", "Replicas"),
        ("redis://h?replicas=secret", "Replicas"),
        ("redis+sentinel://a,b", "Primary"),
        ("redis+sentinel://a//1", "Primary"),
        ("redis+sentinel://u:12/secret@a/main", "Primary"),
        ("redis+sentinel://u:12/secret@a", "Primary"),
        ("redis+sentinel://a,,b/main", "Host"),
        ("redis+sentinel://a,b:secret/main", "Port"),
        ("redis+sentinel://a/main/secret", "Database"),
        ("redis://h?sentinel_password=secret", "NoSentinels"),
        ("h:6379", "Scheme"),
        ("redis://", "Host"),
        ("redis://:secret@", "Host"),
        ("redis://[::1", "Host"),
        ("redis://[h]", "Host"),
        ("redis://h h", "Host"),
        ("redis://h:secret", "Port"),
        ("redis://h:0", "Port"),
        ("redis://h:65536", "Port"),
        ("redis://u:sec/ret@h", "Port"),
        ("redis://h/x", "Database"),
        ("redis://h/4294967295", "Database"),
        ("redis://:%zz@h", "Percent { part: \"password\" }"),
        ("redis://:%ff@h", "Percent { part: \"password\" }"),
        ("redis://h?secret", "Setting"),
        ("redis://h?x=secret", "UnknownSetting { name: \"x\" }"),
        ("redis://h?prefx=secret&db=1", "UnknownSetting { name: \"prefx\" }"),
        ("redis://h?min_uptime=1m", "UnknownSetting { name: \"min_uptime\" }"),
        ("redis://h?Prefix=secret", "Setting"),
        ("redis://h?password=a&secret=b", "Setting"),
        ("redis://:a?secret=b@h", "Port"),
        ("redis://a?secret=b@h", "Setting"),
        ("rediss://h#insecure", "Fragment"),
        ("rediss://h?ca=/a%20b&cert=c&key=d", "tls h:6379 db 0 prefix `` ca /a b cert c key d"),
        ("rediss+sentinel://a/main?ca=/ca", "tls main of a:26379 db 0 prefix `` ca /ca"),
        ("redis://h?ca=/secret", "NoTls"),
        ("redis+unix:///s?cert=/c&key=/k", "NoTls"),
        ("redis+sentinel://a/main?key=/k", "NoTls"),
        ("rediss://h?cert=/secret", "KeyPair"),
        ("rediss://h?key=/secret", "KeyPair"),
        ("rediss://h?ca=", "File { part: \"ca\" }"),
        ("rediss://h?ca=a%00", "File { part: \"ca\" }"),
        ("redis+unix://run/redis.sock", "SocketPath"),
        ("redis+unix:///", "SocketPath"),
        ("redis+unix://u:p@/run/redis.sock", "SocketHost"),
        ("redis://h?prefix=%7Bx", "Prefix(PrefixCharacter)"),
    ] {
        assert_eq!(shown(url), meaning, "{url}");
    }
}

#[test]
fn a_database_is_named_once_also_if_it_is_the_default() {
    for url in
        ["redis://h/0?db=1", "redis://h/0?db=0", "redis+sentinel://a/m/0?db=2", "redis+cluster://a/0?db=0"]
    {
        assert_eq!(shown(url), "Twice { setting: \"db\" }", "{url}");
    }
    assert_eq!(shown("redis://h/?db=1"), "tcp h:6379 db 1 prefix ``");
}

#[test]
fn urls_of_quorums_and_what_they_mean() {
    let shown = |url: &str| match parse_quorum(url) {
        Ok(config) => config.summary_for_test(),
        Err(error) => format!("{error:?}"),
    };
    let node = |host: &str| format!("tcp {host} db 0 prefix ``");
    let three = [node("a:6379"), node("b:7"), node("::1:6379")].join(", ");
    for (url, meaning) in [
        ("redlock://a,b:7,[::1]", format!("{three}; 60s, 50ms")),
        ("redlock://a,b:7,[::1]?min_uptime=0s&node_timeout=20ms", format!("{three}; 0ns, 20ms")),
        (
            "redlocks://u:p,q@a,b,c/2?prefix=app:&min_uptime=2m",
            ["a", "b", "c"]
                .map(|h| format!("tls {h}:6379 db 2 prefix `app:` user u password p,q"))
                .join(", ")
                + "; 120s, 50ms",
        ),
        ("redlock://a,b", "Quorum(TooFew { nodes: 2 })".to_owned()),
        ("redlock://a,b,a:6379", "Quorum(Twice { node: \"a:6379\" })".to_owned()),
        ("redlock://a,b,c?replicas=1", "Quorum(Replicas)".to_owned()),
        ("redlock://a,b,c?durable=1", "Quorum(Durable)".to_owned()),
        ("redlock://a,b:7,[::1]?min_uptime=1h30m&node_timeout=0.02s", format!("{three}; 5400s, 20ms")),
        ("redlock://a,b,c?min_uptime=soon", "MinUptime".to_owned()),
        ("redlock://a,b,c?min_uptime=5", "MinUptime".to_owned()),
        ("redlock://a,b,c?node_timeout=0s", "NodeTimeout".to_owned()),
        ("redlock://a,,c", "Host".to_owned()),
        ("redlock://a,b,c/0?db=1", "Twice { setting: \"db\" }".to_owned()),
        ("redlock://a,b:secret,c", "Port".to_owned()),
        ("redlock://a,b,c?x=secret", "UnknownSetting { name: \"x\" }".to_owned()),
        ("redlock://a,b,c?min_uptime=1m&min_uptime=1m", "Twice { setting: \"min_uptime\" }".to_owned()),
        (
            "redlock://a,b,c?node_timeout=1s&strict=1&node_timeout=1s",
            "Twice { setting: \"node_timeout\" }".to_owned(),
        ),
        ("redlock://a,b,c#x", "Fragment".to_owned()),
        ("redis://a,b,c", "Scheme".to_owned()),
    ] {
        assert_eq!(shown(url), meaning, "{url}");
    }
}

#[test]
fn no_error_shows_a_secret() {
    for url in [
        "redis://u:secret",
        "redis://h:secret@",
        "secret",
        "redis://h?x=secret",
        "redis://a?secret=b@h",
        "redis://h?password=a&secret=b",
        "secret://h",
    ] {
        let error = parse(url).expect_err("not a URL");
        assert!(!format!("{error} {error:?}").contains("secret"), "{url}: {error}");
    }
}

#[test]
fn codes_of_findings_are_accepted_by_name() {
    for (url, meaning) in [
        (
            "redis://h?strict=1&accept=lua_vulnerabilities,eviction",
            "tcp h:6379 db 0 prefix `` strict accept eviction accept lua_vulnerabilities",
        ),
        ("redis://h?accept=replica", "tcp h:6379 db 0 prefix `` accept replica"),
        ("redis://h?accept=", "Accept(FindingCodeError)"),
        ("redis://h?accept=eviction,", "Accept(FindingCodeError)"),
        ("redis://h?accept=evictions", "Accept(FindingCodeError)"),
        ("redis://h?accept=not_exclusive", "Accept(FindingCodeError)"),
        ("redis://h?accept=eviction&accept=replica", "Twice { setting: \"accept\" }"),
    ] {
        let parsed = RedisConfig::from_url(url);
        let redacted = parsed.as_ref().ok().map(RedisConfig::redacted_url);
        let shown = parsed.map_or_else(|error| format!("{error:?}"), |config| config.summary_for_test());
        assert_eq!(shown, meaning, "{url}");
        let again = redacted.map(|url| RedisConfig::from_url(&url).expect("a good URL").summary_for_test());
        assert!(again.is_none_or(|again| again == shown), "{url}");
    }
    let error = RedisConfig::from_url("redis://h?accept=hunter2").expect_err("no such code");
    let text = error.to_string();
    assert!(text.contains("`lua_vulnerabilities`") && !text.contains("hunter2"), "{text}");
}
