//! Memory that is borrowed, as metrics.

use forebay_wire::control::{LendingStatus, StatusBits};

use super::{Kind, Text};

/// The families, without samples where the memory tier has a fixed size.
pub(super) fn add(text: &mut Text, bits: &StatusBits) {
    type Of = fn(&LendingStatus) -> u64;
    let families: [(&str, Kind, &str, Of); 7] = [
        (
            "forebay_memory_borrowed_bytes",
            Kind::Gauge,
            "What the memory tier may hold, where memory is borrowed.",
            |lending| lending.borrowed_bytes,
        ),
        (
            "forebay_memory_floor_bytes",
            Kind::Gauge,
            "The memory tier never falls below this.",
            |lending| lending.floor_bytes,
        ),
        (
            "forebay_memory_ceiling_bytes",
            Kind::Gauge,
            "The memory tier never exceeds this now.",
            |lending| lending.ceiling_bytes,
        ),
        (
            "forebay_memory_ordered_bytes",
            Kind::Gauge,
            "By so much an order has lowered the ceiling.",
            |lending| lending.ordered_bytes,
        ),
        (
            "forebay_memory_owed_bytes",
            Kind::Gauge,
            "What is still to leave the memory tier.",
            |lending| lending.owed_bytes,
        ),
        (
            "forebay_memory_dropped_bytes",
            Kind::Counter,
            "Clean copies dropped to give memory back, since the start of the server.",
            |lending| lending.dropped_bytes_total,
        ),
        (
            "forebay_memory_moved_bytes",
            Kind::Counter,
            "Moved to flash to give memory back, since the start of the server.",
            |lending| lending.moved_bytes_total,
        ),
    ];
    for (name, kind, help, of) in families {
        let mut family = text.family(name, kind, help);
        if let Some(lending) = &bits.lending {
            family.sample(&[], of(lending));
        }
    }
}
