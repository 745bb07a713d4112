//! Calls to a cluster of etcd, from threads that block.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use parking_lot::Mutex;
use prost::Message;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use super::messages::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};
use crate::Error;

/// More than the largest page of a scan.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A connection to one member at a time; after a failure, to the next.
pub(super) struct Client {
    /// Drives the connection, on a thread of its own: callers block, and none of them may be there.
    /// `None` only while this is dropped.
    runtime: Option<Runtime>,
    members: Vec<Endpoint>,
    current: Mutex<Current>,
    patience: Duration,
}

struct Current {
    channel: Channel,
    /// Counts connections; says also which member this one is to.
    number: usize,
}

impl Client {
    pub(super) fn new(members: &[String], patience: Duration) -> Result<Arc<Client>, Error> {
        let endpoint = |member: &String| {
            Endpoint::from_shared(format!("http://{member}"))
                .map(|endpoint| endpoint.connect_timeout(patience).tcp_nodelay(true))
                .map_err(|error| Error::Setup(format!("member {member:?} of etcd: {error}")))
        };
        let members: Vec<Endpoint> = members.iter().map(endpoint).collect::<Result<_, _>>()?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("fb-etcd")
            .enable_all()
            .build()?;
        let first = members.first();
        let first = first.ok_or_else(|| Error::Setup("a member of etcd is missing".into()))?;
        let channel = {
            let _inside = runtime.enter();
            first.connect_lazy()
        };
        Ok(Arc::new(Client {
            runtime: Some(runtime),
            members,
            current: Mutex::new(Current { channel, number: 0 }),
            patience,
        }))
    }

    /// Whether there is one member to ask, and no other.
    pub(super) fn is_alone(&self) -> bool {
        self.members.len() == 1
    }

    pub(super) fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Error> {
        self.unary("/etcdserverpb.KV/Txn", request)
    }

    pub(super) fn range(&self, request: RangeRequest) -> Result<RangeResponse, Error> {
        self.unary("/etcdserverpb.KV/Range", request)
    }

    pub(super) fn grant(&self, ttl: i64) -> Result<LeaseGrantResponse, Error> {
        self.unary("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl })
    }

    /// Revoking a lease that has gone is no error.
    pub(super) fn revoke(&self, id: i64) -> Result<(), Error> {
        self.call(|channel| async move {
            let path = "/etcdserverpb.Lease/LeaseRevoke";
            match unary(channel, path, LeaseRevokeRequest { id }).await {
                Err(status) if status.code() == Code::NotFound => Ok(()),
                Err(status) => Err(status),
                Ok(LeaseRevokeResponse {}) => Ok(()),
            }
        })
    }

    /// How many seconds the lease is valid from now on; 0 if it has gone. Does not wait longer than
    /// `patience` for one member: the lease ends meanwhile.
    pub(super) fn keep_alive(&self, id: i64, patience: Duration) -> Result<i64, Error> {
        self.call_for(patience, |channel| async move {
            let mut grpc = ready(channel).await?;
            let requests = tokio_stream::once(LeaseKeepAliveRequest { id });
            let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
            let codec = ProstCodec::<LeaseKeepAliveRequest, LeaseKeepAliveResponse>::default();
            let answers = grpc.streaming(tonic::Request::new(requests), path, codec);
            let answer = answers.await?.into_inner().message().await?;
            let answer = answer.ok_or_else(|| Status::unavailable("no answer about a lease"))?;
            Ok(answer.ttl)
        })
    }

    /// Asks one member after the other, each once, until one is there to answer.
    pub(super) fn ask_each<A>(&self, ask: impl Fn() -> Result<A, Error>) -> Result<A, Error> {
        for _ in 1..self.members.len() {
            match ask() {
                // The next question goes to the next member.
                Err(Error::Io(_)) => {}
                answered => return answered,
            }
        }
        ask()
    }

    /// From now on calls use a connection that is made after this, to the next member.
    pub(super) fn forget(&self) {
        let number = self.current.lock().number;
        self.leave(number);
    }

    fn leave(&self, number: usize) {
        let mut current = self.current.lock();
        // Somebody else who has met the same failure may have been faster.
        if current.number == number {
            current.number += 1;
            let _inside = self.runtime.as_ref().map(Runtime::enter);
            current.channel = self.members[current.number % self.members.len()].connect_lazy();
        }
    }

    fn unary<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Error>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.call(|channel| unary(channel, path, request))
    }

