//! Sizes and durations as people write them.

use std::time::Duration;

/// Why a quantity was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// No number in front, or one that is none.
    #[error("'{0}' is no number with a unit; write for example {1}")]
    NoNumber(String, &'static str),
    /// The number is followed by something that is no unit.
    #[error("'{0}' has no known unit; known are {1}")]
    Unit(String, &'static str),
    /// Negative, not a number, or more than fits.
    #[error("'{0}' is out of range")]
    Range(String),
    /// More than nothing, and less than a byte; or so many bytes and a part of one.
    #[error("'{0}' is a fraction of a byte; write for example {SIZES}")]
    FractionOfByte(String),
    /// No part of something.
    #[error("'{0}' is no fraction; write for example {FRACTIONS}")]
    NoFraction(String),
    /// More or less than a part of something.
    #[error("'{0}' is not between 0% and 100%")]
    Fraction(String),
}

const SIZE_UNITS: &str = "B, kB, MB, GB, TB, PB (powers of 1000) and KiB, MiB, GiB, TiB, PiB (powers of 1024; also K, M, G, T, P)";
const DURATION_UNITS: &str = "ns, us, ms, s, m or min, h, d";

const SIZES: &str = "4GiB, 500MB or 1.5T";
const DURATIONS: &str = "30s, 1.5h or 200ms";
const FRACTIONS: &str = "20% or 0.2";

fn split<'a>(text: &'a str, example: &'static str) -> Result<(f64, &'a str), QuantityError> {
    let trimmed = text.trim();
    let end = trimmed
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(trimmed.len());
    let digits = trimmed[..end].replace('_', "");
    if digits.is_empty() || trimmed.starts_with('.') {
        return Err(QuantityError::NoNumber(text.to_string(), example));
    }
    let number: f64 = digits
        .parse()
        .map_err(|_| QuantityError::NoNumber(text.to_string(), example))?;
    Ok((number, trimmed[end..].trim()))
}

/// Bytes from `4GiB`, `500MB`, `1.5T`, `4096`. Units: `B kB MB GB TB PB` (1000),
/// `KiB MiB GiB TiB PiB` and single letters (1024), in any case. With a unit the result is
/// rounded down to whole bytes; a fraction of bytes alone is refused, and so is less than one.
pub fn parse_size(text: &str) -> Result<u64, QuantityError> {
    let (number, unit) = split(text, SIZES)?;
    let factor: f64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        "pb" => 1e15,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1024.0 * 1024.0,
        "g" | "gib" => 1024.0 * 1024.0 * 1024.0,
        "t" | "tib" => 1024f64.powi(4),
        "p" | "pib" => 1024f64.powi(5),
        _ => return Err(QuantityError::Unit(text.to_string(), SIZE_UNITS)),
    };
    let bytes = number * factor;
    if !bytes.is_finite() || bytes < 0.0 || bytes >= i64::MAX as f64 {
        return Err(QuantityError::Range(text.to_string()));
    }
    let is_part = factor == 1.0 && bytes.fract() != 0.0;
    if is_part || (bytes > 0.0 && bytes < 1.0) {
        return Err(QuantityError::FractionOfByte(text.to_string()));
    }
    Ok(bytes as u64)
}

/// A duration from `30s`, `1.5h`, `200ms`, `90` (seconds).
pub fn parse_duration(text: &str) -> Result<Duration, QuantityError> {
    let (number, unit) = split(text, DURATIONS)?;
    let factor: f64 = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(QuantityError::Unit(text.to_string(), DURATION_UNITS)),
    };
    Duration::try_from_secs_f64(number * factor).map_err(|_| QuantityError::Range(text.to_string()))
}

/// A fraction 0..=1 from `50%` or `0.5`.
pub fn parse_percent(text: &str) -> Result<f64, QuantityError> {
    let (number, unit) = split(text, FRACTIONS)?;
    let fraction = match unit {
        "" => number,
        "%" => number / 100.0,
        _ => return Err(QuantityError::NoFraction(text.to_string())),
    };
    if (0.0..=1.0).contains(&fraction) {
        Ok(fraction)
    } else {
        Err(QuantityError::Fraction(text.to_string()))
    }
}

/// Bytes for people: `1.5 GiB`.
pub fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A duration for people: `2h 5m`, `1m 3s`, `4.2 s`, `12 ms`.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let whole = duration.as_secs();
    if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1e3)
    } else if whole < 60 {
        format!("{seconds:.1} s")
    } else if whole < 3600 {
        format!("{}m {}s", whole / 60, whole % 60)
    } else {
        format!("{}h {}m", whole / 3600, whole % 3600 / 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse() {
        assert_eq!(parse_size("4GiB"), Ok(4 << 30));
        assert_eq!(parse_size("4 GB"), Ok(4_000_000_000));
        assert_eq!(parse_size("1.5k"), Ok(1536));
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("1_000"), Ok(1000));
        assert!(matches!(
            parse_size("GiB"),
            Err(QuantityError::NoNumber(..))
        ));
        assert!(matches!(parse_size("-1"), Err(QuantityError::NoNumber(..))));
        assert!(matches!(
            parse_size("4 apples"),
            Err(QuantityError::Unit(..))
        ));
        assert!(matches!(
            parse_size("99999999P"),
            Err(QuantityError::Range(_))
        ));
        assert!(matches!(
            parse_size("1.2.3G"),
            Err(QuantityError::NoNumber(..))
        ));
        assert!(parse_size("").is_err());
        // A part of the memory, as who writes it may mean, would become no memory at all.
        for text in ["0.5", "1.5B", "0.0001k"] {
            assert!(
                matches!(parse_size(text), Err(QuantityError::FractionOfByte(..))),
                "{text}"
            );
        }
        assert_eq!(parse_size("0.3k"), Ok(307));
        assert_eq!(parse_size("8.0"), Ok(8));
        // As a floating-point number it is 2^63.
        assert!(parse_size("9223372036854775807").is_err());
    }

    #[test]
    fn durations_parse() {
        assert_eq!(parse_duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(parse_duration("1.5h"), Ok(Duration::from_secs(5400)));
        assert!(parse_duration("5 parsecs").is_err());
        assert!(parse_duration("9e99").is_err());
        let error = parse_duration("soon").unwrap_err().to_string();
        assert!(
            error.ends_with("write for example 30s, 1.5h or 200ms"),
            "{error}"
        );
    }

    #[test]
    fn people_read_sizes() {
        assert_eq!(format_size(0), "0 B");
        assert_eq!(format_size(1023), "1023 B");
        assert_eq!(format_size(1536), "1.5 KiB");
        assert_eq!(format_size(4 << 30), "4.0 GiB");
        assert_eq!(format_size((1 << 20) - 1), "1.0 MiB");
        assert_eq!(format_duration(Duration::from_secs(3723)), "1h 2m");
    }
}
