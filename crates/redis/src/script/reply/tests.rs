//! Replies of both protocols, and replies that no script gives.

use super::*;
use leasehold_core::{Evict, ForceRelease, Inspect, ObservedHolder, SessionList, Skipped};

#[test]
fn replies_that_no_script_gives_are_malformed() {
    let by = || Label::new("test").expect("a plain text is a label");
    for op in [
        Op::Inspect(Inspect { claim: None, details: true }),
        Op::Evict(Evict { session: SessionId::from_random([7; 12]), actor: by() }),
        Op::ForceRelease(ForceRelease { observed: ObservedHolder::Hold(FencingToken::new(1)), actor: by() }),
    ] {
        for value in [
            Value::Nil,
            Value::Okay,
            Value::Int(7),
            Value::Array(vec![]),
            Value::Array(vec![Value::Nil; 3]),
            Value::Array(vec![bulk("gone"), bulk("released"), bulk("alive")]),
        ] {
            assert_eq!(read(&op, &value), Err(Malformed), "{value:?}");
        }
    }
    for value in [Value::Nil, Value::Int(2), Value::Array(vec![])] {
        assert_eq!(heartbeat(&value), Err(Malformed), "{value:?}");
    }
}

fn bulk(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

#[test]
fn records_of_sessions_are_read_and_what_is_none_is_counted() {
    let sessions = [1, 2, 3, 4, 5, 6].map(|of| SessionId::from_random([of; 12]));
    let locks = ["l:mutex:b", "l:mutex:a"].map(bulk);
    let good = [bulk("5000"), bulk("{}"), bulk("waits"), Value::Int(0)].into_iter().chain(locks).collect();
    let bytes = Value::BulkString(vec![0xff, 0xfe]);
    let described = Value::Array(vec![
        bulk("9"),
        bytes.clone(),
        bulk(""),
        Value::Int(2),
        bulk("l:mutex:"),
        bytes.clone(),
    ]);
    let endless = Value::Array(vec![bytes, bulk(""), bulk(""), Value::Int(0)]);
    let records = [Value::Array(good), bulk(""), bulk("type"), described, endless, bulk("format")];
    let value = Value::Array([Value::Int(4_000)].into_iter().chain(records).collect());
    let mut list = SessionList::default();
    assert_eq!(session_records(&sessions, &value, &mut list), Ok(6));
    let [first, fourth] = &list.entries[..] else { panic!("{list:?}") };
    assert_eq!((first.session, first.alive_ms, first.metadata.as_str()), (sessions[0], Some(1_000), "{}"));
    assert_eq!(first.activity, "waits");
    let held: Vec<_> = first.held.iter().map(|lock| lock.name.to_string()).collect();
    assert_eq!(held, ["a", "b"]);
    assert_eq!((fourth.session, fourth.alive_ms, fourth.metadata.as_str()), (sessions[3], None, ""));
    let first = format!("session {}: its record is not a hash", sessions[2]);
    assert_eq!(list.skipped, Skipped { count: 5, first: Some(first) });
    // A call reads one record at least, or it would be sent for ever.
    for records in [&[][..], &[bulk(""), bulk("")]] {
        let value = Value::Array([Value::Int(4_000)].into_iter().chain(records.iter().cloned()).collect());
        assert_eq!(session_records(&sessions[..1], &value, &mut list), Err(Malformed));
    }
}

#[test]
fn an_index_is_read_and_what_is_no_session_is_counted() {
    let session = SessionId::from_random([7; 12]);
    let index = |members: Vec<Value>| sessions(&Value::Array(members)).expect("well formed");
    assert_eq!(index(vec![Value::Int(0), bulk(&session.to_string())]), (vec![session], Skipped::default()));
    let (found, skipped) = index(vec![Value::Int(2), bulk(&session.to_string()), bulk("_____________!!!")]);
    assert_eq!((found, skipped.count), (vec![session], 3));
    let (found, skipped) = index(vec![bulk("kind"), bulk("string")]);
    assert_eq!((found, skipped.count), (vec![], 1));
    assert_eq!(sessions(&Value::Array(vec![])), Err(Malformed));
}

#[test]
fn a_label_of_any_bytes_is_shown() {
    let label = |bytes: &[u8]| shown(&Value::BulkString(bytes.to_vec()), Label::MAX_LEN).expect("a text");
    assert_eq!(label(b"web-3"), "web-3");
    assert_eq!(label(b"a\xff\x1b[2J"), "a\u{fffd}\u{fffd}[2J");
    let long = label("ö".repeat(1_000).as_bytes());
    assert_eq!(Label::new(&long).map(|label| label.as_str().len()), Ok(Label::MAX_LEN));
}

/// The id of a hold is the right to end it.
#[test]
fn what_cannot_be_read_is_shown_without_the_secret_of_a_hold() {
    let text = "7qRSFDCSP57YNsQw.IQkgAAAAAAAAAAAAAAAAAA\nweb-1.lan and 3.5 of x.y_z-abcdefg";
    assert_eq!(without_secrets(text), "7qRSFDCSP57YNsQw.…\nweb-1.lan and 3.5 of x.…");
    assert_eq!(without_secrets(""), "");
    let unread = Value::Array(vec![Value::Int(1), Value::BulkString(text.into())]);
    let mut skipped = Skipped::default();
    skip_holders(&[unread], &mut skipped).expect("as the script writes it");
    let first = skipped.first.expect("there is one");
    assert!(!first.contains("IQkg") && first.starts_with("a holder, `7qRSFDCSP57YNsQw."), "{first}");
}

#[test]
fn an_audit_is_read_line_by_line() {
    let text = "1762000000123\tforce_released\t17\t1\tweb-1 7\tops\nno line of ours\n\
        1762000000122\tevicted\t\t0\t\t";
    let mut skipped = Skipped::default();
    let found = entries(text, &mut skipped);
    assert_eq!(found.len(), 2);
    let label = |text| Label::new(text).expect("a plain text is a label");
    assert_eq!(found[0].holder, Some(label("web-1 7")));
    assert_eq!((found[0].ended, found[0].fence), (Ended::ForceReleased, Some(FencingToken::new(17))));
    assert_eq!((found[1].holder.clone(), found[1].fence, found[1].actor.clone()), (None, None, label("")));
    let first = "a line of the audit, `no line of ours`".to_owned();
    assert_eq!(skipped, Skipped { count: 1, first: Some(first) });
    let mut skipped = Skipped::default();
    assert_eq!(entries("", &mut skipped), []);
    assert!(skipped.is_empty());
    entries(&format!("\u{1b}[2J{}", "x".repeat(100)), &mut skipped);
    assert_eq!(skipped.first, Some(format!("a line of the audit, `\\u{{1b}}[2J{}…`", "x".repeat(60))));
}
