//! What a completed fsync survives.

use crate::named::named;
use serde::{Deserialize, Serialize};

/// The durability ladder, chosen per mount and per path rule: what the data of a completed fsync survives.
///
/// Ordered by strength where it matters for choosing a tier: `Memory < Ssd < Replica < Pfs`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Survives a crash or kill of the daemon and of the application. Lost when the node loses power or its kernel.
    Memory,
    /// Survives a crash of the node as well: the data is on flash and flushed. Lost with the device.
    #[default]
    Ssd,
    /// Survives the loss of one server: the data is in the tiers of two.
    Replica,
    /// Survives the loss of the whole burst buffer: the data is on the PFS, synced and verified.
    Pfs,
}

named!(Durability, "durability", Memory => "memory", Ssd => "ssd", Replica => "replica", Pfs => "pfs");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for d in Durability::ALL {
            assert_eq!(d.to_string().parse(), Ok(*d));
        }
        assert_eq!("PFS".parse(), Ok(Durability::Pfs));
        let error = "disk".parse::<Durability>().unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown durability \"disk\": expected one of memory, ssd, replica, pfs"
        );
    }
}
