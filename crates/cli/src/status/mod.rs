//! `forebay status`: tiers, undrained data, the drain, applications, errors.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use forebay_types::{format_duration, format_size};
use forebay_wire::control::{DataServerStatus, ScrubStatus, StandbyStatus, StatusBits, TierStatus};

use crate::asked::Whom;
use crate::control::{failure_line, files_and_bytes};
use crate::exit::{Exit, Failure};
use crate::mounts::in_mount;
use crate::show::json;
use crate::show::table::{Align, Table};
use crate::show::text::{bar, eta, files, percent, rate, show_path, uptime};
use crate::{out, usage};

mod ahead;
mod clients;
mod keeper;
mod lending;
mod limits;
mod nodes;
mod now;
mod object;

pub use crate::control::name_of;
pub use lending::{to_json as lending_json, waits as lending_waits};
pub use object::{plan_json, to_json};

/// Heading of the bars.
const BAR: &str = "";
/// Width of a tier's bar, in cells.
const BAR_CELLS: usize = 24;
/// Applications and errors shown to people; `--json` has all.
const ROWS_MAX: usize = 20;

/// Shows tiers, undrained data, the drain with its ETA, applications and errors
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "In a tier's bar `#` is data not yet on the PFS, `=` other data, `.` free space.\n\n",
        "A server also shows its clients, and what went over each of their connections since it was opened. ",
        "Of a cluster it shows each node: its rack, who is missing, the links to it and the bytes over them in this ",
        "session, what it holds, what nobody else has (lost if the node died now), and copies to the PFS under way.\n\n",
        "Examples:\n  forebay status\n  forebay status --state /var/lib/forebay --json\n",
        "  forebay status --config /etc/forebay/cluster.toml\n\n",
        "Exit codes: 0 shown; 1 nothing runs there, it is starting or stopping, it is another user's, or the server does not answer."
    )
)]
pub struct StatusArgs {
    #[command(flatten)]
    whom: Whom,
    /// Print one JSON object: tiers, dwsf_bytes, dwpp_bytes, drain, errors, applications and more
    #[arg(long)]
    json: bool,
    /// The same on one line for a program; why there is no answer, too
    #[arg(long, conflicts_with = "json")]
    json_lines: bool,
}

impl StatusArgs {
    /// As they would be given.
    pub fn of(whom: Whom, json: bool) -> StatusArgs {
        StatusArgs {
            whom,
            json,
            json_lines: false,
        }
    }
}

/// Runs the command.
pub fn run(args: &StatusArgs) -> Result<Exit, Failure> {
    let ask = || {
        let asked = args.whom.connect()?;
        asked.status().map_err(|e| asked.failure(e))
    };
    if args.json_lines {
        json::print_line(&to_json(&ask().map_err(json::tell)?));
        return Ok(Exit::Complete);
    }
    let bits = ask()?;
    match args.json {
        true => json::print(&to_json(&bits)),
        false => out::print(&render(&bits)),
    }
    Ok(Exit::Complete)
}

/// Seconds until all is drained at the present rate: 0 when it is, `None` when nothing moves or
/// some of it fails.
pub fn drain_eta_s(bits: &StatusBits) -> Option<f64> {
    if bits.dirty_bytes > 0 && (bits.drain_failing_files > 0 || bits.pfs_silent_ms.is_some()) {
        return None;
    }
    match (bits.dirty_bytes, bits.drain_rate_bytes_per_s) {
        (0, _) => Some(0.0),
        (_, 0) => None,
        (left, rate) => Some(left as f64 / rate as f64),
    }
}

/// Where the burst buffer is mounted, for messages.
pub fn mount_of(bits: &StatusBits) -> &Path {
    Path::new(OsStr::from_bytes(&bits.mount))
}

/// A server shows nothing itself: its files are called by their names on the PFS.
fn what_it_shows(bits: &StatusBits) -> String {
    let pfs = show_path(&bits.pfs);
    match bits.mount == bits.pfs {
        true => name_of(bits),
        false => format!("{} in front of {pfs}", show_path(&bits.mount)),
    }
}

