//! `[[limit]]`: limits of users and groups, as the file has them.

use std::collections::HashSet;

use forebay_policy::limits::{self, Amount, Beyond, Owner, Whose};
use forebay_types::{parse_percent, parse_size};
use serde::Deserialize;
use toml::Spanned;

use super::layers::ConfigFile;
use super::values::{FromText, TextVisitor, value};
use crate::exit::Failure;
use crate::owners::{self, Kind};

/// Least rate of writes, bytes per second.
const RATE_MIN: u64 = 64 << 10;

value!(
    /// Bytes, or a share of the capacity.
    Space(Amount), "a size such as \"100GiB\", or a share such as \"20%\"", |text| {
        let text = text.trim();
        let amount = match text.ends_with('%') {
            true => parse_percent(text).map(Amount::Share),
            false => parse_size(text).map(Amount::Bytes),
        };
        amount.map_err(|e| e.to_string())
    }
);
value!(
    /// Bytes per second. Slower than this a single write would hold up its program for minutes.
    Pace(u64), "a rate such as \"200MB/s\", 64KiB/s and more", |text| {
        let text = text.trim();
        let rate = parse_size(text.strip_suffix("/s").unwrap_or(text)).map_err(|e| e.to_string())?;
        match rate >= RATE_MIN {
            true => Ok(rate),
            false => Err("less than 64KiB/s".to_owned()),
        }
    }
);
value!(
    /// What happens beyond.
    Then(Beyond), "\"wait\" or \"direct\"", |text| {
        text.parse::<Beyond>().map_err(|e| e.to_string())
    }
);
value!(
    /// A user.
    User(Whose), "the name or number of a user, or \"*\"", |text| match text {
        "*" => Ok(Whose::EachUser),
        name => Kind::User.number(name).map(|id| Whose::One(Owner::User(id))),
    }
);
value!(
    /// A group.
    Project(Whose), "the name or number of a group, or \"*\"", |text| match text {
        "*" => Ok(Whose::EachGroup),
        name => Kind::Group.number(name).map(|id| Whose::One(Owner::Group(id))),
    }
);

/// One `[[limit]]` as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    user: Option<User>,
    group: Option<Project>,
    capacity: Option<Space>,
    undrained: Option<Space>,
    rate: Option<Pace>,
    beyond: Option<Then>,
}

/// One `[[limit]]`, and where it begins in the file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Spanned<Written>")]
pub struct Limit(pub limits::Limit, usize);

/// Of two limits for the same user or group one would do nothing. The file says on which line.
pub fn check_each_once(limits: &[Limit], file: Option<&ConfigFile>) -> Result<(), Failure> {
    let mut known = HashSet::new();
    let Some(again) = limits.iter().find(|limit| !known.insert(limit.0.whose)) else {
        return Ok(());
    };
    let place = match file {
        Some(file) => format!("{}: line {}", file.path().display(), file.line_at(again.1)),
        None => "up".into(),
    };
    Err(Failure::fatal(format!(
        "{place}: [[limit]]: there are two for {}; write one with both capacity and undrained",
        in_words(again.0.whose)
    )))
}

fn in_words(whose: Whose) -> String {
    owners::whose(match whose {
        Whose::EachUser => forebay_wire::control::Whose::EachUser,
        Whose::EachGroup => forebay_wire::control::Whose::EachGroup,
        Whose::One(Owner::User(id)) => forebay_wire::control::Whose::User(id),
        Whose::One(Owner::Group(id)) => forebay_wire::control::Whose::Group(id),
    })
}

impl TryFrom<Spanned<Written>> for Limit {
    type Error = &'static str;

