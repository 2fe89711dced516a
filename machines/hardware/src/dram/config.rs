//! The configuration of DRAM, and its TOML form: a preset by name, and any of its values replaced.
//!
//! ```toml
//! preset = "ddr4-2400"
//! [organization]
//! channels = 2
//! [timing]
//! rcd = 18
//! [controller]
//! page_policy = "closed"
//! ```

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::dram::address_map::Field;
use crate::dram::constraint::Constraint;
use crate::dram::presets;
use crate::error::{ConfigError, check_range};
use crate::layered::{from_toml, over_preset, schema_over_presets};

/// The organization of the memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Organization {
    /// Independent channels. A DDR5 module is two of 32 bits.
    #[schemars(range(min = 1, max = 256))]
    pub channels: u32,
    /// Ranks on each channel.
    #[schemars(range(min = 1, max = 16))]
    pub ranks: u32,
    /// Bank groups of a rank.
    #[schemars(range(min = 1, max = 64))]
    pub bank_groups: u32,
    /// Banks of a bank group.
    #[schemars(range(min = 1, max = 64))]
    pub banks_per_group: u32,
    /// Rows of a bank.
    #[schemars(range(min = 1, max = 1 << 24))]
    pub rows: u32,
    /// Columns of a row, each as wide as the data bus.
    #[schemars(range(min = 1, max = 1 << 16))]
    pub columns: u32,
    /// Width of the data bus without error correction.
    #[schemars(range(min = 8, max = 1024))]
    pub bus_bits: u32,
    /// Transfers of one burst.
    #[schemars(range(min = 2, max = 64))]
    pub burst_length: u32,
}

impl Organization {
    /// Bytes that one burst moves: the size of a request.
    pub fn line_bytes(&self) -> u64 {
        u64::from(self.bus_bits / 8) * u64::from(self.burst_length)
    }

    /// Cycles a burst takes on the data bus, which moves two transfers a cycle.
    pub fn burst_cycles(&self) -> u32 {
        self.burst_length / 2
    }

    /// Banks of a channel.
    pub fn banks(&self) -> u32 {
        self.ranks * self.bank_groups * self.banks_per_group
    }

    /// Bursts in a row.
    pub fn lines_per_row(&self) -> u32 {
        self.columns / self.burst_length
    }

    /// Total capacity.
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.channels)
            * u64::from(self.banks())
            * u64::from(self.rows)
            * u64::from(self.lines_per_row())
            * self.line_bytes()
    }
}

