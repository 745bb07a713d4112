//! How a command gets to another node: ssh, srun, or a command of the user's own.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{Command, Stdio};

/// Where a template has the node's name.
const HOST: &str = "{host}";
/// Where a template has the command as one word for a shell.
const COMMAND: &str = "{command}";
/// A node that does not answer by then is away, seconds.
const CONNECT_S: &str = "15";

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// Of OpenSSH. Nobody is asked for a password.
    Ssh,
    /// A step of the Slurm job that this runs in.
    Srun,
    /// Words, one of which has `{host}`. With `{command}` in one, the command is put there, quoted
    /// for a shell; else its words follow as they are.
    Template(Vec<String>),
}

impl Via {
    /// As it is given on the command line.
    pub fn parse(text: &str) -> Result<Via, String> {
        match text {
            "ssh" => Ok(Via::Ssh),
            "srun" => Ok(Via::Srun),
            _ if text.contains(HOST) => Ok(Via::Template(
                text.split_whitespace().map(str::to_string).collect(),
            )),
            _ => Err(
                "it is ssh, srun, or a command with {host} in it, such as 'nsenter --net=/run/netns/{host}'"
                    .into(),
            ),
        }
    }

    /// Within a Slurm job srun, else ssh.
    pub fn usual() -> Via {
        match std::env::var_os("SLURM_JOB_ID") {
            Some(id) if !id.is_empty() => Via::Srun,
            _ => Via::Ssh,
        }
    }

    /// Whether what a command leaves running there ends with the command: then the command stays.
    pub fn ends_what_it_leaves(&self) -> bool {
        *self == Via::Srun
    }

    /// The command that runs `words` on a node.
    pub fn command(&self, host: &str, words: &[OsString]) -> Command {
        let mut line: Vec<OsString> = Vec::new();
        match self {
            Via::Ssh => {
                line.extend(["ssh", "-x", "-T", "-o", "BatchMode=yes", "-o"].map(OsString::from));
                line.push(format!("ConnectTimeout={CONNECT_S}").into());
                line.extend(["-o", "ServerAliveInterval=15", "--", host].map(OsString::from));
                line.push(shell_line(words));
            }
            Via::Srun => {
                line.extend(["srun", "--overlap", "--quiet"].map(OsString::from));
                line.extend(["--nodes=1", "--ntasks=1"].map(OsString::from));
                line.push(format!("--nodelist={host}").into());
                line.extend(words.iter().cloned());
            }
            Via::Template(template) => {
                let is_quoted = template.iter().any(|word| word.contains(COMMAND));
                let command = shell_line(words);
                let filled = template.iter().map(|word| fill(word, host, &command));
                line.extend(filled);
                if !is_quoted {
                    line.extend(words.iter().cloned());
                }
            }
        }
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).stdin(Stdio::null());
        command
    }
}

/// The host is put in first: a command may have the word `{host}` in it.
fn fill(word: &str, host: &str, command: &OsStr) -> OsString {
    let word = word.replace(HOST, host);
    let mut filled = Vec::new();
    let mut parts = word.split(COMMAND);
    filled.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        filled.extend_from_slice(command.as_bytes());
        filled.extend_from_slice(part.as_bytes());
    }
    OsString::from_vec(filled)
}

/// Words for the shell at the other end, whichever the user's is.
fn shell_line(words: &[OsString]) -> OsString {
    let quoted: Vec<Vec<u8>> = words.iter().map(|word| quote(word)).collect();
    OsString::from_vec(quoted.join(&b' '))
}

/// One word for sh, csh and fish alike: all within single quotes, but for what one of them sees
/// even there.
fn quote(word: &OsStr) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for &byte in word.as_bytes() {
        match byte {
            b'\'' | b'!' | b'\\' => quoted.extend([b'\'', b'\\', byte, b'\'']),
            _ => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(via: &Via, words: &[&str]) -> Vec<String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let command = via.command("n1", &words);
        let all = std::iter::once(command.get_program()).chain(command.get_args());
        all.map(|word| word.to_str().expect("text").to_string())
            .collect()
    }

    #[test]
    fn each_way_has_its_own_line() {
        let ssh = line(&Via::Ssh, &["/bin/forebay", "a b"]);
        assert_eq!(ssh[ssh.len() - 3..], ["--", "n1", "'/bin/forebay' 'a b'"]);
        let srun = line(&Via::Srun, &["/bin/forebay", "a b"]);
        assert_eq!(srun[5..], ["--nodelist=n1", "/bin/forebay", "a b"]);
        let own = Via::parse("ip netns exec {host}").expect("a template");
        let own = line(&own, &["x", "{host} {command}"]);
        assert_eq!(own, ["ip", "netns", "exec", "n1", "x", "{host} {command}"]);
        let quoted = Via::parse("ssh -J gate {host} {command}").expect("a template");
        let quoted = line(&quoted, &["x", "{host}"]);
        assert_eq!(quoted, ["ssh", "-J", "gate", "n1", "'x' '{host}'"]);
        assert!(Via::parse("rsh").is_err());
    }

    #[test]
    fn a_shell_gives_every_word_back_as_it_was() {
        let odd = "a 'b' \"c\" $(touch x) `y`; & | > \\ ! \\! * ~ # \n{host} ä";
        let words = ["printf", "%s|", odd, "", "-e", "$HOME"].map(OsString::from);
        let said = Command::new("sh")
            .arg("-c")
            .arg(shell_line(&words))
            .output();
        let said = said.expect("sh").stdout;
        assert_eq!(said, format!("{odd}||-e|$HOME|").into_bytes());
    }
}
