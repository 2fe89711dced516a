//! What `terrace watch` shows: lines made of scans; no terminal and no host.

use std::time::Duration;

use terrace_core::heat::{Heat, HeatBin};
use terrace_core::page::PageSize;
use terrace_core::scan::Scan;
use terrace_core::working_set::WorkingSet;
use terrace_linux::MOST_PAGES;
use terrace_results::HeatRow;

use crate::daemon::bytes;
use crate::terminal::cut;

/// Times that memory is counted by, with their names.
const TIMES: [(u64, &str); 4] = [(10, "10 s"), (60, "1 min"), (300, "5 min"), (1800, "30 min")];
/// Shares of the sampled accesses, in percent.
const SHARES: [u32; 4] = [50, 90, 95, 99];
/// From rarely to always accessed.
const SHADES: [char; 5] = [' ', '░', '▒', '▓', '█'];

/// What was seen so far.
pub struct View {
    name: String,
    period: Duration,
    set: WorkingSet,
    heat: Heat,
    periods: u64,
    lost: Option<String>,
    untracked_bytes: u64,
    /// Of it, what is beyond the bound on ranges.
    over_bound_bytes: u64,
    /// "at most " where a range may have been accessed although no sample shows it.
    at_most: &'static str,
}

impl View {
    /// Of a program with this name, in periods of this length.
    pub fn new(name: String, period: Duration) -> Self {
        View {
            name: name.chars().filter(|c| !c.is_control()).collect(),
            period,
            set: WorkingSet::default(),
            heat: Heat::new(PageSize::Huge),
            periods: 0,
            lost: None,
            untracked_bytes: 0,
            over_bound_bytes: 0,
            at_most: "",
        }
    }

    /// Of samples that are of a part of each range: untouched memory is an upper bound.
    pub fn of_parts(self, is_of_parts: bool) -> Self {
        View { at_most: if is_of_parts { "at most " } else { "" }, ..self }
    }

    /// The program's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes in a period, with memory in bytes that is not tracked, and of it what is beyond the bound
    /// on ranges.
    pub fn observe(&mut self, scan: &Scan, untracked_bytes: u64, over_bound_bytes: u64) {
        self.set.observe(scan);
        self.heat.add(scan);
        self.periods = scan.period + 1;
        (self.untracked_bytes, self.over_bound_bytes) = (untracked_bytes, over_bound_bytes);
    }

    /// Takes in that something was not seen.
    pub fn lost(&mut self, reason: String) {
        self.lost = Some(reason);
    }

    fn elapsed(&self) -> Duration {
        self.period.mul_f64(self.periods as f64)
    }

    fn within(&self, seconds: u64) -> u64 {
        self.set.accessed_within(Duration::from_secs(seconds), self.period)
    }

    /// Times of the table that have passed.
    fn times(&self) -> impl Iterator<Item = (u64, &'static str)> {
        let elapsed = self.elapsed();
        TIMES.into_iter().filter(move |(s, _)| Duration::from_secs(*s) <= elapsed)
    }

    /// Its state, in a line.
    pub fn line(&self) -> String {
        let now = bytes(self.set.accessed_within(self.period, self.period));
        let mut text = format!("{:>5} s  accessed {now} now", self.elapsed().as_secs());
        for (seconds, name) in self.times() {
            text += &format!(", {} in {name}", bytes(self.within(seconds)));
        }
        text + &format!(" of {}", bytes(self.set.total_bytes()))
    }

