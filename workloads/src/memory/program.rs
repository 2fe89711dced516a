//! The loop that all memory programs share: fill, report where the memory is, wait for the go,
//! touch in rounds with pauses, obey control lines, check every word at the end.
//!
//! Between the fill and the last check nothing reads or writes a page that the schedule does not
//! name: counters, buffers and the schedule itself are outside the arena.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use terrace_core::page::PageSize;
use terrace_recordings::source::SourceError;

use super::arena::{Arena, ArenaError};
use super::checked::CheckedArena;
use super::held::{Held, HoldError, HoldKind};
use super::schedule::Schedule;

/// A line that controls a running program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Start the rounds.
    Go,
    /// Stay in this phase from now on.
    Phase(u64),
    /// Hold the memory from now on, in the way that the settings name.
    Hold,
    /// Let it go again.
    Release,
    /// End the rounds.
    Stop,
}

impl std::str::FromStr for Control {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = line.split_whitespace();
        let control = match (words.next(), words.next(), words.next()) {
            (Some("go"), None, None) => Some(Control::Go),
            (Some("hold"), None, None) => Some(Control::Hold),
            (Some("release"), None, None) => Some(Control::Release),
            (Some("stop"), None, None) => Some(Control::Stop),
            (Some("phase"), Some(n), None) => n.parse().ok().map(Control::Phase),
            _ => None,
        };
        control.ok_or_else(|| {
            let got: String = line.chars().take(40).collect();
            format!(
                "control line '{got}': expected 'go', 'phase NUMBER', 'hold', 'release' or 'stop'"
            )
        })
    }
}

/// Where the pages of a memory program come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Backing {
    /// The kernel, advised on their size.
    #[default]
    Advised,
    /// The kernel's pool of huge pages.
    Pool,
    /// A file of shared memory.
    File(PathBuf),
    /// The same, filled and written by another program: this one reads.
    FileOfAnother(PathBuf),
}

/// Parameters of a memory program besides its schedule.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Size of its pages; checked against the kernel's.
    pub page_size: PageSize,
    /// Number of pages.
    pub pages: usize,
    /// Seed of the contents.
    pub seed: u64,
    /// Sleep between two rounds. Bounds the processor time on small machines.
    pub pause: Duration,
    /// Length of the rounds, from the go.
    pub duration: Duration,
    /// Wait for [`Control::Go`] before the first round.
    pub wait_go: bool,
    /// Where its pages come from.
    pub backing: Backing,
    /// How the memory is held between [`Control::Hold`] and [`Control::Release`].
    pub hold: Option<HoldKind>,
}

/// Why a memory program gave up.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// No memory, or not of the page size requested.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// Memory cannot be held as the settings have it.
    #[error(transparent)]
    Hold(#[from] HoldError),
    /// Standard input has ended, so no go can come.
    #[error("standard input ended before 'go'; write 'go' to it, or leave out --wait-go")]
    NoGo,
    /// The generator that names the pages failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The generator names more pages than it announced.
    #[error("the generator names page {page}, expected less than the {pages} that it has")]
    NoSuchPage {
        /// The page's number.
        page: usize,
        /// Number of pages.
        pages: usize,
    },
}

/// The memory of a program, filled.
fn checked_arena(settings: &Settings) -> Result<CheckedArena, ProgramError> {
    let (size, pages) = (settings.page_size, settings.pages);
    let arena = match &settings.backing {
        Backing::Advised => Arena::map(size, pages)?,
        Backing::Pool => Arena::map_pool(pages)?,
        Backing::File(path) => Arena::map_file(path, size, pages)?,
        Backing::FileOfAnother(path) => Arena::map_file_to_read(path, size, pages)?,
    };
    let memory = match settings.backing {
        Backing::FileOfAnother(_) => CheckedArena::of_another(arena),
        _ => CheckedArena::fill(arena, settings.seed),
    };
    memory.arena().check_page_size()?;
    Ok(memory)
}

