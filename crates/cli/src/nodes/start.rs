//! `forebay cluster start`.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::args::StartArgs;
use super::plan::{Node, Plan, fingerprint};
use super::run::{Runner, for_each, shown};
use super::stop::{down, unmount};
use crate::cluster::config::Server;
use crate::exit::{Exit, Explain, Failure};
use crate::mount::log_of;
use crate::out;
use crate::signals::Signals;

/// A look at a node takes no longer.
const LOOK_LIMIT: Duration = Duration::from_secs(60);
/// Between two looks whether what stays in a step of a job serves.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// What was begun is taken back within this time, on each node.
const UNDO_LIMIT: Duration = Duration::from_secs(90);

/// What is on a node already.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    /// Servers that run.
    running: Vec<u16>,
    /// Of those, that serve.
    serving: Vec<u16>,
    is_mounted: bool,
}

/// What was begun, to be taken back in the other order.
#[derive(Default)]
struct Begun<'a> {
    servers: Vec<(&'a Server, &'a str)>,
    mounts: Vec<&'a str>,
}

/// Why something is not up.
#[derive(Debug, PartialEq, Eq)]
struct NotUp {
    line: String,
    /// It may run all the same, or come up later. What was refused does not: what runs there then
    /// was started by somebody else.
    may_run: bool,
}

impl NotUp {
    fn refused(line: String) -> NotUp {
        let may_run = false;
        NotUp { line, may_run }
    }

    fn unknown(line: String) -> NotUp {
        let may_run = true;
        NotUp { line, may_run }
    }

    /// By the exit code of a start: one that this program does not have is of what was to bring
    /// the command to its node.
    fn of_code(code: i32, line: String) -> NotUp {
        match code {
            1..=5 | 126 | 127 => NotUp::refused(line),
            _ => NotUp::unknown(line),
        }
    }
}

/// Runs the command.
pub fn run(args: &StartArgs) -> Result<Exit, Failure> {
    let plan = Plan::of(&args.nodes)?;
    let found = look_at_all(&plan, args.timeout.min(LOOK_LIMIT))?;
    let mut begun = Begun::default();
    match start(&plan, &found, args, &mut begun) {
        Ok(()) => {
            let (servers, mounts) = (plan.cluster.servers.len(), plan.mounts().len());
            let there: usize = found.iter().map(|one| one.running.len()).sum();
            let mounted = found.iter().filter(|one| one.is_mounted).count();
            out::print(&format!(
                "cluster {}: {} ({there} did before), {} at {} ({mounted} did before)\n",
                plan.cluster.name,
                match servers {
                    1 => "1 server runs".into(),
                    many => format!("{many} servers run"),
                },
                match mounts {
                    1 => "1 node shows it".into(),
                    many => format!("{many} nodes show it"),
                },
                plan.mount.display()
            ));
            Ok(Exit::Complete)
        }
        Err(failed) => {
            failed.iter().for_each(|line| out::complain(line));
            let is_interrupted = plan.runner.is_interrupted();
            let left = undo(&plan, &begun);
            left.iter().for_each(|line| out::complain(line));
            Err(Failure {
                errno: None,
                exit: match is_interrupted {
                    true => Exit::Interrupted,
                    false => Exit::Fatal,
                },
                message: format!(
                    "cluster {}: not started{}",
                    plan.cluster.name,
                    match left.is_empty() {
                        true => "; what this command had started is stopped again",
                        false => "; not all that this command had started could be stopped",
                    }
                ),
            })
        }
    }
}

fn look_at_all(plan: &Plan, limit: Duration) -> Result<Vec<Found>, Failure> {
    let print = fingerprint(&plan.config).explain(plan.config.display(), "")?;
    let looked = for_each(&plan.nodes, |node| {
        look_at(plan, &plan.runner, node, &print, limit)
    });
    let mut found = Vec::new();
    let mut failed = 0;
    for (node, result) in plan.nodes.iter().zip(looked) {
        match result {
            Ok(one) => found.push(one),
            Err(why) => {
                failed += 1;
                out::complain(&format!("{}: {why}", node.host));
            }
        }
    }
    match (failed, plan.runner.is_interrupted()) {
        (0, false) => Ok(found),
        (_, true) => Err(Failure {
            errno: None,
            exit: Exit::Interrupted,
            message: "nothing was started".into(),
        }),
        (failed, false) => Err(Failure::fatal(format!(
            "cluster {}: nothing was started: {failed} of {} nodes cannot take part",
            plan.cluster.name,
            plan.nodes.len()
        ))),
    }
}

