//! Users and groups with a limit, in `status`.

use std::time::Duration;

use forebay_types::{format_duration, format_size};
use forebay_wire::control::{LimitStatus, StatusBits};
use serde_json::{Value, json};

use crate::owners::kind_of;
use crate::show::table::{Align, Table};

/// Rows for people.
const ROWS_MAX: usize = 20;

/// The table for people.
pub fn render(bits: &StatusBits, room: Option<usize>) -> String {
    if bits.limits.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        ("limit of", Align::Left),
        ("held", Align::Right),
        ("of", Align::Right),
        ("undrained", Align::Right),
        ("of", Align::Right),
        ("beyond", Align::Left),
        ("writes at", Align::Right),
        ("held back", Align::Right),
    ]);
    let bound = |bytes: Option<u64>| bytes.map_or_else(|| "-".into(), format_size);
    for limit in bits.limits.iter().take(ROWS_MAX) {
        let kind = kind_of(limit);
        table.row(vec![
            format!("{} {}", kind.name(), kind.name_of(limit.id)),
            format_size(limit.used_bytes),
            bound(limit.capacity_bytes),
            format_size(limit.dirty_bytes),
            bound(limit.undrained_bytes),
            limit.beyond.clone(),
            (limit.rate_bytes_per_s)
                .map_or_else(|| "-".into(), |r| format!("{}/s", format_size(r))),
            match limit.rate_bytes_per_s {
                Some(_) => format_duration(Duration::from_millis(limit.paused_ms)),
                None => "-".into(),
            },
        ]);
    }
    let mut text = format!("\n{}", table.render_within(room));
    if let Some(more @ 1..) = bits.limits_total.checked_sub(ROWS_MAX as u64) {
        text.push_str(&format!("and {more} more\n"));
    }
    text
}

/// One of them as JSON.
pub fn to_json(limit: &LimitStatus) -> Value {
    let kind = kind_of(limit);
    json!({
        "kind": kind.name(),
        "id": limit.id,
        "name": kind.name_of(limit.id),
        "used_bytes": limit.used_bytes,
        "capacity_bytes": limit.capacity_bytes,
        "dirty_bytes": limit.dirty_bytes,
        "undrained_bytes": limit.undrained_bytes,
        "rate_bytes_per_s": limit.rate_bytes_per_s,
        "written_bytes": limit.written_bytes,
        "paused_s": limit.paused_ms as f64 / 1000.0,
        "beyond": limit.beyond,
    })
}
