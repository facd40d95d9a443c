//! The locks of most tests, and what tests do with them.

use leasehold::{Client, MultiMutex, Mutex};

pub(crate) fn mutex(client: &Client, name: &str) -> Mutex {
    client.mutex(name).expect("a good name")
}

pub(crate) fn both(client: &Client) -> MultiMutex {
    client.multi_mutex(["a", "b"]).expect("good names")
}

pub(crate) async fn force_release(mutex: &Mutex) {
    let seen = mutex.inspect_full().await.expect("an answer").observed.expect("the lock has a holder");
    mutex.force_release(seen).await.expect("freed");
}
