//! Finds violated timings in a log of commands.
//!
//! Deliberately independent: it uses neither the constraint rows nor the device model, but states
//! each rule of JESD79-4 and JESD79-5 again, as a comparison of two commands' times. So it finds a
//! wrong row instead of repeating it. It is quadratic within a window and for tests only.

use crate::dram::channel::Logged;
use crate::dram::config::{DramConfig, Timing};
use crate::dram::constraint::Command;

/// A command that came too early or at the wrong moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cycle {cycle}: {command:?} to bank {bank} violates {rule}")]
pub struct Violation {
    /// Cycle of the command.
    pub cycle: u64,
    /// The command.
    pub command: Command,
    /// The bank.
    pub bank: u32,
    /// The rule, by its JEDEC name.
    pub rule: &'static str,
}

/// The group and rank of a bank.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    rank: u32,
    group: u32,
    bank: u32,
}

/// The first `limit` violations in a channel's log.
pub fn check(config: &DramConfig, log: &[Logged], limit: usize) -> Vec<Violation> {
    let (o, t) = (&config.organization, &config.timing);
    // No rule but refresh reaches farther back than this.
    let horizon = u64::from(t.rfc.max(t.rc).max(t.faw))
        + u64::from(t.cwl + t.wr + t.rp + t.cl)
        + 2 * u64::from(o.burst_cycles())
        + u64::from(t.rank_switch_gap + t.read_to_write_gap);
    let mut banks = Banks {
        open: vec![None; o.banks() as usize],
        refreshed: vec![0u64; o.ranks as usize],
        bus_free: 0,
    };
    let mut violations = Vec::new();
    let mut first = 0;
    for (i, &now) in log.iter().enumerate() {
        while log[first].cycle + horizon < now.cycle {
            first += 1;
        }
        let mut report = |rule| {
            violations.push(Violation {
                cycle: now.cycle,
                command: now.command,
                bank: now.bank,
                rule,
            });
        };
        check_distances(config, &log[first..i], now, &mut report);
        banks.take(config, now, &mut report);
        if violations.len() >= limit {
            break;
        }
    }
    violations
}

fn place(config: &DramConfig, bank: u32) -> Place {
    let o = &config.organization;
    Place {
        rank: bank / (o.bank_groups * o.banks_per_group),
        group: bank / o.banks_per_group,
        bank,
    }
}

