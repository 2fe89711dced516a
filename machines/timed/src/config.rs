//! Configuration of a timed machine, in the form that the emulator's plug-in gets.

use serde::{Deserialize, Serialize};
use terrace_hardware::error::ConfigError;
use terrace_hardware::node::NodeConfig;
use terrace_hardware::presets::{self, MachineConfig};
use terrace_hardware::tier::queueing::QueueingConfig;
use terrace_hardware::tier::{TierConfig, TierModel};
use terrace_hardware::units::Bytes;

use crate::causes::Symbol;
use crate::samples::SamplePlan;
use crate::tables::TABLES_BYTES;
use crate::windows::WindowPlan;
use crate::work::WorkPlan;

/// The machine whose processor is used where none is named.
pub const DEFAULT_PRESET: &str = "server-ddr5-cxl";

/// An impossible configuration of a timed machine: one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TimedError(pub String);

impl From<ConfigError> for TimedError {
    fn from(error: ConfigError) -> Self {
        TimedError(error.to_string())
    }
}

/// The speeds of a timed machine's parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimedConfig {
    /// A processor runs ahead of another by at most about this much, and the emulator's timers are
    /// late by at most about this much.
    pub quantum_ns: u64,
    /// Time of a processor's access to a device.
    pub device_ns: u64,
    /// Time of an instruction with which a waiting loop yields.
    pub pause_ns: u64,
    /// What a sample of an access takes of the program's time. A PEBS record takes 200 to 300 ns of a
    /// processor, and displaces lines of its caches (Akiyama and Hirofuchi, "Quantitative Evaluation of
    /// Intel PEBS Overhead for Online System-Noise Analysis", ROSS 2017). The rest of the default is
    /// assumed, for Linux's interrupt that takes records from the processor's buffer.
    #[serde(default = "sample_ns")]
    pub sample_ns: u64,
    /// Whether a load waits for the loads from which its address is computed. Trace-driven
    /// simulation has no such dependences, so comparisons of the two switch this off.
    #[serde(default = "follows")]
    pub follow_loads: bool,
    /// The tier in which page tables are assumed to be, from 0.
    pub tables_tier: usize,
    /// Bytes of each tier's memory.
    pub tier_bytes: Vec<u64>,
    /// Sampling windows; without them everything is timed in detail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<WindowPlan>,
    /// Processor and tiers; the sizes of the tiers come from the emulated machine.
    pub hardware: MachineConfig,
}

fn follows() -> bool {
    true
}

fn sample_ns() -> u64 {
    1000
}

/// Input of the plug-in: the machine, and the emulator's physical memory ranges.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockPlan {
    /// The memory ranges of the tiers, in the emulator's addresses.
    pub ranges: Vec<TierRange>,
    /// Start of the guest kernel's direct map, if the emulator's registers and memory can be read:
    /// the guest's own page tables are walked then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct_map: Option<u64>,
    /// Samples of its memory accesses, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<SamplePlan>,
    /// The work from which on a program is measured, if it has processors to itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<WorkPlan>,
    /// Symbols of the guest's kernel, by which its time is divided by cause; without them it is not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub symbols: Vec<Symbol>,
    /// The machine.
    pub config: TimedConfig,
}

/// A range of addresses in which a tier has memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierRange {
    /// Index of the tier, from 0.
    pub tier: usize,
    /// Its first address.
    pub start: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Offset in the tier's memory.
    pub offset: u64,
}

impl TierRange {
    /// The tier and the offset in it, if the address is in this range.
    #[inline]
    pub fn find(&self, address: u64) -> Option<(usize, u64)> {
        let at = address.wrapping_sub(self.start);
        (at < self.bytes).then_some((self.tier, self.offset + at))
    }

    /// The address of this offset in a tier, if it is in this range.
    pub fn address(&self, (tier, place): (usize, u64)) -> Option<u64> {
        let at = place.wrapping_sub(self.offset);
        (tier == self.tier && at < self.bytes).then_some(self.start + at)
    }
}

impl ClockPlan {
    /// The text that the plug-in reads.
    pub fn to_toml(&self) -> Result<String, TimedError> {
        toml::to_string(self).map_err(|e| TimedError(format!("the timed machine: {e}")))
    }

    /// The input that [`to_toml`](Self::to_toml) wrote.
    pub fn from_toml(text: &str) -> Result<Self, TimedError> {
        toml::from_str(text).map_err(|e| TimedError(format!("the timed machine: {}", e.message())))
    }
}

/// A tier by the figures of its data sheet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TierSpeed {
    /// Latency of a program's load that misses in all caches.
    pub latency_ns: f64,
    /// Maximum read or write bandwidth.
    pub gb_per_s: f64,
}

impl TimedConfig {
    /// A machine of a preset, tiers included.
    pub fn of(hardware: MachineConfig) -> Self {
        TimedConfig {
            hardware,
            quantum_ns: 10_000,
            device_ns: 100,
            pause_ns: 40,
            sample_ns: sample_ns(),
            follow_loads: true,
            tables_tier: 0,
            tier_bytes: Vec::new(),
            windows: None,
        }
    }

    /// The default preset's processor before two tiers of these speeds.
    pub fn with_tiers(tiers: &[TierSpeed]) -> Result<Self, TimedError> {
        let mut hardware = presets::by_name(DEFAULT_PRESET)?;
        hardware.tiers = tiers
            .iter()
            .zip(["fast", "slow", "third", "fourth"])
            .map(|(tier, name)| tier_of(name, *tier, &hardware.node))
            .collect::<Result<_, _>>()?;
        Ok(TimedConfig::of(hardware))
    }

