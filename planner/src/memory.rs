//! Tiers and machines of a plan, and the time of an interval on another machine than the one that
//! it was recorded on.
//!
//! **Latency.** In the leading-load model (migration-granularity paper, section 5) the time of an
//! interval is computing and waiting for leading loads. Of an interval that took `F` with all memory
//! fast and `S` with all of it slow, at latencies `f` and `s`, `(S - F) / (s - f)` is how many
//! leading loads it waits for, one after the other; at other latencies it waits as often. How much
//! of the way from `F` to `S` a placement goes stays as it was measured.
//!
//! **Bandwidth.** The lines that an interval reads from a tier take at least their bytes over the
//! tier's bandwidth. That is a bound, not a queue: near saturation real machines are slower. Of
//! references that caches may have answered it is not known how many lines they read: there is no
//! bound.

use serde::Serialize;
use terrace_hardware::presets;
use terrace_hardware::tier::TierConfig;
use terrace_recordings::profile::{Interval, TierSpeed};

use terrace_core::InputError;

/// Bytes of a line.
const LINE_BYTES: f64 = 64.0;

/// One tier.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memory {
    /// Its name.
    pub name: String,
    /// Idle latency of a read beyond the caches, in ns.
    pub latency_ns: f64,
    /// Read bandwidth, in GB/s (10^9 bytes).
    pub gb_per_s: f64,
}

impl From<&TierConfig> for Memory {
    fn from(tier: &TierConfig) -> Self {
        Memory {
            name: tier.name.clone(),
            latency_ns: tier.idle_read_ns(),
            gb_per_s: tier.read_gb_per_s(),
        }
    }
}

impl From<&TierSpeed> for Memory {
    fn from(tier: &TierSpeed) -> Self {
        Memory {
            name: tier.name.clone(),
            latency_ns: tier.read_latency_ps as f64 / 1e3,
            gb_per_s: tier.read_mb_per_s as f64 / 1e3,
        }
    }
}

/// A fast and a slow tier, with their prices.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    /// Its name in answers.
    pub name: String,
    /// The fast tier.
    pub fast: Memory,
    /// The slow tier.
    pub slow: Memory,
    /// Price of a GB (2^30 bytes) of fast memory, in any currency.
    pub price_fast: Option<f64>,
    /// Price of a GB of slow memory.
    pub price_slow: Option<f64>,
}

impl Machine {
    /// The first two tiers of a machine of `terrace machines`.
    pub fn preset(name: &str) -> Result<Self, InputError> {
        let machine = presets::by_name(name).map_err(InputError::new)?;
        match &machine.tiers[..] {
            [fast, slow, ..] => Ok(Machine {
                name: name.to_owned(),
                fast: fast.into(),
                slow: slow.into(),
                price_fast: None,
                price_slow: None,
            }),
            tiers => Err(InputError::new(format_args!(
                "machine '{name}' has {} tier, expected two; see 'terrace machines'",
                tiers.len()
            ))),
        }
    }

    /// The same with other slow memory; parameters that are not given stay.
    pub fn with_slow(&self, latency_ns: Option<f64>, gb_per_s: Option<f64>) -> Self {
        let slow = Memory {
            name: self.slow.name.clone(),
            latency_ns: latency_ns.unwrap_or(self.slow.latency_ns),
            gb_per_s: gb_per_s.unwrap_or(self.slow.gb_per_s),
        };
        let name = format!("{:.0} ns, {:.0} GB/s", slow.latency_ns, slow.gb_per_s);
        Machine { name, slow, ..self.clone() }
    }

    /// Whether times recorded on `other` hold here unchanged.
    fn is_as_fast_as(&self, other: &Machine) -> bool {
        let same =
            |a: &Memory, b: &Memory| a.latency_ns == b.latency_ns && a.gb_per_s == b.gb_per_s;
        same(&self.fast, &other.fast) && same(&self.slow, &other.slow)
    }

