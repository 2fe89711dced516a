//! Frequent itemsets by FP-growth: PARSEC's freqmine.
//!
//! Represents `freq` of the granularity paper (table 2, PARSEC freqmine, native). A prefix tree of
//! transactions fills the memory; mining follows the chain of all nodes of an item through the tree
//! and climbs from each to the root, and builds small trees of the same kind in a region that is
//! used like a stack.
//!
//! Transactions are not kept, as in PARSEC, where they are read from a file: each is a function of
//! the seed and its number. Items are numbered by popularity, so that their order in the tree is
//! known beforehand.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{Check, check, fold};
use super::parameters::in_range;
use super::shared::random;
use super::shared::zipf::Zipf;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};
use crate::memory::checked::mix;

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "freqmine",
    summary: "frequent itemsets by FP-growth (freqmine)",
    stands_for: "granularity table 2: freqmine: chains of nodes and climbs through a large prefix tree, small trees in a reused region",
    operation: "itemsets",
    threads: false,
    parameters: &[
        ParameterDoc {
            name: "support_percent",
            default: "0.3",
            meaning: "least share of the transactions that a frequent itemset is in, in percent",
        },
        ParameterDoc { name: "items", default: "1000", meaning: "number of different items" },
        ParameterDoc {
            name: "theta",
            default: "0.8",
            meaning: "exponent of the Zipfian law of the items' popularity",
        },
    ],
    run: Run::of::<FreqMine>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    support_percent: f64,
    items: usize,
    theta: f64,
}

impl Default for Options {
    fn default() -> Options {
        Options { support_percent: 0.3, items: 1000, theta: 0.8 }
    }
}

/// Words of a node: 28 bytes.
const NODE_WORDS: usize = 7;
const ITEM: usize = 0;
const COUNT: usize = 1;
const PARENT: usize = 2;
/// The children of a node are a binary tree by their items: its root, and the subtrees of each.
const CHILD: usize = 3;
const SMALLER: usize = 4;
const LARGER: usize = 5;
/// Next node of the same item.
const LINK: usize = 6;
/// No node. The root of a tree is never a child or a link.
const NONE: u32 = u32::MAX;
/// Most items of a transaction; the least is a quarter.
const LONGEST: usize = 16;
/// Share of the footprint for the trees of the recursion.
const STACK_SHARE: f64 = 0.02;
/// One of so many frequent itemsets is recounted, up to so many.
const SAMPLE: u64 = 16;
const SAMPLES: usize = 64;
/// Pairs of the most popular items are all recounted.
const PAIRS_OF: usize = 48;

/// The transactions, as a function.
struct Transactions {
    seed: u64,
    zipf: Zipf,
    items: usize,
}

impl Transactions {
    /// Items of a transaction, the most popular first.
    fn get(&self, number: usize, into: &mut Vec<u32>) {
        let mut words = random::Words::of(self.seed, number as u64);
        let length = LONGEST / 4 + words.below(LONGEST - LONGEST / 4 + 1);
        into.clear();
        for _ in 0..length {
            into.push(self.zipf.draw(&mut words) as u32);
        }
        into.sort_unstable();
        into.dedup();
    }
}

/// A prefix tree; its nodes are in an array that others may share.
struct Tree {
    root: u32,
    /// For each item its first node, and its count.
    heads: Vec<u32>,
    counts: Vec<u64>,
}

/// An array of nodes, of which the first `used` are taken.
struct Nodes {
    words: Array<u32>,
    used: usize,
    most_used: usize,
}

impl Nodes {
    fn new<M: Memory>(
        m: &mut M,
        name: &'static str,
        capacity: usize,
    ) -> Result<Nodes, ProgramError> {
        Ok(Nodes { words: m.array(name, capacity * NODE_WORDS)?, used: 0, most_used: 0 })
    }

    fn capacity(&self) -> usize {
        self.words.len() / NODE_WORDS
    }

    /// Whether another transaction fits, or a root.
    fn has_room(&self) -> bool {
        self.used + LONGEST <= self.capacity()
    }

    fn get<M: Memory>(&self, m: &mut M, node: u32, word: usize) -> u32 {
        m.get(&self.words, node as usize * NODE_WORDS + word)
    }

    fn set<M: Memory>(&self, m: &mut M, node: u32, word: usize, value: u32) {
        m.set(&self.words, node as usize * NODE_WORDS + word, value);
    }

