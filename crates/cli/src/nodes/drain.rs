//! `forebay cluster drain-node` and `use-node`.

use std::time::{Duration, Instant};

use forebay_types::Errno;
use forebay_wire::control::{
    Awaited, AwaitedFile, Control, ControlResponse, EmptyingStatus, NodeStatus, StatusBits,
};
use serde_json::json;

use super::args::{DrainNodeArgs, UseNodeArgs};
use crate::asked::Asked;
use crate::awaited::{awaited_json, awaited_line};
use crate::control::{AskError, files_and_bytes};
use crate::exit::{Exit, Explain, Failure};
use crate::out;
use crate::show::json;
use crate::show::progress::{Amount, Progress};
use crate::show::text::files;
use crate::signals::Signals;
use crate::status::mount_of;

/// Between two looks at the node.
const LOOK: Duration = Duration::from_millis(250);
/// So long a node has nothing before it is said to be empty: a file that was being made when the
/// order came may only be there after the first look.
const STAYS_EMPTY: Duration = Duration::from_secs(2);
/// A metadata server that is started anew is waited for so long.
const AWAY_LIMIT: Duration = Duration::from_secs(90);

/// Empties a node.
pub fn drain(args: &DrainNodeArgs) -> Result<Exit, Failure> {
    let signals = Signals::count().explain("signals", "")?;
    let mut asked = args.whom.connect()?;
    let mut bits = order(&asked, args.node, true)?;
    if args.no_wait {
        let line = format!(
            "node {}: gets no files any more, and is emptied\n",
            args.node
        );
        out::print(&line);
        return Ok(Exit::Complete);
    }
    let begun = Instant::now();
    let mut progress = Progress::new("drain-node");
    let mut view = View::default();
    let mut empty_since = None;
    let exit = loop {
        let node = node_of(&bits, args.node)?;
        let Some(left) = &node.emptying else {
            progress.finish();
            return Err(Failure::fatal(format!(
                "node {}: the order was taken back; it is used again",
                args.node
            )));
        };
        if left.files == 0 {
            let since = *empty_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= STAYS_EMPTY {
                break Exit::Complete;
            }
        } else {
            empty_since = None;
            view.show(&bits, node, left, &mut progress);
            if args.timeout.is_some_and(|limit| begun.elapsed() >= limit) {
                break Exit::TimedOut;
            }
        }
        if signals.sleep(LOOK) {
            break Exit::Interrupted;
        }
        match asked.status() {
            Ok(newer) => bits = newer,
            Err(AskError::Gone) => {
                asked = again(args, &signals)?;
                // What was seen last is old.
                empty_since = None;
            }
            Err(error) => return Err(asked.failure(error)),
        }
    };
    progress.finish();
    tell_end(args, &bits, exit)?;
    Ok(exit)
}

/// The server may only be started anew.
fn again(args: &DrainNodeArgs, signals: &Signals) -> Result<Asked, Failure> {
    let begun = Instant::now();
    loop {
        match args.whom.connect() {
            Err(failure) if begun.elapsed() >= AWAY_LIMIT => return Err(failure),
            Err(_) if signals.sleep(LOOK) => {
                return Err(Failure {
                    errno: None,
                    exit: Exit::Interrupted,
                    message: "the metadata server is away; the node is emptied when it is back"
                        .into(),
                });
            }
            Err(_) => {}
            Ok(asked) => return Ok(asked),
        }
    }
}

/// Uses a node again.
pub fn use_again(args: &UseNodeArgs) -> Result<Exit, Failure> {
    let asked = args.whom.connect()?;
    order(&asked, args.node, false)?;
    out::print(&format!(
        "node {}: new files may go there again\n",
        args.node
    ));
    Ok(Exit::Complete)
}

fn order(asked: &Asked, node: u16, empty: bool) -> Result<StatusBits, Failure> {
    let refused = |why: &str| Err(Failure::fatal(format!("node {node}: {why}")));
    match asked.ask(Control::Node {
        server: node,
        empty,
    }) {
        Ok(ControlResponse::Status(bits)) => Ok(*bits),
        Ok(_) => refused("the server answered another question"),
        Err(AskError::Refused(Errno::ENOENT)) => {
            refused("no data server of the cluster has this id; `forebay cluster status` shows all")
        }
        Err(AskError::Refused(Errno::EBUSY)) => {
            refused("it is the last node that new files may go to; use another one again first")
        }
        Err(AskError::Refused(Errno::EPERM)) => refused(
            "not allowed; root may, and with squash_root on the metadata server's node alone: give --state there",
        ),
        Err(error) => Err(asked.failure_to(error, "empty nodes")),
    }
}

fn node_of(bits: &StatusBits, id: u16) -> Result<&NodeStatus, Failure> {
    let found = bits.nodes.iter().find(|node| node.server == id);
    found.ok_or_else(|| Failure::fatal(format!("node {id}: it is not in the cluster any more")))
}

/// Files that are named while the command waits.
const SAID_MAX: usize = 10;

/// What the user has been shown.
#[derive(Default)]
struct View {
    /// What has left so far, and what was there at the last look. Programs write meanwhile.
    gone_bytes: u64,
    last_bytes: u64,
    said: Vec<AwaitedFile>,
    said_away: bool,
    said_failing: bool,
}

