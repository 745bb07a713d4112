//! The status as text for Prometheus and whatever else reads that: OpenMetrics for who asks for it,
//! else the older text format, of which the names are the same.
//!
//! Names say their unit, a counter ends in `_total`, and a label has few values: nothing is counted
//! by file or by path. docs/metrics.md has a row for each family, which a test compares.

mod lending;
mod named;

use std::fmt::Write;

use forebay_wire::control::{NodeStatus, StatusBits, TierStatus};

/// How the text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    Open,
    /// Text format 0.0.4.
    Plain,
}

impl Format {
    /// The one that a reader takes, by its header `Accept`.
    pub fn for_reader(accept: Option<&str>) -> Format {
        let takes = |accept: &str| accept.contains("application/openmetrics-text");
        match accept.is_some_and(takes) {
            true => Format::Open,
            false => Format::Plain,
        }
    }

    /// What a reader is told that the text is.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Open => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gauge,
    Counter,
    Info,
}

/// Lines of one exposition.
struct Text {
    lines: String,
    format: Format,
}

impl Text {
    /// A family: its name without `_total`, and what it means.
    fn family(&mut self, name: &str, kind: Kind, help: &str) -> Family<'_> {
        let suffix = match kind {
            Kind::Gauge => "",
            Kind::Counter => "_total",
            Kind::Info => "_info",
        };
        let (word, suffix_of_family) = match (kind, self.format) {
            (Kind::Gauge, _) => ("gauge", ""),
            (Kind::Counter, Format::Open) => ("counter", ""),
            (Kind::Counter, Format::Plain) => ("counter", suffix),
            (Kind::Info, Format::Open) => ("info", ""),
            (Kind::Info, Format::Plain) => ("gauge", suffix),
        };
        let out = &mut self.lines;
        _ = writeln!(out, "# TYPE {name}{suffix_of_family} {word}");
        let unit = ["bytes_per_second", "bytes", "seconds"]
            .into_iter()
            .find(|unit| name.ends_with(&format!("_{unit}")));
        if let (Some(unit), Format::Open) = (unit, self.format) {
            _ = writeln!(out, "# UNIT {name} {unit}");
        }
        _ = writeln!(out, "# HELP {name}{suffix_of_family} {help}");
        Family {
            out,
            name: format!("{name}{suffix}"),
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Into<Figure>) {
        self.family(name, Kind::Gauge, help).sample(&[], value);
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Into<Figure>) {
        self.family(name, Kind::Counter, help).sample(&[], value);
    }
}

struct Family<'a> {
    out: &'a mut String,
    name: String,
}

impl Family<'_> {
    fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<Figure>) {
        let out = &mut *self.out;
        _ = write!(out, "{}", self.name);
        for (at, (name, value)) in labels.iter().enumerate() {
            let open = if at == 0 { '{' } else { ',' };
            _ = write!(out, "{open}{name}=\"{}\"", escaped(value));
        }
        if !labels.is_empty() {
            out.push('}');
        }
        _ = writeln!(out, " {}", value.into().0);
    }
}

/// A value as it is written.
struct Figure(String);

impl From<u64> for Figure {
    fn from(value: u64) -> Figure {
        Figure(value.to_string())
    }
}

impl From<bool> for Figure {
    fn from(value: bool) -> Figure {
        Figure(u8::from(value).to_string())
    }
}

/// Milliseconds, as seconds.
struct Ms(u64);

