//! Why memory of a group is not tracked: its total is known, and each reason accounts for a part.

use terrace_core::page::PageSize;

use crate::cgroup::GroupMemory;
use crate::costs::Costs;
use crate::group_layout::GroupLayout;

/// Measurements of a group's memory beside its layout, in bytes. Each comes from another count of
/// the kernel, made at another moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Measured {
    unmapped_bytes: u64,
    other_size_bytes: u64,
    file_bytes: u64,
    few_pages_bytes: u64,
    over_bound_bytes: u64,
    unreadable_bytes: u64,
    /// Shared memory that other groups move.
    pub(crate) of_others_bytes: u64,
}

impl Measured {
    /// Of the processes' page maps.
    pub(crate) fn of_layout(group: &GroupLayout) -> Self {
        Measured {
            file_bytes: group.left_out.file_bytes,
            few_pages_bytes: group.left_out.few_pages_bytes,
            over_bound_bytes: group.truncated_pages * group.layout.page_size().bytes(),
            unreadable_bytes: group.unreadable_bytes,
            ..Measured::default()
        }
    }

    /// Adds values that only the control group has. Groups that are tracked in ranges have no other
    /// size.
    pub(crate) fn with_group(self, memory: &GroupMemory, tracked: Option<PageSize>) -> Self {
        let sum = |nodes: &Option<Vec<u64>>| nodes.iter().flatten().sum::<u64>();
        let anon_bytes = sum(&memory.anon_bytes);
        let huge_bytes = sum(&memory.anon_thp_bytes).min(anon_bytes);
        // A kernel without a count of mapped pages: all may be mapped.
        let mapped = memory.file_mapped_bytes.as_ref().or(memory.file_bytes.as_ref());
        let mapped_bytes = mapped.into_iter().flatten().sum::<u64>();
        Measured {
            unmapped_bytes: sum(&memory.file_bytes).saturating_sub(mapped_bytes),
            other_size_bytes: match tracked {
                None => 0,
                Some(PageSize::Huge) => anon_bytes - huge_bytes,
                Some(PageSize::Base) => huge_bytes,
            },
            ..self
        }
    }

    /// Divides so many untracked bytes by reason. Counts that were made at different moments, or
    /// that include memory of other groups, never increase the sum: the bytes of one reason are not
    /// available to the next.
    pub(crate) fn publish(&self, untracked_bytes: u64, costs: &Costs) {
        let mut left = untracked_bytes;
        let mut take = |bytes: u64| {
            let taken = bytes.min(left);
            left -= taken;
            taken
        };
        costs.untracked_unmapped_bytes().set(take(self.unmapped_bytes));
        costs.untracked_unreadable_bytes().set(take(self.unreadable_bytes));
        costs.untracked_over_bound_bytes().set(take(self.over_bound_bytes));
        costs.untracked_few_pages_bytes().set(take(self.few_pages_bytes));
        costs.untracked_other_size_bytes().set(take(self.other_size_bytes));
        costs.untracked_file_bytes().set(take(self.file_bytes));
        // Last: memory charged to another group is not this group's.
        costs.untracked_another_group_bytes().set(take(self.of_others_bytes));
        costs.untracked_other_bytes().set(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pagemap::LeftOut;
    use std::sync::Arc;
    use terrace_core::page::Layout;

    fn layout() -> GroupLayout {
        GroupLayout {
            processes: Vec::new(),
            layout: Arc::new(Layout::new(PageSize::Huge, Vec::new()).unwrap()),
            truncated_pages: 3,
            left_out: LeftOut { file_bytes: 5 << 20, few_pages_bytes: 1 << 20 },
            unreadable_bytes: 2 << 20,
        }
    }

    fn sum(costs: &Costs) -> u64 {
        costs.snapshot().untracked_by_reason().iter().map(|(_, bytes)| bytes).sum()
    }

    #[test]
    fn each_reason_gets_what_it_explains_and_the_sum_is_what_is_not_tracked() {
        let costs = Costs::default();
        let measured = Measured::of_layout(&layout());
        measured.publish(20 << 20, &costs);
        let s = costs.snapshot();
        assert_eq!(s.untracked_over_bound_bytes, 6 << 20);
        assert_eq!(s.untracked_file_bytes, 5 << 20);
        assert_eq!(s.untracked_few_pages_bytes, 1 << 20);
        assert_eq!(s.untracked_unreadable_bytes, 2 << 20);
        assert_eq!(s.untracked_other_bytes, 6 << 20);
        assert_eq!(sum(&costs), 20 << 20);
        // Memory that another group moves, as far as it is charged to this one.
        let shared = Measured { of_others_bytes: 100 << 20, ..measured };
        shared.publish(20 << 20, &costs);
        let s = costs.snapshot();
        assert_eq!((s.untracked_another_group_bytes, s.untracked_other_bytes), (6 << 20, 0));
        assert_eq!(sum(&costs), 20 << 20);
        // Less memory has less to explain.
        measured.publish(9 << 20, &costs);
        let s = costs.snapshot();
        assert_eq!((s.untracked_file_bytes, s.untracked_other_bytes), (0, 0));
        assert_eq!(sum(&costs), 9 << 20);
    }

    #[test]
    fn a_control_group_counts_cache_that_nobody_maps_and_of_pages_of_the_other_size() {
        let memory = GroupMemory {
            anon_bytes: Some(vec![6 << 20, 4 << 20]),
            anon_thp_bytes: Some(vec![4 << 20, 0]),
            file_bytes: Some(vec![8 << 20, 0]),
            file_mapped_bytes: Some(vec![3 << 20, 0]),
            pagetables_bytes: None,
        };
        let of = |tracked| Measured::default().with_group(&memory, tracked);
        assert_eq!(of(None), Measured { unmapped_bytes: 5 << 20, ..Measured::default() });
        assert_eq!(of(Some(PageSize::Huge)).other_size_bytes, 6 << 20);
        assert_eq!(of(Some(PageSize::Base)).other_size_bytes, 4 << 20);
        let unknown = GroupMemory { file_mapped_bytes: None, ..memory.clone() };
        assert_eq!(Measured::default().with_group(&unknown, None).unmapped_bytes, 0);
    }
}
