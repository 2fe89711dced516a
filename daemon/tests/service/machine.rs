//! A machine that a test makes up, and a service that runs on it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use terrace_core::bits::PageBits;
use terrace_core::interfaces::{MachineError, Mover, Observation, Tracker};
use terrace_core::page::{Extent, Layout, PageSize, SpaceId};
use terrace_core::plan::{Outcome, Plan};
use terrace_core::scan::Scan;
use terrace_daemon::board::Board;
use terrace_daemon::config::Settings;
use terrace_daemon::control::{Order, Request};
use terrace_daemon::discover::Wanted;
use terrace_daemon::history::Identity;
use terrace_daemon::machine::{Attached, Machine, Probe};
use terrace_daemon::notify::Notifier;
use terrace_daemon::status::{GroupStatus, MachineStatus, Status};
use terrace_daemon::{Config, Service};
use terrace_linux::cgroup_tree::Survey;
use terrace_linux::costs::Costs;

pub const HUGE: u64 = PageSize::Huge.bytes();

pub const PERIOD: Duration = Duration::from_millis(50);

/// A group of the made-up machine: pages, of which the hot ones are accessed in every period.
#[derive(Debug)]
pub struct Program {
    pub pid: u32,
    pub pages: u64,
    /// Accessed in a period of this number.
    pub hot: fn(period: u64, page: u64) -> bool,
    pub fast: PageBits,
    /// An error of its tracker in place of a scan, once.
    pub fault: Option<String>,
    /// Why it cannot be managed any more.
    pub refusal: Option<String>,
    /// Periods that its next scan says were lost before it.
    pub lost_periods: u32,
}

#[derive(Debug, Default)]
pub struct World {
    pub programs: BTreeMap<String, Program>,
    pub slots: Vec<bool>,
    pub most_attached: usize,
    pub attaches: u64,
    /// So many of the next ones are refused.
    pub refused_attaches: u64,
    /// The kernel does not answer a search for groups.
    pub hangs: bool,
    /// Control groups that a search leaves out.
    pub unvisited: usize,
    /// Why groups have to be attached anew, once.
    pub change: Option<String>,
    /// What prevents the changes that a new configuration needs.
    pub unprepared: Option<String>,
}

impl World {
    pub fn fast_pages(&self) -> u64 {
        self.programs.values().map(|p| p.fast.count() as u64).sum()
    }
}

#[derive(Clone)]
pub struct Fake {
    pub world: Arc<Mutex<World>>,
    pub fast_pages: u64,
    /// Most fast memory ever in use.
    pub peak: Arc<AtomicU64>,
}

pub struct FakeTracker {
    pub fake: Fake,
    pub cgroup: String,
    pub pid: u32,
    pub period: u64,
    pub stop: Arc<AtomicBool>,
    pub layout: Arc<Layout>,
}

impl Tracker for FakeTracker {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn observe(&mut self) -> Result<Observation, MachineError> {
        std::thread::sleep(Duration::from_millis(2));
        let mut world = self.fake.world.lock().unwrap();
        if self.stop.load(Ordering::Relaxed) {
            return Ok(Observation::Ended);
        }
        let Some(program) = world.programs.get_mut(&self.cgroup).filter(|p| p.pid == self.pid)
        else {
            return Ok(Observation::Ended);
        };
        if let Some(fault) = program.fault.take() {
            return Err(MachineError(fault));
        }
        if self.layout.pages() as u64 != program.pages {
            self.layout = layout(program);
        }
        let accessed = (0..program.pages).map(|page| (program.hot)(self.period, page)).collect();
        let mut scan =
            Scan::new(self.period, Arc::clone(&self.layout), accessed, program.fast.clone());
        scan.lost_periods = std::mem::take(&mut program.lost_periods);
        self.period += 1;
        Ok(Observation::Period(scan))
    }
}

pub struct FakeMover {
    pub fake: Fake,
    pub cgroup: String,
}

