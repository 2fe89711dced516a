//! `redis-zipf`: Redis from Debian under a Zipfian load of our own client, with a batch scan
//! beside it and a hot spot that can move.
//!
//! The defaults are such that policies can differ, which takes some care on small stores. A tracker
//! reports whether a page was touched in a period, so the popular pages are all alike and only the
//! rest distinguishes policies: with 256 values to a huge page, too many operations in a period
//! touch every page, too few leave nothing to learn. And the popular keys must not be the oldest:
//! those are in fast memory already because they came first, and doing nothing would win. The hot
//! spot therefore begins in the middle of the keys.
//!
//! In a model that draws operations over the places where a real store of the default size has its
//! values and their headers (271 huge pages; a value's header is in a neighbouring page, so that an
//! operation touches two), with half of the pages fast and periods of 1 s: 35 % of the pages are
//! touched in a period; of those first-touch has 33 % in fast memory, LRU 64 % (and moves 35 pages
//! a period), LFU 72 % (and moves 4). The scan is the cost to LRU: without it LRU has 76 %. When
//! the hot spot moves and the scan ends, LRU is ahead of LFU for as long as the old hot spot is in
//! LFU's history.

use serde::Deserialize;
use terrace_core::page::PageSize;
use terrace_core::parameters::ParameterDoc;

use super::{
    End, LiveCommand, LiveKind, LiveProgram, LiveWorkload, Ready, SLACK_MS, bad, parse, within,
};
use crate::redis::popularity::{Mix, Order, Sequence, Shift};
use crate::redis::value::MIN_VALUE_BYTES;

const NAME: &str = "redis-zipf";

/// Settings of the server's allocator (jemalloc) for huge pages: to request them, where the system
/// gives none by default; and to keep freed memory, because giving back a part of a huge page
/// splits it.
const MALLOC_CONF: &str = "thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1";