    /// All of it, in lines.
    pub fn summary(&self) -> Vec<String> {
        if self.periods == 0 {
            return vec![format!(
                "{}: nothing was observed; {}",
                self.name,
                self.lost.as_deref().unwrap_or(
                    "it has no memory in ranges of 2 MB, or ended before the first period"
                )
            )];
        }
        let total = self.set.total_bytes();
        let mut lines = vec![format!(
            "{}: {} in ranges of 2 MB, watched for {} s",
            self.name,
            bytes(total),
            self.elapsed().as_secs()
        )];
        let now = bytes(self.set.accessed_within(self.period, self.period));
        let mut accessed = vec![format!("{now} in the last period")];
        let within = |(s, name)| format!("{} in {name}", bytes(self.within(s)));
        accessed.extend(self.times().map(within));
        lines.push(format!("  accessed   {}", accessed.join(", ")));
        let idle: Vec<_> = self
            .times()
            .filter_map(|(s, name)| {
                let idle = self.set.idle_for(Duration::from_secs(s), self.period)?;
                Some(format!("{} for {name}", bytes(idle)))
            })
            .collect();
        if !idle.is_empty() {
            lines.push(format!("  untouched  {}{}", self.at_most, idle.join(", ")));
        }
        let spread: Vec<_> = SHARES
            .iter()
            .map(|&share| {
                let size = self.set.bytes_of_accesses(f64::from(share) / 100.0);
                format!("{share} % in {}", bytes(size))
            })
            .collect();
        lines.push(format!("  accesses   {} (of those sampled)", spread.join(", ")));
        lines.push(format!("  allows     {}", self.advice()));
        if self.over_bound_bytes > 0 {
            lines.push(format!(
                "  not seen   {} beyond {}, the most that is watched of a program",
                bytes(self.over_bound_bytes),
                bytes(MOST_PAGES * PageSize::Huge.bytes())
            ));
        }
        let others_bytes = self.untracked_bytes.saturating_sub(self.over_bound_bytes);
        if others_bytes > 0 {
            lines.push(format!(
                "  not seen   {} in mappings that are smaller than a range, of files, or locked",
                bytes(others_bytes)
            ));
        }
        if let Some(reason) = &self.lost {
            lines.push(format!("  gaps       {reason}"));
        }
        lines
    }

    /// What that would allow.
    fn advice(&self) -> String {
        let total = self.set.total_bytes();
        let hot = self.set.bytes_of_accesses(0.99);
        let longest = self.times().last();
        let idle = longest.and_then(|(s, name)| {
            Some((self.set.idle_for(Duration::from_secs(s), self.period)?, name))
        });
        match idle {
            Some((idle, name)) if idle > 0 => format!(
                "{}{} of {} was untouched for {name} and could be in slow memory; fast memory of {} \
                 would have served 99 % of the sampled accesses",
                self.at_most,
                bytes(idle),
                bytes(total),
                bytes(hot)
            ),
            _ => format!(
                "fast memory of {} of {} would have served 99 % of the sampled accesses; watch \
                 longer to see what stays untouched",
                bytes(hot),
                bytes(total)
            ),
        }
    }

    /// The bins of the heat map as rows of a table.
    pub fn heat_rows(&self) -> Vec<HeatRow> {
        let row = |b: HeatBin| HeatRow {
            run: String::new(),
            group: self.name.clone(),
            space: b.space.into(),
            address: b.address,
            size_bytes: b.size_bytes,
            period: b.period,
            periods: b.periods,
            accessed_share: b.accessed_share,
            fast_share: b.fast_share,
        };
        self.heat.bins().map(row).collect()
    }

    /// The lines of a screen of this width and height.
    pub fn screen(&self, (width, height): (u16, u16)) -> Vec<String> {
        let mut lines: Vec<String> = self.summary().iter().map(|l| cut(l, width)).collect();
        lines.push(String::new());
        let rows = usize::from(height).saturating_sub(lines.len() + 3);
        lines.extend(self.heat_lines(usize::from(width), rows).iter().map(|l| cut(l, width)));
        lines.truncate(usize::from(height.max(2)) - 1);
        lines.push(cut("q: end", width));
        lines
    }