impl Mover for FakeMover {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn apply(&mut self, plan: &Plan) -> Result<Outcome, MachineError> {
        let mut world = self.fake.world.lock().unwrap();
        let (up, down) = plan.pages(PageSize::Huge);
        if let Some(program) = world.programs.get_mut(&self.cgroup) {
            plan.apply(&layout(program), &mut program.fast);
        }
        self.fake.peak.fetch_max(world.fast_pages(), Ordering::Relaxed);
        Ok(Outcome { promoted_pages: up, demoted_pages: down, ..Outcome::default() })
    }
}

pub fn layout(program: &Program) -> Arc<Layout> {
    let extents = match program.pages {
        0 => Vec::new(),
        pages => vec![Extent { space: SpaceId(program.pid), start: HUGE, pages }],
    };
    Arc::new(Layout::new(PageSize::Huge, extents).unwrap())
}

pub struct FakeProbe {
    pub fake: Fake,
    pub cgroup: String,
}

impl Probe for FakeProbe {
    fn refusal(&mut self) -> Option<String> {
        let world = self.fake.world.lock().unwrap();
        world.programs.get(&self.cgroup).and_then(|program| program.refusal.clone())
    }

    fn pagetable_bytes(&mut self) -> Vec<u64> {
        vec![4096, 0]
    }

    fn identity(&mut self, spaces: &[SpaceId]) -> Vec<(u32, u64)> {
        spaces.iter().map(|s| (s.0, 1)).collect()
    }
}

impl Machine for Fake {
    fn groups(&mut self, _wanted: &[Wanted]) -> Result<Survey, String> {
        while self.world.lock().unwrap().hangs {
            std::thread::sleep(Duration::from_millis(1));
        }
        let world = self.world.lock().unwrap();
        let populated: Vec<String> = world.programs.keys().cloned().collect();
        Ok(Survey { visited: populated.len(), populated, unvisited: world.unvisited })
    }

    fn attach(
        &mut self,
        cgroup: &str,
        _: &Settings,
        stop: Arc<AtomicBool>,
    ) -> Result<Attached, String> {
        let mut world = self.world.lock().unwrap();
        if world.refused_attaches > 0 {
            world.refused_attaches -= 1;
            return Err("all nodes are of one tier".into());
        }
        let slot = match world.slots.iter().position(|taken| !taken) {
            Some(slot) => slot,
            None => {
                world.slots.push(false);
                world.slots.len() - 1
            }
        };
        let program = world.programs.get(cgroup).ok_or("it has gone")?;
        let (pid, layout) = (program.pid, layout(program));
        world.slots[slot] = true;
        world.attaches += 1;
        let attached = world.slots.iter().filter(|s| **s).count();
        world.most_attached = world.most_attached.max(attached);
        let (fake, cgroup) = (self.clone(), cgroup.to_owned());
        Ok(Attached {
            slot: slot as u32,
            tracker: Box::new(FakeTracker {
                fake: fake.clone(),
                cgroup: cgroup.clone(),
                pid,
                period: 0,
                stop,
                layout,
            }),
            mover: Box::new(FakeMover { fake: fake.clone(), cgroup: cgroup.clone() }),
            costs: Costs::default(),
            probe: Box::new(FakeProbe { fake, cgroup }),
        })
    }

    fn release(&mut self, slot: u32) {
        self.world.lock().unwrap().slots[slot as usize] = false;
    }

    fn status(&mut self) -> MachineStatus {
        let used = self.world.lock().unwrap().fast_pages();
        MachineStatus {
            fast_bytes: self.fast_pages * HUGE,
            fast_free_bytes: self.fast_pages.saturating_sub(used) * HUGE,
            latency_ratio: Some(3.0),
            ..MachineStatus::default()
        }
    }

    fn prepare(&mut self, _: &Config) -> Result<(), String> {
        self.world.lock().unwrap().unprepared.take().map_or(Ok(()), Err)
    }

    fn watch(&mut self) -> Option<String> {
        self.world.lock().unwrap().change.take()
    }

    fn boot(&mut self) -> String {
        "boot".into()
    }

    fn identity(&mut self, cgroup: &str, period_ms: u64) -> Identity {
        let world = self.world.lock().unwrap();
        let processes = world.programs.get(cgroup).map(|p| (p.pid, 1)).into_iter().collect();
        Identity { cgroup: cgroup.to_owned(), boot: "boot".into(), processes, period_ms }
    }
}