/// Timings in clock cycles, under their JEDEC names without the `t`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// The clock period (tCK).
    #[schemars(range(min = 50, max = 100000))]
    pub clock_ps: u32,
    /// Read to its data.
    #[schemars(range(min = 1, max = 100000))]
    pub cl: u32,
    /// Write to its data.
    #[schemars(range(min = 1, max = 100000))]
    pub cwl: u32,
    /// Activation to read or write.
    #[schemars(range(min = 1, max = 100000))]
    pub rcd: u32,
    /// Precharge to activation.
    #[schemars(range(min = 1, max = 100000))]
    pub rp: u32,
    /// Activation to precharge.
    #[schemars(range(min = 1, max = 100000))]
    pub ras: u32,
    /// Activation to activation of a bank.
    #[schemars(range(min = 1, max = 100000))]
    pub rc: u32,
    /// Activation to activation, other bank groups.
    #[schemars(range(min = 1, max = 100000))]
    pub rrd_s: u32,
    /// Activation to activation, same bank group.
    #[schemars(range(min = 1, max = 100000))]
    pub rrd_l: u32,
    /// Window in which a rank has at most four activations.
    #[schemars(range(min = 1, max = 100000))]
    pub faw: u32,
    /// Column to column, other bank groups.
    #[schemars(range(min = 1, max = 100000))]
    pub ccd_s: u32,
    /// Read to read, same bank group.
    #[schemars(range(min = 1, max = 100000))]
    pub ccd_l: u32,
    /// Write to write, same bank group.
    #[schemars(range(min = 1, max = 100000))]
    pub ccd_l_wr: u32,
    /// End of write data to read, other bank groups.
    #[schemars(range(min = 1, max = 100000))]
    pub wtr_s: u32,
    /// End of write data to read, same bank group.
    #[schemars(range(min = 1, max = 100000))]
    pub wtr_l: u32,
    /// Read to precharge.
    #[schemars(range(min = 1, max = 100000))]
    pub rtp: u32,
    /// End of write data to precharge.
    #[schemars(range(min = 1, max = 100000))]
    pub wr: u32,
    /// Gap on the data bus between read data and write data.
    #[schemars(range(min = 0, max = 1000))]
    pub read_to_write_gap: u32,
    /// Gap on the data bus between ranks (tRTRS).
    #[schemars(range(min = 0, max = 1000))]
    pub rank_switch_gap: u32,
    /// Refresh to activation; where rows are refreshed, at most 1,000,000.
    pub rfc: u32,
    /// Average interval of refreshes; where there are any, at most 100,000,000 and more than one takes.
    pub refi: u32,
    /// Cycles that an activation takes on the command bus.
    #[schemars(range(min = 1, max = 100000))]
    pub act_command_cycles: u32,
    /// Cycles that a read or write takes on the command bus.
    #[schemars(range(min = 1, max = 100000))]
    pub column_command_cycles: u32,
}

impl Timing {
    /// Relations that the definitions of the timings imply; a table that breaks one was mistyped.
    /// Required of users' files, not of configurations that experiments build: the model works
    /// without them.
    fn check_relations(&self) -> Result<(), ConfigError> {
        let t = self;
        let sum = |a: u32, b: u32| u64::from(a) + u64::from(b);
        for (name, got, least, why) in [
            ("rc", t.rc, sum(t.ras, t.rp), "ras + rp: a row is open for ras, then closed for rp"),
            ("ras", t.ras, t.rcd.into(), "rcd: a row is not closed before it can be read"),
            ("rrd_l", t.rrd_l, t.rrd_s.into(), "rrd_s: a bank group is slower than the rank"),
            ("ccd_l", t.ccd_l, t.ccd_s.into(), "ccd_s: a bank group is slower than the rank"),
            ("ccd_l_wr", t.ccd_l_wr, t.ccd_s.into(), "ccd_s: a bank group is slower than the rank"),
            ("wtr_l", t.wtr_l, t.wtr_s.into(), "wtr_s: a bank group is slower than the rank"),
            ("faw", t.faw, t.rrd_s.into(), "rrd_s: four activations take longer than two"),
        ] {
            if u64::from(got) < least {
                return Err(ConfigError::new(
                    "dram.timing",
                    format!("{name} is {got}; expected at least {least} ({why})"),
                ));
            }
        }
        Ok(())
    }
}

/// Banks of all channels together: more than any machine has, and little memory here.
const MOST_BANKS: u64 = 1 << 16;

/// The reach of addresses of 52 bits.
const MOST_BYTES: u128 = 1 << 52;

/// Which request goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// Column commands before others, then the oldest (Rixner et al., ISCA 2000).
    #[default]
    FrFcfs,
    /// Always the oldest.
    Fcfs,
}

/// When an open row is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "kebab-case")]
pub enum PagePolicy {
    /// When another row of the bank is needed.
    #[default]
    Open,
    /// With the last queued request for the row.
    Closed,
    /// As open, and when the row was not used for `page_timeout_cycles`.
    Timeout,
}

