//! Rules and limits in force, for [`super::samples`].

use forebay_wire::control::{InForce, LimitInForce, Reloaded, RuleInForce, Whose};

/// What came of reading the settings again.
pub fn reloaded() -> Reloaded {
    Reloaded {
        refused: Some("bb.toml: line 3: no".into()),
        taken: vec!["rule".into()],
        restart: vec!["dram".into()],
    }
}

/// With everything in it.
pub fn in_force() -> InForce {
    let limit = |whose| LimitInForce {
        whose,
        capacity_bytes: Some(1 << 30),
        undrained_bytes: Some(1 << 20),
        rate_bytes_per_s: Some(1 << 25),
        beyond: "direct".into(),
    };
    let rule = RuleInForce {
        pattern: "/*/{app}/ckpt-{version}/**".into(),
        durability: Some("pfs".into()),
        mtbf_ms: Some(7),
        group: Some("commit".into()),
        locality: Some("spread".into()),
        servers: vec![2, 3],
        racks: vec![1],
        trust_ms: Some(60_000),
    };
    use Whose::{EachGroup, EachUser, Group, User};
    InForce {
        rules: vec![rule],
        limits: [EachUser, User(1000), EachGroup, Group(100)]
            .map(limit)
            .into(),
        rules_hidden: true,
    }
}