    fn try_from(written: Spanned<Written>) -> Result<Limit, &'static str> {
        let start = written.span().start;
        let written = written.into_inner();
        let whose = match (written.user, written.group) {
            (Some(user), None) => user.0,
            (None, Some(group)) => group.0,
            (None, None) => return Err("limit: user or group is missing; \"*\" stands for each"),
            (Some(_), Some(_)) => {
                return Err("limit: user and group are both given; write one [[limit]] for each");
            }
        };
        let spaces = [&written.capacity, &written.undrained];
        if spaces.iter().all(|space| space.is_none()) && written.rate.is_none() {
            return Err(
                "limit: none of capacity, undrained and rate is given; it would limit nothing",
            );
        }
        let limit = limits::Limit {
            whose,
            capacity: written.capacity.map(Into::into),
            undrained: written.undrained.map(Into::into),
            rate_bytes_per_s: written.rate.map(Into::into),
            beyond: written.beyond.map(Into::into).unwrap_or_default(),
        };
        Ok(Limit(limit, start))
    }
}

#[cfg(test)]
mod tests {
    use super::super::given::Given;
    use super::super::layers::{ConfigFile, Layers};

    fn read(text: &str) -> Result<Given, String> {
        let file = ConfigFile::of_text("bb.toml".into(), format!("dram = \"1G\"\n{text}"));
        let layers = Layers::of_file(&file).map_err(|failure| failure.message)?;
        layers.read().map_err(|failure| failure.message)
    }

    #[test]
    fn limits_are_read() {
        use super::*;
        let text = "[[limit]]\nuser = \"*\"\ncapacity = \"20%\"\n\
                    [[limit]]\ngroup = 12\nundrained = \"1GiB\"\nbeyond = \"direct\"\n";
        let given = read(text).expect("valid");
        let limits: Vec<_> = given.limits.iter().map(|limit| limit.0).collect();
        let expected = [
            limits::Limit {
                whose: Whose::EachUser,
                capacity: Some(Amount::Share(0.2)),
                undrained: None,
                rate_bytes_per_s: None,
                beyond: Beyond::Wait,
            },
            limits::Limit {
                whose: Whose::One(Owner::Group(12)),
                capacity: None,
                undrained: Some(Amount::Bytes(1 << 30)),
                rate_bytes_per_s: None,
                beyond: Beyond::Direct,
            },
        ];
        assert_eq!(limits, expected);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_line() {
        for (text, line, part) in [
            (
                "user = \"no-such-user-here\"\ncapacity = 1",
                3,
                "not known on this machine",
            ),
            ("user = \"*\"\ncapacity = \"120%\"", 4, "120%"),
            ("user = \"*\"\ncapacity = \"much\"", 4, "for example 4GiB"),
            (
                "user = \"*\"\ncapacity = 1\nbeyond = \"never\"",
                5,
                "wait, direct",
            ),
            ("user = \"*\"\ncapacty = 1", 4, "did you mean `capacity`"),
            ("capacity = 1", 2, "user or group is missing"),
            (
                "user = \"*\"\ngroup = \"*\"\ncapacity = 1",
                2,
                "one [[limit]] for each",
            ),
            ("user = \"*\"\nbeyond = \"wait\"", 2, "limit nothing"),
        ] {
            let error = read(&format!("[[limit]]\n{text}\n")).unwrap_err();
            let place = format!("bb.toml: line {line}: ");
            assert!(
                error.starts_with(&place) && error.contains(part),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn a_second_limit_for_the_same_user_is_named_with_its_line() {
        use super::check_each_once;
        let limit = "[[limit]]\nuser = \"root\"\ncapacity = 1\n";
        let text = format!("dram = \"1G\"\n{limit}{limit}");
        let file = ConfigFile::of_text("bb.toml".into(), text);
        let given: Given = Layers::of_file(&file)
            .and_then(Layers::read)
            .unwrap_or_else(|failure| panic!("{}", failure.message));
        let refused = check_each_once(&given.limits, Some(&file)).unwrap_err();
        assert!(
            refused
                .message
                .starts_with("bb.toml: line 5: [[limit]]: there are two for user root"),
            "{}",
            refused.message
        );
        assert!(check_each_once(&given.limits[1..], Some(&file)).is_ok());
    }
}
