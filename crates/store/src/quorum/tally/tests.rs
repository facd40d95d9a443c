//! Tables: the replies of the nodes, and their result.

use super::*;
use leasehold_core::{
    Claim, Executed, Extend, HoldId, Inspect, Label, LockMode, Release, ReleaseAction, SessionId,
};

fn op(what: &str) -> Op {
    let claim = Claim::new(HoldId::from_random(SessionId::from_random([1; 12]), [2; 16]));
    match what {
        "extend" => Op::Extend(Extend { claim, lease_ms: 1, keep_record: false, reserve: None, fence: None }),
        "release" => {
            Op::Release(Release { claim, action: ReleaseAction::FreeAndPublish, next: None, history: 0 })
        }
        "inspect" => Op::Inspect(Inspect { claim: Some(claim), details: false }),
        other => panic!("no operation `{other}`"),
    }
}

fn holder(who: &str) -> Holder {
    Holder {
        label: Label::new(who).ok(),
        owner: None,
        count: 1,
        remaining_ms: Some(1_000),
        fence: None,
        since_ms: None,
        session: None,
        mode: LockMode::Exclusive,
        in_cooldown: false,
    }
}

/// `H` held, `R` released before, `F` released by force, `V` vanished, `S` held by another client, `-` unknown hold;
/// `x` not executed, `?` no answer, `.` none yet.
fn answer(what: &str, letter: char) -> Option<Outcome> {
    let fault = Fault::new(FaultKind::TimedOut, Phase::Reply, "a node");
    let hold_status = match letter {
        'H' => HoldStatus::Held,
        'R' => HoldStatus::Ended(Ended::Released),
        'F' => HoldStatus::Ended(Ended::ForceReleased),
        'V' => HoldStatus::Vanished,
        'S' => HoldStatus::Superseded,
        '-' => HoldStatus::Forgotten,
        'x' => return Some(Outcome::Failed(Executed::No, fault)),
        '?' => return Some(Outcome::Failed(Executed::Unknown, fault)),
        _ => return None,
    };
    let holder = match hold_status {
        HoldStatus::Held => Some(holder("us")),
        HoldStatus::Superseded => Some(holder("them")),
        _ => None,
    };
    Some(Outcome::Done(match what {
        "extend" if hold_status == HoldStatus::Held => Reply::Extend(Extended::Extended),
        "extend" => Reply::Extend(Extended::NotHeld),
        "release" => Reply::Release(Released {
            status: hold_status,
            remaining_holds: 0,
            holder: holder.filter(|_| hold_status == HoldStatus::Superseded),
            next_waiter: None,
            next: None,
        }),
        _ => Reply::Inspect(Inspection {
            holder,
            waiters: 0,
            queue: Vec::new(),
            hold_status: Some(hold_status),
            foreign_fingerprint: None,
            audit: Vec::new(),
            history: Vec::new(),
            shared_holders: Vec::new(),
            limit: None,
            agreed: None,
            votes: None,
            blocked_ms: None,
            skipped: Skipped::default(),
        }),
    }))
}

fn shown(what: &str, answers: &str) -> String {
    let mut tally = Tally::new(answers.len());
    for (at, letter) in answers.chars().enumerate() {
        if let Some(answer) = answer(what, letter) {
            tally.note(at, answer);
        }
    }
    match tally.result(&op(what)) {
        TallyResult::Known(Reply::Extend(extended)) => format!("{extended:?}"),
        TallyResult::Known(Reply::Release(released)) => format!("{:?}", released.status),
        TallyResult::Known(Reply::Inspect(seen)) => {
            let who =
                seen.holder.and_then(|holder| holder.label).map_or("none".to_owned(), |who| who.to_string());
            format!("{:?}, {who}", seen.hold_status.expect("the inspection names a hold"))
        }
        TallyResult::Known(other) => panic!("{other:?}"),
        TallyResult::Open if tally.is_complete() => match tally.failure() {
            Outcome::Failed(Executed::No, _) => "not executed".to_owned(),
            _ => "unknown".to_owned(),
        },
        TallyResult::Open => "open".to_owned(),
    }
}

#[test]
fn replies_combine_to_a_result() {
    for (what, answers, meaning) in [
        ("extend", "HHH..", "open"),
        ("extend", "HHH?.", "open"),
        ("extend", "HHH?-", "Voted(Votes { held: 3, nodes: 5 })"),
        ("extend", "HH-..", "open"),
        ("extend", "HH-?x", "unknown"),
        ("extend", "HH--x", "unknown"),
        ("extend", "---..", "NotHeld"),
        ("extend", "xxxxx", "not executed"),
        ("extend", "?xxxx", "unknown"),
        ("extend", "HH-", "Voted(Votes { held: 2, nodes: 3 })"),
        ("extend", "HH--", "NotHeld"),
        ("release", "HHH..", "Held"),
        ("release", "RRR..", "Ended(Released)"),
        ("release", "HRR..", "Ended(Released)"),
        ("release", "HH...", "open"),
        ("release", "HH-??", "unknown"),
        ("release", "HH--?", "unknown"),
        ("release", "HH---", "Forgotten"),
        ("release", "FFF..", "Ended(ForceReleased)"),
        ("release", "FFF-H", "Ended(ForceReleased)"),
        ("release", "SSSVV", "Superseded"),
        ("release", "VVV--", "Vanished"),
        ("release", "---..", "Forgotten"),
        ("inspect", "HHH..", "open"),
        ("inspect", "HHH?x", "Held, us"),
        ("inspect", "HH---", "Forgotten, none"),
        ("inspect", "HH-x?", "unknown"),
        ("inspect", "SSSxx", "Superseded, them"),
        ("inspect", "-----", "Forgotten, none"),
        ("inspect", "RRR--", "Ended(Released), none"),
        ("inspect", "xx???", "unknown"),
    ] {
        assert_eq!(shown(what, answers), meaning, "{what} {answers}");
    }
}