/// A running service and its made-up machine.
pub struct Run {
    pub fake: Fake,
    pub board: Arc<Board>,
    pub orders: mpsc::Sender<Order>,
    pub stop: Arc<AtomicBool>,
    pub thread: Option<std::thread::JoinHandle<()>>,
    pub config: PathBuf,
    pub folder: Arc<tempfile::TempDir>,
}

impl Run {
    pub fn start(groups: &str, fast_pages: u64) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let world = Arc::new(Mutex::new(World::default()));
        let fake = Fake { world, fast_pages, peak: Arc::default() };
        Self::start_on(fake, folder, groups)
    }

    pub fn start_on(fake: Fake, folder: Arc<tempfile::TempDir>, groups: &str) -> Self {
        Self::start_notifying(fake, folder, groups, Notifier::default())
    }

    pub fn start_notifying(
        fake: Fake,
        folder: Arc<tempfile::TempDir>,
        groups: &str,
        notifier: Notifier,
    ) -> Self {
        let config = folder.path().join("terraced.toml");
        std::fs::write(&config, text(folder.path(), groups)).unwrap();
        let board = Arc::new(Board::default());
        let (orders, ordered) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let read = Config::read(&config).unwrap();
        let service = (fake.clone(), config.clone(), Arc::clone(&board), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let (machine, config, board, stop) = service;
            let service = Service::new(machine, &config, read, board).notifying(notifier);
            service.run(&ordered, &stop, &AtomicBool::new(false));
        });
        Run { fake, board, orders, stop, thread: Some(thread), config, folder }
    }

    pub fn program(&self, cgroup: &str, pages: u64, hot: fn(u64, u64) -> bool) {
        let mut world = self.fake.world.lock().unwrap();
        let pid = 100 + world.attaches as u32 + world.programs.len() as u32;
        // As the kernel places them: fast memory first.
        let free = self.fake.fast_pages.saturating_sub(world.fast_pages());
        let fast = (0..pages).map(|p| p < free).collect();
        let program =
            Program { pid, pages, hot, fast, fault: None, refusal: None, lost_periods: 0 };
        world.programs.insert(cgroup.to_owned(), program);
    }

    pub fn world<T>(&self, f: impl FnOnce(&mut World) -> T) -> T {
        f(&mut self.fake.world.lock().unwrap())
    }

    pub fn ask(&self, request: Request) -> Result<serde_json::Value, String> {
        let (answer, answered) = mpsc::channel();
        self.orders.send(Order { request, answer }).unwrap();
        answered.recv_timeout(Duration::from_secs(60)).unwrap()
    }

    pub fn reload(&self, groups: &str) -> Result<serde_json::Value, String> {
        std::fs::write(&self.config, text(self.folder.path(), groups)).unwrap();
        self.ask(Request::Reload {})
    }

    /// Waits until the status is as wanted.
    #[track_caller]
    pub fn until(&self, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
        let begin = Instant::now();
        loop {
            let status = self.board.status();
            if wanted(&status) {
                return status;
            }
            assert!(begin.elapsed() < Duration::from_secs(90), "never {what}: {status:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn end(mut self) -> (Fake, Arc<tempfile::TempDir>) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        (self.fake.clone(), Arc::clone(&self.folder))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(|t| t.join());
    }
}

/// Periods of milliseconds: by the default bandwidth a huge page would take several.
pub fn text(folder: &Path, groups: &str) -> String {
    format!(
        "[daemon]\nperiod_ms = {}\nbandwidth = 0\ndiscover_ms = 50\nmax_groups = 4\nstate = \"{}\"\n\
         [sharing]\nfast = \"100%\"\nevery_ms = 50\nmax_loss = 1.0\n{groups}",
        PERIOD.as_millis(),
        folder.join("state").display()
    )
}

pub fn group<'a>(status: &'a Status, name: &str) -> Option<&'a GroupStatus> {
    status.groups.iter().find(|g| g.name == name)
}
