//! Minimum-cost flow by the network simplex method, with the data structures of SPEC's mcf:
//! arcs and nodes as records, a spanning tree of pointers, candidates priced in groups that
//! stride over all arcs.
//!
//! Represents mcf of the adaptive-policy paper (SPEC CPU 2017, section 3.2 and code 1). Pricing
//! reads arc after arc with a large stride and follows each to its two nodes; a change of the tree
//! walks along parents and through a whole subtree by child and sibling.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{check, fold};
use super::parameters::in_range;
use super::shared::random;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "mcf",
    summary: "minimum-cost flow by network simplex (mcf)",
    stands_for: "adaptive policy section 3.2, code 1: mcf: strided pricing of arc records, pointer chasing in a spanning tree",
    operation: "pivots",
    threads: false,
    parameters: &[ParameterDoc {
        name: "pivots_per_node",
        default: "1",
        meaning: "pivots at most, for each node; the optimum may be reached before",
    }],
    run: Run::of::<Mcf>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    pivots_per_node: f64,
}

impl Default for Options {
    fn default() -> Options {
        Options { pivots_per_node: 1.0 }
    }
}

/// Words of an arc, as in mcf 64 bytes.
const ARC_WORDS: usize = 8;
const COST: usize = 0;
const TAIL: usize = 1;
const HEAD: usize = 2;
const STATE: usize = 3;
const FLOW: usize = 4;
const CAPACITY: usize = 5;
/// Words of a node, 96 bytes.
const NODE_WORDS: usize = 12;
const POTENTIAL: usize = 0;
const PARENT: usize = 1;
const CHILD: usize = 2;
const SIBLING: usize = 3;
const SIBLING_BEFORE: usize = 4;
const DEPTH: usize = 5;
/// The arc between a node and its parent.
const BASIC: usize = 6;
const SUPPLY: usize = 7;
/// No node.
const NONE: i64 = -1;

/// States of an arc: not in the tree with no flow or with full flow, or in the tree.
const LOWER: i64 = 0;
const UPPER: i64 = 1;
const TREE: i64 = 2;

const ARCS_PER_NODE: usize = 8;
const LARGEST_COST: usize = 10_000;
/// Cost of the arcs to the root that make the first tree: more than any path.
const ARTIFICIAL_COST: i64 = 1 << 40;
const UNBOUNDED: i64 = i64::MAX / 4;
/// Arcs of a pricing group, and the number of candidates kept (mcf: 300 and 50).
const GROUP: usize = 300;
const BASKET: usize = 50;

struct Network {
    nodes: Array<i64>,
    arcs: Array<i64>,
    /// Nodes besides the root, which has this number.
    count: usize,
    /// Arcs besides those to the root, which follow them.
    real_arcs: usize,
    cost: i64,
    group: usize,
    basket: Vec<usize>,
}

struct Mcf;

impl Kernel for Mcf {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let per_node = in_range("pivots_per_node", options.pivots_per_node, 0.0, 1e6)?;
        let bytes = 8 * (NODE_WORDS + (ARCS_PER_NODE + 1) * ARC_WORDS);
        let count = params.footprint_bytes as usize / bytes;
        let most = (count as f64 * per_node) as u64;

        let network = &mut m.phase(phase::INIT, 0, |m| Network::new(m, count, params.seed))?;

        let mut pivots = 0;
        let mut optimal = false;
        m.phase(phase::MAIN, 0, |m| {
            while pivots < most && !optimal {
                // Phases of a tenth each, to observe the tree's depth.
                let end = (most * (pivots * 10 / most + 1)).div_ceil(10);
                m.phase(phase::ITERATION, pivots * 10 / most, |m| {
                    while pivots < end && !optimal {
                        match network.price(m) {
                            Some(arc) => {
                                network.pivot(m, arc);
                                pivots += 1;
                            }
                            None => optimal = true,
                        }
                    }
                });
            }
        });

        Ok(m.phase(phase::VERIFY, 0, |m| {
            m.quietly(|m| {
                let (wrong, cost, violated, checksum) = network.verify(m);
                let mut checks = vec![
                    check(wrong.is_none(), wrong.unwrap_or_else(|| "flow and tree sound".into())),
                    check(
                        cost == network.cost,
                        format!("cost {cost}, {} by the pivots", network.cost),
                    ),
                ];
                if optimal {
                    checks.push(check(violated == 0, format!("{violated} arcs would lower it")));
                }
                Outcome { checksum: fold(checksum, pivots), operations: pivots, checks }
            })
        }))
    }
}

