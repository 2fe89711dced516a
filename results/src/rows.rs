//! The columns of the tables.

/// The policy, in the row of a run with all memory fast and nothing moved, which others' slowdowns are
/// measured against.
pub const ALL_FAST: &str = "all-fast";

/// What a slowdown is of where that is not another thing.
pub const RUN_TIME: &str = "run time";

table! {
    /// One period of one group in one run.
    pub struct PeriodRow in "periods" {
        /// Identifies the run within the results directory.
        run: String,
        /// Name of the experiment.
        experiment: String,
        /// "sim", "vm" or "host".
        machine: String,
        /// The requested policy.
        policy: String,
        /// Name of the group.
        group: String,
        /// Number of the period, from 0.
        period: u64,
        /// Start of the period since the start of the run, in ms.
        time_ms: u64,
        /// Pages of the group.
        pages: u64,
        /// Pages accessed in the period.
        accessed_pages: u64,
        /// Pages in fast memory during the period.
        fast_pages: u64,
        /// Pages that were both.
        fast_accessed_pages: u64,
        /// `fast_accessed_pages / accessed_pages`, 0 when nothing was accessed.
        hit_ratio: f64,
        /// `accessed_pages / pages`.
        accessed_ratio: f64,
        /// Pages whose place did not change since the period before, over all pages.
        stability: f64,
        /// The policy applied: an adaptive policy's choice.
        applied: String,
        /// Moving average of LRU's hit ratio over all pages, from a policy that keeps it.
        lru_hit_average: Option<f64>,
        /// Moving average of LFU's hit ratio over all pages, from a policy that keeps it.
        lfu_hit_average: Option<f64>,
        /// Pages that the plan sent up.
        planned_promotions: u64,
        /// Pages that the plan sent down.
        planned_demotions: u64,
        /// Pages promoted.
        promoted_pages: u64,
        /// Pages demoted.
        demoted_pages: u64,
        /// Pairs exchanged in one operation.
        exchanged_pairs: u64,
        /// Operations of migration that moved pages, each with its shootdown.
        migration_operations: u64,
        /// Pages not moved: pinned, locked or isolated.
        failed_busy: u64,
        /// Pages not moved: not mapped any more.
        failed_absent: u64,
        /// Pages not moved: no free memory in the target tier.
        failed_no_room: u64,
        /// Pages not moved: target outside the process's cpuset.
        failed_not_allowed: u64,
        /// Pages not moved: no permission, or shared.
        failed_denied: u64,
        /// Pages not moved: the process has gone.
        failed_process_gone: u64,
        /// Pages reported as moved, but read back in their old place.
        failed_stayed_put: u64,
        /// Pages not attempted: the time for moves was spent.
        failed_out_of_time: u64,
        /// Pages that cannot be moved.
        failed_unsupported: u64,
        /// Periods lost by the tracker just before this one.
        lost_periods: u64,
        /// Processor time of the tracker, in ns.
        tracker_cpu_ns: Option<u64>,
        /// Processor time of the policy, in ns.
        policy_cpu_ns: Option<u64>,
        /// Processor time of the mover, in ns.
        mover_cpu_ns: Option<u64>,
        /// Memory of the group that was not tracked, in bytes.
        untracked_bytes: Option<u64>,
    }
}

impl RunRow {
    /// Length of a period in ms.
    pub fn period_length_ms(&self) -> f64 {
        self.period_us.map_or(self.period_ms as f64, |us| us as f64 / 1000.0)
    }
}

