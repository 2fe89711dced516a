//! `terrace watch`: how much of its memory a program uses, on any host with DAMON; nothing moves, and
//! no tiers are needed.

mod view;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use terrace_core::InputError;
use terrace_core::interfaces::{Observation, Tracker};
use terrace_core::page::PageSize;
use terrace_core::refuse;
use terrace_core::scan::Scan;
use terrace_linux::conflicts::Intent;
use terrace_linux::costs::CostSnapshot;
use terrace_linux::roots::Roots;
use terrace_linux::sampling::Samples;
use terrace_linux::{
    AttachedGroup, GroupSpec, GuardCommand, Host, HostOptions, MOST_PAGES, Source, termination,
};
use terrace_linux::{cgroup::Cgroup, process};
use terrace_workloads::kinds::LiveProgram;

use crate::heatmap;
use crate::show::{say, tell};
use crate::terminal::{Key, Screen};
use view::View;

/// Watch which memory a program uses: working set, idle memory, heat by address and time.
///
/// Needs root and a kernel with DAMON, no tiers and no configuration. Nothing is moved. What is
/// switched on for it is off again at the end, however it ends. Memory is sampled in ranges of 2 MB,
/// whatever pages map it, up to 512 GB of a program; setting that up takes about a millisecond for
/// each range. On a stock kernel a sample is of one page of a range, taken at random, and a page
/// whose translation a processor keeps can appear unused. So untouched memory is an upper bound
/// there.
#[derive(Args)]
pub struct Arguments {
    /// A process, with those that descend from it now, or a control group by its path.
    #[arg(value_name = "PID|CGROUP", required_unless_present = "command")]
    target: Option<String>,
    /// A command to start and watch.
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "target")]
    command: Vec<String>,
    /// Length of a period in ms.
    #[arg(long, default_value_t = 1000, value_name = "MS")]
    period_ms: u64,
    /// End after so many seconds; without it when the program ends, or at q or Ctrl-C.
    #[arg(long = "for", value_name = "S")]
    for_s: Option<f64>,
    /// Print the summary alone, at the end.
    #[arg(long)]
    once: bool,
    /// Draw addresses against time into this file (.svg or .png) at the end.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// How often a line is printed where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// How often it is looked whether to end while nothing comes.
const SLICE: Duration = Duration::from_millis(100);