/// The memory controller of a channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Controller {
    /// The fields of an address, most significant first.
    pub address_map: Vec<Field>,
    /// Bank and bank group are XORed with the low bits of the row, so that rows at a power-of-two
    /// distance are in different banks.
    pub bank_hash: bool,
    /// Which request goes first.
    pub scheduler: Scheduler,
    /// Row hits in a row that may pass an older request to the same bank; 0 for no limit.
    pub hit_streak: u32,
    /// When an open row is closed.
    pub page_policy: PagePolicy,
    /// Idle cycles of the page policy `timeout`.
    #[schemars(range(min = 1, max = 1 << 30))]
    pub page_timeout_cycles: u32,
    /// Number of reads that the scheduler chooses from.
    #[schemars(range(min = 1, max = 1 << 16))]
    pub read_queue: u32,
    /// Number of writes that can be held back.
    #[schemars(range(min = 1, max = 1 << 16))]
    pub write_queue: u32,
    /// Writes at which they go before reads ...
    #[schemars(range(min = 1, max = 1 << 16))]
    pub write_high: u32,
    /// ... until so many are left. Below, writes go only when there are no reads.
    #[schemars(range(min = 0, max = (1 << 16) - 1))]
    pub write_low: u32,
    /// Whether rows are refreshed.
    pub refresh: bool,
    /// Refreshes that may be put off while there is work (JEDEC allows 8; DDR5 4).
    #[schemars(range(min = 0, max = 8))]
    pub refresh_postpone: u32,
    /// Delay from the request to the queue.
    #[schemars(range(min = 0.0, max = 1e9))]
    pub frontend_ns: f64,
    /// Delay from the end of the burst to the requester.
    #[schemars(range(min = 0.0, max = 1e9))]
    pub backend_ns: f64,
}

/// A DRAM system. Read as a preset with some of its values replaced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "toml::Table")]
pub struct DramConfig {
    /// Organization of the memory.
    pub organization: Organization,
    /// Timings in clock cycles.
    pub timing: Timing,
    /// The memory controllers.
    pub controller: Controller,
    /// Constraints beyond the standard's.
    pub constraints: Vec<Constraint>,
}

/// [`DramConfig`] with every value given.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Whole {
    /// Organization of the memory.
    organization: Organization,
    /// Timings in clock cycles.
    timing: Timing,
    /// The memory controllers.
    controller: Controller,
    /// Constraints beyond the standard's.
    constraints: Vec<Constraint>,
}

impl JsonSchema for DramConfig {
    fn schema_name() -> Cow<'static, str> {
        "DramConfig".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        schema_over_presets::<Whole>(generator, presets::names())
    }
}

impl TryFrom<toml::Table> for DramConfig {
    type Error = ConfigError;

    fn try_from(given: toml::Table) -> Result<Self, ConfigError> {
        let Whole { organization, timing, controller, constraints } =
            over_preset("dram", given, Some(presets::DEFAULT), presets::by_name)?;
        let config = DramConfig { organization, timing, controller, constraints };
        config.check()?;
        config.timing.check_relations()?;
        Ok(config)
    }
}

