//! Names: any text is a name, and nothing but a name.

use crate::conformance::client::LONG;
use crate::conformance::fixture::{Fixture, name};
use leasehold_core::{HoldStatus, Lock, LockName};

/// Row 42: every character of a name is literal. Two names are two locks, and no pattern, format or escape is
/// interpreted.
pub async fn any_name_is_literal(fixture: &Fixture) {
    let a = fixture.client().await;
    let unique = format!("{:016x}", fixture.random.bits());
    let long = format!("{unique}{}", "x".repeat(LockName::MAX_LEN - unique.len()));
    let tails = [
        "",
        " ",
        "  ",
        "*",
        "?",
        "[a-z]",
        "\\",
        "\"",
        "'",
        "';--",
        "$(id)",
        "%s%d%n",
        "{tag}",
        "{tag}2",
        "{",
        "{{a}}",
        "\u{e9}",
        "e\u{301}",
        "\u{1f512}",
        "\u{202e}",
        "\u{feff}",
        ":",
        ":record",
        "/..",
        "#",
        "\u{a0}",
    ];
    let names = tails.iter().map(|tail| format!("{unique}{tail}")).chain([long]);
    let locks: Vec<_> = names.map(|text| Lock { kind: fixture.lock.kind, name: name(&text) }).collect();
    let mut claims = Vec::new();
    for lock in &locks {
        assert_eq!(a.store.check(lock), Ok(()), "{lock}");
        let at = a.at(lock);
        let claim = at.claim();
        at.granted(&at.queued_request(&claim, LONG, LONG)).await;
        claims.push(claim);
    }
    for (lock, claim) in locks.iter().zip(&claims) {
        assert_eq!(a.at(lock).status(claim).await, HoldStatus::Held, "{lock}");
    }
    let (first, rest) = (&locks[0], &locks[1..]);
    assert_eq!(a.at(first).release(&claims[0]).await.status, HoldStatus::Held);
    for (lock, claim) in rest.iter().zip(&claims[1..]) {
        assert_eq!(a.at(lock).status(claim).await, HoldStatus::Held, "{lock}");
    }
}

/// Row 42: a name that cannot be is refused before anything is sent, with the reason.
pub async fn invalid_names_are_refused(fixture: &Fixture) {
    let a = fixture.client().await;
    for (name, why) in fixture.subject.refused_names() {
        let lock = Lock { kind: fixture.lock.kind, name };
        assert_eq!(a.store.check(&lock), Err(why), "{lock}");
    }
    assert_eq!(a.store.check(&fixture.lock), Ok(()));
}
