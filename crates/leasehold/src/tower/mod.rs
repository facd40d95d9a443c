//! Propagates the owner over HTTP: layers for tower, transparent to handlers.
//!
//! [`SendOwnerLayer`] wraps a client, and sends the [owner](crate::Owner) of the caller's scope along.
//! [`ReceiveOwnerLayer`] wraps a service, which then runs in the scope of the received owner. So a
//! [`ReentrantMutex`](crate::ReentrantMutex) held by a caller can be re-entered by the services it calls, and
//! by the services those call.
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
//! // The callee. Its handler acquires without naming an owner.
//! async fn book(State(locks): State<Client>) -> String {
//!     let account = locks.reentrant_mutex("account/7").expect("a valid name");
//!     match account.acquire().await {
//!         Ok(guard) => format!("booked, as hold {}", guard.count()),
//!         Err(error) => error.to_string(),
//!     }
//! }
//! let service = Router::new().route("/book", post(book)).layer(ReceiveOwnerLayer::new());
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let address = listener.local_addr()?;
//! # let service = service.with_state(locks.clone());
//! tokio::spawn(async { axum::serve(listener, service).await });
//!
//! // The caller. Its client is unchanged but for the layer.
//! let http = ServiceBuilder::new()
//!     .layer(SendOwnerLayer::new())
//!     .service(legacy::Client::builder(TokioExecutor::new()).build_http());
//! let account = locks.reentrant_mutex("account/7")?;
//! let request = Request::post(format!("http://{address}/book")).body(Body::empty())?;
//! let response = account.run(async |_guard| http.oneshot(request).await).await??;
//! let answer = to_bytes(Body::new(response.into_body()), 1000).await?;
//! assert_eq!(answer, "booked, as hold 2");
//! # Ok(()) }
//! ```
//!
//! # Trust
//!
//! A client that can send the header can enter the locks that its owner holds: the header is an identity
//! without proof. Use [`ReceiveOwnerLayer`] only for services that only your own services can reach, or
//! behind a layer that has authenticated the caller. Where requests of untrusted clients arrive, let the
//! proxy remove `leasehold-owner`. A service without the layer ignores the header.
//!
//! An untrusted header also does not pass through a service that copies request headers into its own
//! requests: behind [`SendOwnerLayer`], the scope alone determines what is sent.
//!
//! # Supported libraries
//!
//! Everything that uses requests and responses of the `http` crate, among others
//!
//! - axum: `Router::layer(ReceiveOwnerLayer::new())`;
//! - tonic: `Server::builder().layer(ReceiveOwnerLayer::new())`, and for a client
//!   `ServiceBuilder::new().layer(SendOwnerLayer::new()).service(channel)`. A rejection is an HTTP 400, which a
//!   gRPC client reports as `INTERNAL`;
//! - hyper-util, and the middleware of tower-http.
//!
//! A client with its own request type, such as reqwest, needs one line where it sends:
//! [`Owner::current`](crate::Owner::current), and the header [`HEADER`](crate::Owner::HEADER).

mod receive;
mod send;

pub use receive::{ReceiveOwner, ReceiveOwnerLayer, ResponseFuture};
pub use send::{SendOwner, SendOwnerLayer};

use crate::guard::owner::Owner;
use http::HeaderName;

static HEADER: HeaderName = HeaderName::from_static(Owner::HEADER);
