//! Path rules: patterns with `*`, `**`, `{app}` and `{version}`.

use forebay_policy::durability::Durability;

use crate::settings::PathRule;

/// Compiled rules.
pub struct Rules {
    rules: Vec<(Vec<Vec<u8>>, Option<Durability>)>,
}

impl Rules {
    /// Takes the rules in their order.
    pub fn new(rules: &[PathRule]) -> Rules {
        let compile = |rule: &PathRule| {
            let pattern = rule.pattern.replace("{app}", "*").replace("{version}", "*");
            let parts = pattern.split('/').filter(|p| !p.is_empty());
            (
                parts.map(|p| p.as_bytes().to_vec()).collect(),
                rule.durability,
            )
        };
        Rules {
            rules: rules.iter().map(compile).collect(),
        }
    }

    /// The rung that the first matching rule names.
    pub fn durability(&self, path: &[u8]) -> Option<Durability> {
        if self.rules.is_empty() {
            return None;
        }
        let parts: Vec<&[u8]> = path
            .split(|&b| b == b'/')
            .filter(|p| !p.is_empty())
            .collect();
        let matching = self
            .rules
            .iter()
            .find(|(pattern, _)| match_parts(pattern, &parts));
        matching.and_then(|(_, durability)| *durability)
    }
}

fn match_parts(pattern: &[Vec<u8>], parts: &[&[u8]]) -> bool {
    match (pattern.split_first(), parts.split_first()) {
        (None, None) => true,
        (Some((head, rest)), _) if head == b"**" => {
            (0..=parts.len()).any(|skip| match_parts(rest, &parts[skip..]))
        }
        (Some((head, rest)), Some((part, others))) => {
            match_part(head, part) && match_parts(rest, others)
        }
        _ => false,
    }
}

fn match_part(pattern: &[u8], part: &[u8]) -> bool {
    match pattern.split_first() {
        None => part.is_empty(),
        Some((b'*', rest)) => (0..=part.len()).any(|skip| match_part(rest, &part[skip..])),
        Some((byte, rest)) => part
            .split_first()
            .is_some_and(|(b, p)| b == byte && match_part(rest, p)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_documented() {
        let rule = |pattern: &str| PathRule {
            pattern: pattern.into(),
            durability: Some(Durability::Pfs),
        };
        let matches =
            |pattern: &str, path: &[u8]| Rules::new(&[rule(pattern)]).durability(path).is_some();
        assert!(matches(
            "/*/{app}/ckpt-{version}/**",
            b"u/run/ckpt-12/rank-3"
        ));
        assert!(matches("/*/{app}/ckpt-{version}/**", b"u/run/ckpt-12"));
        assert!(!matches("/*/{app}/ckpt-{version}/**", b"u/run/log"));
        assert!(matches("**/*.db", b"a/b/c.db"));
        assert!(matches("**/*.db", b"c.db"));
        assert!(!matches("*.db", b"a/c.db"));
        assert!(matches("/a/*b*c", b"a/xbyc"));
    }
}
