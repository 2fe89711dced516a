//! Empties the processors' lists of free pages, so that freed memory counts as free.
//!
//! Pages that are freed go to a list of the processor that frees them (`pcp`, mm/page_alloc.c, Linux
//! 6.12), and the watermarks do not count those. A node below its low watermark gives nothing to an
//! allocation that may use another node, whatever these lists hold. They may hold as much as the
//! low watermark on all processors together, and after a time in which much was freed an eighth of the
//! node (`zone_highsize`). So what a mover frees for the kernel's own allocations would not serve them.
//!
//! A smaller bound of the lists (`vm.percpu_pagelist_high_fraction`) is approached by an eighth each
//! time a processor brings its counters up to date (`decay_pcp_high`), which `vm.stat_refresh` asks
//! for. A list that may hold much more than it does gives up nothing in the first of these. The bound is
//! as before at the end of the call.
//!
//! Programs that send and receive fill the lists again within a second: what they free stays there, and
//! what the kernel allocates meanwhile comes from slow memory, since the node is just below its
//! watermark. (Observed with Redis on a node of one zone: 7,821 pages free, a low watermark of 7,846,
//! 2,812 on lists, and 15 % of the lines that the kernel missed from fast memory. A node that has
//! a zone of 16 MB below 16 MB, too, serves the kernel from that.) So where lists hold again what was
//! freed just before, they keep a bound until the end by which all of them together hold half of the
//! headroom at most, or four batches each (`zone_highsize`); before Linux 5.14 lists held six.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::files::{self, FileError};
use crate::numa;
use crate::roots::Roots;
use crate::session::{Session, SessionError};

/// A part of a node so small that each list is left its least size.
const SMALLEST: &str = "1000000";
/// The kernel takes no larger part of a node than this fraction (`MIN_PERCPU_PAGELIST_HIGH_FRACTION`).
const LEAST_FRACTION: u64 = 8;
/// Updates of the counters in one call: 7/8 to this power is a fiftieth.
const UPDATES: u32 = 30;
/// Time between two calls, at least and at most; it doubles while they bring nothing.
const PAUSE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(600)];
/// What an update takes of each processor, at most: some 20 us were measured on two.
const UPDATE: Duration = Duration::from_micros(50);
/// A pause is so many times as long as what the call before it took of each processor. How long the call
/// took is no measure of that: most of it is waiting until each processor has its turn.
const PAUSE_TIMES: u32 = 1000;
/// Lists that hold again what is lacking so soon after they were emptied are kept short.
const FILLED_AGAIN: Duration = Duration::from_secs(10);
/// Free pages in lists that are worth a call: what a range takes.
const WORTH_BYTES: u64 = 2 << 20;

/// Empties the lists of all nodes, as far as processors give up their own, before free memory is counted.
pub(crate) fn drain(roots: &Roots, session: &Session) -> Result<(), SessionError> {
    let change = session.borrow(&roots.free_list_bound(), SMALLEST)?;
    let drained = (0..UPDATES).try_for_each(|_| files::write(&roots.update_counters(), "1"));
    change.iter().try_for_each(|change| session.give_back(change))?;
    Ok(drained?)
}

/// Empties the lists of a host, shared by all groups. Clones share it.
#[derive(Clone)]
pub(crate) struct FreeLists {
    roots: Roots,
    session: Arc<Session>,
    turn: Arc<Mutex<Turn>>,
}

/// When the lists may be emptied.
#[derive(Debug)]
struct Turn {
    /// Not before this time; `None`: never again, for it has failed.
    next: Option<Duration>,
    pause: Duration,
    /// Whether the last call freed what was lacking, or a range's size.
    was_useful: bool,
    /// When the lists were last emptied.
    emptied: Option<Duration>,
    /// Lists are kept short.
    are_short: bool,
}

/// What became of a request for free pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Emptied {
    /// The lists were emptied just now.
    Now,
    /// They hold so many bytes, which a call after the pause will free.
    Later(u64),
}

impl FreeLists {
    pub(crate) fn new(roots: &Roots, session: Arc<Session>) -> Self {
        let turn = Turn {
            next: Some(Duration::ZERO),
            pause: PAUSE[0],
            was_useful: true,
            emptied: None,
            are_short: false,
        };
        FreeLists { roots: roots.clone(), session, turn: Arc::new(Mutex::new(turn)) }
    }

