//! A program with known hot pages, and a host opened for it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use terrace_core::interfaces::{Mover, Observation, Tracker};
use terrace_core::page::{GroupPages, PageSize, SpaceId, VirtualRange};
use terrace_core::plan::{FailureReason, Plan};
use terrace_core::scan::Scan;
use terrace_linux::conflicts::Intent;
use terrace_linux::guard::GuardCommand;
use terrace_linux::journal::Journal;
use terrace_linux::mover::PageMover;
use terrace_linux::roots::Roots;
use terrace_linux::tracker::GroupTracker;
use terrace_linux::{GroupSpec, HostOptions, Source};

pub const HUGE: u64 = PageSize::Huge.bytes();

pub const BASE: u64 = PageSize::Base.bytes();

pub const PERIOD_MS: u64 = 1000;

pub fn entry(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture"]);
    command
}

/// A running [`hotcold_process`].
pub struct HotCold {
    pub child: Child,
    pub input: ChildStdin,
    pub output: std::io::Lines<BufReader<ChildStdout>>,
    pub page: u64,
    /// Address of its first page.
    pub start: u64,
}

impl HotCold {
    pub fn start(megabytes: u64, page: PageSize) -> Self {
        Self::start_in(megabytes, page, None)
    }

    pub fn start_in(megabytes: u64, page: PageSize, cgroup: Option<&Path>) -> Self {
        let mut program = Self::spawn(entry("hotcold_process"), megabytes, page, cgroup);
        program.start = program.answer_at();
        program
    }

    pub fn spawn(
        mut command: Command,
        megabytes: u64,
        page: PageSize,
        cgroup: Option<&Path>,
    ) -> Self {
        command.env("HOTCOLD_MB", megabytes.to_string());
        command.env("HOTCOLD_PAGE", page.bytes().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        if let Some(cgroup) = cgroup {
            fs::write(cgroup.join("cgroup.procs"), child.id().to_string()).unwrap();
        }
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        HotCold { child, input, output, page: page.bytes(), start: 0 }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn answer(&mut self, starts: &[&str]) -> String {
        let mut lines = self.output.by_ref().map_while(Result::ok);
        lines.find(|l| starts.iter().any(|s| l.starts_with(s))).expect("an answer")
    }

    pub fn answer_at(&mut self) -> u64 {
        let line = self.answer(&["at "]);
        line.split(' ').nth(1).unwrap().parse().unwrap()
    }

    pub fn hot(&mut self, first: u64, count: u64, step: u64) -> BTreeSet<u64> {
        writeln!(self.input, "hot {first} {count} {step}").unwrap();
        self.answer(&["done"]);
        (0..count).map(|n| first + n * step).collect()
    }

    pub fn grow(&mut self, bytes: u64) -> u64 {
        writeln!(self.input, "grow {bytes}").unwrap();
        self.answer_at()
    }

    pub fn is_intact(&mut self) -> bool {
        writeln!(self.input, "check").unwrap();
        self.answer(&["intact", "DAMAGED"]) == "intact"
    }

    pub fn space(&self) -> SpaceId {
        SpaceId(self.pid())
    }

    /// Indices of these pages of the program in a scan.
    pub fn index(&self, scan: &Scan, page: u64) -> Option<usize> {
        scan.layout.index(self.space(), self.start + page * self.page)
    }

    /// Those of its first `pages` pages that were accessed in a scan.
    pub fn accessed(&self, scan: &Scan, pages: u64) -> BTreeSet<u64> {
        let seen = |page: &u64| self.index(scan, *page).is_some_and(|i| scan.accessed.get(i));
        (0..pages).filter(seen).collect()
    }

    pub fn tracked(&self, scan: &Scan, pages: u64) -> u64 {
        (0..pages).filter(|p| self.index(scan, *p).is_some()).count() as u64
    }

    pub fn range(&self, first: u64, pages: u64) -> VirtualRange {
        let start = self.start + first * self.page;
        VirtualRange { space: self.space(), start, size_bytes: pages * self.page }
    }
}

impl Drop for HotCold {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn options(page_size: PageSize) -> HostOptions {
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", "guard_process", "--ignored", "--nocapture"];
    let pages = match page_size {
        PageSize::Huge => GroupPages::Huge,
        PageSize::Base => GroupPages::Base,
    };
    let mut options = HostOptions::new(Intent::of([pages]));
    // For kernels without sockets, which the guard's start needs.
    options.guard = std::env::var_os("TERRACE_NO_GUARD")
        .is_none()
        .then(|| GuardCommand { program, arguments: arguments.map(Into::into).to_vec() });
    options.fix_conflicts = true;
    options
}

pub fn spec(program: &HotCold, page_size: PageSize) -> GroupSpec {
    GroupSpec::new("test", Source::Pids(vec![program.pid()]), page_size, PERIOD_MS)
}

/// Applies a plan repeatedly until time no longer runs out: an emulated machine is slow. Returns
/// the pages promoted and demoted, including those already in their tier.
pub fn apply(mover: &mut PageMover, plan: &Plan) -> (u64, u64) {
    for _ in 0..100 {
        let outcome = mover.apply(plan).unwrap();
        if outcome.failures.is_empty() {
            return (outcome.promoted_pages, outcome.demoted_pages);
        }
        let late = outcome.failures.iter().all(|f| f.reason == FailureReason::OutOfTime);
        assert!(late, "{outcome:?}");
    }
    panic!("moves do not come to an end");
}

pub fn next_scan(tracker: &mut GroupTracker) -> Scan {
    loop {
        match tracker.observe().unwrap() {
            Observation::Period(scan) => return scan,
            Observation::Lost { periods, reason } => println!("lost {periods}: {reason}"),
            Observation::Ended => panic!("the group ended"),
        }
    }
}

/// Present values of settings that the daemon may change.
pub fn host_state() -> Vec<(String, String)> {
    let roots = Roots::default();
    let mut files: Vec<PathBuf> =
        vec![roots.lru_gen(), roots.numa_balancing(), roots.demotion(), roots.huge_pages()];
    files.push(roots.kdamonds().join("nr_kdamonds"));
    // Absent on 6.12, on by default on 7.3.
    files.push(roots.sys.join("module/damon_stat/parameters/enabled"));
    files.push(roots.cgroup().join("cgroup.subtree_control"));
    let mut state: Vec<(String, String)> = files
        .iter()
        .map(|f| (f.display().to_string(), fs::read_to_string(f).unwrap_or_default()))
        .collect();
    for folder in [roots.tracing().join("instances"), roots.kdamonds(), roots.cgroup()] {
        let mut names: Vec<String> = fs::read_dir(&folder)
            .unwrap()
            .flatten()
            .filter(|e| e.path().is_dir())
            .map(|e| e.file_name().into_string().unwrap())
            .collect();
        names.sort();
        state.push((folder.display().to_string(), names.join(" ")));
    }
    state.push(("journal".into(), Journal::path(&roots.run).exists().to_string()));
    state
}

pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what} did not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}
