//! Speed bins by name.
//!
//! Sources: JESD79-4C (DDR4), tables of speed bins and "Timing parameters by speed grade", and
//! JESD79-5B (DDR5), the same. Values that the standards give in nanoseconds are rounded to cycles
//! by their own rules; "max(4nCK, 7.5ns)" is written `max(4, ns(7.5))`. Devices are 8 Gb x8 (DDR4)
//! and 16 Gb x8 (DDR5), one rank. Only the bin and the values that depend on it differ; every value
//! can be set.

use terrace_core::names::hint;

use crate::dram::address_map::{Field, Part};
use crate::dram::config::{Controller, DramConfig, Organization, PagePolicy, Scheduler, Timing};
use crate::error::ConfigError;

/// The preset that a configuration without one starts from.
pub const DEFAULT: &str = "ddr4-2400";

#[rustfmt::skip]
const DDR4: [Ddr4; 5] = [
    //     name        tCK_ps  CL  RCD  RP  CWL  RAS_ns  RRD_S_ns  RRD_L_ns  CCD_L_ns    bin
    Ddr4("ddr4-2133",    937,  15,  15,  15,  11,  33.0,     3.7,      5.3,     5.355), // P
    Ddr4("ddr4-2400",    833,  17,  17,  17,  12,  32.0,     3.3,      4.9,     5.0),   // T
    Ddr4("ddr4-2666",    750,  19,  19,  19,  14,  32.0,     3.0,      4.9,     5.0),   // V
    Ddr4("ddr4-2933",    682,  21,  21,  21,  16,  32.0,     2.7,      4.9,     5.0),   // Y
    Ddr4("ddr4-3200",    625,  22,  22,  22,  16,  32.0,     2.5,      4.9,     5.0),   // AA
];

