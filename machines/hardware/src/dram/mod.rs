//! DRAM timing: DDR4 and DDR5 channels, command by command.
//!
//! A standard is data: an organisation, a table of timings, and constraints as rows
//! ([`constraint`]). The model jumps from command to command and never counts idle cycles.
//!
//! - [`config`]: the configuration, and its TOML form;
//! - [`presets`]: speed bins by name;
//! - [`constraint`]: which command must wait for which, and how long;
//! - [`address_map`]: from physical address to channel, rank, bank, row, column;
//! - [`device`]: bank states and the earliest time of each command;
//! - [`channel`]: queues, scheduler, page policy, refresh;
//! - [`system`]: all channels behind one interface;
//! - [`checker`]: finds violated timings in a log of commands, independent of the above;
//! - [`traffic`]: random or sequential traffic at a set load, measured.

pub mod address_map;
pub mod channel;
pub mod checker;
pub mod config;
pub mod constraint;
pub mod device;
pub mod presets;
pub mod system;
pub mod traffic;
