//! Rules that every policy keeps, whatever the group does. The model checks each plan: no page
//! twice, promotions from slow and demotions from fast memory, never over budget afterwards, no
//! more moves than allowed, demotions that are due first.

use std::sync::Arc;

use crate::model::{Model, policies};
use proptest::prelude::*;
use terrace_core::bits::PageBits;
use terrace_core::page::{Extent, Layout, PageSize, SpaceId};
use terrace_core::scan::Budget;

/// Something that happens to a group between two scans.
#[derive(Debug, Clone)]
struct Event {
    /// Which of 200 pages it has; `None`: as before.
    present: Option<Vec<bool>>,
    fast_pages: u64,
    moved_pages: u64,
    lost_periods: u32,
    accessed: Vec<bool>,
    /// Whether the plan is executed.
    succeeds: bool,
}

const ADDRESSES: usize = 200;

fn events() -> impl Strategy<Value = Vec<Event>> {
    let pages = || prop::collection::vec(any::<bool>(), ADDRESSES);
    let event = (
        prop::option::weighted(0.2, pages()),
        prop::sample::select(vec![0u64, 1, 30, 100, 1000]),
        prop::sample::select(vec![u64::MAX, u64::MAX, 0, 1, 13]),
        prop::sample::select(vec![0u32, 0, 0, 3, u32::MAX]),
        pages(),
        prop::bool::weighted(0.8),
    )
        .prop_map(|(present, fast_pages, moved_pages, lost_periods, accessed, succeeds)| Event {
            present,
            fast_pages,
            moved_pages,
            lost_periods,
            accessed,
            succeeds,
        });
    prop::collection::vec(event, 1..20)
}

/// A layout of the pages that are present, cut at every `cut`th page.
fn layout(present: &[bool], cut: usize) -> Layout {
    let size = PageSize::Huge.bytes();
    let mut extents: Vec<Extent> = Vec::new();
    for (page, _) in present.iter().enumerate().filter(|(_, here)| **here) {
        let (space, start) = (SpaceId(page as u32 / 150), page as u64 * size);
        match extents.last_mut() {
            Some(e) if e.space == space && e.start + e.pages * size == start && page % cut != 0 => {
                e.pages += 1;
            }
            _ => extents.push(Extent { space, start, pages: 1 }),
        }
    }
    Layout::new(PageSize::Huge, extents).unwrap()
}

/// A group that these events happen to, with extents cut at every `cut`th page.
struct Group {
    model: Model,
    present: Vec<bool>,
    cut: usize,
}

impl Group {
    fn new(policy: &str, cut: usize) -> Self {
        let model = Model::placed(policy, layout(&[], cut), PageBits::default(), Budget::fast(50));
        Group { model, present: Vec::new(), cut }
    }

    fn happen(&mut self, event: &Event) -> terrace_core::plan::Decision {
        let model = &mut self.model;
        if let Some(present) = &event.present {
            let next = layout(present, self.cut);
            // Old pages stay where they are; new ones go to fast memory while it has room.
            let mut fast = PageBits::new(next.pages());
            let mut room = 50u64;
            for index in 0..next.pages() {
                let (space, address) = next.address(index);
                let place = match model.layout.index(space, address) {
                    Some(old) => model.fast.get(old),
                    None => room > 0,
                };
                room = room.saturating_sub(u64::from(place));
                fast.set(index, place);
            }
            model.layout = Arc::new(next);
            model.fast = fast;
            self.present.clone_from(present);
        }
        model.budget = Budget { fast_pages: event.fast_pages, moved_pages: event.moved_pages };
        model.lost_periods = event.lost_periods;
        let addresses: Vec<usize> =
            (0..self.present.len()).filter(|&page| self.present[page]).collect();
        let accessed = |index: usize| event.accessed[addresses[index]];
        if event.succeeds { model.period(accessed) } else { model.observe(accessed) }
    }
}

proptest! {
    #[test]
    fn plans_keep_the_rules_and_do_not_depend_on_how_extents_are_cut(events in events()) {
        for name in policies() {
            let (mut whole, mut cut) = (Group::new(name, usize::MAX), Group::new(name, 7));
            for event in &events {
                // Two policies of the same seed decide alike, on differently cut layouts too.
                prop_assert_eq!(whole.happen(event), cut.happen(event), "{}", name);
            }
        }
    }

    #[test]
    fn groups_of_every_size_settle(
        pages in prop::sample::select(vec![0usize, 1, 2, 63, 64, 65, 130]),
        fast_pages in prop::sample::select(vec![0u64, 1, 40, 64, 1000]),
        resident in prop::collection::vec(any::<bool>(), 130),
        accessed in prop::collection::vec(any::<bool>(), 130),
    ) {
        for name in policies() {
            let fast = resident[..pages].iter().copied().collect();
            let layout = Layout::contiguous(PageSize::Huge, pages as u64);
            let mut model = Model::placed(name, layout, fast, Budget::fast(fast_pages));
            // The same pages over and over: the longest history there is reaches 64 periods back.
            for _ in 0..80 {
                model.period(|page| accessed[page]);
            }
            prop_assert!(model.resident() <= fast_pages);
            for _ in 0..20 {
                let decision = model.period(|page| accessed[page]);
                prop_assert!(decision.plan.is_empty(), "{} moves {:?}", name, decision.plan);
                prop_assert_eq!(decision.features.stability, if pages > 0 { 1.0 } else { 0.0 });
            }
            if pages as u64 <= fast_pages && matches!(name, "lru" | "lfu" | "lists") {
                let left = (0..pages).filter(|&p| accessed[p] && !model.fast.get(p)).count();
                prop_assert_eq!(left, 0, "{} leaves hot pages in slow memory", name);
            }
        }
    }
}
