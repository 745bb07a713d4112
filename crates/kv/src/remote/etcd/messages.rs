//! The messages of etcd's API (version 3) that a store needs, as far as it needs them: a field that
//! is not here is its default, or is not looked at.
//!
//! Declared here rather than generated, so that a build needs no `protoc`.

use prost::{Message, Oneof};

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct ResponseHeader {
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(super) create_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub(super) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) limit: i64,
    #[prost(int64, tag = "4")]
    pub(super) revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Request {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestOp {
    #[prost(oneof = "Request", tags = "1, 2, 3")]
    pub(super) request: Option<Request>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseOp {
    #[prost(message, optional, tag = "1")]
    pub(super) range: Option<RangeResponse>,
}

/// What a comparison looks at. Only equality is asked for, which is 0.
pub(super) mod target {
    pub(in super::super) const CREATE: i32 = 1;
    pub(in super::super) const VALUE: i32 = 3;
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Compared {
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(bytes = "vec", tag = "7")]
    Value(Vec<u8>),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Compare {
    #[prost(int32, tag = "2")]
    pub(super) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) key: Vec<u8>,
    #[prost(oneof = "Compared", tags = "5, 7")]
    pub(super) compared: Option<Compared>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(super) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(super) responses: Vec<ResponseOp>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    pub(super) ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct LeaseRevokeRequest {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct LeaseRevokeResponse {}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct LeaseKeepAliveRequest {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct LeaseKeepAliveResponse {
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}

impl Compare {
    /// The key was created at this revision; 0 if it is absent.
    pub(super) fn created(key: &[u8], revision: i64) -> Compare {
        Compare {
            target: target::CREATE,
            key: key.to_vec(),
            compared: Some(Compared::CreateRevision(revision)),
        }
    }

    /// The key holds this value, or is absent.
    pub(super) fn holds(key: &[u8], value: Option<&[u8]>) -> Compare {
        match value {
            None => Compare::created(key, 0),
            Some(value) => Compare {
                target: target::VALUE,
                key: key.to_vec(),
                compared: Some(Compared::Value(value.to_vec())),
            },
        }
    }
}

impl RequestOp {
    pub(super) fn put(key: Vec<u8>, value: Vec<u8>) -> RequestOp {
        let lease = 0;
        Request::Put(PutRequest { key, value, lease }).into()
    }

    pub(super) fn delete(key: Vec<u8>) -> RequestOp {
        RequestOp::delete_range(key, Vec::new())
    }

    pub(super) fn delete_range(key: Vec<u8>, range_end: Vec<u8>) -> RequestOp {
        Request::DeleteRange(DeleteRangeRequest { key, range_end }).into()
    }

    /// Reads a key as it is, or was at an earlier revision.
    pub(super) fn get(key: Vec<u8>, revision: i64) -> RequestOp {
        let request = RangeRequest {
            key,
            revision,
            ..RangeRequest::default()
        };
        Request::Range(request).into()
    }
}

impl From<Request> for RequestOp {
    fn from(request: Request) -> RequestOp {
        RequestOp {
            request: Some(request),
        }
    }
}

impl TxnResponse {
    pub(super) fn revision(&self) -> i64 {
        self.header.map_or(0, |header| header.revision)
    }

    /// The key that request number `at` has read, if it was there.
    pub(super) fn take(&mut self, at: usize) -> Option<KeyValue> {
        let range = self.responses.get_mut(at)?.range.as_mut()?;
        range.kvs.pop()
    }
}
