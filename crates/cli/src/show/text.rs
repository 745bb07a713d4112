//! Small blocks of text.

use std::time::Duration;

use forebay_types::{format_duration, format_size};

/// A path for a terminal: bytes that are no UTF-8 and control characters appear as `\xNN`, so that
/// no file name can move the cursor or break a line.
pub fn show_path(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                let mut bytes = [0u8; 4];
                escape(&mut text, c.encode_utf8(&mut bytes).as_bytes());
            } else {
                text.push(c);
            }
        }
        escape(&mut text, chunk.invalid());
    }
    text
}

fn escape(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        text.push_str(&format!("\\x{byte:02x}"));
    }
}

/// `[##===.....]`: of `whole`, `#` is `marked` (not yet on the PFS), `=` the rest of `used`, `.`
/// free.
pub fn bar(used: u64, marked: u64, whole: u64, width: usize) -> String {
    let cells = |bytes: u64| match whole {
        0 => 0,
        _ => (((bytes.min(whole) as f64 / whole as f64) * width as f64).ceil() as usize).min(width),
    };
    let (used, marked) = (cells(used.max(marked)), cells(marked));
    let mut bar = String::with_capacity(width + 2);
    bar.push('[');
    bar.push_str(&"#".repeat(marked));
    bar.push_str(&"=".repeat(used - marked));
    bar.push_str(&".".repeat(width - used));
    bar.push(']');
    bar
}

/// `30 %`, with `<1 %` for a little; of nothing, `0 %`.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 || part == 0 {
        return "0 %".into();
    }
    let percent = part as f64 / whole as f64 * 100.0;
    match percent < 1.0 {
        true => "<1 %".into(),
        false => format!("{percent:.0} %"),
    }
}

/// `1 file`, `2 files`.
pub fn files(count: u64) -> String {
    let noun = if count == 1 { "file" } else { "files" };
    format!("{count} {noun}")
}

/// So many checkpoint versions.
pub fn versions(count: u64) -> String {
    format!("{count} version{}", if count == 1 { "" } else { "s" })
}

/// For how long something has run: whole seconds, and milliseconds of the first.
pub fn uptime(milliseconds: u64) -> String {
    let whole = milliseconds / 1000 * 1000;
    format_duration(Duration::from_millis(match whole {
        0 => milliseconds.max(1),
        whole => whole,
    }))
}

/// `1 node`, `2 nodes`.
pub fn nodes(count: usize) -> String {
    let noun = if count == 1 { "node" } else { "nodes" };
    format!("{count} {noun}")
}

/// Bytes per second.
pub fn rate(bytes_per_s: f64) -> String {
    format!("{}/s", format_size(bytes_per_s.max(0.0) as u64))
}

/// Seconds for people; whole ones, for an estimate is not exact to the tenth.
pub fn eta(seconds: f64) -> String {
    match Duration::try_from_secs_f64(seconds.ceil().max(0.0)) {
        Ok(time) if time.as_secs() < 60 => format!("{} s", time.as_secs()),
        Ok(time) => format_duration(time),
        Err(_) => "a very long time".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_version_is_no_versions_and_the_first_second_is_not_0() {
        assert_eq!(
            (versions(1), versions(2)),
            ("1 version".into(), "2 versions".into())
        );
        assert_eq!((uptime(0), uptime(450)), ("1 ms".into(), "450 ms".into()));
        assert_eq!(uptime(61_999), "1m 1s");
    }

    #[test]
    fn names_cannot_play_with_the_terminal() {
        assert_eq!(show_path(b"/bb/a b/\xc3\xa4"), "/bb/a b/ä");
        assert_eq!(show_path(b"a\x1b[2Jb\nc\xffd"), "a\\x1b[2Jb\\x0ac\\xffd");
    }

    #[test]
    fn bars_show_used_and_undrained() {
        assert_eq!(bar(0, 0, 100, 10), "[..........]");
        assert_eq!(bar(50, 20, 100, 10), "[##===.....]");
        assert_eq!(bar(1, 0, 100, 10), "[=.........]");
        assert_eq!(bar(200, 200, 100, 10), "[##########]");
        assert_eq!(bar(5, 5, 0, 4), "[....]");
    }

    #[test]
    fn estimates_are_whole_seconds() {
        assert_eq!(eta(0.2), "1 s");
        assert_eq!(eta(75.0), "1m 15s");
        assert_eq!(eta(f64::INFINITY), "a very long time");
        assert_eq!(percent(1, 1000), "<1 %");
        assert_eq!(percent(1, 3), "33 %");
        assert_eq!(percent(1, 0), "0 %");
    }
}
