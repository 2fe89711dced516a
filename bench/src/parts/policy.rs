//! The time that policies take for one period: scan update, features, shadow placement, plan.
//!
//! The group is driven as on a real machine: every period brings a new scan, and the plan before
//! was carried out. A quarter of the pages is hot (accessed in 15 of 16 periods), a quarter is
//! accessed by four sets in turn for four periods each, a quarter now and then (1 in 8), a quarter
//! hardly ever (1 in 256); the four kinds alternate every 64 pages. Half the pages fit in fast
//! memory. Before anything is timed the group runs for more than the 64 periods of a page's
//! history; scans are made, plans carried out and memory faulted in outside the timed region.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use terrace_core::bits::PageBits;
use terrace_core::page::{Layout, PageSize};
use terrace_core::policy::{self, Policy};
use terrace_core::scan::{Budget, Scan};

use super::Part;
use crate::measure::{Report, median};

pub const PART: Part = Part {
    name: "policy",
    measures: "one period of each policy over up to 1 TiB, bytes a page, linearity",
    run,
};

const TIB: u64 = 1 << 40;
const GIB: u64 = 1 << 30;

fn run(report: &mut Report) -> anyhow::Result<()> {
    for name in ["amp", "lru", "lfu", "random", "lists"] {
        let m = &measure(name, PageSize::Huge, &[TIB], 96)?[0];
        let figure = format!("policy.{name}.huge_1tib_ms");
        report.add(&figure, m.period_ms, "ms", &m.conditions())?;
    }
    // Over base pages, where 1 GiB has 262,144 of them and fixed costs are small.
    let sizes = [GIB, 4 * GIB, 16 * GIB, 64 * GIB, 256 * GIB, TIB];
    let base = measure("amp", PageSize::Base, &sizes, 16)?;
    let largest = &base[sizes.len() - 1];
    report.add("policy.amp.base_1tib_ms", largest.period_ms, "ms", &largest.conditions())?;
    report.add("policy.bytes_per_page", largest.bytes_per_page, "byte", &largest.conditions())?;
    linearity(report, "policy.amp.linearity_ratio_max", &base)?;
    let huge = measure("amp", PageSize::Huge, &sizes, 96)?;
    linearity(report, "policy.amp.huge_linearity_ratio_max", &huge)?;
    granularity(report)
}

/// The granularity policy over base pages: a period of a large group at the paper's 4,096 pages a
/// scan, and the time per scanned page when scans become longer.
fn granularity(report: &mut Report) -> anyhow::Result<()> {
    let of = |size_bytes: u64, scan_pages: u64, periods| -> anyhow::Result<Measurement> {
        let parameters = serde_json::json!({ "scan_pages": scan_pages });
        let all = measure_with("granularity", &parameters, PageSize::Base, &[size_bytes], periods)?;
        Ok(all.into_iter().next().expect("one size, one measurement"))
    };
    let whole = of(TIB, 4096, 16)?;
    report.add("policy.granularity_base_1tib_ms", whole.period_ms, "ms", &whole.conditions())?;
    // Subtract the time of a period without scans: features and accessed bits of all pages.
    let idle_ms = of(16 * GIB, 1, 32)?.period_ms;
    let per_page = [1 << 14, 1 << 16, 1 << 18, 1 << 20].map(|scan_pages| {
        let measured = of(16 * GIB, scan_pages, 32)?;
        // Both scans cover the same number of pages.
        Ok((measured.period_ms - idle_ms) * 1e6 / (2 * scan_pages) as f64)
    });
    let per_page = per_page.into_iter().collect::<anyhow::Result<Vec<f64>>>()?;
    let conditions = format!(
        "CPU time; 16 GiB of base pages, mixed pattern, both scans, choosing and planning; at \
         scans of 2^14, 2^16, 2^18 and 2^20 pages: {per_page:.2?} ns"
    );
    let most = per_page.iter().copied().fold(0.0, f64::max);
    report.add("policy.granularity_scanned_page_ns", per_page[0], "ns", &conditions)?;
    report.add("policy.granularity_linearity_ratio_max", most / per_page[0], "ratio", &conditions)
}

/// The maximum of the time per page at any size over the time per page at the smallest. A ratio
/// above 1.2 means that time grows faster than pages, by more than 20 %; the minimum ratio,
/// reported among the conditions, is below 1 where fixed costs count at the smallest size.
fn linearity(report: &mut Report, name: &str, sizes: &[Measurement]) -> anyhow::Result<()> {
    let per_page: Vec<f64> = sizes.iter().map(Measurement::ns_per_page).collect();
    let ratios: Vec<f64> = per_page.iter().map(|ns| ns / per_page[0]).collect();
    let most = ratios.iter().copied().fold(0.0, f64::max);
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let each: Vec<String> = sizes
        .iter()
        .zip(&per_page)
        .map(|(m, ns)| format!("{} GiB {ns:.2}", m.size_bytes / GIB))
        .collect();
    let conditions = format!(
        "time per page over that at 1 GiB, the greatest of all sizes (the least: {least:.3}); \
         ns per {} page: {}",
        match sizes[0].page_size {
            PageSize::Base => "base",
            PageSize::Huge => "huge",
        },
        each.join(", "),
    );
    report.add(name, most, "ratio", &conditions)
}

