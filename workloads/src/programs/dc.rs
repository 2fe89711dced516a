//! A data cube: sums of a measure over the groups of every view of a table: NPB's DC.
//!
//! Represents NPB dc of the rack paper (table II), which counts it among the programs of high
//! spatial locality. Each view, a subset of the attributes, is made by one pass over all tuples, in
//! order; each tuple's group is looked up in a search tree that grows in the order of first
//! appearance, and the tree is written out when the pass is over. Trees are small beside the
//! table: a view of many groups is left out.
//!
//! Attributes are uniform below cardinalities that grow from 2 on, from the seed; threads have views
//! of their own, and a view that two of them share is made in two parts.

use std::ops::Range;

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{check, fold};
use super::parameters::in_range;
use super::shared::random;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};
use crate::memory::checked::mix;

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "dc",
    summary: "a data cube: one pass over all tuples and one search tree for each view (NPB DC)",
    stands_for: "rack table II: NPB dc: passes over a table, beside trees that fit in the caches",
    operation: "tuples grouped",
    threads: true,
    parameters: &[ParameterDoc {
        name: "views",
        default: "8",
        meaning: "views that are made (NPB: all 2^n of n attributes)",
    }],
    run: Run::of::<Dc>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    views: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { views: 8 }
    }
}

/// Attributes, and how many values each has.
const CARDINALITIES: [u32; 10] = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29];
/// Attributes are two in a word; the measure follows them.
const ATTRIBUTE_WORDS: usize = CARDINALITIES.len() / 2;
const TUPLE_WORDS: usize = ATTRIBUTE_WORDS + 1;
/// Key, sum, number of tuples, and the two children's numbers in one word.
const NODE_WORDS: usize = 4;
/// Of the memory, the part for trees, and trees that it has room for.
const TREES_SHARE: f64 = 0.25;
const MOST_TREES: usize = 16;
/// A thread groups so many tuples in a turn, when traced.
const TURN: usize = 4;

/// A view: the attributes that it groups by.
#[derive(Clone, Copy)]
struct View(u32);

impl View {
    fn groups(self) -> usize {
        let kept = (0..CARDINALITIES.len()).filter(|d| self.0 >> d & 1 != 0);
        kept.map(|d| CARDINALITIES[d] as usize).product()
    }

    /// The key of a tuple: its attributes as digits, mixed, so that the tree is shallow.
    fn key(self, attributes: impl Fn(usize) -> u32) -> u64 {
        let kept = (0..CARDINALITIES.len()).filter(|d| self.0 >> d & 1 != 0);
        let digits =
            kept.fold(0u64, |key, d| key * u64::from(CARDINALITIES[d]) + u64::from(attributes(d)));
        mix(u64::from(self.0) << 48 ^ digits)
    }
}

/// What a group adds to the checksum: linear in the sum, so that parts of a view add up.
fn weight(key: u64) -> u64 {
    mix(key) | 1
}

struct Table {
    seed: u64,
    tuples: Array<u64>,
    nodes: Array<u64>,
}

/// The tree of a view in the making.
struct Tree {
    base: usize,
    used: usize,
    view: usize,
    /// Of the views that are done.
    weighted: u64,
    total: u64,
    count: u64,
    lost: u64,
}

struct Dc;

impl Kernel for Dc {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let wanted = in_range("views", options.views, 1, 1 << CARDINALITIES.len())?;
        in_range("threads that a tree each fits for", m.threads(), 1, MOST_TREES)?;
        let words = params.footprint_bytes as f64 / 8.0;
        let capacity = (words * TREES_SHARE) as usize / NODE_WORDS / MOST_TREES;
        let n = (words * (1.0 - TREES_SHARE)) as usize / TUPLE_WORDS;
        let views = largest_views(capacity, wanted);
        let views = &views;

        let table = &m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let table = Table {
                seed: params.seed,
                tuples: m.array("tuples", n * TUPLE_WORDS)?,
                nodes: m.array("nodes", capacity * MOST_TREES * NODE_WORDS)?,
            };
            m.each(n, |m, tuple| {
                m.work((CARDINALITIES.len() as u32 + 1) * random::AT_WORK);
                let attributes = attributes(table.seed, tuple);
                for word in 0..ATTRIBUTE_WORDS {
                    let pair =
                        u64::from(attributes[2 * word]) | u64::from(attributes[2 * word + 1]) << 32;
                    m.set(&table.tuples, tuple * TUPLE_WORDS + word, pair);
                }
                let at = tuple * TUPLE_WORDS + ATTRIBUTE_WORDS;
                m.set(&table.tuples, at, measure(table.seed, tuple));
            });
            Ok(table)
        })?;

        let start = |thread: usize| Tree {
            base: thread * capacity,
            used: 0,
            view: usize::MAX,
            weighted: 0,
            total: 0,
            count: 0,
            lost: 0,
        };
        let body = |m: &mut M, tree: &mut Tree, range: Range<usize>| {
            for item in range {
                let (view, tuple) = (item / n, item % n);
                if view != tree.view {
                    table.write_out(m, tree);
                    tree.view = view;
                }
                table.group(m, tree, capacity, views[view], tuple);
            }
        };
        let found = m.phase(phase::MAIN, 0, |m| {
            let mut found = m.parallel(views.len() * n, TURN, start, body);
            for tree in &mut found {
                table.write_out(m, tree);
            }
            found
        });

        Ok(m.phase(phase::VERIFY, 0, |_| {
            let expected = expected(params.seed, n, views);
            let sum = |part: fn(&Tree) -> u64| {
                found.iter().fold(0u64, |sum, tree| sum.wrapping_add(part(tree)))
            };
            let (weighted, total) = (sum(|t| t.weighted), sum(|t| t.total));
            let (count, lost) = (sum(|t| t.count), sum(|t| t.lost));
            let operations = (views.len() * n) as u64;
            let checks = vec![
                check(lost == 0, format!("{lost} tuples without room for their group")),
                check(count == operations, format!("{count} of {operations} tuples in groups")),
                check(
                    (weighted, total) == expected,
                    format!(
                        "sums {weighted:x} and {total}, expected {:x} and {}",
                        expected.0, expected.1
                    ),
                ),
            ];
            Outcome { checksum: fold(weighted, total), operations, checks }
        }))
    }
}