table! {
    /// One group in one run.
    pub struct RunRow in "runs" {
        /// Identifies the run within the results directory.
        run: String,
        /// Name of the experiment.
        experiment: String,
        /// "sim", "vm" or "host".
        machine: String,
        /// Kernel release, where there is one.
        kernel: Option<String>,
        /// Mechanism that read accessed bits, on a live machine: "damon", or "tiermem" (the Terrace
        /// kernel's
        /// scan).
        tracker: Option<String>,
        /// Mechanism that moved pages, on a live machine: "move_pages" or "tiermem".
        mover: Option<String>,
        /// The requested policy.
        policy: String,
        /// Its parameters, as a JSON object.
        parameters: String,
        /// Name of the group.
        group: String,
        /// Kind of the workload.
        workload: String,
        /// Page size in bytes.
        page_size_bytes: u64,
        /// Length of a period in ms; 0 where it is given in us.
        period_ms: u64,
        /// Seed of the run.
        seed: u64,
        /// Fast memory the group may use, over its footprint.
        fast_ratio: f64,
        /// Periods observed.
        periods: u64,
        /// Periods lost by the tracker.
        lost_periods: u64,
        /// Most pages the group had.
        pages_max: u64,
        /// Accessed pages in fast memory over accessed pages, summed over the periods.
        hit_ratio: f64,
        /// Mean over the periods.
        accessed_ratio: f64,
        /// Mean over the periods.
        stability: f64,
        /// Sum over the periods, as are the columns that follow.
        promoted_pages: u64,
        /// See `periods`.
        demoted_pages: u64,
        /// See `periods`.
        exchanged_pairs: u64,
        /// See `periods`.
        migration_operations: u64,
        /// See `periods`.
        failed_busy: u64,
        /// See `periods`.
        failed_absent: u64,
        /// See `periods`.
        failed_no_room: u64,
        /// See `periods`.
        failed_not_allowed: u64,
        /// See `periods`.
        failed_denied: u64,
        /// See `periods`.
        failed_process_gone: u64,
        /// See `periods`.
        failed_stayed_put: u64,
        /// See `periods`.
        failed_out_of_time: u64,
        /// See `periods`.
        failed_unsupported: u64,
        /// The policy applied in most periods.
        applied_main: String,
        /// In which share of the periods it was.
        applied_main_share: f64,
        /// Processor time of the tracker in the measured periods, in ms. Not of a warm-up: there one of
        /// an emulated machine's processors runs at a time, and the clock goes on for all of them.
        tracker_cpu_ms: Option<f64>,
        /// The same of the whole daemon, tracker included.
        daemon_cpu_ms: Option<f64>,
        /// Operations that the program completed.
        operations: Option<u64>,
        /// Their rate in 1/s.
        operations_per_s: Option<f64>,
        /// Of the times from a request to its answer the median, in us.
        latency_p50_us: Option<f64>,
        /// Of the times from a request to its answer the 99th percentile, in us.
        latency_p99_us: Option<f64>,
        /// Time that the program took, in ms.
        duration_ms: Option<f64>,
        /// Half the 95 % confidence interval of `duration_ms`, in ms, where most of it was estimated
        /// from sampling windows: the windows' variance alone. Null with fewer than two windows.
        duration_error_ms: Option<f64>,
        /// Instructions that were timed in detail over all instructions, where the rest was
        /// estimated from sampling windows.
        sampled_ratio: Option<f64>,
        /// `duration_ms` over what the same program takes with all its memory fast and nothing
        /// moved; where there is such a run.
        slowdown: Option<f64>,
        /// Lines read from fast memory over lines read from memory: what `hit_ratio` estimates by
        /// pages. Where references are known, as are the columns that follow; on a virtual machine
        /// whose clock models the memory those of all that ran in it, where there is one group.
        reference_hit_ratio: Option<f64>,
        /// Loads and stores of fast memory by the groups' programs, over all that they made in the second
        /// half of the periods: exact, of all groups together, on a virtual machine in which accesses
        /// are counted.
        access_hit_ratio: Option<f64>,
        /// Loads and stores of the program.
        references: Option<u64>,
        /// Time of its page walks, which overlap with other work, in ms.
        walk_ms: Option<f64>,
        /// Time that its cores waited for page walks, in ms, all cores together, as are the two
        /// columns that follow.
        walk_stall_ms: Option<f64>,
        /// Waiting for lines of fast memory, in ms.
        fast_stall_ms: Option<f64>,
        /// Waiting for lines of slow memory, in ms.
        slow_stall_ms: Option<f64>,
        /// Mean latency of a line of fast memory beyond the caches, queues included, in ns.
        fast_loaded_ns: Option<f64>,
        /// Mean latency of a line of slow memory beyond the caches, queues included, in ns.
        slow_loaded_ns: Option<f64>,
        /// Time that processors were busy in the kernel, in ms, all processors together; on a virtual
        /// machine whose clock models the memory.
        kernel_ms: Option<f64>,
        /// Time that it was stopped for migration, in ms.
        migration_ms: Option<f64>,
        /// Bytes copied for it; on a live machine all that the kernel migrated meanwhile, where there is
        /// one group.
        migrated_bytes: Option<u64>,
        /// TLB shootdowns for it.
        shootdowns: Option<u64>,
        /// Of its pages that moved, those whose leaf table moved with them (Radiant paper,
        /// algorithm 1, as are the five columns that follow).
        table_moves: Option<u64>,
        /// Leaf table already where the page went.
        table_already_there: Option<u64>,
        /// Leaf table in the tier that the page went to.
        table_within_tier: Option<u64>,
        /// Leaf table that still maps fast pages.
        table_maps_fast: Option<u64>,
        /// Leaf table, or the one above it, locked by another user.
        table_lock_contended: Option<u64>,
        /// No frame for the leaf table.
        table_no_room: Option<u64>,
        /// `duration_ms` by the extended leading-load model (migration-granularity
        /// paper, section 5), from the run with all memory fast and `reference_hit_ratio`.
        projected_duration_ms: Option<f64>,
        /// `slowdown` by the same model.
        projected_slowdown: Option<f64>,
        /// `projected_slowdown / slowdown - 1`: how far the model is off.
        projection_error: Option<f64>,
        /// The program was killed because memory ran out.
        killed: Option<bool>,
        /// Whether the program's data was found intact at the end.
        checksum_ok: Option<bool>,
        /// What the clocks of a virtual machine counted: "instructions", or "memory" (what
        /// instructions and accesses of memory take); null where it was the host's time.
        clock: Option<String>,
        /// Whether times come from software emulation: counts hold, times do not.
        emulated: bool,
        /// Further notes, for people.
        notes: Option<String>,
        /// Length of a period in us, where it is given so.
        period_us: Option<u64>,
        /// Of the programs' loads and stores that missed the last level, the share that was of fast
        /// memory: what policies can change. On a virtual machine whose clock models the memory, where
        /// there is one group; of all programs that ran in it.
        program_hit_ratio: Option<f64>,
        /// The same of the kernel's: its own memory, such as buffers of sockets, which no policy places,
        /// and programs' memory that it copies.
        kernel_hit_ratio: Option<f64>,
        /// Periods after the warm-up that times of processors are of.
        measured_periods: Option<u64>,
        /// What `slowdown` is of on a virtual machine: "run time", "an operation", "the same
        /// instructions" (the same part of a program's work in both runs) or "an instruction" (the time
        /// for one, where such a part is not known).
        slowdown_of: Option<String>,
        /// How many of the same instructions.
        slowdown_instructions: Option<u64>,
    }
}