    fn take<M: Memory>(&mut self, m: &mut M, words: [u32; NODE_WORDS]) -> u32 {
        let node = self.used as u32;
        self.used += 1;
        self.most_used = self.most_used.max(self.used);
        for (k, word) in words.into_iter().enumerate() {
            self.set(m, node, k, word);
        }
        node
    }

    /// An empty tree.
    fn plant<M: Memory>(&mut self, m: &mut M, items: usize) -> Tree {
        let root = self.take(m, [NONE, 0, NONE, NONE, NONE, NONE, NONE]);
        Tree { root, heads: vec![NONE; items], counts: vec![0; items] }
    }

    /// The items above a node, from the nearest to the root.
    fn climb<M: Memory>(&self, m: &mut M, tree: &Tree, node: u32, path: &mut Vec<u32>) {
        path.clear();
        let mut above = self.get(m, node, PARENT);
        while above != tree.root && path.len() < LONGEST {
            m.work(28);
            path.push(self.get(m, above, ITEM));
            above = self.get(m, above, PARENT);
        }
    }

    /// Enters items in their order, so many times.
    fn insert<M: Memory>(&mut self, m: &mut M, tree: &mut Tree, items: &[u32], times: u32) {
        let mut node = tree.root;
        for &item in items {
            m.work(15);
            tree.counts[item as usize] += u64::from(times);
            // The child with this item, or its place.
            let (mut above, mut side) = (node, CHILD);
            let mut child = self.get(m, above, side);
            while child != NONE {
                m.work(15);
                let other = self.get(m, child, ITEM);
                if other == item {
                    break;
                }
                (above, side) = (child, if item < other { SMALLER } else { LARGER });
                child = self.get(m, above, side);
            }
            if child != NONE {
                let count = self.get(m, child, COUNT) + times;
                self.set(m, child, COUNT, count);
                node = child;
                continue;
            }
            let head = &mut tree.heads[item as usize];
            let new = self.take(m, [item, times, node, NONE, NONE, NONE, *head]);
            *head = new;
            self.set(m, above, side, new);
            node = new;
        }
    }
}

/// The result of mining.
struct Found {
    least: u64,
    itemsets: u64,
    pairs: u64,
    checksum: u64,
    samples: Vec<(Vec<u32>, u64)>,
    /// Trees for which there was no room.
    without_room: u64,
}

impl Found {
    fn note(&mut self, itemset: &[u32], count: u64) {
        let hash = itemset.iter().fold(count, |hash, &item| mix(hash ^ u64::from(item)));
        if self.itemsets.is_multiple_of(SAMPLE) && self.samples.len() < SAMPLES {
            self.samples.push((itemset.to_vec(), count));
        }
        self.itemsets += 1;
        let popular = itemset.iter().all(|&i| (i as usize) < PAIRS_OF);
        self.pairs += u64::from(itemset.len() == 2 && popular);
        self.checksum = self.checksum.wrapping_add(hash);
    }
}

struct FreqMine;

impl Kernel for FreqMine {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let support = in_range("support_percent", options.support_percent, 0.01, 100.0)?;
        let items = in_range("items", options.items, PAIRS_OF, 1 << 20)?;
        let zipf = Zipf::new(items, options.theta)?;
        let transactions = &Transactions { seed: params.seed, zipf, items };
        let nodes = params.footprint_bytes as usize / (4 * NODE_WORDS);
        let of_stack = (nodes as f64 * STACK_SHARE) as usize;
        in_range("nodes that fit the footprint", nodes, 1000, NONE as usize)?;

        let mut count = 0;
        let (tree, main, stack) = m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let mut main = Nodes::new(m, "tree", nodes - of_stack)?;
            let stack = Nodes::new(m, "stack", of_stack)?;
            let mut tree = main.plant(m, items);
            let mut transaction = Vec::new();
            while main.has_room() {
                m.work(100 * LONGEST as u32);
                transactions.get(count, &mut transaction);
                main.insert(m, &mut tree, &transaction, 1);
                count += 1;
            }
            Ok((tree, main, stack))
        })?;
        let mut stack = stack;

        let least = ((count as f64 * support / 100.0).ceil() as u64).max(2);
        let mut found = Found {
            least,
            itemsets: 0,
            pairs: 0,
            checksum: 0,
            samples: Vec::new(),
            without_room: 0,
        };
        m.phase(phase::MAIN, 0, |m| {
            // The rarest first, as FP-growth goes.
            for item in (0..items as u32).rev() {
                if tree.counts[item as usize] >= least {
                    m.phase(phase::ITERATION, item.into(), |m| {
                        mine_item(m, Some(&main), &mut stack, &tree, item, &mut vec![], &mut found);
                    });
                }
            }
        });

        Ok(m.phase(phase::VERIFY, 0, |_| {
            let mut checks = recount(transactions, count, &tree, &found);
            checks.push(check(
                found.without_room == 0,
                format!(
                    "{} trees without room, {} of {of_stack} nodes of the stack used",
                    found.without_room, stack.most_used
                ),
            ));
            let checksum = fold(found.checksum, count as u64);
            Outcome { checksum, operations: found.itemsets, checks }
        }))
    }
}

