//! Our own driver: speaks the protocol of `benches/peers/README.md` as those of the other libraries do.

use super::driver::{Section, together};
use crate::section::now_ns;
use crate::worker::{Orders, say};
use anyhow::{Context, Result, bail};
use leasehold::{Client, Guard, Mutex};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// What we are called among them.
pub(crate) const NAME: &str = "leasehold";

/// Does what it is told until it is told to stop.
pub(crate) async fn drive(url: &str) -> Result<()> {
    let client = Client::connect(url).await?;
    let mut held = BTreeMap::new();
    let mut orders = Orders::new();
    say(&format!("ready {NAME} {} {}", env!("CARGO_PKG_VERSION"), now_ns()))?;
    loop {
        let order = orders.next().await?;
        if order == "stop" {
            return Ok(());
        }
        match answer(&client, &mut held, &order).await {
            Ok(answer) => say(&answer)?,
            Err(error) => say(&format!("error {error:#}"))?,
        }
    }
}

async fn answer(client: &Client, held: &mut BTreeMap<String, Guard>, order: &str) -> Result<String> {
    match order.split(' ').collect::<Vec<_>>()[..] {
        ["take", name] => {
            let asked_ns = now_ns();
            let guard = client.mutex(name)?.acquire().await?;
            let got_ns = now_ns();
            held.insert(name.to_owned(), guard);
            Ok(format!("got {asked_ns} {got_ns}"))
        }
        ["give", name, pause_us] => {
            tokio::time::sleep(Duration::from_micros(pause_us.parse()?)).await;
            let guard = held.remove(name).context("it is not held")?;
            let gave_ns = now_ns();
            guard.release().await?;
            Ok(format!("gave {gave_ns}"))
        }
        ["herd", name, tasks, ms] => {
            let herd = together(&[sections(&client.mutex(name)?, tasks.parse()?, ms.parse()?).await?]);
            Ok(format!("herd {} {} {}", herd.sections, herd.handovers, herd.served))
        }
        ["turns", name, tasks, ms] => {
            let mut answer = "turns".to_owned();
            for (got_ns, task) in sections(&client.mutex(name)?, tasks.parse()?, ms.parse()?).await? {
                write!(answer, " {task}@{got_ns}")?;
            }
            Ok(answer)
        }
        _ => bail!("there is no such request"),
    }
}

/// What all tasks had.
async fn sections(mutex: &Mutex, tasks: u32, ms: u64) -> Result<Vec<Section>> {
    let until_ns = now_ns() + ms * 1_000_000;
    let herd: Vec<_> = (0..tasks).map(|task| tokio::spawn(contend(mutex.clone(), task, until_ns))).collect();
    let mut all = Vec::new();
    for task in herd {
        all.extend(task.await??);
    }
    Ok(all)
}

async fn contend(mutex: Mutex, task: u32, until_ns: u64) -> Result<Vec<Section>> {
    let mut seen = Vec::new();
    while now_ns() < until_ns {
        let guard = mutex.acquire().await?;
        let got_ns = now_ns();
        guard.release().await?;
        if got_ns < until_ns {
            seen.push((got_ns, task));
        }
    }
    Ok(seen)
}
