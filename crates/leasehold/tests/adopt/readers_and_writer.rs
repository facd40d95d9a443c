//! A price list that many read and one rebuilds.

use leasehold::{Client, Error, RwLock};
use std::sync::Mutex;

struct Prices {
    lock: RwLock,
    /// The version of each of the two halves of the list.
    halves: Mutex<(u32, u32)>,
}

impl Prices {
    async fn version(&self) -> Result<u32, Error> {
        let (first, second) = self.lock.run_reading(|_| async { *self.halves.lock().unwrap() }).await?;
        assert_eq!(first, second, "no reader sees a list half rebuilt");
        Ok(first)
    }

    async fn rebuild(&self) -> Result<(), Error> {
        let rebuilt = self.lock.run_writing(|guard| async move {
            self.halves.lock().unwrap().0 += 1;
            tokio::task::yield_now().await;
            guard.check()?;
            self.halves.lock().unwrap().1 += 1;
            Ok::<_, Error>(())
        });
        rebuilt.await?
    }
}

#[tokio::test]
async fn readers_see_whole_lists() {
    let client = Client::connect("memory:adopt-readers").await.unwrap();
    let prices = Prices { lock: client.rwlock("prices").unwrap(), halves: Mutex::default() };
    let reads = async {
        for _ in 0..50 {
            prices.version().await.unwrap();
        }
    };
    let writes = async {
        for _ in 0..10 {
            prices.rebuild().await.unwrap();
        }
    };
    tokio::join!(reads, writes);
    assert_eq!(prices.version().await.unwrap(), 10);
}
