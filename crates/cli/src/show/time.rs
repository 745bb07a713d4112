//! Points in time, in UTC, as people write and read them.

use std::time::{SystemTime, UNIX_EPOCH};

use forebay_types::parse_duration;

const DAY_S: u64 = 86_400;

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// Year, month and day of a day since 1970 (Hinnant, *chrono-compatible date algorithms*).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

/// The day since 1970 of a date.
fn day_of(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = year - u64::from(month <= 2);
    let (era, of_era) = (year / 400, year % 400);
    let month = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * month + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    days.checked_sub(719_468)
}

/// `2026-11-27 20:03`.
pub fn minute(ms: u64) -> String {
    let (days, of_day) = (ms / 1000 / DAY_S, ms / 1000 % DAY_S);
    let (year, month, day) = civil(days);
    let (hour, minute) = (of_day / 3600, of_day % 3600 / 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}")
}

/// `2026-11-27T20:03:11.250Z`.
pub fn exact(ms: u64) -> String {
    let (second, milli) = (ms / 1000 % 60, ms % 1000);
    let minute = minute(ms).replace(' ', "T");
    format!("{minute}:{second:02}.{milli:03}Z")
}

/// A date, a date and a time of day, or a duration before `now_ms`.
pub fn parse(text: &str, now_ms: u64) -> Result<u64, String> {
    let text = text.trim();
    if text == "now" {
        return Ok(now_ms);
    }
    let before = || {
        let ago = parse_duration(text).ok()?;
        Some(now_ms.saturating_sub(u64::try_from(ago.as_millis()).ok()?))
    };
    date(text).or_else(before).ok_or_else(|| {
        format!("'{text}' is neither a date (2026-11-27, 2026-11-27T20:03, in UTC) nor a time ago (7d, 12h)")
    })
}

fn date(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (date, time),
        None => (text, "00:00"),
    };
    let number = |text: &str| text.parse::<u64>().ok();
    let numbers = |text: &str, by| text.split(by).map(number).collect::<Option<Vec<u64>>>();
    let &[year, month, day] = numbers(date, '-')?.as_slice() else {
        return None;
    };
    let seconds = match *numbers(time, ':')?.as_slice() {
        [hour @ 0..=23, minute @ 0..=59] => hour * 3600 + minute * 60,
        [hour @ 0..=23, minute @ 0..=59, second @ 0..=60] => hour * 3600 + minute * 60 + second,
        _ => return None,
    };
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let days = day_of(year, month, day)?;
    // No 31st of a month with 30 days.
    (civil(days) == (year, month, day)).then_some((days * DAY_S + seconds) * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_what_a_calendar_says() {
        assert_eq!(exact(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(exact(1_709_164_800_250), "2024-02-29T00:00:00.250Z");
        assert_eq!(parse("2024-02-29", 0), Ok(1_709_164_800_000));
        assert_eq!(parse("2024-02-29T01:02:03Z", 0), Ok(1_709_168_523_000));
        assert_eq!(parse("2h", 7_200_500), Ok(500));
        assert_eq!(parse("now", 5), Ok(5));
        for wrong in [
            "2023-02-29",
            "2024-13-01",
            "2024-01-01T24:00",
            "yesterday",
            "",
            "-1d",
        ] {
            assert!(parse(wrong, 0).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_day_comes_back() {
        for days in 0..200_000 {
            let (year, month, day) = civil(days);
            assert_eq!(day_of(year, month, day), Some(days));
        }
    }
}
