//! `forebay fsck`: compares records, objects and PFS, and repairs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use clap::Args;
use forebay_server::FsckOrders;
use forebay_types::format_size;
use forebay_wire::Key;
use forebay_wire::control::{CLEAN_COPY_GONE, CONTENT_LOST, Finding, FsckReport};
use forebay_wire::net::{ConnectError, NetConfig, NetConnection};
use serde_json::{Map, Value, json};

use crate::cluster::config::Cluster;
use crate::control::{Daemon, no_state_folder};
use crate::exit::{Exit, Explain, Failure};
use crate::instance::state_or_only;
use crate::paths::need_working_directory;
use crate::show::json::{self, insert_path};
use crate::show::text::{files, show_path};
use crate::starter::Starter;
use crate::state::{self, Holder, Lock, LockError};
use crate::{out, up, usage};

/// Checks a burst buffer's state and repairs it; never destroys the only copy of anything
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "Works on a running burst buffer as well as on one that is down.\n\n",
        "JSON: {\"records\", \"objects\", \"verified_bytes\", \"dry_run\", \"findings\": [{\"subject\", ",
        "\"kind\", \"problem\", \"action\", \"repaired\"}], \"not_looked_at\": [tiers]}.\n\n",
        "Tiers of data servers are looked at while the metadata server runs, and by ",
        "`forebay fsck --state` on their own node while it does not.\n\n",
        "--lost-tier: a file that was only in the tier is lost, and its name goes. One that the PFS, or an fsync, ",
        "has elsewhere goes on with that. The last lines count both. It cannot be taken back: with the disk or ",
        "the node back, start as ever instead.\n",
        "--lost-tier server-N first asks that server, and refuses if it answers. It names each address that does ",
        "not. Run it on the metadata server's node: elsewhere, or where no network leads to server-N, nobody ",
        "could answer, and it refuses, too.\n\n",
        "Examples:\n  forebay fsck --state /var/lib/forebay\n",
        "  forebay fsck --state /var/lib/forebay --dry-run --checksums --json\n\n",
        "Exit codes: 0 nothing wrong, or all repaired; 1 fatal; 3 something remains to be repaired ",
        "(with --dry-run: anything was found), or, without --lost-tier, a tier was not looked at; 5 content that does not match its checksum."
    )
)]
pub struct FsckArgs {
    /// State folder of the burst buffer; without it (and FOREBAY_STATE) the only one mounted here
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Say what would be done, and change nothing
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Read all content in the burst buffer and compare it with its checksums
    #[arg(long)]
    checksums: bool,
    /// The PFS was replaced for good: take what is mounted there now for it, and put undrained data
    /// on it (not while it runs)
    #[arg(long)]
    new_pfs: bool,
    /// This tier will never come back (a dead disk, a dead node): forget what was in it, and name
    /// each file that loses content by that. Only while the burst buffer is down; try it with
    /// --dry-run first. NAME is the tier's directory, or `server-N` (all tiers of that server) or
    /// `server-N:NAME`, as `forebay status` shows them; repeatable
    #[arg(long, value_name = "NAME")]
    lost_tier: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &FsckArgs) -> Result<Exit, Failure> {
    need_working_directory("fsck")?;
    let state = state_or_only(args.state.as_deref())?;
    let (mut report, asked) = match Daemon::try_connect(&state)? {
        Some(_) if args.new_pfs => {
            return Err(Failure::fatal(format!(
                "{}: the burst buffer is running on the PFS that it was made for; --new-pfs is for one that is down",
                state.display()
            )));
        }
        Some(_) if !args.lost_tier.is_empty() => {
            return Err(Failure::fatal(format!(
                "{0}: the burst buffer is running; --lost-tier is for one that is down: `forebay down --state {0}` first",
                state.display()
            )));
        }
        Some(daemon) => (daemon.fsck(args.dry_run, args.checksums)?, Asked::Everybody),
        None => (offline(&state, args)?, Asked::ThisNode),
    };
    sort(&mut report, &args.lost_tier);
    match args.json {
        true => json::print(&to_json(&report, args.dry_run)),
        false => out::print(&render(&report, args.dry_run, asked)),
    }
    let is_whole = report.not_looked_at.is_empty() || !args.lost_tier.is_empty();
    Ok(match exit(&report, args.dry_run) {
        Exit::Complete if !is_whole => Exit::Partial,
        exit => exit,
    })
}

/// Whose tiers a check looks at.
#[derive(Clone, Copy)]
enum Asked {
    /// The server runs, and has asked the data servers.
    Everybody,
    /// The server is down: a check without it asks no other node.
    ThisNode,
}

