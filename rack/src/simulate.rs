//! A run: nodes, switch and pools together, in windows.
//!
//! No effect of a component reaches another sooner than the *window*: the shortest delay between
//! two. So all components can run from one window's beginning to its end independently; their
//! messages are exchanged then, in the order of the senders. The next window begins with the next
//! event anywhere. The thread that runs a component makes no difference.

mod audit;
mod threads;

use terrace_hardware::error::ConfigError;

use crate::config::RackConfig;
use crate::link::Share;
use crate::node::ComputeNode;
use crate::outcome::{LinkOutcome, NodeOutcome, Outcome, PoolOutcome};
use crate::packet::Message;
use crate::pool::Pool;
use crate::scheme::Scheme;
use crate::stream::WorkloadConfig;
use crate::switch::{PortCounts, Switch};
use crate::trace::Tracer;
use crate::{NEVER, Time};

/// Why a run ended without a result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The rack or a workload is impossible.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// A node could not continue.
    #[error("node {node} at {at_ns} ns: {problem}")]
    Node {
        /// The node's number.
        node: usize,
        /// Simulated time, in ns.
        at_ns: u64,
        /// The reason.
        problem: String,
    },
    /// No event is left and something still waits.
    #[error("deadlock at {at_ns} ns: {what}")]
    Deadlock {
        /// Simulated time, in ns.
        at_ns: u64,
        /// The waiting requests and packets.
        what: String,
    },
}

/// A component and its messages, in and out.
#[derive(Debug)]
enum Component {
    Node(Box<ComputeNode>),
    Pool(Box<Pool>),
    Switch(Box<Switch>),
}

#[derive(Debug)]
struct Cell {
    component: Component,
    /// With the port of origin; 0 where there is only the switch.
    inbox: Vec<(usize, Message)>,
    /// With the destination component.
    outbox: Vec<(usize, Message)>,
    scratch: Vec<Message>,
    next: Time,
}

impl Cell {
    fn new(component: Component) -> Self {
        Cell { component, inbox: Vec::new(), outbox: Vec::new(), scratch: Vec::new(), next: 0 }
    }

    fn run(&mut self, begin: Time, end: Time, switch: usize) {
        for (from, message) in self.inbox.drain(..) {
            match &mut self.component {
                Component::Node(node) => node.receive(message),
                Component::Pool(pool) => pool.receive(message),
                Component::Switch(switch) => switch.receive(from, message),
            }
        }
        match &mut self.component {
            Component::Node(node) => node.run_until(begin, end, &mut self.scratch),
            Component::Pool(pool) => pool.run_until(end, &mut self.scratch),
            Component::Switch(switch) => switch.run_until(end, &mut self.outbox),
        }
        self.outbox.extend(self.scratch.drain(..).map(|m| (switch, m)));
        self.next = self.next_event();
    }

    fn next_event(&self) -> Time {
        match &self.component {
            Component::Node(node) => node.next_event(),
            Component::Pool(pool) => pool.next_event(),
            Component::Switch(switch) => switch.next_event(),
        }
    }
}

/// A rack, ready to run. Components are numbered like the switch's ports, the switch last.
#[derive(Debug)]
pub struct Rack {
    cells: Vec<Cell>,
    nodes: usize,
    window: Time,
    now: Time,
    windows: u64,
}

impl Rack {
    /// A rack whose nodes run these workloads, which have passed their start-up: node `n` runs
    /// workload `n`, or the only one.
    pub fn new(
        config: &RackConfig,
        scheme: &'static Scheme,
        workloads: &[WorkloadConfig],
    ) -> Result<Self, RunError> {
        config.check()?;
        let nodes = config.nodes as usize;
        if workloads.is_empty() || (workloads.len() != 1 && workloads.len() != nodes) {
            return Err(ConfigError::new(
                "rack",
                format!(
                    "{} workloads for {nodes} nodes; expected one, or one for each node",
                    workloads.len()
                ),
            )
            .into());
        }
        let share = if scheme.partition {
            Share::Weighted(config.mechanism.block_weight, config.mechanism.page_weight)
        } else {
            Share::Fifo
        };
        let mut switch = Switch::new(config, scheme)?;
        let mut computes = Vec::new();
        for node in 0..nodes {
            let workload = &workloads[node.min(workloads.len() - 1)];
            computes.push(ComputeNode::new(config, scheme, node, workload)?);
        }
        start_up(config, scheme, &mut computes, &mut switch)?;
        let mut cells: Vec<Cell> =
            computes.into_iter().map(|n| Cell::new(Component::Node(Box::new(n)))).collect();
        for _ in 0..config.pools {
            cells.push(Cell::new(Component::Pool(Box::new(Pool::new(config, share)?))));
        }
        cells.push(Cell::new(Component::Switch(Box::new(switch))));
        for (port, cell) in cells.iter_mut().enumerate() {
            let tracer = Tracer::new(config.trace, port);
            match &mut cell.component {
                Component::Node(node) => node.memory().nic.tracer = tracer,
                Component::Pool(pool) => pool.nic_mut().tracer = tracer,
                Component::Switch(_) => {}
            }
            cell.next = cell.next_event();
        }
        Ok(Rack { cells, nodes, window: config.window_ps(), now: 0, windows: 0 })
    }