/// Runs a memory program. Every event (`ready`, `phase`, `result`) is passed to `report` before the
/// program goes on, so that a `phase` is out before its first touch. Returns whether every word was
/// right.
pub fn run(
    settings: &Settings,
    schedule: &mut dyn Schedule,
    control: &Receiver<Control>,
    report: &mut dyn FnMut(&Value),
) -> Result<bool, ProgramError> {
    let mut memory = checked_arena(settings)?;
    report(&ready(settings, &memory, schedule));
    let mut controls =
        Controls { receiver: control, alive: true, stop: false, phase: None, hold: false };
    let mut held: Option<Held> = None;
    if settings.wait_go {
        controls.wait_go()?;
    }

    let start = Instant::now();
    let (mut rounds, mut touches, mut wrong_words) = (0u64, 0u64, 0u64);
    let mut last_phase = None;
    let mut pages = Vec::with_capacity(settings.pages);
    loop {
        let elapsed = start.elapsed();
        if controls.stop || elapsed >= settings.duration {
            break;
        }
        let elapsed_ms = elapsed.as_millis() as u64;
        if let Some(kind) = settings.hold.filter(|_| controls.hold != held.is_some()) {
            held = controls.hold.then(|| Held::hold(memory.arena(), kind)).transpose()?;
            let event = if controls.hold { "held" } else { "released" };
            report(&json!({"event": event, "monotonic_ns": monotonic_ns()}));
        }
        let phase = controls.phase.unwrap_or_else(|| schedule.phase(elapsed_ms));
        if last_phase != Some(phase) {
            last_phase = Some(phase);
            report(&json!({
                "event": "phase",
                "phase": phase,
                "elapsed_ms": elapsed_ms,
                "monotonic_ns": monotonic_ns(),
                "hot_addresses": announced(&memory, schedule, phase),
            }));
        }
        pages.clear();
        let goes_on = schedule.round(phase, elapsed_ms, &mut pages)?;
        if let Some(&page) = pages.iter().find(|&&page| page >= settings.pages) {
            return Err(ProgramError::NoSuchPage { page, pages: settings.pages });
        }
        match held.as_ref().filter(|held| held.is_touching()) {
            Some(held) => held.touch(&pages)?,
            None => wrong_words += pages.iter().map(|&page| memory.touch(page)).sum::<u64>(),
        }
        touches += pages.len() as u64;
        rounds += 1;
        if !goes_on {
            break;
        }
        controls.pause(settings.pause.min(settings.duration.saturating_sub(start.elapsed())));
    }
    let duration = start.elapsed();

    report(&json!({
        "event": "verifying",
        "elapsed_ms": duration.as_millis() as u64,
        "monotonic_ns": monotonic_ns(),
    }));
    let wrong_at_end = memory.verify();
    let checksum_ok = wrong_words == 0 && wrong_at_end == 0;
    report(&json!({
        "event": "result",
        "operations": touches,
        "operations_per_s": touches as f64 / duration.as_secs_f64().max(1e-3),
        "duration_ms": duration.as_millis() as u64,
        "rounds": rounds,
        "wrong_words_at_touch": wrong_words,
        "wrong_words_at_end": wrong_at_end,
        "checksum_ok": checksum_ok,
    }));
    Ok(checksum_ok)
}

fn ready(settings: &Settings, memory: &CheckedArena, schedule: &dyn Schedule) -> Value {
    json!({
        "event": "ready",
        "pid": std::process::id(),
        "monotonic_ns": monotonic_ns(),
        "base_address": memory.arena().address(0),
        "page_size_bytes": settings.page_size.bytes(),
        "pages": settings.pages,
        "hot_addresses": announced(memory, schedule, schedule.phase(0)),
    })
}

fn announced(memory: &CheckedArena, schedule: &dyn Schedule, phase: u64) -> Option<Vec<u64>> {
    let pages = schedule.announced(phase)?;
    Some(pages.into_iter().map(|page| memory.arena().address(page)).collect())
}

/// The clock that trackers and traces on the same machine also read.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The control lines for the loop.
struct Controls<'a> {
    receiver: &'a Receiver<Control>,
    /// Whether more lines can come. A program whose controller died runs on to its end.
    alive: bool,
    stop: bool,
    phase: Option<u64>,
    hold: bool,
}

