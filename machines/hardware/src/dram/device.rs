//! The DRAM devices of one channel: the open rows, and the earliest cycle of each command.
//!
//! Every constraint row is turned into updates: giving a command delays the earliest time of others
//! at the channel, rank, bank group or bank that it affects. The earliest time of a command is then
//! the latest of four numbers.

use std::collections::VecDeque;

use crate::dram::config::DramConfig;
use crate::dram::constraint::{Command, Scope, rows};

/// No row is open.
pub const CLOSED: u32 = u32::MAX;

const COMMANDS: usize = Command::ALL.len();

/// One effect of a command.
#[derive(Debug, Clone, Copy)]
struct Update {
    scope: Scope,
    following: u8,
    cycles: u64,
}

/// A row counted over more than one preceding command.
#[derive(Debug, Clone)]
struct Window {
    scope: Scope,
    preceding: Vec<Command>,
    following: Vec<Command>,
    cycles: u64,
    depth: usize,
    /// Times of the last preceding commands, by node.
    history: Vec<VecDeque<u64>>,
}

/// The devices of one channel.
#[derive(Debug, Clone)]
pub struct Device {
    updates: [Vec<Update>; COMMANDS],
    windows: Vec<Window>,
    /// Earliest times: of the channel's node, then each rank's, bank group's and bank's.
    ready: Vec<[u64; COMMANDS]>,
    open_row: Vec<u32>,
    open_in_rank: Vec<u32>,
    /// Rank of each bank.
    rank: Vec<u32>,
    /// Node of each bank's bank group.
    group: Vec<u32>,
    ranks: usize,
    banks_per_rank: usize,
    first_bank: usize,
}

impl Device {
    /// All banks closed, everything allowed.
    pub fn new(config: &DramConfig) -> Self {
        let o = &config.organization;
        let ranks = o.ranks as usize;
        let groups = ranks * o.bank_groups as usize;
        let banks = groups * o.banks_per_group as usize;
        let mut updates: [Vec<Update>; COMMANDS] = Default::default();
        let mut windows = Vec::new();
        let mut all = rows(&config.timing, o.burst_cycles());
        all.extend(config.constraints.iter().cloned());
        for row in all {
            if row.window > 1 {
                windows.push(Window {
                    scope: row.scope,
                    cycles: u64::from(row.cycles),
                    depth: row.window as usize,
                    preceding: row.preceding,
                    following: row.following,
                    history: vec![VecDeque::new(); 1 + ranks + groups + banks],
                });
                continue;
            }
            for &preceding in &row.preceding {
                for &following in &row.following {
                    let list = &mut updates[preceding as usize];
                    let (following, cycles) = (following as u8, u64::from(row.cycles));
                    match list.iter_mut().find(|u| u.scope == row.scope && u.following == following)
                    {
                        Some(update) => update.cycles = update.cycles.max(cycles),
                        None => list.push(Update { scope: row.scope, following, cycles }),
                    }
                }
            }
        }
        Device {
            updates,
            windows,
            ready: vec![[0; COMMANDS]; 1 + ranks + groups + banks],
            open_row: vec![CLOSED; banks],
            open_in_rank: vec![0; ranks],
            rank: (0..banks).map(|b| (b * ranks / banks) as u32).collect(),
            group: (0..banks).map(|b| (1 + ranks + b * groups / banks) as u32).collect(),
            ranks,
            banks_per_rank: banks / ranks,
            first_bank: 1 + ranks + groups,
        }
    }

    /// The rank of a bank.
    #[inline]
    pub fn rank(&self, bank: usize) -> usize {
        self.rank[bank] as usize
    }

    /// The first bank of a rank, which represents it in commands to the whole rank.
    pub fn first_bank(&self, rank: usize) -> usize {
        rank * self.banks_per_rank
    }

    /// Number of banks.
    pub fn banks(&self) -> usize {
        self.open_row.len()
    }

    /// The open row of a bank, or [`CLOSED`].
    #[inline]
    pub fn open_row(&self, bank: usize) -> u32 {
        self.open_row[bank]
    }

    /// Whether any bank of the rank is open.
    pub fn any_open(&self, rank: usize) -> bool {
        self.open_in_rank[rank] > 0
    }

