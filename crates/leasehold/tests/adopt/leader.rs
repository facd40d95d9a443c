//! A service of which one instance assigns the work. It leads again when it has lost the leadership, and gives it up when it
//! is stopped.

use leasehold::{Client, Error, Leadership};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

async fn assign_work(
    name: &'static str,
    leadership: Arc<Leadership>,
    assigned: UnboundedSender<&'static str>,
) {
    while leadership.check().is_ok() && assigned.send(name).is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The main function of an instance.
async fn instance(
    name: &'static str,
    assigned: UnboundedSender<&'static str>,
    stop: oneshot::Receiver<()>,
) -> Result<(), Error> {
    let client = Client::builder("memory:adopt-leader").label(name).connect().await?;
    let scheduler = client.election("scheduler")?;
    tokio::select! {
        error = scheduler.lead_forever(|leadership| assign_work(name, leadership, assigned.clone())) => Err(error.into()),
        _ = stop => Ok(client.shutdown(Duration::from_secs(5)).await?),
    }
}

#[tokio::test]
async fn another_instance_leads_once_the_leader_has_stopped() {
    let (assigned, mut work) = unbounded_channel();
    let (stop_a, stopped_a) = oneshot::channel();
    let (stop_b, stopped_b) = oneshot::channel();
    let a = tokio::spawn(instance("a", assigned.clone(), stopped_a));
    assert_eq!(work.recv().await, Some("a"));
    let b = tokio::spawn(instance("b", assigned, stopped_b));
    stop_a.send(()).unwrap();
    a.await.unwrap().unwrap();
    while work.recv().await.unwrap() != "b" {}
    stop_b.send(()).unwrap();
    b.await.unwrap().unwrap();
}
