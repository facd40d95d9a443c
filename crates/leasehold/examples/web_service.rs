//! A web service: each order is changed under its lock, a request that finds it taken is answered with 409, and SIGTERM ends
//! the service once the requests that are under way are answered.
//!
//!     cargo run --example web_service
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --example web_service

use axum::body::{Body, to_bytes};
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::post};
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use leasehold::{Attempt, Client, Error};
use rustix::process::{Signal, getpid, kill_process};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Serves until SIGTERM.
async fn serve(listener: TcpListener, locks: Client) -> Result<()> {
    let service = Router::new().route("/orders/{order}/ship", post(ship)).with_state(locks.clone());
    let mut stop = signal(SignalKind::terminate())?;
    let stopped = async move {
        stop.recv().await;
    };
    // No new connections, and the requests that are under way end under their locks.
    axum::serve(listener, service).with_graceful_shutdown(stopped).await?;
    // Whatever is left: holds of tasks that go on, places in queues.
    locks.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

async fn ship(State(locks): State<Client>, Path(order): Path<u32>) -> std::result::Result<String, Failed> {
    let lock = locks.mutex(format_args!("example/web_service/order/{order}"))?;
    // A limit that is shorter than that of the client, so that it gets an answer.
    let lock = lock.max_wait(Duration::from_millis(300));
    let shipped = lock.run(|guard| async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        guard.check()?;
        Ok::<_, Error>(format!("order {order} is shipped, as hold {}", guard.fencing_token()))
    });
    Ok(shipped.await??)
}

/// Why a request failed.
struct Failed(Error);

impl<E: Into<Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let (status, text) = if self.0.is_contended() {
            (StatusCode::CONFLICT, "another request changes this order")
        } else if self.0.is_transient() {
            (StatusCode::SERVICE_UNAVAILABLE, "try again later")
        } else {
            (StatusCode::INTERNAL_SERVER_ERROR, "the order was not shipped")
        };
        // For the log alone: it names servers, names of locks, and other clients.
        eprintln!("{status}: {}", self.0);
        (status, text).into_response()
    }
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "memory:".into());
    let locks = Client::builder(&store).label("orders").connect().await?;
    let other = Client::builder(&store).label("another instance").connect().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let service = tokio::spawn(serve(listener, locks));
    let http = legacy::Client::builder(TokioExecutor::new()).build_http();
    let order = |order: u32| format!("http://{address}/orders/{order}/ship");

    println!("alone: {}", ask(http.clone(), order(1)).await?);
    let taken = other.mutex("example/web_service/order/2")?.acquire().await?;
    println!("while another instance works: {}", ask(http.clone(), order(2)).await?);
    taken.release().await?;

    // A rolling update: SIGTERM arrives in the middle of a request.
    let under_way = tokio::spawn(ask(http, order(3)));
    let lock = other.mutex("example/web_service/order/3")?;
    while let Attempt::Granted(guard) = lock.try_acquire().await? {
        guard.release().await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    kill_process(getpid(), Signal::TERM)?;
    println!("under way: {}", under_way.await??);
    service.await??;
    let is_free = matches!(lock.try_acquire().await?, Attempt::Granted(_));
    println!("the service has ended, and its lock is free: {is_free}");
    Ok(())
}

async fn ask(http: legacy::Client<HttpConnector, Body>, url: String) -> Result<String> {
    let response = http.request(Request::post(url).body(Body::empty())?).await?;
    let status = response.status();
    let body = to_bytes(Body::new(response.into_body()), 1000).await?;
    Ok(format!("{status}, {}", String::from_utf8_lossy(&body)))
}