/// The page for people.
pub fn render(bits: &StatusBits) -> String {
    render_within(bits, None)
}

/// The same, without columns that say less where a terminal has no room for them.
pub fn render_within(bits: &StatusBits, room: Option<usize>) -> String {
    render_live(bits, room, None)
}

/// The same, with the bytes/s that are being written, which takes two looks.
pub fn render_live(bits: &StatusBits, room: Option<usize>, written: Option<f64>) -> String {
    if let Some(data) = &bits.data_server {
        return render_data_server(bits, data);
    }
    if let Some(standby) = &bits.standby {
        return render_standby(bits, standby);
    }
    let mut page = String::new();
    let passthrough = if bits.passthrough { "on" } else { "off" };
    // Writing to a String cannot fail.
    let _ = writeln!(
        page,
        "{}, up {}, process {}, state {}",
        what_it_shows(bits),
        uptime(bits.uptime_ms),
        bits.pid,
        show_path(&bits.state)
    );
    page.push_str(&keeper::line(bits));
    let _ = writeln!(
        page,
        "fsync promises {}, policy {}, kernel passthrough {passthrough}, forebay {}\n",
        bits.durability, bits.policy, bits.version
    );
    if bits.store != "embedded" {
        let _ = writeln!(page, "records in {}\n", bits.store);
    }
    page.push_str(&tiers_table(bits).render_within(room));
    page.push_str(&lending::render(bits));
    page.push_str(&nodes::render(&bits.nodes, mount_of(bits), room));
    page.push_str(&second_copies(bits));
    page.push_str(&warnings(bits));
    let _ = writeln!(page, "\nundrained  {}", undrained_line(bits));
    let _ = writeln!(page, "period     {}", period_line(bits, written));
    let _ = writeln!(
        page,
        "plan       {}, placement {}: {}",
        bits.policy, bits.placement, bits.plan.why
    );
    let _ = writeln!(
        page,
        "drained    {} so far, verified; {} of clean copies dropped; {} writes waited for space",
        files_and_bytes(bits.demoted_files_total, bits.demoted_bytes_total),
        format_size(bits.evicted_bytes_total),
        bits.waited_writes_total
    );
    let _ = writeln!(
        page,
        "files      {} in the burst buffer, {} open, {} of them with a descriptor of the daemon{}",
        bits.files,
        bits.open_files,
        bits.held_files,
        bits.descriptors_max
            .map_or_else(String::new, |most| format!(", which may have {most}"))
    );
    page.push_str(&now::render(bits));
    page.push_str(&ahead::render(&bits.ahead, mount_of(bits)));
    let _ = writeln!(page, "at rest    {}", scrub_line(&bits.scrub));
    if let Some(network) = &bits.network {
        page.push_str(&clients::render(network, room));
    }
    page.push_str(&applications(bits, room));
    page.push_str(&limits::render(bits, room));
    for part in [versions(bits), conflicts(bits), errors(bits), hidden(bits)] {
        page.push_str(&part);
    }
    page
}

fn period_line(bits: &StatusBits, written: Option<f64>) -> String {
    let expected = match bits.dwpp_bytes {
        0 => "an unknown amount".into(),
        bytes => format_size(bytes),
    };
    let now = written.map_or_else(String::new, |now| format!("; now {} written", rate(now)));
    format!(
        "{} written of {expected} expected{now}",
        format_size(bits.dwsf_bytes)
    )
}

/// What has no second copy though one was promised.
fn second_copies(bits: &StatusBits) -> String {
    let Some(copies) = &bits.second_copies else {
        return String::new();
    };
    format!(
        "\ncopies     {}\n",
        match (copies.known, copies.missing_files) {
            (false, _) => "which files have no second copy is not known yet".into(),
            (true, 0) => "all that were promised a second copy have one".into(),
            (true, files) => format!(
                "{} without the second copy that was promised",
                files_and_bytes(files, copies.missing_bytes)
            ),
        }
    )
}

