//! `terrace record`: the loads and stores of a program.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::Args;
use indicatif::{HumanBytes, HumanCount, ProgressBar};
use serde_json::json;
use terrace_core::InputError;
use terrace_lab::cache::Cache;
use terrace_lab::{QemuVersion, find_program};
use terrace_recorder::{Options, Progress, RecordError, Recorder, Signals, Summary};
use terrace_recordings::reference::{CacheShape, Filter, Level};

use crate::progress::BETWEEN_LINES;
use crate::show::{Format, say, tell};

/// The QEMUs whose plug-ins record.
const LEAST: (u32, u32) = (6, 0);
const MOST: (u32, u32) = (8, 2);

/// Record the loads and stores of a program.
///
/// Runs any x86-64 Linux program, unmodified, with its threads and child processes, under QEMU's
/// user emulation (package qemu-user), sends each of its references through caches, and writes
/// those that are left, and the changed lines that leave the caches. The program may mark places in its run with
/// prctl(0x54455252, NUMBER, 0, 0, 0). A program that was killed leaves a recording too. Ctrl-C
/// goes to the program, and its references until its end are recorded; a second Ctrl-C kills it and
/// finishes the recording at once.
#[derive(Args)]
pub struct Arguments {
    /// The file to write; must not exist.
    #[arg(long, value_name = "FILE", default_value = "recording.tref")]
    out: PathBuf,
    /// Record what misses this cache: none (every reference), l1, l2, llc (what reaches memory).
    #[arg(long, value_name = "LEVEL", default_value = "llc", value_parser = level)]
    level: Level,
    /// Keep one in N of the references that are left, at irregular distances.
    #[arg(long, value_name = "N", default_value_t = 1)]
    sample: u64,
    /// First-level data cache, per thread: SIZE,WAYS.
    #[arg(long, value_name = "SIZE,WAYS", value_parser = cache_geometry, default_value = "32K,8")]
    l1: CacheShape,
    /// Second-level cache, per thread.
    #[arg(long, value_name = "SIZE,WAYS", value_parser = cache_geometry, default_value = "1M,16")]
    l2: CacheShape,
    /// Last-level cache, per process.
    #[arg(long, value_name = "SIZE,WAYS", value_parser = cache_geometry, default_value = "32M,16")]
    llc: CacheShape,
    /// Bytes in a line.
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    line: u32,
    /// QEMU's user emulator, 6.0 to 8.2 with plug-ins; else qemu-x86_64 on the PATH, or, on a Debian
    /// whose own has none, Debian 12's, which is fetched.
    #[arg(long, value_name = "FILE")]
    qemu: Option<PathBuf>,
    /// The recorder's plug-in; else the one beside this program.
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Format of the summary.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn level(text: &str) -> Result<Level, String> {
    [Level::None, Level::L1, Level::L2, Level::Llc]
        .into_iter()
        .find(|level| level.name() == text)
        .ok_or_else(|| "expected none, l1, l2 or llc".to_owned())
}

/// A cache's size and ways.
pub fn cache_geometry(text: &str) -> Result<CacheShape, String> {
    let wrong = || "expected SIZE,WAYS such as 32K,8 (K, M for 2^10, 2^20 bytes)".to_owned();
    let (size, ways) = text.split_once(',').ok_or_else(wrong)?;
    let (number, shift) = match size.trim_end_matches(['K', 'M', 'k', 'm']) {
        number if number.len() == size.len() => (number, 0),
        number if size.ends_with(['K', 'k']) => (number, 10),
        number => (number, 20),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let size_bytes = number.checked_mul(1 << shift).ok_or_else(wrong)?;
    Ok(CacheShape { size_bytes, ways: ways.parse().map_err(|_| wrong())? })
}

impl Arguments {
    /// Records.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let filter = Filter {
            level: self.level,
            line_bytes: self.line,
            l1: self.l1,
            l2: self.l2,
            llc: self.llc,
            sample_one_in: self.sample,
        };
        let (qemu, qemu_libraries) = match self.qemu {
            Some(given) => (Some(given), None),
            None => emulator()?,
        };
        let recorder = Recorder::new(Options {
            out: self.out,
            filter,
            qemu,
            qemu_libraries,
            plugin: self.plugin,
            created_by: terrace_identity::created_by("terrace"),
        });
        let signals = Signals::catch()?;
        let spinner = std::io::stderr().is_terminal().then(ProgressBar::new_spinner);
        let mut last = Instant::now();
        let summary = recorder.run(&self.command, &signals, &mut |p| match &spinner {
            Some(spinner) => {
                spinner.set_message(line(&p));
                spinner.tick();
            }
            None if last.elapsed() >= BETWEEN_LINES => {
                tell!("{}", line(&p));
                last = Instant::now();
            }
            None => {}
        });
        if let Some(spinner) = spinner {
            spinner.finish_and_clear();
        }
        let summary = summary.map_err(|error| match error {
            RecordError::Write(_) | RecordError::System { .. } => anyhow::Error::from(error),
            error => InputError::new(error).into(),
        })?;
        match self.format {
            Format::Json => say!("{}", serde_json::to_string_pretty(&document(&summary))?)?,
            Format::Text => tell!("{}", text(&summary)),
        }
        // Numbered as by a shell.
        Ok(summary.signal.map_or(ExitCode::SUCCESS, |s| ExitCode::from(128 + s as u8)))
    }
}

