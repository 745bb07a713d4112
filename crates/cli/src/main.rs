//! `forebay`: the command line of the burst buffer.
//!
//! One file per command. The commands share:
//!
//! - `exit`: exit codes, errors;
//! - `control`: talking to a running burst buffer;
//! - `mounts`, `instance`: finding a running burst buffer;
//! - `abort`: the end of a mount whose process was killed;
//! - `starter`, `dead`: what starts one again, what a dead one leaves;
//! - `umount`, `fstab`: what umount(8) calls, and lines that mount;
//! - `asked`: one on this node, or a cluster's server over the network;
//! - `paths`: what the user calls a file;
//! - `scratch`: a directory for temporary files;
//! - `show`: tables, bars, progress, JSON.

mod abort;
mod asked;
mod awaited;
mod bench;
mod calibrate;
mod cluster;
mod commit;
mod control;
mod data;
mod dead;
mod doctor;
mod down;
mod ended;
mod exit;
mod fsck;
mod fstab;
mod history;
mod instance;
mod job;
mod kept;
mod keygen;
mod lend;
mod mount;
mod mounts;
mod movement;
mod nodes;
mod out;
mod owners;
mod packaging;
mod paths;
mod plan;
mod policy;
mod prefetch;
mod release;
mod reload;
mod report;
mod scratch;
mod server;
mod show;
mod signals;
mod simulate;
mod stage_in;
mod stage_out;
mod starter;
mod state;
mod status;
mod top;
mod trace;
mod umount;
mod up;
mod usage;
mod web;
mod where_is;
mod whole;
mod within;

use clap::{CommandFactory, Parser, Subcommand};

use exit::{Exit, Failure};

/// Puts memory and flash of this machine in front of a slow file system. Files written under the
/// mount land at the speed of the fast tiers. Forebay copies them to the slow file system by
/// itself, whole and verified. The newest stay for a fast restart.
#[derive(Parser)]
#[command(
    name = "forebay",
    version,
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "Examples:\n",
        "  forebay up --pfs /scratch --mount /bb --state /var/lib/forebay --dram 4GiB --detach\n",
        "  forebay status\n",
        "  forebay stage-out --wait /bb/run7\n",
        "  forebay down --state /var/lib/forebay --drain --timeout 30m\n\n",
        "Sizes: 4GiB, 500MB, 1.5T, plain bytes. Durations: 200ms, 30s, 5m, 1.5h, plain seconds.\n\n",
        "Exit codes: 0 complete; 1 wrong usage or fatal; 3 partial (each path that failed is ",
        "named); 4 timed out (what is left is named); 5 verification failed; 130 interrupted."
    )
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Up(Box<up::UpArgs>),
    Down(down::DownArgs),
    Server(server::ServerArgs),
    Cluster(nodes::ClusterArgs),
    Mount(Box<mount::MountArgs>),
    Status(status::StatusArgs),
    Top(top::TopArgs),
    Where(where_is::WhereArgs),
    StageIn(stage_in::StageInArgs),
    StageOut(stage_out::StageOutArgs),
    Prefetch(prefetch::PrefetchArgs),
    Release(release::ReleaseArgs),
    Commit(commit::CommitArgs),
    Fsck(fsck::FsckArgs),
    Doctor(doctor::DoctorArgs),
    Bench(bench::BenchArgs),
    Calibrate(calibrate::CalibrateArgs),
    Plan(plan::PlanArgs),
    Policy(policy::PolicyArgs),
    Reload(reload::ReloadArgs),
    Lend(lend::LendArgs),
    History(history::HistoryArgs),
    Report(report::ReportArgs),
    Simulate(simulate::SimulateArgs),
    Trace(trace::TraceArgs),
    Keygen(keygen::KeygenArgs),
    Packaging(packaging::PackagingArgs),
}