/// Who does not answer.
fn warnings(bits: &StatusBits) -> String {
    let mut text = String::new();
    if let Some(ms) = bits.pfs_silent_ms {
        let silent = format_duration(Duration::from_secs(ms / 1000));
        let _ = writeln!(
            text,
            "\nthe PFS has not answered for {silent}: what is in the burst buffer is served, the drain waits"
        );
    }
    if let Some(why) = &bits.store_failing {
        let _ = writeln!(text, "\nthe metadata store: {why}");
    }
    text
}

/// Who leads shows the rest.
fn render_standby(bits: &StatusBits, standby: &StandbyStatus) -> String {
    format!(
        "{}, up {}, process {}, state {}\nit stands by: {} leads; what is in the burst buffer: \
         `forebay status --config FILE`\n{}",
        name_of(bits),
        uptime(bits.uptime_ms),
        bits.pid,
        show_path(&bits.state),
        standby.leader,
        keeper::line(bits)
    )
}

/// What is in the tiers the metadata server knows.
fn render_data_server(bits: &StatusBits, data: &DataServerStatus) -> String {
    let used = match data.is_used {
        true => "the metadata server is connected",
        false => "no metadata server is connected",
    };
    let mut page = format!(
        "{}, up {}, process {}, state {}\n{}{used}; what is held here: `forebay status --config FILE`\n\n",
        name_of(bits),
        uptime(bits.uptime_ms),
        bits.pid,
        show_path(&bits.state),
        keeper::line(bits)
    );
    let mut table = Table::new(&[("tier", Align::Left), ("capacity", Align::Right)]);
    for tier in &bits.tiers {
        let capacity = match tier.capacity_bytes {
            0 => "what its file system has".into(),
            bytes => format_size(bytes),
        };
        table.row(vec![tier.name.clone(), capacity]);
    }
    page.push_str(&table.render());
    page.push_str(&lending::render(bits));
    page
}

/// What is not said, and to whom it is.
fn hidden(bits: &StatusBits) -> String {
    if !bits.names_hidden {
        return String::new();
    }
    format!(
        "\n{} errors and {} conflicts so far; names of files, applications and clients are shown to root and to the \
         user who started it\n",
        bits.errors_total, bits.conflicts_total
    )
}

fn tiers_table(bits: &StatusBits) -> Table {
    let mut table = Table::new(&[
        ("tier", Align::Left),
        (BAR, Align::Left),
        ("used", Align::Right),
        ("", Align::Right),
        ("capacity", Align::Right),
        ("undrained", Align::Right),
        ("set aside", Align::Right),
    ])
    .spare(&[BAR, "set aside"]);
    for tier in &bits.tiers {
        table.row(vec![
            tier_name(tier),
            bar(
                tier.used_bytes,
                tier.dirty_bytes,
                tier.capacity_bytes,
                BAR_CELLS,
            ),
            format_size(tier.used_bytes),
            percent(tier.used_bytes, tier.capacity_bytes),
            format_size(tier.capacity_bytes),
            format_size(tier.dirty_bytes),
            format_size(tier.reserved_bytes),
        ]);
    }
    table
}

fn tier_name(tier: &TierStatus) -> String {
    match tier.out_of_reach {
        true => format!("{} (out of reach)", tier.name),
        false => tier.name.clone(),
    }
}

fn undrained_line(bits: &StatusBits) -> String {
    if bits.dirty_bytes == 0 && bits.drain_queued_files == 0 {
        return "nothing; all is on the PFS".into();
    }
    let mut line = format!(
        "{}, hard cap {}; {} queued",
        format_size(bits.dirty_bytes),
        format_size(bits.dirty_cap_bytes),
        files(bits.drain_queued_files)
    );
    match drain_eta_s(bits) {
        Some(seconds) if seconds > 0.0 => {
            let speed = rate(bits.drain_rate_bytes_per_s as f64);
            line.push_str(&format!("; draining at {speed}, done in {}", eta(seconds)));
        }
        Some(_) => {}
        None if bits.drain_rate_bytes_per_s > 0 => {
            let speed = rate(bits.drain_rate_bytes_per_s as f64);
            line.push_str(&format!("; draining at {speed}"));
        }
        None => line.push_str("; not draining now"),
    }
    if bits.drain_failing_files > 0 {
        let next = bits.drain_next_try_ms.unwrap_or(0);
        line.push_str(&format!(
            "; {} failed, next try in {}",
            files(bits.drain_failing_files),
            eta(next as f64 / 1e3)
        ));
    }
    line
}