/// The views with the most groups that fit, the largest first.
fn largest_views(capacity: usize, wanted: usize) -> Vec<View> {
    let mut views: Vec<View> = (0..1 << CARDINALITIES.len()).map(View).collect();
    views.retain(|view| view.groups() <= capacity / 2);
    views.sort_by_key(|view| (usize::MAX - view.groups(), view.0));
    views.truncate(wanted);
    views
}

/// Weighted and plain sums of all groups of these views.
fn expected(seed: u64, n: usize, views: &[View]) -> (u64, u64) {
    let mut expected = (0u64, 0u64);
    for tuple in 0..n {
        let attributes = attributes(seed, tuple);
        let measure = measure(seed, tuple);
        for view in views {
            let key = view.key(|d| attributes[d]);
            expected.0 = expected.0.wrapping_add(weight(key).wrapping_mul(measure));
            expected.1 = expected.1.wrapping_add(measure);
        }
    }
    expected
}

fn attributes(seed: u64, tuple: usize) -> [u32; CARDINALITIES.len()] {
    let mut words = random::Words::of(seed, tuple as u64);
    CARDINALITIES.map(|values| words.below(values as usize) as u32)
}

fn measure(seed: u64, tuple: usize) -> u64 {
    random::at(!seed, tuple as u64) >> 40
}

impl Table {
    fn node<M: Memory>(&self, m: &mut M, node: usize, word: usize) -> u64 {
        m.get(&self.nodes, node * NODE_WORDS + word)
    }

    fn set_node<M: Memory>(&self, m: &mut M, node: usize, word: usize, value: u64) {
        m.set(&self.nodes, node * NODE_WORDS + word, value);
    }

    /// Adds a tuple to its group.
    fn group<M: Memory>(
        &self,
        m: &mut M,
        tree: &mut Tree,
        capacity: usize,
        view: View,
        tuple: usize,
    ) {
        let words: [u64; ATTRIBUTE_WORDS] =
            std::array::from_fn(|word| m.get(&self.tuples, tuple * TUPLE_WORDS + word));
        let measure = m.get(&self.tuples, tuple * TUPLE_WORDS + ATTRIBUTE_WORDS);
        m.work(70);
        let key = view.key(|d| (words[d / 2] >> (32 * (d % 2))) as u32);
        let mut place = None;
        if tree.used > 0 {
            let mut node = tree.base;
            // A tree is never deeper than it has nodes, unless memory was damaged.
            for _ in 0..tree.used {
                m.work(9);
                let here = self.node(m, node, 0);
                if here == key {
                    let (sum, count) = (self.node(m, node, 1), self.node(m, node, 2));
                    self.set_node(m, node, 1, sum.wrapping_add(measure));
                    self.set_node(m, node, 2, count.wrapping_add(1));
                    return;
                }
                let children = self.node(m, node, 3);
                let right = u32::from(key > here);
                let child = (children >> (32 * right)) as u32;
                if child == 0 || child as usize >= tree.used {
                    place = Some((node, children, right));
                    break;
                }
                node = tree.base + child as usize;
            }
        }
        if tree.used == capacity || (tree.used > 0 && place.is_none()) {
            tree.lost += 1;
            return;
        }
        let new = tree.used;
        tree.used += 1;
        for (word, value) in [key, measure, 1, 0].into_iter().enumerate() {
            self.set_node(m, tree.base + new, word, value);
        }
        if let Some((parent, children, right)) = place {
            self.set_node(m, parent, 3, children | (new as u64) << (32 * right));
        }
    }

    /// Writes a view out: its groups in the order of their first appearance.
    fn write_out<M: Memory>(&self, m: &mut M, tree: &mut Tree) {
        for node in tree.base..tree.base + tree.used {
            m.work(12);
            let (key, sum) = (self.node(m, node, 0), self.node(m, node, 1));
            tree.weighted = tree.weighted.wrapping_add(weight(key).wrapping_mul(sum));
            tree.total = tree.total.wrapping_add(sum);
            tree.count = tree.count.wrapping_add(self.node(m, node, 2));
        }
        tree.used = 0;
    }
}
