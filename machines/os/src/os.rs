//! Processes, their mappings, and the calls of a machine.

mod unmap;

use std::collections::BTreeMap;

use terrace_core::page::{PageSize, SpaceId};
use terrace_hardware::error::ConfigError;
use terrace_hardware::units::Picoseconds;
use terrace_hardware::walker::MAX_LEVELS;

use crate::accessed_scan::CachedLayout;
use crate::config::{DataPolicy, Node, NodeMemory, OsConfig, ProcessSpec, TablePlacement};
use crate::costs::{CostTable, ns};
use crate::counters::{Counters, TableMoveCounts};
use crate::entry::Entry;
use crate::fault_injection::FaultInjection;
use crate::frames::{FRAME_BYTES, MAX_SPACES, Owner};
use crate::memory::{Memory, Order, Placed};
use crate::moves::Move;
pub use crate::os::unmap::Unmapped;
use crate::space::{AddressSpace, At, Mapping, ROOT};
use crate::tables::Pending;

/// Why the operating system cannot go on for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OsError {
    /// An access outside every mapping: the process dies.
    #[error("address {address:#x} of process {} is not mapped; a program may touch what it mapped", space.0)]
    Segfault {
        /// The process.
        space: SpaceId,
        /// The address accessed.
        address: u64,
    },
    /// Memory ran out on the nodes that the process may use, and a process was killed to free some.
    /// If another process was killed, the same access may be tried again.
    #[error("out of memory for process {}: killed process {}, {freed_bytes} bytes freed", space.0, killed.0)]
    OutOfMemory {
        /// The process that needed memory.
        space: SpaceId,
        /// The process that was killed: its page table is gone, and every translation of it with
        /// it.
        killed: SpaceId,
        /// Bytes that the kill freed.
        freed_bytes: u64,
        /// Time spent on the search for memory, and on the kill.
        cost: Picoseconds,
    },
    /// There is no such process, or it has ended.
    #[error("there is no process {}", .0.0)]
    NoProcess(SpaceId),
    /// The range cannot be mapped.
    #[error(
        "cannot map {size_bytes} bytes at {start:#x}: expected whole pages of 4,096 bytes, below the end of the address space, where nothing is mapped"
    )]
    BadMapping {
        /// First address.
        start: u64,
        /// Length in bytes.
        size_bytes: u64,
    },
    /// More processes were created than can be numbered.
    #[error("more than {MAX_SPACES} processes were created")]
    TooManyProcesses,
}

/// Processes that share a limit of fast memory: one and its children.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) fast_limit: u64,
    /// Frames of data in the fastest tier.
    pub(crate) fast_frames: u64,
}

impl Group {
    pub(crate) fn has_fast_room(&self, frames: u64) -> bool {
        self.fast_frames + frames <= self.fast_limit
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) space: AddressSpace,
    pub(crate) spec: ProcessSpec,
    pub(crate) group: usize,
    /// The next node of interleaved page-table pages.
    table_turn: usize,
    /// Frames of data by node.
    pub(crate) data_frames: Vec<u64>,
    /// Page-table pages by node and level.
    pub(crate) table_pages: Vec<[u64; MAX_LEVELS]>,
    /// Outcomes for its leaf tables when its data moved.
    pub(crate) table_moves: TableMoveCounts,
    /// Layouts of base pages and of huge pages.
    pub(crate) layouts: [Option<CachedLayout>; 2],
}

/// The operating system: its nodes, processes and counters.
#[derive(Debug, Clone)]
pub struct Os {
    pub(crate) config: OsConfig,
    pub(crate) costs: CostTable,
    pub(crate) memory: Memory,
    pub(crate) processes: Vec<Option<Box<Process>>>,
    pub(crate) groups: Vec<Group>,
    pub(crate) moves: BTreeMap<u32, Move>,
    pub(crate) next_move: u32,
    pub(crate) table_moves: BTreeMap<u32, Pending>,
    pub(crate) next_table_move: u32,
    pub(crate) counters: Counters,
    #[cfg(test)]
    pub(crate) fault_injection: Option<FaultInjection>,
}

/// Memory ran out, after so much time spent on the search.
pub(crate) struct Exhausted(pub(crate) Picoseconds);

