//! The path of a reference through the filter: its access, and the levels of the cache.

use terrace_recorder::cache::NO_LINE;
use terrace_recorder::filter::{self, First, Missed, USUAL_LINE_BYTES};
use terrace_recordings::reference::{Filter, Level};

use crate::thread::{PENDING, SECOND, Thread, UNFILTERED, Waiting};

impl Thread {
    /// A load or store, made `before_end` instructions before the end of the block under way. For
    /// filters of the usual shape ([`Self::is_usual`]).
    #[inline(always)]
    pub fn access_usual(&mut self, address: u64, size_log2: u8, store: bool, before_end: u64) {
        self.accesses[usize::from(store)] += 1;
        let last = address.wrapping_add((1 << size_log2) - 1);
        if address ^ last >= USUAL_LINE_BYTES {
            return self.access_usual_two(address, size_log2, store, before_end);
        }
        if let Some(left) = self.front.use_line(address, store) {
            let what = self.what(size_log2, store, before_end);
            self.wait(Waiting { missed: Missed { line: NO_LINE, left }, address, what });
        }
    }

    /// A reference that spans two lines.
    #[cold]
    #[inline(never)]
    fn access_usual_two(&mut self, address: u64, size_log2: u8, store: bool, before_end: u64) {
        let what = self.what(size_log2, store, before_end);
        let mut second = 0;
        if let Some(left) = self.front.use_line(address, store) {
            self.wait(Waiting { missed: Missed { line: NO_LINE, left }, address, what });
            second = SECOND;
        }
        let last = address.wrapping_add((1 << size_log2) - 1);
        if let Some(left) = self.front.use_line(last, store) {
            // The line number is in `line`.
            let missed = Missed { line: last, left };
            self.wait(Waiting { missed, address, what: what | second });
        }
    }

    /// Whether [`Self::access_usual`] handles this filter.
    pub fn is_usual(filter: &Filter) -> bool {
        filter.level > Level::None && First::is_usual(filter)
    }

    #[inline(always)]
    fn what(&self, size_log2: u8, store: bool, before_end: u64) -> u64 {
        let instructions = self.executed().wrapping_sub(before_end);
        instructions << 5 | u64::from(size_log2) << 1 | u64::from(store)
    }

    /// A load or store, for any other filter.
    #[inline]
    pub fn access(&mut self, address: u64, size_log2: u8, store: bool, before_end: u64) {
        self.accesses[usize::from(store)] += 1;
        let line = address >> self.line_shift;
        let last = address.wrapping_add((1 << size_log2) - 1) >> self.line_shift;
        let mut missed = Missed { line: NO_LINE, left: NO_LINE };
        if !self.all {
            match self.first.use_line(line, store) {
                Some(line) => missed = line,
                None if line == last => return,
                None => {}
            }
        }
        let what = self.what(size_log2, store, before_end);
        if line == last || self.all {
            self.wait(Waiting { missed, address, what });
        } else {
            self.access_two(last, Waiting { missed, address, what });
        }
    }

    /// Goes on with a reference that spans two lines.
    #[cold]
    fn access_two(&mut self, last: u64, mut waiting: Waiting) {
        if waiting.missed.line != NO_LINE {
            self.wait(waiting);
            waiting.what |= SECOND;
        }
        if let Some(missed) = self.first.use_line(last, waiting.what & 1 != 0) {
            self.wait(Waiting { missed, ..waiting });
        }
    }

    #[inline(always)]
    fn wait(&mut self, waiting: Waiting) {
        self.unfiltered[self.waiting % UNFILTERED] = waiting;
        self.waiting += 1;
        if self.waiting >= UNFILTERED {
            self.filter_all();
        }
    }

    /// Looks up the rest of a first level of the usual shape for all waiting references; those that
    /// missed remain. Returns how many.
    fn filter_first(&mut self, count: usize) -> usize {
        let mut left = 0;
        for i in 0..count.min(UNFILTERED) {
            let mut waiting = self.unfiltered[i];
            let Missed { line, left: gone } = waiting.missed;
            let address = if line == NO_LINE { waiting.address } else { line };
            let missed = self.behind.use_line(address, gone);
            // The first line may have hit.
            if !self.missed_first {
                waiting.what &= !SECOND;
            }
            self.missed_first = missed.is_some();
            if let Some(missed) = missed {
                self.second.prefetch(missed.line);
                self.unfiltered[left] = Waiting { missed, ..waiting };
                left += 1;
            }
        }
        left
    }

