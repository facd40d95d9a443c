//! When a waiter attempts, and when a client stands back.

use super::*;

const MS: Duration = Duration::from_millis(1);

fn lock(n: usize) -> Lock {
    Lock::mutex(format!("job/{n}").parse().expect("a name"))
}

/// When the waiter attempts, in ms, after these messages of three nodes: `1` to `3` name it, `-` names another one, and `.`
/// names none. Each message arrives a tenth of a millisecond after the one before.
fn attempt_after(messages: &str) -> f64 {
    let (mut turn, start) = (Turn::default(), Instant::now());
    for (at, message) in messages.chars().enumerate() {
        let now = start + MS / 10 * u32::try_from(at).expect("a few");
        match message {
            '-' => turn.another_was_named(now, 2 * MS),
            '.' => turn.released(now, 3 * MS),
            node => turn.named(node as usize - '1' as usize, 2, now),
        }
    }
    let due = turn.due.expect("a message leads to an attempt");
    (due - start).as_secs_f64() * 1000.0
}

#[test]
fn the_waiter_that_is_named_attempts_first() {
    for (messages, expected) in [
        ("1", 1.0),
        ("12", 0.1),
        ("123", 0.1),
        // The message of one node, twice.
        ("11", 1.0),
        ("-", 12.0),
        ("--", 12.1),
        (".", 4.0),
        ("..", 4.0),
        // The nodes do not agree.
        ("-1", 1.0),
        ("1-", 1.0),
        ("1-2", 0.2),
        // A release that another client was named for leads to no earlier attempt.
        (".-", 12.1),
        ("-.", 12.0),
    ] {
        let seen = attempt_after(messages);
        assert!((seen - expected).abs() < 0.001, "{messages}: {seen}, not {expected}");
    }
}

#[test]
fn an_old_message_does_not_count_for_a_new_release() {
    let (mut turn, start) = (Turn::default(), Instant::now());
    turn.named(0, 2, start);
    let later = start + TURN;
    turn.named(1, 2, later);
    assert_eq!(turn.due, Some(later + RELAY_DELAY), "one node has published this release so far");
    turn.named(2, 2, later + MS);
    assert_eq!(turn.due.take(), Some(later + MS), "a majority has");
    turn.named(0, 2, later + 2 * MS);
    assert_eq!(turn.due, None, "the attempt has begun");
    turn.another_was_named(later + TURN, Duration::ZERO);
    assert_eq!(turn.due, Some(later + 2 * TURN));
}

#[test]
fn a_client_stands_back_after_a_release_that_named_another_one() {
    let (contention, now) = (Contention::default(), Instant::now());
    let session = SessionId::from_random([7; 12]);
    assert_eq!(contention.stand_back(&lock(1), session, now), Duration::ZERO);
    contention.released_to_waiters(&lock(1), session, now);
    assert_eq!(contention.stand_back(&lock(1), session, now + 2 * MS) + 2 * MS, STAND_BACK);
    assert_eq!(contention.stand_back(&lock(1), session, now + STAND_BACK), Duration::ZERO);
    assert_eq!(contention.stand_back(&lock(2), session, now), Duration::ZERO);
    let other = SessionId::from_random([8; 12]);
    assert_eq!(
        contention.stand_back(&lock(1), other, now),
        Duration::ZERO,
        "it may be the waiter that was named"
    );
}

#[test]
fn locks_without_contention_are_forgotten() {
    let (contention, now) = (Contention::default(), Instant::now());
    let session = SessionId::from_random([7; 12]);
    for n in 0..MIN_SWEPT {
        contention.lost(&lock(n), session, now);
    }
    contention.lost(&lock(0), session, now + FORGOTTEN_AFTER);
    contention.lost(&lock(MIN_SWEPT), session, now + FORGOTTEN_AFTER);
    assert_eq!(contention.with(|table| table.locks.len()), 2);
    assert_eq!(contention.session(&lock(0)), Some(session));
    assert_eq!(contention.session(&lock(1)), None);
}
