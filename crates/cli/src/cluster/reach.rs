//! Which of the metadata servers of a cluster leads: the one that lets a client in.

use std::sync::mpsc;

use forebay_wire::Key;
use forebay_wire::net::{ConnectError, NetConfig, NetConnection};

use super::config::Cluster;

impl Cluster {
    /// How to reach each of the metadata servers: one config each, to be completed by the caller.
    pub fn ways(&self, key: &Key) -> Vec<NetConfig> {
        let ways = self.metadata_servers().map(|server| {
            let others = self
                .metadata_servers()
                .filter(|other| other.id != server.id);
            NetConfig {
                addresses: server.addresses.clone(),
                elsewhere: others.flat_map(|other| other.addresses.clone()).collect(),
                ..NetConfig::new(&self.name, key.clone())
            }
        });
        ways.collect()
    }
}

/// Connects to the server that leads. All are asked at the same time: of those that do not lead,
/// one whose node is dead would be waited for.
///
/// # Errors
/// One line for a person.
pub fn connect(ways: Vec<NetConfig>) -> Result<NetConnection, String> {
    let told = |error: ConnectError| format!("{error}{}", todo(&error));
    let ways = match <[NetConfig; 1]>::try_from(ways) {
        Ok([only]) => return NetConnection::connect(only).map_err(told),
        Err(ways) => ways,
    };
    let (say, said) = mpsc::channel();
    for way in ways {
        let say = say.clone();
        let asked = std::thread::Builder::new()
            .name("fb-dial".into())
            .spawn(move || {
                // If nobody listens any more another one leads, and this session ends.
                drop(say.send(NetConnection::connect(way)));
            });
        asked.map_err(|error| format!("a thread: {error}"))?;
    }
    drop(say);
    let mut refused = Vec::new();
    for answer in said {
        match answer {
            Ok(connection) => return Ok(connection),
            Err(error) => refused.push(error),
        }
    }
    Err(why(refused))
}

/// A refusal says more than a server that does not lead, and so does not listen.
fn why(refused: Vec<ConnectError>) -> String {
    let is_absent = |error: &ConnectError| {
        matches!(
            error,
            ConnectError::Unreachable { .. } | ConnectError::Silent { .. }
        )
    };
    if let Some(error) = refused.iter().find(|error| !is_absent(error)) {
        return error.to_string();
    }
    let all: Vec<String> = refused.iter().map(ToString::to_string).collect();
    format!(
        "no metadata server leads: {}; is `forebay server` running there? One that is only starting answers later",
        all.join("; ")
    )
}

/// What to do about it, where the error does not say so itself.
fn todo(error: &ConnectError) -> &'static str {
    match error {
        ConnectError::Unreachable { .. } | ConnectError::Silent { .. } => {
            "; is `forebay server` running there? One that is only starting answers later"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_lead_is_named_only_where_nobody_refuses() {
        let silent = |server: &str| ConnectError::Silent {
            server: server.into(),
        };
        let key = ConnectError::Key { server: "b".into() };
        let line = why(vec![silent("a"), key]);
        assert!(line.starts_with("b has another key"), "{line}");
        let line = why(vec![silent("a"), silent("c")]);
        let both =
            "no metadata server leads: a did not answer in time; c did not answer in time; is ";
        assert!(line.starts_with(both), "{line}");
    }
}
