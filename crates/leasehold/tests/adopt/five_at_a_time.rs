//! Uploads, of which five run at a time over all instances.

use leasehold::{Client, Error};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

#[derive(Default)]
struct Storage {
    running: AtomicUsize,
    most: AtomicUsize,
}

impl Storage {
    async fn upload(&self, _file: u32) {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(2)).await;
        self.running.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn upload_all(client: Client, storage: Arc<Storage>) -> Result<(), Error> {
    let uploads = client.semaphore("uploads", 5)?;
    let mut tasks = JoinSet::new();
    for file in 0..20 {
        let (uploads, storage) = (uploads.clone(), storage.clone());
        tasks.spawn(async move { uploads.run(|_permit| async move { storage.upload(file).await }).await });
    }
    while let Some(uploaded) = tasks.join_next().await {
        uploaded.expect("no upload panics")?;
    }
    Ok(())
}

#[tokio::test]
async fn five_of_forty_uploads_run_at_a_time() {
    let storage = Arc::new(Storage::default());
    let (a, b) = (Client::connect("memory:adopt-five").await, Client::connect("memory:adopt-five").await);
    let (a, b) =
        tokio::join!(upload_all(a.unwrap(), storage.clone()), upload_all(b.unwrap(), storage.clone()));
    a.unwrap();
    b.unwrap();
    let most = storage.most.load(Ordering::SeqCst);
    assert!((2..=5).contains(&most), "{most} at a time");
}