    /// Empties the lists where they hold a good part of what these nodes lack of free memory, unless
    /// it was done just before.
    pub(crate) fn empty(
        &self,
        nodes: &[u32],
        lacking_bytes: u64,
        mut clock: impl FnMut() -> Duration,
    ) -> Emptied {
        let begun = clock();
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(next) = turn.next else { return Emptied::Later(0) };
        let held_bytes = self.held_bytes(nodes);
        if begun < next || held_bytes < lacking_bytes.min(WORTH_BYTES) {
            return Emptied::Later(if turn.was_useful { held_bytes } else { 0 });
        }
        let is_soon = turn.emptied.is_some_and(|last| begun.saturating_sub(last) < FILLED_AGAIN);
        if is_soon && turn.was_useful && !turn.are_short {
            turn.are_short = true;
            if let Err(error) = self.keep_short(nodes) {
                tracing::warn!(%error, "the processors' lists of free pages fill up again");
            }
        }
        match self.shrink(nodes) {
            Ok((left_bytes, updates)) => {
                turn.emptied = Some(begun);
                turn.was_useful =
                    held_bytes.saturating_sub(left_bytes) >= lacking_bytes.min(WORTH_BYTES);
                let least = if turn.was_useful { PAUSE[0] } else { turn.pause * 2 };
                turn.pause = least.max(UPDATE * updates * PAUSE_TIMES).min(PAUSE[1]);
                turn.next = Some(clock() + turn.pause);
                tracing::debug!(
                    held_bytes,
                    left_bytes,
                    "emptied the processors' lists of free pages"
                );
            }
            Err(error) => {
                tracing::warn!(%error, "free pages stay in the processors' lists");
                turn.next = None;
            }
        }
        Emptied::Now
    }

    /// Bounds what lists hold until the end of the run; not where the host has a smaller bound itself.
    fn keep_short(&self, nodes: &[u32]) -> Result<(), SessionError> {
        let path = self.roots.free_list_bound();
        let own: u64 = files::read_number(&path)?.unwrap_or(0);
        let of = |room: numa::Room| 2 * room.managed_bytes / room.headroom.wanted_bytes.max(1);
        let fraction = self.rooms(nodes).map(of).max().unwrap_or(0).max(LEAST_FRACTION);
        if own >= fraction {
            return Ok(());
        }
        tracing::info!(
            fraction,
            "the processors' lists of free pages are kept short, for fast memory that the kernel needs \
             stays in them"
        );
        self.session.set(&path, &fraction.to_string())
    }

    fn held_bytes(&self, nodes: &[u32]) -> u64 {
        self.rooms(nodes).map(|room| room.list_bytes).sum()
    }

    fn rooms(&self, nodes: &[u32]) -> impl Iterator<Item = numa::Room> {
        nodes.iter().map(|&node| numa::room(&self.roots, node).unwrap_or_default())
    }

    /// What the lists still hold once twice the headroom is free, so that it lasts, or after as many
    /// updates as may be made; and how many were.
    fn shrink(&self, nodes: &[u32]) -> Result<(u64, u32), SessionError> {
        let change = self.session.borrow(&self.roots.free_list_bound(), SMALLEST)?;
        let shrunk = self.until_free(nodes, || files::write(&self.roots.update_counters(), "1"));
        change.iter().try_for_each(|change| self.session.give_back(change))?;
        Ok((self.held_bytes(nodes), shrunk?))
    }