struct Measurement {
    page_size: PageSize,
    size_bytes: u64,
    timed_periods: usize,
    /// Medians over the timed periods.
    period_ms: f64,
    moved_pages: f64,
    bytes_per_page: f64,
}

/// Measures one period of a policy over groups of these sizes. The sizes take turns, period by
/// period, so that other load on the machine affects all of them.
fn measure(
    name: &str,
    page_size: PageSize,
    sizes_bytes: &[u64],
    timed_periods: usize,
) -> anyhow::Result<Vec<Measurement>> {
    measure_with(name, &Value::Null, page_size, sizes_bytes, timed_periods)
}

/// The same for a policy with parameters.
fn measure_with(
    name: &str,
    parameters: &Value,
    page_size: PageSize,
    sizes_bytes: &[u64],
    timed_periods: usize,
) -> anyhow::Result<Vec<Measurement>> {
    let mut groups = Vec::new();
    for size_bytes in sizes_bytes {
        let pages = size_bytes / page_size.bytes();
        groups.push(Group::new(policy::build(name, parameters, 1)?, page_size, pages));
    }
    for group in &mut groups {
        for _ in 0..WARM_PERIODS {
            group.period();
        }
    }
    let mut periods = vec![Vec::new(); groups.len()];
    for _ in 0..timed_periods {
        for (group, periods) in groups.iter_mut().zip(&mut periods) {
            periods.push(group.period());
        }
    }
    let measurements = groups.iter().zip(periods).zip(sizes_bytes);
    Ok(measurements
        .map(|((group, periods), &size_bytes)| {
            let (times, moves) = periods.into_iter().unzip();
            Measurement {
                page_size,
                size_bytes,
                timed_periods,
                period_ms: median(times),
                moved_pages: median(moves),
                bytes_per_page: group.policy.metadata_bytes() as f64 / group.layout.pages() as f64,
            }
        })
        .collect())
}

impl Measurement {
    fn pages(&self) -> u64 {
        self.size_bytes / self.page_size.bytes()
    }

    fn ns_per_page(&self) -> f64 {
        self.period_ms * 1e6 / self.pages() as f64
    }

    fn conditions(&self) -> String {
        format!(
            "CPU time; {} pages of {} KiB, half in fast memory, mixed pattern (hot, strided, rare, \
             cold), median of {} periods after {WARM_PERIODS}, {} pages moved a period",
            self.pages(),
            self.page_size.bytes() / 1024,
            self.timed_periods,
            self.moved_pages,
        )
    }
}

/// Longer than a page's history.
const WARM_PERIODS: u64 = 66;

/// Processor time of this thread: on a shared machine, the policy's cost without its waits.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// A group of pages whose moves all succeed.
struct Group {
    policy: Box<dyn Policy>,
    layout: Arc<Layout>,
    fast: PageBits,
    budget: Budget,
    random: SplitMix,
    period: u64,
}

impl Group {
    fn new(policy: Box<dyn Policy>, page_size: PageSize, pages: u64) -> Self {
        let layout = Arc::new(Layout::contiguous(page_size, pages));
        let mut fast = PageBits::new(pages as usize);
        fast.set_range(0..pages as usize / 2, true);
        let budget = Budget::fast(pages / 2);
        Group { policy, layout, fast, budget, random: SplitMix(1), period: 0 }
    }

    /// Lets a period pass. Returns the policy's time in ms, and the pages moved.
    fn period(&mut self) -> (f64, f64) {
        let accessed = self.accessed();
        let layout = Arc::clone(&self.layout);
        let scan = Scan::new(self.period, layout, accessed, self.fast.clone());
        self.period += 1;
        let start = cpu_time();
        let decision = self.policy.decide(&scan, &self.budget);
        let took = cpu_time() - start;
        decision.plan.apply(&self.layout, &mut self.fast);
        let (up, down) = decision.plan.pages(self.layout.page_size());
        (took.as_secs_f64() * 1e3, (up + down) as f64)
    }

    /// The accessed bits of this period, 64 pages at a time.
    fn accessed(&mut self) -> PageBits {
        let pages = self.layout.pages();
        let set = self.period / 4 % 4;
        let mut all = |words: u32| (0..words).fold(!0, |bits, _| bits & self.random.next());
        let word = |word: u64| match word % 4 {
            0 => !all(4),
            1 if word / 4 % 4 == set => !all(6),
            1 => 0,
            2 => all(3),
            _ => all(8),
        };
        PageBits::from_words((0..pages.div_ceil(64) as u64).map(word).collect(), pages)
    }
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): enough for an access pattern.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
