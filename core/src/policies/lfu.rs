//! LFU: the most frequently accessed pages are in fast memory (adaptive-migration-policy paper,
//! section 3.1: the bits set in the history of the last 64 periods; `docs/coverage.md`, A2).
//!
//! Where the paper is silent:
//! - Pages of equal frequency are not told apart, so those in fast memory stay. By default a page
//!   in fast memory counts as accessed once more: the frequencies of two pages accessed equally
//!   often at different times differ by one at most, and do not make them trade places.
//! - A page without an access in its history is not promoted, not even into free room; one in
//!   fast memory has no bonus.
//! - Where accessed bits are sampled several times a period, frequency is the share of samples in
//!   which a page had been accessed, averaged over periods ([`crate::counts`]).

use serde::Deserialize;

use super::ranked::{Rank, Ranked};
use crate::policy::{ParameterDoc, PolicyKind, parameters};

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    resident_bonus: u8,
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters { resident_bonus: 1 }
    }
}

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "lfu",
    summary: "keeps the pages accessed in most of the last 64 periods in fast memory",
    source: "adaptive-migration-policy paper, section 3.1",
    parameters: &[ParameterDoc {
        name: "resident_bonus",
        default: "1",
        meaning: "accesses by which a page in fast memory counts as more frequent (0 to 255)",
    }],
    build: |value, _seed| {
        let p: Parameters = parameters("lfu", value)?;
        Ok(Box::new(Ranked::new(Rank::Frequency, p.resident_bonus)))
    },
};