/// Reports rules between a command and those before it.
fn check_distances(
    config: &DramConfig,
    before: &[Logged],
    now: Logged,
    report: &mut dyn FnMut(&'static str),
) {
    let (t, burst) = (&config.timing, u64::from(config.organization.burst_cycles()));
    let here = place(config, now.bank);
    for before in before {
        if now.cycle < before.cycle {
            report("the order of time");
            continue;
        }
        let there = place(config, before.bank);
        for (rule, least) in rules(t, burst, before.command, there, now.command, here) {
            if now.cycle - before.cycle < least {
                report(rule);
            }
        }
    }
    if now.command == Command::Act {
        let mut window = before
            .iter()
            .rev()
            .filter(|b| b.command == Command::Act && place(config, b.bank).rank == here.rank);
        if let Some(fourth) = window.nth(3)
            && now.cycle - fourth.cycle < u64::from(t.faw)
        {
            report("tFAW");
        }
    }
}

/// State of a channel's banks and data bus.
struct Banks {
    /// The open row of each bank.
    open: Vec<Option<u32>>,
    /// The last refresh of each rank.
    refreshed: Vec<u64>,
    bus_free: u64,
}

impl Banks {
    /// Takes a command, and reports rules on the state that it meets.
    fn take(&mut self, config: &DramConfig, now: Logged, report: &mut dyn FnMut(&'static str)) {
        let (o, t) = (&config.organization, &config.timing);
        let rank = place(config, now.bank).rank;
        let state = &mut self.open[now.bank as usize];
        match now.command {
            Command::Act => {
                if state.is_some() {
                    report("activation of an open bank");
                }
                *state = Some(now.row);
            }
            Command::Pre => *state = None,
            Command::Prea | Command::Ref => {
                let banks = o.bank_groups * o.banks_per_group;
                let all = (rank * banks) as usize..((rank + 1) * banks) as usize;
                if now.command == Command::Prea {
                    self.open[all].fill(None);
                } else {
                    if self.open[all].iter().any(Option::is_some) {
                        report("refresh of an open bank");
                    }
                    // Each interval needs one; up to 8 may be put off (one more for the start).
                    let late = 9 + u64::from(config.controller.refresh_postpone);
                    if now.cycle - self.refreshed[rank as usize] > late * u64::from(t.refi) {
                        report("tREFI");
                    }
                    self.refreshed[rank as usize] = now.cycle;
                }
            }
            command => {
                if *state != Some(now.row) {
                    report("a column command needs its row open");
                }
                if command.closes() {
                    *state = None;
                }
                let write = matches!(command, Command::Wr | Command::Wra);
                let data = now.cycle + u64::from(if write { t.cwl } else { t.cl });
                if data < self.bus_free {
                    report("one burst at a time on the data bus");
                }
                self.bus_free = self.bus_free.max(data + u64::from(o.burst_cycles()));
            }
        }
    }
}

/// Every rule between two commands: its name and the least distance.
fn rules(
    t: &Timing,
    burst: u64,
    before: Command,
    there: Place,
    now: Command,
    here: Place,
) -> Vec<(&'static str, u64)> {
    use Command::*;
    let n = u64::from;
    let mut out = Vec::new();
    let mut rule = |applies: bool, name: &'static str, least: u64| {
        if applies {
            out.push((name, least));
        }
    };
    let read = |c| matches!(c, Rd | Rda);
    let write = |c| matches!(c, Wr | Wra);
    let column = |c| read(c) || write(c);
    let same_rank = there.rank == here.rank;
    let same_group = same_rank && there.group == here.group;
    let same_bank = same_rank && there.bank == here.bank;
    let whole_rank = |c| matches!(c, Prea | Ref);
    let write_data_end = n(t.cwl) + burst;

    let length = match before {
        Act => n(t.act_command_cycles),
        c if column(c) => n(t.column_command_cycles),
        _ => 1,
    };
    rule(true, "the command bus", length);

    // Activation.
    rule(before == Act && now == Act && same_bank, "tRC", n(t.rc));
    rule(before == Act && now == Act && same_group && !same_bank, "tRRD_L", n(t.rrd_l));
    rule(before == Act && now == Act && same_rank && !same_group, "tRRD_S", n(t.rrd_s));
    rule(before == Act && column(now) && same_bank, "tRCD", n(t.rcd));
    rule(before == Act && now == Pre && same_bank, "tRAS", n(t.ras));
    rule(before == Act && now == Prea && same_rank, "tRAS", n(t.ras));
    rule(before == Act && now == Ref && same_rank, "tRC", n(t.rc));

    // Precharge.
    let closed = (before == Pre && same_bank) || (before == Prea && same_rank);
    rule(closed && now == Act, "tRP", n(t.rp));
    rule(matches!(before, Pre | Prea) && now == Ref && same_rank, "tRP", n(t.rp));
    let precharge_here = (now == Pre && same_bank) || (now == Prea && same_rank);
    rule(read(before) && precharge_here, "tRTP", n(t.rtp));
    rule(write(before) && precharge_here, "tWR", write_data_end + n(t.wr));
    let reopened = (now == Act && same_bank) || (now == Ref && same_rank);
    rule(before == Rda && reopened, "tRTP + tRP", n(t.rtp + t.rp));
    rule(before == Wra && reopened, "tWR + tRP", write_data_end + n(t.wr + t.rp));

    // Columns of one rank.
    rule(read(before) && read(now) && same_group, "tCCD_L", n(t.ccd_l));
    rule(read(before) && read(now) && same_rank, "tCCD_S", n(t.ccd_s));
    rule(write(before) && write(now) && same_group, "tCCD_L_WR", n(t.ccd_l_wr));
    rule(write(before) && write(now) && same_rank, "tCCD_S", n(t.ccd_s));
    rule(write(before) && read(now) && same_group, "tWTR_L", write_data_end + n(t.wtr_l));
    rule(write(before) && read(now) && same_rank, "tWTR_S", write_data_end + n(t.wtr_s));
    let turn = (n(t.cl) + burst + n(t.read_to_write_gap)).saturating_sub(n(t.cwl));
    rule(read(before) && write(now) && same_rank, "read to write", turn);

    // Data of different ranks: start to start on the bus at least a burst and a gap.
    if column(before) && column(now) && !same_rank {
        let start = |c| n(if write(c) { t.cwl } else { t.cl });
        let apart = start(before) + burst + n(t.rank_switch_gap);
        rule(true, "tRTRS", apart.saturating_sub(start(now)));
    }

    // Refresh.
    rule(before == Ref && same_rank && (now == Act || whole_rank(now)), "tRFC", n(t.rfc));
    out
}
