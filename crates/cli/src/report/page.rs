//! The page.

use std::fmt::Write;

use forebay_types::format_size;

use super::draw::{bars, escape, line};
use super::figures::{Application, Figures, WhatIf, span};
use crate::history::Answer;
use crate::show::{text, time};

const STYLE: &str = include_str!("page.css");
/// Applications in the table.
const APPLICATIONS_MAX: usize = 50;

/// The report as one page that needs nothing beside itself.
pub fn page(answer: &Answer, figures: &Figures) -> String {
    let from = time::minute(answer.since_ms);
    let to = time::minute(answer.until_ms);
    let mount = String::from_utf8_lossy(match answer.status.mount.is_empty() {
        true => &answer.status.pfs,
        false => &answer.status.mount,
    });
    let whose = match answer.status.names_hidden {
        true => " Of one user's versions and restarts only.",
        false => "",
    };
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>Forebay report: {mount}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <header><h1>What the burst buffer did <span>{mount}</span></h1>\n\
         <p>{from} to {to} UTC; {} in front of {}; policy {}.{whose}</p></header>\n<main>\n",
        format_size(figures.capacity_bytes),
        escape(&String::from_utf8_lossy(&answer.status.pfs)),
        escape(&answer.status.policy),
        mount = escape(&mount),
    );
    html.push_str(&tiles(figures));
    html.push_str(&written(figures, answer));
    html.push_str(&what_if(figures));
    html.push_str(&applications(&figures.applications));
    html.push_str("</main>\n</body>\n</html>\n");
    html
}

fn tile(html: &mut String, name: &str, value: &str, how: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(
        html,
        "<section class=\"tile\"><h2>{name}</h2><p class=\"value\">{}</p><p class=\"how\">{}</p></section>",
        escape(value),
        escape(how)
    );
}

fn tiles(f: &Figures) -> String {
    let mut html = String::from("<div class=\"tiles\">\n");
    let (value, how) = match (f.saved_s, f.pfs) {
        (Some(saved), Some((rate, from))) => (
            span(saved),
            format!(
                "The bytes of each version over the rate of the PFS, {} ({from}), less the time from the first open of a file of \
                 the version to its last close; summed. A version that took longer counts as nothing, and files without a \
                 version do not count. Versions that would have shared the PFS are taken to have had it alone.",
                text::rate(rate)
            ),
        ),
        _ => (
            "not known".into(),
            "The rate of the PFS is not known: it was never calibrated, and nothing was drained in this time.".into(),
        ),
    };
    tile(&mut html, "Waiting time saved", &value, &how);
    tile(
        &mut html,
        "Over-subscription reached",
        &format!("{:.2} S", f.oversubscription()),
        &format!(
            "The most that versions which ended within any {} wrote, {}, over the capacity S, {}. Above 1 S the buffer took more \
             in a period than it holds.",
            span(f.period_s),
            format_size(f.most_written_bytes),
            format_size(f.capacity_bytes)
        ),
    );
    let (all, hits) = f.restarts;
    let value = match all {
        0 => "no restarts".into(),
        _ => text::percent(hits, all),
    };
    tile(
        &mut html,
        "Restarts from the buffer",
        &value,
        &format!(
            "{hits} of {all} restarts opened no file on the PFS. A restart is the first read of a new run of an application; what \
             the run opens after that, without a longer pause, belongs to it."
        ),
    );
    tile(
        &mut html,
        "Written",
        &format_size(f.bytes),
        &format!(
            "{}, {} in the mean. {} of it went to the PFS at once. Writes waited {} for space and {} for their turn, all \
             together, over all files.",
            text::versions(f.versions),
            span(f.mean_s),
            format_size(f.direct_bytes),
            span(f.stall_s),
            span(f.wait_s)
        ),
    );
    html.push_str("</div>\n");
    html
}

