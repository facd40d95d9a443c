//! What every kind of lock promises, on any store.
//!
//! `tests/api` runs these cases on the memory store, `tests/server` on SQLite and Redis: each defines `on_store!`, which
//! makes the tests of a store or leaves them out.

/// Makes a test of each case, in a module for each store. Cases are functions `case(&TestStore)`: asynchronous, or, for the
/// blocking API, `blocking` ones. What only some stores can do is listed for each of them.
macro_rules! on_every_store {
    ($runs:ident: $($case:ident),+ $(,)?) => {
        on_every_store! { $runs: $($case),+; memory: ; sqlite: ; redis: ; }
    };
    (
        $runs:ident: $($case:ident),+;
        memory: $($memory:ident),*;
        sqlite: $($sqlite:ident),*;
        redis: $($redis:ident),*;
    ) => {
        on_store! { memory $runs $($case)+ $($memory)* }
        on_store! { sqlite $runs $($case)+ $($sqlite)* }
        on_store! { redis $runs $($case)+ $($redis)* }
    };
}

macro_rules! tests_on_store {
    ($store:ident asynchronous $($case:ident)*) => {
        mod $store {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&crate::cases::store::TestStore::$store()).await;
            })*
        }
    };
    ($store:ident blocking $($case:ident)*) => {
        mod $store {
            $(#[test]
            fn $case() {
                super::$case(&crate::cases::store::TestStore::$store());
            })*
        }
    };
}

pub(crate) mod admin;
mod blocking;
mod detached;
mod election;
mod ends;
mod handoff;
mod keyed_semaphore;
mod latch_barrier;
mod multi;
mod mutex;
mod once_per;
mod priority;
mod reentrant;
mod run;
mod rwlock;
mod semaphore;
pub(crate) mod store;