/// Whether a node answers, has this version and this file, and may start what is to be on it.
fn look_at(
    plan: &Plan,
    runner: &Runner,
    node: &Node,
    print: &str,
    limit: Duration,
) -> Result<Found, String> {
    let said = runner.run(&node.host, &plan.words(["--version"]), limit, false)?;
    if said.code != 0 {
        return Err(said.why());
    }
    let own = concat!("forebay ", env!("CARGO_PKG_VERSION"));
    if said.stdout.trim() != own {
        let theirs = shown(said.stdout.lines().next().unwrap_or_default());
        return Err(format!(
            "has '{theirs}', here is '{own}'; --forebay names the program to use on the nodes"
        ));
    }
    let mut words = plan.words(["cluster", "on-node", "--config"]);
    words.push(plan.config.clone().into());
    for id in &node.servers {
        words.extend(["--id".into(), OsString::from(id.to_string())]);
    }
    if node.has_mount {
        words.extend(["--mount".into(), plan.mount.clone().into()]);
    }
    let said = runner.run(&node.host, &words, limit, false)?;
    if said.code != 0 {
        return Err(said.why());
    }
    let facts: Value = serde_json::from_str(said.stdout.trim())
        .map_err(|_| format!("it says '{}'", shown(said.stdout.trim())))?;
    understood(&facts, print)
}

fn understood(facts: &Value, print: &str) -> Result<Found, String> {
    if let Some(error) = facts["error"].as_str() {
        return Err(shown(error));
    }
    if facts["file"] != print {
        return Err("its file of the cluster is not the one here; copy it there".into());
    }
    let servers = facts["servers"].as_array().cloned().unwrap_or_default();
    let those = |what: &str| {
        let with = servers.iter().filter(|server| server[what] == true);
        let ids = with.filter_map(|server| server["id"].as_u64()?.try_into().ok());
        ids.collect()
    };
    Ok(Found {
        running: those("runs"),
        serving: those("serves"),
        is_mounted: facts["mounted"] == true,
    })
}

/// Data servers, then the metadata server, then mounts.
fn start<'a>(
    plan: &'a Plan,
    found: &[Found],
    args: &StartArgs,
    begun: &mut Begun<'a>,
) -> Result<(), Vec<String>> {
    let limit = args.timeout;
    let runs = |id: u16| found.iter().any(|one| one.running.contains(&id));
    for metadata in [false, true] {
        let servers = plan.servers(|server| server.metadata == metadata && !runs(server.id));
        let done = for_each(&servers, |(server, host)| {
            start_server(plan, (server, host), args)
        });
        begun.servers.extend(may_run(&servers, &done));
        all_of(done)?;
        let starting = |server: &Server| !found.iter().any(|one| one.serving.contains(&server.id));
        let servers = plan
            .servers(|server| server.metadata == metadata && runs(server.id) && starting(server));
        all_of(for_each(&servers, |(server, host)| {
            await_server(plan, (server, host), limit)
        }))?;
    }
    let mounts: Vec<&str> = plan
        .nodes
        .iter()
        .zip(found)
        .filter(|(node, found)| node.has_mount && !found.is_mounted)
        .map(|(node, _)| node.host.as_str())
        .collect();
    let done = for_each(&mounts, |host| start_mount(plan, host, limit));
    begun.mounts.extend(may_run(&mounts, &done));
    all_of(done)
}

/// What is to be stopped if the start fails.
fn may_run<T: Copy>(what: &[T], done: &[Result<(), NotUp>]) -> Vec<T> {
    let with = what.iter().zip(done);
    with.filter(|(_, done)| done.as_ref().err().is_none_or(|not| not.may_run))
        .map(|(one, _)| *one)
        .collect()
}

fn all_of(done: Vec<Result<(), NotUp>>) -> Result<(), Vec<String>> {
    let failed = done.into_iter().filter_map(Result::err);
    let failed: Vec<String> = failed.map(|not| not.line).collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(failed),
    }
}

fn start_server(
    plan: &Plan,
    (server, host): (&Server, &str),
    args: &StartArgs,
) -> Result<(), NotUp> {
    let mut words = plan.words(["server", "--config"]);
    words.push(plan.config.clone().into());
    words.extend(["--id".into(), OsString::from(server.id.to_string())]);
    if !args.no_restart && !plan.runner.via.ends_what_it_leaves() {
        words.push("--restart".into());
    }
    let is_there = |found: &Found| found.serving.contains(&server.id);
    let what = format!("server-{}", server.id);
    bring_up(plan, (host, &what), words, args.timeout, is_there)
}

