//! Manual pages and completions, made from the commands themselves.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::exit::{Exit, Explain, Failure};

const PROGRAM: &str = "forebay";
/// Names that the completions are loaded by.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash/forebay"),
    (Shell::Zsh, "zsh/_forebay"),
    (Shell::Fish, "fish/forebay.fish"),
];

/// `man1/` and `completions/` below `dir`; the date stands in the pages.
pub fn write(dir: &Path, date: &str, program: Command) -> Result<Exit, Failure> {
    let written = completions(dir, program.clone()).and_then(|()| manual(dir, date, program));
    written.explain(dir.display(), "")?;
    Ok(Exit::Complete)
}

fn completions(dir: &Path, mut program: Command) -> io::Result<()> {
    for (shell, name) in COMPLETIONS {
        let path = dir.join("completions").join(name);
        fs::create_dir_all(path.parent().unwrap_or(dir))?;
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut program, PROGRAM, &mut text);
        fs::write(path, text)?;
    }
    Ok(())
}

fn manual(dir: &Path, date: &str, program: Command) -> io::Result<()> {
    let pages = dir.join("man1");
    fs::create_dir_all(&pages)?;
    // Their text is that of the pages.
    let mut program = program
        .disable_help_subcommand(true)
        .mut_subcommands(|command| command.disable_help_subcommand(true));
    program.build();
    pages_of(&program, &pages, date)
}

/// A page for the command and each below it.
fn pages_of(command: &Command, pages: &Path, date: &str) -> io::Result<()> {
    for below in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        pages_of(below, pages, date)?;
    }
    let man = Man::new(command.clone()).manual("Forebay").date(date);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.get_subcommands().any(|c| !c.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    notes(command, &mut page)?;
    fs::write(pages.join(man.get_filename()), page)
}

/// What stands behind the options in the help, line by line: it has examples and a configuration
/// file, which a page would run together.
fn notes(command: &Command, page: &mut dyn Write) -> io::Result<()> {
    let help = command.get_after_long_help().or(command.get_after_help());
    let Some(help) = help.map(ToString::to_string) else {
        return Ok(());
    };
    let mut roff = Roff::new();
    roff.control("SH", ["NOTES"]);
    roff.control("nf", []);
    for line in help.trim_end().lines() {
        match line.is_empty() {
            true => roff.control("sp", []),
            false => roff.text([roman(line)]),
        };
    }
    roff.control("fi", []);
    roff.to_writer(page)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_help_line_by_line() {
        let folder = tempfile::tempdir().expect("tempdir");
        let program = crate::Cli::command();
        assert!(write(folder.path(), "2026-11-27", program.clone()).is_ok());
        let page = |name: &str| {
            let path = folder.path().join(format!("man1/{name}.1"));
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        for command in program.get_subcommands().filter(|c| !c.is_hide_set()) {
            let text = page(&format!("forebay-{}", command.get_name()));
            assert!(text.contains("\n.SH NOTES\n"), "{text}");
        }
        assert!(page("forebay").contains(".SH SUBCOMMANDS"));
        assert!(page("forebay-cluster-start").contains(".SH SYNOPSIS"));
        let up = page("forebay-up").replace("\\-", "-");
        for line in include_str!("../up/sample.toml").lines().take(3) {
            assert!(up.contains(line), "{line}");
        }
        let hidden = folder.path().join("man1/forebay-packaging.1");
        assert!(!hidden.exists(), "a page of a hidden command");
        let help = folder.path().join("man1/forebay-cluster-help.1");
        assert!(!help.exists(), "a page of a help");
        for (_, name) in COMPLETIONS {
            let text = fs::read_to_string(folder.path().join("completions").join(name));
            let text = text.expect(name);
            assert!(text.contains("stage-out"), "{name}");
        }
    }
}
