//! Results to make reports of: small simulations of policies on invented workloads, in the form
//! that experiments write, and the files of them.
#![allow(dead_code)] // each test file uses a part

use std::path::Path;

use terrace_report::Results;
use terrace_results::{
    HeatRow, KernelCauseRow, KernelThreadRow, PeriodRow, RunRow, Table, TableWriter,
};

pub const POLICIES: [&str; 6] = ["first-touch", "lru", "lfu", "random", "lists", "amp"];
const PAGES: usize = 384;
const FAST: usize = PAGES / 2;

/// A generator of pseudo-random numbers that are the same everywhere (splitmix64).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Which pages a workload accesses in a period.
#[derive(Clone, Copy)]
pub enum Workload {
    /// A hot set that moves on now and then.
    Zipf,
    /// A loop over more than fits.
    Loop,
    /// A stable hot set beneath a scan.
    Scan,
}

impl Workload {
    fn name(self) -> &'static str {
        match self {
            Workload::Zipf => "redis",
            Workload::Loop => "loop",
            Workload::Scan => "scan",
        }
    }

    fn accessed(self, period: u64, numbers: &mut Numbers) -> Vec<bool> {
        (0..PAGES)
            .map(|page| {
                let chance = match self {
                    Workload::Zipf => {
                        let first = match period {
                            0..=19 => 180,
                            20..=39 => 60,
                            _ => 230,
                        };
                        let far = page.abs_diff(first + 60).min(page + PAGES - first - 60);
                        0.97 * (-(far as f64 / 70.0).powi(2)).exp() + 0.04
                    }
                    Workload::Loop => {
                        let at = (period as usize * 40) % PAGES;
                        let ahead = (page + PAGES - at) % PAGES;
                        if ahead < 90 { 0.95 } else { 0.02 }
                    }
                    Workload::Scan => {
                        let at = (period as usize * 17) % PAGES;
                        if page % 3 == 0 {
                            0.95
                        } else if (page + PAGES - at) % PAGES < 30 {
                            0.9
                        } else {
                            0.03
                        }
                    }
                };
                numbers.share() < chance
            })
            .collect()
    }
}