    /// The time that the rack has been run to.
    pub fn now(&self) -> Time {
        self.now
    }

    fn next_event(&self) -> Time {
        let at = |c: &Cell| {
            let message = |m: &(usize, Message)| match m.1 {
                Message::Packet(at, _) | Message::Credit(at, _) => at,
            };
            c.inbox.iter().map(message).min().unwrap_or(NEVER).min(c.next)
        };
        self.cells.iter().map(at).min().unwrap_or(NEVER)
    }

    /// Delivers the messages sent, in the order of the senders.
    fn exchange(&mut self) {
        let switch = self.cells.len() - 1;
        for from in 0..self.cells.len() {
            let mut outbox = std::mem::take(&mut self.cells[from].outbox);
            for (to, message) in outbox.drain(..) {
                debug_assert!(from == switch || to == switch);
                self.cells[to].inbox.push((from, message));
            }
            self.cells[from].outbox = outbox;
        }
    }

    fn all_done(&self) -> bool {
        self.cells[..self.nodes].iter().all(|c| match &c.component {
            Component::Node(node) => node.done_at().is_some(),
            _ => true,
        })
    }

    fn problem(&self) -> Option<RunError> {
        let found =
            self.cells[..self.nodes].iter().enumerate().find_map(|(n, c)| match &c.component {
                Component::Node(node) => node.problem().map(|p| (n, p)),
                _ => None,
            });
        found.map(|(node, problem)| RunError::Node { node, at_ns: self.now / 1000, problem })
    }

    /// The beginning and end of the next window; `None` when all nodes are done.
    fn next_window(&mut self) -> Result<Option<(Time, Time)>, RunError> {
        if self.windows.is_multiple_of(1024)
            && let Some(problem) = self.problem()
        {
            return Err(problem);
        }
        if self.all_done() {
            return Ok(None);
        }
        let begin = self.next_event();
        if begin == NEVER {
            if let Some(problem) = self.problem() {
                return Err(problem);
            }
            return Err(RunError::Deadlock { at_ns: self.now / 1000, what: self.waits() });
        }
        // Messages of one window may be taken in one that begins later.
        let begin = begin.max(self.now);
        self.now = begin + self.window;
        self.windows += 1;
        Ok(Some((begin, self.now)))
    }

    /// The waiting requests and packets, in words.
    fn waits(&self) -> String {
        let mut parts = Vec::new();
        for (n, cell) in self.cells.iter().enumerate() {
            match &cell.component {
                Component::Node(node) if node.done_at().is_none() => parts.push(format!(
                    "node {n} waits with {} misses under way",
                    node.memory_ref().misses()
                )),
                Component::Switch(switch) => {
                    parts.push(format!("{} things wait in the switch", switch.waiting()));
                }
                _ => {}
            }
        }
        parts.join(", ")
    }

    /// Runs until every node is done; returns the outcome.
    pub fn run(mut self, threads: usize) -> Result<Outcome, RunError> {
        self.advance(threads)?;
        Ok(self.outcome())
    }

    /// Runs until every node is done, on so many threads of the host.
    pub fn run_to_end(&mut self, threads: usize) -> Result<(), RunError> {
        self.advance(threads)
    }

    /// Adds the switch's values to nodes' new samples.
    fn sample(&mut self) {
        let (rest, switch) = self.cells.split_at_mut(self.nodes);
        let Some(Cell { component: Component::Switch(switch), .. }) = switch.last_mut() else {
            return;
        };
        for (n, cell) in rest.iter_mut().enumerate() {
            let Component::Node(node) = &mut cell.component else { continue };
            let now = self.now;
            if let Some(sample) = node.samples_mut().last_mut()
                && sample.to == now
            {
                let c = switch.controller(n);
                sample.block_queue = c.access.blocks() as u64;
                sample.pending = c.pending.len() as u64;
                sample.buffered = c.buffered() as u64;
                sample.npm = u64::from(c.npm());
                sample.score = i64::from(c.score());
            }
        }
    }

