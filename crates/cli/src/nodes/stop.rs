//! `forebay cluster stop`.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use super::args::StopArgs;
use super::plan::Plan;
use super::run::{Runner, for_each};
use super::standbys;
use crate::cluster::config::Server;
use crate::exit::{Exit, Failure};
use crate::out;
use crate::show::text;

/// A server that has given up its drain in time has so long to say so.
const GRACE: Duration = Duration::from_secs(30);
/// What needs no drain ends within this time, on each node, or by the deadline if that is later.
const PLAIN_LIMIT: Duration = Duration::from_secs(60);

/// Runs the command.
pub fn run(args: &StopArgs) -> Result<Exit, Failure> {
    let plan = Plan::of(&args.nodes)?;
    let until = Instant::now() + args.timeout;
    let left = || until.saturating_duration_since(Instant::now());
    let away = unmount_all(&plan, left().max(GRACE))?;
    let (leaders, silent) = standbys::stop(&plan, args.no_drain)?;
    let drained = match stop_metadata((&plan, leaders), args.no_drain, left())? {
        Exit::Complete => !args.no_drain,
        other => return Ok(other),
    };
    let data = plan.servers(|server| !server.metadata);
    let mut failed = away + silent;
    let limit = left().max(PLAIN_LIMIT);
    let done = for_each(&data, |(server, host)| {
        down(&plan, &plan.runner, (server, host), &[], limit)
    });
    for ended in done {
        match ended {
            Ok(Ended::Stopped(line)) => out::print(&format!("{line}\n")),
            Ok(Ended::NotRunning) => {}
            Ok(Ended::Other(_)) => failed += 1,
            Err(line) => {
                failed += 1;
                out::complain(&line);
            }
        }
    }
    if drained && failed == 0 {
        free_memory(&plan);
    }
    if plan.runner.is_interrupted() {
        return Ok(Exit::Interrupted);
    }
    match failed {
        0 => {
            out::print(&format!("cluster {}: stopped\n", plan.cluster.name));
            Ok(Exit::Complete)
        }
        _ => Ok(Exit::Partial),
    }
}

/// Unmounts everywhere: on how many nodes nobody answers. A mount that is in use, or somebody
/// else's, is an error.
fn unmount_all(plan: &Plan, limit: Duration) -> Result<usize, Failure> {
    let mounts = plan.mounts();
    let done = for_each(&mounts, |host| unmount(plan, &plan.runner, host, limit));
    let failed: Vec<_> = done.into_iter().filter_map(Result::err).collect();
    failed.iter().for_each(|(_, line)| out::complain(line));
    if plan.runner.is_interrupted() {
        return Err(Failure {
            errno: None,
            exit: Exit::Interrupted,
            message: "the servers go on; `forebay cluster start` mounts again".into(),
        });
    }
    let kept = failed.iter().filter(|(exit, _)| *exit == Exit::Partial);
    match kept.count() {
        0 => {
            let gone = mounts.len() - failed.len();
            out::print(&format!(
                "{}: unmounted on {}\n",
                plan.mount.display(),
                text::nodes(gone)
            ));
            Ok(failed.len())
        }
        count => Err(Failure {
            errno: None,
            exit: Exit::Partial,
            message: format!(
                "cluster {}: not stopped: {} cannot be unmounted on {count} of {}",
                plan.cluster.name,
                plan.mount.display(),
                text::nodes(mounts.len())
            ),
        }),
    }
}

/// Ends the mount of a node, if there is one. An error has `Partial` where the mount is in use, or
/// somebody else's.
pub fn unmount(
    plan: &Plan,
    runner: &Runner,
    host: &str,
    limit: Duration,
) -> Result<(), (Exit, String)> {
    let mut words = plan.words(["cluster", "on-node", "--unmount", "--config"]);
    words.push(plan.config.clone().into());
    words.extend(["--mount".into(), plan.mount.clone().into()]);
    match runner.run(host, &words, limit, false) {
        Ok(said) if said.code == 0 => Ok(()),
        Ok(said) if said.code == Exit::Partial as i32 => {
            let why = said.why();
            let why = why.strip_suffix(" (exit 3)").unwrap_or(&why);
            Err((Exit::Partial, format!("{host}: {why}")))
        }
        Ok(said) => Err((Exit::Fatal, format!("{host}: {}", said.why()))),
        Err(why) => Err((Exit::Fatal, format!("{host}: {why}"))),
    }
}

