//! Active and inactive page lists (nimble paper, section 3.2 and figure 7; the "modified LRU
//! lists" that the adaptive-migration-policy paper, section 3.3, compares with; `docs/coverage.md`,
//! N5, A6).
//!
//! Each tier has an active and an inactive list. A page has two access bits. The *hardware* bit
//! is set by accesses and stays set until a list scan tests and clears it; the *software* bit is
//! set by a list scan. Each period a share of each list is scanned from its tail, the end where
//! pages wait longest (figure 7b):
//!
//! | list | hardware | software | then |
//! |---|---|---|---|
//! | active | 1, cleared | ignored | to the head of the active list |
//! | active | 0 | ignored | to the head of the inactive list |
//! | inactive | 1, cleared | 1, cleared | to the head of the active list |
//! | inactive | 1, cleared | 0, set | to the head of the inactive list |
//! | inactive | 0 | cleared | to the head of the inactive list |
//!
//! Linux would reclaim the page of the last row; here it stays, a candidate for demotion. Then
//! (figure 7a) pages of slow memory's active list move up as far as there is room, or in exchange
//! for pages of fast memory's inactive list. When fast memory is full of active pages nothing
//! moves.
//!
//! With `membership = "kernel"` the lists are those that the kernel has, as the paper's
//! implementation has it, where the machine reports which pages are active (`Scan::active`): a page
//! whose kind has changed there joins the head of its new list, nothing is scanned, and how lists
//! age is the kernel's business. Linux ages them when memory is short. Where the machine does not
//! report it, the lists kept here are used, and the name of the applied policy says so.
//!
//! Where the paper is silent:
//! - Pages join the head of the active list when they come, as anonymous pages do in Linux 4.14
//!   that it builds on, in the order of their addresses; where the machine reports which pages are
//!   active, they join the list on which the kernel has them.
//! - Moved pages keep their list's kind and join the head of the list of the other tier, as
//!   Linux's migration does.
//! - Pages to promote are taken from the head of the active list, the most recently found hot;
//!   pages to demote from the tail of the inactive list.
//! - Pages to scan are a list's length times its share, rounded up; lengths are taken before any
//!   list is scanned, so no page is scanned twice. The active lists are scanned first.
//! - Pages over the budget are demoted from the tail of the inactive list, then from that of the
//!   active list.

use serde::Deserialize;

use crate::bits::PageBits;
use crate::builder::PlanBuilder;
use crate::declare_parameters;
use crate::features::FeatureCounter;
use crate::plan::{Decision, Plan};
use crate::policy::{Policy, PolicyKind, parameters};
use crate::remap::Remap;
use crate::scan::{Budget, Scan};
use crate::select::MoveLimits;

declare_parameters! {
    #[derive(Clone, Copy)]
    struct Parameters {
        active_scan_ratio: f64 = 0.5, from 0 to 1
            => "share of each active list that is scanned in a period";
        inactive_scan_ratio: f64 = 0.5, from 0 to 1
            => "share of each inactive list that is scanned in a period";
        membership: Membership = Membership::Own, written "\"own\""
            => "whose lists pages are on: own, or kernel where the machine has them (live, on the \
                Terrace kernel)";
    }
}

/// Which lists are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Membership {
    /// The lists kept here.
    Own,
    /// The kernel's.
    Kernel,
}

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "lists",
    summary: "active and inactive page lists per tier, as Linux keeps them",
    advice: "to compare with what Linux's own page lists know, as Nimble does",
    source: "nimble paper, section 3.2, figure 7; adaptive-migration-policy paper, section 3.3",
    parameters: Parameters::DOCS,
    build: |value, _seed| {
        let p: Parameters = parameters(KIND.name, value)?;
        Ok(Box::new(Lists::new(p)))
    },
};

/// Name of the applied policy where the kernel's lists are requested and not known.
const UNKNOWN: &str = "lists-own";

/// No page: the end of a list.
const END: u32 = u32::MAX;

/// The lists by number; the other tier's list of the same kind differs in [`SLOW`].
const FAST_ACTIVE: u8 = 0;
const FAST_INACTIVE: u8 = 1;
const SLOW_ACTIVE: u8 = 2;
const SLOW_INACTIVE: u8 = 3;
/// Bits of a list's number.
const INACTIVE: u8 = 1;
const SLOW: u8 = 2;

#[derive(Debug, Clone, Copy)]
struct Ends {
    head: u32,
    tail: u32,
    length: u64,
}

const EMPTY: Ends = Ends { head: END, tail: END, length: 0 };

