//! The store of `examples/toy_store.rs` passes the conformance suite.

#[path = "../examples/toy_store.rs"]
#[allow(dead_code, reason = "its `main` is the program's")]
mod toy_store;

#[test]
fn passes_the_conformance_suite() {
    assert_eq!(toy_store::failures(), Vec::<String>::new());
}
