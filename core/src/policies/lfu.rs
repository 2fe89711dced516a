//! LFU: the most frequently accessed pages are in fast memory (adaptive-migration-policy paper,
//! section 3.1: the bits set in the history of the last 64 periods; `docs/coverage.md`, A2).
//!
//! Where the paper is silent:
//! - Pages of equal frequency rank equally, so those in fast memory stay. By default a page
//!   in fast memory counts as accessed once more: the frequencies of two pages accessed equally
//!   often at different times differ by one at most, and do not make them trade places.
//! - A page without an access in its history is not promoted, not even into free room; one in
//!   fast memory has no bonus.
//! - Where accessed bits are sampled several times a period, frequency is the share of samples in
//!   which a page had been accessed, averaged over periods ([`crate::counts`]).
//! - The authors' kernel sorts a list that begins with the pages of slow memory, stably and without a
//!   bonus (`page-migration/amp.c` of its published source): of equally hot pages those in slow memory
//!   go up, and where all pages are accessed all of them move in every period. `ties = "list"` does so.

use super::ranked::{Rank, Ranked, Ties};
use crate::declare_parameters;
use crate::policy::{PolicyKind, parameters};

declare_parameters! {
    struct Parameters {
        resident_bonus: u8 = 1, from 0 to 255 => "accesses by which a page in fast memory counts as more frequent";
        ties: String = "resident".to_owned(), written "\"resident\"", one of ["resident", "list"]
            => "which of equally hot pages is in fast memory: the one that is there, or the one that is \
                not, as in the authors' kernel, without a bonus (\"resident\" or \"list\")";
    }
}

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "lfu",
    summary: "keeps the pages accessed in most of the last 64 periods in fast memory",
    advice: "for a hot set that stays, beside scans of the rest; slow to follow a new phase",
    source: "adaptive-migration-policy paper, section 3.1",
    parameters: Parameters::DOCS,
    build: |value, _seed| {
        let p: Parameters = parameters("lfu", value)?;
        Ok(Box::new(Ranked::new(Rank::Frequency, Ties::new(&p.ties, p.resident_bonus))))
    },
};
