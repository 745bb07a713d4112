//! Enums that users select by name.

/// A name that is none of those a setting takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} {given:?}: expected one of {expected}")]
pub struct UnknownName {
    /// The setting.
    pub what: &'static str,
    /// What was given.
    pub given: String,
    /// The names it takes.
    pub expected: String,
}

/// Gives an enum `ALL`, `name`, `Display` and `FromStr` from one table of names. Case is ignored
/// when reading.
macro_rules! named {
    ($type:ident, $what:literal, $($variant:ident => $name:literal),+ $(,)?) => {
        impl $type {
            /// Every value, in the order of the ladder or with the default first.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name users write.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::UnknownName;

            fn from_str(given: &str) -> Result<Self, Self::Err> {
                let found = Self::ALL.iter().find(|v| v.name().eq_ignore_ascii_case(given));
                found.copied().ok_or_else(|| $crate::UnknownName {
                    what: $what,
                    given: given.to_owned(),
                    expected: [$($name),+].join(", "),
                })
            }
        }
    };
}

pub(crate) use named;
