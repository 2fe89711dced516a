//! Kind "homogeneity": of the base pages of a huge page that is accessed within a window, the share
//! that is accessed too, from profiles. Only profiles are run.
//!
//! Rows are programs (groups of one); columns set `window_ms`, the window in time with all memory
//! fast, which ends with an interval of the profile. The measure is `huge_page_access_ratio`, a mean over windows and accessed huge pages.

use anyhow::Context;
use terrace_core::bits::PageBits;
use terrace_core::page::Layout;
use terrace_core::remap::Remap;
use terrace_experiments::run::Events;
use terrace_recordings::profile::ProfileReader;
use toml::Value;

use super::runs::with_profiles;
use super::{Job, Kind};
use crate::data::Data;

pub(super) const KIND: Kind = Kind {
    name: "homogeneity",
    summary: "how much of an accessed huge page is accessed, from profiles",
    has_seed: true,
    make,
};

const HUGE: u64 = 2 << 20;

fn make(job: &Job<'_>, events: &mut dyn Events) -> anyhow::Result<Data> {
    let mut data = job.empty();
    anyhow::ensure!(job.figure.profile.is_some(), "kind 'homogeneity': expected a profile");
    let cells = job.cells();
    let mut windows_ps = Vec::new();
    let mut tables = Vec::new();
    for cell in &cells {
        let mut settings = cell.settings.clone();
        let window_ms = settings
            .remove("window_ms")
            .and_then(|v| v.as_integer())
            .and_then(|ms| u64::try_from(ms).ok().filter(|&ms| ms > 0))
            .with_context(|| format!("column '{}': expected window_ms from 1 on", cell.column))?;
        windows_ps.push(window_ms.saturating_mul(1_000_000_000));
        tables.push(settings);
    }
    let tables = with_profiles(job, tables.into_iter(), events)?;
    for ((cell, settings), window_ps) in cells.iter().zip(tables).zip(windows_ps) {
        let path = settings
            .get("groups")
            .and_then(|groups| groups.get(0)?.get("workload")?.get("path"))
            .and_then(Value::as_str)
            .with_context(|| format!("row '{}': expected a group with a program", cell.row))?;
        let mut reader = ProfileReader::open(std::path::Path::new(path))?;
        let mut ratios = Ratios::default();
        let mut seen: Option<(Layout, PageBits, u64)> = None;
        while let Some(interval) = reader.next_interval()? {
            seen = Some(match seen {
                // Programs map memory as they go: remaining pages keep their bits.
                Some((layout, bits, ps)) => {
                    let mut bits = Remap::between(&layout, &interval.layout).bits(&bits);
                    bits.or_with(&interval.accessed);
                    ((*interval.layout).clone(), bits, ps + interval.fast_ps)
                }
                None => ((*interval.layout).clone(), interval.accessed.clone(), interval.fast_ps),
            });
            if let Some((layout, bits, _)) = seen.take_if(|(_, _, ps)| *ps >= window_ps) {
                ratios.window(&layout, &bits);
            }
        }
        if let Some((layout, bits, _)) = seen {
            ratios.window(&layout, &bits);
        }
        if let Some(mean) = ratios.mean() {
            data.put(&cell.row, &cell.column, &job.figure.measures[0], mean);
        }
    }
    Ok(data)
}

/// The ratios of huge pages so far.
#[derive(Debug, Default)]
struct Ratios {
    sum: f64,
    count: u64,
}

impl Ratios {
    fn window(&mut self, layout: &Layout, accessed: &PageBits) {
        layout.regions(HUGE, |pages| {
            let all = pages.len();
            let touched = pages.filter(|&page| accessed.get(page)).count();
            // Partial huge pages at the ends of areas do not count.
            if touched > 0 && all as u64 * layout.page_size().bytes() == HUGE {
                self.sum += touched as f64 / all as f64;
                self.count += 1;
            }
        });
    }

    fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::page::PageSize;

    #[test]
    fn the_share_is_of_accessed_huge_pages_only() {
        let layout = Layout::contiguous(PageSize::Base, 3 * 512);
        let mut accessed = PageBits::new(layout.pages());
        (0..512).for_each(|page| accessed.set(page, true));
        accessed.set(512, true);
        let mut ratios = Ratios::default();
        ratios.window(&layout, &accessed);
        let mean = ratios.mean().unwrap();
        assert!((mean - (1.0 + 1.0 / 512.0) / 2.0).abs() < 1e-12, "{mean}");
    }
}