    /// The outcome of the run.
    pub fn outcome(&self) -> Outcome {
        let switch = match self.cells.last().map(|c| &c.component) {
            Some(Component::Switch(switch)) => switch,
            _ => unreachable!("the switch is last"),
        };
        let mut outcome = Outcome {
            nodes: Vec::new(),
            pools: Vec::new(),
            links: Vec::new(),
            time: 0,
            windows: self.windows,
            trace: switch.tracer.slices().to_vec(),
        };
        for (port, cell) in self.cells.iter().enumerate() {
            let nic = match &cell.component {
                Component::Node(node) => {
                    let controller = switch.controller(port);
                    let (instructions, time) = node.progress();
                    outcome.time = outcome.time.max(node.done_at().unwrap_or(0));
                    outcome.nodes.push(NodeOutcome {
                        workload: node.workload().to_owned(),
                        instructions,
                        time,
                        counts: node.counts(),
                        cores: node.core_counts(),
                        dram: node.memory_ref().dram_counts(),
                        controller: controller.counts,
                        npm: controller.npm(),
                        score: controller.score(),
                        threshold: controller.threshold(),
                        queues_max: (controller.access.blocks_max, controller.pending.waiting_max),
                        samples: node.samples().to_vec(),
                    });
                    &node.memory_ref().nic
                }
                Component::Pool(pool) => {
                    outcome.pools.push(PoolOutcome {
                        dram: pool.dram_counts(),
                        blocks_read: pool.blocks_read,
                        blocks_written: pool.blocks_written,
                        pages_given: switch.manager_ref().given()[port - self.nodes],
                    });
                    pool.nic()
                }
                Component::Switch(_) => continue,
            };
            outcome.trace.extend(nic.tracer.slices());
            outcome.links.push(LinkOutcome {
                up: PortCounts {
                    busy: nic.out.busy,
                    packets: nic.out.packets,
                    bytes: nic.out.bytes,
                    page_bytes: 0,
                    waiting_bytes_max: nic.out.waiting_bytes_max,
                    buffer_bytes_max: 0,
                },
                down: switch.port(port),
                in_busy: nic.in_busy,
            });
        }
        outcome.trace.sort_unstable();
        outcome
    }
}

/// Maps the pages touched in the programs' start-up: nodes one after the other in the order of
/// their pages, chunks allocated in turns.
fn start_up(
    config: &RackConfig,
    scheme: &Scheme,
    nodes: &mut [ComputeNode],
    switch: &mut Switch,
) -> Result<(), RunError> {
    let m = &config.mechanism;
    let spare = m.scaled(m.page_buffers.max(scheme.first_batch(m.npm)));
    let mut missing = Vec::new();
    let touched: Vec<Vec<u64>> = nodes.iter_mut().map(ComputeNode::start_up).collect();
    for (node, pages) in nodes.iter_mut().zip(&touched) {
        let remote = node.memory().remote_among(pages.len());
        let reserve = if config.local_share < 1.0 { remote + spare } else { 0 };
        missing.push(node.memory().units_missing(reserve));
    }
    while missing.iter().any(|&m| m > 0) {
        for (n, left) in missing.iter_mut().enumerate().filter(|m| *m.1 > 0) {
            *left -= 1;
            let first = switch.manager().allocate(n).ok_or_else(|| {
                ConfigError::new("rack", "the pools have less memory than the workloads need")
            })?;
            nodes[n].memory().give(first);
        }
    }
    for (n, (node, pages)) in nodes.iter_mut().zip(&touched).enumerate() {
        if config.local_share < 1.0 {
            node.memory().reserve(spare);
        }
        for &address in pages {
            if !node.memory().map(0, address) {
                return Err(RunError::Node {
                    node: n,
                    at_ns: 0,
                    problem: "remote memory does not hold what the start-up touches".into(),
                });
            }
        }
    }
    Ok(())
}

/// Runs a rack on so many threads of the host.
pub fn run(
    config: &RackConfig,
    scheme: &'static Scheme,
    workloads: &[WorkloadConfig],
    threads: usize,
) -> Result<Outcome, RunError> {
    Rack::new(config, scheme, workloads)?.run(threads)
}