fn scrub_line(scrub: &ScrubStatus) -> String {
    let mut line = match scrub.found {
        0 => "no damage found".to_string(),
        1 => "1 damaged object found".to_string(),
        many => format!("{many} damaged objects found"),
    };
    let checked = files_and_bytes(scrub.checked_objects, scrub.checked_bytes);
    line.push_str(&format!("; {checked} read again in the background"));
    match (scrub.enabled, scrub.pass_begun_s) {
        (false, _) => line.push_str(", which is turned off"),
        (true, Some(_)) => line.push_str(&format!(
            ", {} objects left in this pass",
            scrub.left_objects
        )),
        (true, None) => line.push_str(&format!(", passes so far: {}", scrub.passes)),
    }
    line
}

fn applications(bits: &StatusBits, room: Option<usize>) -> String {
    if bits.applications.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        ("application", Align::Left),
        ("version", Align::Right),
        ("files", Align::Right),
        ("resident", Align::Right),
        ("undrained", Align::Right),
        ("MTBF", Align::Right),
    ])
    .spare(&["MTBF", "version", "files"]);
    for application in bits.applications.iter().take(ROWS_MAX) {
        let mtbf = application
            .mtbf_ms
            .map(|ms| format_duration(Duration::from_millis(ms)));
        table.row(vec![
            show_path(application.name.as_bytes()),
            application
                .version
                .map_or_else(|| "-".into(), |v| v.to_string()),
            application.files.to_string(),
            format_size(application.resident_bytes),
            format_size(application.dirty_bytes),
            mtbf.unwrap_or_else(|| "-".into()),
        ]);
    }
    let mut text = format!("\n{}", table.render_within(room));
    let listed = bits.applications.len() as u64;
    let total = bits.applications_total.max(listed);
    if let Some(more @ 1..) = total.checked_sub(ROWS_MAX as u64) {
        let all = match total > listed {
            true => format!("the {listed} largest"),
            false => "all".into(),
        };
        text.push_str(&format!("and {more} more (--json has {all})\n"));
    }
    text
}

fn versions(bits: &StatusBits) -> String {
    let mut text = String::new();
    if !bits.unpublished.is_empty() {
        text.push_str("\nversions that the PFS does not show yet:\n");
    }
    for version in bits.unpublished.iter().take(ROWS_MAX) {
        let state = match (&version.error, version.committed) {
            _ if version.lost_files > 0 => {
                format!("{} lost with the power", files(version.lost_files))
            }
            (Some(error), _) => format!("cannot be published: {error}"),
            (None, true) => "being published".into(),
            (None, false) if version.interrupted => "not complete when it was interrupted".into(),
            (None, false) => "not committed".into(),
        };
        text.push_str(&format!(
            "  {}: {}, {} of them not drained, {} open for writing; {state}\n",
            show_path(&in_mount(mount_of(bits), &version.path)),
            files(version.files),
            version.undrained_files,
            version.written_files,
        ));
    }
    text
}

fn conflicts(bits: &StatusBits) -> String {
    if bits.conflicts.is_empty() {
        return String::new();
    }
    let shown = bits.conflicts.len().min(ROWS_MAX);
    let mut text = format!(
        "\nconflicts  {} so far with changes on the PFS; the last {shown} (both versions are kept):\n",
        bits.conflicts_total
    );
    for conflict in &bits.conflicts[bits.conflicts.len() - shown..] {
        let path = in_mount(mount_of(bits), &conflict.path);
        text.push_str(&format!("  {}: {}\n", show_path(&path), conflict.reason));
    }
    text
}

