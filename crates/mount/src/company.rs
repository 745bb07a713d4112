//! Other mounts of the same server.

/// Who else uses the server of a mount, and so what the kernel may keep by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// Nobody: the kernel believes names and attributes for a second, and keeps pages.
    Alone,
    /// Other mounts, perhaps on other nodes: the kernel believes what the server recalls, and reads
    /// and writes go to the server. Only mappings keep pages.
    Shared,
}
