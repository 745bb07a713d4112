//! `/healthz`: is it well enough to be given work?

use forebay_wire::control::StatusBits;

/// That it is, in a line.
pub fn praise(bits: &StatusBits) -> String {
    match &bits.standby {
        None => "ok\n".into(),
        Some(standby) => format!(
            "ok: server {} of {} stands by; {} leads\n",
            standby.server, standby.cluster, standby.leader
        ),
    }
}

/// Why it is not; `None` if it is.
pub fn complaint(bits: &StatusBits) -> Option<String> {
    if let Some(why) = &bits.store_failing {
        return Some(format!("the records take no changes: {why}"));
    }
    if let Some(silent_ms) = bits.pfs_silent_ms {
        return Some(format!(
            "the PFS has not answered for {} s",
            silent_ms / 1000
        ));
    }
    let away: Vec<&str> = bits
        .tiers
        .iter()
        .filter(|tier| tier.out_of_reach)
        .map(|tier| tier.name.as_str())
        .collect();
    if !away.is_empty() {
        return Some(format!("out of reach: {}", away.join(", ")));
    }
    bits.stopping.then(|| "it is being stopped".to_string())
}

#[cfg(test)]
mod tests {
    use forebay_wire::control::TierStatus;

    use super::*;

    #[test]
    fn who_is_well_says_nothing() {
        assert_eq!(complaint(&StatusBits::default()), None);
        let silent = StatusBits {
            pfs_silent_ms: Some(12_900),
            ..StatusBits::default()
        };
        assert_eq!(
            complaint(&silent).as_deref(),
            Some("the PFS has not answered for 12 s")
        );
        let tier = |name: &str, out_of_reach| TierStatus {
            name: name.into(),
            out_of_reach,
            ..TierStatus::default()
        };
        let away = StatusBits {
            tiers: vec![tier("a", false), tier("b", true)],
            ..StatusBits::default()
        };
        assert_eq!(complaint(&away).as_deref(), Some("out of reach: b"));
    }
}