    fn until_free(
        &self,
        nodes: &[u32],
        mut update: impl FnMut() -> Result<(), FileError>,
    ) -> Result<u32, FileError> {
        let is_free = |room: numa::Room| room.free_bytes >= room.headroom.wanted_bytes;
        for made in 1..=UPDATES {
            update()?;
            if self.rooms(nodes).all(is_free) {
                return Ok(made);
            }
        }
        Ok(UPDATES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;
    use std::fs;

    const BOUND: &str = "proc/sys/vm/percpu_pagelist_high_fraction";
    const UPDATE_FILE: &str = "proc/sys/vm/stat_refresh";

    fn zones(on_lists: u32) -> String {
        format!(
            "Node 0, zone    DMA32\n  pages free     100\n        low      100\n        high     120\n\
             \x20       managed  100000\n  pagesets\n    cpu: 0\n              count: {on_lists}\n\
             \x20             high:  4000\n"
        )
    }

    #[test]
    fn lists_are_emptied_where_they_hold_what_is_lacking_and_the_bound_is_put_back() {
        let (keep, roots) =
            folder(&[("proc/zoneinfo", &zones(600)), (BOUND, "0\n"), (UPDATE_FILE, "\n")]);
        let session = Arc::new(Session::open(&roots, None).unwrap());
        let lists = FreeLists::new(&roots, session);
        let read = |path: &str| fs::read_to_string(keep.path().join(path)).unwrap();
        let at = |s: u64| lists.empty(&[0], 4 << 20, || Duration::from_secs(s)) == Emptied::Now;
        // 2.3 MiB are on lists, on node 0.
        let of_1 = lists.empty(&[1], 4 << 20, || Duration::from_secs(5));
        assert_eq!(of_1, Emptied::Later(0), "node 1 has no lists");
        assert_eq!(read(UPDATE_FILE), "\n");
        assert!(at(5));
        assert_eq!((read(UPDATE_FILE).trim(), read(BOUND).trim()), ("1", "0"));
        // Thirty updates are followed by a pause of 1.5 s. And it brought nothing here: the files do not
        // change. The pause doubles.
        fs::write(keep.path().join(UPDATE_FILE), "\n").unwrap();
        assert!(!at(6), "soon after the last time");
        assert_eq!(read(UPDATE_FILE), "\n");
        assert!(at(7));
        assert!(!at(10));
        assert!(at(11));
        assert!(!at(18));
        assert!(at(19));
    }

    #[test]
    fn lists_that_fill_up_again_are_kept_short_until_the_end() {
        let (keep, roots) =
            folder(&[("proc/zoneinfo", &zones(600)), (BOUND, "0\n"), (UPDATE_FILE, "\n")]);
        let session = Arc::new(Session::open(&roots, None).unwrap());
        let lists = FreeLists::new(&roots, Arc::clone(&session));
        let bound = || fs::read_to_string(keep.path().join(BOUND)).unwrap().trim().to_owned();
        let hold = |pages| fs::write(keep.path().join("proc/zoneinfo"), zones(pages)).unwrap();
        // Files do not empty lists, so what the call before has freed is given by hand.
        let at = |s: u64| {
            hold(600);
            assert_eq!(lists.empty(&[0], 2 << 20, || Duration::from_secs(s)), Emptied::Now);
            lists.turn.lock().unwrap().was_useful = true;
        };
        at(0);
        assert_eq!(bound(), "0");
        at(60);
        assert_eq!(bound(), "0", "a minute later");
        at(65);
        // 100,000 pages of which 512 are half of the headroom of 4 MiB.
        assert_eq!(bound(), "195");
        at(80);
        assert_eq!(bound(), "195");
        let left = session.restore();
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(bound(), "0");
    }

    #[test]
    fn a_host_whose_lists_are_shorter_keeps_its_bound() {
        let (keep, roots) =
            folder(&[("proc/zoneinfo", &zones(600)), (BOUND, "1000\n"), (UPDATE_FILE, "\n")]);
        let session = Arc::new(Session::open(&roots, None).unwrap());
        FreeLists::new(&roots, session).keep_short(&[0]).unwrap();
        assert_eq!(fs::read_to_string(keep.path().join(BOUND)).unwrap(), "1000\n");
    }

    #[test]
    fn lists_that_give_up_nothing_at_first_are_asked_again_until_enough_is_free() {
        let (keep, roots) =
            folder(&[("proc/zoneinfo", &zones(600)), (BOUND, "0\n"), (UPDATE_FILE, "\n")]);
        let session = Arc::new(Session::open(&roots, None).unwrap());
        let lists = FreeLists::new(&roots, session);
        let updates_until = |from: u32| {
            fs::write(keep.path().join("proc/zoneinfo"), zones(600)).unwrap();
            let mut updates = 0;
            let update = || {
                updates += 1;
                if updates == from {
                    let freed = zones(10).replace("pages free     100", "pages free     9000");
                    fs::write(keep.path().join("proc/zoneinfo"), freed).unwrap();
                }
                Ok(())
            };
            let made = lists.until_free(&[0], update).unwrap();
            assert_eq!(made, updates);
            updates
        };
        assert_eq!(updates_until(1), 1);
        assert_eq!(updates_until(12), 12);
        assert_eq!(updates_until(1000), UPDATES);
    }

    #[test]
    fn a_kernel_without_the_setting_is_asked_once() {
        let (keep, roots) = folder(&[("proc/zoneinfo", &zones(600)), (UPDATE_FILE, "\n")]);
        let session = Arc::new(Session::open(&roots, None).unwrap());
        let lists = FreeLists::new(&roots, session);
        assert_eq!(lists.empty(&[0], 4 << 20, || Duration::ZERO), Emptied::Now);
        let later = lists.empty(&[0], 4 << 20, || Duration::from_secs(1000));
        assert_eq!(later, Emptied::Later(0), "what cannot be freed does not come");
        assert_eq!(fs::read_to_string(keep.path().join(UPDATE_FILE)).unwrap(), "\n");
    }

    #[test]
    fn what_the_lists_hold_is_to_come_as_long_as_emptying_them_frees_it() {
        let (keep, roots) =
            folder(&[("proc/zoneinfo", &zones(600)), (BOUND, "0\n"), (UPDATE_FILE, "\n")]);
        let lists = FreeLists::new(&roots, Arc::new(Session::open(&roots, None).unwrap()));
        let at = |s: u64| lists.empty(&[0], 4 << 20, || Duration::from_secs(s));
        let hold = |pages| fs::write(keep.path().join("proc/zoneinfo"), zones(pages)).unwrap();
        hold(100);
        assert_eq!(at(0), Emptied::Later(100 << 12), "too little for a call, and not lost");
        hold(600);
        assert_eq!(at(5), Emptied::Now);
        // The files did not change: the call freed nothing.
        assert_eq!(at(6), Emptied::Later(0));
    }
}
