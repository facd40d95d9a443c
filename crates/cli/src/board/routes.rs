//! The addresses of the board.
//!
//! Each request passes `guard` first (2 of [`board`](super)). The files of the page need no token: they contain nothing of the
//! store.

use crate::board::access::{Access, Refusal};
use crate::board::assets::{ASSETS, HEADERS};
use crate::board::free::{self, FreeRequest};
use crate::board::query::View;
use crate::board::{Board, stream};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::{ALLOW, CONTENT_TYPE, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// The body of a request is not longer.
const MAX_BODY: usize = 8 * 1024;
/// The time for a request that changes something: for its body, and for what it does.
const POST_TIMEOUT: Duration = Duration::from_secs(15);
/// Without other messages, this one shows that the connection lives: on both sides, since the page waits for it.
const BEAT: &str = "beat";
const KEEP_ALIVE: Duration = Duration::from_secs(10);

pub(super) fn router(board: Arc<Board>) -> Router {
    let mut router = Router::new()
        .route("/api/session", get(session))
        .route("/api/sign-in", post(sign_in))
        .route("/api/events", get(events))
        .route("/api/free", post(free_lock));
    for asset in &ASSETS {
        let file = async || ([(CONTENT_TYPE, asset.content_type)], asset.text);
        router = router.route(asset.path, get(file));
    }
    router
        .fallback(async || failure(StatusCode::NOT_FOUND, "there is no such page"))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(Arc::clone(&board), guard))
        .with_state(board)
}

/// Checks where a request comes from, and adds the headers of all responses.
async fn guard(State(board): State<Arc<Board>>, request: Request, next: Next) -> Response {
    let (headers, is_post) = (request.headers(), request.method() == Method::POST);
    let checked = board.access.check_host(headers).and_then(|()| Access::check_origin(headers));
    // Before the body is read, which takes as long as its sender likes.
    let checked = checked.and_then(|()| if is_post { Access::check_change(headers) } else { Ok(()) });
    let mut response = match checked {
        Ok(()) if is_post => timeout(POST_TIMEOUT, next.run(request)).await.unwrap_or_else(|_| {
            failure(StatusCode::REQUEST_TIMEOUT, "the request took too long: look whether it was executed")
        }),
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, value);
    }
    // It would say which methods a page of another site could try.
    headers.remove(ALLOW);
    response
}

/// What the page may do.
#[derive(Serialize)]
struct Session<'a> {
    store: &'a str,
    version: &'static str,
    allow_free: bool,
}

async fn session(State(board): State<Arc<Board>>, headers: HeaderMap) -> Result<Response, Refusal> {
    board.access.check_token(&headers)?;
    let session = Session {
        store: &board.store,
        version: env!("CARGO_PKG_VERSION"),
        allow_free: board.access.allows_free(),
    };
    Ok(json(StatusCode::OK, &session))
}

/// Gives a browser the cookie for the token.
async fn sign_in(
    State(board): State<Arc<Board>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    #[derive(Deserialize)]
    struct SignIn {
        token: String,
    }
    Access::check_change(&headers)?;
    let SignIn { token } = serde_json::from_slice(&body).map_err(|_| Refusal::Token)?;
    if !board.access.is_token(&token) {
        return Err(Refusal::Token);
    }
    let cookie = HeaderValue::from_str(&board.access.cookie(&headers)).map_err(|_| Refusal::Token)?;
    Ok((StatusCode::NO_CONTENT, [(SET_COOKIE, cookie)]).into_response())
}

async fn events(State(board): State<Arc<Board>>, uri: Uri, headers: HeaderMap) -> Result<Response, Refusal> {
    board.access.check_token(&headers)?;
    let view = match View::parse(uri.query().unwrap_or_default()) {
        Ok(view) => view,
        Err(message) => return Ok(failure(StatusCode::BAD_REQUEST, &message)),
    };
    let Ok(permit) = Arc::clone(&board.streams).try_acquire_owned() else {
        return Ok(failure(StatusCode::SERVICE_UNAVAILABLE, "too many pages are open"));
    };
    let stream = stream::events(board, view, permit);
    let beat = Event::default().event(BEAT).data("{}");
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE).event(beat)).into_response())
}

async fn free_lock(
    State(board): State<Arc<Board>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    Access::check_change(&headers)?;
    board.access.check_token(&headers)?;
    board.access.check_free()?;
    let Ok(request) = serde_json::from_slice::<FreeRequest>(&body) else {
        return Ok(failure(StatusCode::BAD_REQUEST, "the request needs a name and a fencing token"));
    };
    // It goes on if the browser does not wait for the answer.
    let freed = tokio::spawn(async move { free::free(&board.client, &request).await }).await;
    Ok(match freed {
        Ok(Ok(())) => StatusCode::NO_CONTENT.into_response(),
        Ok(Err(not_freed)) => failure(not_freed.status, &not_freed.message),
        Err(_) => failure(StatusCode::BAD_GATEWAY, "the board ends: look again whether the lock is free"),
    })
}

#[derive(Serialize)]
struct Failed<'a> {
    error: &'a str,
}

fn failure(status: StatusCode, error: &str) -> Response {
    json(status, &Failed { error })
}

fn json(status: StatusCode, content: &impl Serialize) -> Response {
    let text = serde_json::to_string(content).expect("strings and booleans are JSON");
    (status, [(CONTENT_TYPE, "application/json")], text).into_response()
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        failure(self.status(), self.message())
    }
}