impl Os {
    /// An operating system with no process on these nodes, fastest tier first.
    pub fn new(config: &OsConfig, nodes: &[NodeMemory]) -> Result<Os, ConfigError> {
        config.check(nodes)?;
        let mut os = Os {
            config: config.clone(),
            costs: config.costs.table()?,
            memory: Memory::new(config, nodes),
            processes: Vec::new(),
            groups: Vec::new(),
            moves: BTreeMap::new(),
            next_move: 0,
            table_moves: BTreeMap::new(),
            next_table_move: 0,
            counters: Counters::default(),
            #[cfg(test)]
            fault_injection: None,
        };
        for (index, node) in (0..).zip(nodes) {
            let share = config.page_cache.get(usize::from(node.tier.0)).copied().unwrap_or(0.0);
            os.fill_page_cache(Node(index), (share * node.capacity_bytes as f64) as u64);
        }
        Ok(os)
    }

    /// The costs in force.
    pub fn costs(&self) -> &CostTable {
        &self.costs
    }

    /// The counters since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.memory.nodes.len()
    }

    /// Bytes free on a node.
    pub fn free_bytes(&self, node: Node) -> u64 {
        self.memory.nodes[node.index()].frames.free() * FRAME_BYTES
    }

    /// Blocks of 2 MB that are free as a whole on a node.
    pub fn free_huge_pages(&self, node: Node) -> u64 {
        self.memory.nodes[node.index()].frames.free_huge()
    }

    /// The node that holds a physical address.
    ///
    /// # Panics
    /// When none does.
    pub fn node_of(&self, address: terrace_hardware::address::PhysicalAddress) -> Node {
        Node(self.memory.node_of(address.0) as u8)
    }

    /// The owner of a frame: the reverse map.
    ///
    /// # Panics
    /// When no node holds the address.
    pub fn owner(&self, address: terrace_hardware::address::PhysicalAddress) -> Owner {
        self.memory.owner(address.0)
    }

    /// Fills a node with clean page cache, as reading files does, at most down to its high
    /// watermark. Returns the bytes filled. Reclaim drops it again when memory is short.
    pub fn fill_page_cache(&mut self, node: Node, bytes: u64) -> u64 {
        self.memory.fill_cache(node, bytes)
    }

    /// A new process with an empty address space, in a group of its own. Its root table is
    /// allocated at once.
    pub fn create_process(&mut self, spec: ProcessSpec) -> Result<SpaceId, OsError> {
        let fast_limit = spec.fast_limit_bytes.map_or(u64::MAX, |b| b / FRAME_BYTES);
        self.groups.push(Group { fast_limit, fast_frames: 0 });
        self.add_process(spec, self.groups.len() - 1)
    }

    fn add_process(&mut self, spec: ProcessSpec, group: usize) -> Result<SpaceId, OsError> {
        let id = SpaceId(self.processes.len() as u32);
        if id.0 >= MAX_SPACES {
            return Err(OsError::TooManyProcesses);
        }
        let nodes = self.nodes();
        let mut process = Process {
            space: AddressSpace::new(id, self.config.levels, 0),
            spec,
            group,
            table_turn: 0,
            data_frames: vec![0; nodes],
            table_pages: vec![[0; MAX_LEVELS]; nodes],
            table_moves: TableMoveCounts::default(),
            layouts: [None, None],
        };
        let root_level = process.space.root_level();
        let owner = Owner::Table { space: id, address: 0, level: root_level };
        match self.allocate_table(&mut process, root_level, owner) {
            Ok((placed, _)) => process.space.tables[ROOT].frame = placed.frame,
            Err(Exhausted(cost)) => return Err(self.kill_for(id, cost)),
        }
        self.processes.push(Some(Box::new(process)));
        Ok(id)
    }

    /// Sets how much data the group of a process may have in the fastest tier. Pages beyond it stay
    /// where they are.
    ///
    /// # Panics
    /// When there is no such process.
    pub fn set_fast_limit(&mut self, id: SpaceId, bytes: u64) {
        let group = self.process(id).expect("a process that lives").group;
        self.groups[group].fast_limit = bytes / FRAME_BYTES;
    }

    /// A child of `parent`: the same mappings, policies and group, nothing touched yet. Pages
    /// shared until one side writes are not modelled: the child's first touch of a page counts as
    /// that of a fresh one.
    pub fn fork(&mut self, parent: SpaceId) -> Result<SpaceId, OsError> {
        let p = self.process(parent)?;
        let (spec, group, mappings) = (p.spec, p.group, p.space.mappings.clone());
        let child = self.add_process(spec, group)?;
        let space = &mut self.process_mut(child)?.space;
        space.mappings = mappings;
        space.generation += 1;
        Ok(child)
    }

    /// The process runs another program: everything is unmapped, the policies stay (Radiant's
    /// placement is inherited over `exec`), and the root table is allocated anew.
    pub fn exec(&mut self, id: SpaceId) -> Result<Unmapped, OsError> {
        let end = self.process(id)?.space.end();
        let unmapped = self.unmap(id, 0, end)?;
        let mut process = self.processes[id.0 as usize].take().expect("it was there");
        let level = process.space.root_level();
        self.free_tables(&mut process);
        let owner = Owner::Table { space: id, address: 0, level };
        let placed = self.allocate_table(&mut process, level, owner);
        match placed {
            Ok((placed, _)) => {
                process.space.tables[ROOT].frame = placed.frame;
                self.processes[id.0 as usize] = Some(process);
                Ok(unmapped)
            }
            Err(Exhausted(cost)) => Err(self.kill_for(id, cost)),
        }
    }

    pub(crate) fn process(&self, id: SpaceId) -> Result<&Process, OsError> {
        let slot = self.processes.get(id.0 as usize);
        slot.and_then(|p| p.as_deref()).ok_or(OsError::NoProcess(id))
    }

    pub(crate) fn process_mut(&mut self, id: SpaceId) -> Result<&mut Process, OsError> {
        let slot = self.processes.get_mut(id.0 as usize);
        slot.and_then(|p| p.as_deref_mut()).ok_or(OsError::NoProcess(id))
    }

    /// Whether the process exists.
    pub fn has_process(&self, id: SpaceId) -> bool {
        self.process(id).is_ok()
    }

    /// The address space of a process, for the walker.
    ///
    /// # Panics
    /// When there is no such process.
    #[inline]
    pub fn space(&self, id: SpaceId) -> &AddressSpace {
        &self.processes[id.0 as usize].as_ref().expect("a process that lives").space
    }

    /// The address space of a process, for the bits that a walk sets.
    ///
    /// # Panics
    /// When there is no such process.
    #[inline]
    pub fn space_mut(&mut self, id: SpaceId) -> &mut AddressSpace {
        &mut self.processes[id.0 as usize].as_mut().expect("a process that lives").space
    }

    /// Bytes of data of a process, by node.
    ///
    /// # Panics
    /// When there is no such process.
    pub fn data_bytes(&self, id: SpaceId) -> Vec<u64> {
        let p = self.process(id).expect("a process that lives");
        p.data_frames.iter().map(|f| f * FRAME_BYTES).collect()
    }

    /// Page-table pages of a process, by node and level (0 is the leaf), without deposits.
    ///
    /// # Panics
    /// When there is no such process.
    pub fn table_pages(&self, id: SpaceId) -> &[[u64; MAX_LEVELS]] {
        &self.process(id).expect("a process that lives").table_pages
    }

    /// Outcomes for the leaf tables of a process whose data moved.
    ///
    /// # Panics
    /// When there is no such process.
    pub fn table_moves(&self, id: SpaceId) -> TableMoveCounts {
        self.process(id).expect("a process that lives").table_moves
    }

    /// Bytes of data that the group of a process has in the fastest tier.
    ///
    /// # Panics
    /// When there is no such process.
    pub fn group_fast_bytes(&self, id: SpaceId) -> u64 {
        let p = self.process(id).expect("a process that lives");
        self.groups[p.group].fast_frames * FRAME_BYTES
    }

    /// Makes a range of whole base pages touchable. Nothing is allocated before the first touch.
    /// Adjacent mappings of one kind are merged, as in Linux.
    pub fn map(
        &mut self,
        id: SpaceId,
        start: u64,
        size_bytes: u64,
        huge_eligible: bool,
    ) -> Result<(), OsError> {
        let space = &mut self.process_mut(id)?.space;
        let bad = OsError::BadMapping { start, size_bytes };
        let end = start.checked_add(size_bytes).ok_or(bad)?;
        let aligned = start.is_multiple_of(FRAME_BYTES) && size_bytes.is_multiple_of(FRAME_BYTES);
        if size_bytes == 0 || !aligned || end > space.end() {
            return Err(bad);
        }
        let at = space.mappings.partition_point(|m| m.end <= start);
        if space.mappings.get(at).is_some_and(|m| m.start < end) {
            return Err(bad);
        }
        space.insert_mapping(at, Mapping { start, end, huge_eligible });
        Ok(())
    }

    /// Writes a leaf, a migration entry or nothing in place of another, and keeps the leaf table's
    /// count of pages in fast memory.
    pub(crate) fn set_leaf(&self, space: &mut AddressSpace, at: At, entry: Entry) {
        if space.tables[at.table].level == 0 && !self.does(FaultInjection::ForgetsFastPages) {
            let weight = |e: Entry| {
                u16::from(e.is_migration() || e.is_present() && self.memory.is_fast(e.frame()))
            };
            let (old, new) = (weight(space.entry(at)), weight(entry));
            let fast = &mut space.tables[at.table].fast;
            *fast = *fast + new - old;
        }
        space.write(at, entry);
    }

    /// Counts frames of data that are added to or removed from a node.
    pub(crate) fn count_data(
        &mut self,
        process: &mut Process,
        node: usize,
        frames: u64,
        come: bool,
    ) {
        let add = |count: &mut u64| if come { *count += frames } else { *count -= frames };
        add(&mut process.data_frames[node]);
        if self.memory.is_fast_node(node) {
            add(&mut self.groups[process.group].fast_frames);
        }
    }

    /// The order of nodes for the page of this size at an address. Linux interleaves memory without
    /// a file by the number of the page, whichever is touched first (`get_vma_policy`, 6.12).
    pub(crate) fn data_order(&self, process: &Process, address: u64, size: PageSize) -> Order {
        let turn = (address / size.bytes()) as usize % self.nodes();
        order_of(process.spec.data, || turn)
    }

    /// Allocates a page-table page of `level` by the process's policy. Returns it and the whole
    /// time of the allocation, without zeroing.
    pub(crate) fn allocate_table(
        &mut self,
        process: &mut Process,
        level: usize,
        owner: Owner,
    ) -> Result<(Placed, Picoseconds), Exhausted> {
        let nodes = self.nodes();
        let policy = process.spec.tables;
        let bound = match policy.placement {
            TablePlacement::BindAll => true,
            TablePlacement::BindHighLevels => level > 0,
            _ => false,
        };
        let order = match policy.placement {
            _ if bound => Order::Fastest,
            TablePlacement::FirstTouch => Order::From(0),
            TablePlacement::Interleave => Order::From(take_turn(&mut process.table_turn, nodes)),
            // Linux counts turns for memory that is not in a mapping (`interleave_nodes`).
            _ => order_of(process.spec.data, || take_turn(&mut process.table_turn, nodes)),
        };
        let mut delay = Picoseconds::ZERO;
        let mut placed = None;
        if bound && !policy.hard {
            match self.memory.take_easily(PageSize::Base, order, owner, false) {
                Some((frame, node)) => {
                    placed = Some(Placed { frame, node, delay });
                }
                None => self.counters.table_fallbacks += 1,
            }
        }
        if placed.is_none() {
            let order = if bound && !policy.hard { Order::From(0) } else { order };
            let retries = self.config.reclaim_retries;
            let counters = &mut self.counters;
            (placed, delay) =
                self.memory.take_base(order, owner, false, retries, &self.costs, counters);
        }
        let Some(placed) = placed else { return Err(Exhausted(delay)) };
        let time = delay + ns(self.costs.table_allocate_ns, 1);
        self.counters.table_allocated(time);
        if !matches!(owner, Owner::Deposit { .. }) {
            process.table_pages[placed.node][level] += 1;
        }
        Ok((placed, time))
    }
}

/// The order of nodes of a policy, with the node whose turn it is.
fn order_of(policy: DataPolicy, turn: impl FnOnce() -> usize) -> Order {
    match policy {
        DataPolicy::FastFirst => Order::From(0),
        DataPolicy::Interleave => Order::From(turn()),
        DataPolicy::Bind(node) => Order::Only(node.index()),
    }
}

fn take_turn(turn: &mut usize, nodes: usize) -> usize {
    let node = *turn;
    *turn = (node + 1) % nodes;
    node
}
