//! Path rules: patterns with `*`, `**`, `{app}` and `{version}`.

use std::time::Duration;

use forebay_policy::durability::Durability;
use forebay_policy::holders::HolderRule;
use forebay_policy::publication::GroupMode;
use forebay_policy::series::{Identity, identify};

use crate::base::settings::PathRule;

/// A piece of one component of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// This byte.
    Byte(u8),
    /// Any bytes.
    Any,
    /// Any bytes, at least one: the application.
    Application,
    /// Decimal digits, at least one: the version.
    Version,
}

/// One component of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// `**`: any number of components.
    Deep,
    /// Anything else.
    Tokens(Vec<Token>),
}

struct Rule {
    parts: Vec<Part>,
    /// What the rule's names, level, MTBF and servers are for: a rule that makes versions names
    /// directories, and means what is in them.
    of_files: Vec<Part>,
    names: bool,
    durability: Option<Durability>,
    mtbf_s: Option<f64>,
    group: Option<GroupMode>,
    placement: Option<HolderRule>,
    trust: Option<Duration>,
}

/// What a pattern has named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Named {
    application: Option<String>,
    version: Option<u64>,
}

/// Compiled rules.
pub struct Rules {
    rules: Vec<Rule>,
}

impl Rules {
    /// Takes the rules in their order.
    pub fn new(rules: &[PathRule]) -> Rules {
        let compile = |rule: &PathRule| {
            let names = rule.pattern.split('/').filter(|p| !p.is_empty());
            let parts: Vec<_> = names.map(part).collect();
            let mut of_files = parts.clone();
            if rule.group.is_some() {
                of_files.push(Part::Deep);
            }
            Rule {
                parts,
                of_files,
                names: rule.pattern.contains("{app}") || rule.pattern.contains("{version}"),
                durability: rule.durability,
                mtbf_s: rule.mtbf.map(|d| d.as_secs_f64()),
                group: rule.group,
                placement: rule.placement.clone(),
                trust: rule.trust,
            }
        };
        Rules {
            rules: rules.iter().map(compile).collect(),
        }
    }

    fn first(&self, path: &[u8], wanted: fn(&Rule) -> bool) -> Option<(&Rule, Named)> {
        self.first_by(path, wanted, |rule| &rule.of_files)
    }

    fn first_by(
        &self,
        path: &[u8],
        wanted: fn(&Rule) -> bool,
        pattern: fn(&Rule) -> &[Part],
    ) -> Option<(&Rule, Named)> {
        let parts: Vec<&[u8]> = path
            .split(|&b| b == b'/')
            .filter(|p| !p.is_empty())
            .collect();
        let mut wanted = self.rules.iter().filter(|rule| wanted(rule));
        wanted.find_map(|rule| {
            let named = match_parts(pattern(rule), &parts, Named::default())?;
            Some((rule, named))
        })
    }

    /// The level that the first matching rule with one names.
    pub fn durability(&self, path: &[u8]) -> Option<Durability> {
        if self.rules.is_empty() {
            return None;
        }
        self.first(path, |rule| rule.durability.is_some())
            .and_then(|(rule, _)| rule.durability)
    }

    /// The MTBF that the first matching rule with one names.
    pub fn mtbf_s(&self, path: &[u8]) -> Option<f64> {
        let (rule, _) = self.first(path, |rule| rule.mtbf_s.is_some())?;
        rule.mtbf_s
    }

    /// Whether any rule says on which servers files lie.
    pub fn has_placements(&self) -> bool {
        self.rules.iter().any(|rule| rule.placement.is_some())
    }

    /// The servers that the first matching rule with a word on them names.
    pub fn placement(&self, path: &[u8]) -> Option<&HolderRule> {
        if !self.has_placements() {
            return None;
        }
        let (rule, _) = self.first(path, |rule| rule.placement.is_some())?;
        rule.placement.as_ref()
    }

    /// For how long the first matching rule with a word on it has clean copies trusted.
    pub fn trust(&self, path: &[u8]) -> Duration {
        let found = self.first(path, |rule| rule.trust.is_some());
        found.and_then(|(rule, _)| rule.trust).unwrap_or_default()
    }

    /// Whether any rule has clean copies trusted.
    pub fn has_trust(&self) -> bool {
        self.rules.iter().any(|rule| rule.trust.is_some())
    }