impl Asked {
    fn why_not(self) -> &'static str {
        match self {
            Asked::Everybody => "they do not answer",
            Asked::ThisNode => "other nodes, which only a server that runs asks, do not answer",
        }
    }
}

/// What is lost comes last: it is read first. A tier that was given up need not be looked at.
fn sort(report: &mut FsckReport, given_up: &[String]) {
    (report.findings).sort_by_key(|finding| finding.kind == CONTENT_LOST);
    report.not_looked_at.retain(|tier| {
        let server = tier.split(':').next();
        !given_up
            .iter()
            .any(|name| name == tier || Some(name.as_str()) == server)
    });
}

fn offline(state: &Path, args: &FsckArgs) -> Result<FsckReport, Failure> {
    let what = state.display();
    match state::holder(state) {
        Ok(Some(Holder::Nobody)) => {}
        Ok(Some(Holder::Process(_))) => {
            return Err(Failure::fatal(format!(
                "{what}: an instance is starting or stopping on it; try again in a moment"
            )));
        }
        Ok(None) => return Err(no_state_folder(state)),
        Err(error) => {
            return Err(Failure::fatal(format!(
                "{what}: {}",
                crate::exit::reason(&error)
            )));
        }
    }
    if let Some(why) = state::unfit(state).explain(&what, "")? {
        return Err(Failure::fatal(format!("{what}: the state folder {why}")));
    }
    let _lock = Lock::take(state).map_err(|error| {
        Failure::fatal(match error {
            LockError::Held { .. } => {
                format!("{what}: an instance has just started on it; try again")
            }
            LockError::Io(error) => format!("{what}: {}", crate::exit::reason(&error)),
        })
    })?;
    for lost in &args.lost_tier {
        refuse_living(state, lost)?;
    }
    let orders = FsckOrders {
        dry_run: args.dry_run,
        checksums: args.checksums,
        new_pfs: args.new_pfs,
        lost_tiers: args.lost_tier.clone(),
    };
    up::run::fsck_offline(state, &orders)
}

/// An address at which nobody has answered.
struct Unanswered {
    address: SocketAddr,
    error: ConnectError,
}

impl Unanswered {
    /// No network leads there: nobody was asked.
    fn is_out_of_network(&self) -> bool {
        let errno = match &self.error {
            ConnectError::Unreachable { error, .. } => error.raw_os_error(),
            _ => None,
        };
        errno == Some(libc::ENETUNREACH)
    }

    /// What was tried, from where, and what came of it.
    fn line(&self) -> String {
        let from = way_to(self.address).map_or_else(
            || "no address of this node".to_string(),
            |ip| ip.to_string(),
        );
        let why = match &self.error {
            ConnectError::Unreachable { error, .. } => crate::exit::reason(error),
            other => other.to_string(),
        };
        format!(
            "{} does not answer: {why} (asked from {from})",
            self.address
        )
    }
}

