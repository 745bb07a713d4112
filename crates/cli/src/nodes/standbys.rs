//! Metadata servers that stand by, as `forebay cluster stop` ends them: before the one that leads,
//! so that none of them takes over from that.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_types::Errno;

use super::plan::Plan;
use super::run::{for_each, shown};
use crate::cluster::config::Server;
use crate::control::{AskError, Daemon};
use crate::exit::{Exit, Explain, Failure};
use crate::out;
use crate::state::{self, Holder};
use crate::status::name_of;
use crate::up::keeper;

/// A question, or the end of a server that stands by, takes no longer.
const LIMIT: Duration = Duration::from_secs(60);
/// A server that stands by has nothing to look after, and ends within this time.
const END_LIMIT: Duration = Duration::from_secs(30);

/// What a metadata server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It serves names.
    Leads,
    /// It waits until the one that leads has gone.
    StandsBy,
    /// It does not run.
    Down,
}

impl Standing {
    const ALL: [(Standing, &str); 3] = [
        (Standing::Leads, "leads"),
        (Standing::StandsBy, "stands by"),
        (Standing::Down, "does not run"),
    ];

    /// Of a server of this node.
    ///
    /// # Errors
    /// It does not say; also while it starts or ends.
    pub fn of(state: &Path) -> Result<Standing, Failure> {
        match at(state)? {
            None => Ok(Standing::Down),
            Some(daemon) => match status(&daemon)?.standby {
                Some(_) => Ok(Standing::StandsBy),
                None => Ok(Standing::Leads),
            },
        }
    }

    /// For the command that has asked.
    pub fn word(self) -> &'static str {
        let mut all = Standing::ALL.iter();
        all.find(|(one, _)| *one == self)
            .map_or("", |(_, word)| word)
    }

    fn of_word(word: &str) -> Option<Standing> {
        let mut all = Standing::ALL.iter();
        all.find(|(_, one)| *one == word).map(|(one, _)| *one)
    }
}

/// Metadata servers, and where they are.
type Servers<'a> = Vec<(&'a Server, &'a str)>;

/// Ends all that stand by. Who is left to stop, and how many do not answer.
pub fn stop<'a>(plan: &'a Plan, no_drain: bool) -> Result<(Servers<'a>, usize), Failure> {
    let all = plan.servers(|server| server.metadata);
    if !plan.cluster.has_standby() {
        return Ok((all, 0));
    }
    let asked = for_each(&all, |one| ask(plan, one));
    let with = all.iter().zip(&asked);
    let silent = with.filter_map(|(one, asked)| asked.as_ref().err().map(|line| (*one, line)));
    let silent: Vec<_> = silent.collect();
    silent.iter().for_each(|(_, line)| out::complain(line));
    let those = |which: Standing| -> Servers<'a> {
        let with = all.iter().zip(&asked);
        with.filter(|(_, asked)| asked.as_ref() == Ok(&which))
            .map(|(one, _)| *one)
            .collect()
    };
    let (leaders, standbys) = (those(Standing::Leads), those(Standing::StandsBy));
    if plan.runner.is_interrupted() {
        return Err(not_stopped(plan, "interrupted"));
    }
    if leaders.is_empty() && !no_drain {
        return match (standbys.len(), silent.len()) {
            (0, 0) => Ok((all, 0)),
            _ => Err(not_stopped(
                plan,
                "no metadata server that answers leads, so that nothing can be drained; try again \
                 when one has taken over, or give --no-drain",
            )),
        };
    }
    // One that has died may be about to be started again, and would lead.
    let ends: Servers<'_> = standbys.into_iter().chain(those(Standing::Down)).collect();
    let ended = for_each(&ends, |one| order(plan, one, "--end-standby"));
    let mut failed = 0;
    for said in ended {
        match said {
            Ok(line) if line.ends_with(Standing::Down.word()) => {}
            Ok(line) => out::print(&format!("{line}\n")),
            Err(line) => {
                failed += 1;
                out::complain(&line);
            }
        }
    }
    match failed {
        0 if no_drain => {
            let silent: Vec<_> = silent.into_iter().map(|(one, _)| one).collect();
            let left = end_silent(plan, &silent);
            Ok((leaders, left))
        }
        0 => Ok((leaders, silent.len())),
        _ => Err(not_stopped(
            plan,
            "a server that stands by would take over; try again",
        )),
    }
}

