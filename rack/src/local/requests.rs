//! Requests of a node's processor on their way to its memory manager.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use terrace_hardware::address::Kind as Access;
use terrace_hardware::node::MemoryPort;
use terrace_hardware::request::{Completion, Request, When};
use terrace_hardware::units::Picoseconds;

use crate::Time;
use crate::pages::TABLES_AT;

/// A request that waits for its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Queued {
    pub at: Time,
    pub sequence: u64,
    pub address: u64,
    pub id: u64,
    pub write: bool,
}

/// is served, with the mean of what local memory takes: it cannot wait.
#[derive(Debug)]
pub struct Requests {
    pub(super) queue: BinaryHeap<Reverse<Queued>>,
    pub(super) sequence: u64,
    pub(super) local_mean: Time,
}

impl MemoryPort for Requests {
    #[inline]
    fn submit(&mut self, at: Picoseconds, request: Request) -> (When, usize) {
        let address = request.address.0;
        let write = request.kind == Access::Write;
        self.sequence += 1;
        self.queue.push(Reverse(Queued {
            at: at.0,
            sequence: self.sequence,
            address,
            id: request.id.0,
            write,
        }));
        if address >= TABLES_AT {
            return (When::At(Picoseconds(at.0 + self.local_mean)), 0);
        }
        (When::Pending(request.id), 0)
    }

    fn next_completion(&mut self) -> Option<Completion> {
        None
    }
}