pub(super) const KIND: LiveKind = LiveKind {
    name: NAME,
    summary: "Redis under Zipfian reads and writes and a batch scan, every value checked",
    stands_for: "key-value caches; YCSB-like, with popularity by age and a scan that pollutes",
    parameters: &[
        ParameterDoc {
            name: "footprint_mib",
            default: "512",
            meaning: "values in MiB (2^20 bytes); the server needs about a tenth more (1 to 4194304)",
        },
        ParameterDoc {
            name: "value_bytes",
            default: "8176",
            meaning: "length of a value; 4,080 and 8,176 fill the server's allocations (16 to 67108864)",
        },
        ParameterDoc {
            name: "theta",
            default: "1.2",
            meaning: "exponent of the Zipfian law (0 to 10)",
        },
        ParameterDoc {
            name: "operations_per_s",
            default: "500",
            meaning: "rate; 0 is as many as are answered (0 to 1000000000)",
        },
        ParameterDoc {
            name: "write_share",
            default: "0.1",
            meaning: "share of the operations that write (0 to 1)",
        },
        ParameterDoc {
            name: "write_in_place",
            default: "true",
            meaning: "write with SETRANGE, in place; with SET a value that is written moves to another place in memory",
        },
        ParameterDoc {
            name: "scrambled",
            default: "false",
            meaning: "popular keys are anywhere in memory instead of together",
        },
        ParameterDoc {
            name: "hot_start",
            default: "0.5",
            meaning: "where the most popular key is, as a share of all keys by age (0 to below 1)",
        },
        ParameterDoc {
            name: "shifts",
            default: "[]",
            meaning: "list of {at_ms, to}: from then on the most popular key is there",
        },
        ParameterDoc {
            name: "sweep_share",
            default: "0.1",
            meaning: "share of the operations that belong to a batch scan over all keys (0 to 1)",
        },
        ParameterDoc {
            name: "sweep_step",
            default: "128",
            meaning: "the batch scan reads every k-th key (at least 1)",
        },
        ParameterDoc {
            name: "sweep_until_ms",
            default: "none: it goes on",
            meaning: "when the batch scan is over, from the begin of the periods",
        },
        ParameterDoc {
            name: "pipeline",
            default: "32",
            meaning: "commands in flight on a connection (1 to 65536)",
        },
        ParameterDoc {
            name: "connections",
            default: "1",
            meaning: "client connections (1 to 1024)",
        },
    ],
    build: |parameters, context| {
        let p: Parameters = parse(NAME, parameters)?;
        within(NAME, "footprint_mib", p.footprint_mib, 1..=1 << 22)?;
        within(NAME, "value_bytes", p.value_bytes, MIN_VALUE_BYTES as u64..=64 << 20)?;
        within(NAME, "operations_per_s", p.operations_per_s, 0.0..=1e9)?;
        within(NAME, "pipeline", p.pipeline, 1..=1 << 16)?;
        within(NAME, "connections", p.connections, 1..=1024)?;
        let keys = (p.footprint_mib << 20).div_ceil(p.value_bytes);
        // The client would reject it too, but only after the server has been filled.
        Sequence::new(Mix {
            keys,
            theta: p.theta,
            write_share: p.write_share,
            order: if p.scrambled { Order::Scrambled } else { Order::Clustered },
            hot_start: p.hot_start,
            shifts: p.shifts.iter().map(|s| Shift { at_ms: s.at_ms, to: s.to }).collect(),
            sweep_share: p.sweep_share,
            sweep_step: p.sweep_step,
            sweep_until_ms: p.sweep_until_ms,
            seed: context.seed,
        })
        .map_err(|e| bad(NAME, e.to_string()))?;

        let socket = context.runtime_directory.join("redis.sock");
        let versions = context.runtime_directory.join("redis-versions");
        let (disable_thp, environment) = match context.page_size {
            PageSize::Huge => ("no", vec![("MALLOC_CONF".into(), MALLOC_CONF.into())]),
            PageSize::Base => ("yes", Vec::new()),
        };
        let server_arguments = [
            "--port",
            "0",
            "--unixsocket",
            &socket.display().to_string(),
            "--dir",
            &context.runtime_directory.display().to_string(),
            "--save",
            "",
            "--appendonly",
            "no",
            "--daemonize",
            "no",
            "--logfile",
            "",
            "--disable-thp",
            disable_thp,
            "--latency-tracking",
            "no",
        ]
        .map(str::to_owned);
        let own = LiveProgram::own()?;
        let client = |phase: &str, within_ms, more: Vec<String>| {
            let mut arguments = vec![
                NAME.to_owned(),
                phase.to_owned(),
                format!("--server=unix:{}", socket.display()),
                format!("--keys={keys}"),
                format!("--value-bytes={}", p.value_bytes),
                format!("--pipeline={}", p.pipeline),
            ];
            arguments.extend(more);
            let program = own.clone();
            LiveCommand { program, arguments, environment: Vec::new(), within_ms }
        };
        let mut run = vec![
            format!("--duration-ms={}", context.duration_ms),
            format!("--theta={}", p.theta),
            format!("--write-share={}", p.write_share),
            format!("--write-with={}", if p.write_in_place { "setrange" } else { "set" }),
            format!("--order={}", if p.scrambled { "scrambled" } else { "clustered" }),
            format!("--hot-start={}", p.hot_start),
            format!("--sweep-share={}", p.sweep_share),
            format!("--sweep-step={}", p.sweep_step),
            format!("--connections={}", p.connections),
            format!("--seed={}", context.seed),
            format!("--versions={}", versions.display()),
        ];
        if context.marked {
            run.push("--measure-on-signal".to_owned());
        }
        if p.operations_per_s > 0.0 {
            run.push(format!("--operations-per-s={}", p.operations_per_s));
        }
        run.extend(p.sweep_until_ms.map(|until_ms| format!("--sweep-until-ms={until_ms}")));
        run.extend(p.shifts.iter().map(|s| format!("--shift={}:{}", s.at_ms, s.to)));
        Ok(LiveWorkload {
            main: LiveCommand {
                program: LiveProgram::Package {
                    package: "redis-server".into(),
                    program: "redis-server".into(),
                },
                arguments: server_arguments.to_vec(),
                environment,
                within_ms: 30_000,
            },
            ready: Ready::UnixSocket { path: socket.clone(), within_ms: 60_000 },
            load: Some(client("load", SLACK_MS, vec!["--keys-first".into()])),
            drive: Some(client("run", context.duration_ms.saturating_add(SLACK_MS), run)),
            verify: Some(client(
                "verify",
                SLACK_MS,
                vec![format!("--versions={}", versions.display())],
            )),
            begin_line: None,
            end: End::Terminate,
            drive_is_marked: context.marked,
            executes: Vec::new(),
            packages: Vec::new(),
        })
    },
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    footprint_mib: u64,
    value_bytes: u64,
    theta: f64,
    operations_per_s: f64,
    write_share: f64,
    write_in_place: bool,
    scrambled: bool,
    hot_start: f64,
    shifts: Vec<ShiftParameters>,
    sweep_share: f64,
    sweep_step: u64,
    sweep_until_ms: Option<u64>,
    pipeline: u64,
    connections: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShiftParameters {
    at_ms: u64,
    to: f64,
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters {
            footprint_mib: 512,
            value_bytes: 8176,
            theta: 1.2,
            operations_per_s: 500.0,
            write_share: 0.1,
            write_in_place: true,
            scrambled: false,
            hot_start: 0.5,
            shifts: Vec::new(),
            sweep_share: 0.1,
            sweep_step: 128,
            sweep_until_ms: None,
            pipeline: 32,
            connections: 1,
        }
    }
}
