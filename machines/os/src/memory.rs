//! All nodes together: choosing one, watermarks, and reclaim.

use std::collections::VecDeque;

use terrace_core::page::PageSize;
use terrace_hardware::units::Picoseconds;

use crate::config::{Node, NodeMemory, OsConfig, Tier, linux_watermarks};
use crate::costs::{CostTable, ns};
use crate::counters::Counters;
use crate::frames::{FRAME_BYTES, FRAMES_PER_HUGE, Frames, Owner};

/// Frames that one pass of reclaim frees at most (Linux: `SWAP_CLUSTER_MAX`).
const RECLAIM_BATCH: usize = 32;

const MIN: usize = 0;
const LOW: usize = 1;
const HIGH: usize = 2;

#[derive(Debug, Clone)]
pub(crate) struct NodeState {
    pub(crate) tier: Tier,
    pub(crate) frames: Frames,
    /// Watermarks in frames: min, low, high.
    marks: [u64; 3],
    /// Clean page cache, oldest first.
    cache: VecDeque<u64>,
}

/// Which nodes may serve an allocation, in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// This node first, then those after it, then those before it.
    From(usize),
    /// This node alone.
    Only(usize),
    /// The nodes of the fastest tier alone.
    Fastest,
}

/// An allocated frame or block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed {
    pub(crate) frame: u64,
    pub(crate) node: usize,
    /// Delay beyond that of an allocation that finds a frame at once.
    pub(crate) delay: Picoseconds,
}

#[derive(Debug, Clone)]
pub(crate) struct Memory {
    pub(crate) nodes: Vec<NodeState>,
    /// How many of the nodes, from the first, are in the fastest tier.
    fast_nodes: usize,
}

impl Memory {
    pub(crate) fn new(config: &OsConfig, nodes: &[NodeMemory]) -> Self {
        let total: u64 = nodes.iter().map(|n| n.capacity_bytes).sum();
        let state = |n: &NodeMemory| {
            let marks = match config.watermarks.get(usize::from(n.tier.0)) {
                Some(w) => [w.min, w.low, w.high].map(|s| (s * n.capacity_bytes as f64) as u64),
                None => linux_watermarks(n.capacity_bytes, total),
            };
            NodeState {
                tier: n.tier,
                frames: Frames::new(n.start, n.capacity_bytes),
                marks: marks.map(|bytes| bytes.div_ceil(FRAME_BYTES)),
                cache: VecDeque::new(),
            }
        };
        Memory {
            nodes: nodes.iter().map(state).collect(),
            fast_nodes: nodes.iter().filter(|n| n.tier == Tier::FAST).count(),
        }
    }

    /// The node that holds a frame.
    pub(crate) fn node_of(&self, frame: u64) -> usize {
        self.nodes.iter().position(|n| n.frames.contains(frame)).expect("a frame of some node")
    }

    pub(crate) fn is_fast(&self, frame: u64) -> bool {
        self.nodes[..self.fast_nodes].iter().any(|n| n.frames.contains(frame))
    }

    pub(crate) fn is_fast_node(&self, node: usize) -> bool {
        node < self.fast_nodes
    }

    pub(crate) fn owner(&self, frame: u64) -> Owner {
        self.nodes[self.node_of(frame)].frames.owner(frame)
    }

    pub(crate) fn own(&mut self, frame: u64, size: PageSize, owner: Owner) {
        let node = self.node_of(frame);
        self.nodes[node].frames.own(frame, size, owner);
    }

    /// Frees a frame or block; returns its node.
    pub(crate) fn give_back(&mut self, frame: u64, size: PageSize) -> usize {
        let node = self.node_of(frame);
        self.nodes[node].frames.give_back(frame, size);
        node
    }

    fn candidate(&self, order: Order, step: usize) -> Option<usize> {
        let count = self.nodes.len();
        match order {
            Order::From(first) => (step < count).then(|| (first + step) % count),
            Order::Only(node) => (step == 0).then_some(node),
            Order::Fastest => (step < self.fast_nodes).then_some(step),
        }
    }

    /// Takes from the first node of `order` that stays at its watermark, but not from the fastest
    /// tier when `avoid_fast`.
    fn try_marks(
        &mut self,
        size: PageSize,
        order: Order,
        owner: Owner,
        mark: usize,
        avoid_fast: bool,
    ) -> Option<(u64, usize)> {
        let need = size.bytes() / FRAME_BYTES;
        for step in 0.. {
            let node = self.candidate(order, step)?;
            if avoid_fast && self.is_fast_node(node) {
                continue;
            }
            let n = &mut self.nodes[node];
            if n.frames.free() >= need + n.marks[mark]
                && let Some(frame) = n.frames.take(size, owner)
            {
                return Some((frame, node));
            }
        }
        None
    }

