//! A group whose processes come and go, with a sampler that was made up.

use std::sync::atomic::AtomicU32;

use super::*;
use crate::shared_memory::SharedMemory;
use crate::testing::BasePages;

/// Cannot begin so many times, as if a process had ended meanwhile; then every period is complete.
struct Begins {
    fails: u32,
    tried: Arc<AtomicU32>,
    pages: usize,
}

impl Sampler for Begins {
    fn name(&self) -> &'static str {
        "made up"
    }
    fn start(&mut self, layout: &Layout) -> Result<(), StepError> {
        self.pages = layout.pages();
        if self.tried.fetch_add(1, Ordering::Relaxed) < self.fails {
            let source = std::io::Error::from_raw_os_error(libc::ESRCH);
            return Err(
                FileError::Write { path: "state".into(), value: "on".into(), source }.into()
            );
        }
        Ok(())
    }
    fn wait(&mut self, _: Instant, _: &mut dyn FnMut() -> bool) -> Result<Waited, StepError> {
        let accessed = PageBits::new(self.pages);
        let observed = Observed { accessed, counts: None, active: None };
        Ok(Waited::Complete { observed, superseded: 0 })
    }
    fn interval(&self) -> Duration {
        Duration::from_millis(1)
    }
    fn stop(&mut self) -> Result<(), FileError> {
        Ok(())
    }
}

/// A tracker of this process, with periods of a millisecond.
fn tracker(sampler: Begins) -> GroupTracker {
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
    GroupTracker::new(
        &Roots::default(),
        Source::Pids(vec![std::process::id()]),
        options,
        Box::new(sampler),
        Box::new(BasePages::default()),
        nodes.clone(),
        RangeTiers::new(nodes),
        SharedTrackerState::default(),
        Costs::default(),
    )
}

#[test]
fn processes_that_come_and_go_cost_periods_and_never_the_group() {
    let tried = Arc::new(AtomicU32::new(0));
    let mut tracker = tracker(Begins { fails: 7, tried: Arc::clone(&tried), pages: 0 });
    let mut lost = 0;
    let scan = loop {
        match tracker.observe() {
            Ok(Observation::Period(scan)) => break scan,
            Ok(Observation::Lost { periods, .. }) => lost += periods,
            Ok(Observation::Ended) => panic!("the group ended"),
            // Kernels without PAGEMAP_SCAN have no layout of this process.
            Err(e) if tried.load(Ordering::Relaxed) == 0 => return println!("not tried: {e}"),
            Err(e) => panic!("{e}"),
        }
    };
    assert_eq!((lost, scan.lost_periods, tried.load(Ordering::Relaxed)), (2, 2, 8));
}