impl DramConfig {
    /// Reads TOML: `preset` names the configuration to start from (`ddr4-2400` if absent), every
    /// other key replaces one of its values. Unknown keys are rejected.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        from_toml("dram", text)
    }

    /// Bytes per second of all data buses together, in GB/s.
    pub fn peak_gb_per_s(&self) -> f64 {
        let o = &self.organization;
        f64::from(o.channels) * f64::from(o.bus_bits / 8) * 2000.0 / f64::from(self.timing.clock_ps)
    }

    /// Checks that the configuration can work; the parts check no more.
    pub fn check(&self) -> Result<(), ConfigError> {
        let (o, c) = (&self.organization, &self.controller);
        self.check_organization()?;
        self.check_timing()?;
        let part = "dram.controller";
        check_range(part, "read_queue", u64::from(c.read_queue), 1..=1 << 16)?;
        check_range(part, "write_queue", u64::from(c.write_queue), 1..=1 << 16)?;
        check_range(part, "write_high", u64::from(c.write_high), 1..=u64::from(c.write_queue))?;
        check_range(part, "write_low", u64::from(c.write_low), 0..=u64::from(c.write_high) - 1)?;
        check_range(part, "refresh_postpone", u64::from(c.refresh_postpone), 0..=8)?;
        check_range(part, "page_timeout_cycles", u64::from(c.page_timeout_cycles), 1..=1 << 30)?;
        for (name, ns) in [("frontend_ns", c.frontend_ns), ("backend_ns", c.backend_ns)] {
            crate::units::Picoseconds::from_parameter_ns(part, name, ns)?;
        }
        for row in &self.constraints {
            if row.cycles > 1_000_000 || !(1..=64).contains(&row.window) {
                return Err(ConfigError::new(
                    "dram.constraints",
                    format!(
                        "a row of {} cycles and window {}; expected at most 1000000 and 1 to 64",
                        row.cycles, row.window
                    ),
                ));
            }
        }
        crate::dram::address_map::AddressMap::new(o, c).map(|_| ())
    }

    /// Checks banks, rows and widths.
    fn check_organization(&self) -> Result<(), ConfigError> {
        let o = &self.organization;
        let part = "dram.organization";
        for (name, value, most) in [
            ("channels", o.channels, 256),
            ("ranks", o.ranks, 16),
            ("bank_groups", o.bank_groups, 64),
            ("banks_per_group", o.banks_per_group, 64),
            ("rows", o.rows, 1 << 24),
            ("columns", o.columns, 1 << 16),
        ] {
            check_range(part, name, u64::from(value), 1..=most)?;
        }
        check_range(part, "burst_length", u64::from(o.burst_length), 2..=64)?;
        check_range(part, "bus_bits", u64::from(o.bus_bits), 8..=1024)?;
        if !o.line_bytes().is_power_of_two()
            || !o.bus_bits.is_multiple_of(8)
            || !o.burst_length.is_multiple_of(2)
        {
            return Err(ConfigError::new(
                part,
                format!(
                    "{} bits in bursts of {} move {} bytes; expected a power of two",
                    o.bus_bits,
                    o.burst_length,
                    o.line_bytes()
                ),
            ));
        }
        if !o.columns.is_multiple_of(o.burst_length) {
            return Err(ConfigError::new(
                part,
                format!("{} columns do not divide into bursts of {}", o.columns, o.burst_length),
            ));
        }

        let banks = u64::from(o.channels) * u64::from(o.banks());
        if banks > MOST_BANKS {
            return Err(ConfigError::new(
                part,
                format!("{banks} banks in all channels together; expected at most {MOST_BANKS}"),
            ));
        }
        // In 128 bits: the product of values that are allowed one by one can overflow.
        let capacity = u128::from(banks)
            * u128::from(o.rows)
            * u128::from(o.lines_per_row())
            * u128::from(o.line_bytes());
        if capacity > MOST_BYTES {
            return Err(ConfigError::new(
                part,
                format!("{} TB in all; expected at most {}", capacity >> 40, MOST_BYTES >> 40),
            ));
        }
        Ok(())
    }

    /// Checks the timing parameters.
    fn check_timing(&self) -> Result<(), ConfigError> {
        let t = &self.timing;
        let part = "dram.timing";
        check_range(part, "clock_ps", u64::from(t.clock_ps), 50..=100_000)?;
        for (name, value) in [
            ("cl", t.cl),
            ("cwl", t.cwl),
            ("rcd", t.rcd),
            ("rp", t.rp),
            ("ras", t.ras),
            ("rc", t.rc),
            ("rrd_s", t.rrd_s),
            ("rrd_l", t.rrd_l),
            ("faw", t.faw),
            ("ccd_s", t.ccd_s),
            ("ccd_l", t.ccd_l),
            ("ccd_l_wr", t.ccd_l_wr),
            ("wtr_s", t.wtr_s),
            ("wtr_l", t.wtr_l),
            ("rtp", t.rtp),
            ("wr", t.wr),
            ("act_command_cycles", t.act_command_cycles),
            ("column_command_cycles", t.column_command_cycles),
        ] {
            check_range(part, name, u64::from(value), 1..=100_000)?;
        }
        check_range(part, "read_to_write_gap", u64::from(t.read_to_write_gap), 0..=1000)?;
        check_range(part, "rank_switch_gap", u64::from(t.rank_switch_gap), 0..=1000)?;
        if self.controller.refresh {
            check_range(part, "rfc", u64::from(t.rfc), 1..=1_000_000)?;
            let least = u64::from(t.rfc) + u64::from(t.rc) + u64::from(t.rp);
            check_range(part, "refi", u64::from(t.refi), least + 1..=100_000_000).map_err(|_| {
                ConfigError::new(
                    part,
                    format!(
                        "refi is {}; a refresh (rfc + rc + rp) takes {least}, which leaves no time \
                         for work",
                        t.refi
                    ),
                )
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preset_is_changed_key_by_key() {
        let c = DramConfig::from_toml(
            "preset = \"ddr4-3200\"\n[organization]\nchannels = 6\n[timing]\nrcd = 30\n\
             [controller]\npage_policy = \"closed\"\n",
        )
        .unwrap();
        let base = presets::by_name("ddr4-3200").unwrap();
        assert_eq!((c.organization.channels, c.timing.rcd), (6, 30));
        assert_eq!(c.controller.page_policy, PagePolicy::Closed);
        assert_eq!(c.timing.cl, base.timing.cl);
        assert_eq!(DramConfig::from_toml("").unwrap(), presets::by_name("ddr4-2400").unwrap());
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        for name in presets::names() {
            let config = presets::by_name(name).unwrap();
            let text = toml::to_string(&config).unwrap();
            assert_eq!(DramConfig::from_toml(&text).unwrap(), config);
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, printed) in [
            ("[timing]\ncas = 3", "unknown field `cas`"),
            ("channels = 3", "unknown field `channels`"),
            ("[timing]\ncl = 0", "cl is 0; expected 1 to"),
            ("[timing]\ncl = -3", "invalid value"),
            ("[timing]\nrefi = 400", "leaves no time for work"),
            ("preset = \"ddr9\"", "known presets: ddr4-2133"),
            ("preset = 4", "expected a name"),
            ("[organization]\nrows = 0", "rows is 0"),
            ("[organization]\nbus_bits = 24", "24 bits in bursts of 8"),
            ("[organization]\ncolumns = 1001", "1001 columns do not divide"),
            ("[controller]\nwrite_high = 65", "write_high is 65; expected 1 to 64"),
            ("[controller]\nwrite_low = 60", "write_low is 60"),
            ("[controller]\naddress_map = [\"row\"]", "address_map"),
            ("[controller]\nfrontend_ns = nan", "frontend_ns is NaN"),
            ("[[constraints]]\nscope = \"moon\"", "unknown variant `moon`"),
            ("[timing]\nras = 50", "rc is 56; expected at least 67 (ras + rp"),
            ("[timing]\nrcd = 40", "ras is 39; expected at least 40 (rcd"),
            ("[timing]\nccd_l = 3", "ccd_l is 3; expected at least 4"),
            (
                "[organization]\nchannels = 256\nranks = 16\nbank_groups = 64\nrows = 16777216",
                "1048576 banks in all channels together; expected at most 65536",
            ),
            (
                "[organization]\nchannels = 256\nranks = 16\nrows = 16777216\ncolumns = 65536",
                "expected at most 4096",
            ),
            ("[timing\ncl = 3", "line 1"),
        ] {
            let error = DramConfig::from_toml(text).unwrap_err().to_string();
            assert!(error.contains(printed), "{text:?} gives {error:?}");
            assert!(!error.contains('\n'), "{error:?}");
        }
    }
}
