//! Who lends memory on this node, and why a server does not.

use std::path::{Path, PathBuf};

use forebay_types::{Errno, format_size};

use crate::cluster::config::{Cluster, Server};
use crate::control::Daemon;
use crate::exit::Failure;
use crate::instance::{self, mount_table};
use crate::mounts::MountEntry;
use crate::starter::Starter;
use crate::state::{self, Holder};

/// What the tmpfs of a memory tier is called in its state folder, and the tier itself.
const DRAM: &str = "dram";
/// So many data servers are named in one line.
const NAMED: usize = 3;
const ELSEWHERE: &str = "--state takes the state folder of the burst buffer, or of this node's data server (`state` \
                         in cluster.toml)";

/// A state folder on this node, and how people know it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    state: PathBuf,
    called: String,
}

impl Found {
    /// Whether it says that its memory is borrowed.
    fn lends(&self) -> bool {
        let daemon = Daemon::try_connect(&self.state).ok().flatten();
        let bits = daemon.and_then(|daemon| daemon.status().ok());
        bits.is_some_and(|bits| bits.lending.is_some())
    }
}

/// The state folder that the user named, or that of the only one here that lends.
pub fn state(named: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(state) = instance::named_state(named)? {
        return match Starter::of(&state) {
            Starter::Mount(point) => {
                let here = found(&mount_table().unwrap_or_default());
                Err(of_a_mount(&state, &point, &here))
            }
            _ => Ok(state),
        };
    }
    let table = mount_table()?;
    let mut here = found(&table);
    if here.len() > 1 && here.iter().any(Found::lends) {
        here.retain(Found::lends);
    }
    match &here[..] {
        [] if table.iter().any(MountEntry::is_forebay) => Err(Failure::fatal(format!(
            "lend: only mounts of a cluster are here, and a mount lends no memory; {ELSEWHERE}"
        ))
        .with(Errno::ENOTCONN)),
        [] => instance::state_or_only(None),
        [one] => Ok(one.state.clone()),
        several => Err(Failure::fatal(format!(
            "lend: {} have memory here; say which one: {}",
            several.len(),
            listed(several)
        ))
        .with(Errno::EINVAL)),
    }
}

/// Burst buffers that are mounted here, and servers that run with a tmpfs of their own. A mount of
/// a cluster is none.
fn found(table: &[MountEntry]) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for entry in table {
        let one = match (entry.is_forebay(), entry.fs_type.as_str()) {
            (true, _) => shown(entry),
            (false, "tmpfs") => server_of(&entry.point),
            _ => None,
        };
        found.extend(one.filter(|one| found.iter().all(|other| other.state != one.state)));
    }
    found
}

fn shown(entry: &MountEntry) -> Option<Found> {
    (!Starter::of(&entry.source).is_mount()).then(|| Found {
        state: entry.source.clone(),
        called: format!("mounted on {}", entry.point.display()),
    })
}

/// The server that runs, and has its memory tier in this tmpfs.
fn server_of(tmpfs: &Path) -> Option<Found> {
    let folder = tmpfs.parent().filter(|_| tmpfs.ends_with(DRAM))?;
    let id = Starter::of(folder).id()?;
    let runs = matches!(state::holder(folder), Ok(Some(Holder::Process(_))));
    runs.then(|| Found {
        state: folder.to_path_buf(),
        called: format!("server {id}"),
    })
}

fn listed(found: &[Found]) -> String {
    let each = found.iter();
    let each: Vec<_> = each
        .map(|one| format!("--state {} ({})", one.state.display(), one.called))
        .collect();
    each.join(", ")
}

fn of_a_mount(state: &Path, point: &Path, here: &[Found]) -> Failure {
    let instead = match here {
        [] => ELSEWHERE.to_string(),
        here => format!(
            "the order belongs to the burst buffer or data server itself: {}",
            listed(here)
        ),
    };
    let (state, point) = (state.display(), point.display());
    Failure::fatal(format!(
        "{state}: the run folder of the mount {point}, and a mount lends no memory; {instead}"
    ))
    .with(Errno::EOPNOTSUPP)
}

/// Why the burst buffer with this state folder lends nothing. `tiers` are the names of those that
/// it has shown.
pub fn not_borrowed<'a>(state: &Path, mut tiers: impl Iterator<Item = &'a str>) -> Failure {
    let starter = Starter::of(state);
    let failure = |why: String| Failure::fatal(format!("lend: {why}")).with(Errno::EOPNOTSUPP);
    let has_memory = tiers.any(|tier| tier == DRAM);
    if !starter.is_server() {
        let what = match has_memory {
            true => "the memory tier has a fixed size",
            false => "there is no memory tier",
        };
        return failure(format!("{what}; start the burst buffer with --dram auto"));
    }
    let file = starter.cluster();
    let cluster = file.as_ref().and_then(|file| Cluster::load(file).ok());
    let section = file.map_or_else(
        || "in its `[[server]]` section".into(),
        |file| format!("in its `[[server]]` section of {}", file.display()),
    );
    let servers = cluster.as_ref().map_or(&[][..], |cluster| &cluster.servers);
    let of_file = servers
        .iter()
        .find(|server| Some(server.id) == starter.id());
    let Some(server) = of_file else {
        return failure(format!(
            "this server has no memory that it borrows; `dram = \"auto\"` {section} and a restart change that"
        ));
    };
    failure(why_not(server, servers, &section))
}