impl Arguments {
    /// Watches.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        if let Some(seconds) = self.for_s.filter(|s| !(0.1..=1e7).contains(s)) {
            return Err(refuse!("--for {seconds}: expected 0.1 to 10000000 seconds").into());
        }
        if let Some(out) = &self.out {
            heatmap::kind(out)?;
        }
        let roots = Roots::default();
        let found = self.target.as_deref().map(|t| target(&roots, t)).transpose()?;
        if let Some(program) = self.command.first() {
            LiveProgram::Host(program.into()).locate().map_err(InputError::new)?;
        }
        let stop = termination::stop_flag().context("catching signals")?;
        let mut host = Host::open(HostOptions {
            guard: Some(GuardCommand::this_program(["guard"]).context("finding the guard")?),
            stop: Some(Arc::clone(&stop)),
            observe_only: true,
            max_groups: 1,
            ..HostOptions::new(Intent { huge: false, base: false, cgroups: false })
        })
        .map_err(InputError::new)?;
        let mut started = None;
        let (name, source) = match found {
            Some(found) => found,
            None => {
                let program = self.start(&host)?;
                let name = format!("{} (process {})", self.command[0], program.child.id());
                let source = program.source();
                started = Some(program);
                (name, source)
            }
        };
        let spec = GroupSpec {
            by_range: true,
            // A command has yet to enter its control group; its end is noticed by itself.
            keep_empty: started.is_some(),
            // A flush would move a page.
            flush: false,
            samples: Samples::Several,
            cap_pages: MOST_PAGES,
            ..GroupSpec::new(&name, source, PageSize::Huge, self.period_ms)
        };
        let by_damon = host.samples_parts();
        let watched = host
            .attach(vec![spec])
            .map_err(anyhow::Error::new)
            .and_then(|mut groups| groups.pop().context("attaching the group"))
            .and_then(|group| {
                let child = started.as_mut().map(|program| &mut program.child);
                self.watch(name, group, child, &stop, by_damon)
            });
        // A program that was started for this ends with it.
        let failed = started.and_then(|program| program.end(&roots));
        let closed = host.close();
        let view = watched?;
        closed?;
        for line in view.summary() {
            say!("{line}")?;
        }
        if let Some(status) = failed {
            tell!("terrace: the command ended with {status}");
        }
        if let Some(out) = &self.out {
            heatmap::write(out, &view.heat_rows(), view.name())?;
            say!("\npicture: {}", out.display())?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Starts the command in a control group of its own, so that all its processes are watched.
    fn start(&self, host: &Host) -> anyhow::Result<Started> {
        let group = host.make_cgroup(Path::new(&format!("/terrace-watch-{}", std::process::id())));
        let group = group.ok();
        let mut command = match &group {
            // Inside from its first instruction on.
            Some(group) => {
                let mut shell = Command::new("/bin/sh");
                shell
                    .args(["-c", "echo $$ >\"$0\" && exec \"$@\""])
                    .arg(group.path().join("cgroup.procs"));
                shell.args(&self.command);
                shell
            }
            None => {
                let mut plain = Command::new(&self.command[0]);
                plain.args(&self.command[1..]);
                plain
            }
        };
        if self.has_screen() {
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        }
        let child = command
            .spawn()
            .map_err(|e| refuse!("{}: {e}; expected a program to start", self.command[0]))?;
        Ok(Started { child, group })
    }

    fn has_screen(&self) -> bool {
        !self.once && Screen::is_there()
    }

    fn watch(
        &self,
        name: String,
        group: AttachedGroup,
        mut child: Option<&mut Child>,
        stop: &Arc<AtomicBool>,
        is_of_parts: bool,
    ) -> anyhow::Result<View> {
        let period = Duration::from_millis(self.period_ms);
        let mut view = View::new(name, period).of_parts(is_of_parts);
        let scans = observe(group);
        let end = self.for_s.map(|s| Instant::now() + Duration::from_secs_f64(s));
        let screen = if self.has_screen() { Some(Screen::take()?) } else { None };
        let mut line_due = Instant::now() + LINE_EVERY;
        loop {
            match scans.recv_timeout(SLICE) {
                Ok(Observed::Scan(scan, costs)) => {
                    let untracked = costs.untracked_fast_bytes + costs.untracked_slow_bytes;
                    view.observe(&scan, untracked, costs.untracked_over_bound_bytes);
                    if screen.is_some() {
                        Screen::put(&view.screen(Screen::size()?))?;
                    }
                }
                Ok(Observed::Lost(reason)) => view.lost(reason),
                Ok(Observed::Failed(message)) => return Err(anyhow::anyhow!(message)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if screen.is_some() && matches!(Screen::key(Instant::now())?, Some(Key::End)) {
                stop.store(true, Ordering::Relaxed);
            }
            let has_ended = |child: &mut &mut Child| !matches!(child.try_wait(), Ok(None));
            if child.as_mut().is_some_and(has_ended) || end.is_some_and(|end| Instant::now() >= end)
            {
                stop.store(true, Ordering::Relaxed);
            }
            if screen.is_none() && !self.once && Instant::now() >= line_due {
                say!("{}", view.line())?;
                line_due += LINE_EVERY;
            }
        }
        Ok(view)
    }
}

/// A command that was started to be watched.
struct Started {
    child: Child,
    /// The group of all its processes, where one could be made.
    group: Option<Cgroup>,
}

impl Started {
    fn source(&self) -> Source {
        match &self.group {
            Some(group) => Source::Cgroup(group.path().to_owned()),
            None => Source::Pids(vec![self.child.id()]),
        }
    }

    /// Ends it with all its processes, if it runs. Where it has ended by itself, the status of a failure.
    fn end(mut self, roots: &Roots) -> Option<ExitStatus> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Some(status).filter(|status| !status.success());
        }
        let by_group = self.group.as_ref().is_some_and(|group| group.kill().is_ok());
        if !by_group {
            let all = process::descendants(roots, self.child.id()).unwrap_or_default();
            all.into_iter().for_each(process::kill);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        None
    }
}

/// What the tracker's thread reports.
enum Observed {
    /// A period, and the costs so far, with the memory that is not tracked.
    Scan(Box<Scan>, Box<CostSnapshot>),
    /// Lost periods, with the reason.
    Lost(String),
    /// Tracking cannot go on.
    Failed(String),
}

/// Tracks on a thread of its own; the channel closes when the group has ended.
fn observe(mut group: AttachedGroup) -> Receiver<Observed> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        loop {
            let seen = match group.tracker.observe() {
                Ok(Observation::Period(scan)) => {
                    Observed::Scan(Box::new(scan), Box::new(group.costs.snapshot()))
                }
                Ok(Observation::Lost { reason, .. }) => Observed::Lost(reason),
                Ok(Observation::Ended) => return,
                Err(error) => {
                    let _ = sender.send(Observed::Failed(error.to_string()));
                    return;
                }
            };
            if sender.send(seen).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The name and the processes of a process identifier or a control group.
fn target(roots: &Roots, text: &str) -> anyhow::Result<(String, Source)> {
    if let Ok(pid) = text.parse::<u32>() {
        if process::alive(roots, pid).map_err(InputError::new)?.is_none() {
            return Err(refuse!("{pid}: no such process; expected one that runs").into());
        }
        let name = std::fs::read_to_string(roots.process(pid).join("comm")).unwrap_or_default();
        let pids = process::descendants(roots, pid).map_err(InputError::new)?;
        let more = match pids.len() - 1 {
            0 => String::new(),
            n => format!(" and {n} that descend from it"),
        };
        return Ok((format!("{} (process {pid}{more})", name.trim()), Source::Pids(pids)));
    }
    let group = Cgroup::new(roots, Path::new(text));
    if !group.exists() {
        return Err(refuse!(
            "'{text}' is no process and no control group; expected a number, a path such as \
             /system.slice/redis.service, or -- and a command"
        )
        .into());
    }
    Ok((text.to_owned(), Source::Cgroup(PathBuf::from(text))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("1000").spawn().unwrap()
    }

    #[test]
    fn a_command_ends_with_all_processes_that_it_started() {
        let keep = tempfile::tempdir().unwrap();
        let (child, mut other) = (sleeper(), sleeper());
        let listed = format!("{}\n{}\n", child.id(), other.id());
        std::fs::write(keep.path().join("cgroup.procs"), listed).unwrap();
        let group = Some(Cgroup::at(keep.path()));
        assert_eq!(Started { child, group }.end(&Roots::default()), None);
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = other.try_wait().unwrap() {
                break status;
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "it runs on");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(!status.success());
    }
}
