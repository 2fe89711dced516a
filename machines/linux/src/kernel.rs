//! The calls to the kernel about pages that the tracker and the mover make, as a trait, so that
//! tests can replace the kernel.

use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use terrace_core::interfaces::Headroom;

use crate::numa;
use crate::process::{self, Process};
use crate::raw;
use crate::roots::Roots;

/// Calls of the mover and the tracker.
pub trait PageKernel: Send {
    /// The mechanism of migration, as shown in results.
    fn name(&self) -> &'static str {
        "move_pages"
    }

    /// Nodes of the pages at these addresses: a node or a negated errno each.
    fn locate(&mut self, pid: u32, addresses: &[u64], status: &mut [i32]) -> io::Result<()>;

    /// Moves pages to a node. `status` is written for the pages that the kernel reached; see
    /// `do_pages_move` in mm/migrate.c. Returns the number of pages not moved.
    fn migrate(
        &mut self,
        pid: u32,
        addresses: &[u64],
        node: u32,
        status: &mut [i32],
    ) -> io::Result<u64>;

    /// Whether pages can exchange places in one step.
    fn exchanges(&self) -> bool {
        false
    }

    /// Exchanges the pages at `a[i]` and `b[i]` of a process: 0 or a negated errno each.
    /// Only where [`PageKernel::exchanges`].
    fn exchange(
        &mut self,
        _pid: u32,
        _a: &[u64],
        _b: &[u64],
        _status: &mut [i32],
    ) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Bytes that a node can take: see [`numa::Room`].
    fn room_bytes(&mut self, node: u32) -> u64;

    /// What of a node is to stay free for the kernel: see [`numa::Room`].
    fn headroom(&mut self, _node: u32) -> Headroom {
        Headroom::default()
    }

    /// Nodes that a process may use; `None` if unknown.
    fn allowed_nodes(&mut self, pid: u32) -> Option<Vec<u32>>;

    /// The process of this identifier, if it lives.
    fn alive(&mut self, pid: u32) -> Option<Process>;

    /// Time since a fixed moment, the same for all kernels of this process.
    fn now(&mut self) -> Duration;

    /// Lets time pass.
    fn sleep(&mut self, time: Duration);
}

/// Time since this function was first called.
pub(crate) fn now() -> Duration {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed()
}

/// Pages located in one call: the call holds the process's address space for reading for 16 pages
/// at a time, so the number bounds only our own arrays.
const LOCATE_PAGES: usize = 4096;

/// The running kernel.
#[derive(Debug)]
pub struct LiveKernel {
    roots: Roots,
    move_flags: i32,
    nodes: Vec<i32>,
}

impl LiveKernel {
    /// `move_shared`: whether pages that other processes map too are moved, which needs
    /// CAP_SYS_NICE.
    pub fn new(roots: Roots, move_shared: bool) -> Self {
        let move_flags = if move_shared { raw::MPOL_MF_MOVE_ALL } else { raw::MPOL_MF_MOVE };
        LiveKernel { roots, move_flags, nodes: Vec::new() }
    }
}

impl PageKernel for LiveKernel {
    fn locate(&mut self, pid: u32, addresses: &[u64], status: &mut [i32]) -> io::Result<()> {
        for (addresses, status) in
            addresses.chunks(LOCATE_PAGES).zip(status.chunks_mut(LOCATE_PAGES))
        {
            raw::move_pages(pid, addresses, None, status, 0)?;
        }
        Ok(())
    }

    fn migrate(
        &mut self,
        pid: u32,
        addresses: &[u64],
        node: u32,
        status: &mut [i32],
    ) -> io::Result<u64> {
        self.nodes.clear();
        self.nodes.resize(addresses.len(), node as i32);
        raw::move_pages(pid, addresses, Some(&self.nodes), status, self.move_flags)
    }

    fn room_bytes(&mut self, node: u32) -> u64 {
        numa::room(&self.roots, node).unwrap_or_default().bytes()
    }

    fn headroom(&mut self, node: u32) -> Headroom {
        numa::room(&self.roots, node).unwrap_or_default().headroom
    }

    fn allowed_nodes(&mut self, pid: u32) -> Option<Vec<u32>> {
        process::allowed_nodes(&self.roots, pid).ok().flatten()
    }

    fn alive(&mut self, pid: u32) -> Option<Process> {
        process::alive(&self.roots, pid).ok().flatten()
    }

    fn now(&mut self) -> Duration {
        now()
    }

    fn sleep(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}