/// A page's neighbours: towards the head and towards the tail.
#[derive(Debug, Clone, Copy)]
struct Links {
    newer: u32,
    older: u32,
}

/// The four lists: doubly linked through the pages' numbers, so that a page leaves any list at
/// once. 8 bytes and a list number of 1 byte a page.
#[derive(Debug)]
struct PageLists {
    ends: [Ends; 4],
    links: Vec<Links>,
    list: Vec<u8>,
}

impl PageLists {
    fn new() -> Self {
        PageLists { ends: [EMPTY; 4], links: Vec::new(), list: Vec::new() }
    }

    fn length(&self, list: u8) -> u64 {
        self.ends[usize::from(list)].length
    }

    fn push_head(&mut self, list: u8, page: u32) {
        let ends = &mut self.ends[usize::from(list)];
        let older = ends.head;
        ends.head = page;
        ends.length += 1;
        match older {
            END => ends.tail = page,
            older => self.links[older as usize].newer = page,
        }
        self.links[page as usize] = Links { newer: END, older };
        self.list[page as usize] = list;
    }

    fn unlink(&mut self, page: u32) {
        let Links { newer, older } = self.links[page as usize];
        let ends = &mut self.ends[usize::from(self.list[page as usize])];
        ends.length -= 1;
        match newer {
            END => ends.head = older,
            newer => self.links[newer as usize].older = older,
        }
        match older {
            END => ends.tail = newer,
            older => self.links[older as usize].newer = newer,
        }
    }

    fn move_to_head(&mut self, list: u8, page: u32) {
        self.unlink(page);
        self.push_head(list, page);
    }

    /// The first `count` pages from the head.
    fn newest(&self, list: u8, count: u64) -> impl Iterator<Item = u32> + '_ {
        let from = self.ends[usize::from(list)].head;
        std::iter::successors(Some(from), |&page| Some(self.links[page as usize].older))
            .take(count.min(self.length(list)) as usize)
    }

    /// The first `count` pages from the tail.
    fn oldest(&self, list: u8, count: u64) -> impl Iterator<Item = u32> + '_ {
        let from = self.ends[usize::from(list)].tail;
        std::iter::successors(Some(from), |&page| Some(self.links[page as usize].newer))
            .take(count.min(self.length(list)) as usize)
    }

    /// Applies a change of layout: what is left of each list keeps its order.
    fn remap(&self, remap: &Remap) -> PageLists {
        let mut index = vec![END; remap.old_pages()];
        for run in remap.runs() {
            for (to, new) in index[run.old..run.old + run.pages].iter_mut().zip(run.new as u32..) {
                *to = new;
            }
        }
        let mut next = PageLists {
            ends: [EMPTY; 4],
            links: vec![Links { newer: END, older: END }; remap.new_pages()],
            list: vec![0; remap.new_pages()],
        };
        for list in 0..4 {
            for page in self.oldest(list, u64::MAX) {
                match index[page as usize] {
                    END => (),
                    page => next.push_head(list, page),
                }
            }
        }
        next
    }

    fn size_bytes(&self) -> usize {
        self.links.capacity() * size_of::<Links>() + self.list.capacity()
    }
}

#[derive(Debug)]
struct Lists {
    parameters: Parameters,
    features: FeatureCounter,
    lists: PageLists,
    hardware: PageBits,
    software: PageBits,
    /// A group of more pages is not moved, and its data is dropped. Links are of 32 bits: that is
    /// beyond 16 TiB of base pages.
    most_pages: usize,
}

impl Lists {
    fn new(parameters: Parameters) -> Self {
        Lists {
            parameters,
            features: FeatureCounter::default(),
            lists: PageLists::new(),
            hardware: PageBits::default(),
            software: PageBits::default(),
            most_pages: END as usize,
        }
    }

    fn remap(&mut self, remap: &Remap, scan: &Scan) {
        if remap.new_pages() > self.most_pages {
            self.lists = PageLists::new();
            return;
        }
        let known = self.lists.list.len() == remap.old_pages();
        let remap = if known { remap } else { &Remap::from_nothing(&scan.layout) };
        self.lists = self.lists.remap(remap);
        self.hardware = remap.bits(&self.hardware);
        self.software = remap.bits(&self.software);
        for page in remap.fresh().flatten() {
            let tier = if scan.fast.get(page) { FAST_ACTIVE } else { SLOW_ACTIVE };
            let active = scan.active.as_ref().is_none_or(|a| a.get(page));
            let list = if active { tier } else { tier | INACTIVE };
            self.lists.push_head(list, page as u32);
        }
    }

