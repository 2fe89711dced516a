//! `terrace`: the command line.
//!
//! **Depends on** arguments, files and screens. **Must not depend on** how anything works: each
//! command is one file that calls a layer below and shows the answer.
//!
//! Exit codes: 0 when the command was done, 1 when it failed, 2 when the request cannot be done
//! (bad arguments, bad files, missing rights); then nothing was changed.
#![forbid(unsafe_code)]
// They panic when the reader has gone; see show.rs.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod caches;
mod cli;
mod compare;
mod completions;
mod coverage;
mod daemon;
mod dram;
mod estimate;
mod export;
mod fleet;
mod groups;
mod guard;
mod heatmap;
mod import;
mod info;
mod init;
mod lab;
mod machines;
mod man;
mod numactl;
mod output;
mod pages;
mod plan;
mod policies;
mod profile;
mod progress;
mod rack;
mod record;
mod renamed;
mod replay;
mod report;
mod reproduce;
mod restore;
mod run;
mod schema;
mod show;
mod signals;
mod sweep;
mod terminal;
mod top;
mod watch;
mod windows;
mod workloads;

use std::process::ExitCode;

use clap::FromArgMatches;
use terrace_core::InputError;

fn main() -> ExitCode {
    terrace_identity::set(terrace_identity::this_build!());
    let words: Vec<_> = std::env::args_os().collect();
    let cli = groups::read(&words)
        .and_then(|read| cli::Cli::from_arg_matches(&read))
        .unwrap_or_else(|error| error.exit());
    let filter = tracing_subscriber::EnvFilter::try_from_env("TERRACE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .without_time()
        .with_target(false)
        .log_internal_errors(false)
        .init();
    for warning in renamed::warnings(std::env::args()) {
        show::tell!("terrace: {warning}");
    }
    match cli.command.execute() {
        Ok(code) => code,
        Err(error) => {
            show::tell!("terrace: {}", one_line(&error));
            ExitCode::from(if error.chain().any(|e| e.is::<InputError>()) { 2 } else { 1 })
        }
    }
}

/// An error and its causes on one line; many an error already contains its cause.
fn one_line(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    InputError::new(text).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_and_names_each_cause_once() {
        let error = anyhow::anyhow!("no room\n  in 'x'").context("run 'x'");
        assert_eq!(one_line(&error), "run 'x': no room in 'x'");
        let error = anyhow::anyhow!("no room").context("group 'g': no room").context("stopped");
        assert_eq!(one_line(&error), "stopped: group 'g': no room");
    }
}
