//! Checks that a rack described in a configuration is possible.

use terrace_hardware::error::{ConfigError, check_range};

use super::{BLOCK_BYTES, BLOCKS, MechanismConfig, PAGE_BYTES, RackConfig};

impl RackConfig {
    /// Checks that the rack is possible.
    pub fn check(&self) -> Result<(), ConfigError> {
        let rack = "rack";
        let bad = |part: &str, what: String| Err(ConfigError::new(part, what));
        check_range(rack, "nodes", self.nodes.into(), 1..=64)?;
        check_range(rack, "pools", self.pools.into(), 1..=64)?;
        check_range(rack, "reservation_stations", self.reservation_stations.into(), 1..=65536)?;
        check_range(rack, "llc_mshrs", self.llc_mshrs.into(), 1..=4096)?;
        check_range(rack, "pool_queue", self.pool_queue.into(), BLOCKS.into()..=65536)?;
        check_range(rack, "instructions", self.instructions, 1..=1 << 50)?;
        check_range(rack, "warm_up_instructions", self.warm_up_instructions, 0..=1 << 50)?;
        let chunk = self.chunk.0;
        if chunk == 0 || !chunk.is_multiple_of(PAGE_BYTES) {
            return bad(rack, format!("chunk is {}; expected a multiple of 4K", self.chunk));
        }
        if !(0.0..=1.0).contains(&self.local_share) {
            return bad(rack, format!("local_share is {}; expected 0 to 1", self.local_share));
        }
        if !(0.001..=1.0).contains(&self.waiting_share) {
            return bad(
                rack,
                format!("waiting_share is {}; expected 0.001 to 1", self.waiting_share),
            );
        }
        self.check_network()?;
        if let Some(t) = self.trace
            && !(t.from_us >= 0.0 && t.from_us < t.to_us && t.to_us <= 1e9)
        {
            return bad(
                "rack.trace",
                format!("from_us is {} and to_us {}; expected a span", t.from_us, t.to_us),
            );
        }
        if !(1.0..=1e9).contains(&self.sample_us) {
            return bad(rack, format!("sample_us is {}; expected 1 to 1e9", self.sample_us));
        }
        let g = &self.migration;
        check_range("rack.migration", "copies", g.copies.into(), 1..=1024)?;
        check_range("rack.migration", "tlb_miss_cycles", g.tlb_miss_cycles.into(), 0..=1 << 20)?;
        g.background.check("rack.migration.background")?;
        self.mechanism.check(self.nodes)?;
        for (name, dram) in [("local_dram", &self.local_dram), ("pool_dram", &self.pool_dram)] {
            dram.check().map_err(|e| e.within(&format!("rack.{name}")))?;
            let line = dram.organization.line_bytes();
            if line != BLOCK_BYTES {
                return bad(rack, format!("{name} has lines of {line} bytes; expected 64"));
            }
        }
        let caches = &self.processor.0.caches;
        let line = caches.llc.line_bytes;
        if u64::from(line) != BLOCK_BYTES {
            return bad(rack, format!("caches have lines of {line} bytes; expected 64"));
        }
        Ok(())
    }

