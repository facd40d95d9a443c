//! Leasehold's own driver, with the bench protocol of `drivers/README.md` as the other libraries' drivers.

use super::driver::{Acquisition, merge};
use crate::critical_section::now_ns;
use crate::worker::protocol::{Requests, reply};
use anyhow::{Context, Result, bail};
use leasehold::{Client, Guard, Mutex};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Leasehold's name among the libraries.
pub(crate) const NAME: &str = "leasehold";

/// Answers requests until `stop`.
pub(crate) async fn run(url: &str) -> Result<()> {
    let client = crate::client::connect(url).await?;
    let mut held = BTreeMap::new();
    let mut requests = Requests::new();
    reply(&format!("ready {NAME} {} {}", env!("CARGO_PKG_VERSION"), now_ns()))?;
    loop {
        let request = requests.next().await?;
        if request == "stop" {
            return Ok(());
        }
        match answer(&client, &mut held, &request).await {
            Ok(answer) => reply(&answer)?,
            Err(error) => reply(&format!("error {error:#}"))?,
        }
    }
}

async fn answer(client: &Client, held: &mut BTreeMap<String, Guard>, request: &str) -> Result<String> {
    match request.split(' ').collect::<Vec<_>>()[..] {
        ["acquire", name] => {
            let called_ns = now_ns();
            let guard = client.mutex(name)?.acquire().await?;
            let returned_ns = now_ns();
            held.insert(name.to_owned(), guard);
            Ok(format!("acquired {called_ns} {returned_ns}"))
        }
        ["release", name, pause_us] => {
            tokio::time::sleep(Duration::from_micros(pause_us.parse()?)).await;
            let guard = held.remove(name).context("the lock is not held")?;
            let called_ns = now_ns();
            guard.release().await?;
            Ok(format!("released {called_ns}"))
        }
        ["contend", name, tasks, ms] => {
            let all = merge(&[acquisitions(&client.mutex(name)?, tasks.parse()?, ms.parse()?).await?]);
            Ok(format!("contended {} {} {}", all.sections, all.handovers, all.served))
        }
        ["trace", name, tasks, ms] => {
            let mut answer = "trace".to_owned();
            for (acquired_ns, task) in acquisitions(&client.mutex(name)?, tasks.parse()?, ms.parse()?).await?
            {
                write!(answer, " {task}@{acquired_ns}")?;
            }
            Ok(answer)
        }
        _ => bail!("there is no such request"),
    }
}

/// The acquisitions of all tasks.
async fn acquisitions(mutex: &Mutex, tasks: u32, ms: u64) -> Result<Vec<Acquisition>> {
    let until_ns = now_ns() + ms * 1_000_000;
    let tasks: Vec<_> =
        (0..tasks).map(|task| tokio::spawn(run_task(mutex.clone(), task, until_ns))).collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await??);
    }
    Ok(all)
}

async fn run_task(mutex: Mutex, task: u32, until_ns: u64) -> Result<Vec<Acquisition>> {
    let mut acquired = Vec::new();
    while now_ns() < until_ns {
        let guard = mutex.acquire().await?;
        let acquired_ns = now_ns();
        guard.release().await?;
        if acquired_ns < until_ns {
            acquired.push((acquired_ns, task));
        }
    }
    Ok(acquired)
}
