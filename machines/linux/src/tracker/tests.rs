//! A group whose processes come and go, with a sampler that was made up.

use std::process::{Child, Command};
use std::sync::atomic::AtomicU32;

use super::*;
use crate::shared_memory::SharedMemory;
use crate::testing::BasePages;

/// Cannot begin so many times; then every period is complete. One of these processes ends each time,
/// while there are some.
struct Begins {
    fails: u32,
    processes: Vec<Child>,
    tried: Arc<AtomicU32>,
    pages: usize,
    /// After the first period the next one begins so late, for the sampler was set up meanwhile.
    late: Option<Duration>,
    begun: Option<Instant>,
}

impl Sampler for Begins {
    fn name(&self) -> &'static str {
        "made up"
    }
    fn start(&mut self, layout: &Layout) -> Result<(), StepError> {
        self.pages = layout.pages();
        if self.tried.fetch_add(1, Ordering::Relaxed) < self.fails {
            if let Some(mut process) = self.processes.pop() {
                process.kill().unwrap();
                process.wait().unwrap();
            }
            let source = std::io::Error::from_raw_os_error(libc::ESRCH);
            return Err(
                FileError::Write { path: "state".into(), value: "on".into(), source }.into()
            );
        }
        Ok(())
    }
    fn wait(&mut self, since: Instant, _: &mut dyn FnMut() -> bool) -> Result<Waited, StepError> {
        self.begun = self.late.take().map(|late| since + Duration::from_millis(1) + late);
        let accessed = PageBits::new(self.pages);
        let observed = Observed { accessed, counts: None, active: None };
        Ok(Waited::Complete { observed, superseded: 0 })
    }
    fn begun(&mut self) -> Option<Instant> {
        self.begun.take()
    }
    fn interval(&self) -> Duration {
        Duration::from_millis(1)
    }
    fn stop(&mut self) -> Result<(), FileError> {
        Ok(())
    }
}

impl Drop for Begins {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A tracker of this process and those that end, with periods of a millisecond; how often it tried to
/// begin.
fn tracker(fails: u32, processes: usize) -> (GroupTracker, Arc<AtomicU32>) {
    tracker_of(fails, processes, None)
}

/// The same whose second period begins so late.
fn tracker_of(
    fails: u32,
    processes: usize,
    late: Option<Duration>,
) -> (GroupTracker, Arc<AtomicU32>) {
    let processes: Vec<Child> =
        (0..processes).map(|_| Command::new("sleep").arg("1000").spawn().unwrap()).collect();
    let pids = processes.iter().map(Child::id).chain([std::process::id()]).collect();
    let tried = Arc::new(AtomicU32::new(0));
    let sampler =
        Begins { fails, processes, tried: Arc::clone(&tried), pages: 0, late, begun: None };
    let nodes = TierNodes { fast: vec![0], slow: vec![1] };
    let options = TrackerOptions {
        period: Duration::from_millis(1),
        page_size: PageSize::Base,
        by_range: false,
        cap_pages: 16,
        keep_empty: false,
        flush: None,
        signals: Vec::new(),
        shared_memory: Arc::new(SharedMemory::default()).join(),
        tables: None,
        stop: None,
    };
    let tracker = GroupTracker::new(
        &Roots::default(),
        Source::Pids(pids),
        options,
        Box::new(sampler),
        Box::new(BasePages::default()),
        nodes.clone(),
        RangeTiers::new(nodes),
        SharedTrackerState::default(),
        Costs::default(),
    );
    (tracker, tried)
}

/// The first scan and the periods lost before it, or why there is none. `None` on a kernel without
/// PAGEMAP_SCAN, which has no layout of these processes.
fn first_scan(tracker: &mut GroupTracker, tried: &AtomicU32) -> Option<Result<(u32, u32), String>> {
    let mut lost = 0;
    loop {
        match tracker.observe() {
            Ok(Observation::Period(scan)) => return Some(Ok((lost, scan.lost_periods))),
            Ok(Observation::Lost { periods, .. }) => lost += periods,
            Ok(Observation::Ended) => panic!("the group ended"),
            Err(_) if tried.load(Ordering::Relaxed) == 0 => return None,
            Err(error) => return Some(Err(error.to_string())),
        }
    }
}

#[test]
fn processes_that_come_and_go_cost_periods_and_never_the_group() {
    let (mut tracker, tried) = tracker(7, 7);
    let Some(scan) = first_scan(&mut tracker, &tried) else { return println!("not tried") };
    assert_eq!(scan, Ok((2, 2)), "periods lost");
    // More often where this process's own memory has changed meanwhile.
    assert!(tried.load(Ordering::Relaxed) >= 8);
}

#[test]
fn what_is_refused_though_no_process_has_ended_is_an_error() {
    let (mut tracker, tried) = tracker(100, 0);
    let Some(scan) = first_scan(&mut tracker, &tried) else { return println!("not tried") };
    assert!(scan.as_ref().is_err_and(|error| error.contains("No such process")), "{scan:?}");
    assert_eq!(tried.load(Ordering::Relaxed), START_ATTEMPTS);
}

#[test]
fn no_more_is_lost_than_passed_before_the_period_that_runs() {
    let (mut tracker, tried) = tracker(0, 0);
    let Some(scan) = first_scan(&mut tracker, &tried) else { return println!("not tried") };
    scan.unwrap();
    // This process's own memory may have changed meanwhile.
    (tracker.lost, tracker.unreported) = (0, None);
    let mut lost = |tenths_before: u32| {
        let begin = Instant::now();
        let period = tracker.options.period;
        // Setting up went on beside the period, for long.
        std::thread::sleep(3 * period);
        tracker.unseen(begin, begin + period * tenths_before / 10);
        let lost = tracker.unreported.take().map_or(0, |(periods, _)| periods);
        assert_eq!(std::mem::take(&mut tracker.lost), lost);
        lost
    };
    assert_eq!((lost(4), lost(24)), (0, 2));
}

#[test]
fn the_time_in_which_a_sampler_was_set_up_for_another_interval_is_lost() {
    let (mut tracker, tried) = tracker_of(0, 0, Some(Duration::from_micros(2_400)));
    let Some(scan) = first_scan(&mut tracker, &tried) else { return println!("not tried") };
    assert_eq!(scan, Ok((0, 0)), "the period before was complete");
    match tracker.observe().unwrap() {
        // More where this process's own memory has changed meanwhile.
        Observation::Lost { periods, reason } => assert!(periods >= 2, "{periods}: {reason}"),
        other => panic!("{other:?}"),
    }
}
