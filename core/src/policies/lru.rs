//! LRU: the most recently accessed pages are in fast memory (adaptive-migration-policy paper,
//! section 3.1: "pages with the lowest ages are considered hot"; `docs/coverage.md`, A2).
//!
//! Where the paper is silent:
//! - Pages of equal age rank equally, so those in fast memory stay. By default a page in
//!   fast memory counts as one period younger: two pages accessed in turn, period by period, do
//!   not trade places for ever, while a working set that rotates every few periods is followed,
//!   a period late at most.
//! - A page that was never accessed is not promoted, not even into free room.
//! - The authors' kernel sorts a list that begins with the pages of slow memory, stably and without a
//!   bonus (`page-migration/amp.c` of its published source): of equally hot pages those in slow memory
//!   go up, and where all pages are accessed all of them move in every period. `ties = "list"` does so.

use super::ranked::{Rank, Ranked, Ties};
use crate::declare_parameters;
use crate::policy::{PolicyKind, parameters};

declare_parameters! {
    struct Parameters {
        resident_bonus: u8 = 1, from 0 to 255 => "periods of age by which a page in fast memory counts as younger";
        ties: String = "resident".to_owned(), written "\"resident\"", one of ["resident", "list"]
            => "which of equally hot pages is in fast memory: the one that is there, or the one that is \
                not, as in the authors' kernel, without a bonus (\"resident\" or \"list\")";
    }
}

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "lru",
    summary: "keeps the most recently accessed pages in fast memory",
    advice: "for working sets that come and go as a whole; one pass over all memory displaces everything",
    source: "adaptive-migration-policy paper, section 3.1",
    parameters: Parameters::DOCS,
    build: |value, _seed| {
        let p: Parameters = parameters("lru", value)?;
        Ok(Box::new(Ranked::new(Rank::Recency, Ties::new(&p.ties, p.resident_bonus))))
    },
};
