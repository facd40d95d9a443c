//! Values of a leader whose first reply is lost.

use crate::faulty_store::{Behavior, Counter, FaultyStore, MS};
use leasehold::error::ProclaimError;
use leasehold::store::Op;
use std::time::Duration;

/// The store executes the request, and the connection breaks before its reply: the client repeats it.
#[tokio::test(start_paused = true)]
async fn a_value_whose_reply_was_lost_is_published_once() {
    let sent = Counter::default();
    let store = FaultyStore::with_sessions(move |_, op| match op {
        Op::Proclaim(_) if sent.next() == 0 => Behavior::ExecuteAndDisconnect,
        _ => Behavior::Execute,
    });
    let client = store.client_with_timeout(Duration::from_secs(2)).await;
    let election = client.election("e").expect("a good name");
    let leadership = election.campaign().await.expect("elected");
    leadership.proclaim("ready").await.expect("published by the second request");
    assert_eq!(election.leader().await.expect("an answer").expect("it leads").label, "ready");
}

/// The call ends without a reply, although the store has executed it. The next call replaces the value all the same.
#[tokio::test(start_paused = true)]
async fn a_value_follows_one_whose_outcome_is_unknown() {
    let sent = Counter::default();
    let store = FaultyStore::with_sessions(move |_, op| match op {
        Op::Proclaim(_) if sent.next() == 0 => Behavior::LoseReply,
        _ => Behavior::Execute,
    });
    let client = store.client_with_timeout(100 * MS).await;
    let election = client.election("e").expect("a good name");
    let leadership = election.campaign().await.expect("elected");
    let error = leadership.proclaim("first").await.expect_err("no reply in time");
    assert!(matches!(error, ProclaimError::Store(_)), "{error:?}");
    let fence = leadership.fencing_token();
    leadership.proclaim("second").await.expect("published");
    let leader = election.leader().await.expect("an answer").expect("it leads");
    assert_eq!((leader.label.as_str(), leader.fence), ("second", fence));
}