    /// Sends the references that wait on to the next level.
    #[inline(never)]
    fn filter_all(&mut self) {
        [self.counts.loads, self.counts.stores] = self.accesses;
        let mut count = std::mem::take(&mut self.waiting);
        if self.process.is_usual {
            count = self.filter_first(count);
        }
        match self.process.filter.level {
            Level::None => self.each_waiting(count, |thread, waiting| {
                thread.keep(waiting);
            }),
            Level::L1 => self.each_waiting(count, |thread, waiting| {
                if !waiting.is_second() {
                    thread.counts.l1_misses += 1;
                    thread.keep(waiting);
                }
                thread.write_back(waiting.missed.left, waiting.instructions());
            }),
            Level::L2 => self.each_waiting(count, |thread, waiting| {
                let beyond = thread.second(waiting);
                if beyond.miss && !(waiting.is_second() && thread.missed_before[0]) {
                    thread.keep(waiting);
                }
                thread.missed_before[0] = beyond.miss;
                for left in beyond.left {
                    thread.write_back(left, waiting.instructions());
                }
            }),
            Level::Llc => self.each_waiting(count, |thread, mut waiting| {
                let beyond = thread.second(waiting);
                let [left, passed] = beyond.left;
                if passed != NO_LINE {
                    let missed = Missed { line: NO_LINE, left: passed };
                    thread.push(Waiting { missed, ..waiting });
                }
                if beyond.miss && !thread.missed_before[0] {
                    waiting.what &= !SECOND;
                }
                thread.missed_before[0] = beyond.miss;
                let line = if beyond.miss { waiting.missed.line } else { NO_LINE };
                if beyond.miss || left != NO_LINE {
                    thread.push(Waiting { missed: Missed { line, left }, ..waiting });
                }
            }),
        }
        if let Some(slot) = self.slot {
            self.process.shared.publish(slot, self.executed(), self.counts);
        }
    }

    #[inline(always)]
    fn each_waiting(&mut self, count: usize, mut each: impl FnMut(&mut Thread, Waiting)) {
        for i in 0..count.min(UNFILTERED) {
            let waiting = self.unfiltered[i];
            each(self, waiting);
        }
    }

    /// Looks up the second level, and counts.
    #[inline(always)]
    fn second(&mut self, waiting: Waiting) -> filter::Beyond {
        let beyond = filter::second(&mut self.second, waiting.missed);
        let again = waiting.is_second();
        self.counts.l1_misses += u64::from(!again);
        self.counts.l2_misses += u64::from(beyond.miss && !(again && self.missed_before[0]));
        beyond
    }

    #[inline]
    fn push(&mut self, waiting: Waiting) {
        for line in [waiting.missed.line, waiting.missed.left] {
            if line != NO_LINE {
                self.process.llc.prefetch(line);
            }
        }
        if self.pushed - self.popped == PENDING {
            self.judge_oldest();
        }
        self.pending[self.pushed % PENDING] = waiting;
        self.pushed += 1;
    }

    /// Looks up the last level for the oldest pending reference, whose set was prefetched.
    #[inline]
    fn judge_oldest(&mut self) {
        let waiting = self.pending[self.popped % PENDING];
        self.popped += 1;
        let beyond = filter::last(&self.process.llc, waiting.missed);
        if waiting.missed.line != NO_LINE {
            if beyond.miss && !(waiting.is_second() && self.missed_before[1]) {
                self.counts.llc_misses += 1;
                self.keep(waiting);
            }
            self.missed_before[1] = beyond.miss;
        }
        for left in beyond.left {
            self.write_back(left, waiting.instructions());
        }
    }

    fn judge_all(&mut self) {
        while self.popped < self.pushed {
            self.judge_oldest();
        }
    }

    /// Sends all waiting references through all caches.
    pub fn drain(&mut self) {
        self.filter_all();
        self.judge_all();
    }
}
