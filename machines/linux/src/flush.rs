//! Makes processors forget the translations of a program, so that its next use of a page shows.
//!
//! DAMON clears accessed bits and leaves the translations in the TLBs as they are
//! (`damon_pmdp_mkold` in mm/damon/ops-common.c). A processor that still knows a page's
//! translation does not look at the page table and sets no bit: a program with few hot pages, which
//! never leave the TLB, looks idle. Seen on an emulated machine: a single hot page of 128 was
//! missed in 2 of 5 periods.
//!
//! No interface of Linux 6.12 flushes another process's translations as such. But moving one base
//! page does: `try_to_migrate` defers the flush to `try_to_unmap_flush`, which on x86 flushes
//! everything on each processor that runs the program (`arch_tlbbatch_flush`), and a program that
//! does not run at the moment finds its translations out of date when it does. So once a period,
//! when DAMON has cleared the bits, the topmost page of the program's stack, which holds its
//! environment and little else, goes to the other tier; the next period it comes back.

use std::collections::BTreeMap;

use crate::files::FileError;
use crate::kernel::PageKernel;
use crate::mover::TierNodes;
use crate::process::{self, Process};
use crate::roots::Roots;

/// Flushes the translations of some processes.
#[derive(Debug, Default)]
pub struct Flusher {
    /// The page to move, for each process that has one.
    pages: BTreeMap<Process, Option<u64>>,
}

impl Flusher {
    /// Flushes the translations of these processes; gives the number of those for which it did
    /// not work.
    pub fn flush(
        &mut self,
        roots: &Roots,
        kernel: &mut dyn PageKernel,
        nodes: &TierNodes,
        processes: &[Process],
    ) -> Result<u64, FileError> {
        self.pages.retain(|p, _| processes.contains(p));
        let mut failed = 0;
        for &process in processes {
            let page = match self.pages.get(&process) {
                Some(page) => *page,
                None => {
                    let page = process::stack_top(roots, process.pid)?;
                    self.pages.insert(process, page);
                    page
                }
            };
            let moved = page.is_some_and(|page| move_over(kernel, nodes, process.pid, page));
            if !moved {
                failed += 1;
                // Another program may run in the process by now, with another stack.
                self.pages.remove(&process);
            }
        }
        Ok(failed)
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
    use std::time::Duration;

    /// A kernel with one page.
    struct OnePage {
        address: u64,
        node: i32,
        moves: u32,
    }

    impl PageKernel for OnePage {
        fn locate(&mut self, _: u32, addresses: &[u64], status: &mut [i32]) -> io::Result<()> {
            status[0] = if addresses[0] == self.address { self.node } else { -libc::ENOENT };
            Ok(())
        }
        fn migrate(&mut self, _: u32, _: &[u64], node: u32, status: &mut [i32]) -> io::Result<u64> {
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
            Duration::ZERO
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
        let mut kernel = OnePage { address: 0x8000, node: 0, moves: 0 };
        let mut flusher = Flusher::default();
        let processes = [5, 6].map(|pid| Process { pid, start_ticks: 0 });
        // The second has no stack that is known as such.
        assert_eq!(flusher.flush(&roots, &mut kernel, &nodes, &processes).unwrap(), 1);
        assert_eq!((kernel.node, kernel.moves), (1, 1));
        assert_eq!(flusher.flush(&roots, &mut kernel, &nodes, &processes[..1]).unwrap(), 0);
        assert_eq!((kernel.node, kernel.moves), (0, 2));
    }
}
