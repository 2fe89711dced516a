//! Look-ups in a B+ tree that was built by inserting keys in random order.
//!
//! Represents BTree of the Radiant paper (table 2). A look-up walks from the root, which is always
//! in the caches, to a leaf that hardly ever is: a few hot levels over a great many cold leaves in
//! the order of their splits, which is independent of the order of their keys.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{check, fold};
use super::parameters::in_range;
use super::shared::random;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};
use crate::memory::checked::mix;

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "btree",
    summary: "look-ups in a B+ tree grown by random insertion",
    stands_for: "Radiant table 2: BTree: dependent steps from hot upper levels to uniformly random cold leaves",
    operation: "look-ups",
    threads: true,
    parameters: &[
        ParameterDoc {
            name: "lookups_per_key",
            default: "1",
            meaning: "look-ups for each key of the tree",
        },
        ParameterDoc {
            name: "absent_percent",
            default: "10",
            meaning: "look-ups for keys that the tree does not have, in percent",
        },
    ],
    run: Run::of::<BTree>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    lookups_per_key: f64,
    absent_percent: f64,
}

impl Default for Options {
    fn default() -> Options {
        Options { lookups_per_key: 1.0, absent_percent: 10.0 }
    }
}

/// A node is 256 bytes: its head, 15 keys, and 16 children or 15 values.
const NODE_WORDS: usize = 32;
const MOST_KEYS: usize = 15;
const KEYS: usize = 1;
const LINKS: usize = 16;
/// Flag in the head of a leaf, beside the number of keys.
const LEAF: u64 = 1 << 32;
/// Deeper than any tree that fits in an address space: half-full nodes have 8 children.
const MOST_LEVELS: usize = 24;

struct BTree;

impl Kernel for BTree {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let per_key = in_range("lookups_per_key", options.lookups_per_key, 0.0, 1e6)?;
        let absent = in_range("absent_percent", options.absent_percent, 0.0, 100.0)? / 100.0;
        let seed = params.seed;

        let tree = m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let mut tree = Tree::new(m, params.footprint_bytes as usize / (8 * NODE_WORDS))?;
            while tree.has_room() {
                let key = random::at(seed, tree.keys as u64);
                m.work(random::AT_WORK);
                tree.insert(m, key, mix(!key));
            }
            Ok(tree)
        })?;

        let lookups = (tree.keys as f64 * per_key) as usize;
        let start = |_| (0u64, 0u64);
        let body = |m: &mut M, (wrong, sum): &mut (u64, u64), range: std::ops::Range<usize>| {
            for i in range {
                let mut words = random::Words::of(!seed, i as u64);
                let present = words.unit() >= absent;
                let key = if present { words.below(tree.keys) } else { tree.keys + i };
                let key = random::at(seed, key as u64);
                m.work(4 * random::AT_WORK);
                let value = tree.find(m, key);
                *wrong += u64::from(value != present.then(|| mix(!key)));
                *sum = sum.wrapping_add(mix(value.unwrap_or(key)));
            }
        };
        let found = m.phase(phase::MAIN, 0, |m| m.parallel(lookups, 1, start, body));

        Ok(m.phase(phase::VERIFY, 0, |m| {
            let wrong: u64 = found.iter().map(|f| f.0).sum();
            let sum = found.iter().fold(0u64, |a, f| a.wrapping_add(f.1));
            let walked = m.quietly(|m| tree.walk(m));
            let checks = vec![
                check(wrong == 0, format!("{wrong} of {lookups} look-ups wrong")),
                check(
                    walked == Ok(tree.keys),
                    match walked {
                        Ok(keys) => format!("{keys} keys in order, {} inserted", tree.keys),
                        Err(what) => what,
                    },
                ),
            ];
            let checksum = fold(sum, tree.keys as u64);
            Outcome { checksum, operations: lookups as u64, checks }
        }))
    }
}

/// A B+ tree in an array of nodes.
struct Tree {
    nodes: Array<u64>,
    capacity: usize,
    used: usize,
    root: usize,
    levels: usize,
    keys: usize,
}

impl Tree {
    fn new<M: Memory>(m: &mut M, capacity: usize) -> Result<Tree, ProgramError> {
        let nodes = m.array("nodes", capacity * NODE_WORDS)?;
        m.set(&nodes, 0, LEAF);
        Ok(Tree { nodes, capacity, used: 1, root: 0, levels: 1, keys: 0 })
    }

    /// Whether the next insertion has the free nodes that it may need: one a level and a new root.
    fn has_room(&self) -> bool {
        self.capacity - self.used > self.levels
    }

    fn word<M: Memory>(&self, m: &mut M, node: usize, word: usize) -> u64 {
        m.get(&self.nodes, node * NODE_WORDS + word)
    }

    fn set_word<M: Memory>(&self, m: &mut M, node: usize, word: usize, value: u64) {
        m.set(&self.nodes, node * NODE_WORDS + word, value);
    }

    /// Number of keys of a node, and whether it is a leaf.
    fn head<M: Memory>(&self, m: &mut M, node: usize) -> (usize, bool) {
        let head = self.word(m, node, 0);
        (((head & !LEAF) as usize).min(MOST_KEYS), head & LEAF != 0)
    }

