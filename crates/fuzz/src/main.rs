//! The targets under libFuzzer, which `cargo xtask fuzz` builds and runs.
//!
//! The target is named by `LEASEHOLD_FUZZ_TARGET`; all arguments are libFuzzer's.

#![no_main]
#![allow(unsafe_code, reason = "the entry point that libFuzzer calls")]
#![allow(missing_docs, reason = "the macro's functions")]

use leasehold_fuzz::{TARGETS, Target};
use std::sync::LazyLock;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("LEASEHOLD_FUZZ_TARGET").unwrap_or_default();
    Target::named(&name).unwrap_or_else(|| {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("LEASEHOLD_FUZZ_TARGET names one of {}", names.join(", "));
        std::process::exit(2)
    })
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    TARGET.check(input);
});