    /// Whether `frames` more frames fit above a node's minimum.
    pub(crate) fn has_room(&self, node: usize, frames: u64) -> bool {
        let n = &self.nodes[node];
        n.frames.free() >= frames + n.marks[MIN]
    }

    /// Takes a base frame or a block above the low watermark, or above the minimum when there is
    /// no node above low; no reclaim.
    pub(crate) fn take_easily(
        &mut self,
        size: PageSize,
        order: Order,
        owner: Owner,
        avoid_fast: bool,
    ) -> Option<(u64, usize)> {
        self.try_marks(size, order, owner, LOW, avoid_fast)
            .or_else(|| self.try_marks(size, order, owner, MIN, avoid_fast))
    }

    /// Takes a base frame, however long that takes: above the low watermark, else above the minimum
    /// with background reclaim woken, else by direct reclaim (Linux's `get_page_from_freelist` and
    /// `__alloc_pages_slowpath`). `None` when reclaim finds nothing either: memory has run out for
    /// this order of nodes.
    pub(crate) fn take_base(
        &mut self,
        order: Order,
        owner: Owner,
        avoid_fast: bool,
        retries: u32,
        costs: &CostTable,
        counters: &mut Counters,
    ) -> (Option<Placed>, Picoseconds) {
        let size = PageSize::Base;
        let placed = |(frame, node), delay| (Some(Placed { frame, node, delay }), delay);
        if let Some(found) = self.try_marks(size, order, owner, LOW, avoid_fast) {
            return placed(found, Picoseconds::ZERO);
        }
        counters.slow_allocations += 1;
        self.reclaim_in_background(order, costs, counters);
        let found = self.try_marks(size, order, owner, LOW, avoid_fast).or_else(|| {
            let found = self.try_marks(size, order, owner, MIN, avoid_fast);
            // A group's limit gives way before a program dies.
            found.or_else(|| self.try_marks(size, order, owner, MIN, false))
        });
        if let Some(found) = found {
            return placed(found, Picoseconds::ZERO);
        }
        let mut delay = ns(costs.compact_ns, 1);
        for _ in 0..retries {
            counters.reclaim_passes += 1;
            let freed = self.reclaim(order, RECLAIM_BATCH);
            counters.reclaimed_frames += freed;
            delay += ns(costs.reclaim_pass_ns, 1) + ns(costs.reclaim_frame_ns, freed);
            if let Some(found) = self.try_marks(size, order, owner, MIN, false) {
                return placed(found, delay);
            }
        }
        (None, delay)
    }

    /// Drops the oldest page cache of each node of `order`, so many frames at most.
    fn reclaim(&mut self, order: Order, most: usize) -> u64 {
        let mut freed = 0;
        for step in 0.. {
            let Some(node) = self.candidate(order, step) else { break };
            for _ in 0..most {
                let Some(frame) = self.nodes[node].cache.pop_front() else { break };
                self.nodes[node].frames.give_back(frame, PageSize::Base);
                freed += 1;
            }
        }
        freed
    }

    /// The work of the kernel's own thread when a node is below its low watermark: drop page cache
    /// until the node is above the high one.
    fn reclaim_in_background(&mut self, order: Order, costs: &CostTable, counters: &mut Counters) {
        for step in 0.. {
            let Some(node) = self.candidate(order, step) else { break };
            let n = &mut self.nodes[node];
            let missing = n.marks[HIGH].saturating_sub(n.frames.free()) as usize;
            let freed = self.reclaim(Order::Only(node), missing);
            counters.background_reclaimed_frames += freed;
            counters.background_ps += ns(costs.reclaim_frame_ns, freed).0;
        }
    }

    /// Fills a node with clean page cache, as reading files does, down to its high watermark at
    /// most. Returns the bytes filled.
    pub(crate) fn fill_cache(&mut self, node: Node, bytes: u64) -> u64 {
        let n = &mut self.nodes[node.index()];
        let room = n.frames.free().saturating_sub(n.marks[HIGH]);
        let frames = (bytes / FRAME_BYTES).min(room);
        for _ in 0..frames {
            let frame = n.frames.take(PageSize::Base, Owner::Cache).expect("there is room");
            n.cache.push_back(frame);
        }
        frames * FRAME_BYTES
    }

    /// Whether there are enough free frames for a huge page, but not in one block.
    pub(crate) fn is_fragmented(&self, node: usize) -> bool {
        self.has_room(node, FRAMES_PER_HUGE) && self.nodes[node].frames.free_huge() == 0
    }
}