/// Adds one group under one policy to the results.
pub fn simulate(
    results: &mut Results,
    (run, policy, group): (&str, &str, &str),
    workload: Workload,
    periods: u64,
) {
    let mut numbers =
        Numbers(run.bytes().chain(group.bytes()).fold(7, |h, b| h.wrapping_mul(31) + u64::from(b)));
    let mut access = Numbers(99);
    let mut fast: Vec<bool> = (0..PAGES).map(|p| p < FAST).collect();
    let mut age = vec![0u32; PAGES];
    let mut uses = vec![0u32; PAGES];
    let (mut sums, mut promoted, mut demoted, mut busy, mut absent) = ((0, 0), 0, 0, 0, 0);
    let (mut stabilities, mut ratios) = (0.0, 0.0);
    let mut chosen: Vec<&str> = Vec::new();
    let mut before = fast.clone();
    for period in 0..periods {
        let accessed = workload.accessed(period, &mut access);
        for page in 0..PAGES {
            age[page] = if accessed[page] { 0 } else { age[page] + 1 };
            uses[page] = uses[page] * 15 / 16 + if accessed[page] { 64 } else { 0 };
        }
        let applied = match (policy, workload) {
            ("amp", Workload::Zipf) => ["random", "lru", "lfu", "lru", "lfu", "lfu"]
                [(period as usize / 4 + usize::from(period > 25)).min(5)],
            ("amp", Workload::Loop) => {
                if period < 5 {
                    "lru"
                } else {
                    "random"
                }
            }
            ("amp", Workload::Scan) => {
                if period < 8 {
                    "lru"
                } else {
                    "lfu"
                }
            }
            _ => policy,
        };
        chosen.push(applied);
        let count = |bits: &dyn Fn(usize) -> bool| (0..PAGES).filter(|p| bits(*p)).count() as u64;
        let hits = count(&|p| accessed[p] && fast[p]);
        let seen = count(&|p| accessed[p]);
        let stability = count(&|p| fast[p] == before[p]) as f64 / PAGES as f64;
        before.clone_from(&fast);
        for (first, share) in [(0usize, 128usize), (128, 128), (256, 128)]
            .into_iter()
            .flat_map(|(f, n)| (f..f + n).step_by(2).map(|p| (p, 2)))
        {
            let of = |bits: &Vec<bool>| {
                (first..first + share).filter(|p| bits[*p]).count() as f64 / share as f64
            };
            let base = if first < 256 { 0x7f3a_4000_0000 } else { 0x7f3b_9000_0000 };
            results.heat.push(HeatRow {
                run: run.to_owned(),
                group: group.to_owned(),
                space: 0,
                address: base + (first as u64 % 256) * (2 << 20),
                size_bytes: (share as u64) * (2 << 20),
                period,
                periods: 1,
                accessed_share: of(&accessed),
                fast_share: of(&fast),
            });
        }
        // The pages that the policy places in fast memory, best first.
        let mut wanted: Vec<usize> = (0..PAGES).collect();
        match applied {
            "lru" => wanted.sort_by_key(|p| (age[*p], !fast[*p])),
            "lfu" => wanted.sort_by_key(|p| (u32::MAX - uses[*p], !fast[*p])),
            "lists" => wanted.sort_by_key(|p| (age[*p].min(3), !fast[*p])),
            "random" => {
                let rank: Vec<u64> = (0..PAGES)
                    .map(|p| {
                        if accessed[p] && !fast[p] && numbers.share() < 0.1 {
                            0
                        } else if fast[p] {
                            1 + numbers.next() % 99
                        } else {
                            200
                        }
                    })
                    .collect();
                wanted.sort_by_key(|p| rank[*p]);
            }
            _ => wanted.sort_by_key(|p| !fast[*p]),
        }
        let mut target = vec![false; PAGES];
        wanted.iter().take(FAST).for_each(|p| target[*p] = true);
        let up: Vec<usize> = (0..PAGES).filter(|p| target[*p] && !fast[*p]).take(48).collect();
        let down: Vec<usize> =
            (0..PAGES).filter(|p| !target[*p] && fast[*p]).take(up.len()).collect();
        let mut row = PeriodRow {
            run: run.to_owned(),
            experiment: "redis-zipf".to_owned(),
            machine: "vm".to_owned(),
            policy: policy.to_owned(),
            group: group.to_owned(),
            period,
            time_ms: period * 1000,
            pages: PAGES as u64,
            accessed_pages: seen,
            fast_pages: FAST as u64,
            fast_accessed_pages: hits,
            hit_ratio: hits as f64 / seen.max(1) as f64,
            accessed_ratio: seen as f64 / PAGES as f64,
            stability,
            applied: applied.to_owned(),
            planned_promotions: up.len() as u64,
            planned_demotions: down.len() as u64,
            tracker_cpu_ns: Some(400_000),
            ..PeriodRow::default()
        };
        for (u, d) in up.into_iter().zip(down) {
            if numbers.share() < 0.03 {
                row.failed_busy += 1;
                row.failed_absent += u64::from(numbers.share() < 0.1);
            } else {
                (fast[u], fast[d]) = (true, false);
                row.promoted_pages += 1;
                row.demoted_pages += 1;
            }
        }
        if policy == "lists" && period == 33 {
            row.lost_periods = 2;
        }
        sums = (sums.0 + hits, sums.1 + seen);
        promoted += row.promoted_pages;
        demoted += row.demoted_pages;
        busy += row.failed_busy;
        absent += row.failed_absent;
        stabilities += stability;
        ratios += row.accessed_ratio;
        results.periods.push(row);
    }
    let most = |name: &&str| chosen.iter().filter(|c| *c == name).count();
    let main = chosen.iter().max_by_key(|name| most(name)).copied().unwrap_or(policy);
    let hit_ratio = sums.0 as f64 / sums.1.max(1) as f64;
    results.runs.push(RunRow {
        run: run.to_owned(),
        experiment: "redis-zipf".to_owned(),
        machine: "vm".to_owned(),
        kernel: Some("6.12.48+deb13-amd64".to_owned()),
        policy: policy.to_owned(),
        parameters: if policy == "amp" {
            r#"{"window_periods": 8, "warmup_periods": 3}"#
        } else {
            "{}"
        }
        .to_owned(),
        group: group.to_owned(),
        workload: workload.name().to_owned(),
        page_size_bytes: 2 << 20,
        period_ms: 1000,
        seed: 42,
        fast_ratio: 0.5,
        periods,
        lost_periods: if policy == "lists" { 2 } else { 0 },
        pages_max: PAGES as u64,
        hit_ratio,
        accessed_ratio: ratios / periods as f64,
        stability: stabilities / periods as f64,
        promoted_pages: promoted,
        demoted_pages: demoted,
        failed_busy: busy,
        failed_absent: absent,
        applied_main: main.to_owned(),
        applied_main_share: most(&main) as f64 / periods as f64,
        tracker_cpu_ms: Some(24.0 + promoted as f64 / 100.0),
        daemon_cpu_ms: Some(31.0 + promoted as f64 / 9.0),
        operations: Some((1_000_000.0 * hit_ratio) as u64),
        operations_per_s: Some(18_000.0 + 9_000.0 * hit_ratio - promoted as f64 / 3.0),
        duration_ms: Some(60_212.0),
        checksum_ok: Some(true),
        emulated: true,
        ..RunRow::default()
    });
}