    /// Puts pages that changed their tier since the scan before on the lists of the new one.
    fn follow_moves(&mut self, scan: &Scan) {
        let words = scan.fast.words().iter().zip(self.features.previous_fast().words());
        for (word, (&now, &before)) in words.enumerate() {
            let mut moved = now ^ before;
            while moved != 0 {
                let page = (64 * word) as u32 + moved.trailing_zeros();
                let list = self.lists.list[page as usize] ^ SLOW;
                self.lists.move_to_head(list, page);
                moved &= moved - 1;
            }
        }
    }

    /// Sets the hardware bits of accessed pages, as page-table walks would have.
    fn touch(&mut self, scan: &Scan) {
        for (bits, &accessed) in self.hardware.words_mut().iter_mut().zip(scan.accessed.words()) {
            *bits |= accessed;
        }
    }

    /// The list scan of figure 7b.
    fn scan_lists(&mut self) {
        let share = |lists: &PageLists, list: u8, ratio: f64| {
            (list, (lists.length(list) as f64 * ratio).ceil() as u64)
        };
        let Parameters { active_scan_ratio, inactive_scan_ratio, .. } = self.parameters;
        let active =
            [FAST_ACTIVE, SLOW_ACTIVE].map(|list| share(&self.lists, list, active_scan_ratio));
        let inactive = [FAST_INACTIVE, SLOW_INACTIVE]
            .map(|list| share(&self.lists, list, inactive_scan_ratio));
        for (list, pages) in active {
            for _ in 0..pages {
                let page = self.lists.ends[usize::from(list)].tail;
                let accessed = test_and_clear(&mut self.hardware, page);
                self.lists.move_to_head(if accessed { list } else { list | INACTIVE }, page);
            }
        }
        for (list, pages) in inactive {
            for _ in 0..pages {
                let page = self.lists.ends[usize::from(list)].tail;
                let accessed = test_and_clear(&mut self.hardware, page);
                let again = test_and_clear(&mut self.software, page);
                if accessed && !again {
                    self.software.set(page as usize, true);
                }
                let to = if accessed && again { list & !INACTIVE } else { list };
                self.lists.move_to_head(to, page);
            }
        }
    }

    /// Applies the lists that the kernel has its pages on.
    fn adopt(&mut self, active: &PageBits) {
        for page in 0..active.len() {
            let list = self.lists.list[page];
            if (list & INACTIVE == 0) != active.get(page) {
                self.lists.move_to_head(list ^ INACTIVE, page as u32);
            }
        }
    }

    /// The moves of figure 7a.
    fn plan(&self, scan: &Scan, budget: &Budget, resident: u64) -> Plan {
        let lists = &self.lists;
        let idle = lists.length(FAST_INACTIVE);
        let allowed = MoveLimits::new(budget, resident, lists.length(SLOW_ACTIVE), idle);
        let mut plan = PlanBuilder::new(&scan.layout);
        if allowed == MoveLimits::default() {
            return plan.finish();
        }
        let (mut ups, mut downs) = (PageBits::new(scan.pages()), PageBits::new(scan.pages()));
        lists.newest(SLOW_ACTIVE, allowed.ups()).for_each(|page| ups.set(page as usize, true));
        let from_active = allowed.downs().saturating_sub(idle);
        lists
            .oldest(FAST_INACTIVE, allowed.downs())
            .chain(lists.oldest(FAST_ACTIVE, from_active))
            .for_each(|page| downs.set(page as usize, true));
        for (word, (&up, &down)) in ups.words().iter().zip(downs.words()).enumerate() {
            plan.word(word, up, down);
        }
        plan.finish()
    }
}

fn test_and_clear(bits: &mut PageBits, page: u32) -> bool {
    let was = bits.get(page as usize);
    bits.set(page as usize, false);
    was
}