    /// Whether a rule names the application of this path.
    pub fn names_application(&self, path: &[u8]) -> bool {
        self.first(path, |rule| rule.names)
            .is_some_and(|(_, named)| named.application.is_some())
    }

    /// Whether any rule makes versions of directories.
    pub fn has_groups(&self) -> bool {
        self.rules.iter().any(|rule| rule.group.is_some())
    }

    /// By what the version in this directory is published, if the first matching rule makes it one.
    pub fn group(&self, path: &[u8]) -> Option<GroupMode> {
        self.first_by(path, |rule| rule.group.is_some(), |rule| &rule.parts)
            .and_then(|(rule, _)| rule.group)
    }

    /// Application and version: by the first matching rule that names them, else by the path
    /// itself.
    pub fn identify(&self, path: &[u8]) -> Identity {
        let path = without_conflict(path);
        let mut identity = identify(path);
        if self.rules.is_empty() {
            return identity;
        }
        if let Some((_, named)) = self.first(path, |rule| rule.names) {
            identity.application = named.application.unwrap_or(identity.application);
            identity.is_certain |= named.version.is_some();
            identity.version = named.version.or(identity.version);
        }
        identity
    }
}

/// What stands for a name in a pattern.
const PLACEHOLDERS: [&str; 2] = ["{app}", "{version}"];

/// What is wrong with a rule: a placeholder that there is not, one that is there twice, a group
/// without versions.
pub fn check_rule(rule: &PathRule) -> Result<(), String> {
    let mut rest = rule.pattern.clone();
    for placeholder in PLACEHOLDERS {
        if rest.matches(placeholder).count() > 1 {
            return Err(format!("{placeholder} is there twice"));
        }
        // What is left of another shall not become one.
        rest = rest.replace(placeholder, "\0");
    }
    if let Some(at) = rest.find(['{', '}']) {
        let word = match rest[at..].find('}') {
            Some(end) if rest[at..].starts_with('{') => &rest[at..=at + end],
            _ => &rest[at..=at],
        };
        return Err(format!(
            "{} is no placeholder; there are {} (a brace that is part of a name is matched by *)",
            word.escape_debug(),
            PLACEHOLDERS.join(" and ")
        ));
    }
    if let Some(name) = rule
        .pattern
        .split('/')
        .find(|name| matches!(*name, "." | ".."))
    {
        return Err(format!(
            "no file below the mount is called '{name}': the rule would never match"
        ));
    }
    if rule.group.is_some() && !rule.pattern.contains("{version}") {
        return Err(
            "group needs {version} in the path: it says which directories are versions".into(),
        );
    }
    Ok(())
}

/// A version put beside another belongs where that one does: the time in its name is no version.
fn without_conflict(path: &[u8]) -> &[u8] {
    let mark = b".forebay-conflict-";
    match path.windows(mark.len()).rposition(|part| part == mark) {
        Some(at) => &path[..at],
        None => path,
    }
}

fn part(text: &str) -> Part {
    if text == "**" {
        return Part::Deep;
    }
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.bytes().next() {
        let (token, used) = if rest.starts_with("{app}") {
            (Token::Application, "{app}".len())
        } else if rest.starts_with("{version}") {
            (Token::Version, "{version}".len())
        } else if first == b'*' {
            (Token::Any, 1)
        } else {
            (Token::Byte(first), 1)
        };
        tokens.push(token);
        // A byte may be part of a longer character: the pattern is compared byte by byte.
        match rest.is_char_boundary(used) {
            true => rest = &rest[used..],
            false => {
                let length = rest.chars().next().map_or(1, char::len_utf8);
                tokens.extend(rest.bytes().take(length).skip(1).map(Token::Byte));
                rest = &rest[length..];
            }
        }
    }
    Part::Tokens(tokens)
}

/// Places in a pattern and in what is compared with it from which nothing matches. Several
/// wildcards would else try every way to divide a path among them, again and again: anybody makes
/// paths.
struct DeadEnds {
    width: usize,
    known: Vec<bool>,
}

impl DeadEnds {
    fn new(pattern: usize, compared: usize) -> DeadEnds {
        DeadEnds {
            width: compared + 1,
            known: vec![false; (pattern + 1) * (compared + 1)],
        }
    }

    /// With so much left of both.
    fn at(&mut self, pattern: usize, compared: usize) -> &mut bool {
        &mut self.known[pattern * self.width + compared]
    }
}