fn voted(votes: &str) -> String {
    let mut tally = AcquireVotes::new(votes.len());
    for (at, letter) in votes.chars().enumerate() {
        let fault = || Fault::new(FaultKind::TimedOut, Phase::Reply, "a node");
        let taken = |holder| Acquired::Taken {
            holder: Some(holder),
            position: None,
            predecessor: None,
            other_holders: Vec::new(),
        };
        tally.note(
            at,
            match letter {
                '1'..='9' => Outcome::Done(Reply::Acquire(Acquired::Granted {
                    fence: FencingToken::new(u64::from(letter as u32 - '0' as u32)),
                    remaining_ms: 100 * u64::from(letter as u32 - '0' as u32),
                    others_wait: false,
                    owner_holds: None,
                })),
                // A second hold of the owner; the letter is its token.
                'a'..='i' => Outcome::Done(Reply::Acquire(Acquired::Granted {
                    fence: FencingToken::new(u64::from(letter as u32 - 'a' as u32) + 1),
                    remaining_ms: 100,
                    others_wait: false,
                    owner_holds: Some(OwnerHolds { count: 2, lease_ms: 100 }),
                })),
                'T' => Outcome::Done(Reply::Acquire(taken(holder("them")))),
                // By another hold of the same client.
                'V' => Outcome::Done(Reply::Acquire(taken(Holder {
                    fence: Some(FencingToken::new(99)),
                    ..holder("them")
                }))),
                'U' => Outcome::Done(Reply::Acquire(taken(holder("others")))),
                'S' => Outcome::Done(Reply::Acquire(Acquired::AlreadyEnded(Ended::Released))),
                'K' => Outcome::Done(Reply::Refused(Refused::WrongKind { found: "list".into() })),
                'x' => Outcome::Failed(Executed::No, fault()),
                '?' => Outcome::Failed(Executed::Unknown, fault()),
                _ => continue,
            },
        );
    }
    if let Some(granted) = tally.granted(false) {
        assert_eq!(tally.granted(true), Some(granted), "time changes only what is open");
        return format!("given {} for {}", granted.fence, granted.remaining_ms);
    }
    if !tally.is_lost() {
        let late = tally.granted(true).map(|granted| format!(", late {}", granted.fence));
        return format!("open{}", late.unwrap_or_default());
    }
    match tally.lost() {
        Outcome::Done(Reply::Acquire(Acquired::Taken { holder, .. })) => holder
            .and_then(|holder| holder.label)
            .map_or("split vote".to_owned(), |who| format!("taken by {who}")),
        Outcome::Done(Reply::Acquire(Acquired::AlreadyEnded(_))) => "already ended".to_owned(),
        Outcome::Done(Reply::Refused(refused)) => format!("{refused:?}"),
        Outcome::Failed(Executed::No, _) => "not executed".to_owned(),
        Outcome::Failed(Executed::Unknown, _) => "unknown".to_owned(),
        Outcome::Done(other) => panic!("{other:?}"),
    }
}

#[test]
fn votes_combine_to_a_result() {
    for (votes, meaning) in [
        ("314..", "given 4 for 100"),
        ("3149?", "given 9 for 300"),
        ("31...", "open"),
        ("31TT.", "open"),
        ("ddd..", "given 4 for 100"),
        // Nodes that granted the first hold late have a greater token.
        ("dde..", "open, late 5"),
        ("ddeed", "given 4 for 100"),
        ("ddeT.", "open, late 5"),
        // The owner may have lost the lock in between: at some nodes this is its only hold.
        ("dd7..", "open, late 7"),
        ("dd7T?", "given 7 for 100"),
        ("ddeTT", "given 5 for 100"),
        ("ddT..", "open"),
        ("TTT..", "taken by them"),
        ("31TTT", "taken by them"),
        ("1TTUU", "split vote"),
        ("12TUx", "split vote"),
        ("1TTVV", "split vote"),
        ("12TT?", "taken by them"),
        ("xxx..", "not executed"),
        ("1xxx.", "not executed"),
        ("1xx?.", "unknown"),
        ("1xT?x", "not executed"),
        ("TTTxx", "taken by them"),
        ("SSS..", "already ended"),
        ("KKK..", "WrongKind { found: \"list\" }"),
    ] {
        assert_eq!(voted(votes), meaning, "{votes}");
    }
}