    /// The heat map as text: a row for a range of addresses, a column for a stretch of time.
    fn heat_lines(&self, width: usize, height: usize) -> Vec<String> {
        const LABEL: usize = 20;
        let bins: Vec<HeatBin> = self.heat.bins().collect();
        let mut places: Vec<(u32, u64)> = bins.iter().map(|b| (b.space, b.address)).collect();
        places.dedup();
        places.sort_unstable();
        places.dedup();
        let columns = width.saturating_sub(LABEL + 1).min(self.periods as usize);
        let rows = height.saturating_sub(1).min(places.len());
        if rows == 0 || columns == 0 {
            return Vec::new();
        }
        let mut sums = vec![(0.0, 0.0); rows * columns];
        for bin in &bins {
            let Ok(place) = places.binary_search(&(bin.space, bin.address)) else { continue };
            let row = place * rows / places.len();
            let column =
                |period: u64| (period as usize * columns / self.periods as usize).min(columns - 1);
            for column in column(bin.period)..=column(bin.period + bin.periods - 1) {
                let (accessed, weight) = &mut sums[row * columns + column];
                *accessed += bin.accessed_share * bin.size_bytes as f64;
                *weight += bin.size_bytes as f64;
            }
        }
        let mut lines = vec![format!(
            "{:LABEL$} {}",
            "address (process)",
            format_args!("time, {} s in all", self.elapsed().as_secs())
        )];
        for row in 0..rows {
            let (space, address) = places[(row * places.len()).div_ceil(rows)];
            let shades = sums[row * columns..][..columns].iter().map(|(accessed, weight)| {
                let share = if *weight > 0.0 { accessed / weight } else { 0.0 };
                SHADES[(share * (SHADES.len() - 1) as f64).ceil() as usize]
            });
            lines.push(format!(
                "{:>LABEL$} {}",
                format!("{address:#x} ({space})"),
                shades.collect::<String>()
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use terrace_core::bits::PageBits;
    use terrace_core::page::{Extent, Layout, SpaceId};

    use super::*;

    /// A gigabyte of which the first tenth is always accessed, and all of it at the start.
    fn observed(periods: u64) -> View {
        let extent = Extent { space: SpaceId(7), start: 0x7f00_0000_0000, pages: 500 };
        let layout = Arc::new(Layout::new(PageSize::Huge, vec![extent]).unwrap());
        let mut view = View::new("redis\u{1b}[2J (process 7)".to_owned(), Duration::from_secs(1));
        for period in 0..periods {
            let mut accessed = PageBits::new(500);
            accessed.set_range(0..if period == 0 { 500 } else { 50 }, true);
            let scan = Scan::new(period, Arc::clone(&layout), accessed, PageBits::new(500));
            view.observe(&scan, 3 << 20, 0);
        }
        view
    }

    #[test]
    fn the_summary_says_what_is_used_what_is_not_and_what_that_allows() {
        let text = observed(400).summary().join("\n");
        for part in [
            "redis[2J (process 7): 1000M in ranges of 2 MB, watched for 400 s",
            "accessed   100M in the last period, 100M in 10 s, 100M in 1 min, 100M in 5 min",
            "untouched  900M for 10 s, 900M for 1 min, 900M for 5 min",
            // 47 of 500 pages: the first period has accesses to all.
            "90 % in 94.0M",
            "900M of 1000M was untouched for 5 min and could be in slow memory",
            "not seen   3.0M",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        let text = observed(5).summary().join("\n");
        assert!(!text.contains("untouched  ") && text.contains("watch longer"), "{text}");
        let text = observed(400).of_parts(true).summary().join("\n");
        assert!(text.contains("untouched  at most 900M for 10 s"), "{text}");
        assert!(text.contains("at most 900M of 1000M was untouched for 5 min"), "{text}");
        let nothing = View::new("x".into(), Duration::from_secs(1)).summary();
        assert!(nothing[0].contains("nothing was observed"), "{nothing:?}");
    }

    #[test]
    fn memory_beyond_the_bound_has_a_line_of_its_own() {
        let mut view = observed(5);
        let extent = Extent { space: SpaceId(7), start: 0x7f00_0000_0000, pages: 500 };
        let layout = Arc::new(Layout::new(PageSize::Huge, vec![extent]).unwrap());
        let scan = Scan::new(5, layout, PageBits::new(500), PageBits::new(500));
        view.observe(&scan, (20 << 30) + (3 << 20), 20 << 30);
        let text = view.summary().join("\n");
        assert!(text.contains("not seen   20.0G beyond 512G, the most that is watched"), "{text}");
        assert!(text.contains("not seen   3.0M in mappings that are smaller"), "{text}");
    }

    #[test]
    fn the_screen_shades_addresses_by_use_and_fits() {
        let view = observed(60);
        let lines = view.screen((100, 30));
        let heat: Vec<_> = lines.iter().filter(|l| l.contains("0x7f")).collect();
        assert!(heat.len() > 10, "{lines:#?}");
        let first = heat[0];
        assert!(first.ends_with('█') && first.contains("0x7f0000000000 (7)"), "{first}");
        assert!(heat.last().unwrap().trim_end().ends_with('█'), "all was accessed at first");
        assert!(heat.last().unwrap().ends_with(' '), "and then not");
        for (width, height) in [(1, 1), (10, 3), (200, 5), (20, 100), (0, 0)] {
            let lines = view.screen((width, height));
            assert!(lines.len() <= usize::from(height.max(2)), "{width} x {height}");
            assert!(lines.iter().all(|l| l.chars().count() <= usize::from(width)));
        }
        assert!(!view.heat_rows().is_empty());
    }
}