impl From<Ms> for Figure {
    fn from(Ms(ms): Ms) -> Figure {
        Figure(format!("{}.{:03}", ms / 1000, ms % 1000))
    }
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// The whole text.
pub fn render(bits: &StatusBits, format: Format) -> String {
    let mut text = Text {
        lines: String::new(),
        format,
    };
    text.family("forebay_build", Kind::Info, "Version of the program.")
        .sample(&[("version", &bits.version)], 1u64);
    text.gauge(
        "forebay_uptime_seconds",
        "Since the start of the server.",
        Ms(bits.uptime_ms),
    );
    text.gauge(
        "forebay_standby",
        "1 while it stands by, and another metadata server leads.",
        bits.standby.is_some(),
    );
    keeper(&mut text, bits);
    tiers(&mut text, &bits.tiers);
    if bits.data_server.is_none() && bits.standby.is_none() {
        plan(&mut text, bits);
        movement(&mut text, bits);
        use_of_it(&mut text, bits);
        health(&mut text, bits);
        if !bits.names_hidden {
            unpublished(&mut text, bits);
            named::applications(&mut text, &bits.applications);
            named::limits(&mut text, &bits.limits);
        }
        network(&mut text, bits);
        nodes(&mut text, &bits.nodes);
    }
    if format == Format::Open {
        text.lines.push_str("# EOF\n");
    }
    text.lines
}

fn keeper(text: &mut Text, bits: &StatusBits) {
    let mut family = text.family(
        "forebay_keeper_runs",
        Kind::Gauge,
        "1 while what starts the server again if it dies is there, 0 once that is gone; absent where it was started without.",
    );
    if let Some(keeper) = bits.keeper {
        family.sample(&[], keeper.runs);
    }
}

fn tiers(text: &mut Text, tiers: &[TierStatus]) {
    type Of = fn(&TierStatus) -> Figure;
    let families: [(&str, &str, Of); 5] = [
        (
            "forebay_tier_capacity_bytes",
            "What the tier may hold.",
            |t| t.capacity_bytes.into(),
        ),
        ("forebay_tier_used_bytes", "Held by objects.", |t| {
            t.used_bytes.into()
        }),
        (
            "forebay_tier_undrained_bytes",
            "Of the objects, not yet on the PFS.",
            |t| t.dirty_bytes.into(),
        ),
        (
            "forebay_tier_reserved_bytes",
            "Set aside for files that are being written.",
            |t| t.reserved_bytes.into(),
        ),
        (
            "forebay_tier_out_of_reach",
            "1 while the node of the tier does not answer.",
            |t| t.out_of_reach.into(),
        ),
    ];
    for (name, help, of) in families {
        let mut family = text.family(name, Kind::Gauge, help);
        for tier in tiers {
            family.sample(&[("tier", &tier.name)], of(tier));
        }
    }
}

fn plan(text: &mut Text, bits: &StatusBits) {
    let plan = &bits.plan;
    text.gauge(
        "forebay_period_seconds",
        "Length of a period of the plan.",
        Ms(plan.period_ms),
    );
    text.gauge(
        "forebay_period_written_bytes",
        "Written in this period (DWSF).",
        bits.dwsf_bytes,
    );
    text.gauge(
        "forebay_period_expected_bytes",
        "Expected to be written in a period (DWPP).",
        bits.dwpp_bytes,
    );
    let optional = [
        (
            "forebay_plan_start_bytes",
            "Written in a period when demotion starts.",
            plan.start_dwsf_bytes,
        ),
        (
            "forebay_plan_full_bytes",
            "Written in a period when demotion runs at full speed.",
            plan.full_dwsf_bytes,
        ),
        (
            "forebay_checkpoint_limit_bytes_per_second",
            "Limit of checkpoint writes; absent without one.",
            plan.checkpoint_limit_bytes_per_s,
        ),
        (
            "forebay_demotion_limit_bytes_per_second",
            "Limit of demotion; absent without one.",
            plan.demotion_limit_bytes_per_s,
        ),
    ];
    for (name, help, value) in optional {
        let mut family = text.family(name, Kind::Gauge, help);
        if let Some(value) = value {
            family.sample(&[], value);
        }
    }
    let mut feasible = text.family(
        "forebay_plan_feasible",
        Kind::Gauge,
        "1 if the burst buffer becomes clean within the period, 0 if not; absent without a plan.",
    );
    if let Some(is_feasible) = plan.feasible {
        feasible.sample(&[], is_feasible);
    }
    let mut bandwidths = text.family(
        "forebay_bandwidth_bytes_per_second",
        Kind::Gauge,
        "What the devices give: bw_max and bw_min of checkpoint writes, br_max and br_min of demotion.",
    );
    for (name, value) in ["bw_max", "bw_min", "br_max", "br_min"]
        .iter()
        .zip(plan.bandwidths.iter().flatten())
    {
        bandwidths.sample(&[("of", name)], *value);
    }
}

/// What earlier runs have put on record is less than they had counted, where one was killed: the
/// sum would go back, and seem to have begun anew at that.
fn since_start(total: u64, earlier: u64) -> u64 {
    total.saturating_sub(earlier)
}

fn movement(text: &mut Text, bits: &StatusBits) {
    text.gauge(
        "forebay_undrained_bytes",
        "In the burst buffer and not yet on the PFS.",
        bits.dirty_bytes,
    );
    text.gauge(
        "forebay_undrained_max_bytes",
        "More are never undrained: writes wait.",
        bits.dirty_cap_bytes,
    );
    text.gauge(
        "forebay_drain_rate_bytes_per_second",
        "To the PFS, in the last seconds.",
        bits.drain_rate_bytes_per_s,
    );
    text.gauge(
        "forebay_drain_queued_files",
        "Files that wait for the drain.",
        bits.drain_queued_files,
    );
    text.gauge(
        "forebay_drain_failing_files",
        "Of those, files whose last try failed.",
        bits.drain_failing_files,
    );
    text.counter(
        "forebay_drained_bytes",
        "Written to the PFS and verified, since the start of the server.",
        since_start(bits.demoted_bytes_total, bits.earlier.demoted_bytes),
    );
    text.counter(
        "forebay_drained_files",
        "Files likewise.",
        since_start(bits.demoted_files_total, bits.earlier.demoted_files),
    );
    text.counter(
        "forebay_evicted_bytes",
        "Clean copies dropped, since the start of the server.",
        since_start(bits.evicted_bytes_total, bits.earlier.evicted_bytes),
    );
}

fn use_of_it(text: &mut Text, bits: &StatusBits) {
    text.counter(
        "forebay_waited_writes",
        "Writes that had to wait for space.",
        bits.waited_writes_total,
    );
    text.counter(
        "forebay_space_wait_seconds",
        "How long they waited, all together.",
        Ms(bits.space_wait_ms_total),
    );
    text.counter(
        "forebay_restarts",
        "Restarts of applications seen since the start of the server.",
        bits.restarts_total,
    );
    text.counter(
        "forebay_restart_hits",
        "Of those, that found their data in the burst buffer.",
        bits.restart_hits_total,
    );
    text.counter(
        "forebay_ahead_bytes",
        "Brought in before programs asked.",
        bits.ahead.guessed_bytes,
    );
    text.counter(
        "forebay_ahead_hit_bytes",
        "Of those, read since.",
        bits.ahead.hit_bytes,
    );
    text.counter(
        "forebay_ahead_wasted_bytes",
        "Of those, gone before anybody read them.",
        bits.ahead.wasted_bytes,
    );
    text.counter(
        "forebay_run_bytes",
        "Of what was brought in before programs asked, that of runs that repeat.",
        bits.ahead.runs.guessed_bytes,
    );
    text.counter(
        "forebay_run_hit_bytes",
        "Of those, read since.",
        bits.ahead.runs.hit_bytes,
    );
    text.counter(
        "forebay_run_wasted_bytes",
        "Of those, in vain.",
        bits.ahead.runs.wasted_bytes,
    );
    text.gauge(
        "forebay_runs_expected",
        "Runs that repeat and whose next start is known.",
        bits.ahead.runs.expected,
    );
    text.counter(
        "forebay_direct_files",
        "Checkpoints made on the PFS, colder than what would have had to leave.",
        bits.direct_files_total,
    );
    text.counter(
        "forebay_handed_over_files",
        "Files that went on on another node, since theirs was full.",
        bits.handed_over_files_total,
    );
    text.gauge("forebay_files", "Files in the burst buffer.", bits.files);
    text.gauge("forebay_open_files", "Open files.", bits.open_files);
}

fn health(text: &mut Text, bits: &StatusBits) {
    text.counter(
        "forebay_errors",
        "Errors since the start.",
        bits.errors_total,
    );
    text.counter(
        "forebay_conflicts",
        "Conflicts with changes made on the PFS.",
        bits.conflicts_total,
    );
    text.counter(
        "forebay_damaged_objects",
        "Damaged objects found on flash, since the start of the server.",
        since_start(bits.scrub.found, bits.earlier.damaged_objects),
    );
    text.counter(
        "forebay_scrubbed_bytes",
        "Compared with their checksums in the background, since the start of the server.",
        since_start(bits.scrub.checked_bytes, bits.earlier.scrubbed_bytes),
    );
    let mut missing = text.family(
        "forebay_second_copies_missing_bytes",
        Kind::Gauge,
        "Without the second copy that was promised; absent where none are, and until known.",
    );
    if let Some(copies) = bits.second_copies.as_ref().filter(|copies| copies.known) {
        missing.sample(&[], copies.missing_bytes);
    }
    lending::add(text, bits);
    text.gauge(
        "forebay_pfs_silent_seconds",
        "For how long the PFS has not answered; 0 while it does.",
        Ms(bits.pfs_silent_ms.unwrap_or(0)),
    );
    text.gauge(
        "forebay_store_failing",
        "1 while the records take no changes.",
        bits.store_failing.is_some(),
    );
    text.gauge(
        "forebay_stopping",
        "1 once an order to stop is in force.",
        bits.stopping,
    );
}

fn unpublished(text: &mut Text, bits: &StatusBits) {
    text.gauge(
        "forebay_unpublished_versions",
        "Versions that the PFS does not show yet.",
        bits.unpublished.len() as u64,
    );
}

fn network(text: &mut Text, bits: &StatusBits) {
    let Some(network) = &bits.network else {
        return;
    };
    text.gauge(
        "forebay_clients",
        "Mounts that are connected.",
        network.clients_total,
    );
    text.gauge(
        "forebay_client_connections",
        "Their connections.",
        network.connections_total,
    );
    text.gauge(
        "forebay_threads",
        "Threads that serve requests.",
        network.threads,
    );
    text.gauge(
        "forebay_threads_busy",
        "Of those, busy with one.",
        network.threads_busy,
    );
    let mut refused = text.family(
        "forebay_refused_peers",
        Kind::Counter,
        "Peers refused since the start.",
    );
    for peers in &network.refused {
        refused.sample(&[("reason", &peers.reason)], peers.peers);
    }
}

fn nodes(text: &mut Text, nodes: &[NodeStatus]) {
    if nodes.is_empty() {
        return;
    }
    type Of = fn(&NodeStatus) -> Figure;
    let families: [(&str, &str, Of); 8] = [
        ("forebay_node_answers", "1 while the server answers.", |n| {
            n.answers.into()
        }),
        (
            "forebay_node_missing_seconds",
            "For how long it has not; 0 while it does.",
            |n| Ms(n.missing_ms.unwrap_or(0)).into(),
        ),
        (
            "forebay_node_links",
            "Connected sockets of the metadata server to it.",
            |n| n.links_up.into(),
        ),
        (
            "forebay_node_capacity_bytes",
            "What its tiers may hold.",
            |n| n.capacity_bytes.into(),
        ),
        ("forebay_node_used_bytes", "Held by objects.", |n| {
            n.used_bytes.into()
        }),
        (
            "forebay_node_undrained_bytes",
            "Of those, not yet on the PFS.",
            |n| n.dirty_bytes.into(),
        ),
        (
            "forebay_node_only_here_bytes",
            "Of those, on no other node: lost with the node.",
            |n| n.only_here_bytes.into(),
        ),
        (
            "forebay_node_copies_under_way",
            "Copies to the PFS under way.",
            |n| n.copies_under_way.into(),
        ),
    ];
    for (name, help, of) in families {
        let mut family = text.family(name, Kind::Gauge, help);
        for node in nodes {
            family.sample(&labels_of(node, &node.server.to_string()), of(node));
        }
    }
    lending::add_nodes(text, nodes);
}

fn labels_of<'a>(node: &'a NodeStatus, server: &'a str) -> [(&'static str, &'a str); 2] {
    let rack = node.rack.as_deref().unwrap_or("");
    [("server", server), ("rack", rack)]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use forebay_wire::control::{EarlierTotals, LimitStatus, ScrubStatus, SecondCopiesStatus};