fn match_parts(pattern: &[Part], parts: &[&[u8]], named: Named) -> Option<Named> {
    let mut dead = DeadEnds::new(pattern.len(), parts.len());
    parts_from(pattern, parts, named, &mut dead)
}

fn parts_from(
    pattern: &[Part],
    parts: &[&[u8]],
    named: Named,
    dead: &mut DeadEnds,
) -> Option<Named> {
    if *dead.at(pattern.len(), parts.len()) {
        return None;
    }
    let found = match (pattern.split_first(), parts.split_first()) {
        (None, None) => Some(named),
        (Some((Part::Deep, rest)), _) => (0..=parts.len()).find_map(|skip| {
            // From here on another `**` has tried already.
            let behind = !std::mem::replace(dead.at(pattern.len(), parts.len() - skip), true);
            behind.then(|| parts_from(rest, &parts[skip..], named.clone(), dead))?
        }),
        (Some((Part::Tokens(tokens), rest)), Some((part, others))) => {
            match_tokens(tokens, part, named)
                .and_then(|named| parts_from(rest, others, named, dead))
        }
        _ => None,
    };
    if found.is_none() {
        *dead.at(pattern.len(), parts.len()) = true;
    }
    found
}

fn match_tokens(tokens: &[Token], text: &[u8], named: Named) -> Option<Named> {
    let literal = |token: &Token| matches!(token, Token::Byte(_));
    let at = tokens.iter().take_while(|token| literal(token)).count();
    let (begin, rest) = tokens.split_at(at);
    let (head, text) = text.split_at_checked(at)?;
    let is_same = |(token, byte): (&Token, &u8)| matches!(token, Token::Byte(b) if b == byte);
    if !begin.iter().zip(head).all(is_same) {
        return None;
    }
    if rest.is_empty() {
        return text.is_empty().then_some(named);
    }
    let mut dead = DeadEnds::new(rest.len(), text.len());
    tokens_from(rest, text, named, &mut dead)
}

fn tokens_from(tokens: &[Token], text: &[u8], named: Named, dead: &mut DeadEnds) -> Option<Named> {
    if *dead.at(tokens.len(), text.len()) {
        return None;
    }
    let found = match tokens.split_first() {
        None => text.is_empty().then_some(named),
        Some((token, rest)) => tokens_behind(token, rest, text, named, dead),
    };
    if found.is_none() {
        *dead.at(tokens.len(), text.len()) = true;
    }
    found
}