/// Waits for a server that is starting already.
fn await_server(
    plan: &Plan,
    (server, host): (&Server, &str),
    limit: Duration,
) -> Result<(), NotUp> {
    let Some(node) = plan.nodes.iter().find(|node| node.host == host) else {
        return Err(NotUp::refused(format!("{host}: no node of the cluster")));
    };
    let print =
        fingerprint(&plan.config).map_err(|error| NotUp::refused(crate::exit::reason(&error)))?;
    let begun = Instant::now();
    while begun.elapsed() < limit && !plan.runner.is_interrupted() {
        let found = look_at(plan, &plan.runner, node, &print, LOOK_LIMIT)
            .map_err(|why| NotUp::refused(format!("{host}: {why}")))?;
        if found.serving.contains(&server.id) {
            return Ok(());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Err(NotUp::refused(format!(
        "{host}: server {} is starting, and does not serve in time; see {}",
        server.id,
        server.state.join(crate::state::LOG).display()
    )))
}

fn start_mount(plan: &Plan, host: &str, limit: Duration) -> Result<(), NotUp> {
    let mut words = plan.words(["mount", "--config"]);
    words.extend([plan.config.clone().into(), plan.mount.clone().into()]);
    bring_up(plan, (host, "mount"), words, limit, |found| {
        found.is_mounted
    })
}

/// Starts what goes on, and waits until it serves.
fn bring_up(
    plan: &Plan,
    (host, what): (&str, &str),
    mut words: Vec<OsString>,
    limit: Duration,
    is_there: impl Fn(&Found) -> bool,
) -> Result<(), NotUp> {
    if plan.runner.via.ends_what_it_leaves() {
        return stay(plan, (host, what), &words, limit, is_there);
    }
    words.push("--detach".into());
    let said = plan.runner.run(host, &words, limit, false);
    match said.map_err(|why| NotUp::unknown(format!("{host}: {why}")))? {
        said if said.code == 0 => {
            out::print(&format!("{host}: {}\n", shown(said.stdout.trim())));
            Ok(())
        }
        said => Err(NotUp::of_code(said.code, format!("{host}: {}", said.why()))),
    }
}

/// In a step of the job, which lives as long as it.
fn stay(
    plan: &Plan,
    (host, what): (&str, &str),
    words: &[OsString],
    limit: Duration,
    is_there: impl Fn(&Found) -> bool,
) -> Result<(), NotUp> {
    let line = |error: std::io::Error| format!("{host}: {}", crate::exit::reason(&error));
    let at = |error| NotUp::refused(line(error));
    let (file, path) = log_of(&format!("{}.{host}.{what}.log", plan.cluster.name)).map_err(at)?;
    let mut child = plan.runner.keep(host, words, file).map_err(at)?;
    let begun = Instant::now();
    let at = |error| NotUp::unknown(line(error));
    let print = fingerprint(&plan.config).map_err(at)?;
    let Some(node) = plan.nodes.iter().find(|node| node.host == host) else {
        return Err(NotUp::unknown(format!("{host}: no node of the cluster")));
    };
    while begun.elapsed() < limit && !plan.runner.is_interrupted() {
        let looked = look_at(plan, &plan.runner, node, &print, LOOK_LIMIT);
        // After the look: what is there may be somebody else's, which this one has made way for.
        if let Some(status) = child.try_wait().map_err(at)? {
            return Err(NotUp::refused(format!(
                "{host}: {what} has ended ({status}); see {}",
                path.display()
            )));
        }
        if looked.is_ok_and(|found| is_there(&found)) {
            out::print(&format!(
                "{host}: {what} serves; its log is {}\n",
                path.display()
            ));
            return Ok(());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Err(NotUp::unknown(format!(
        "{host}: {what} does not answer in time; see {}",
        path.display()
    )))
}

/// Takes back what was begun; what could not be.
fn undo(plan: &Plan, begun: &Begun<'_>) -> Vec<String> {
    let runner = Runner {
        via: plan.runner.via.clone(),
        // The first Ctrl-C has led here; a second one ends all of it.
        signals: Signals::never(),
    };
    let mut failed = Vec::new();
    let done = for_each(&begun.mounts, |host| {
        unmount(plan, &runner, host, UNDO_LIMIT)
    });
    failed.extend(
        done.into_iter()
            .filter_map(Result::err)
            .map(|(_, line)| line),
    );
    for metadata in [true, false] {
        let servers = begun.servers.iter().copied();
        let servers: Vec<_> = servers
            .filter(|(server, _)| server.metadata == metadata)
            .collect();
        let done = for_each(&servers, |(server, host)| {
            // Also one that does not run: something may be about to start it again.
            down(plan, &runner, (server, host), &[], UNDO_LIMIT).map(drop)
        });
        failed.extend(done.into_iter().filter_map(Result::err));
    }
    failed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_refused_is_not_taken_back() {
        let line = || "n1: server 2 runs already".to_string();
        let done = [
            Ok(()),
            Err(NotUp::of_code(1, line())),
            Err(NotUp::of_code(255, line())),
            Err(NotUp::unknown(line())),
            Err(NotUp::refused(line())),
        ];
        assert_eq!(may_run(&[1, 2, 3, 4, 5], &done), [1, 3, 4]);
        assert_eq!(all_of(Vec::from(done)).map_err(|lines| lines.len()), Err(4));
    }

    #[test]
    fn what_a_node_says_is_understood() {
        let said = json!({
            "file": "1", "mounted": true,
            "servers": [{"id": 2, "runs": true, "serves": true}, {"id": 3, "runs": true, "serves": false}],
        });
        let found = Found {
            running: vec![2, 3],
            serving: vec![2],
            is_mounted: true,
        };
        assert_eq!(understood(&said, "1"), Ok(found));
        assert!(understood(&said, "2").is_err_and(|why| why.contains("not the one here")));
        let refused = understood(&json!({"error": "no key\x1b"}), "1");
        assert_eq!(refused, Err("no key\\x1b".into()));
        assert!(understood(&json!(7), "1").is_err());
    }
}