    /// The same configuration with so many processors and tiers of this size.
    #[must_use]
    pub fn sized(mut self, processors: u32, tier_bytes: &[u64]) -> Self {
        self.hardware.node.cores = processors;
        self.tier_bytes = tier_bytes.to_vec();
        for (tier, bytes) in self.hardware.tiers.iter_mut().zip(tier_bytes) {
            // After the memory, the assumed page tables.
            tier.capacity = Bytes(bytes + TABLES_BYTES);
        }
        self
    }

    /// Reports an impossible configuration.
    pub fn check(&self) -> Result<(), TimedError> {
        let tiers = self.hardware.tiers.len();
        if tiers != self.tier_bytes.len() {
            return Err(TimedError(format!(
                "the hardware has {tiers} tiers; expected {}, as the machine has",
                self.tier_bytes.len()
            )));
        }
        if self.tables_tier >= tiers {
            return Err(TimedError(format!(
                "page tables in tier {}; expected 0 to {}",
                self.tables_tier,
                tiers.saturating_sub(1)
            )));
        }
        if !(100..=1_000_000).contains(&self.quantum_ns) {
            return Err(TimedError(format!(
                "a quantum of {} ns; expected 100 to 1000000",
                self.quantum_ns
            )));
        }
        self.windows.as_ref().map_or(Ok(()), WindowPlan::check)?;
        if let Some(tier) =
            self.hardware.tiers.iter().find(|t| !matches!(t.model, TierModel::Queueing(_)))
        {
            return Err(TimedError(format!(
                "tier {} by DRAM command; expected tiers as queues, which answer at once",
                tier.name
            )));
        }
        crate::machine::TimedMachine::new(self, 0).map(drop)
    }
}

/// A symmetric tier of this speed behind a processor.
fn tier_of(name: &str, speed: TierSpeed, node: &NodeConfig) -> Result<TierConfig, TimedError> {
    // The look-ups down to the last level are added on top.
    let lookup_ns =
        f64::from(node.caches.llc.latency_cycles) * 1000.0 / f64::from(node.core.clock_mhz);
    let TierSpeed { latency_ns, gb_per_s } = speed;
    if !(lookup_ns < latency_ns && latency_ns <= 65_534.0) {
        return Err(TimedError(format!(
            "the {name} tier's latency is {latency_ns} ns; expected more than the {lookup_ns:.1} ns \
             that the caches before it take"
        )));
    }
    if !(0.001..=100_000.0).contains(&gb_per_s) {
        return Err(TimedError(format!(
            "the {name} tier's bandwidth is {gb_per_s} GB/s; expected 0.001 to 100000"
        )));
    }
    let model = QueueingConfig::dram(latency_ns - lookup_ns, gb_per_s, 1);
    Ok(TierConfig {
        name: name.into(),
        capacity: Bytes(TABLES_BYTES),
        model: TierModel::Queueing(model),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIERS: [TierSpeed; 2] = [
        TierSpeed { latency_ns: 80.0, gb_per_s: 100.0 },
        TierSpeed { latency_ns: 300.0, gb_per_s: 20.0 },
    ];

    #[test]
    fn it_goes_to_the_plug_in_and_comes_back() {
        let config = TimedConfig::with_tiers(&TIERS).unwrap().sized(2, &[1 << 30, 2 << 30]);
        config.check().unwrap();
        let of = |tier, start, bytes| TierRange { tier, start, bytes, offset: 0 };
        let ranges = vec![of(0, 0, 1 << 30), of(1, 2 << 30, 2 << 30)];
        let samples = Some(SamplePlan { physical: ranges.clone(), ..SamplePlan::default() });
        let direct_map = Some(0xFFFF_8880_0000_0000);
        let name = "asm_exc_page_fault".to_owned();
        let symbols = vec![Symbol { name, address: 0xFFFF_FFFF_81E0_1280 }];
        let work = Some(WorkPlan { processors: vec![1], from_instructions: 1 << 34 });
        let plan = ClockPlan { ranges, direct_map, samples, work, symbols, config };
        assert_eq!(ClockPlan::from_toml(&plan.to_toml().unwrap()).unwrap(), plan);
    }

    #[test]
    fn machines_that_cannot_be_are_refused_in_one_line() {
        let good = || TimedConfig::with_tiers(&TIERS).unwrap().sized(1, &[1 << 30; 2]);
        let mut caches = good();
        caches.hardware.node.caches.l1.ways = 0;
        let mut quantum = good();
        quantum.quantum_ns = 1;
        let mut tables = good();
        tables.tables_tier = 2;
        let sizes = good().sized(1, &[1 << 30]);
        let windows = |window_instructions, interval_instructions| {
            let plan = WindowPlan {
                window_instructions,
                warm_up_instructions: 4000,
                interval_instructions,
                seed: 1,
            };
            TimedConfig { windows: Some(plan), ..good() }
        };
        windows(1000, 10_000).check().unwrap();
        let (short, dense) = (windows(999, 100_000), windows(2000, 11_999));
        let dram = TimedConfig::of(presets::by_name("server-ddr5-cxl-timing").unwrap())
            .sized(1, &[1 << 30; 2]);
        for (bad, named) in [
            (caches, "ways"),
            (quantum, "quantum"),
            (tables, "page tables in tier 2"),
            (sizes, "2 tiers"),
            (short, "999 instructions"),
            (dense, "at least 12000"),
            (dram, "as queues"),
        ] {
            let error = bad.check().unwrap_err().to_string();
            assert!(error.contains(named) && error.lines().count() == 1, "{error}");
        }
        for (latency_ns, gb_per_s, named) in
            [(10.0, 1.0, "latency"), (f64::NAN, 1.0, "latency"), (80.0, 0.0, "bandwidth")]
        {
            let tier = TierSpeed { latency_ns, gb_per_s };
            let error = TimedConfig::with_tiers(&[tier]).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
