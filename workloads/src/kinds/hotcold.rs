//! `hotcold`: a program that touches a known set of hot pages and no other page at all, so that a
//! tracker's reports can be compared with the truth.

use serde::Deserialize;
use terrace_core::page::PageSize;
use terrace_core::parameters::ParameterDoc;

use super::generated::own_memory_program;
use super::{LiveKind, bad, parse, within};

const NAME: &str = "hotcold";

pub(super) const KIND: LiveKind = LiveKind {
    name: NAME,
    summary: "a known set of hot pages; live, the others are not touched at all",
    stands_for: "a program with a known hot set: the simplest test of a tracker and a policy",
    parameters: &[
        ParameterDoc {
            name: "footprint_mib",
            default: "1024",
            meaning: "memory of the program in MiB (2^20 bytes), a whole number of pages (1 to 67108864)",
        },
        ParameterDoc {
            name: "hot_ratio",
            default: "0.2",
            meaning: "hot pages over all pages (0 to 1)",
        },
        ParameterDoc {
            name: "hot_every",
            default: "none",
            meaning: "make every k-th page hot, instead of a seeded choice; live only (at least 1)",
        },
        ParameterDoc {
            name: "shift_every_ms",
            default: "none: it stays",
            meaning: "take another hot set after this time, again and again; live only (at least 1)",
        },
        ParameterDoc {
            name: "pause_ms",
            default: "50",
            meaning: "sleep between two rounds of touches; live only (1 to 3600000)",
        },
    ],
    build: |parameters, context| {
        let p: Parameters = parse(NAME, parameters)?;
        within(NAME, "footprint_mib", p.footprint_mib, 1..=1 << 26)?;
        within(NAME, "pause_ms", p.pause_ms, 1..=3_600_000)?;
        let page_bytes = context.page_size.bytes();
        let bytes = p.footprint_mib << 20;
        if !bytes.is_multiple_of(page_bytes) {
            let message = format!(
                "footprint_mib is {}, expected a multiple of {}",
                p.footprint_mib,
                page_bytes >> 20
            );
            return Err(bad(NAME, message));
        }
        let pages = bytes / page_bytes;
        let choice = match (p.hot_ratio, p.hot_every) {
            (Some(_), Some(_)) => {
                let message = "hot_ratio and hot_every are both given, expected one of them";
                return Err(bad(NAME, message.into()));
            }
            (None, Some(step)) => {
                within(NAME, "hot_every", step, 1..=pages)?;
                format!("--hot-every={step}")
            }
            (ratio, None) => {
                let ratio = ratio.unwrap_or(0.2);
                within(NAME, "hot_ratio", ratio, 0.0..=1.0)?;
                format!("--hot={}", ((ratio * pages as f64).round() as u64).max(1))
            }
        };
        let mut arguments = vec![
            NAME.to_owned(),
            format!("--pages={pages}"),
            choice,
            format!("--page-size={}", page_size(context.page_size)),
            format!("--seed={}", context.seed),
            format!("--pause-ms={}", p.pause_ms),
            format!("--duration-ms={}", context.duration_ms),
            "--wait-go".to_owned(),
        ];
        if let Some(every) = p.shift_every_ms {
            within(NAME, "shift_every_ms", every, 1..=u64::MAX)?;
            arguments.push(format!("--shift-every-ms={every}"));
        }
        own_memory_program(arguments)
    },
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    footprint_mib: u64,
    hot_ratio: Option<f64>,
    hot_every: Option<u64>,
    shift_every_ms: Option<u64>,
    pause_ms: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters {
            footprint_mib: 1024,
            hot_ratio: None,
            hot_every: None,
            shift_every_ms: None,
            pause_ms: 50,
        }
    }
}

/// A page size in the form of `terrace-workload`.
pub(super) fn page_size(page_size: PageSize) -> &'static str {
    match page_size {
        PageSize::Huge => "huge",
        PageSize::Base => "base",
    }
}
