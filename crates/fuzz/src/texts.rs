//! Texts with a parser: names, ids, durations, detached holds, owners in headers, and statistics.
//!
//! What is parsed is printed as it was written, or parses to the same again where there are several ways to write it.

use crate::input::Input;
use leasehold::store::FindingCode;
use leasehold::{DetachedHold, Owner};
use leasehold_core::model::StatisticsTable;
use leasehold_core::{
    ClassStatistics, FencingToken, Fingerprint, HoldId, KeyError, KeySpace, KeyedName, Kind, Label, Lock,
    LockMode, LockName, MergeStatistics, Nonce, Notification, OwnValue, SessionId, parse_duration,
};
use std::collections::BTreeSet;
use std::fmt::{Debug, Display};
use std::str::FromStr;
use std::time::Duration;

/// What names and ids are made of.
pub(crate) const NAME_WORDS: &[&str] = &[
    "{",
    "}",
    "{orders}",
    "leasehold:",
    "leasehold:{",
    "record:",
    "mutex:",
    "#key:",
    "%sha1:",
    ":",
    "é",
    "\u{85}",
    "p1:2",
    "a1:2",
    "t0:2",
    "m1:2",
    "grant ",
    "force_released ",
    "wanted ",
    "AAAAAAAAAAAAAAAA",
    ".",
    "AAAAAAAAAAAAAAAAAAAAAA",
    "000000020000000000000001",
    "9007199254740991",
    "semaphore",
    "eviction",
];
/// What durations are made of.
pub(crate) const DURATION_WORDS: &[&str] = &[
    "ms",
    "s",
    "m",
    "h",
    "d",
    ".",
    "0.001",
    "18446744073709551615",
    "213503982334",
    "1h30m",
    "-",
    "+",
    "1e3",
];
/// What detached holds are made of.
pub(crate) const DETACHED_WORDS: &[&str] = &[
    "\"format\":1",
    "\"kind\":\"mutex\"",
    "\"kind\":\"semaphore\"",
    "\"name\":",
    "\"hold\":",
    "\"value\":",
    "\"fence\":",
    "\"lease_ms\":",
    "\"margin_ms\":",
    "\"ends_by_ms\":",
    "18446744073709551615",
    "null",
    "-1",
    "1e3",
    "AAAAAAAAAAAAAAAA.AAAAAAAAAAAAAAAAAAAAAA",
    "{",
    "}",
    ",",
];
/// What owners in headers are made of.
pub(crate) const OWNER_WORDS: &[&str] =
    &["%", "%20", "%2C", "%ff", "%C3%BC", "leasehold", "leasehol%64", ":1", ",", " ", "%00", "%0A"];
/// What statistics are made of.
pub(crate) const STATISTICS_WORDS: &[&str] = &[
    "h",
    "w",
    "=",
    " ",
    "taken=",
    "refused=",
    "losses=",
    "Hold=",
    "Wait=",
    "h58=1",
    "h216=",
    "w65535=",
    "9007199254740991",
    "18446744073709551615",
    "{\"classes\":{",
    "\"holds\":{\"3\":2}",
    "\"from_ms\":",
];

/// Checks that a text is printed as it was parsed.
fn check_round_trip<T>(text: &str)
where
    T: FromStr + Display + PartialEq + Debug,
{
    let Ok(parsed) = text.parse::<T>() else { return };
    let shown = parsed.to_string();
    assert!(shown.parse::<T>().is_ok_and(|again| again == parsed), "`{text}` shows as `{shown}`");
}

pub(crate) fn names(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (first, second) = text.split_once('\n').unwrap_or((&text, ""));
    if let Ok(name) = first.parse::<LockName>() {
        assert_eq!(name.as_str(), first);
        if let Ok(keyed) = KeyedName::new(name.clone()) {
            let keys = [first, second, &text].map(|key| (key, keyed.for_key(key)));
            for (one, name) in &keys {
                assert!(LockName::new(name.as_str()).is_ok_and(|again| again == *name));
                assert!(keys.iter().all(|(other, of_other)| (one == other) == (name == of_other)));
            }
        }
        if let Ok(other) = second.parse::<LockName>() {
            check_keys(&name, &other);
        }
    }
    for text in [first, second] {
        check_round_trip::<SessionId>(text);
        check_round_trip::<Nonce>(text);
        check_round_trip::<FencingToken>(text);
        check_round_trip::<Fingerprint>(text);
        if let Ok(code) = text.parse::<FindingCode>() {
            assert_eq!(code.as_str(), text);
        }
        if let Some(kind) = Kind::parse(text) {
            assert_eq!(kind.as_str(), text);
        }
        if let Some(mode) = LockMode::parse(text) {
            assert_eq!(mode.encode(), text);
            let _ = (mode.total(), mode.count());
        }
        assert!(Label::new(text).is_ok_and(|label| label.as_str() == text) || Label::new(text).is_err());
        assert!(
            OwnValue::new(text).is_ok_and(|value| value.as_str() == text) || OwnValue::new(text).is_err()
        );
        if let Ok(hold) = HoldId::from_token(text) {
            assert_eq!(hold.token(), text);
            let secret = text.split_once('.').map_or("", |(_, secret)| secret);
            assert!(!format!("{hold:?}").contains(secret), "a hold id is shown");
        }
        let to = SessionId::from_random([7; 12]);
        if let Ok(notification) = Notification::parse(to, text.as_bytes()) {
            assert_eq!(Notification::parse(to, notification.message().as_bytes()), Ok(notification));
        }
    }
    let _ = Notification::parse(SessionId::from_random([7; 12]), input);
}

