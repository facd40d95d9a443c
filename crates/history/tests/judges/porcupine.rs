//! Porcupine, a judge of linearizability in Go that is not ours, over exported histories of a Mutex.
//!
//! `cargo xtask history` builds `drivers/porcupine` and names it in `LEASEHOLD_PORCUPINE`. Without that, nothing is compared.

use crate::linearizability::{is_in_order, planted};
use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn porcupine_agrees_on_planted_histories() {
    let Some(porcupine) = std::env::var_os("LEASEHOLD_PORCUPINE") else {
        eprintln!("NOT COMPARED with Porcupine: `cargo xtask history` does that");
        return;
    };
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("porcupine");
    fs::create_dir_all(&directory).expect("a directory");
    let (file, picture) = (directory.join("history.jsonl"), directory.join("picture.html"));
    let (mut condemned, mut acquitted) = (0, 0);
    for (name, history) in planted(15_000) {
        history.write(fs::File::create(&file).expect("a file")).expect("a history that is written");
        let output = Command::new(&porcupine).arg(&file).arg(&picture).output().expect("Porcupine");
        let said = String::from_utf8_lossy(&output.stdout);
        match output.status.code() {
            Some(0) => acquitted += 1,
            Some(1) => condemned += 1,
            _ => panic!("{name}: {said}{}", String::from_utf8_lossy(&output.stderr)),
        }
        assert_eq!(output.status.success(), is_in_order(&history), "{name}: {said}");
        let picture = fs::read_to_string(&picture).expect("a picture");
        assert!(picture.contains("acquire, token"), "{name}: the picture shows no operation");
    }
    println!(
        "Porcupine condemned {condemned} planted histories, and acquitted {acquitted}, as the checks do"
    );
    assert!(condemned > 80 && acquitted > 30, "{condemned} were condemned, and {acquitted} were not");
}
