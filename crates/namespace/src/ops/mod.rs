//! One file per operation.

pub(crate) mod create;
mod ends;
pub(crate) mod exchange;
pub(crate) mod getattr;
pub(crate) mod link;
pub(crate) mod lookup;
pub(crate) mod make;
pub(crate) mod older;
mod parting;
pub(crate) mod readdir;
pub(crate) mod rename;
pub(crate) mod setattr;
pub(crate) mod settle;
mod settle_links;
mod settle_nameless;
mod times;
pub(crate) mod unlink;
pub(crate) mod unnamed;
pub mod unpublished;
pub(crate) mod xattr;
mod xattr_fit;
