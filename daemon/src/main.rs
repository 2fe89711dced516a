//! `terraced`: the daemon's program.
//!
//! Exit codes as of `terrace`: 0 done, 1 failed, 2 impossible request. The unit restarts it after 1
//! and not after 2, which a restart cannot help.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::fmt::Display;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use clap::Parser;
use signal_hook::consts::SIGHUP;
use terrace_daemon::board::Board;
use terrace_daemon::cli::{Cli, Command};
use terrace_daemon::live::Live;
use terrace_daemon::notify::Notifier;
use terrace_daemon::waiting::{self, CannotOpen};
use terrace_daemon::{Config, Service, control, http, preflight};
use terrace_linux::conflicts::{self, Severity};
use terrace_linux::roots::Roots;
use terrace_linux::{GuardCommand, Host, session, termination};

/// Why it ended: the exit code and one line.
struct Failed(u8, String);

fn refuse(text: impl Display) -> Failed {
    Failed(2, text.to_string())
}

fn fail(text: impl Display) -> Failed {
    Failed(1, text.to_string())
}

fn say(text: impl Display) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

fn main() -> ExitCode {
    terrace_identity::set(terrace_identity::this_build!());
    let cli = Cli::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("TERRACE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .log_internal_errors(false)
        .init();
    let done = match cli.command {
        Command::Run { config, dry_run, wait } => run(config, dry_run, wait),
        Command::Check { config, host } => check(config, host),
        Command::Restore => restore(),
        Command::Guard { journal, run } => {
            let errors = terrace_linux::guard_main(&journal, &run);
            match errors.into_iter().next() {
                None => Ok(()),
                Some(e) => Err(fail(format!("not restored: {e}; 'terraced restore' tries again"))),
            }
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed(code, text)) => {
            let text = text.lines().map(str::trim).collect::<Vec<_>>().join(" ");
            let _ = writeln!(std::io::stderr().lock(), "terraced: {text}");
            ExitCode::from(code)
        }
    }
}

fn check(path: PathBuf, host: bool) -> Result<(), Failed> {
    let config = read(&path)?;
    if host {
        privileged()?;
        let options = terrace_daemon::live::options(&config, Roots::default());
        let (topology, found) = Host::inspect(&options).map_err(refuse)?;
        say(format_args!(
            "fast nodes {:?}, slow nodes {:?} (by {})",
            topology.fast_nodes(),
            topology.slow_nodes(),
            topology.source
        ));
        for conflict in &found {
            say(conflict);
        }
        Host::check_start(&options, &found).map_err(refuse)?;
    }
    say(format_args!("{}: {} groups, no fault found", path.display(), config.groups.len()));
    Ok(())
}

/// Reads a configuration and checks it against the files of this system.
fn read(path: &Path) -> Result<Config, Failed> {
    let config = Config::read(path).map_err(refuse)?;
    preflight::check(&config, Path::new(control::GROUPS))
        .map_err(|e| refuse(format!("{}: {e}", path.display())))?;
    Ok(config)
}

/// Takes a changed configuration; where it has a fault, the one before stays in force.
fn read_again(path: &Path, config: &mut Config) {
    match read(path) {
        Ok(new) => *config = new,
        Err(Failed(_, error)) => tracing::error!(error, "the configuration was not reloaded"),
    }
}

fn privileged() -> Result<(), Failed> {
    let lacking = conflicts::privileges(&Roots::default()).map_err(refuse)?;
    match lacking.iter().find(|c| c.severity == Severity::Fatal) {
        Some(conflict) => Err(refuse(conflict)),
        None => Ok(()),
    }
}

fn restore() -> Result<(), Failed> {
    privileged()?;
    match session::restore_leftover(&Roots::default()).map_err(fail)? {
        0 => say("nothing to restore"),
        1 => say("1 change undone"),
        changes => say(format_args!("{changes} changes undone")),
    }
    Ok(())
}

fn run(path: PathBuf, dry_run: bool, wait: bool) -> Result<(), Failed> {
    // A reload reads it again, whatever the working directory is then.
    let path = std::path::absolute(&path).map_err(refuse)?;
    let mut config = read(&path)?;
    config.daemon.dry_run |= dry_run;
    privileged()?;
    let mut notifier = Notifier::from_environment()
        .map_err(|e| refuse(format!("NOTIFY_SOCKET: {e}; expected a Unix socket")))?;
    let stop = termination::stop_flag().map_err(fail)?;
    let reload = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGHUP, Arc::clone(&reload)).map_err(fail)?;
    let board = Arc::new(Board::default());
    let daemon = &config.daemon;
    let metrics = match daemon.metrics.as_str() {
        "" => None,
        address => Some(
            TcpListener::bind(address)
                .map_err(|e| fail(format!("daemon.metrics = '{address}': {e}")))?,
        ),
    };
    let open_files = terrace_linux::limits::raise_open_files();
    tracing::debug!(open_files, "the limit on open files");
    let guard = GuardCommand::this_program(["guard"]).map_err(fail)?;
    let ending = Arc::new(AtomicBool::new(false));
    let mut servers = Vec::new();
    if let Some(listener) = metrics {
        let (shared, end) = (Arc::clone(&board), Arc::clone(&ending));
        servers.push(std::thread::spawn(move || {
            if let Err(error) = http::serve(listener, shared, end) {
                tracing::error!(%error, "the metrics endpoint");
            }
        }));
    }
    // The host's lock comes first: a second daemon is refused before it takes the socket of the
    // first.
    let open = |config: &Config| Live::open(config, Roots::default(), Some(guard.clone()));
    let machine = if wait {
        let open = || {
            if reload.swap(false, Ordering::Relaxed) {
                read_again(&path, &mut config);
                config.daemon.dry_run |= dry_run;
            }
            open(&config).map_err(|e| match e.is_permanent() {
                true => CannotOpen::Permanent(e.to_string()),
                false => CannotOpen::Passing(e.to_string()),
            })
        };
        match waiting::until_open(open, waiting::ASK_EVERY, &board, &mut notifier, &stop, &reload) {
            Ok(Some(machine)) => machine,
            Ok(None) => return Ok(()),
            Err(e) => return Err(fail(e)),
        }
    } else {
        open(&config).map_err(|e| if e.is_permanent() { refuse(e) } else { fail(e) })?
    };
    let socket_path = config.daemon.control.clone();
    let socket = match control::bind(&socket_path, &config.daemon.control_group) {
        Ok(socket) => socket,
        Err(e) => {
            machine.close().map_err(fail)?;
            return Err(fail(e));
        }
    };
    let (orders, ordered) = mpsc::channel();
    let (shared, end) = (Arc::clone(&board), Arc::clone(&ending));
    servers.push(std::thread::spawn(move || control::serve(socket, shared, orders, end)));
    tracing::info!(config = %path.display(), control = %socket_path.display(), "terraced runs");
    let service = Service::new(machine, &path, config, board).notifying(notifier);
    let service = if dry_run { service.dry() } else { service };
    let machine = service.run(&ordered, &stop, &reload);
    ending.store(true, Ordering::Relaxed);
    for server in servers {
        let _ = server.join();
    }
    let _ = std::fs::remove_file(&socket_path);
    machine.close().map_err(fail)?;
    tracing::info!("ended; every setting is as it was");
    Ok(())
}