    fn set_head<M: Memory>(&self, m: &mut M, node: usize, count: usize, leaf: bool) {
        self.set_word(m, node, 0, count as u64 | if leaf { LEAF } else { 0 });
    }

    /// Number of keys of the node that are at most `key`.
    fn rank<M: Memory>(&self, m: &mut M, node: usize, count: usize, key: u64) -> usize {
        let (mut low, mut high) = (0, count);
        while low < high {
            m.work(18);
            let middle = (low + high) / 2;
            if self.word(m, node, KEYS + middle) <= key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn find<M: Memory>(&self, m: &mut M, key: u64) -> Option<u64> {
        let mut node = self.root;
        for _ in 0..MOST_LEVELS {
            m.work(18);
            let (count, leaf) = self.head(m, node);
            let rank = self.rank(m, node, count, key);
            if leaf {
                let here = rank > 0 && self.word(m, node, KEYS + rank - 1) == key;
                return here.then(|| self.word(m, node, LINKS + rank - 1));
            }
            node = self.word(m, node, LINKS + rank) as usize;
        }
        None
    }

    /// Inserts a key that the tree does not have; full nodes on the way are split.
    fn insert<M: Memory>(&mut self, m: &mut M, key: u64, value: u64) {
        if self.head(m, self.root).0 == MOST_KEYS {
            let root = self.take_node();
            self.set_head(m, root, 0, false);
            self.set_word(m, root, LINKS, self.root as u64);
            self.root = root;
            self.levels += 1;
            self.split(m, root, 0);
        }
        let mut node = self.root;
        loop {
            m.work(10);
            let (count, leaf) = self.head(m, node);
            let mut rank = self.rank(m, node, count, key);
            if leaf {
                for k in (rank..count).rev() {
                    self.shift(m, node, k, k);
                }
                self.set_word(m, node, KEYS + rank, key);
                self.set_word(m, node, LINKS + rank, value);
                self.set_head(m, node, count + 1, true);
                self.keys += 1;
                return;
            }
            let mut child = self.word(m, node, LINKS + rank) as usize;
            if self.head(m, child).0 == MOST_KEYS {
                self.split(m, node, rank);
                rank += usize::from(self.word(m, node, KEYS + rank) <= key);
                child = self.word(m, node, LINKS + rank) as usize;
            }
            node = child;
        }
    }

    /// Moves a key and a link of a node one place up.
    fn shift<M: Memory>(&self, m: &mut M, node: usize, key: usize, link: usize) {
        m.work(5);
        let moved = self.word(m, node, KEYS + key);
        self.set_word(m, node, KEYS + key + 1, moved);
        let moved = self.word(m, node, LINKS + link);
        self.set_word(m, node, LINKS + link + 1, moved);
    }

    fn take_node(&mut self) -> usize {
        self.used += 1;
        self.used - 1
    }

    /// Splits the full child at `slot` of a node that is not full.
    fn split<M: Memory>(&mut self, m: &mut M, parent: usize, slot: usize) {
        let left = self.word(m, parent, LINKS + slot) as usize;
        let leaf = self.head(m, left).1;
        let right = self.take_node();
        let half = MOST_KEYS / 2;
        // The first key of the right side separates the two. A leaf keeps it; of an inner node
        // it moves up, and its left link becomes the first of the right node.
        let separator = self.word(m, left, KEYS + half);
        let first = if leaf { half } else { half + 1 };
        for k in first..MOST_KEYS {
            let word = self.word(m, left, KEYS + k);
            self.set_word(m, right, KEYS + k - first, word);
        }
        let links = if leaf { MOST_KEYS } else { MOST_KEYS + 1 };
        for k in first..links {
            let word = self.word(m, left, LINKS + k);
            self.set_word(m, right, LINKS + k - first, word);
        }
        self.set_head(m, right, MOST_KEYS - first, leaf);
        self.set_head(m, left, half, leaf);

        let count = self.head(m, parent).0;
        for k in (slot..count).rev() {
            self.shift(m, parent, k, k + 1);
        }
        self.set_word(m, parent, KEYS + slot, separator);
        self.set_word(m, parent, LINKS + slot + 1, right as u64);
        self.set_head(m, parent, count + 1, false);
    }

    /// Walks over all leaves in order; counts the keys and checks order, depth and values.
    fn walk<M: Memory>(&self, m: &mut M) -> Result<usize, String> {
        let (mut keys, mut last) = (0, None);
        let mut path = vec![(self.root, 0)];
        while let Some((node, slot)) = path.pop() {
            let (count, leaf) = self.head(m, node);
            if leaf {
                if path.len() + 1 != self.levels {
                    return Err(format!("a leaf at level {}", path.len() + 1));
                }
                for k in 0..count {
                    let key = self.word(m, node, KEYS + k);
                    if last.is_some_and(|l| l >= key) {
                        return Err(format!("key {k} of node {node} is out of order"));
                    }
                    if self.word(m, node, LINKS + k) != mix(!key) {
                        return Err(format!("value {k} of node {node} is wrong"));
                    }
                    last = Some(key);
                }
                keys += count;
            } else if slot <= count {
                if path.len() + 1 >= self.levels {
                    return Err(format!("an inner node at level {}", path.len() + 1));
                }
                let child = self.word(m, node, LINKS + slot) as usize;
                path.push((node, slot + 1));
                path.push((child, 0));
            }
        }
        Ok(keys)
    }
}
