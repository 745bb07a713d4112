//! Values that settings take as text, wherever the text comes from.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use forebay_policy::UnknownName;
use forebay_policy::demotion::PlacementPolicy;
use forebay_policy::durability::Durability;
use forebay_policy::holders::Locality;
use forebay_policy::links::Distribution;
use forebay_policy::plan::DrainPolicy;
use forebay_server::{GroupMode, SsdSetting, Verify};
use forebay_types::{parse_duration, parse_percent, parse_size};
use serde::de;

use super::listening::Listen;

/// Reads a setting from text.
pub trait FromText: Sized {
    /// What is expected, for messages.
    const EXPECTED: &'static str;
    /// The value, or what is wrong.
    fn from_text(text: &str) -> Result<Self, String>;
    /// The same for text that need not be UTF-8, such as names of files.
    fn from_os(text: &OsStr) -> Result<Self, String> {
        Self::from_text(text.to_str().ok_or("is not UTF-8")?)
    }
    /// The same for a boolean, where one is expected.
    fn from_bool(_truth: bool) -> Option<Self> {
        None
    }
}

/// Marks text that [`carried`] had to encode: no name of a file contains this character.
const CARRIED: char = '\0';

/// Any text as UTF-8, because TOML takes nothing else. [`brought`] is the way back.
pub fn carried(text: &OsStr) -> String {
    match text.to_str() {
        Some(text) => text.to_string(),
        None => {
            let bytes = text.as_bytes().iter().map(|byte| char::from(*byte));
            std::iter::once(CARRIED).chain(bytes).collect()
        }
    }
}

fn brought(text: &str) -> OsString {
    let carried = text.strip_prefix(CARRIED);
    let bytes: Option<Vec<u8>> = carried.and_then(|rest| {
        let bytes = rest.chars().map(|c| u8::try_from(c).ok());
        bytes.collect()
    });
    bytes.map_or_else(|| text.into(), OsString::from_vec)
}

/// Declares a value and reads it from TOML strings and numbers.
macro_rules! value {
    ($(#[$doc:meta])* $name:ident($inner:ty), $expected:literal, $parse:expr $(; $also:item)*) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name(pub $inner);

        impl FromText for $name {
            const EXPECTED: &'static str = $expected;
            fn from_text(text: &str) -> Result<Self, String> {
                let parse: fn(&str) -> Result<$inner, String> = $parse;
                parse(text).map($name)
            }
            $($also)*
        }

        impl From<$name> for $inner {
            fn from(value: $name) -> $inner {
                value.0
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_any(TextVisitor(std::marker::PhantomData))
            }
        }
    };
}

pub(super) struct TextVisitor<T>(pub(super) std::marker::PhantomData<T>);

impl<T: FromText> de::Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        T::from_os(&brought(text)).map_err(E::custom)
    }
    fn visit_bool<E: de::Error>(self, truth: bool) -> Result<T, E> {
        T::from_bool(truth).ok_or_else(|| E::invalid_type(de::Unexpected::Bool(truth), &self))
    }
    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

value!(
    /// Bytes.
    Size(u64), "a size such as \"4GiB\"", |text| parse_size(text).map_err(|e| e.to_string())
);
/// How large the memory tier is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DramSize {
    /// So many bytes, always.
    Fixed(u64),
    /// As much as jobs do without.
    Auto,
    /// There is none.
    None,
}