/// The address of this node from which another one is asked.
fn way_to(address: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Nothing is sent.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(address).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Whether an address is one of this node, in this network namespace.
fn is_here(address: &SocketAddr) -> bool {
    UdpSocket::bind((address.ip(), 0)).is_ok()
}

/// Whoever asks from a place where nobody could answer learns nothing.
fn refuse_elsewhere(own: &[SocketAddr], silent: &[Unanswered]) -> Result<(), String> {
    let all = |addresses: &mut dyn Iterator<Item = &SocketAddr>| {
        let all: Vec<String> = addresses.map(SocketAddr::to_string).collect();
        all.join(", ")
    };
    if !own.is_empty() && !own.iter().any(is_here) {
        return Err(format!(
            "this server's own address ({}) is not on this node, or not in this network namespace; run it where the \
             server runs (and if its address has changed, change cluster.toml first)",
            all(&mut own.iter())
        ));
    }
    if !silent.is_empty() && silent.iter().all(Unanswered::is_out_of_network) {
        return Err(format!(
            "no network leads from here to {}; run it where the servers reach each other",
            all(&mut silent.iter().map(|one| &one.address))
        ));
    }
    Ok(())
}

/// A data server that answers is not gone, whatever was typed. Who does not answer is named, and
/// from where it was asked.
fn refuse_living(state: &Path, lost: &str) -> Result<(), Failure> {
    let name = lost.split(':').next().unwrap_or_default();
    let id = name.strip_prefix("server-").and_then(|id| id.parse().ok());
    let (Some(id), Some(config)) = (id, Starter::of(state).cluster()) else {
        return Ok(());
    };
    let cluster = Cluster::load(&config)?;
    let Ok(server) = cluster.server(id) else {
        // It is in the file no more.
        return Ok(());
    };
    let key = Key::read(&cluster.key).map_err(|error| Failure::fatal(error.to_string()))?;
    let mut silent = Vec::new();
    for address in &server.addresses {
        let way = NetConfig {
            addresses: vec![*address],
            ..NetConfig::new(&cluster.name, key.clone())
        };
        let what = match NetConnection::connect(way) {
            // Nobody is there, or somebody else.
            Err(error @ (ConnectError::Unreachable { .. } | ConnectError::NotForebay { .. })) => {
                let address = *address;
                silent.push(Unanswered { address, error });
                continue;
            }
            Err(ConnectError::Silent { .. }) => "takes connections, and hangs",
            Ok(_) | Err(_) => "answers, and is not gone",
        };
        return Err(Failure::fatal(format!(
            "--lost-tier {lost}: {name} {what}; stop it first if what it has is to be given up"
        )));
    }
    let own = Starter::of(state)
        .id()
        .and_then(|id| cluster.server(id).ok());
    let own = own.map_or(&[][..], |own| &own.addresses);
    refuse_elsewhere(own, &silent).map_err(|why| {
        Failure::fatal(format!(
            "--lost-tier {lost}: whether {name} is gone cannot be told from here: {why}"
        ))
    })?;
    for one in &silent {
        out::complain(&format!("{name} is taken for gone: {}", one.line()));
    }
    Ok(())
}

/// Whether a finding is about content that does not match its checksum.
fn is_corruption(finding: &Finding) -> bool {
    matches!(finding.kind.as_str(), "object-content" | "original-content")
}

fn exit(report: &FsckReport, dry_run: bool) -> Exit {
    let remains = |finding: &Finding| dry_run || !finding.repaired;
    if report.findings.iter().any(is_corruption) {
        Exit::Corrupt
    } else if report.findings.iter().any(remains) {
        Exit::Partial
    } else {
        Exit::Complete
    }
}

fn to_json(report: &FsckReport, dry_run: bool) -> Value {
    let one = |finding: &Finding| {
        let mut object = Map::new();
        insert_path(&mut object, "subject", &finding.subject);
        object.insert("kind".into(), json!(finding.kind));
        object.insert("problem".into(), json!(finding.problem));
        object.insert("action".into(), json!(finding.action));
        object.insert("repaired".into(), json!(finding.repaired && !dry_run));
        Value::Object(object)
    };
    json!({
        "records": report.records,
        "objects": report.objects,
        "verified_bytes": report.verified_bytes,
        "dry_run": dry_run,
        "findings": report.findings.iter().map(one).collect::<Value>(),
        "not_looked_at": report.not_looked_at,
    })
}

fn render(report: &FsckReport, dry_run: bool, asked: Asked) -> String {
    let mut text = String::new();
    let of_kind = |kind: &str| {
        let findings = report.findings.iter().filter(|f| f.repaired);
        findings.filter(|f| f.kind == kind).count() as u64
    };
    // Of those nothing is to be done, and there may be a great many.
    let is_counted = |finding: &Finding| finding.repaired && finding.kind == CLEAN_COPY_GONE;
    let named = report.findings.iter().filter(|f| !is_counted(f));
    for finding in named {
        let done = match (dry_run, finding.repaired) {
            (true, true) => "would be repaired",
            (false, true) => "repaired",
            (_, false) => "NOT repaired",
        };
        let subject = show_path(&finding.subject);
        text.push_str(&format!(
            "{subject}: {}; {done}: {}\n",
            finding.problem, finding.action
        ));
    }
    let verified = match report.verified_bytes {
        0 => String::new(),
        bytes => format!(", {} read and compared", format_size(bytes)),
    };
    let found = match report.findings.len() {
        0 => "nothing wrong".to_string(),
        1 => "1 problem".to_string(),
        n => format!("{n} problems"),
    };
    text.push_str(&format!(
        "{} records and {} objects checked{verified}: {found}\n",
        report.records, report.objects
    ));
    if !report.not_looked_at.is_empty() {
        text.push_str(&format!(
            "not looked at, for {}: {}\n",
            asked.why_not(),
            report.not_looked_at.join(", ")
        ));
    }
    let (whole, lost) = (of_kind(CLEAN_COPY_GONE), of_kind(CONTENT_LOST));
    if whole > 0 {
        text.push_str(&format!(
            "{} had a clean copy in what is gone: the PFS has them whole\n",
            files(whole)
        ));
    }
    if lost > 0 {
        let are = match dry_run {
            true => "would be given up as lost",
            false => "lost content that was nowhere else",
        };
        text.push_str(&format!("{} {are}: named above\n", files(lost)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(findings: &[(&str, bool)]) -> FsckReport {
        let finding = |(problem, repaired): &(&str, bool)| Finding {
            subject: b"run/a".to_vec(),
            kind: match problem.starts_with("checksum") {
                true => "object-content".into(),
                false => "orphan".into(),
            },
            problem: problem.to_string(),
            action: "dropped".into(),
            repaired: *repaired,
        };
        FsckReport {
            records: 2,
            objects: 2,
            findings: findings.iter().map(finding).collect(),
            ..FsckReport::default()
        }
    }

    #[test]
    fn exit_codes() {
        assert_eq!(exit(&report(&[]), false), Exit::Complete);
        assert_eq!(exit(&report(&[("orphan", true)]), false), Exit::Complete);
        assert_eq!(exit(&report(&[("orphan", true)]), true), Exit::Partial);
        assert_eq!(
            exit(&report(&[("orphan", true), ("lost", false)]), false),
            Exit::Partial
        );
        assert_eq!(
            exit(
                &report(&[("lost", false), ("checksum mismatch", false)]),
                false
            ),
            Exit::Corrupt
        );
    }

    #[test]
    fn what_is_lost_is_counted_and_comes_last() {
        let finding = |subject: &str, kind: &str| Finding {
            subject: subject.into(),
            kind: kind.into(),
            problem: "was in server-3:ssd, which is gone for good".into(),
            action: "so it is".into(),
            repaired: true,
        };
        let mut report = FsckReport {
            findings: vec![
                finding("a", CONTENT_LOST),
                finding("b", CLEAN_COPY_GONE),
                finding("c", "orphan"),
                finding("d", CLEAN_COPY_GONE),
            ],
            not_looked_at: ["server-2:ssd", "server-3:dram", "server-31:ssd"]
                .map(String::from)
                .to_vec(),
            ..FsckReport::default()
        };
        sort(&mut report, &["server-3".into()]);
        let text = render(&report, false, Asked::Everybody);
        let lines: Vec<&str> = text.lines().collect();
        let starts = [
            "c: ",
            "a: was in server-3:ssd, which is gone for good; repaired: so it is",
            "0 records and 0 objects checked: 4 problems",
            "not looked at, for they do not answer: server-2:ssd, server-31:ssd",
            "2 files had a clean copy in what is gone: the PFS has them whole",
            "1 file lost content that was nowhere else: named above",
        ];
        assert_eq!(lines.len(), starts.len(), "{text}");
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start), "{text}");
        }
    }

    #[test]
    fn who_asks_from_another_network_learns_nothing() {
        let address = |text: &str| text.parse::<SocketAddr>().expect("address");
        let silent = |text: &str, errno| Unanswered {
            address: address(text),
            error: ConnectError::Unreachable {
                server: text.into(),
                error: std::io::Error::from_raw_os_error(errno),
            },
        };
        let here = [address("127.0.0.1:7070")];
        // For documentation: no node has it.
        let elsewhere = [address("192.0.2.7:7070")];
        let refused = [silent("127.0.0.1:9", libc::ECONNREFUSED)];
        assert_eq!(refuse_elsewhere(&here, &refused), Ok(()));
        assert_eq!(refuse_elsewhere(&[], &refused), Ok(()));
        let why = refuse_elsewhere(&elsewhere, &refused).expect_err("not here");
        assert!(why.contains("192.0.2.7:7070"), "{why}");
        let both = [elsewhere[0], here[0]];
        assert_eq!(refuse_elsewhere(&both, &refused), Ok(()));
        let away = || silent("192.0.2.9:7070", libc::ENETUNREACH);
        let why = refuse_elsewhere(&here, &[away()]).expect_err("no way");
        assert!(
            why.contains("no network leads from here to 192.0.2.9:7070"),
            "{why}"
        );
        let one_way = [away(), silent("192.0.2.8:7070", libc::EHOSTUNREACH)];
        assert_eq!(refuse_elsewhere(&here, &one_way), Ok(()), "one was asked");
        assert_eq!(
            refused[0].line(),
            "127.0.0.1:9 does not answer: Connection refused (asked from 127.0.0.1)"
        );
    }

    #[test]
    fn findings_are_named() {
        let text = render(
            &report(&[("object without a record", true)]),
            false,
            Asked::Everybody,
        );
        assert_eq!(
            text,
            "run/a: object without a record; repaired: dropped\n2 records and 2 objects checked: 1 problem\n"
        );
        let value = to_json(&report(&[("x", true)]), true);
        assert_eq!(value["findings"][0]["repaired"], false);
        assert_eq!(value["findings"][0]["subject"], "run/a");
    }
}