impl Network {
    fn new<M: Memory>(m: &mut M, count: usize, seed: u64) -> Result<Network, ProgramError> {
        let real_arcs = count * ARCS_PER_NODE;
        let mut network = Network {
            nodes: m.array("nodes", (count + 1) * NODE_WORDS)?,
            arcs: m.array("arcs", (real_arcs + count) * ARC_WORDS)?,
            count,
            real_arcs,
            cost: 0,
            group: 0,
            basket: Vec::new(),
        };
        for arc in 0..real_arcs {
            m.work(6 * random::AT_WORK);
            let mut words = random::Words::of(seed, arc as u64);
            let tail = arc / ARCS_PER_NODE;
            let head = (tail + 1 + words.below(count - 1)) % count;
            let cost = 1 + words.below(LARGEST_COST);
            let capacity = 1 + words.below(20);
            network.set_arc(
                m,
                arc,
                [cost as i64, tail as i64, head as i64, LOWER, 0, capacity as i64],
            );
        }
        // A star: every node is below the root by an arc of its own with all of its supply.
        let root = count;
        network.set(m, root, POTENTIAL, 0);
        network.set(m, root, PARENT, NONE);
        network.set(m, root, CHILD, NONE);
        network.set(m, root, SIBLING, NONE);
        let mut balance = 0;
        for node in 0..count {
            m.work(2 * random::AT_WORK);
            let random = 1 + random::below(random::at(!seed, node as u64), 10) as i64;
            // Half supply, half demand; the last one balances the rest.
            let supply = match node + 1 == count {
                true => -balance,
                false if node % 2 == 0 => random,
                false => -random,
            };
            balance += supply;
            let arc = real_arcs + node;
            let (tail, head) = if supply >= 0 { (node, root) } else { (root, node) };
            let carried = supply.abs();
            let words = [ARTIFICIAL_COST, tail as i64, head as i64, TREE, carried, UNBOUNDED];
            network.set_arc(m, arc, words);
            network.cost += ARTIFICIAL_COST * carried;
            let potential = if supply >= 0 { ARTIFICIAL_COST } else { -ARTIFICIAL_COST };
            network.set(m, node, POTENTIAL, potential);
            network.set(m, node, CHILD, NONE);
            network.set(m, node, BASIC, arc as i64);
            network.set(m, node, SUPPLY, supply);
            network.attach(m, node, root);
            network.set(m, node, DEPTH, 1);
        }
        Ok(network)
    }

    fn get<M: Memory>(&self, m: &mut M, node: usize, word: usize) -> i64 {
        m.get(&self.nodes, node * NODE_WORDS + word)
    }

    fn set<M: Memory>(&self, m: &mut M, node: usize, word: usize, value: i64) {
        m.set(&self.nodes, node * NODE_WORDS + word, value);
    }

    fn arc<M: Memory>(&self, m: &mut M, arc: usize, word: usize) -> i64 {
        m.get(&self.arcs, arc * ARC_WORDS + word)
    }

    fn set_arc<M: Memory>(&self, m: &mut M, arc: usize, words: [i64; 6]) {
        for (k, word) in words.into_iter().enumerate() {
            m.set(&self.arcs, arc * ARC_WORDS + k, word);
        }
    }

    fn reduced_cost<M: Memory>(&self, m: &mut M, arc: usize) -> i64 {
        let tail = self.arc(m, arc, TAIL) as usize;
        let head = self.arc(m, arc, HEAD) as usize;
        self.arc(m, arc, COST) - self.get(m, tail, POTENTIAL) + self.get(m, head, POTENTIAL)
    }

    /// By how much a unit of flow on this arc would lower the cost; 0 when it would not.
    fn gain<M: Memory>(&self, m: &mut M, arc: usize) -> i64 {
        m.work(40);
        match self.arc(m, arc, STATE) {
            LOWER => (-self.reduced_cost(m, arc)).max(0),
            UPPER => self.reduced_cost(m, arc).max(0),
            _ => 0,
        }
    }