/// Finds all frequent itemsets that end in `suffix` with `item` put before it. The tree is in
/// `nodes`, or in the stack.
fn mine_item<M: Memory>(
    m: &mut M,
    nodes: Option<&Nodes>,
    stack: &mut Nodes,
    tree: &Tree,
    item: u32,
    suffix: &mut Vec<u32>,
    found: &mut Found,
) {
    suffix.push(item);
    found.note(suffix, tree.counts[item as usize]);
    // How often each item precedes this one: along the chain of the item's nodes, up from each.
    let mut counts = vec![0u64; item as usize];
    let mut path = Vec::new();
    let mut steps = 0;
    let mut node = tree.heads[item as usize];
    while node != NONE {
        let from = nodes.unwrap_or(stack);
        let times = u64::from(from.get(m, node, COUNT));
        from.climb(m, tree, node, &mut path);
        for &other in &path {
            counts[other as usize] += times;
        }
        // A sound chain has each node once.
        steps += 1;
        assert!(steps <= from.capacity(), "the chain of item {item} has no end");
        node = from.get(m, node, LINK);
    }
    m.work(2 * item);
    if counts.iter().any(|&c| c >= found.least) {
        let before = stack.used;
        let smaller = condition(m, nodes, stack, tree, item, &counts, found.least);
        match smaller {
            Some(smaller) => {
                for other in (0..item).rev() {
                    if smaller.counts[other as usize] >= found.least {
                        mine_item(m, None, stack, &smaller, other, suffix, found);
                    }
                }
            }
            None => found.without_room += 1,
        }
        stack.used = before;
    }
    suffix.pop();
}

/// The tree of the items that precede an item: its frequent ones. None when there is no room.
fn condition<M: Memory>(
    m: &mut M,
    nodes: Option<&Nodes>,
    stack: &mut Nodes,
    tree: &Tree,
    item: u32,
    counts: &[u64],
    least: u64,
) -> Option<Tree> {
    if !stack.has_room() {
        return None;
    }
    let mut smaller = stack.plant(m, item as usize);
    let mut path = Vec::new();
    let mut node = tree.heads[item as usize];
    while node != NONE {
        if !stack.has_room() {
            return None;
        }
        let from = nodes.unwrap_or(stack);
        let times = from.get(m, node, COUNT);
        from.climb(m, tree, node, &mut path);
        path.retain(|&other| counts[other as usize] >= least);
        path.reverse();
        node = from.get(m, node, LINK);
        stack.insert(m, &mut smaller, &path, times);
    }
    Some(smaller)
}

/// Counts items, sampled itemsets and pairs in the transactions themselves.
fn recount(transactions: &Transactions, count: usize, tree: &Tree, found: &Found) -> Vec<Check> {
    let mut items = vec![0u64; transactions.items];
    let mut samples = vec![0u64; found.samples.len()];
    let mut pairs = vec![0u64; PAIRS_OF * PAIRS_OF];
    let mut transaction = Vec::new();
    for number in 0..count {
        transactions.get(number, &mut transaction);
        for (i, &a) in transaction.iter().enumerate() {
            items[a as usize] += 1;
            for &b in &transaction[i + 1..] {
                if (b as usize) < PAIRS_OF {
                    pairs[a as usize * PAIRS_OF + b as usize] += 1;
                }
            }
        }
        for ((itemset, _), count) in found.samples.iter().zip(&mut samples) {
            *count += u64::from(itemset.iter().all(|i| transaction.binary_search(i).is_ok()));
        }
    }
    let wrong = found.samples.iter().zip(&samples).filter(|((_, c), r)| c != *r).count();
    let frequent = pairs.iter().filter(|p| **p >= found.least).count() as u64;
    vec![
        check(items == tree.counts, "counts of the items"),
        check(wrong == 0, format!("{wrong} of {} recounted itemsets wrong", samples.len())),
        check(
            frequent == found.pairs,
            format!("{} frequent pairs of the top {PAIRS_OF}, {frequent} recounted", found.pairs),
        ),
    ]
}