    /// The earliest cycle at which a command may be given to a bank.
    #[inline]
    pub fn earliest(&self, command: Command, bank: usize) -> u64 {
        let c = command as usize;
        self.ready[0][c]
            .max(self.ready[1 + self.rank[bank] as usize][c])
            .max(self.ready[self.group[bank] as usize][c])
            .max(self.ready[self.first_bank + bank][c])
    }

    /// Gives a command at cycle `at`, which must not be before [`Device::earliest`].
    pub fn give(&mut self, command: Command, bank: usize, row: u32, at: u64) {
        debug_assert!(at >= self.earliest(command, bank), "{command:?} at {at} is too early");
        let rank = self.rank(bank);
        let (group, bank_node) = (self.group[bank] as usize, self.first_bank + bank);
        let own = |scope| match scope {
            Scope::Channel | Scope::OtherRanks => 0,
            Scope::Rank => 1 + rank,
            Scope::BankGroup => group,
            Scope::Bank => bank_node,
        };
        for u in &self.updates[command as usize] {
            let following = usize::from(u.following);
            if u.scope == Scope::OtherRanks {
                for other in (0..self.ranks).filter(|&r| r != rank) {
                    let time = &mut self.ready[1 + other][following];
                    *time = (*time).max(at + u.cycles);
                }
            } else {
                let time = &mut self.ready[own(u.scope)][following];
                *time = (*time).max(at + u.cycles);
            }
        }
        for w in self.windows.iter_mut().filter(|w| w.preceding.contains(&command)) {
            let node = own(w.scope);
            let history = &mut w.history[node];
            history.push_back(at);
            if history.len() < w.depth {
                continue;
            }
            let Some(oldest) = history.pop_front() else { continue };
            for &following in &w.following {
                let f = following as usize;
                if w.scope == Scope::OtherRanks {
                    for other in (0..self.ranks).filter(|&r| r != rank) {
                        self.ready[1 + other][f] = self.ready[1 + other][f].max(oldest + w.cycles);
                    }
                } else {
                    self.ready[node][f] = self.ready[node][f].max(oldest + w.cycles);
                }
            }
        }
        match command {
            Command::Act => self.set_open(bank, row),
            Command::Prea => {
                let first = self.first_bank(rank);
                self.open_row[first..first + self.banks_per_rank].fill(CLOSED);
                self.open_in_rank[rank] = 0;
            }
            Command::Pre | Command::Rda | Command::Wra => self.set_open(bank, CLOSED),
            Command::Rd | Command::Wr | Command::Ref => {}
        }
    }

    fn set_open(&mut self, bank: usize, row: u32) {
        let rank = self.rank(bank);
        let was_open = self.open_row[bank] != CLOSED;
        self.open_row[bank] = row;
        self.open_in_rank[rank] =
            self.open_in_rank[rank] + u32::from(row != CLOSED) - u32::from(was_open);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dram::presets;

    #[test]
    fn a_read_waits_for_its_row_and_a_fifth_activation_for_the_window() {
        let config = presets::by_name("ddr4-2400").unwrap();
        let t = &config.timing;
        let mut d = Device::new(&config);
        let mut at = 0;
        for group in 0..4 {
            let bank = group * 4;
            at = d.earliest(Command::Act, bank).max(at);
            d.give(Command::Act, bank, 7, at);
        }
        assert_eq!(at, 3 * u64::from(t.rrd_s));
        assert_eq!(d.earliest(Command::Rd, 0), u64::from(t.rcd));
        assert_eq!(d.earliest(Command::Act, 1), u64::from(t.faw));
        assert_eq!(d.open_row(0), 7);
        assert!(d.any_open(0));
        d.give(Command::Prea, 0, 0, d.earliest(Command::Prea, 0));
        assert!(!d.any_open(0));
        assert_eq!(d.open_row(12), CLOSED);
    }

    #[test]
    fn a_row_of_the_configurations_own_is_kept_too() {
        let mut config = presets::by_name("ddr4-2400").unwrap();
        config.constraints.push(crate::dram::constraint::Constraint {
            scope: Scope::Channel,
            preceding: vec![Command::Act],
            following: vec![Command::Act],
            cycles: 500,
            window: 2,
        });
        let mut d = Device::new(&config);
        d.give(Command::Act, 0, 0, 0);
        let second = d.earliest(Command::Act, 4);
        assert!(second < 10);
        d.give(Command::Act, 4, 0, second);
        assert_eq!(d.earliest(Command::Act, 8), 500);
    }
}