struct Ddr4(&'static str, u32, u32, u32, u32, u32, f64, f64, f64, f64);

#[rustfmt::skip]
const DDR5: [Ddr5; 2] = [
    //     name        tCK_ps  CL  RCD  RP  FAW_ns   bin
    Ddr5("ddr5-4800",    416,  40,  39,  39, 13.333), // B
    Ddr5("ddr5-5600",    357,  46,  45,  45, 11.428), // B
];

struct Ddr5(&'static str, u32, u32, u32, u32, f64);

/// Every preset.
pub fn names() -> impl Iterator<Item = &'static str> {
    DDR4.iter().map(|d| d.0).chain(DDR5.iter().map(|d| d.0))
}

/// The preset of a name.
pub fn by_name(name: &str) -> Result<DramConfig, ConfigError> {
    let ddr4 = DDR4.iter().find(|d| d.0 == name).map(ddr4);
    ddr4.or_else(|| DDR5.iter().find(|d| d.0 == name).map(ddr5)).ok_or_else(|| {
        let known: Vec<_> = names().collect();
        ConfigError::new(
            "dram",
            format!(
                "no preset {name:?}; known presets: {}{}",
                known.join(", "),
                hint(name, names())
            ),
        )
    })
}

/// DDR4's rounding (JESD79-4C, section 13.5): up, with 2.5 % of a cycle forgiven.
fn ddr4_cycles(ns: f64, clock_ps: u32) -> u32 {
    let ps = (ns * 1000.0).round() as u64;
    ((ps * 1000 / u64::from(clock_ps) + 974) / 1000) as u32
}

/// DDR5's rounding (JESD79-5B, section 13.2): up, after subtracting 0.3 %.
fn ddr5_cycles(ns: f64, clock_ps: u32) -> u32 {
    let ps = (ns * 1000.0).round() as u64;
    ((ps * 997 / u64::from(clock_ps) + 1000) / 1000) as u32
}

fn ddr4(d: &Ddr4) -> DramConfig {
    let &Ddr4(_, clock_ps, cl, rcd, rp, cwl, ras, rrd_s, rrd_l, ccd_l) = d;
    let ns = |ns| ddr4_cycles(ns, clock_ps);
    DramConfig {
        organization: Organization {
            channels: 1,
            ranks: 1,
            bank_groups: 4,
            banks_per_group: 4,
            rows: 1 << 16,
            columns: 1 << 10,
            bus_bits: 64,
            burst_length: 8,
        },
        timing: Timing {
            clock_ps,
            cl,
            cwl,
            rcd,
            rp,
            ras: ns(ras),
            rc: ns(ras) + rp,
            // Pages of 1 KB, as x8 devices have.
            rrd_s: ns(rrd_s).max(4),
            rrd_l: ns(rrd_l).max(4),
            faw: ns(21.0).max(20),
            ccd_s: 4,
            ccd_l: ns(ccd_l).max(5),
            ccd_l_wr: ns(ccd_l).max(5),
            wtr_s: ns(2.5).max(2),
            wtr_l: ns(7.5).max(4),
            rtp: ns(7.5).max(4),
            wr: ns(15.0),
            read_to_write_gap: 2,
            rank_switch_gap: 2,
            // 8 Gb.
            rfc: ns(350.0),
            // A maximum: rounded down.
            refi: 7_800_000 / clock_ps,
            act_command_cycles: 1,
            column_command_cycles: 1,
        },
        controller: controller(),
        constraints: Vec::new(),
    }
}

fn ddr5(d: &Ddr5) -> DramConfig {
    let &Ddr5(_, clock_ps, cl, rcd, rp, faw) = d;
    let ns = |ns| ddr5_cycles(ns, clock_ps);
    DramConfig {
        organization: Organization {
            // A module is two subchannels.
            channels: 2,
            ranks: 1,
            bank_groups: 8,
            banks_per_group: 4,
            rows: 1 << 16,
            columns: 1 << 10,
            bus_bits: 32,
            burst_length: 16,
        },
        timing: Timing {
            clock_ps,
            cl,
            cwl: cl - 2,
            rcd,
            rp,
            ras: ns(32.0),
            rc: ns(32.0) + rp,
            rrd_s: 8,
            rrd_l: ns(5.0).max(8),
            // Pages of 1 KB, as x8 devices have.
            faw: ns(faw).max(32),
            ccd_s: 8,
            ccd_l: ns(5.0).max(8),
            // x8 devices write whole code words: tCCD_L_WR2.
            ccd_l_wr: ns(10.0).max(16),
            wtr_s: ns(2.5).max(4),
            wtr_l: ns(10.0).max(16),
            rtp: ns(7.5).max(12),
            wr: ns(30.0),
            read_to_write_gap: 2,
            rank_switch_gap: 2,
            // 16 Gb, normal refresh (tRFC1).
            rfc: ns(295.0),
            refi: 3_900_000 / clock_ps,
            // Two-cycle commands.
            act_command_cycles: 2,
            column_command_cycles: 2,
        },
        controller: controller(),
        constraints: Vec::new(),
    }
}

/// Neighbouring lines go to different channels and bank groups: so a stream reaches the bus's peak
/// although columns of one bank group are further apart than a burst.
fn controller() -> Controller {
    let map = [Part::Row, Part::Rank, Part::Bank, Part::Column, Part::BankGroup, Part::Channel];
    Controller {
        address_map: map.map(|part| Field { part, bits: None }).to_vec(),
        bank_hash: true,
        scheduler: Scheduler::FrFcfs,
        hit_streak: 16,
        page_policy: PagePolicy::Open,
        page_timeout_cycles: 200,
        read_queue: 64,
        write_queue: 64,
        write_high: 48,
        write_low: 16,
        refresh: true,
        refresh_postpone: 0,
        frontend_ns: 0.0,
        backend_ns: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_round_as_the_standards_say() {
        let t = by_name("ddr4-2400").unwrap().timing;
        assert_eq!((t.ras, t.rc, t.faw, t.rrd_s, t.rrd_l), (39, 56, 26, 4, 6));
        assert_eq!((t.ccd_l, t.wtr_s, t.wtr_l, t.rtp, t.wr), (6, 3, 9, 9, 18));
        assert_eq!((t.rfc, t.refi), (421, 9363));
        let t = by_name("ddr4-3200").unwrap().timing;
        assert_eq!((t.ras, t.faw, t.rrd_s, t.rrd_l, t.ccd_l), (52, 34, 4, 8, 8));
        assert_eq!((t.wtr_s, t.wtr_l, t.rtp, t.wr, t.rfc, t.refi), (4, 12, 12, 24, 560, 12480));
        let t = by_name("ddr5-4800").unwrap().timing;
        assert_eq!((t.cl, t.cwl, t.rcd, t.rp, t.ras), (40, 38, 39, 39, 77));
        assert_eq!((t.ccd_l, t.ccd_l_wr, t.wtr_l, t.rtp, t.wr, t.faw), (12, 24, 24, 18, 72, 32));
        assert_eq!((t.rfc, t.refi), (708, 9375));
    }

    #[test]
    fn every_preset_can_work_and_has_its_peak() {
        for name in names() {
            let c = by_name(name).unwrap();
            c.check().unwrap();
            assert_eq!(c.organization.line_bytes(), 64);
            let rate: f64 = name.split('-').nth(1).unwrap().parse().unwrap();
            let peak = rate * 8.0 / 1000.0;
            assert!((c.peak_gb_per_s() / peak - 1.0).abs() < 0.003, "{name}");
        }
        assert_eq!(by_name("ddr4-2400").unwrap().organization.capacity_bytes(), 8 << 30);
        assert_eq!(by_name("ddr5-4800").unwrap().organization.capacity_bytes(), 16 << 30);
    }
}