    use super::*;

    fn full() -> StatusBits {
        StatusBits {
            version: "0.1.0".into(),
            uptime_ms: 1_234,
            tiers: vec![TierStatus {
                name: "a\"b\\c\nd".into(),
                used_bytes: 7,
                ..TierStatus::default()
            }],
            limits: vec![LimitStatus {
                is_group: false,
                id: 0,
                used_bytes: 9,
                capacity_bytes: Some(10),
                dirty_bytes: 8,
                undrained_bytes: None,
                rate_bytes_per_s: Some(5),
                written_bytes: 4,
                paused_ms: 2500,
                beyond: "wait".into(),
            }],
            network: Some(Box::default()),
            second_copies: Some(SecondCopiesStatus::default()),
            lending: Some(Box::default()),
            nodes: vec![NodeStatus {
                server: 2,
                missing_ms: Some(61_005),
                ..NodeStatus::default()
            }],
            ..StatusBits::default()
        }
    }

    fn families(text: &str) -> Vec<&str> {
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        types.filter_map(|rest| rest.split(' ').next()).collect()
    }

    #[test]
    fn each_family_comes_once_and_the_text_ends() {
        let text = render(&full(), Format::Open);
        let found = families(&text);
        let once: HashSet<_> = found.iter().collect();
        assert_eq!(once.len(), found.len());
        assert!(text.ends_with("\n# EOF\n"));
        assert!(text.contains("forebay_uptime_seconds 1.234\n"));
        assert!(text.contains("forebay_node_missing_seconds{server=\"2\",rack=\"\"} 61.005\n"));
        assert!(text.contains("forebay_build_info{version=\"0.1.0\"} 1\n"));
        assert!(text.contains("forebay_errors_total 0\n"));
    }