/// What the first token stands for, and the rest behind it.
fn tokens_behind(
    token: &Token,
    rest: &[Token],
    text: &[u8],
    named: Named,
    dead: &mut DeadEnds,
) -> Option<Named> {
    match token {
        Token::Byte(byte) => match text.split_first() {
            Some((b, text)) if b == byte => tokens_from(rest, text, named, dead),
            _ => None,
        },
        Token::Any => {
            (0..=text.len()).find_map(|n| tokens_from(rest, &text[n..], named.clone(), dead))
        }
        Token::Application => (1..=text.len()).rev().find_map(|n| {
            // The name is made only where the rest may match.
            if *dead.at(rest.len(), text.len() - n) {
                return None;
            }
            let application = Some(String::from_utf8_lossy(&text[..n]).into_owned());
            let named = Named {
                application,
                ..named.clone()
            };
            tokens_from(rest, &text[n..], named, dead)
        }),
        Token::Version => {
            let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
            (1..=digits).rev().find_map(|n| {
                let version = std::str::from_utf8(&text[..n]).ok()?.parse().ok();
                let named = Named {
                    version,
                    ..named.clone()
                };
                tokens_from(rest, &text[n..], named, dead)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(pattern: &str) -> Rules {
        Rules::new(&[PathRule {
            pattern: pattern.into(),
            durability: Some(Durability::Pfs),
            mtbf: None,
            group: Some(GroupMode::Commit),
            placement: None,
            trust: None,
        }])
    }

    #[test]
    fn patterns_match_as_documented() {
        let matches = |pattern: &str, path: &[u8]| rules(pattern).durability(path).is_some();
        assert!(matches(
            "/*/{app}/ckpt-{version}/**",
            b"u/run/ckpt-12/rank-3"
        ));
        assert!(matches("/*/{app}/ckpt-{version}/**", b"u/run/ckpt-12"));
        assert!(!matches("/*/{app}/ckpt-{version}/**", b"u/run/log"));
        assert!(!matches("/*/{app}/ckpt-{version}/**", b"u/run/ckpt-x/a"));
        assert!(matches("**/*.db", b"a/b/c.db"));
        assert!(matches("**/*.db", b"c.db"));
        assert!(!matches("*.db", b"a/c.db"));
        assert!(matches("/a/*b*c", b"a/xbyc"));
        assert!(matches("/\u{e9}t\u{e9}", "\u{e9}t\u{e9}".as_bytes()));
    }

    #[test]
    fn the_first_rule_with_a_word_on_trust_counts() {
        let rule = |pattern: &str, trust: Option<u64>| PathRule {
            pattern: pattern.into(),
            durability: None,
            mtbf: None,
            group: None,
            placement: None,
            trust: trust.map(Duration::from_secs),
        };
        let rules = Rules::new(&[
            rule("/a/**", None),
            rule("/a/b/**", Some(9)),
            rule("/**", Some(3)),
        ]);
        for (path, seconds) in [("a/b/c", 9), ("a/c", 3), ("d", 3)] {
            assert_eq!(rules.trust(path.as_bytes()), Duration::from_secs(seconds));
        }
        assert!(!Rules::new(&[rule("/**", None)]).has_trust());
    }

    #[test]
    fn a_rule_that_makes_versions_names_what_is_in_them() {
        let rules = rules("/*/full-{version}");
        assert_eq!(rules.identify(b"run/full-7/rank-0").version, Some(7));
        assert!(rules.durability(b"run/full-7/deep/rank-0").is_some());
        assert_eq!(rules.group(b"run/full-7"), Some(GroupMode::Commit));
        assert_eq!(rules.group(b"run/full-7/deep"), None);
    }

    #[test]
    fn many_wildcards_take_no_more_time_than_their_product() {
        let begun = std::time::Instant::now();
        let name = [&[b'a'; 240][..], b"b"].concat();
        let stars = rules(&format!("/{}c", "*a".repeat(20)));
        assert!(stars.durability(&name).is_none());
        let names = rules(&format!("/{}c", "{app}a".repeat(10)));
        assert!(names.durability(&name).is_none());
        let path = "a/".repeat(1000);
        let deep = rules(&format!("{}c", "**/a/".repeat(10)));
        assert!(deep.durability(path.as_bytes()).is_none());
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    }

    #[test]
    fn misspelt_placeholders_are_refused() {
        let check = |pattern: &str, group| {
            check_rule(&PathRule {
                pattern: pattern.into(),
                durability: None,
                mtbf: None,
                group,
                placement: None,
                trust: None,
            })
        };
        for good in ["/*/{app}/ckpt-{version}/**", "/x", "/{version}/{app}"] {
            assert_eq!(check(good, None), Ok(()), "{good}");
        }
        for (bad, what) in [
            (
                "/*/ckpt-{Version}/**",
                "{Version} is no placeholder; there are {app} and {version}",
            ),
            ("/{foo}/a", "{foo} is no"),
            ("/{/a", "{ is no"),
            ("/a}", "} is no"),
            ("/{{app}}", "{"),
            ("/{version}{version}", "{version} is there twice"),
            ("/{app}/{app}", "{app} is there twice"),
            ("/../x", "no file below the mount is called '..'"),
            ("/a/./**", "no file below the mount is called '.'"),
        ] {
            let why = check(bad, None).expect_err(bad);
            assert!(why.starts_with(what), "{bad}: {why}");
        }
        let group = Some(GroupMode::Commit);
        assert_eq!(check("/a/ckpt-{version}", group), Ok(()));
        assert!(check("/a/ckpt-*", group).is_err());
    }

    #[test]
    fn patterns_name_application_and_version() {
        let identity =
            rules("/*/{app}/s{version}-of-*/**").identify(b"u/climate/s0042-of-9/rank-3");
        assert_eq!(
            (identity.application.as_str(), identity.version),
            ("climate", Some(42))
        );
        let beside = rules("/x").identify(b"u/run/ckpt-7.forebay-conflict-1700000000");
        assert_eq!(beside, identify(b"u/run/ckpt-7"));
        let other = rules("/x/{app}").identify(b"u/run/ckpt-7");
        assert_eq!(other, identify(b"u/run/ckpt-7"));
    }
}