fn errors(bits: &StatusBits) -> String {
    if bits.names_hidden || bits.errors_total == 0 && bits.errors.is_empty() {
        return String::new();
    }
    let shown = bits.errors.len().min(ROWS_MAX);
    if shown == 0 {
        let total = bits.errors_total;
        return format!("\nerrors     {total} since the start, none of them still there\n");
    }
    let mut text = format!(
        "\nerrors     {} since the start; the last {shown} that are still there:\n",
        bits.errors_total
    );
    for failure in &bits.errors[bits.errors.len() - shown..] {
        text.push_str(&format!("  {}\n", failure_line(mount_of(bits), failure)));
    }
    text
}

#[cfg(test)]
mod tests {
    use forebay_types::Errno;
    use forebay_wire::control::{ApplicationStatus, PathFailure, SecondCopiesStatus};
    use serde_json::{Value, json};

    use super::*;

    fn busy() -> StatusBits {
        let tier = |name: &str, used, dirty| TierStatus {
            name: name.into(),
            capacity_bytes: 4 << 30,
            used_bytes: used,
            dirty_bytes: dirty,
            reserved_bytes: 4 << 20,
            out_of_reach: false,
        };
        StatusBits {
            version: "0.1.0".into(),
            pfs: b"/scratch".to_vec(),
            mount: b"/bb".to_vec(),
            state: b"/var/bb".to_vec(),
            pid: 7,
            uptime_ms: 61_000,
            durability: "ssd".into(),
            policy: "bbos".into(),
            tiers: vec![tier("dram", 2 << 30, 1 << 30), tier("ssd", 0, 0)],
            dirty_bytes: 1 << 30,
            dirty_cap_bytes: 7 << 30,
            drain_rate_bytes_per_s: 512 << 20,
            drain_queued_files: 3,
            errors: vec![PathFailure {
                path: b"a".to_vec(),
                errno: Errno::EDQUOT,
                reason: String::new(),
            }],
            errors_total: 1,
            scrub: ScrubStatus {
                enabled: true,
                found: 1,
                checked_objects: 7,
                checked_bytes: 1 << 20,
                ..ScrubStatus::default()
            },
            applications: vec![ApplicationStatus {
                name: "/run/ckpt".into(),
                version: Some(120),
                dwsf_bytes: 0,
                dwpp_bytes: None,
                mtbf_ms: Some(90_000),
                resident_bytes: 2 << 30,
                dirty_bytes: 1 << 30,
                files: 8,
            }],
            ..StatusBits::default()
        }
    }

    #[test]
    fn json_has_the_promised_fields() {
        let value = to_json(&busy());
        assert_eq!(value["tiers"][0]["name"], "dram");
        for field in ["capacity_bytes", "used_bytes", "dirty_bytes"] {
            assert!(value["tiers"][0][field].is_u64(), "{field}");
        }
        for field in ["dwsf_bytes", "dwpp_bytes", "demoted_bytes_total"] {
            assert!(value[field].is_u64(), "{field}");
        }
        let drain = json!({
            "rate_bytes_per_s": 512 << 20,
            "eta_s": 2.0,
            "queued_files": 3,
            "failing_files": 0,
            "next_try_s": null,
        });
        assert_eq!(value["drain"], drain);
        assert_eq!(value["errors"][0]["path"], "/bb/a");
        for field in ["checked_objects", "checked_bytes", "found"] {
            assert!(value["scrub"][field].is_u64(), "{field}");
        }
        assert_eq!(value["scrub"]["last_pass_end_s"], Value::Null);
        let application = &value["applications"][0];
        assert_eq!(application["mtbf_s"], 90.0);
        assert_eq!(
            (&application["name"], &application["version"]),
            (&json!("/run/ckpt"), &json!(120))
        );
        assert_eq!(application["resident_bytes"], 2u64 << 30);
    }