    /// The best of the candidates, after pricing as many groups as it takes to have enough of them;
    /// none when no arc would lower the cost.
    fn price<M: Memory>(&mut self, m: &mut M) -> Option<usize> {
        let arcs = self.real_arcs + self.count;
        let groups = arcs.div_ceil(GROUP);
        let mut found: Vec<(i64, usize)> = Vec::with_capacity(BASKET);
        for arc in std::mem::take(&mut self.basket) {
            let gain = self.gain(m, arc);
            if gain > 0 {
                found.push((gain, arc));
            }
        }
        // At least one new group, so that pricing keeps moving.
        for looked in 0..groups {
            if looked > 0 && found.len() >= BASKET {
                break;
            }
            for arc in (self.group..arcs).step_by(groups) {
                let gain = self.gain(m, arc);
                if gain > 0 {
                    found.push((gain, arc));
                }
            }
            self.group = (self.group + 1) % groups;
        }
        m.work(100 * found.len() as u32);
        found.sort_unstable_by(|a, b| b.cmp(a));
        // A kept candidate may come again with its group.
        found.dedup();
        found.truncate(BASKET);
        let best = found.first()?.1;
        self.basket = found[1..].iter().map(|f| f.1).collect();
        Some(best)
    }

    /// Sends as much flow as possible around the cycle that an arc closes.
    fn pivot<M: Memory>(&mut self, m: &mut M, entering: usize) {
        let reduced = self.reduced_cost(m, entering);
        let forwards = self.arc(m, entering, STATE) == LOWER;
        let ends = [self.arc(m, entering, TAIL) as usize, self.arc(m, entering, HEAD) as usize];
        // Flow goes from the first to the second over the arc and back through the tree.
        let [first, second] = if forwards { ends } else { [ends[1], ends[0]] };
        let join = self.join(m, first, second);

        let mut amount = self.arc(m, entering, CAPACITY);
        let mut leaving = None;
        // On the way down to the first, the last arc that blocks leaves; on the way up from the
        // second, the first one: this keeps the tree strongly feasible, and pivots from cycling.
        for (start, down) in [(first, true), (second, false)] {
            let mut node = start;
            while node != join {
                m.work(26);
                let room = self.room(m, node, down);
                if room < amount || (room == amount && !down) {
                    amount = room;
                    leaving = Some((node, down));
                }
                node = self.get(m, node, PARENT) as usize;
            }
        }
        self.add_flow(m, entering, if forwards { amount } else { -amount });
        for (start, down) in [(first, true), (second, false)] {
            let mut node = start;
            while node != join && amount > 0 {
                m.work(17);
                let arc = self.get(m, node, BASIC) as usize;
                let up = self.arc(m, arc, TAIL) as usize == node;
                self.add_flow(m, arc, if up == down { -amount } else { amount });
                node = self.get(m, node, PARENT) as usize;
            }
        }
        self.cost -= reduced.abs() * amount;
        let Some((out, down)) = leaving else {
            // The entering arc itself is the first to be full.
            let state = if forwards { UPPER } else { LOWER };
            m.set(&self.arcs, entering * ARC_WORDS + STATE, state);
            return;
        };
        let left = self.get(m, out, BASIC) as usize;
        let state = if self.arc(m, left, FLOW) == 0 { LOWER } else { UPPER };
        m.set(&self.arcs, left * ARC_WORDS + STATE, state);
        m.set(&self.arcs, entering * ARC_WORDS + STATE, TREE);
        let (inner, outer) = if down { (first, second) } else { (second, first) };
        self.rehang(m, inner, outer, entering, out);
        let change = if inner == ends[0] { reduced } else { -reduced };
        self.refresh(m, inner, change);
    }

    /// The lowest common ancestor.
    fn join<M: Memory>(&self, m: &mut M, mut a: usize, mut b: usize) -> usize {
        while a != b {
            m.work(17);
            if self.get(m, a, DEPTH) >= self.get(m, b, DEPTH) {
                a = self.get(m, a, PARENT) as usize;
            } else {
                b = self.get(m, b, PARENT) as usize;
            }
        }
        a
    }

    /// How much more flow the arc above a node can take, downwards or upwards.
    fn room<M: Memory>(&self, m: &mut M, node: usize, down: bool) -> i64 {
        let arc = self.get(m, node, BASIC) as usize;
        let up = self.arc(m, arc, TAIL) as usize == node;
        let flow = self.arc(m, arc, FLOW);
        if up == down { flow } else { self.arc(m, arc, CAPACITY) - flow }
    }

    fn add_flow<M: Memory>(&self, m: &mut M, arc: usize, amount: i64) {
        let flow = self.arc(m, arc, FLOW) + amount;
        m.set(&self.arcs, arc * ARC_WORDS + FLOW, flow);
    }

    fn attach<M: Memory>(&self, m: &mut M, node: usize, parent: usize) {
        let child = self.get(m, parent, CHILD);
        self.set(m, node, PARENT, parent as i64);
        self.set(m, node, SIBLING, child);
        self.set(m, node, SIBLING_BEFORE, NONE);
        if child != NONE {
            self.set(m, child as usize, SIBLING_BEFORE, node as i64);
        }
        self.set(m, parent, CHILD, node as i64);
    }