/// Drains and stops the metadata server, which has all data servers drained.
fn stop_metadata(
    (plan, leaders): (&Plan, Vec<(&Server, &str)>),
    no_drain: bool,
    left: Duration,
) -> Result<Exit, Failure> {
    for server in leaders {
        let timeout = format!("{}ms", left.as_millis().max(1));
        let flags = ["--drain", "--timeout", &timeout];
        let flags: &[&str] = if no_drain { &[] } else { &flags };
        let ended = down(plan, &plan.runner, server, flags, left + GRACE);
        match ended.map_err(|line| Failure {
            errno: None,
            exit: match plan.runner.is_interrupted() {
                true => Exit::Interrupted,
                // What is left cannot be named: that would be exit 4.
                false => Exit::Partial,
            },
            message: line,
        })? {
            Ended::Stopped(line) => out::print(&format!("{line}\n")),
            Ended::NotRunning if no_drain || was_drained(plan, server) => {}
            Ended::NotRunning => {
                return Err(Failure::fatal(format!(
                    "{}: the metadata server does not run, so that nothing can be drained; start it, or give --no-drain",
                    server.1
                )));
            }
            // What is left was told as it came.
            Ended::Other(exit) => return Ok(exit),
        }
    }
    Ok(Exit::Complete)
}

/// Whether a metadata server that does not run has left nothing to drain: the command was given
/// before.
fn was_drained(plan: &Plan, (server, host): (&Server, &str)) -> bool {
    let mut words = plan.words(["cluster", "on-node", "--is-drained", "--config"]);
    words.push(plan.config.clone().into());
    words.extend(["--id".into(), OsString::from(server.id.to_string())]);
    let said = plan.runner.run(host, &words, PLAIN_LIMIT, false);
    said.is_ok_and(|said| said.code == 0)
}

/// How `forebay down` on a node has ended.
pub enum Ended {
    /// Its last line.
    Stopped(String),
    /// There was nothing to stop.
    NotRunning,
    /// With another exit code; the lines about it are on standard error.
    Other(Exit),
}

/// Stops one server.
pub fn down(
    plan: &Plan,
    runner: &Runner,
    (server, host): (&Server, &str),
    flags: &[&str],
    limit: Duration,
) -> Result<Ended, String> {
    let mut words = plan.words(["down", "--state"]);
    words.push(server.state.clone().into());
    words.extend(flags.iter().map(OsString::from));
    let said = runner.run(host, &words, limit, !flags.is_empty());
    let said = said.map_err(|why| {
        let goes_on = if flags.is_empty() {
            ""
        } else {
            "; it may go on draining"
        };
        format!("{host}: server {}: {why}{goes_on}", server.id)
    })?;
    match said.code {
        0 => Ok(Ended::Stopped(format!(
            "{host}: {}",
            super::run::shown(said.stdout.trim())
        ))),
        // A word of ours, of this version.
        1 if ["is not running", "not a state folder"]
            .iter()
            .any(|w| said.stderr.contains(w)) =>
        {
            Ok(Ended::NotRunning)
        }
        code @ (3..=5 | 130) => Ok(Ended::Other(Exit::from_code(code as u8))),
        _ => Err(format!("{host}: {}", said.why())),
    }
}

/// All is on the PFS: what memory still has is of no use.
fn free_memory(plan: &Plan) {
    let with: Vec<_> = plan
        .nodes
        .iter()
        .filter(|node| !node.servers.is_empty())
        .collect();
    let done = for_each(&with, |node| {
        let mut words = plan.words(["cluster", "on-node", "--free-memory", "--config"]);
        words.push(plan.config.clone().into());
        for id in &node.servers {
            words.extend(["--id".into(), OsString::from(id.to_string())]);
        }
        match plan.runner.run(&node.host, &words, PLAIN_LIMIT, false) {
            Ok(said) if said.code == 0 => None,
            Ok(said) => Some(format!(
                "{}: its memory stays borrowed: {}",
                node.host,
                said.why()
            )),
            Err(why) => Some(format!("{}: its memory stays borrowed: {why}", node.host)),
        }
    });
    done.into_iter()
        .flatten()
        .for_each(|line| out::complain(&line));
}

#[cfg(test)]
mod tests {
    use super::super::args::NodesArgs;
    use super::super::via::Via;
    use super::*;

    #[test]
    fn a_node_that_cannot_be_reached_is_one_that_did_not_answer() {
        let folder = tempfile::tempdir().expect("tempdir");
        let config = folder.path().join("c.toml");
        let text = "[cluster]\nname = \"bb0\"\npfs = \"/scratch\"\nkey = \"/k\"\n\
                    [[server]]\nid = 1\nroles = [\"metadata\", \"data\"]\naddresses = [\"127.0.0.1:7070\"]\n\
                    state = \"/s1\"\ndram = \"1GiB\"\nssd = [\"/nvme:1TiB\"]\n";
        std::fs::write(&config, text).expect("write");
        for via in ["/nowhere/ssh {host}", "false {host}"] {
            let args = StopArgs {
                nodes: NodesArgs {
                    config: config.clone(),
                    mount: folder.path().join("bb"),
                    nodes: None,
                    via: Some(Via::parse(via).expect("a template")),
                    forebay: None,
                },
                timeout: Duration::from_secs(60),
                no_drain: false,
            };
            let failure = run(&args).expect_err("nobody is there");
            assert_eq!(failure.exit, Exit::Partial, "{via}: {failure:?}");
        }
    }
}