    #[test]
    fn nothing_is_said_of_second_copies_before_somebody_has_looked() {
        let mut bits = busy();
        assert!(!render(&bits).contains("second copy"));
        assert_eq!(to_json(&bits)["second_copies"], Value::Null);
        let mut copies = SecondCopiesStatus::default();
        let mut said = |copies: SecondCopiesStatus, says: &str| {
            bits.second_copies = Some(copies);
            let page = render(&bits);
            assert!(page.contains(says), "{page}");
            to_json(&bits)["second_copies"].clone()
        };
        let value = said(copies, "which files have no second copy is not known yet");
        let none = json!({"known": false, "missing_files": null, "missing_bytes": null});
        assert_eq!(value, none);
        copies.known = true;
        said(copies, "all that were promised a second copy have one");
        (copies.missing_files, copies.missing_bytes) = (2, 3 << 20);
        let value = said(
            copies,
            "copies     2 files (3.0 MiB) without the second copy",
        );
        let two = json!({"known": true, "missing_files": 2, "missing_bytes": 3 << 20});
        assert_eq!(value, two);
    }

    #[test]
    fn a_narrow_terminal_has_the_columns_that_matter() {
        let mut bits = busy();
        bits.nodes = (1..=3).map(nodes::tests::node).collect();
        bits.nodes.iter_mut().for_each(|node| node.emptying = None);
        let page = render_within(&bits, Some(80));
        let heading = page.lines().find(|line| line.contains("state  "));
        let heading = heading.expect("a table of nodes");
        assert!(heading.chars().count() <= 80, "{heading}");
        for column in ["node", "state", "used", "capacity", "only there"] {
            assert!(heading.contains(column), "{column}: {heading}");
        }
        assert!(!heading.contains("address"), "{heading}");
        let whole = render_within(&bits, Some(300));
        assert_eq!(whole, render(&bits));
        for line in render_within(&bits, Some(60)).lines().take(6) {
            assert!(
                !line.starts_with("dram") || line.chars().count() <= 60,
                "{line}"
            );
        }
    }

    #[test]
    fn the_page_says_what_matters() {
        let page = render(&busy());
        for part in [
            "/bb in front of /scratch, up 1m 1s, process 7, state /var/bb",
            "dram  [######======............]  2.0 GiB  50 %",
            "undrained  1.0 GiB, hard cap 7.0 GiB; 3 files queued; draining at 512.0 MiB/s, done in 2 s",
            "/run/ckpt        120      8   2.0 GiB    1.0 GiB  1m 30s",
            "/bb/a: Disk quota exceeded",
            "at rest    1 damaged object found; 7 files",
        ] {
            assert!(page.contains(part), "{part:?} is not in\n{page}");
        }
        let mut quiet = busy();
        (quiet.dirty_bytes, quiet.drain_queued_files) = (0, 0);
        assert!(render(&quiet).contains("nothing; all is on the PFS"));
        assert_eq!(to_json(&quiet)["drain"]["eta_s"], 0.0);
        let mut failing = busy();
        (failing.drain_failing_files, failing.drain_next_try_ms) = (2, Some(4000));
        let page = render(&failing);
        assert!(page.contains("2 files failed, next try in 4 s"), "{page}");
        assert!(!page.contains("done in"), "{page}");
        assert_eq!(to_json(&failing)["drain"]["eta_s"], Value::Null);
        failing.errors.clear();
        let page = render(&failing);
        assert!(
            page.contains("1 since the start, none of them still there\n"),
            "{page}"
        );
        let mut many = busy();
        many.applications = vec![many.applications[0].clone(); 100];
        assert!(render(&many).contains("and 80 more (--json has all)"));
        many.applications_total = 130;
        assert!(render(&many).contains("and 110 more (--json has the 100 largest)"));
        let mut stuck = busy();
        stuck.drain_rate_bytes_per_s = 0;
        assert!(render(&stuck).contains("not draining now"));
        assert_eq!(to_json(&stuck)["drain"]["eta_s"], Value::Null);
    }
}
