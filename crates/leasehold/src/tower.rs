//! The owner over HTTP: layers for tower, so that no handler has to know of it.
//!
//! [`SendOwnerLayer`] goes around a client, and sends the [owner](crate::Owner) along for whom its caller works.
//! [`ReceiveOwnerLayer`] goes around a service, which then works for the owner that came. So a
//! [`ReentrantMutex`](crate::ReentrantMutex) that the caller holds is entered again by whom he calls, and by whom that one
//! calls.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::body::{Body, to_bytes};
//! use axum::{Router, extract::State, http::Request, routing::post};
//! use hyper_util::{client::legacy, rt::TokioExecutor};
//! use leasehold::Client;
//! use leasehold::tower::{ReceiveOwnerLayer, SendOwnerLayer};
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # let locks = Client::connect("memory:").await?;
//! // The service that is called. Its handler acquires, and does not say for whom.
//! async fn book(State(locks): State<Client>) -> String {
//!     let account = locks.reentrant_mutex("account/7").expect("this is a name");
//!     match account.acquire().await {
//!         Ok(guard) => format!("booked, and entered as number {}", guard.count()),
//!         Err(error) => error.to_string(),
//!     }
//! }
//! let service = Router::new().route("/book", post(book)).layer(ReceiveOwnerLayer::new());
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let address = listener.local_addr()?;
//! # let service = service.with_state(locks.clone());
//! tokio::spawn(async { axum::serve(listener, service).await });
//!
//! // The one who calls it. His client is as before, but for the layer.
//! let http = ServiceBuilder::new()
//!     .layer(SendOwnerLayer::new())
//!     .service(legacy::Client::builder(TokioExecutor::new()).build_http());
//! let account = locks.reentrant_mutex("account/7")?;
//! let request = Request::post(format!("http://{address}/book")).body(Body::empty())?;
//! let response = account.run(async |_guard| http.oneshot(request).await).await??;
//! let answer = to_bytes(Body::new(response.into_body()), 1000).await?;
//! assert_eq!(answer, "booked, and entered as number 2");
//! # Ok(()) }
//! ```
//!
//! # Whom to believe
//!
//! Whoever can send the header gets into what its owner holds: it is an identity, and nothing proves it. Put
//! [`ReceiveOwnerLayer`] around services that only your own services reach, or behind what has made sure of the caller.
//! Where requests of strangers come in, have the proxy remove `leasehold-owner`. A service without the layer does not look
//! at the header.
//!
//! Nor does a stranger's header slip through a service that copies the headers of a request into those that it sends:
//! behind [`SendOwnerLayer`], the scope alone says what is sent.
//!
//! # With which libraries
//!
//! With all that speak in requests and responses of `http`, among them
//!
//! - axum: `Router::layer(ReceiveOwnerLayer::new())`;
//! - tonic: `Server::builder().layer(ReceiveOwnerLayer::new())`, and for a client
//!   `ServiceBuilder::new().layer(SendOwnerLayer::new()).service(channel)`. A refusal is an HTTP 400, which a gRPC client
//!   tells as `INTERNAL`;
//! - hyper-util, and the middleware of tower-http.
//!
//! A client with requests of its own, such as reqwest, needs a line where it sends:
//! [`Owner::current`](crate::Owner::current), and the header [`HEADER`](crate::Owner::HEADER).

mod receive;
mod send;

pub use receive::{ReceiveOwner, ReceiveOwnerLayer, ResponseFuture};
pub use send::{SendOwner, SendOwnerLayer};

use crate::owner::Owner;
use http::HeaderName;

static HEADER: HeaderName = HeaderName::from_static(Owner::HEADER);