fn written(f: &Figures, answer: &Answer) -> String {
    let (step_ms, values) = &f.written;
    let values: Vec<f64> = values.iter().map(|bytes| *bytes as f64).collect();
    let ends = answer.records.iter().filter(|r| r.files > 0);
    let (first, last) = ends.fold((u64::MAX, 0), |(first, last), r| {
        (first.min(r.ended_ms), last.max(r.ended_ms))
    });
    let size = |bytes: f64| format_size(bytes as u64);
    let picture = bars(
        "Bytes written over time",
        &values,
        (&time::minute(first), &time::minute(last)),
        &size,
    );
    format!(
        "<section><h2>Written over time</h2>{picture}<p class=\"how\">Bytes of versions by the time of their end; a bar is {}.</p>\
         </section>\n",
        span(*step_ms as f64 / 1e3)
    )
}

fn what_if(f: &Figures) -> String {
    let name = |row: &WhatIf| format!("{} S", row.share);
    let mean = f.what_if.iter().map(|row| (name(row), row.mean_s));
    let mean: Vec<(String, f64)> = mean.collect();
    let mut html =
        String::from("<section><h2>A smaller or larger buffer</h2>\n<div class=\"pair\">");
    let pictures = [
        line("Mean time of a version", &mean, Some(f.mean_s), &span),
        line(
            "Restarts from the buffer",
            &f.what_if
                .iter()
                .map(|row| (name(row), 100.0 * row.hit_ratio.unwrap_or(0.0)))
                .collect::<Vec<_>>(),
            None,
            &|part| format!("{part:.0} %"),
        ),
    ];
    let _ = write!(
        html,
        "<figure>{}<figcaption>Mean time of a version; dashed: as measured</figcaption></figure>",
        pictures[0]
    );
    if f.what_if.iter().any(|row| row.hit_ratio.is_some()) {
        let _ = write!(
            html,
            "<figure>{}<figcaption>Restarts from the buffer</figcaption></figure>",
            pictures[1]
        );
    }
    html.push_str(
        "</div>\n<div class=\"wide\"><table><tr><th>capacity</th><th>mean time</th><th>of it wait</th><th>stall</th>\
         <th>stalled</th><th>restarts from the buffer</th><th>straight to the PFS</th></tr>\n",
    );
    for row in &f.what_if {
        let hits = row.hit_ratio;
        let _ = writeln!(
            html,
            "<tr><td>{} ({})</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&name(row)),
            format_size(row.capacity_bytes),
            span(row.mean_s),
            span(row.wait_s),
            span(row.stall_s),
            row.stalled,
            hits.map_or("–".into(), |share| format!("{:.0} %", share * 100.0)),
            format_size(row.direct_bytes as u64)
        );
    }
    let _ = writeln!(
        html,
        "</table></div>\n<p class=\"how\">Each row is a simulation of this very history: the same versions with the same bytes at the \
         same times, the same restarts, another capacity. The decisions are those of the servers' own code. 1 S is the capacity there \
         is: where its row is far from what was measured ({} in the mean), so are the others. The simulation writes each version in one \
         go, at the application's fastest rate: pauses of a program within a version are not in it, nor is the time that a turn is \
         kept for a program between its writes. So short versions, and those that waited for turns, look faster than they were. \
         Assumed: {}.</p></section>",
        span(f.mean_s),
        escape(&f.assumed.join("; "))
    );
    html
}

