//! Replies of both protocols, and replies that no script gives.

use super::*;
use leasehold_core::{Evict, ForceRelease, Inspect, ObservedHolder};

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
fn a_session_is_parsed_from_either_protocol() {
    let session = SessionId::from_random([7; 12]);
    let texts =
        ["format", "1", "until", "5000", "metadata", "{}", "l:mutex:b", "1", "l:mutex:a", "1", "new", "x"];
    let pairs = texts.chunks(2).map(|pair| (bulk(pair[0]), bulk(pair[1])));
    let flat = Value::Array(texts.iter().map(|text| bulk(text)).collect());
    for value in [Value::Map(pairs.collect()), flat] {
        let entry = session_entry(session, 4_000, &value).expect("well formed").expect("a session");
        assert_eq!((entry.alive_ms, entry.metadata.as_str()), (Some(1_000), "{}"));
        let held: Vec<_> = entry.held.iter().map(|lock| lock.name.to_string()).collect();
        assert_eq!(held, ["a", "b"]);
        let entry = session_entry(session, 5_001, &value).expect("well formed").expect("a session");
        assert_eq!(entry.alive_ms, None);
    }
    // No record, one of another version, and one that was cut off at its start.
    for texts in [&[][..], &["format", "2", "until", "5000"], &["format", "1"]] {
        let value = Value::Array(texts.iter().map(|text| bulk(text)).collect());
        assert_eq!(session_entry(session, 0, &value), Ok(None), "{texts:?}");
    }
}

#[test]
fn an_audit_is_read_line_by_line() {
    let text = "1762000000123\tforce_released\t17\t1\tweb-1 7\tops\nno line of ours\n\
        1762000000122\tevicted\t\t0\t\t";
    let found = entries(text);
    assert_eq!(found.len(), 2);
    let label = |text| Label::new(text).expect("a plain text is a label");
    assert_eq!(found[0].holder, Some(label("web-1 7")));
    assert_eq!((found[0].ended, found[0].fence), (Ended::ForceReleased, Some(FencingToken::new(17))));
    assert_eq!((found[1].holder.clone(), found[1].fence, found[1].actor.clone()), (None, None, label("")));
    assert_eq!(entries(""), []);
}
