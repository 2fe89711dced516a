//! Running the windows of a rack, on one thread of the host or on several.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::Time;
use crate::simulate::{Cell, Rack, RunError};

impl Rack {
    pub(super) fn advance(&mut self, threads: usize) -> Result<(), RunError> {
        let threads = threads.clamp(1, self.cells.len());
        let switch = self.cells.len() - 1;
        if threads == 1 {
            while let Some((begin, end)) = self.next_window()? {
                for cell in &mut self.cells {
                    if cell.next < end || !cell.inbox.is_empty() {
                        cell.run(begin, end, switch);
                    }
                }
                self.exchange();
                self.sample();
            }
        } else {
            self.advance_together(threads)?;
        }
        if let Some(problem) = self.problem() {
            return Err(problem);
        }
        Ok(())
    }

    /// [`Self::advance`] with several threads: each takes the next component that is not taken.
    fn advance_together(&mut self, threads: usize) -> Result<(), RunError> {
        let shared = Shared::new(std::mem::take(&mut self.cells));
        let result = std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(|| shared.follow());
            }
            loop {
                self.cells = shared.collect();
                if self.windows > 0 {
                    self.exchange();
                    self.sample();
                }
                let next = match self.next_window() {
                    Ok(Some(next)) => next,
                    other => {
                        shared.stop.store(true, Ordering::Release);
                        return other.map(|_| ());
                    }
                };
                shared.run_window(&mut self.cells, next);
            }
        });
        if self.cells.is_empty() {
            self.cells = shared.collect();
        }
        result
    }
}

/// State that the threads of a run share.
struct Shared {
    cells: Vec<Mutex<Option<Cell>>>,
    switch: usize,
    window: Mutex<(Time, Time)>,
    /// The round in the upper half, the next component in the lower: a thread that is late for a
    /// round takes nothing of the next.
    taken: AtomicU64,
    /// Components that are done in this round.
    finished: AtomicUsize,
    round: AtomicU64,
    stop: AtomicBool,
    /// Rethrown in the calling thread: the others would wait for a panicked thread for ever.
    panicked: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Shared {
    fn new(cells: Vec<Cell>) -> Self {
        Shared {
            switch: cells.len() - 1,
            cells: cells.into_iter().map(|c| Mutex::new(Some(c))).collect(),
            window: Mutex::new((0, 0)),
            taken: AtomicU64::new(u64::from(u32::MAX)),
            finished: AtomicUsize::new(0),
            round: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            panicked: Mutex::new(None),
        }
    }

    /// Takes the components back.
    fn collect(&self) -> Vec<Cell> {
        self.cells.iter().filter_map(|c| c.lock().ok().and_then(|mut c| c.take())).collect()
    }

    /// Runs all components in a window, together with the other threads.
    fn run_window(&self, cells: &mut Vec<Cell>, window: (Time, Time)) {
        let count = cells.len();
        for (slot, cell) in self.cells.iter().zip(cells.drain(..)) {
            *slot.lock().expect("no panic holds a component") = Some(cell);
        }
        *self.window.lock().expect("no panic holds the window") = window;
        self.finished.store(0, Ordering::Release);
        let this = self.round.load(Ordering::Relaxed) + 1;
        self.taken.store(this << 32, Ordering::Release);
        self.round.store(this, Ordering::Release);
        self.work(this, window);
        let mut spins = 0;
        while self.finished.load(Ordering::Acquire) < count {
            spin(&mut spins);
        }
        if let Some(panic) = self.panicked.lock().ok().and_then(|mut p| p.take()) {
            self.stop.store(true, Ordering::Release);
            resume_unwind(panic);
        }
    }

    /// Runs components of one round after the other, until the end.
    fn follow(&self) {
        let mut seen = 0;
        loop {
            let mut spins = 0;
            while self.round.load(Ordering::Acquire) == seen {
                if self.stop.load(Ordering::Acquire) {
                    return;
                }
                spin(&mut spins);
            }
            seen = self.round.load(Ordering::Acquire);
            let window = *self.window.lock().expect("no panic holds the window");
            self.work(seen, window);
        }
    }

    /// Runs components that no other thread has taken in this round.
    fn work(&self, this: u64, (begin, end): (Time, Time)) {
        loop {
            let claim = self.taken.load(Ordering::Acquire);
            let n = (claim & 0xFFFF_FFFF) as usize;
            if claim >> 32 != this || n >= self.cells.len() {
                break;
            }
            let (to, order) = (claim + 1, Ordering::AcqRel);
            if self.taken.compare_exchange(claim, to, order, Ordering::Relaxed).is_err() {
                continue;
            }
            if let Ok(mut cell) = self.cells[n].lock()
                && let Some(cell) = cell.as_mut()
                && (cell.next < end || !cell.inbox.is_empty())
            {
                let run = AssertUnwindSafe(|| cell.run(begin, end, self.switch));
                if let Err(panic) = catch_unwind(run)
                    && let Ok(mut first) = self.panicked.lock()
                {
                    first.get_or_insert(panic);
                }
            }
            self.finished.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// Waits a moment, and gives the processor away after many.
fn spin(spins: &mut u32) {
    *spins += 1;
    if *spins < 200 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}
