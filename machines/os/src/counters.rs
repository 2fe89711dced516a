//! Counters of the operating system.

use serde::Serialize;
use terrace_hardware::units::Picoseconds;

/// Why a leaf table did or did not follow a migrated data page (Radiant paper, algorithm 1 and
/// table 5). One count per migrated data page in a process with Mig.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct TableMoveCounts {
    /// The table moved.
    pub successful: u64,
    /// The table was at the data's destination already (line 13), or moving there in the same call.
    pub already_there: u64,
    /// The table was in the destination tier of the data (line 15).
    pub within_tier: u64,
    /// The table still maps pages in fast memory (line 18).
    pub maps_fast: u64,
    /// Another holder had the lock of the table or of the one above it (line 22).
    pub lock_contended: u64,
    /// There was no frame for the table.
    pub no_room: u64,
}

impl std::ops::Sub for TableMoveCounts {
    type Output = TableMoveCounts;

    /// The counts since `before`.
    fn sub(self, before: TableMoveCounts) -> TableMoveCounts {
        TableMoveCounts {
            successful: self.successful - before.successful,
            already_there: self.already_there - before.already_there,
            within_tier: self.within_tier - before.within_tier,
            maps_fast: self.maps_fast - before.maps_fast,
            lock_contended: self.lock_contended - before.lock_contended,
            no_room: self.no_room - before.no_room,
        }
    }
}

/// Everything counted since the start.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Counters {
    /// Faults that mapped a base page.
    pub base_faults: u64,
    /// Faults that mapped a huge page.
    pub huge_faults: u64,
    /// Faults that would take a huge page and got a base page.
    pub huge_fallbacks: u64,
    /// Faults on a page that was mapped in the meantime.
    pub spurious_faults: u64,
    /// Faults on a page under migration.
    pub waiting_faults: u64,
    /// Accesses outside every mapping.
    pub segfaults: u64,
    /// Page-table pages allocated, deposits included.
    pub tables_allocated: u64,
    /// Page-table pages that a policy bound to fast memory and that went elsewhere.
    pub table_fallbacks: u64,
    /// Time spent allocating page-table pages, in picoseconds.
    pub table_allocation_ps: u64,
    /// The longest such time, in picoseconds.
    pub longest_table_allocation_ps: u64,
    /// Allocations that found no node above its low watermark.
    pub slow_allocations: u64,
    /// Passes of direct reclaim.
    pub reclaim_passes: u64,
    /// Frames that direct reclaim freed.
    pub reclaimed_frames: u64,
    /// Frames that background reclaim freed.
    pub background_reclaimed_frames: u64,
    /// Processor time of background reclaim, in picoseconds.
    pub background_ps: u64,
    /// Processes killed because memory had run out.
    pub oom_kills: u64,
    /// Migration operations, that is, contiguous ranges begun.
    pub operations: u64,
    /// Shootdowns: by moves, exchanges, splits, unmapping and moves of page tables.
    pub shootdowns: u64,
    /// Pages invalidated one by one by these shootdowns.
    pub single_invalidations: u64,
    /// Of the shootdowns, those that flushed everything.
    pub full_flushes: u64,
    /// Bytes that moves were given to copy. Always `migrated_bytes` plus `wasted_copy_bytes` plus
    /// those of moves under way.
    pub copied_bytes: u64,
    /// Bytes that arrived at their destination.
    pub migrated_bytes: u64,
    /// Bytes copied for moves that were aborted or whose page was unmapped meanwhile.
    pub wasted_copy_bytes: u64,
    /// Base pages that arrived.
    pub migrated_base_pages: u64,
    /// Huge pages that arrived.
    pub migrated_huge_pages: u64,
    /// Pairs of pages that were exchanged.
    pub exchanged_pairs: u64,
    /// Huge pages split to base pages.
    pub splits: u64,
    /// Huge pages collapsed from base pages.
    pub collapses: u64,
    /// Bytes copied for collapses.
    pub collapse_copied_bytes: u64,
    /// Outcomes of algorithm 1 for page-table pages.
    pub table_moves: TableMoveCounts,
    /// Accessed bits that a walk set in a table between its copy and the switch, and that were
    /// merged into the new table.
    pub late_accessed: u64,
    /// Dirty bits that were merged likewise.
    pub late_dirty: u64,
    /// Such accessed bits that were lost, in the order of steps that algorithm 1 prints.
    pub lost_accessed: u64,
    /// Such dirty bits that were lost: data that reclaim would lose.
    pub lost_dirty: u64,
    /// Accessed bits read by scans.
    pub scanned_entries: u64,
}

impl Counters {
    pub(crate) fn table_allocated(&mut self, time: Picoseconds) {
        self.tables_allocated += 1;
        self.table_allocation_ps += time.0;
        self.longest_table_allocation_ps = self.longest_table_allocation_ps.max(time.0);
    }
}