    /// The time here of an interval recorded on `recorded`, of which each read is so many lines from
    /// memory; 0 where that is not known.
    pub fn retime(
        &self,
        mut interval: Interval,
        recorded: &Machine,
        lines_per_read: f64,
    ) -> Interval {
        if self.is_as_fast_as(recorded) {
            return interval;
        }
        let (fast_ps, slow_ps) = (interval.fast_ps as f64, interval.slow_ps as f64);
        let extra_ps = slow_ps - fast_ps;
        let apart_ns = recorded.slow.latency_ns - recorded.fast.latency_ns;
        // Leading loads; a machine without a difference in latency gives none.
        let loads = if apart_ns.abs() < 1e-9 { 0.0 } else { extra_ps.max(0.0) / apart_ns };
        let at = |latency_ns: f64| {
            // The rest is computing, and some of the time always is.
            (fast_ps + loads * (latency_ns - recorded.fast.latency_ns)).max(0.05 * fast_ps)
        };
        let reads = interval.reads.iter().sum::<u64>() as f64;
        let read_bytes = reads * lines_per_read * LINE_BYTES;
        let least_ps = |bytes: f64, tier: &Memory| bytes / tier.gb_per_s.max(1e-9) * 1e3;
        let near = at(self.fast.latency_ns);
        let far = at(self.slow.latency_ns);
        for run in &mut interval.mixed {
            // As far between the two as it was measured.
            let part =
                if extra_ps == 0.0 { 0.0 } else { (run.took_ps as f64 - fast_ps) / extra_ps };
            let slow_bytes = read_bytes * run.slow_ppm as f64 / 1e6;
            let took_ps = (near + part * (far - near)).max(least_ps(slow_bytes, &self.slow));
            run.took_ps = took_ps.max(0.0).round() as u64;
        }
        interval.fast_ps = near.max(least_ps(read_bytes, &self.fast)).round() as u64;
        interval.slow_ps = far.max(least_ps(read_bytes, &self.slow)).round() as u64;
        interval
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use terrace_core::bits::PageBits;
    use terrace_core::page::{Layout, PageSize};
    use terrace_recordings::mixed::MixedRun;

    fn machine(fast_ns: f64, slow_ns: f64, slow_gb_per_s: f64) -> Machine {
        let memory = |latency_ns, gb_per_s| Memory { name: "m".into(), latency_ns, gb_per_s };
        Machine {
            name: "m".into(),
            fast: memory(fast_ns, 200.0),
            slow: memory(slow_ns, slow_gb_per_s),
            price_fast: None,
            price_slow: None,
        }
    }

    fn interval() -> Interval {
        // 1000 ns of which 10 leading loads of 80 ns are 800; at 180 ns each 2000 ns.
        Interval {
            references: 100,
            fast_ps: 1_000_000,
            slow_ps: 2_000_000,
            mixed: vec![MixedRun { slow_ppm: 500_000, took_ps: 1_600_000 }],
            scan_ps: 0,
            layout: Arc::new(Layout::contiguous(PageSize::Base, 2)),
            accessed: PageBits::ones(2),
            fresh: vec![0, 1],
            reads: vec![5, 5],
        }
    }

    #[test]
    fn leading_loads_take_the_latency_of_the_machine() {
        let recorded = machine(80.0, 180.0, 40.0);
        assert_eq!(recorded.retime(interval(), &recorded, 1.0), interval());
        let twice = machine(80.0, 280.0, 40.0).retime(interval(), &recorded, 1.0);
        assert_eq!((twice.fast_ps, twice.slow_ps), (1_000_000, 3_000_000));
        // 60 % of the way, as it was measured.
        assert_eq!(twice.mixed[0].took_ps, 2_200_000);
        let nearer = machine(40.0, 180.0, 40.0).retime(interval(), &recorded, 1.0);
        assert_eq!((nearer.fast_ps, nearer.slow_ps), (600_000, 2_000_000));
    }

    #[test]
    fn lines_take_the_bandwidth_of_their_tier_at_least() {
        let recorded = machine(80.0, 180.0, 40.0);
        // 640 bytes at 0.1 GB/s are 6.4 us; the half of them 3.2 us.
        let narrow = machine(80.0, 180.0, 0.1).retime(interval(), &recorded, 1.0);
        assert_eq!((narrow.slow_ps, narrow.mixed[0].took_ps), (6_400_000, 3_200_000));
        assert_eq!(narrow.fast_ps, 1_000_000);
        // One in four was sampled; and where reads are no lines, nothing but latency counts.
        let narrow = |lines| machine(80.0, 180.0, 0.1).retime(interval(), &recorded, lines).slow_ps;
        assert_eq!((narrow(4.0), narrow(0.0)), (25_600_000, 2_000_000));
    }

    #[test]
    fn presets_have_two_tiers_and_others_are_named() {
        for name in presets::names() {
            let machine = Machine::preset(name).unwrap();
            assert!(machine.fast.latency_ns < machine.slow.latency_ns, "{name}");
            assert!(machine.fast.gb_per_s > 0.0 && machine.slow.gb_per_s > 0.0, "{name}");
        }
        assert!(Machine::preset("vax").unwrap_err().to_string().contains("known presets"));
    }
}