/// Six policies, one group, sixty periods.
pub fn six_policies() -> Results {
    let mut results = Results::default();
    for policy in POLICIES {
        simulate(&mut results, (policy, policy, "redis"), Workload::Zipf, 60);
    }
    results
}

/// What threads took in runs, in ms.
pub fn kernel_threads(times: &[(&str, &str, f64)]) -> Vec<KernelThreadRow> {
    let row = |&(run, thread, time_ms): &(&str, &str, f64)| KernelThreadRow {
        run: run.to_owned(),
        thread: thread.to_owned(),
        time_ms,
    };
    times.iter().map(row).collect()
}

/// What the kernel's time was for, in ms.
pub fn kernel_causes(times: &[(&str, &str, f64)]) -> Vec<KernelCauseRow> {
    let row = |&(run, cause, time_ms): &(&str, &str, f64)| KernelCauseRow {
        run: run.to_owned(),
        cause: cause.to_owned(),
        time_ms,
    };
    times.iter().map(row).collect()
}

/// Two groups at once under an adaptive policy, and the same under first-touch.
pub fn two_groups() -> Results {
    let mut results = Results::default();
    for (run, policy) in [("mix-first-touch", "first-touch"), ("mix-amp", "amp")] {
        simulate(&mut results, (run, policy, "frontend"), Workload::Scan, 80);
        simulate(&mut results, (run, policy, "batch"), Workload::Loop, 80);
    }
    for row in &mut results.runs {
        row.experiment = "mix-scan-loop".to_owned();
        row.machine = "sim".to_owned();
        (row.kernel, row.emulated) = (None, false);
        (row.operations, row.operations_per_s, row.duration_ms) = (None, None, None);
        (row.tracker_cpu_ms, row.daemon_cpu_ms, row.checksum_ok) = (None, None, None);
    }
    results
}

/// Writes results as an experiment does.
pub fn write(results: &Results, directory: &Path) {
    fn table<T: Table + Clone>(rows: &[T], directory: &Path) {
        let mut writer = TableWriter::create(directory).unwrap();
        rows.iter().for_each(|row| writer.push(row.clone()).unwrap());
        writer.finish().unwrap();
    }
    table(&results.runs, directory);
    table(&results.periods, directory);
    table(&results.heat, directory);
    if !results.kernel_threads.is_empty() {
        table(&results.kernel_threads, directory);
    }
    if !results.kernel_causes.is_empty() {
        table(&results.kernel_causes, directory);
    }
}