/// Ends those that run and do not answer; how many are left, each of which is named.
fn end_silent(plan: &Plan, silent: &Servers<'_>) -> usize {
    let ended = for_each(silent, |one| order(plan, one, "--end-silent"));
    let mut left = 0;
    for said in ended {
        match said {
            Ok(line) => out::print(&format!("{line}\n")),
            Err(line) => {
                left += 1;
                out::complain(&format!("{line}; it may still run"));
            }
        }
    }
    left
}

fn not_stopped(plan: &Plan, why: &str) -> Failure {
    Failure {
        errno: None,
        exit: match plan.runner.is_interrupted() {
            true => Exit::Interrupted,
            false => Exit::Partial,
        },
        message: format!(
            "cluster {}: its servers go on: {why}; `forebay cluster start` mounts again",
            plan.cluster.name
        ),
    }
}

fn ask(plan: &Plan, one: &(&Server, &str)) -> Result<Standing, String> {
    let said = order(plan, one, "--standing")?;
    let word = said.rsplit(": ").next().unwrap_or_default();
    Standing::of_word(word).ok_or(said)
}

/// What a server's node says, with its name before it.
fn order(plan: &Plan, (server, host): &(&Server, &str), what: &str) -> Result<String, String> {
    let mut words = plan.words(["cluster", "on-node", what, "--config"]);
    words.push(plan.config.clone().into());
    words.extend(["--id".into(), OsString::from(server.id.to_string())]);
    let at = |why: &str| format!("{host}: server {}: {why}", server.id);
    match plan.runner.run(host, &words, LIMIT, false) {
        Ok(said) if said.code == 0 => Ok(format!("{host}: {}", shown(said.stdout.trim()))),
        Ok(said) => Err(at(&said.why())),
        Err(why) => Err(at(&why)),
    }
}

/// Ends a server of this node if it stands by, and only then: one that leads is to be drained.
///
/// # Errors
/// It leads, or does not end.
pub fn end_here(state: &Path) -> Result<String, Failure> {
    let Some(daemon) = at(state)? else {
        let was_kept = keeper::dismiss(state).explain(state.display(), "")?;
        if at(state)?.is_some() {
            return Err(Failure::fatal(format!(
                "{}: its server has just come; try again",
                state.display()
            )));
        }
        let word = Standing::Down.word();
        return Ok(match was_kept {
            true => format!("{}: {word}, and is not started again", state.display()),
            false => word.into(),
        });
    };
    let bits = status(&daemon)?;
    let name = name_of(&bits);
    let leads = || Failure::fatal(format!("{name}: leads now"));
    if bits.standby.is_none() {
        return Err(leads());
    }
    // The same connection: what takes over in between has closed it, or refuses.
    match daemon.shutdown(false, 0) {
        Ok(()) => {}
        Err(AskError::Refused(Errno::EAGAIN) | AskError::Gone) => return Err(leads()),
        Err(error) => return Err(daemon.failure(error, "stop it")),
    }
    keeper::dismiss(state).explain(state.display(), "")?;
    let begun = Instant::now();
    while matches!(state::holder(state), Ok(Some(Holder::Process(_)))) {
        if begun.elapsed() >= END_LIMIT {
            return Err(Failure::fatal(format!("{name}: does not end")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(format!("{name}: stopped, while it stood by"))
}

fn at(state: &Path) -> Result<Option<Daemon>, Failure> {
    if let Some(daemon) = Daemon::try_connect(state)? {
        return Ok(Some(daemon));
    }
    match state::holder(state) {
        Ok(Some(Holder::Process(_))) => Err(Failure::fatal(format!(
            "{}: its server is starting or stopping; try again in a moment",
            state.display()
        ))),
        _ => Ok(None),
    }
}

fn status(daemon: &Daemon) -> Result<forebay_wire::control::StatusBits, Failure> {
    let status = daemon.status();
    status.map_err(|error| daemon.failure(error, "ask it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_does_gets_there_as_a_word() {
        for (standing, word) in Standing::ALL {
            assert_eq!(standing.word(), word);
            assert_eq!(Standing::of_word(word), Some(standing));
        }
        assert_eq!(Standing::of_word(""), None);
        let folder = tempfile::tempdir().expect("tempdir");
        let none = folder.path().join("none");
        assert!(Standing::of(&none).is_ok_and(|standing| standing == Standing::Down));
        assert!(end_here(&none).is_ok_and(|said| said == "does not run"));
        let _lock = state::Lock::take(folder.path()).expect("lock");
        assert!(Standing::of(folder.path()).is_err(), "it starts");
        assert!(end_here(folder.path()).is_err());
    }
}
