//! The Terrace kernel's calls for moving pages; the stock ones for the rest.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use terrace_core::interfaces::Headroom;

use crate::kernel::{LiveKernel, PageKernel};
use crate::process::Process;
use crate::tiermem::{self, Device, Target};

/// A kernel that has the device.
#[derive(Debug)]
pub(crate) struct TiermemKernel {
    stock: LiveKernel,
    device: Arc<Device>,
    /// Whether pages that other processes map too are moved.
    shared: bool,
}

impl TiermemKernel {
    pub(crate) fn new(stock: LiveKernel, device: Arc<Device>, shared: bool) -> Self {
        TiermemKernel { stock, device, shared }
    }
}

impl PageKernel for TiermemKernel {
    fn name(&self) -> &'static str {
        "tiermem"
    }

    fn locate(&mut self, pid: u32, addresses: &[u64], status: &mut [i32]) -> io::Result<()> {
        self.stock.locate(pid, addresses, status)
    }

    fn migrate(
        &mut self,
        pid: u32,
        addresses: &[u64],
        node: u32,
        status: &mut [i32],
    ) -> io::Result<u64> {
        if !self.device.features().migrate() {
            return self.stock.migrate(pid, addresses, node, status);
        }
        // Opened for each call: the number may belong to another process later.
        let process = tiermem::process(pid)?;
        let target = Target::Process(process.as_fd());
        self.device.migrate(target, addresses, node, self.shared, status)?;
        let mut left = 0;
        for status in status {
            match *status {
                0 => *status = node as i32,
                _ => left += 1,
            }
        }
        Ok(left)
    }

    fn exchanges(&self) -> bool {
        self.device.features().exchange()
    }

    fn exchange(&mut self, pid: u32, a: &[u64], b: &[u64], status: &mut [i32]) -> io::Result<()> {
        let process = tiermem::process(pid)?;
        let target = Target::Process(process.as_fd());
        self.device.exchange(target, a, b, self.shared, status).map(drop)
    }

    fn room_bytes(&mut self, node: u32) -> u64 {
        self.stock.room_bytes(node)
    }

    fn headroom(&mut self, node: u32) -> Headroom {
        self.stock.headroom(node)
    }

    fn allowed_nodes(&mut self, pid: u32) -> Option<Vec<u32>> {
        self.stock.allowed_nodes(pid)
    }

    fn alive(&mut self, pid: u32) -> Option<Process> {
        self.stock.alive(pid)
    }

    fn now(&mut self) -> Duration {
        self.stock.now()
    }

    fn sleep(&mut self, time: Duration) {
        self.stock.sleep(time);
    }
}
