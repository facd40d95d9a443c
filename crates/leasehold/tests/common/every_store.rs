//! Cases that every store has to pass: a test of each case, in a module per store.

/// `of::case` runs as `of::case(&Site)`, in suites that define [`Site`](super::site::Site).
macro_rules! on_every_store {
    ($($from:ident :: $case:ident),* $(,)?) => {
        on_every_store! { @store memory $($from $case)* }
        on_every_store! { @store sqlite $($from $case)* }
        on_every_store! { @store redis $($from $case)* }
    };
    (@store $store:ident $($from:ident $case:ident)*) => {
        mod $store {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$from::$case(&super::Site::$store()).await;
            })*
        }
    };
}
