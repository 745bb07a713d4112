//! What came before programs asked for it, in `status`.

use forebay_types::format_size;
use forebay_wire::control::AheadStatus;
use serde_json::{Value, json};

/// A line for people; nothing where nothing was read ahead.
pub fn render(ahead: &AheadStatus) -> String {
    if *ahead == AheadStatus::default() {
        return String::new();
    }
    let now = match (ahead.lists, ahead.folders) {
        (0, 0) => String::new(),
        (lists, 0) => format!("; {}", count(lists, "list")),
        (0, folders) => format!("; {}", count(folders, "folder")),
        (lists, folders) => {
            format!("; {}, {}", count(lists, "list"), count(folders, "folder"))
        }
    };
    format!(
        "ahead      {} brought in before anybody asked, {} of them read since, {} gone unread{now}\n",
        format_size(ahead.guessed_bytes),
        format_size(ahead.hit_bytes),
        format_size(ahead.wasted_bytes)
    )
}

fn count(n: u64, what: &str) -> String {
    match n {
        1 => format!("1 {what} under way"),
        n => format!("{n} {what}s under way"),
    }
}

/// The same as JSON.
pub fn to_json(ahead: &AheadStatus) -> Value {
    json!({
        "guessed_bytes": ahead.guessed_bytes,
        "hit_bytes": ahead.hit_bytes,
        "wasted_bytes": ahead.wasted_bytes,
        "unread_bytes": ahead.unread_bytes,
        "lists": ahead.lists,
        "folders": ahead.folders,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_guesses_were_worth() {
        let mut ahead = AheadStatus::default();
        assert_eq!(render(&ahead), "");
        ahead.lists = 1;
        ahead.folders = 2;
        ahead.guessed_bytes = 3 << 20;
        ahead.hit_bytes = 2 << 20;
        assert_eq!(
            render(&ahead),
            "ahead      3.0 MiB brought in before anybody asked, 2.0 MiB of them read since, 0 B gone unread; 1 list under way, 2 folders under way\n"
        );
    }
}