    /// Checks bandwidths, times and buffers of the network, and the times of the parts around it.
    fn check_network(&self) -> Result<(), ConfigError> {
        let bad = |part: &str, what: String| Err(ConfigError::new(part, what));
        let n = &self.network;
        let (rack, part) = ("rack", "rack.network");
        for (name, gbit) in
            [("nic_gbit_per_s", n.nic_gbit_per_s), ("switch_gbit_per_s", n.switch_gbit_per_s)]
        {
            if !(0.01..=1e5).contains(&gbit) {
                return bad(
                    part,
                    format!("{name} is {gbit}; nothing could move, expected 0.01 to 100000"),
                );
            }
        }
        let times = [
            (rack, "local_path_ns", self.local_path_ns),
            (rack, "translation_ns", self.translation_ns),
            (rack, "page_fault_ns", self.page_fault_ns),
            (part, "nic_ns", n.nic_ns),
            (part, "switch_ns", n.switch_ns),
            (part, "propagation_ns", n.propagation_ns),
            ("rack.mechanism", "lookup_ns", self.mechanism.lookup_ns),
            ("rack.migration", "shootdown_ns", self.migration.shootdown_ns),
            ("rack.migration", "invalidate_ns_per_page", self.migration.invalidate_ns_per_page),
        ];
        for (part, name, ns) in times {
            if !(0.0..=1e7).contains(&ns) {
                return bad(part, format!("{name} is {ns}; expected 0 to 1e7 nanoseconds"));
            }
        }
        if self.window_ps() < 100 {
            return bad(
                part,
                format!(
                    "propagation_ns {} and the lesser of nic_ns and switch_ns make {} ps; expected \
                     100 ps at least, the time for which parts of a rack are simulated independently",
                    n.propagation_ns,
                    self.window_ps()
                ),
            );
        }
        check_range(part, "header_bytes", n.header_bytes.into(), 1..=4096)?;
        check_range(part, "output_queue", n.output_queue.into(), 1..=65536)?;
        let largest = PAGE_BYTES + u64::from(n.header_bytes);
        for (name, bytes) in [("nic_buffer", n.nic_buffer), ("port_buffer", n.port_buffer)] {
            if bytes.0 < largest || bytes.0 > 1 << 40 {
                return bad(
                    part,
                    format!(
                        "{name} is {bytes}; a packet with a page has {largest} bytes and must fit"
                    ),
                );
            }
        }
        Ok(())
    }
}

impl MechanismConfig {
    fn check(&self, nodes: u32) -> Result<(), ConfigError> {
        let part = "rack.mechanism";
        let bad = |what: String| Err(ConfigError::new(part, what));
        for (name, value, most) in [
            ("supported_nodes", self.supported_nodes, 1 << 10),
            ("tracker_entries", self.tracker_entries, 1 << 20),
            ("page_requests", self.page_requests, 1 << 12),
            ("page_buffers", self.page_buffers, 1 << 16),
            ("block_queue", self.block_queue, 1 << 16),
            ("pending_reads", self.pending_reads, 1 << 16),
            ("pending_writes", self.pending_writes, 1 << 16),
            ("block_weight", self.block_weight, 1 << 10),
            ("page_weight", self.page_weight, 1 << 10),
            ("npm", self.npm, 1 << 16),
            ("npm_least", self.npm_least, 1 << 16),
            ("feedback_batches", self.feedback_batches, 1 << 16),
            ("negative_scores", self.negative_scores, 1 << 16),
            ("count_least", self.count_least, 1 << 16),
        ] {
            check_range(part, name, value.into(), 1..=most)?;
        }
        if nodes > self.supported_nodes {
            return bad(format!(
                "{nodes} nodes, but the hardware is for {}; raise supported_nodes",
                self.supported_nodes
            ));
        }
        if self.npm > self.page_buffers {
            return bad(format!(
                "npm is {} but page_buffers {}: a batch would never be complete; expected npm to be \
                 at most page_buffers",
                self.npm, self.page_buffers
            ));
        }
        if self.npm > self.tracker_entries {
            return bad(format!(
                "npm is {} but tracker_entries {}: a batch would never be hot; expected npm to be at \
                 most tracker_entries",
                self.npm, self.tracker_entries
            ));
        }
        if self.npm_least > self.npm {
            return bad(format!(
                "npm_least is {}; expected at most npm {}",
                self.npm_least, self.npm
            ));
        }
        for (name, value, most) in [
            ("training_us", self.training_us, 1e9),
            ("filter_share", self.filter_share, 1.0),
            ("count_factor", self.count_factor, 1e6),
            ("frequency_factor", self.frequency_factor, 1e6),
        ] {
            if !(0.0..=most).contains(&value) {
                return bad(format!("{name} is {value}; expected 0 to {most}"));
            }
        }
        if !(0.001..=1.0).contains(&self.batch_scale) {
            return bad(format!("batch_scale is {}; expected 0.001 to 1", self.batch_scale));
        }
        if self.fixed_count == Some(0) {
            return bad("fixed_count is 0; expected 1 at least, or none for training".into());
        }
        Ok(())
    }
}
