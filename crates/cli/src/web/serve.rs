//! Connections, requests, answers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_wire::Service;
use forebay_wire::control::StatusBits;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::{Method, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use super::asks::{Asks, NOBODY, View};
use super::listen::{Bound, Listener, listen};
use super::metrics::Format;
use super::samples::{EVERY, Samples};
use super::seats::Seats;
use super::{health, metrics};
use crate::status::to_json;
use crate::up::listening::Listen;

/// At a time; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// A client has so long for the head of its request, and between two requests.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// A connection ends after so long, whatever it does.
const CONNECTION_FOR: Duration = Duration::from_secs(300);
/// Until it is tried again to listen, or to accept.
const AGAIN: Duration = Duration::from_secs(10);

const PAGE: &str = include_str!("page/page.html");
const SCRIPT: &str = include_str!("page/page.js");
const STYLE: &str = include_str!("page/page.css");

type Answer = hyper::Response<Full<Bytes>>;

struct Shared {
    listen: Listen,
    /// Who comes over TCP.
    anybody: View,
    asks: Asks,
    samples: Mutex<Samples>,
    /// The socket of this run.
    bound: Mutex<Option<Bound>>,
}

/// Serves until `ended` is told.
pub async fn serve((at, names): (Listen, bool), service: Arc<dyn Service>, ended: Arc<Notify>) {
    let shared = Arc::new(Shared {
        listen: at,
        anybody: match names {
            true => View::Everything,
            false => View::NoNames,
        },
        asks: Asks::new(service),
        samples: Mutex::default(),
        bound: Mutex::default(),
    });
    let (sampled, accepted) = (shared.clone(), shared.clone());
    let tasks = [
        tokio::spawn(async move { sample(&sampled).await }),
        tokio::spawn(async move { accept_all(&accepted).await }),
    ];
    ended.notified().await;
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    if let Some(bound) = shared.bound.lock().take()
        && let Err(error) = bound.take_away()
    {
        tracing::warn!("[http] listen = {}: {error}; it stays", shared.listen);
    }
}

async fn sample(shared: &Arc<Shared>) {
    loop {
        if let Ok(bits) = shared.asks.status(shared.anybody).await {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            let at_s = since.map_or(0, |since| since.as_secs());
            shared.samples.lock().add(at_s, &bits);
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn accept_all(shared: &Arc<Shared>) {
    let listener = loop {
        match listen(&shared.listen).await {
            Ok((listener, bound)) => {
                *shared.bound.lock() = bound;
                break listener;
            }
            Err(error) => {
                tracing::error!(
                    "[http] listen = {}: {error}; it is tried again",
                    shared.listen
                );
                tokio::time::sleep(AGAIN).await;
            }
        }
    };
    tracing::info!("metrics and a page at {}", shared.listen);
    let seats = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let by_user = Seats::default();
    loop {
        let Ok(seat) = seats.clone().acquire_owned().await else {
            return;
        };
        let accepted = match &listener {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                talk_apart(stream, shared, shared.anybody, seat);
            }),
            Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                // Who cannot be told is nobody.
                let uid = stream.peer_cred().map_or(NOBODY, |cred| cred.uid());
                let view = View::of_user(uid);
                // Who has too many is closed at once: others have their own.
                if let Some(own) = by_user.take(uid, view) {
                    talk_apart(stream, shared, view, (seat, own));
                }
            }),
        };
        if let Err(error) = accepted {
            tracing::warn!("[http]: a connection was not accepted: {error}");
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// `seats` are held as long as the connection is.
fn talk_apart<S>(stream: S, shared: &Arc<Shared>, view: View, seats: impl Send + 'static)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let shared = shared.clone();
    tokio::spawn(async move {
        talk(stream, shared, view).await;
        drop(seats);
    });
}

async fn talk<S>(stream: S, shared: Arc<Shared>, view: View)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let serve = hyper::service::service_fn(move |request| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(answer(&shared, view, &request).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), serve);
    if let Ok(Err(error)) = tokio::time::timeout(CONNECTION_FOR, connection).await {
        tracing::debug!("[http]: {error}");
    }
}

async fn answer(shared: &Arc<Shared>, view: View, request: &hyper::Request<Incoming>) -> Answer {
    let host = request.headers().get(header::HOST);
    let host = host.map(|host| host.to_str().unwrap_or("?"));
    if !shared.listen.may_be_called(host) {
        let why = "this address is served under names of loopback only\n";
        return text(StatusCode::MISDIRECTED_REQUEST, why.into());
    }
    let path = request.uri().path();
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "GET only\n".into());
        let allowed = HeaderValue::from_static("GET, HEAD");
        refused.headers_mut().insert(header::ALLOW, allowed);
        return refused;
    }
    match path {
        "/" => fixed("text/html; charset=utf-8", PAGE),
        "/page.js" => fixed("text/javascript; charset=utf-8", SCRIPT),
        "/page.css" => fixed("text/css; charset=utf-8", STYLE),
        "/history.json" => json(shared.samples.lock().to_json().to_string()),
        "/metrics" | "/healthz" | "/status.json" => match shared.asks.status(view).await {
            Ok(bits) => {
                let accept = request.headers().get(header::ACCEPT);
                let accept = accept.and_then(|accept| accept.to_str().ok());
                of_status((path, Format::for_reader(accept)), &bits)
            }
            Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        _ => {
            let known = "there are /, /metrics, /healthz, /status.json and /history.json\n";
            text(StatusCode::NOT_FOUND, known.into())
        }
    }
}

fn of_status((path, format): (&str, Format), bits: &StatusBits) -> Answer {
    match path {
        "/metrics" => {
            let text = metrics::render(bits, format);
            of_type(StatusCode::OK, format.content_type(), text)
        }
        "/status.json" => json(to_json(bits).to_string()),
        _ => match health::complaint(bits) {
            None => text(StatusCode::OK, health::praise(bits)),
            Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
    }
}

fn fixed(kind: &'static str, body: &'static str) -> Answer {
    of_type(StatusCode::OK, kind, body)
}

fn json(body: String) -> Answer {
    of_type(StatusCode::OK, "application/json", body)
}

fn text(status: StatusCode, body: String) -> Answer {
    of_type(status, "text/plain; charset=utf-8", body)
}

/// Nothing of it is kept, framed, or taken for another kind; the page has only what is here.
fn of_type(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    const HEADERS: [(header::HeaderName, &str); 5] = [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
             img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
    ];
    let mut answer = Answer::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}
