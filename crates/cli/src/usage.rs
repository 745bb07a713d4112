//! What help texts share, and how a wrong command line is reported: one line, exit 1.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::exit::Exit;
use crate::out;

/// The exit codes, as every `--help` ends.
pub const EXIT_CODES: &str = "Exit codes: 0 complete; 1 wrong usage or fatal; 3 partial (each path that failed is named); \
     4 timed out (what is left is named); 5 verification failed; 130 interrupted.";

/// The id of a server, as arguments name it.
pub fn server_id(text: &str) -> Result<u16, String> {
    let wrong = |_| "a server's id is a number such as 2, as in cluster.toml".to_string();
    text.parse().map_err(wrong)
}

/// Prints help and version as clap made them, and errors as one line.
pub fn report(error: &clap::Error) -> Exit {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            out::print(&error.to_string());
            Exit::Complete
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            out::complain("no command given; `forebay --help` lists them");
            Exit::Fatal
        }
        _ => {
            out::complain(&one_line(error));
            Exit::Fatal
        }
    }
}

/// The first paragraph of clap's error on one line, its suggestion, and where the help is.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.lines().map(str::trim).collect();
    let what = words.join(" ");
    let what = what.strip_prefix("error: ").unwrap_or(&what);
    let mut line = what.to_string();
    if let Some(meant) = suggestion(error) {
        line.push_str(&format!("; did you mean '{meant}'?"));
    } else if matches!(
        error.kind(),
        ErrorKind::UnknownArgument
            | ErrorKind::InvalidSubcommand
            | ErrorKind::MissingRequiredArgument
    ) {
        line.push_str("; see --help");
    }
    line
}

fn suggestion(error: &clap::Error) -> Option<String> {
    let kinds = [
        ContextKind::SuggestedArg,
        ContextKind::SuggestedSubcommand,
        ContextKind::SuggestedValue,
    ];
    kinds.iter().find_map(|kind| match error.get(*kind) {
        Some(ContextValue::String(one)) => Some(one.clone()),
        // The nearest is the last.
        Some(ContextValue::Strings(many)) => many.last().cloned(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::*;

    fn error_of(args: &[&str]) -> String {
        let command = Command::new("forebay")
            .subcommands(["stage-out", "status", "stage-in"].map(Command::new))
            .arg(Arg::new("state").long("state").required(true))
            .arg(Arg::new("drain").long("drain").num_args(0));
        one_line(&command.try_get_matches_from(args).unwrap_err())
    }

    #[test]
    fn wrong_usage_is_one_line() {
        let line = error_of(&["forebay", "--drian", "--state", "x"]);
        assert_eq!(
            line,
            "unexpected argument '--drian' found; did you mean '--drain'?"
        );
        let line = error_of(&["forebay"]);
        assert_eq!(
            line,
            "the following required arguments were not provided: --state <state>; see --help"
        );
        let line = error_of(&["forebay", "statsu"]);
        assert_eq!(
            line,
            "unrecognized subcommand 'statsu'; did you mean 'status'?"
        );
    }
}
