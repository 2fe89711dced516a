//! Flushes the TLB entries of a program, so that its next access of a page sets the accessed bit.
//!
//! DAMON clears accessed bits and does not flush TLBs (`damon_pmdp_mkold` in
//! mm/damon/ops-common.c). A processor with a cached translation does not walk the page table and
//! sets no bit: a program with few hot pages, which never leave the TLB, looks idle. Observed on an
//! emulated machine: a single hot page of 128 was missed in 2 of 5 periods.
//!
//! No interface of Linux 6.12 flushes another process's translations as such. But moving one base
//! page does: `try_to_migrate` defers the flush to `try_to_unmap_flush`, which on x86 flushes
//! everything on each processor that runs the program (`arch_tlbbatch_flush`); a program that does
//! not run at the moment is flushed when it runs again. So once a period, when DAMON has cleared
//! the bits, the topmost page of the program's stack, which holds its environment and little else,
//! is moved to the other tier; in the next period it is moved back. The number of processes flushed
//! per second on a host is bounded; waiting processes take turns, and a dry run flushes none.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::kernel::PageKernel;
use crate::mover::TierNodes;
use crate::process::{self, Process};
use crate::roots::Roots;

/// Flushes per second of all groups of a host. Each is a call of `move_pages`, which empties the
/// page lists of every processor (`lru_add_drain_all`) and interrupts the processors that run the
/// program: with a thousand processes in a group, not every one can be flushed in every period.
const FLUSHES_PER_S: f64 = 16.0;

/// Remaining flushes of a host, shared by all groups. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct FlushBudget(Arc<Mutex<Bucket>>);

#[derive(Debug, Default)]
struct Bucket {
    /// When it was last filled; `None` before the first time, when it is full.
    filled: Option<Duration>,
    flushes: f64,
}

impl FlushBudget {
    /// Takes a flush at this time, if one is left.
    fn take(&self, now: Duration) -> bool {
        let mut bucket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gained = match bucket.filled {
            Some(filled) => now.saturating_sub(filled).as_secs_f64() * FLUSHES_PER_S,
            None => FLUSHES_PER_S,
        };
        bucket.filled = Some(now);
        bucket.flushes = (bucket.flushes + gained).min(FLUSHES_PER_S);
        let is_there = bucket.flushes >= 1.0;
        bucket.flushes -= f64::from(u8::from(is_there));
        is_there
    }
}

/// Result of a period's flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flushed {
    /// Processes whose flush failed.
    pub failed: u64,
    /// Processes that were not flushed because the budget was used up. They are first the next
    /// time.
    pub skipped: u64,
}

/// Flushes the translations of some processes.
#[derive(Debug, Default)]
pub struct Flusher {
    /// The page to move, for each process that has one.
    pages: BTreeMap<Process, Option<u64>>,
    /// The process flushed last: the next one is first.
    last: Option<Process>,
}

impl Flusher {
    /// Flushes the translations of these processes, ascending, as far as the budget allows.
    pub fn flush(
        &mut self,
        roots: &Roots,
        kernel: &mut dyn PageKernel,
        nodes: &TierNodes,
        budget: &FlushBudget,
        processes: &[Process],
    ) -> Flushed {
        self.pages.retain(|p, _| processes.binary_search(p).is_ok());
        let mut flushed = Flushed::default();
        let first = self.last.map_or(0, |last| processes.partition_point(|p| *p <= last));
        let (later, sooner) = processes.split_at(first);
        let in_turn = sooner.iter().chain(later);
        for (nth, &process) in in_turn.enumerate() {
            if !budget.take(kernel.now()) {
                flushed.skipped = (processes.len() - nth) as u64;
                break;
            }
            self.last = Some(process);
            // Another process may have its identifier by now.
            if kernel.alive(process.pid) != Some(process) {
                flushed.failed += 1;
                self.pages.remove(&process);
                continue;
            }
            let page = match self.pages.get(&process) {
                Some(page) => *page,
                None => {
                    // Maps that may not be read are this process's affair, not the group's.
                    let page = process::stack_top(roots, process.pid).ok().flatten();
                    self.pages.insert(process, page);
                    page
                }
            };
            let moved = page.is_some_and(|page| move_over(kernel, nodes, process.pid, page));
            if !moved {
                flushed.failed += 1;
                // The process may run another program by now, with another stack.
                self.pages.remove(&process);
            }
        }
        flushed
    }
}

