//! The columns of the rack's tables.

table! {
    /// One node of one run of the rack.
    pub struct RackRunRow in "rack_runs" {
        /// Name of the experiment.
        experiment: String,
        /// Name of the variant of its rack.
        variant: String,
        /// Data-movement scheme; "local" for the base, all memory local.
        scheme: String,
        /// Number of the node.
        node: u64,
        /// Workload of the node.
        workload: String,
        /// Nodes and pools of the rack.
        nodes: u64,
        /// See above.
        pools: u64,
        /// Share of pages allocated locally.
        local_share: f64,
        /// Bandwidth of interfaces.
        nic_gbit_per_s: f64,
        /// Bandwidth of the switch's ports.
        switch_gbit_per_s: f64,
        /// Instructions of all cores.
        instructions: u64,
        /// Time they took.
        time_ns: f64,
        /// That time over the base's for as many instructions.
        slowdown: f64,
        /// Mean time of a last-level miss.
        access_ns: f64,
        /// That over the base's.
        access_cost: f64,
        /// Last-level misses that local memory answered.
        local_reads: u64,
        /// Those of them to pages that had migrated.
        migrated_reads: u64,
        /// Last-level misses that went to the network.
        remote_reads: u64,
        /// Those of them that page buffers answered.
        buffer_reads: u64,
        /// Local and buffer reads over all.
        local_hit_ratio: f64,
        /// Dirty blocks written locally.
        local_writes: u64,
        /// Dirty blocks sent out.
        remote_writes: u64,
        /// Mean time of a local read.
        local_ns: f64,
        /// Mean time of a remote read.
        remote_ns: f64,
        /// Mean time of a read from a pool; none without one.
        pool_read_ns: Option<f64>,
        /// Mean time of a read that a page buffer answered at once; none without one.
        buffer_hit_ns: Option<f64>,
        /// Mean time from the request of a hot page until its last block is buffered; none without
        /// one.
        page_fetch_ns: Option<f64>,
        /// Mean time from the request of a page until local memory has all of it, where pages
        /// migrate one by one (OTF); none elsewhere.
        page_move_ns: Option<f64>,
        /// Last-level misses in 1,000 instructions.
        misses_per_1000: f64,
        /// Of the time of a remote read in interfaces.
        remote_nic_ns: f64,
        /// Part of a remote read's time in the switch and page buffers.
        remote_switch_ns: f64,
        /// Part of a remote read's time in waiting.
        remote_queue_ns: f64,
        /// Part of a remote read's time in a pool's memory.
        remote_dram_ns: f64,
        /// Pages that migrated to the node.
        pages_in: u64,
        /// Pages that made room.
        pages_out: u64,
        /// Batches of migrations.
        batches: u64,
        /// Time that cores were stopped for shootdowns.
        stall_ns: f64,
        /// Pages read by the switch.
        pages_fetched: u64,
        /// Accesses that waited for a block of a page under way.
        pending: u64,
        /// Pages that migrate together, at the end.
        npm: u64,
        /// The last score.
        score: f64,
        /// Access count that makes a page hot, at the end.
        hot_count: Option<u64>,
        /// Accesses per microsecond that make a page hot, at the end.
        hot_per_us: Option<f64>,
        /// Times that thresholds were learnt.
        trainings: u64,
        /// Most regular requests that waited in the switch.
        block_queue_max: u64,
        /// Most accesses that waited for blocks.
        pending_max: u64,
    }
}

table! {
    /// A span of time of one node.
    pub struct RackSampleRow in "rack_samples" {
        /// See `rack_runs`.
        variant: String,
        /// See `rack_runs`.
        scheme: String,
        /// See `rack_runs`.
        node: u64,
        /// See `rack_runs`.
        workload: String,
        /// Start of the span.
        from_ns: f64,
        /// End of the span.
        to_ns: f64,
        /// Instructions.
        instructions: u64,
        /// Reads that local memory answered.
        local_reads: u64,
        /// Those of them to migrated pages.
        migrated_reads: u64,
        /// Reads that went to the network.
        remote_reads: u64,
        /// Those of them that page buffers answered.
        buffer_reads: u64,
        /// Pages that came.
        pages_in: u64,
        /// Pages that made room.
        pages_out: u64,
        /// Misses under way at the end.
        misses: u64,
        /// Bytes that wait in the interface at the end.
        nic_bytes: u64,
        /// Regular requests that wait in the switch at the end.
        block_queue: u64,
        /// Accesses that wait for blocks at the end.
        pending: u64,
        /// Pages in the buffers at the end.
        buffered: u64,
        /// Pages that migrate together.
        npm: u64,
        /// The last score.
        score: f64,
    }
}

table! {
    /// A port of the switch in one run.
    pub struct RackPortRow in "rack_ports" {
        /// See `rack_runs`.
        variant: String,
        /// See `rack_runs`.
        scheme: String,
        /// Workload of the rack's first node.
        workload: String,
        /// "node 0", "pool 1".
        port: String,
        /// Share of time that the interface was sending.
        up_utilisation: f64,
        /// Share of time that the switch was sending to it.
        down_utilisation: f64,
        /// Share of time that the interface was receiving.
        in_utilisation: f64,
        /// Bytes to the switch.
        up_bytes: u64,
        /// Bytes from the switch.
        down_bytes: u64,
        /// Those of pages.
        down_page_bytes: u64,
        /// Packets to the switch.
        up_packets: u64,
        /// Packets from the switch.
        down_packets: u64,
        /// Most bytes that waited in the interface.
        nic_bytes_max: u64,
        /// Most bytes that waited for the output.
        output_bytes_max: u64,
        /// Most bytes in the input buffer.
        buffer_bytes_max: u64,
    }
}

table! {
    /// A bin of a latency histogram of one node.
    pub struct RackLatencyRow in "rack_latencies" {
        /// See `rack_runs`.
        variant: String,
        /// See `rack_runs`.
        scheme: String,
        /// See `rack_runs`.
        node: u64,
        /// See `rack_runs`.
        workload: String,
        /// "local", "remote" or the part of remote: "nic", "switch", "queue", "dram".
        part: String,
        /// Lower bound of the bin.
        from_ns: f64,
        /// Reads in it.
        reads: u64,
    }
}