impl Controls<'_> {
    fn take(&mut self, control: Control) {
        match control {
            Control::Go => {}
            Control::Phase(phase) => self.phase = Some(phase),
            Control::Hold => self.hold = true,
            Control::Release => self.hold = false,
            Control::Stop => self.stop = true,
        }
    }

    fn wait_go(&mut self) -> Result<(), ProgramError> {
        loop {
            match self.receiver.recv() {
                Ok(Control::Go) => return Ok(()),
                Ok(Control::Stop) => {
                    self.stop = true;
                    return Ok(());
                }
                Ok(other) => self.take(other),
                Err(_) => return Err(ProgramError::NoGo),
            }
        }
    }

    /// Sleeps, but wakes up for a control line; reads all that have come.
    fn pause(&mut self, pause: Duration) {
        if self.alive {
            match self.receiver.recv_timeout(pause) {
                Ok(control) => self.take(control),
                Err(RecvTimeoutError::Timeout) => return,
                Err(RecvTimeoutError::Disconnected) => self.alive = false,
            }
        }
        if !self.alive {
            std::thread::sleep(pause);
            return;
        }
        loop {
            match self.receiver.try_recv() {
                Ok(control) => self.take(control),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.alive = false;
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::schedule::{Choice, HotCold};
    use super::*;
    use std::sync::mpsc::channel;

    fn settings() -> Settings {
        Settings {
            page_size: PageSize::Base,
            pages: 16,
            seed: 1,
            pause: Duration::from_millis(1),
            duration: Duration::from_millis(30),
            wait_go: true,
            backing: Backing::Advised,
            hold: Some(HoldKind::Locked),
        }
    }

    fn run_with(controls: &[Control]) -> (Result<bool, ProgramError>, Vec<Value>) {
        let (sender, receiver) = channel();
        controls.iter().for_each(|&c| sender.send(c).unwrap());
        drop(sender);
        let mut events = Vec::new();
        let mut schedule = HotCold::new(16, Choice::Every { step: 4, within: 16 }, None, 0);
        let result = run(&settings(), &mut schedule, &receiver, &mut |e| events.push(e.clone()));
        (result, events)
    }

    #[test]
    fn a_run_says_where_its_memory_is_what_is_hot_and_that_all_is_right() {
        let (result, events) = run_with(&[Control::Go]);
        assert!(result.unwrap());
        let names: Vec<_> = events.iter().map(|e| e["event"].as_str().unwrap()).collect();
        assert_eq!(names, ["ready", "phase", "verifying", "result"]);
        let base = events[0]["base_address"].as_u64().unwrap();
        let hot: Vec<u64> = (0..16).step_by(4).map(|p| base + p * 4096).collect();
        assert_eq!(events[1]["hot_addresses"], json!(hot));
        assert_eq!(events[3]["checksum_ok"], true);
        let touches = events[3]["operations"].as_u64().unwrap();
        assert_eq!(touches, events[3]["rounds"].as_u64().unwrap() * 4);
        assert!(touches > 0);
    }

    #[test]
    fn a_control_line_changes_the_phase_and_the_end_of_input_does_not_end_the_run() {
        let (result, events) = run_with(&[Control::Phase(3), Control::Go]);
        assert!(result.unwrap());
        assert_eq!(events[1]["phase"], 3);
        assert!(events.last().unwrap()["duration_ms"].as_u64().unwrap() >= 30);
    }

    #[test]
    fn memory_is_held_and_released_on_command() {
        let (result, events) = run_with(&[Control::Hold, Control::Go]);
        assert!(result.unwrap());
        assert_eq!(events[1]["event"], "held");
        let (result, events) = run_with(&[Control::Hold, Control::Release, Control::Go]);
        assert!(result.unwrap());
        assert!(events.iter().all(|e| e["event"] != "held"));
    }

    #[test]
    fn one_that_reads_what_another_writes_finds_nothing_wrong_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shared");
        let run_on = |backing| {
            let settings = Settings { wait_go: false, hold: None, backing, ..settings() };
            let mut schedule = HotCold::new(16, Choice::Every { step: 4, within: 16 }, None, 0);
            run(&settings, &mut schedule, &channel().1, &mut |_| {}).unwrap()
        };
        assert!(run_on(Backing::File(path.clone())));
        let written = std::fs::read(&path).unwrap();
        assert!(written.iter().any(|&b| b != 0));
        assert!(run_on(Backing::FileOfAnother(path.clone())));
        assert!(std::fs::read(&path).unwrap() == written);
    }

    #[test]
    fn stop_ends_the_run_and_no_go_is_an_error() {
        let (result, events) = run_with(&[Control::Stop]);
        assert!(result.unwrap());
        assert_eq!(events.last().unwrap()["operations"], 0);
        assert!(run_with(&[]).0.unwrap_err().to_string().contains("'go'"));
    }

    #[test]
    fn control_lines_are_strict() {
        assert_eq!(" phase  7 ".parse(), Ok(Control::Phase(7)));
        assert_eq!("go".parse(), Ok(Control::Go));
        for bad in ["", "phase", "phase x", "phase 1 2", "going", "stop now", "phase -1"] {
            let error = bad.parse::<Control>().unwrap_err();
            assert!(error.contains("expected"), "{error}");
        }
    }
}