/// Moves a page to the other tier.
fn move_over(kernel: &mut dyn PageKernel, nodes: &TierNodes, pid: u32, page: u64) -> bool {
    let mut status = [-libc::ENOENT];
    if kernel.locate(pid, &[page], &mut status).is_err() || status[0] < 0 {
        return false;
    }
    let goal = if nodes.is_fast(status[0]) { &nodes.slow } else { &nodes.fast };
    let allowed = kernel.allowed_nodes(pid);
    let may = |node: &&u32| allowed.as_ref().is_none_or(|a| a.contains(node));
    goal.iter().filter(may).any(|&node| {
        let moved = kernel.migrate(pid, &[page], node, &mut status);
        moved.is_ok_and(|left| left == 0) && status[0] == node as i32
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;
    use std::io;

    /// A kernel with one page. Processes have started at tick 0.
    #[derive(Default)]
    struct OnePage {
        address: u64,
        node: i32,
        moves: u32,
        moved: Vec<u32>,
        time: Duration,
    }

    impl PageKernel for OnePage {
        fn locate(&mut self, _: u32, addresses: &[u64], status: &mut [i32]) -> io::Result<()> {
            status[0] = if addresses[0] == self.address { self.node } else { -libc::ENOENT };
            Ok(())
        }
        fn migrate(
            &mut self,
            pid: u32,
            _: &[u64],
            node: u32,
            status: &mut [i32],
        ) -> io::Result<u64> {
            self.moved.push(pid);
            self.node = node as i32;
            status[0] = self.node;
            self.moves += 1;
            Ok(0)
        }
        fn room_bytes(&mut self, _: u32) -> u64 {
            0
        }
        fn allowed_nodes(&mut self, _: u32) -> Option<Vec<u32>> {
            None
        }
        fn alive(&mut self, pid: u32) -> Option<Process> {
            Some(Process { pid, start_ticks: 0 })
        }
        fn now(&mut self) -> Duration {
            self.time
        }
        fn sleep(&mut self, _: Duration) {}
    }

    #[test]
    fn the_top_of_the_stack_goes_over_and_comes_back() {
        let (_keep, roots) = folder(&[
            ("proc/5/maps", "1000-3000 rw-p 0 00:00 0\n7000-9000 rw-p 0 00:00 0 [stack]\n"),
            ("proc/6/maps", "1000-3000 rw-p 0 00:00 0\n"),
        ]);
        let nodes = TierNodes { fast: vec![0], slow: vec![1] };
        let mut kernel = OnePage { address: 0x8000, ..OnePage::default() };
        let mut flusher = Flusher::default();
        let budget = FlushBudget::default();
        let processes = [5, 6].map(|pid| Process { pid, start_ticks: 0 });
        // The second has no mapping that is marked as a stack.
        let flushed = flusher.flush(&roots, &mut kernel, &nodes, &budget, &processes);
        assert_eq!(flushed, Flushed { failed: 1, skipped: 0 });
        assert_eq!((kernel.node, kernel.moves), (1, 1));
        let flushed = flusher.flush(&roots, &mut kernel, &nodes, &budget, &processes[..1]);
        assert_eq!(flushed, Flushed::default());
        assert_eq!((kernel.node, kernel.moves), (0, 2));
    }

    #[test]
    fn a_process_whose_maps_are_denied_is_left_out_and_a_stranger_is_not_touched() {
        let (_keep, roots) = folder(&[
            ("proc/5/maps", "not a mapping\n"),
            ("proc/6/maps", "7000-9000 rw-p 0 00:00 0 [stack]\n"),
            ("proc/7/maps", "7000-9000 rw-p 0 00:00 0 [stack]\n"),
        ]);
        let nodes = TierNodes { fast: vec![0], slow: vec![1] };
        let mut kernel = OnePage { address: 0x8000, ..OnePage::default() };
        // The number of the third belongs to another process by now.
        let processes =
            [(5, 0), (6, 0), (7, 9)].map(|(pid, start_ticks)| Process { pid, start_ticks });
        let budget = FlushBudget::default();
        let flushed = Flusher::default().flush(&roots, &mut kernel, &nodes, &budget, &processes);
        assert_eq!(flushed, Flushed { failed: 2, skipped: 0 });
        assert_eq!(kernel.moved, [6]);
    }

    #[test]
    fn flushes_of_many_processes_in_many_groups_are_paced_and_everyones_turn_comes() {
        let (keep, roots) = folder(&[]);
        let processes: Vec<Process> =
            (1..=1024).map(|pid| Process { pid, start_ticks: 0 }).collect();
        for p in &processes {
            let maps = "7000-9000 rw-p 0 00:00 0 [stack]\n";
            crate::testing::put(keep.path(), &format!("proc/{}/maps", p.pid), maps);
        }
        let nodes = TierNodes { fast: vec![0], slow: vec![1] };
        let mut kernel = OnePage { address: 0x8000, ..OnePage::default() };
        let budget = FlushBudget::default();
        // Two groups with a period of a second share the host's budget.
        let mut groups = [Flusher::default(), Flusher::default()];
        let mut flushed = [std::collections::BTreeSet::new(), Default::default()];
        for second in 0..140 {
            kernel.time = Duration::from_secs(second);
            for (nth, (flusher, flushed)) in groups.iter_mut().zip(&mut flushed).enumerate() {
                // The first one gets the whole budget: they alternate here.
                if (second + nth as u64).is_multiple_of(2) {
                    kernel.moved.clear();
                    let done = flusher.flush(&roots, &mut kernel, &nodes, &budget, &processes);
                    flushed.extend(kernel.moved.iter().copied());
                    assert_eq!((done.failed, done.skipped), (0, 1024 - 16));
                }
            }
        }
        assert_eq!(kernel.moves, 140 * 16);
        assert_eq!((flushed[0].len(), flushed[1].len()), (1024, 1024));
    }
}
