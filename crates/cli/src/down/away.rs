//! What keeps a drain from its end.

use forebay_types::format_size;
use forebay_wire::control::StatusBits;

/// Tiers that keep a drain from its end: what is there cannot be read.
pub fn who_is(bits: &StatusBits) -> Option<String> {
    let away = bits.tiers.iter();
    let away = away.filter(|tier| tier.out_of_reach && tier.dirty_bytes > 0);
    let away: Vec<String> = away
        .map(|tier| format!("{} ({})", tier.name, format_size(tier.dirty_bytes)))
        .collect();
    let names = away.join(", ");
    (!away.is_empty()).then(|| format!("the only copy is in a tier that is not there: {names}"))
}

#[cfg(test)]
mod tests {
    use forebay_wire::control::TierStatus;

    use super::*;

    #[test]
    fn tiers_that_keep_a_drain_from_its_end_are_named() {
        let tier = |name: &str, out_of_reach, dirty_bytes| TierStatus {
            name: name.into(),
            out_of_reach,
            dirty_bytes,
            ..TierStatus::default()
        };
        let mut bits = StatusBits {
            tiers: vec![tier("a", false, 9), tier("b", true, 0)],
            ..StatusBits::default()
        };
        assert_eq!(who_is(&bits), None);
        bits.tiers.push(tier("server-2:dram", true, 1 << 20));
        let line = who_is(&bits).expect("a line");
        assert_eq!(
            line,
            "the only copy is in a tier that is not there: server-2:dram (1.0 MiB)"
        );
    }
}