value!(
    /// Memory to borrow.
    Dram(DramSize), "a size such as \"4GiB\", \"auto\" or \"none\"", |text| match text.trim() {
        "auto" => Ok(DramSize::Auto),
        "none" => Ok(DramSize::None),
        size => parse_size(size).map(DramSize::Fixed).map_err(|e| e.to_string()),
    }
);
value!(
    /// A duration.
    Span(Duration), "a duration such as \"500ms\"", |text| parse_duration(text).map_err(|e| e.to_string())
);
value!(
    /// A share of a whole, 0 to 1.
    Fraction(f64), "a fraction such as 0.5 or \"50%\"", |text| parse_percent(text).map_err(|e| e.to_string())
);
value!(
    /// What fsync promises.
    Level(Durability), "one of memory, ssd, pfs", parse_level
);
value!(
    /// Where metrics and a page are.
    Listening(Listen), "an address with a port, or unix: and a path", |text| text.parse()
);
value!(
    /// By what a version is published.
    Group(GroupMode), "\"commit\" or \"complete\"", |text| {
        text.parse::<GroupMode>().map_err(|e| e.to_string())
    }
);
value!(
    /// How near to who writes it a file lies.
    Vicinity(Locality), "one of writer-first, local-only, spread", |text| {
        text.parse().map_err(|e: UnknownName| e.to_string())
    }
);
value!(
    /// Name of the scheduling policy.
    PolicyName(String), "the name of a policy", |text| match text.parse::<DrainPolicy>() {
        Ok(policy) => Ok(policy.name().to_string()),
        Err(unknown) => Err(unknown.to_string()),
    }
);
value!(
    /// Order of victims.
    Order(PlacementPolicy), "one of bbos, fifo, lru, coolness", |text| {
        text.parse().map_err(|e: UnknownName| e.to_string())
    }
);
value!(
    /// Bytes per second.
    Rate(f64), "a rate such as \"2GB/s\"", |text| {
        let text = text.trim();
        parse_size(text.strip_suffix("/s").unwrap_or(text))
            .map(|bytes| bytes as f64)
            .map_err(|e| e.to_string())
    }
);
value!(
    /// How copies are verified.
    Verification(Verify), "\"read-back\" or \"media\"", |text| match text {
        "read-back" => Ok(Verify::ReadBack),
        "media" => Ok(Verify::Media),
        _ => Err(format!("unknown verification '{text}': expected one of read-back, media")),
    }
);
value!(
    /// A flash directory, `DIR` or `DIR:SIZE`.
    Ssd(SsdSetting), "DIR or DIR:SIZE", |text| parse_ssd(OsStr::new(text));
    fn from_os(text: &OsStr) -> Result<Self, String> {
        parse_ssd(text).map(Ssd)
    }
);
value!(
    /// A directory.
    Folder(PathBuf), "the path of a directory", |text| Ok(text.into());
    fn from_os(text: &OsStr) -> Result<Self, String> {
        Ok(Folder(text.into()))
    }
);
value!(
    /// On or off.
    Switch(bool), "true or false", |text| match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(format!("'{text}' is neither true nor false")),
    };
    fn from_bool(truth: bool) -> Option<Self> {
        Some(Switch(truth))
    }
);
value!(
    /// How long to wait; `None`: for ever.
    Patience(Option<Duration>), "a duration such as \"60s\", or false", |text| match text {
        "false" => Ok(None),
        _ => parse_duration(text).map(Some).map_err(|e| e.to_string()),
    };
    fn from_bool(truth: bool) -> Option<Self> {
        // True would not say how long.
        (!truth).then_some(Patience(None))
    }
);
value!(
    /// How requests are spread over connections.
    Spread(Distribution), "one of auto, ttos, ttom", |text| {
        text.parse().map_err(|e: UnknownName| e.to_string())
    }
);
value!(
    /// A small number.
    Count(usize), "a number", |text| text.trim().parse().map_err(|_| format!("'{text}' is not a number"))
);

fn parse_level(text: &str) -> Result<Durability, String> {
    match text.parse::<Durability>() {
        Ok(level) => Ok(level),
        Err(_) => Err(format!(
            "unknown durability '{text}': expected one of memory, ssd, pfs, and in a cluster replica"
        )),
    }
}

/// Splits at the last ':' if what follows is a size: a colon may well be part of a name.
pub fn parse_ssd(text: &OsStr) -> Result<SsdSetting, String> {
    let bytes = text.as_bytes();
    let split = bytes.iter().rposition(|&b| b == b':').and_then(|at| {
        let size = parse_size(std::str::from_utf8(&bytes[at + 1..]).ok()?).ok()?;
        Some((&bytes[..at], size))
    });
    let (dir, capacity_bytes) = match split {
        Some((dir, size)) => (dir, Some(size)),
        None => (bytes, None),
    };
    match dir.is_empty() {
        true => Err("names no directory; write DIR or DIR:SIZE".into()),
        false => Ok(SsdSetting {
            dir: PathBuf::from(OsStr::from_bytes(dir)),
            capacity_bytes,
        }),
    }
}

pub(super) use value;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_text_are_carried_as_text() {
        for name in [
            &b"/plain"[..],
            b"",
            b"/\xff\xfe\x80:4G",
            "/größe".as_bytes(),
        ] {
            let name = OsStr::from_bytes(name);
            assert_eq!(brought(&carried(name)), name);
        }
    }

    #[test]
    fn flash_directories() {
        let parse = |text: &str| parse_ssd(OsStr::new(text)).map(|s| (s.dir, s.capacity_bytes));
        assert_eq!(parse("/nvme"), Ok(("/nvme".into(), None)));
        assert_eq!(
            parse("/nvme:100GB"),
            Ok(("/nvme".into(), Some(100_000_000_000)))
        );
        assert_eq!(parse("/a:b"), Ok(("/a:b".into(), None)));
        assert_eq!(parse("/a:b:1T"), Ok(("/a:b".into(), Some(1 << 40))));
        assert!(parse(":4GiB").is_err());
        assert!(parse("").is_err());
    }

    #[test]
    fn words() {
        assert_eq!(Level::from_text("pfs"), Ok(Level(Durability::Pfs)));
        assert!(
            Level::from_text("disk")
                .unwrap_err()
                .contains("memory, ssd, pfs")
        );
        assert_eq!(Level::from_text("replica"), Ok(Level(Durability::Replica)));
        assert_eq!(
            PolicyName::from_text("maxbw"),
            Ok(PolicyName("maxbw".into()))
        );
        let unknown = PolicyName::from_text("fastest").unwrap_err();
        assert!(unknown.contains("bbos, maxbw, maxeff"), "{unknown}");
        assert_eq!(Switch::from_text("Off"), Ok(Switch(false)));
        assert!(Switch::from_text("maybe").is_err());
        assert_eq!(
            Verification::from_text("media"),
            Ok(Verification(Verify::Media))
        );
    }
}