    fn detach<M: Memory>(&self, m: &mut M, node: usize) {
        let before = self.get(m, node, SIBLING_BEFORE);
        let after = self.get(m, node, SIBLING);
        if before == NONE {
            let parent = self.get(m, node, PARENT) as usize;
            self.set(m, parent, CHILD, after);
        } else {
            self.set(m, before as usize, SIBLING, after);
        }
        if after != NONE {
            self.set(m, after as usize, SIBLING_BEFORE, before);
        }
    }

    /// Reverses the path from `node` up to `last`, and links it to a new parent.
    fn rehang<M: Memory>(
        &self,
        m: &mut M,
        mut node: usize,
        mut parent: usize,
        mut arc: usize,
        last: usize,
    ) {
        loop {
            m.work(26);
            let above = self.get(m, node, PARENT) as usize;
            let arc_above = self.get(m, node, BASIC) as usize;
            self.detach(m, node);
            self.attach(m, node, parent);
            self.set(m, node, BASIC, arc as i64);
            if node == last {
                return;
            }
            (parent, arc, node) = (node, arc_above, above);
        }
    }

    /// Changes the potentials of a subtree and recomputes its depths, in preorder.
    fn refresh<M: Memory>(&self, m: &mut M, top: usize, change: i64) {
        let mut node = top;
        loop {
            m.work(21);
            let parent = self.get(m, node, PARENT) as usize;
            let depth = self.get(m, parent, DEPTH) + 1;
            self.set(m, node, DEPTH, depth);
            let potential = self.get(m, node, POTENTIAL) + change;
            self.set(m, node, POTENTIAL, potential);
            let child = self.get(m, node, CHILD);
            if child != NONE {
                node = child as usize;
                continue;
            }
            while node != top && self.get(m, node, SIBLING) == NONE {
                node = self.get(m, node, PARENT) as usize;
            }
            if node == top {
                return;
            }
            node = self.get(m, node, SIBLING) as usize;
        }
    }

    /// A defect if any, the cost of the flow, the arcs that would lower it, and a checksum.
    fn verify<M: Memory>(&self, m: &mut M) -> (Option<String>, i64, u64, u64) {
        let mut wrong = None;
        let mut note = |bad: bool, what: &str, number: usize| {
            if bad && wrong.is_none() {
                wrong = Some(format!("{what} {number}"));
            }
        };
        let mut balance = vec![0; self.count + 1];
        let (mut cost, mut violated, mut in_tree, mut checksum) = (0i64, 0, 0, 0);
        for arc in 0..self.real_arcs + self.count {
            let [tail, head] = [TAIL, HEAD].map(|w| self.arc(m, arc, w) as usize);
            let flow = self.arc(m, arc, FLOW);
            let capacity = self.arc(m, arc, CAPACITY);
            let state = self.arc(m, arc, STATE);
            note(!(0..=capacity).contains(&flow), "flow out of bounds on arc", arc);
            let bound = [0, capacity, flow].get(state as usize) == Some(&flow);
            note(!bound, "state and flow disagree on arc", arc);
            note(
                state == TREE && self.reduced_cost(m, arc) != 0,
                "potentials disagree over the tree arc",
                arc,
            );
            in_tree += usize::from(state == TREE);
            balance[tail] += flow;
            balance[head] -= flow;
            cost = cost.wrapping_add(self.arc(m, arc, COST).wrapping_mul(flow));
            violated += u64::from(self.gain(m, arc) > 0);
            checksum = fold(checksum, flow as u64);
        }
        note(in_tree != self.count, "arcs in the tree:", in_tree);
        for (node, balance) in balance.iter().enumerate().take(self.count) {
            note(*balance != self.get(m, node, SUPPLY), "supply is not used up at node", node);
            let parent = self.get(m, node, PARENT) as usize;
            let deeper = self.get(m, node, DEPTH) == self.get(m, parent, DEPTH) + 1;
            note(!deeper, "depth is wrong at node", node);
            let arc = self.get(m, node, BASIC) as usize;
            let mut ends = [TAIL, HEAD].map(|w| self.arc(m, arc, w) as usize);
            if ends[1] == node {
                ends.swap(0, 1);
            }
            note(ends != [node, parent], "tree and arcs disagree at node", node);
        }
        (wrong, cost, violated, checksum)
    }
}
