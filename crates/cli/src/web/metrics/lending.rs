//! Memory that is borrowed, as metrics.

use forebay_wire::control::{LendingStatus, NodeLending, NodeStatus, StatusBits};

use super::{Kind, Text, labels_of};

/// The families, without samples where the memory tier has a fixed size.
pub(super) fn add(text: &mut Text, bits: &StatusBits) {
    type Of = fn(&LendingStatus) -> Option<u64>;
    let families: [(&str, Kind, &str, Of); 7] = [
        (
            "forebay_memory_borrowed_bytes",
            Kind::Gauge,
            "What the memory tier may hold, where memory is borrowed.",
            |lending| Some(lending.borrowed_bytes),
        ),
        (
            "forebay_memory_floor_bytes",
            Kind::Gauge,
            "The memory tier never falls below this.",
            |lending| Some(lending.floor_bytes),
        ),
        (
            "forebay_memory_ceiling_bytes",
            Kind::Gauge,
            "The memory tier never exceeds this now.",
            |lending| Some(lending.ceiling_bytes),
        ),
        (
            "forebay_memory_ordered_bytes",
            Kind::Gauge,
            "By so much an order has lowered the ceiling.",
            |lending| Some(lending.ordered_bytes),
        ),
        (
            "forebay_memory_owed_bytes",
            Kind::Gauge,
            "What is still to leave the memory tier.",
            |lending| Some(lending.owed_bytes),
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
        if let Some(value) = bits.lending.as_ref().and_then(|lending| of(lending)) {
            family.sample(&[], value);
        }
    }
}

/// The families of data servers' memory, without samples of nodes that lend nothing.
pub(super) fn add_nodes(text: &mut Text, nodes: &[NodeStatus]) {
    type Of = fn(&NodeLending) -> u64;
    let families: [(&str, Kind, &str, Of); 3] = [
        (
            "forebay_node_memory_owed_bytes",
            Kind::Gauge,
            "What is still to leave its memory, where jobs want that back.",
            |lending| lending.owed_bytes,
        ),
        (
            "forebay_node_memory_dropped_bytes",
            Kind::Counter,
            "Clean copies dropped to give its memory back, since the start of the metadata server.",
            |lending| lending.dropped_bytes_total,
        ),
        (
            "forebay_node_memory_moved_bytes",
            Kind::Counter,
            "Moved to flash or to other nodes to give its memory back, since the start of the metadata server.",
            |lending| lending.moved_bytes_total,
        ),
    ];
    for (name, kind, help, of) in families {
        let mut family = text.family(name, kind, help);
        for node in nodes {
            if let Some(lending) = &node.lending {
                family.sample(&labels_of(node, &node.server.to_string()), of(lending));
            }
        }
    }
}
