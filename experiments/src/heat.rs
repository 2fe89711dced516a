//! Heat maps as rows of their table.

pub use terrace_core::heat::Heat;
use terrace_results::HeatRow;

/// The rows of a run's group.
pub fn rows(heat: &Heat, run: &str, group: &str) -> Vec<HeatRow> {
    let row = |bin: terrace_core::heat::HeatBin| HeatRow {
        run: run.to_owned(),
        group: group.to_owned(),
        space: bin.space.into(),
        address: bin.address,
        size_bytes: bin.size_bytes,
        period: bin.period,
        periods: bin.periods,
        accessed_share: bin.accessed_share,
        fast_share: bin.fast_share,
    };
    heat.bins().map(row).collect()
}