impl View {
    fn show(
        &mut self,
        bits: &StatusBits,
        node: &NodeStatus,
        left: &EmptyingStatus,
        progress: &mut Progress,
    ) {
        self.gone_bytes += self.last_bytes.saturating_sub(node.used_bytes);
        self.last_bytes = node.used_bytes;
        for file in self.new_awaited(left) {
            progress.say(&awaited_line(mount_of(bits), &file));
        }
        if !node.answers && !std::mem::replace(&mut self.said_away, true) {
            progress.say("the node does not answer: what is not drained there waits for it");
        }
        if bits.drain_failing_files > 0 && !std::mem::replace(&mut self.said_failing, true) {
            progress
                .say("files cannot be drained, and are tried again: `forebay status` names them");
        }
        progress.show(&Amount {
            done: self.gone_bytes,
            total: self.gone_bytes + node.used_bytes,
            detail: format!(
                "{} left, {} of them open",
                files(left.files),
                left.open_files
            ),
        });
    }
}

impl View {
    /// Files that are waited for, and were not named yet; not more than people read.
    fn new_awaited(&mut self, left: &EmptyingStatus) -> Vec<AwaitedFile> {
        let new = |file: &&AwaitedFile| !self.said.contains(file);
        let room = SAID_MAX.saturating_sub(self.said.len());
        let new: Vec<_> = left
            .awaited
            .iter()
            .filter(new)
            .take(room)
            .cloned()
            .collect();
        self.said.extend(new.iter().cloned());
        new
    }
}

fn tell_end(args: &DrainNodeArgs, bits: &StatusBits, exit: Exit) -> Result<(), Failure> {
    let node = node_of(bits, args.node)?;
    let left = node.emptying.clone().unwrap_or_default();
    if args.json {
        let outcome = match exit {
            Exit::Complete => "empty",
            Exit::TimedOut => "timed_out",
            _ => "interrupted",
        };
        json::print(&json!({
            "node": args.node,
            "outcome": outcome,
            "files_left": left.files,
            "bytes_left": node.used_bytes,
            "open_files": left.open_files,
            "open": json::path_list(mount_of(bits), &open_paths(&left)),
            "waits_for": awaited_json(mount_of(bits), &left),
        }));
        return Ok(());
    }
    let id = args.node;
    if exit == Exit::Complete {
        out::print(&format!(
            "node {id}: empty; it gets no files until `forebay cluster use-node {id}`\n"
        ));
        return Ok(());
    }
    for line in end_lines(id, bits, node, &left) {
        out::complain(&line);
    }
    Ok(())
}

/// What goes on when nobody waits for it any more, and what that waits for.
fn end_lines(id: u16, bits: &StatusBits, node: &NodeStatus, left: &EmptyingStatus) -> Vec<String> {
    let what = files_and_bytes(left.files, node.used_bytes);
    let first = format!(
        "node {id}: {what} left, {} of them open; it goes on being emptied without this command, and gets no files; \
         `forebay status` shows how far, `forebay cluster use-node {id}` ends that",
        left.open_files
    );
    let named = left
        .awaited
        .iter()
        .map(|file| awaited_line(mount_of(bits), file));
    std::iter::once(first).chain(named).collect()
}

fn open_paths(left: &EmptyingStatus) -> Vec<Vec<u8>> {
    let open = left.awaited.iter();
    let open = open.filter(|file| matches!(file.why, Awaited::Open | Awaited::SecondOfOpen));
    open.map(|file| file.path.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(names: &[(&str, Awaited)]) -> EmptyingStatus {
        let one = |(name, why): &(&str, Awaited)| AwaitedFile {
            path: name.as_bytes().to_vec(),
            why: *why,
        };
        EmptyingStatus {
            files: 7,
            open_files: 1,
            awaited: names.iter().map(one).collect(),
        }
    }

    #[test]
    fn what_is_waited_for_is_named_once_and_why() {
        let bits = StatusBits {
            mount: b"/bb".to_vec(),
            ..StatusBits::default()
        };
        let busy = left(&[("db", Awaited::SecondChanges), ("log", Awaited::Open)]);
        let mut view = View::default();
        let said = view.new_awaited(&busy);
        assert_eq!(said.len(), 2);
        let line = awaited_line(mount_of(&bits), &said[0]);
        assert!(line.starts_with("/bb/db: changes again"), "{line}");
        assert!(line.contains("second copy is on the node"), "{line}");
        assert!(view.new_awaited(&busy).is_empty());
        let lines = end_lines(3, &bits, &NodeStatus::default(), &busy);
        assert!(lines[0].starts_with("node 3: 7 files"), "{lines:?}");
        assert!(lines[0].contains("goes on being emptied"), "{lines:?}");
        assert!(lines[2].starts_with("/bb/log: is open"), "{lines:?}");
        let value = awaited_json(mount_of(&bits), &busy);
        assert_eq!(value[0]["path"], "/bb/db");
        assert_eq!(value[0]["why"], "second_copy_changes");
        assert_eq!(open_paths(&busy), [b"log".to_vec()]);
    }
}