    #[test]
    fn users_with_a_limit_are_named_with_what_they_hold() {
        let text = render(&full(), Format::Open);
        let lines = [
            "forebay_owner_held_bytes{kind=\"user\",owner=\"root\"} 9\n",
            "forebay_owner_held_limit_bytes{kind=\"user\",owner=\"root\"} 10\n",
            "forebay_owner_undrained_bytes{kind=\"user\",owner=\"root\"} 8\n",
        ];
        assert!(lines.iter().all(|line| text.contains(line)), "{text}");
        assert!(!text.contains("forebay_owner_undrained_limit_bytes{"));
        let hidden = StatusBits {
            names_hidden: true,
            ..full()
        };
        assert!(!render(&hidden, Format::Open).contains("forebay_owner_"));
    }

    #[test]
    fn what_a_label_says_does_not_end_it() {
        let text = render(&full(), Format::Open);
        assert!(
            text.contains(r#"forebay_tier_used_bytes{tier="a\"b\\c\nd"} 7"#),
            "{text}"
        );
    }

    #[test]
    fn every_family_is_in_the_docs_with_its_meaning() {
        let docs = include_str!("../../../../docs/metrics.md");
        for name in families(&render(&full(), Format::Open)) {
            assert!(
                docs.contains(&format!("| `{name}` |")),
                "docs/metrics.md lacks {name}"
            );
        }
        let text = render(&full(), Format::Open);
        let known: HashSet<_> = families(&text).into_iter().collect();
        for line in docs
            .lines()
            .filter_map(|line| line.strip_prefix("| `forebay_"))
        {
            let name = format!("forebay_{}", line.split('`').next().unwrap_or(""));
            assert!(
                known.contains(name.as_str()),
                "docs/metrics.md has {name}, which there is not"
            );
        }
    }

    #[test]
    fn counters_begin_with_the_process_whatever_a_kill_has_left_on_record() {
        let bits = StatusBits {
            demoted_bytes_total: 130,
            demoted_files_total: 4,
            evicted_bytes_total: 20,
            scrub: ScrubStatus {
                found: 2,
                checked_bytes: 60,
                ..ScrubStatus::default()
            },
            earlier: EarlierTotals {
                demoted_bytes: 100,
                demoted_files: 4,
                evicted_bytes: 15,
                scrubbed_bytes: 50,
                damaged_objects: 2,
            },
            ..StatusBits::default()
        };
        let text = render(&bits, Format::Plain);
        for line in [
            "forebay_drained_bytes_total 30",
            "forebay_drained_files_total 0",
            "forebay_evicted_bytes_total 5",
            "forebay_scrubbed_bytes_total 10",
            "forebay_damaged_objects_total 0",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}");
        }
    }

