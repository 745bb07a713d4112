//! The keys of the records.

use forebay_types::ObjectId;

use crate::record::DirKey;

pub(crate) const UNPUBLISHED_PREFIX: &[u8] = b"u/";
pub(crate) const FILE_PREFIX: &[u8] = b"f/";
pub(crate) const DIR_PREFIX: &[u8] = b"d/";
pub(crate) const SUMS_PREFIX: &[u8] = b"k/";
pub(crate) const NAMELESS_PREFIX: &[u8] = b"n/";
pub(crate) const GARBAGE_PREFIX: &[u8] = b"g/";
pub(crate) const INTENT_PREFIX: &[u8] = b"r/";
pub(crate) const LEFT_PREFIX: &[u8] = b"l/";
pub(crate) const NOTE_PREFIX: &[u8] = b"h/";
pub(crate) const NEXT_OBJECT_KEY: &[u8] = b"c/next-object";
pub(crate) const UNSETTLED_KEY: &[u8] = b"c/unsettled";

fn key(prefix: &[u8], id: &[u8]) -> Vec<u8> {
    [prefix, id].concat()
}

pub(crate) fn file_key(object: ObjectId) -> Vec<u8> {
    key(FILE_PREFIX, &object.0.to_be_bytes())
}

pub(crate) fn dir_key(dir: DirKey) -> Vec<u8> {
    key(DIR_PREFIX, &dir.to_bytes())
}

pub(crate) fn unpublished_key(dir: DirKey) -> Vec<u8> {
    key(UNPUBLISHED_PREFIX, &dir.to_bytes())
}

pub(crate) fn sums_key(object: ObjectId) -> Vec<u8> {
    key(SUMS_PREFIX, &object.0.to_be_bytes())
}

pub(crate) fn nameless_key(object: ObjectId) -> Vec<u8> {
    key(NAMELESS_PREFIX, &object.0.to_be_bytes())
}

pub(crate) fn garbage_key(object: ObjectId) -> Vec<u8> {
    key(GARBAGE_PREFIX, &object.0.to_be_bytes())
}

pub(crate) fn left_key(object: ObjectId) -> Vec<u8> {
    key(LEFT_PREFIX, &object.0.to_be_bytes())
}

pub(crate) fn intent_key(sequence: u64) -> Vec<u8> {
    key(INTENT_PREFIX, &sequence.to_be_bytes())
}

pub(crate) fn object_of_key(key: &[u8]) -> Option<ObjectId> {
    Some(ObjectId(u64::from_be_bytes(key.get(2..)?.try_into().ok()?)))
}