fn why_not(server: &Server, all: &[Server], section: &str) -> String {
    let id = server.id;
    match (server.borrows, server.dram_bytes) {
        (Some(_), _) => format!(
            "server {id} was started with other memory: `dram = \"auto\"` {section} is in force from its next start on"
        ),
        (None, Some(bytes)) => format!(
            "the memory tier of server {id} has a fixed size ({}); with `dram = \"auto\"` {section} it lends from its \
             next start on",
            format_size(bytes)
        ),
        (None, None) if server.data => format!(
            "server {id} has no memory tier; with `dram = \"auto\"` {section} it has one that lends, from its next \
             start on"
        ),
        (None, None) => format!(
            "server {id} is a metadata server without a memory tier; data servers lend, and each has a state folder \
             of its own on its node{}",
            data_servers(all)
        ),
    }
}

fn data_servers(all: &[Server]) -> String {
    let holders: Vec<&Server> = all.iter().filter(|server| server.data).collect();
    let mut named: Vec<String> = holders
        .iter()
        .take(NAMED)
        .map(|server| format!("--state {} on {}", server.state.display(), server.host))
        .collect();
    if named.is_empty() {
        return String::new();
    }
    if holders.len() > NAMED {
        named.push("...".into());
    }
    format!(": {}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{mounts, starter};

    fn noted(base: &Path, name: &str, note: &str, text: &str) -> PathBuf {
        let folder = base.join(name);
        std::fs::create_dir(&folder).expect("mkdir");
        std::fs::write(folder.join(note), format!("{text}\n")).expect("write");
        folder
    }

    #[test]
    fn a_mount_is_not_offered_and_a_server_with_memory_is() {
        let folder = tempfile::tempdir().expect("tempdir");
        let base = folder.path();
        let run = noted(base, "run", state::MOUNT, "/bb");
        let server = base.join("data");
        std::fs::create_dir(&server).expect("mkdir");
        starter::note(&server, Some("forebay server --config /c --id 2")).expect("noted");
        let (run_shown, server_shown) = (run.display(), server.display());
        let text = format!(
            "40 22 0:40 / /bb rw - fuse.forebay {run_shown} rw\n\
             41 22 0:41 / {server_shown}/dram rw - tmpfs none rw\n\
             42 22 0:42 / /tmp rw - tmpfs none rw\n"
        );
        let table = mounts::parse(text.as_bytes());
        assert_eq!(found(&table), [], "it does not run");
        let lock = state::Lock::take(&server).expect("free");
        let here = found(&table);
        assert_eq!(
            listed(&here),
            format!("--state {server_shown} (server 2)"),
            "{here:?}"
        );
        drop(lock);
        let said = super::state(Some(&run)).expect_err("a mount").message;
        assert!(
            said.contains("the run folder of the mount /bb, and a mount lends no memory"),
            "{said}"
        );
        let said = of_a_mount(&run, Path::new("/bb"), &here).message;
        assert!(
            said.ends_with(&format!("itself: --state {server_shown} (server 2)")),
            "{said}"
        );
    }

    #[test]
    fn a_server_says_why_it_lends_nothing() {
        let folder = tempfile::tempdir().expect("tempdir");
        let file = folder.path().join("c.toml");
        let server = |id: u16, roles: &str, tiers: &str| {
            format!(
                "[[server]]\nid = {id}\nroles = [{roles}]\naddresses = [\"127.0.0.{id}:7070\"]\n\
                 host = \"n{id}\"\nstate = \"/s{id}\"\n{tiers}\n"
            )
        };
        let parts = [
            "[cluster]\nname = \"bb0\"\npfs = \"/scratch\"\nkey = \"/k\"\n".to_string(),
            server(1, "\"metadata\"", ""),
            server(2, "\"data\"", "dram = \"8GiB\""),
            server(3, "\"data\"", "ssd = [\"/nvme:1TiB\"]"),
            server(4, "\"data\"", "dram = \"auto\""),
            server(5, "\"data\"", "dram = \"auto\""),
        ];
        std::fs::write(&file, parts.concat()).expect("write");
        let said = |id: u16, tiers: &[&str]| {
            let start = format!("forebay server --config {} --id {id}", file.display());
            starter::note(folder.path(), Some(&start)).expect("noted");
            not_borrowed(folder.path(), tiers.iter().copied()).message
        };
        for (id, part) in [
            (
                1,
                "own on its node: --state /s2 on n2, --state /s3 on n3, --state /s4 on n4, ...",
            ),
            (
                2,
                "the memory tier of server 2 has a fixed size (8.0 GiB); with `dram = \"auto\"` in its `[[server]]`",
            ),
            (3, "server 3 has no memory tier"),
            (4, "is in force from its next start on"),
            (9, "this server has no memory that it borrows"),
        ] {
            let line = said(id, &[]);
            assert!(line.contains(part), "{id}: {line}");
        }
        starter::note(folder.path(), None).expect("taken away");
        let of_up = |tiers: &[&str]| not_borrowed(folder.path(), tiers.iter().copied()).message;
        assert!(of_up(&["dram"]).contains("a fixed size; start the burst buffer with --dram auto"));
        assert!(of_up(&["/nvme"]).contains("there is no memory tier; start"));
    }
}