    /// Rows of the table in the docs: name, and the cells behind it.
    fn rows() -> Vec<(String, Vec<String>)> {
        let docs = include_str!("../../../../docs/metrics.md");
        let rows = docs.lines().filter(|line| line.starts_with("| `forebay_"));
        rows.map(|line| {
            let mut cells = line
                .trim_matches('|')
                .split(" | ")
                .map(|cell| cell.trim().to_string());
            let name = cells.next().unwrap_or_default().replace('`', "");
            (name, cells.collect())
        })
        .collect()
    }

    #[test]
    fn the_docs_say_of_each_family_what_the_text_says() {
        let text = render(&full(), Format::Open);
        for (name, cells) in rows() {
            let kind = format!("# TYPE {name} {}\n", cells[0]);
            assert!(text.contains(&kind), "{kind}");
            let help = format!("# HELP {name} {}\n", cells[2]);
            assert!(text.contains(&help), "the text lacks {help}");
        }
    }

    #[test]
    fn each_alert_of_the_docs_has_a_rule_and_each_rule_is_in_the_docs() {
        let rules = include_str!("../../../../integrations/prometheus/forebay.rules.yml");
        let named = |line: &str| -> Vec<String> {
            let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let names = words.filter(|word| word.starts_with("forebay_"));
            names
                .map(|name| name.trim_end_matches("_total").to_string())
                .collect()
        };
        let expressions = rules
            .lines()
            .filter_map(|line| line.trim().strip_prefix("expr: "));
        let in_rules: HashSet<String> = expressions.flat_map(named).collect();
        let rows = rows();
        for (name, cells) in &rows {
            let promised = cells.get(3).is_some_and(|alert| !alert.is_empty());
            assert!(!promised || in_rules.contains(name), "no rule for {name}");
        }
        for name in in_rules {
            assert!(
                rows.iter().any(|(known, _)| *known == name),
                "no row for {name}"
            );
        }
    }

    #[test]
    fn a_data_server_tells_of_its_tiers_only() {
        let bits = StatusBits {
            data_server: Some(Box::default()),
            ..full()
        };
        let text = render(&bits, Format::Open);
        assert!(
            text.contains("forebay_tier_used_bytes") && !text.contains("forebay_undrained_bytes")
        );
    }

    #[test]
    fn who_does_not_ask_for_openmetrics_gets_the_same_names_in_the_older_text() {
        assert_eq!(Format::for_reader(None), Format::Plain);
        let accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
        assert_eq!(Format::for_reader(Some(accept)), Format::Open);
        let samples = |format| {
            let text = render(&full(), format);
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            lines.map(str::to_string).collect::<Vec<_>>()
        };
        assert_eq!(samples(Format::Plain), samples(Format::Open));
        let plain = render(&full(), Format::Plain);
        assert!(plain.contains("# TYPE forebay_errors_total counter\n"));
        assert!(!plain.contains("# EOF") && !plain.contains("# UNIT"));
    }
}