    fn call<A, F>(&self, call: impl FnOnce(Channel) -> F) -> Result<A, Error>
    where
        F: Future<Output = Result<A, Status>>,
    {
        self.call_for(self.patience, call)
    }

    fn call_for<A, F>(
        &self,
        patience: Duration,
        call: impl FnOnce(Channel) -> F,
    ) -> Result<A, Error>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let (channel, number) = {
            let current = self.current.lock();
            (current.channel.clone(), current.number)
        };
        let runtime = self.runtime.as_ref().ok_or(Error::Poisoned)?;
        let answer = runtime.block_on(async {
            match tokio::time::timeout(patience, call(channel)).await {
                Ok(answer) => answer,
                Err(_) => Err(Status::deadline_exceeded("no answer in time")),
            }
        });
        answer.map_err(|status| {
            let error = from_status(&status);
            if matches!(error, Error::Io(_)) {
                self.leave(number);
            }
            error
        })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Plainly dropped it would wait for a resolver of names that may be silent.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn ready(channel: Channel) -> Result<tonic::client::Grpc<Channel>, Status> {
    let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
    let is_ready = grpc.ready().await;
    is_ready.map_err(|error| Status::unavailable(error.to_string()))?;
    Ok(grpc)
}

async fn unary<Q, A>(channel: Channel, path: &'static str, request: Q) -> Result<A, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = ready(channel).await?;
    let path = PathAndQuery::from_static(path);
    let codec = ProstCodec::<Q, A>::default();
    let answer = grpc
        .unary(tonic::Request::new(request), path, codec)
        .await?;
    Ok(answer.into_inner())
}

/// What etcd refuses for good is told apart from what it could not do now.
fn from_status(status: &Status) -> Error {
    let said = status.message();
    match status.code() {
        Code::ResourceExhausted if said.contains("space") => {
            Error::Io(io::Error::from_raw_os_error(libc::ENOSPC))
        }
        Code::InvalidArgument => Error::Setup(format!(
            "etcd refuses what a store needs; start it with --max-txn-ops=128 and \
             --max-request-bytes=1572864, or more: {said}"
        )),
        Code::OutOfRange => Error::Corrupt(format!(
            "etcd has compacted what is needed to take a commit back: {said}; start the metadata \
             server again"
        )),
        Code::Unauthenticated | Code::PermissionDenied => {
            Error::Setup(format!("etcd refuses access: {said}"))
        }
        _ => Error::Io(io::Error::other(format!("etcd: {said}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Instant;

    use super::*;

    fn listener() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        (listener, address)
    }

    /// A member that takes connections, and says nothing.
    fn was_asked(member: &TcpListener) -> bool {
        member.set_nonblocking(true).expect("no waiting");
        member.accept().is_ok()
    }

    #[test]
    fn each_member_is_asked_once_also_where_the_first_is_not_there() {
        let ((gone, first), (silent, second), (last, third)) = (listener(), listener(), listener());
        drop(gone);
        let client = Client::new(&[first, second, third], Duration::from_millis(200));
        let client = client.expect("a client");
        let asked = Mutex::new(0);
        let answer = client.ask_each(|| {
            *asked.lock() += 1;
            client.grant(8)
        });
        assert!(matches!(answer, Err(Error::Io(_))), "nobody answers");
        assert_eq!(*asked.lock(), 3);
        assert!(was_asked(&silent) && was_asked(&last));
    }

    #[test]
    fn a_lease_waits_for_a_silent_member_only_as_long_as_it_can() {
        let ((_silent, first), (next, second)) = (listener(), listener());
        let client = Client::new(&[first, second], Duration::from_secs(60));
        let client = client.expect("a client");
        let begun = Instant::now();
        let kept = client.ask_each(|| client.keep_alive(1, Duration::from_millis(200)));
        assert!(matches!(kept, Err(Error::Io(_))), "nobody answers");
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert!(was_asked(&next));
    }
}