impl Command {
    fn run(&self) -> Result<Exit, Failure> {
        match self {
            Command::Up(args) => up::run(args),
            Command::Down(args) => down::run(args),
            Command::Server(args) => server::run(args),
            Command::Cluster(args) => nodes::run(args),
            Command::Mount(args) => mount::run(args),
            Command::Status(args) => status::run(args),
            Command::Top(args) => top::run(args),
            Command::Where(args) => where_is::run(args),
            Command::StageIn(args) => stage_in::run(args),
            Command::StageOut(args) => stage_out::run(args),
            Command::Prefetch(args) => prefetch::run(args),
            Command::Release(args) => release::run(args),
            Command::Commit(args) => commit::run(args),
            Command::Fsck(args) => fsck::run(args),
            Command::Doctor(args) => doctor::run(args),
            Command::Bench(args) => bench::run(args),
            Command::Calibrate(args) => calibrate::run(args),
            Command::Plan(args) => plan::run(args),
            Command::Policy(args) => policy::run(args),
            Command::Reload(args) => reload::run(args),
            Command::Lend(args) => lend::run(args),
            Command::History(args) => history::run(args),
            Command::Report(args) => report::run(args),
            Command::Simulate(args) => simulate::run(args),
            Command::Trace(args) => trace::run(args),
            Command::Keygen(args) => keygen::run(args),
            Command::Packaging(args) => packaging::run(args, Cli::command()),
        }
    }
}

fn main() -> std::process::ExitCode {
    let mut args = std::env::args_os();
    if abort::is_called(args.next().as_ref()) {
        return match abort::run(args) {
            Ok(()) => Exit::Complete.into(),
            // Its standard error is nobody's.
            Err(_) => Exit::Fatal.into(),
        };
    }
    let name = std::env::args_os().next();
    if umount::is_called(name.as_ref()) {
        return umount::run(args).into();
    }
    if mount::generator::is_called(name.as_ref()) {
        return exit_of(mount::generator::run(args).map(|()| Exit::Complete));
    }
    let done = match mount::is_called_by_mount(name.as_ref()) {
        true => mount::run_for_mount(args),
        false => match Cli::try_parse() {
            Ok(cli) => cli.command.run(),
            Err(error) => Ok(usage::report(&error)),
        },
    };
    exit_of(done)
}

fn exit_of(done: Result<Exit, Failure>) -> std::process::ExitCode {
    let exit = done.unwrap_or_else(|failure| {
        out::fail(&failure.message);
        failure.exit
    });
    exit.into()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_help_with_an_example_and_exit_codes() {
        for command in super::Cli::command().get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            let name = command.get_name().to_string();
            assert!(
                help.contains(&format!("forebay {name}")),
                "{name}: no example"
            );
            assert!(help.contains("Exit codes"), "{name}: no exit codes");
        }
    }

    #[test]
    fn a_commit_takes_versions_and_does_not_recurse() {
        let mut cli = super::Cli::command();
        let commit = cli.find_subcommand_mut("commit").expect("commit");
        let help = commit.render_long_help().to_string();
        assert!(help.contains("Versions, below the mount"), "{help}");
        assert!(!help.contains("recurse"), "{help}");
    }

    /// A line that is too long is wrapped, and what is behind a comment's break is no comment. So
    /// no line is wrapped on a terminal of 80 columns.
    #[test]
    fn the_configuration_in_the_help_is_printed_as_it_is() {
        for (name, sample) in [
            ("up", include_str!("up/sample.toml")),
            ("server", include_str!("cluster/sample.toml")),
        ] {
            let mut cli = super::Cli::command();
            let command = cli.find_subcommand_mut(name).expect(name);
            let mut command = command.clone().term_width(80);
            let help = command.render_long_help().to_string();
            let (_, printed) = help.split_once("all its keys:\n\n").expect(name);
            let count = sample.lines().count();
            let printed: Vec<&str> = printed.lines().take(count).collect();
            let lines: Vec<&str> = sample.lines().collect();
            assert_eq!(printed, lines, "{name}");
            let copied: Result<toml::Table, _> = toml::from_str(&printed.join("\n"));
            assert!(copied.is_ok(), "{name}: {copied:?}");
        }
    }

    /// Prose is broken once, by what prints it: a break of its own leaves ragged lines.
    #[test]
    fn prose_of_helps_has_no_breaks_of_its_own() {
        let mut cli = super::Cli::command();
        for command in cli.get_subcommands_mut() {
            let name = command.get_name().to_string();
            let help = command.get_after_long_help().map(ToString::to_string);
            let help = help.unwrap_or_default();
            for paragraph in help.split("\n\n").filter(|p| !p.contains(" = ")) {
                let lines: Vec<&str> = paragraph.lines().collect();
                for two in lines.windows(2).filter(|two| !two[1].starts_with(' ')) {
                    let ends = two[0].ends_with(['.', ':']) || two[0].starts_with(' ');
                    assert!(ends, "{name}: {two:?}");
                }
            }
        }
    }
}