table! {
    /// Hardware costs of one period of one group, on a machine with references. Times are summed
    /// over the group's cores. On a virtual machine whose clock models the memory: of all that ran
    /// in it, and the group is "all" where there are several.
    pub struct HardwareRow in "hardware" {
        /// Identifies the run within the results directory.
        run: String,
        /// Name of the group.
        group: String,
        /// Number of the period, from 0.
        period: u64,
        /// Loads and stores.
        references: u64,
        /// Instructions.
        instructions: u64,
        /// Dispatching instructions, in ms.
        compute_ms: f64,
        /// Waiting for page walks, in ms.
        walk_stall_ms: f64,
        /// Waiting for caches, in ms.
        cache_stall_ms: f64,
        /// Waiting for lines of fast memory, in ms.
        fast_stall_ms: f64,
        /// Waiting for lines of slow memory, in ms.
        slow_stall_ms: f64,
        /// Waiting for room in the store buffer, in ms.
        store_stall_ms: f64,
        /// Busy in the kernel, in ms; on a virtual machine whose clock models the memory.
        kernel_ms: Option<f64>,
        /// Page faults, in ms. Of the simulated machine alone, as are all counts that may be null.
        fault_ms: Option<f64>,
        /// Of that, allocating page-table pages, in ms.
        table_allocation_ms: Option<f64>,
        /// Stopped for migration, in ms.
        migration_ms: Option<f64>,
        /// Page faults.
        faults: Option<u64>,
        /// Page faults in which page-table pages were allocated.
        table_faults: Option<u64>,
        /// Page walks.
        walks: u64,
        /// Time of page walks, which overlap with other work, in ms.
        walk_ms: f64,
        /// Lines read from fast memory.
        fast_reads: u64,
        /// Lines read from slow memory.
        slow_reads: u64,
        /// Mean latency of a line of fast memory beyond the caches, queues included, in ns; on a
        /// virtual machine whose clock models the memory.
        fast_loaded_ns: Option<f64>,
        /// Mean latency of a line of slow memory beyond the caches, queues included, in ns.
        slow_loaded_ns: Option<f64>,
        /// Lines written back to fast memory.
        fast_writes: u64,
        /// Lines written back to slow memory.
        slow_writes: u64,
        /// `fast_reads / (fast_reads + slow_reads)`, 0 when nothing was read.
        reference_hit_ratio: f64,
        /// Bytes copied to move its pages.
        migrated_bytes: Option<u64>,
        /// TLB shootdowns for its moves.
        shootdowns: Option<u64>,
        /// Its page-table pages in fast memory, at the end of the period.
        fast_table_pages: Option<u64>,
        /// Its page-table pages in slow memory, at the end of the period.
        slow_table_pages: Option<u64>,
        /// Of its pages that moved, those whose leaf table moved with them (Radiant paper,
        /// algorithm 1, as are the columns that follow).
        table_moves: Option<u64>,
        /// Leaf table already where the page went.
        table_already_there: Option<u64>,
        /// Leaf table in the tier that the page went to.
        table_within_tier: Option<u64>,
        /// Leaf table that still maps fast pages.
        table_maps_fast: Option<u64>,
        /// Leaf table, or the one above it, locked by another user.
        table_lock_contended: Option<u64>,
        /// No frame for the leaf table.
        table_no_room: Option<u64>,
        /// Its loads and stores after its start-up; 0 where that does not show, as in a recording.
        main_references: Option<u64>,
    }
}