/// Two locks share no key, in any key space.
fn check_keys(one: &LockName, other: &LockName) {
    for prefix in ["", "app:", one.as_str()] {
        let Ok(space) = KeySpace::new(prefix) else { continue };
        let mut seen = BTreeSet::new();
        for name in if one == other { vec![one] } else { vec![one, other] } {
            let mut own = BTreeSet::new();
            for kind in Kind::ALL {
                match space.lock(&Lock { kind, name: name.clone() }) {
                    Ok(keys) => {
                        let of_kind =
                            [keys.audit(), keys.history(), keys.ends(), keys.line(), keys.record().into()];
                        for key in of_kind {
                            assert!(own.insert(key.clone()), "{key} has two meanings");
                        }
                        own.insert(keys.name().to_owned());
                        let _ = (keys.slot(), keys.redisson_channel(), space.release_channel(&keys));
                    }
                    Err(KeyError::Brace | KeyError::Reserved) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            for key in own {
                assert!(seen.insert(key.clone()), "{key} belongs to two locks");
            }
        }
    }
}

pub(crate) fn durations(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    match parse_duration(&text) {
        Ok(duration) => {
            assert_eq!(duration.subsec_nanos() % 1_000_000, 0, "{duration:?}");
            // As the program shows it.
            let shown = if duration.is_zero() { "0s".to_owned() } else { format!("{duration:?}") };
            assert_eq!(parse_duration(&shown), Ok(duration), "`{text}` shows as `{shown}`");
        }
        Err(error) => assert!(error.to_string().len() <= 200 + 3 * text.len()),
    }
}

pub(crate) fn detached(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let found = text.parse::<DetachedHold>();
    // The secret half of a hold id, if there is one.
    let secret = text.split('"').filter_map(|word| HoldId::from_token(word).ok()).map(|hold| hold.token());
    let secrets: Vec<_> = secret.filter_map(|token| Some(token.split_once('.')?.1.to_owned())).collect();
    let check = |shown: &str| {
        // A name that contains the same text shows it.
        let is_shown =
            |secret: &String| text.matches(secret.as_str()).count() == 1 && shown.contains(secret.as_str());
        assert!(!secrets.iter().any(is_shown), "a secret is shown: {shown}");
    };
    match found {
        Ok(hold) => {
            let printed = hold.to_secret_text();
            let again: DetachedHold = match printed.parse() {
                Ok(again) => again,
                Err(error) => panic!("`{printed}` does not parse: {error}"),
            };
            assert_eq!(again.to_secret_text(), printed);
            assert_eq!((again.name(), again.lease()), (hold.name(), hold.lease()));
            assert_eq!(
                (again.fencing_token(), again.expires_at()),
                (hold.fencing_token(), hold.expires_at())
            );
            check(&format!("{hold:?}"));
        }
        Err(error) => check(&format!("{error} {error:?}")),
    }
}

pub(crate) fn owners(input: &[u8]) {
    if let Ok(owner) = Owner::from_header(input) {
        let header = owner.to_header();
        assert!(header.bytes().all(|byte| byte.is_ascii_graphic() && byte != b','), "{header}");
        let again = Owner::from_header(&header);
        assert_eq!(again.as_ref().map(Owner::as_str), Ok(owner.as_str()), "{header}");
    }
    let text = String::from_utf8_lossy(input);
    if let Ok(owner) = Owner::new(&*text) {
        assert_eq!(owner.as_str(), &*text);
        assert_eq!(Owner::from_header(owner.to_header()), Ok(owner));
    }
}

pub(crate) fn statistics(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (first, second) = text.split_once('\n').unwrap_or((&text, ""));
    let mut statistics = ClassStatistics::from_text(first);
    let printed = statistics.to_text();
    assert_eq!(ClassStatistics::from_text(&printed).to_text(), printed);
    statistics.merge(&ClassStatistics::from_text(second));
    for histogram in [&statistics.holds, &statistics.waits] {
        let times = [0.0, 0.5, 0.99, 1.0].map(|part| histogram.quantile(part));
        assert!(times.is_sorted(), "{times:?}");
        let _ = (histogram.total(), histogram.count());
    }
    let mut choices = Input::new(input);
    if let Ok(mut table) = serde_json::from_str::<StatisticsTable>(&text) {
        let now_ms = u64::from(choices.byte()) << (choices.below(57));
        let classes = vec![("orders/*".to_owned(), now_ms, statistics)];
        table.merge(now_ms, &MergeStatistics { classes });
        table.expire(now_ms.saturating_add(1));
        for kept in table.classes.values() {
            let _ = (kept.holds.quantile(0.5), kept.waits.total() > Duration::ZERO, kept.to_text());
        }
        let printed = serde_json::to_string(&table).unwrap_or_default();
        assert!(serde_json::from_str::<StatisticsTable>(&printed).is_ok(), "{printed}");
    }
}
