//! The driver of rslock: `rslock-driver interop URL` or `rslock-driver bench URL`. The protocols are in `../README.md`.

mod bench;
mod interop;

use std::env;
use std::io::{self, BufRead};

use crate::bench::Bench;
use crate::interop::Interop;

type Error = Box<dyn std::error::Error>;
type Answer = Result<String, Error>;

enum Driver {
    Interop(Interop),
    Bench(Bench),
}

fn main() -> Result<(), Error> {
    let [role, url] = &env::args().skip(1).collect::<Vec<_>>()[..] else {
        return Err("the arguments are ROLE URL".into());
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut driver = match role.as_str() {
        "interop" => Driver::Interop(runtime.block_on(Interop::connect(url.clone()))?),
        "bench" => Driver::Bench(Bench::new(url.clone())?),
        _ => return Err(format!("there is no role {role}: there are interop, bench").into()),
    };
    for line in io::stdin().lock().lines() {
        let line = line?;
        if line == "stop" {
            break;
        }
        let answer = runtime.block_on(async {
            match &mut driver {
                Driver::Interop(interop) => interop.answer(&line).await,
                Driver::Bench(bench) => bench.answer(&line).await,
            }
        });
        match answer {
            Ok(answer) => println!("{answer}"),
            Err(error) => println!("error {error}"),
        }
    }
    Ok(())
}

/// The version of rslock that is linked.
fn version() -> Result<&'static str, Error> {
    let lock_file = include_str!("../Cargo.lock");
    let package = lock_file.split_once("name = \"rslock\"\nversion = \"").ok_or("it is in the lock file")?.1;
    Ok(package.split('"').next().unwrap_or_default())
}
