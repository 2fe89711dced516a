//! The constraints of a standard, as rows: at this level, these commands delay those by so many
//! cycles. [`rows`] writes down JESD79-4 (DDR4) and JESD79-5 (DDR5); a configuration can add rows
//! of its own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dram::config::Timing;

/// A DRAM command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Command {
    /// Opens a row of a bank.
    Act,
    /// Closes the open row of a bank.
    Pre,
    /// Closes all rows of a rank.
    Prea,
    /// Reads a burst from the open row.
    Rd,
    /// Reads and closes the row by itself as soon as it may.
    Rda,
    /// Writes a burst to the open row.
    Wr,
    /// Writes and closes the row by itself as soon as it may.
    Wra,
    /// Refreshes a rank, all of whose banks are closed.
    Ref,
}

impl Command {
    /// All commands, in the order of their discriminants.
    pub const ALL: [Command; 8] = [
        Command::Act,
        Command::Pre,
        Command::Prea,
        Command::Rd,
        Command::Rda,
        Command::Wr,
        Command::Wra,
        Command::Ref,
    ];

    /// Whether the command moves data.
    pub const fn is_column(self) -> bool {
        matches!(self, Command::Rd | Command::Rda | Command::Wr | Command::Wra)
    }

    /// Whether the command closes the row by itself.
    pub const fn closes(self) -> bool {
        matches!(self, Command::Rda | Command::Wra)
    }
}

/// Which other commands a constraint affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Every command on the channel.
    Channel,
    /// Commands to other ranks of the channel.
    OtherRanks,
    /// Commands to the same rank.
    Rank,
    /// Commands to the same bank group.
    BankGroup,
    /// Commands to the same bank.
    Bank,
}

/// One row: after any of `preceding`, none of `following` within `scope` for `cycles`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Constraint {
    /// Which commands are affected.
    pub scope: Scope,
    /// Commands that start the delay.
    pub preceding: Vec<Command>,
    /// Commands that are delayed.
    pub following: Vec<Command>,
    /// Length of the delay in cycles.
    #[schemars(range(min = 0, max = 1000000))]
    pub cycles: u32,
    /// Counted from this many preceding commands back: 1 for the last one, 4 for the
    /// four-activation window.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub window: u32,
}

fn one() -> u32 {
    1
}

/// The rows of DDR4 and DDR5, which differ in numbers only. `burst` is the cycles of a burst on the
/// data bus.
pub fn rows(t: &Timing, burst: u32) -> Vec<Constraint> {
    use Command::*;
    use Scope::*;
    const READS: &[Command] = &[Rd, Rda];
    const WRITES: &[Command] = &[Wr, Wra];
    let mut rows = Vec::new();
    let mut windowed = |scope, preceding: &[Command], following: &[Command], cycles, window| {
        rows.push(Constraint {
            scope,
            preceding: preceding.to_vec(),
            following: following.to_vec(),
            cycles,
            window,
        });
    };
    windowed(Rank, &[Act], &[Act], t.faw, 4);
    let mut row = |scope, preceding: &[Command], following: &[Command], cycles| {
        windowed(scope, preceding, following, cycles, 1);
    };
    let read_to_write = (t.cl + burst + t.read_to_write_gap).saturating_sub(t.cwl);
    let write_end = t.cwl + burst;

    // One command bus.
    row(Channel, &[Act], &Command::ALL, t.act_command_cycles);
    row(Channel, &[Rd, Rda, Wr, Wra], &Command::ALL, t.column_command_cycles);
    row(Channel, &[Pre, Prea, Ref], &Command::ALL, 1);

    // One data bus: bursts of different ranks keep a gap between them.
    row(OtherRanks, READS, READS, burst + t.rank_switch_gap);
    row(OtherRanks, WRITES, WRITES, burst + t.rank_switch_gap);
    row(OtherRanks, READS, WRITES, (t.cl + burst + t.rank_switch_gap).saturating_sub(t.cwl));
    row(OtherRanks, WRITES, READS, (write_end + t.rank_switch_gap).saturating_sub(t.cl));

    // Column to column in one rank.
    row(Rank, READS, READS, t.ccd_s.max(burst));
    row(Rank, WRITES, WRITES, t.ccd_s.max(burst));
    row(Rank, READS, WRITES, read_to_write);
    row(Rank, WRITES, READS, write_end + t.wtr_s);
    row(BankGroup, READS, READS, t.ccd_l);
    row(BankGroup, WRITES, WRITES, t.ccd_l_wr);
    row(BankGroup, WRITES, READS, write_end + t.wtr_l);

    // Activations.
    row(Rank, &[Act], &[Act], t.rrd_s);
    row(BankGroup, &[Act], &[Act], t.rrd_l);
    row(Bank, &[Act], &[Act], t.rc);
    row(Bank, &[Act], &[Rd, Rda, Wr, Wra], t.rcd);
    row(Bank, &[Pre], &[Act], t.rp);
    row(Rank, &[Prea], &[Act], t.rp);
    row(Bank, &[Rda], &[Act], t.rtp + t.rp);
    row(Bank, &[Wra], &[Act], write_end + t.wr + t.rp);

    // Precharges.
    row(Bank, &[Act], &[Pre], t.ras);
    row(Bank, &[Rd], &[Pre], t.rtp);
    row(Bank, &[Wr], &[Pre], write_end + t.wr);
    row(Rank, &[Act], &[Prea], t.ras);
    row(Rank, READS, &[Prea], t.rtp);
    row(Rank, WRITES, &[Prea], write_end + t.wr);

    // Refresh.
    row(Rank, &[Pre, Prea], &[Ref], t.rp);
    row(Rank, &[Act], &[Ref], t.rc);
    row(Rank, &[Rda], &[Ref], t.rtp + t.rp);
    row(Rank, &[Wra], &[Ref], write_end + t.wr + t.rp);
    row(Rank, &[Ref], &[Act, Ref], t.rfc);
    rows
}