impl Policy for Lists {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
        if let Some(remap) = self.features.follow(scan) {
            self.remap(&remap, scan);
        }
        if scan.pages() > self.most_pages {
            let (features, _) = self.features.count(scan);
            return Decision { plan: Plan::default(), applied: KIND.name, features };
        }
        self.follow_moves(scan);
        let (features, resident) = self.features.count(scan);
        self.touch(scan);
        let applied = match (self.parameters.membership, &scan.active) {
            (Membership::Kernel, Some(active)) => {
                self.adopt(active);
                KIND.name
            }
            (membership, _) => {
                self.scan_lists();
                if membership == Membership::Own { KIND.name } else { UNKNOWN }
            }
        };
        let plan = self.plan(scan, budget, resident);
        Decision { plan, applied, features }
    }

    fn metadata_bytes(&self) -> usize {
        self.features.size_bytes()
            + self.lists.size_bytes()
            + self.hardware.size_bytes()
            + self.software.size_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Extent, Layout, PageSize, SpaceId};
    use std::sync::Arc;

    fn bits(text: &str) -> PageBits {
        text.chars().map(|c| c == '1').collect()
    }

    /// A policy over as many pages as `fast` has, all of them active and scanned whole.
    struct Case {
        policy: Lists,
        layout: Arc<Layout>,
        fast: PageBits,
        budget: Budget,
    }

    impl Case {
        fn new(fast: &str, fast_pages: u64, ratio: f64) -> Self {
            let layout = Arc::new(Layout::contiguous(PageSize::Huge, fast.len() as u64));
            let policy = Lists::new(Parameters {
                active_scan_ratio: ratio,
                inactive_scan_ratio: ratio,
                ..Parameters::default()
            });
            Case { policy, layout, fast: bits(fast), budget: Budget::fast(fast_pages) }
        }

        /// A policy that takes the kernel's lists.
        fn on_the_kernels_lists(fast: &str, fast_pages: u64) -> Self {
            let mut case = Case::new(fast, fast_pages, 1.0);
            case.policy.parameters.membership = Membership::Kernel;
            case
        }

        /// A period of a machine that reports which pages its kernel has on active lists.
        fn period_with_lists(&mut self, accessed: &str, active: &str) -> (u64, u64) {
            let scan = Scan::new(0, Arc::clone(&self.layout), bits(accessed), self.fast.clone());
            let plan = self.policy.decide(&scan.with_active(bits(active)), &self.budget).plan;
            plan.apply(&self.layout, &mut self.fast);
            plan.pages(PageSize::Huge)
        }

        fn period(&mut self, accessed: &str) -> (u64, u64) {
            let scan = Scan::new(0, Arc::clone(&self.layout), bits(accessed), self.fast.clone());
            let plan = self.policy.decide(&scan, &self.budget).plan;
            plan.apply(&self.layout, &mut self.fast);
            plan.pages(PageSize::Huge)
        }

        fn list(&self, page: usize) -> u8 {
            self.policy.lists.list[page]
        }
    }

    #[test]
    fn a_page_goes_through_figure_7() {
        let mut case = Case::new("0", 0, 1.0);
        assert_eq!(case.period("1"), (0, 0));
        assert_eq!(case.list(0), SLOW_ACTIVE, "accessed: stays active");
        case.period("0");
        assert_eq!(case.list(0), SLOW_INACTIVE, "not accessed: no longer active");
        case.period("1");
        assert_eq!(case.list(0), SLOW_INACTIVE, "accessed once: software bit");
        case.period("0");
        case.period("1");
        assert_eq!(case.list(0), SLOW_INACTIVE, "the software bit was cleared between");
        case.period("1");
        assert_eq!(case.list(0), SLOW_ACTIVE, "accessed twice running: active");
    }

    #[test]
    fn active_pages_trade_places_with_inactive_ones_and_then_nothing_moves() {
        let mut case = Case::new("1100", 2, 1.0);
        // Pages 0 and 1 turn inactive, 2 and 3 stay active.
        assert_eq!(case.period("0011"), (2, 2));
        assert_eq!(case.fast, bits("0011"));
        for _ in 0..5 {
            assert_eq!(case.period("0011"), (0, 0));
        }
        assert_eq!(case.list(2), FAST_ACTIVE);
        assert_eq!(case.list(0), SLOW_INACTIVE);
    }

    #[test]
    fn nothing_moves_when_fast_memory_is_full_of_active_pages() {
        let mut case = Case::new("1100", 2, 0.5);
        for _ in 0..20 {
            assert_eq!(case.period("1111"), (0, 0));
        }
    }

    #[test]
    fn active_pages_move_up_into_room() {
        let mut case = Case::new("1000", 3, 1.0);
        assert_eq!(case.period("1110"), (2, 0));
        assert_eq!(case.fast, bits("1110"));
    }

    #[test]
    fn a_share_of_each_list_is_scanned_and_the_hardware_bit_waits() {
        let mut case = Case::new("0000", 0, 0.5);
        // Tails first: pages 0 and 1. They were not accessed.
        case.period("0011");
        let lists: Vec<u8> = (0..4).map(|page| case.list(page)).collect();
        assert_eq!(lists, [SLOW_INACTIVE, SLOW_INACTIVE, SLOW_ACTIVE, SLOW_ACTIVE]);
        // Page 2 is scanned now, and is found accessed in the period before.
        case.period("0000");
        assert_eq!(case.list(2), SLOW_ACTIVE);
        assert!(!case.policy.hardware.get(2));
        assert!(case.policy.hardware.get(3));
    }

    #[test]
    fn the_kernels_lists_decide_where_they_are_known_whatever_was_accessed() {
        let mut case = Case::on_the_kernels_lists("1100", 2);
        // By these accesses pages 0 and 1 are hot; the kernel has 1 and 2 on its active lists.
        assert_eq!(case.period_with_lists("1100", "0110"), (1, 1));
        assert_eq!(case.fast, bits("0110"));
        assert_eq!(case.list(0), FAST_INACTIVE);
        // All active pages are in fast memory now, until the kernel's lists change.
        assert_eq!(case.period_with_lists("1001", "0110"), (0, 0));
        assert_eq!(case.period_with_lists("1001", "0011"), (1, 1));
        assert_eq!(case.fast, bits("0011"));
    }

    #[test]
    fn where_the_kernels_lists_are_not_known_its_own_are_used_and_that_is_reported() {
        let mut case = Case::on_the_kernels_lists("1100", 2);
        let mut own = Case::new("1100", 2, 1.0);
        for accessed in ["0011", "0111", "1001"] {
            assert_eq!(case.period(accessed), own.period(accessed));
        }
        let scan = Scan::new(0, case.layout.clone(), bits("0000"), case.fast.clone());
        assert_eq!(case.policy.decide(&scan, &case.budget).applied, "lists-own");
        let reported = scan.with_active(bits("1111"));
        assert_eq!(case.policy.decide(&reported, &case.budget).applied, "lists");
    }

    #[test]
    fn pages_that_come_join_the_list_on_which_the_kernel_has_them() {
        let mut case = Case::new("1000", 1, 0.0);
        // Nothing is scanned: where pages were put at first is all that counts.
        assert_eq!(case.period_with_lists("1111", "0010"), (1, 1));
        assert_eq!(case.fast, bits("0010"));
    }

    #[test]
    fn a_group_with_too_many_pages_is_not_placed_until_it_shrinks() {
        let mut case = Case::new("10", 1, 1.0);
        case.policy.most_pages = 3;
        case.period("11");
        case.layout = Arc::new(Layout::contiguous(PageSize::Huge, 4));
        case.fast = bits("1000");
        for _ in 0..3 {
            assert_eq!(case.period("0111"), (0, 0));
        }
        case.layout = Arc::new(Layout::contiguous(PageSize::Huge, 3));
        case.fast = bits("100");
        assert_eq!(case.period("010"), (1, 1));
        assert_eq!(case.fast, bits("010"));
    }

    #[test]
    fn access_bits_stay_with_their_pages_when_others_go() {
        let mut case = Case::new("0000", 0, 0.5);
        case.period("0011");
        // Page 0 goes. Of the active pages 2 and 3, now 1 and 2, the first is scanned.
        let extent = Extent { space: SpaceId(0), start: PageSize::Huge.bytes(), pages: 3 };
        case.layout = Arc::new(Layout::new(PageSize::Huge, vec![extent]).unwrap());
        case.fast = bits("000");
        case.period("000");
        assert_eq!(case.list(1), SLOW_ACTIVE);
        assert!(case.policy.hardware.get(2));
    }

    #[test]
    fn lists_keep_their_order_when_pages_go() {
        let mut case = Case::new("000000", 0, 0.5);
        case.period("111000");
        let order = |case: &Case| case.policy.lists.newest(SLOW_ACTIVE, 9).collect::<Vec<_>>();
        assert_eq!(order(&case), [2, 1, 0, 5, 4, 3]);
        // Page 0 goes; the others move down by one.
        let size = PageSize::Huge.bytes();
        let extent = crate::page::Extent { space: crate::page::SpaceId(0), start: size, pages: 5 };
        let next = Layout::new(PageSize::Huge, vec![extent]).unwrap();
        let remapped = case.policy.lists.remap(&Remap::between(&case.layout, &next));
        assert_eq!(remapped.newest(SLOW_ACTIVE, 9).collect::<Vec<_>>(), [1, 0, 4, 3, 2]);
        assert_eq!(remapped.oldest(SLOW_ACTIVE, 9).collect::<Vec<_>>(), [2, 3, 4, 0, 1]);
        assert_eq!(remapped.length(SLOW_ACTIVE), 5);
    }
}