table! {
    /// Page-table pages of one group on one node, at the end of a period: on live machines whose
    /// kernel counts them.
    pub struct TablePagesRow in "page-tables" {
        /// Identifies the run within the results directory.
        run: String,
        /// Name of the group.
        group: String,
        /// Number of the period, from 0.
        period: u64,
        /// Level, from 1, whose entries map base pages, to the root.
        level: u64,
        /// Number of the node.
        node: u64,
        /// Pages of that level there.
        pages: u64,
    }
}

table! {
    /// Processor time that one kind of the kernel's own threads took while a run was measured: on
    /// live machines.
    pub struct KernelThreadRow in "kernel-threads" {
        /// Identifies the run within the results directory.
        run: String,
        /// Name of the threads, without the number of a processor.
        thread: String,
        /// What they took together, in ms.
        time_ms: f64,
    }
}

table! {
    /// Time that processors were busy in the kernel for one cause while a run was measured: on a
    /// virtual machine whose clock models the memory. The causes of a run have all of the kernel's
    /// time together, that of its threads included.
    pub struct KernelCauseRow in "kernel-causes" {
        /// Identifies the run within the results directory.
        run: String,
        /// Why the processors were in the kernel: system calls, page faults, page migration and
        /// others.
        cause: String,
        /// Busy for it, in ms, all processors together.
        time_ms: f64,
    }
}

table! {
    /// A bin of the heat map of one group in one run.
    pub struct HeatRow in "heat" {
        /// Identifies the run within the results directory.
        run: String,
        /// Name of the group.
        group: String,
        /// Number of the address space.
        space: u64,
        /// First address of the bin.
        address: u64,
        /// Size of the bin in bytes.
        size_bytes: u64,
        /// First period of the bin.
        period: u64,
        /// Periods in the bin.
        periods: u64,
        /// Share of its pages and periods in which the page was accessed.
        accessed_share: f64,
        /// Share of its pages and periods in which the page was in fast memory.
        fast_share: f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Table;

    #[test]
    fn periods_and_runs_have_the_same_failure_columns() {
        let failed = |columns: Vec<crate::Column>| -> Vec<_> {
            columns.iter().map(|c| c.name).filter(|n| n.starts_with("failed_")).collect()
        };
        assert_eq!(failed(PeriodRow::columns()), failed(RunRow::columns()));
        assert_eq!(failed(RunRow::columns()).len(), 9);
    }
}
