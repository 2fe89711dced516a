//! `terraced`: manages control groups on a live host, for as long as it runs.
//!
//! **Knows** the engine, live Linux and files of its own: configuration, state, sockets. **Must
//! not know** how policies decide or how the kernel tracks and moves: those are the core's and
//! `machines/linux`'s.
//!
//! In reading order:
//! - input: [`config`] (`terraced.toml`), [`discover`] (patterns over control groups);
//! - a group: [`group`] (its thread over the engine's loop), [`throttle`] (limits migration),
//!   [`history`] (scans kept over changes of policy and restarts), [`slowdown`] (an estimate);
//! - all groups: [`service`], over a [`machine`], which is [`live`] or a test's; [`preflight`]
//!   (checks before anything is changed), [`waiting`] (for a host that can be managed), [`notify`]
//!   (the service manager);
//! - output: [`status`] (plain data), [`board`], [`explain`](mod@explain), [`control`] (the socket,
//!   both ends), [`metrics`], [`http`]; [`cli`]: arguments.
#![forbid(unsafe_code)]

pub mod board;
pub mod cli;
pub mod config;
pub mod control;
pub mod discover;
pub mod explain;
pub mod gain;
pub mod group;
pub mod history;
pub mod http;
pub mod live;
pub mod machine;
pub mod metrics;
pub mod notify;
pub mod preflight;
pub mod service;
pub mod slowdown;
pub mod status;
pub mod throttle;
pub mod waiting;

pub use config::{Config, ConfigError};
pub use service::Service;