fn applications(all: &[Application]) -> String {
    let mut html = String::from(
        "<section><h2>Applications</h2>\n<div class=\"wide\"><table><tr><th>application</th><th>versions</th><th>bytes</th>\
         <th>mean time</th><th>stall</th><th>drained after</th><th>restarts</th><th>from the buffer</th></tr>\n",
    );
    for a in all.iter().take(APPLICATIONS_MAX) {
        let mean = |sum: f64, count: u64| match count {
            0 => "–".into(),
            _ => span(sum / count as f64),
        };
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&a.name),
            a.versions,
            format_size(a.bytes),
            mean(a.took_s, a.versions),
            span(a.stall_s),
            mean(a.drain_s, a.drained),
            a.restarts.0,
            a.restarts.1
        );
    }
    html.push_str("</table></div>\n<p class=\"how\">Stall is the time that writes waited for space, over all files. \
         Drained after: from the last close of a version until the PFS had all of it, in the mean of those that it has.");
    if all.len() > APPLICATIONS_MAX {
        let _ = write!(html, " {} more wrote less.", all.len() - APPLICATIONS_MAX);
    }
    html.push_str("</p></section>\n");
    html
}

#[cfg(test)]
mod tests {
    use forebay_types::history::{Record, What};
    use forebay_wire::control::{StatusBits, TierStatus};

    use super::*;
    use crate::report::figures;

    fn answer(records: Vec<Record>) -> Answer {
        let mut status = StatusBits {
            pfs: b"/scratch".to_vec(),
            mount: b"/bb<".to_vec(),
            policy: "bbos".into(),
            placement: "bbos".into(),
            tiers: vec![TierStatus {
                name: "ssd0".into(),
                capacity_bytes: 10_000_000_000,
                ..TierStatus::default()
            }],
            ..StatusBits::default()
        };
        status.plan.period_ms = 3_600_000;
        status.plan.bandwidths = Some([2_000_000_000, 1_700_000_000, 100_000_000, 5_000_000]);
        Answer {
            records,
            since_ms: 1_000_000_000_000,
            until_ms: 1_000_086_400_000,
            kept_for_ms: 1,
            status,
        }
    }

    fn history() -> Vec<Record> {
        let mut records = Vec::new();
        for n in 1..=10u64 {
            let begun_ms = 1_000_000_000_000 + n * 600_000;
            let version = Record {
                version: Some(n),
                ended_ms: begun_ms + 2000,
                files: 4,
                bytes: 2_000_000_000,
                ..Record::new(What::Version, "<b>sim</b>".into(), 7, begun_ms)
            };
            records.push(Record {
                what: What::Restart,
                from_pfs_bytes: u64::from(n == 3),
                ..version.clone()
            });
            records.push(version);
        }
        records
    }

    #[test]
    fn the_page_says_what_was_reckoned_and_loads_nothing() {
        let answer = answer(history());
        let figures = figures::of(&answer).expect("figures");
        // Ten times 2 GB at 100 MB/s are 200 s, and took 20.
        assert_eq!(figures.saved_s, Some(180.0));
        assert_eq!(figures.restarts, (10, 9));
        // Six in an hour, of 2 GB each.
        assert!((figures.oversubscription() - 1.2).abs() < 1e-9);
        let html = page(&answer, &figures);
        for part in [
            "3m 0s",
            "1.20 S",
            "90 %",
            "&lt;b&gt;sim",
            "prefers-color-scheme",
            "<svg",
            "how",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
        for part in [
            "<script", "http://", "https://", "src=", "url(", "@import", "<b>sim", "NaN",
        ] {
            assert!(!html.contains(part), "{part}: {html}");
        }
        assert_eq!(figures.what_if.len(), figures::SIZES.len());
        let hits: Vec<f64> = figures
            .what_if
            .iter()
            .filter_map(|row| row.hit_ratio)
            .collect();
        assert!(hits.first() <= hits.last(), "{hits:?}");
    }

    #[test]
    fn what_is_not_known_is_said_to_be_so() {
        let mut answer = answer(history());
        answer.status.plan.bandwidths = None;
        answer.records.retain(|r| r.what == What::Version);
        let figures = figures::of(&answer).expect("figures");
        let html = page(&answer, &figures);
        for part in ["not known", "no restarts", "never calibrated"] {
            assert!(html.contains(part), "{part}: {html}");
        }
        answer.records.clear();
        assert!(figures::of(&answer).is_err());
    }
}