/// The host's emulator where it has one that records, else Debian 12's, with folders of libraries.
fn emulator() -> anyhow::Result<(Option<PathBuf>, Option<String>)> {
    let own = find_program(Path::new("qemu-x86_64"));
    if own.is_some_and(|own| records(&own)) {
        return Ok((None, None));
    }
    let cache = Cache::of_user().map_err(InputError::new)?;
    let fetched = terrace_lab::user_emulator(&cache, &mut |line| tell!("{line}"));
    let fetched = fetched.map_err(InputError::new)?;
    Ok(fetched.map_or((None, None), |qemu| (Some(qemu.path), qemu.library_path)))
}

/// Whether this QEMU has plug-ins, of the interface that records.
fn records(qemu: &Path) -> bool {
    let answer = |argument: &str| {
        let output = Command::new(qemu).arg(argument).output();
        output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default()
    };
    let version = QemuVersion::parse(&answer("--version")).map(|v| (v.major, v.minor));
    version.is_some_and(|version| (LEAST..=MOST).contains(&version))
        && answer("--help").contains("-plugin")
}

fn line(p: &Progress) -> String {
    let seconds = p.elapsed.as_secs_f64().max(1e-3);
    format!(
        "recording: {:.0} s, {} references, {}, {:.1} million references/s, {}/s",
        seconds,
        HumanCount(p.references),
        HumanBytes(p.bytes),
        p.references as f64 / seconds / 1e6,
        HumanBytes((p.bytes as f64 / seconds) as u64),
    )
}

fn text(s: &Summary) -> String {
    let c = s.counts;
    format!(
        "{}: {} references and {} write-backs, {} ({:.2} bytes each), of {} loads and {} stores in {} instructions; {} threads, {} processes, {:.1} s; the program {}{}",
        s.file.display(),
        HumanCount(s.references),
        HumanCount(c.write_backs),
        HumanBytes(s.bytes),
        s.bytes as f64 / (s.references + c.write_backs).max(1) as f64,
        HumanCount(c.loads),
        HumanCount(c.stores),
        HumanCount(s.instructions),
        s.streams,
        s.processes,
        s.elapsed.as_secs_f64(),
        s.ending(),
        if s.ending.is_cut_off() { "; the recording is cut off there" } else { "" },
    )
}

fn document(s: &Summary) -> serde_json::Value {
    json!({
        "file": s.file,
        "size_bytes": s.bytes,
        "references": s.references,
        "loads": s.counts.loads,
        "stores": s.counts.stores,
        "l1_misses": s.counts.l1_misses,
        "l2_misses": s.counts.l2_misses,
        "llc_misses": s.counts.llc_misses,
        "write_backs": s.counts.write_backs,
        "instructions": s.instructions,
        "threads": s.streams,
        "processes": s.processes,
        "elapsed_s": s.elapsed.as_secs_f64(),
        "exit_code": s.ending.exit_code,
        "signal": s.ending.signal,
        "cut_off": s.ending.is_cut_off(),
        "stopped": s.ending.stopped,
    })
}
