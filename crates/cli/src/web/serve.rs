//! Connections, requests, answers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_wire::Service;
use forebay_wire::control::StatusBits;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::{Method, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use super::listen::{Listener, listen};
use super::metrics::Format;
use super::samples::{EVERY, Samples};
use super::{FRESH_MS, health, metrics};
use crate::status::to_json;
use crate::up::listening::Listen;
use crate::up::run::status_for;

/// At a time; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// A client has so long for the head of its request, and between two requests.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// A connection ends after so long, whatever it does.
const CONNECTION_FOR: Duration = Duration::from_secs(300);
/// A server that has not said its status by then is not well.
const STATUS_WITHIN: Duration = Duration::from_secs(5);
/// Until it is tried again to listen, or to accept.
const AGAIN: Duration = Duration::from_secs(10);
/// User and group of who may see nothing (`nobody`).
const NOBODY: u32 = 65_534;

const PAGE: &str = include_str!("page/page.html");
const SCRIPT: &str = include_str!("page/page.js");
const STYLE: &str = include_str!("page/page.css");

type Answer = hyper::Response<Full<Bytes>>;

/// Who asks, as the server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asker {
    uid: u32,
    gid: u32,
}

const NOT_TRUSTED: Asker = Asker {
    uid: NOBODY,
    gid: NOBODY,
};

struct Shared {
    listen: Listen,
    /// Who comes over TCP.
    anybody: Asker,
    service: Arc<dyn Service>,
    /// What anybody is shown.
    last: Mutex<Option<(Instant, Arc<StatusBits>)>>,
    samples: Mutex<Samples>,
}

/// Serves until `ended` is told.
pub async fn serve((at, names): (Listen, bool), service: Arc<dyn Service>, ended: Arc<Notify>) {
    let shared = Arc::new(Shared {
        listen: at,
        anybody: match names {
            true => Asker {
                uid: rustix::process::geteuid().as_raw(),
                gid: rustix::process::getegid().as_raw(),
            },
            false => NOT_TRUSTED,
        },
        service,
        last: Mutex::default(),
        samples: Mutex::default(),
    });
    let (sampled, accepted) = (shared.clone(), shared.clone());
    let tasks = [
        tokio::spawn(async move { sample(&sampled).await }),
        tokio::spawn(async move { accept_all(&accepted).await }),
    ];
    ended.notified().await;
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    if let Listen::Unix(path) = &shared.listen {
        // It is this run's: nobody else listens there while this one does.
        drop(std::fs::remove_file(path));
    }
}

async fn sample(shared: &Arc<Shared>) {
    loop {
        if let Ok(bits) = status(shared, shared.anybody).await {
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
            Ok(listener) => break listener,
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
    loop {
        let Ok(seat) = seats.clone().acquire_owned().await else {
            return;
        };
        let accepted = match &listener {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                let shared = shared.clone();
                tokio::spawn(async move {
                    talk(stream, shared.clone(), shared.anybody).await;
                    drop(seat);
                });
            }),
            Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                // Who cannot be told is nobody.
                let asker = stream.peer_cred().map_or(NOT_TRUSTED, |cred| Asker {
                    uid: cred.uid(),
                    gid: cred.gid(),
                });
                let shared = shared.clone();
                tokio::spawn(async move {
                    talk(stream, shared, asker).await;
                    drop(seat);
                });
            }),
        };
        if let Err(error) = accepted {
            tracing::warn!("[http]: a connection was not accepted: {error}");
            tokio::time::sleep(AGAIN).await;
        }
    }
}

async fn talk<S>(stream: S, shared: Arc<Shared>, asker: Asker)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let serve = hyper::service::service_fn(move |request| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(answer(&shared, asker, &request).await) }
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

async fn answer(shared: &Arc<Shared>, asker: Asker, request: &hyper::Request<Incoming>) -> Answer {
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
        "/metrics" | "/healthz" | "/status.json" => match status(shared, asker).await {
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
            None => text(StatusCode::OK, "ok\n".into()),
            Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
    }
}

/// The status as `asker` is shown it, at most [`FRESH_MS`] old for anybody.
async fn status(shared: &Arc<Shared>, asker: Asker) -> Result<Arc<StatusBits>, &'static str> {
    let fresh = Duration::from_millis(FRESH_MS);
    if asker == shared.anybody
        && let Some((at, bits)) = &*shared.last.lock()
        && at.elapsed() < fresh
    {
        return Ok(bits.clone());
    }
    let service = shared.service.clone();
    let asked = tokio::task::spawn_blocking(move || status_for(&*service, (asker.uid, asker.gid)));
    let bits = match tokio::time::timeout(STATUS_WITHIN, asked).await {
        Ok(Ok(Some(bits))) => Arc::new(bits),
        Ok(Ok(None)) => return Err("the server does not say its status"),
        Ok(Err(_)) => return Err("the status has failed; the log says more"),
        Err(_) => return Err("the server does not answer"),
    };
    if asker == shared.anybody {
        *shared.last.lock() = Some((Instant::now(), bits.clone()));
    }
    Ok(bits)
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
