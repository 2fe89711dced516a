//! Fleets whose needs are known beforehand: for tests, measurements and a first try.
//!
//! Each service is known by its shape: *hot* pages that every period accesses, *warm* pages of which
//! one in 2, 4 or 8 is accessed in a period, by turns, and for some services a *burst*: pages that
//! every fourth period accesses, all together. Hosts draw services, and their sizes and hot parts,
//! from a seed. What a service needs follows by arithmetic from that shape ([`Drawn::need_pages`]),
//! which neither reads histories nor plays them. What is written are histories as terraced saves them.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use rand_core::{RngCore, SeedableRng};
use rand_distr::{Distribution, Normal};
use rand_pcg::Pcg64Mcg;
use terrace_core::bits::PageBits;
use terrace_core::page::{Extent, Layout, PageSize, SpaceId};
use terrace_core::scan::{Budget, Scan};
use terrace_planner::memory::Machine;
use terrace_planner::recording::ASSUMED_MACHINE;
use terrace_recordings::period::{GroupHeader, HISTORY, Header, PeriodWriter};

/// Periods of a history, as many as terraced keeps.
pub const PERIODS: u64 = 64;
/// Latency of slow memory of the classes, in ns.
pub const SLOW_LATENCY_NS: f64 = 180.0;
/// Share of time that services wait for memory.
const MEMORY_SHARE: f64 = 0.4;
/// Every how many periods a burst comes.
const BURST_EVERY: u64 = 4;
/// Services with bursts, and the phase of each.
const BURST_PHASES: [u64; 4] = [0, 0, 0, 2];
/// Deviation of the hot part from host to host, as a share of the footprint.
const HOT_DEVIATION: f64 = 0.04;
/// Deviation of the logarithm of a footprint from host to host.
const SIZE_DEVIATION: f64 = 0.2;

/// A class of hosts: name, services on a host, memory of a host in GB, and by how much the hot part
/// of services is larger on it.
const CLASSES: [(&str, usize, u64, f64); 3] =
    [("small", 5, 6, -0.03), ("medium", 6, 8, 0.0), ("large", 7, 10, 0.03)];

/// What fleet to make.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Hosts in all, spread over three classes.
    pub hosts: usize,
    /// Services.
    pub services: usize,
    /// Seed.
    pub seed: u64,
}

/// A service of the fleet.
#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Slowdown that it can bear.
    pub slowdown: f64,
    pages: f64,
    hot: f64,
    warm: f64,
    every: u64,
    burst: f64,
    phase: u64,
}

/// A service as one host runs it, in pages of 2 MB.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// Position of the service.
    pub service: usize,
    /// Pages in all.
    pub pages: u64,
    hot: u64,
    warm: u64,
    every: u64,
    burst: u64,
    phase: u64,
    slowdown: f64,
}

/// What is true of a fleet at one latency.
#[derive(Debug, Clone, PartialEq)]
pub struct Truth {
    /// Share of its memory that each service needs, over all hosts there could be.
    pub services: Vec<f64>,
    /// Share of the memory of a host that 95 % of the hosts of each class need at most.
    pub classes: Vec<f64>,
}

/// The extra run time of a service with all of its memory slow, by the latency model.
pub fn growth(slow_latency_ns: f64) -> anyhow::Result<f64> {
    let fast_ns = Machine::preset(ASSUMED_MACHINE)?.fast.latency_ns;
    Ok(MEMORY_SHARE * (slow_latency_ns - fast_ns) / fast_ns)
}

impl Drawn {
    /// Pages that it needs in fast memory where all of it slow takes `growth` longer.
    pub fn need_pages(&self, growth: f64) -> f64 {
        let allowed = (self.slowdown - 1.0) / growth;
        let (hot, warm, burst) = (self.hot as f64, self.warm as f64, self.burst as f64);
        if self.burst > 0 {
            // In one period of four all pages, in the others the hot ones.
            let often = 1.0 / BURST_EVERY as f64;
            let rest = burst - allowed / often * (hot + burst);
            if rest >= 0.0 {
                return hot + rest;
            }
            // Of hot pages a part is slow too: every period then misses.
            let all_slow_burst = often * burst / (hot + burst);
            let per_page = (1.0 - often) / hot + often / (hot + burst);
            return (hot - (allowed - all_slow_burst) / per_page).max(0.0);
        }
        let accessed = hot + warm / self.every as f64;
        let misses = allowed * accessed;
        let of_warm = misses * self.every as f64;
        match of_warm <= warm {
            true => hot + warm - of_warm,
            false => (hot - (misses - warm / self.every as f64)).max(0.0),
        }
    }

    /// The pages that a period accesses. The hot ones are the last, so that what is touched first is
    /// not what is used most.
    fn accessed(&self, period: u64) -> PageBits {
        let mut bits = PageBits::new(self.pages as usize);
        let cold = self.pages - self.hot - self.warm - self.burst;
        let (warm_end, burst_end) = (cold + self.warm, cold + self.warm + self.burst);
        let turn = |page: &u64| (page + period).is_multiple_of(self.every);
        (cold..warm_end).filter(turn).for_each(|page| bits.set(page as usize, true));
        if self.burst > 0 && period % BURST_EVERY == self.phase {
            bits.set_range(warm_end as usize..burst_end as usize, true);
        }
        bits.set_range(burst_end as usize..self.pages as usize, true);
        bits
    }
}

impl Shape {
    /// The services.
    pub fn services(&self) -> Vec<Service> {
        let one = |number: usize| {
            let phase = BURST_PHASES.get(number);
            Service {
                name: format!("service-{number:02}"),
                slowdown: match number {
                    n if n % 5 == 0 => 1.03,
                    n if n % 7 == 0 => 1.1,
                    _ => 1.05,
                },
                pages: if phase.is_some() { 600.0 } else { 200.0 + 40.0 * (number * 5 % 7) as f64 },
                hot: if phase.is_some() {
                    0.15
                } else {
                    0.15 + 0.35 * (number * 7 % 13) as f64 / 12.0
                },
                warm: if phase.is_some() { 0.0 } else { 0.25 },
                every: [2, 4, 8][number % 3],
                burst: if phase.is_some() { 0.45 } else { 0.0 },
                phase: phase.copied().unwrap_or(0),
            }
        };
        (0..self.services).map(one).collect()
    }

    /// Names of the services that burst together, pair by pair.
    pub fn pairs_that_burst_together(&self) -> Vec<(String, String)> {
        let bursts = || self.services().into_iter().filter(|s| s.burst > 0.0);
        let mut pairs = Vec::new();
        for first in bursts() {
            let same = bursts().filter(|s| s.phase == first.phase && s.name > first.name);
            pairs.extend(same.map(|second| (first.name.clone(), second.name)));
        }
        pairs
    }

    /// The class of a host, by its number.
    fn class_of(host: usize) -> usize {
        host % CLASSES.len()
    }

    /// The services of a host.
    pub fn draw(&self, services: &[Service], host: usize) -> Vec<Drawn> {
        let (_, count, _, more_hot) = CLASSES[Self::class_of(host)];
        let mut random = Pcg64Mcg::seed_from_u64(self.seed.wrapping_mul(1 << 32) + host as u64);
        let normal = Normal::new(0.0, 1.0).expect("a deviation of one");
        let mut order: Vec<usize> = (0..services.len()).collect();
        for place in 0..count.min(order.len()) {
            let left = (order.len() - place) as u64;
            order.swap(place, place + (random.next_u64() % left) as usize);
        }
        order.truncate(count);
        order.sort_unstable();
        let mut one = |service: usize| {
            let of = &services[service];
            let size = f64::exp(SIZE_DEVIATION * normal.sample(&mut random));
            let pages = (of.pages * size).round().max(50.0);
            let hot = of.hot + more_hot + HOT_DEVIATION * normal.sample(&mut random);
            let hot = hot.clamp(0.02, 0.98 - of.warm - of.burst);
            let part = |share: f64| (share * pages).round() as u64;
            Drawn {
                service,
                pages: pages as u64,
                hot: part(hot),
                warm: part(of.warm),
                every: of.every,
                burst: part(of.burst),
                phase: of.phase,
                slowdown: of.slowdown,
            }
        };
        order.into_iter().map(&mut one).collect()
    }

    /// What is true at this latency, over so many hosts that are drawn and not written.
    ///
    /// # Errors
    /// None but of a registry without the assumed machine.
    pub fn truth(&self, slow_latency_ns: f64, draws: usize) -> anyhow::Result<Truth> {
        let (services, growth) = (self.services(), growth(slow_latency_ns)?);
        let page_bytes = PageSize::Huge.bytes() as f64;
        let mut sums = vec![(0.0, 0.0); services.len()];
        let mut classes = vec![Vec::new(); CLASSES.len()];
        // Hosts other than those that are written.
        let other = Shape { seed: self.seed ^ 0x5eed, ..*self };
        for host in 0..draws {
            let class = Self::class_of(host);
            let mut need = 0.0;
            for drawn in other.draw(&services, host) {
                let pages = drawn.need_pages(growth);
                sums[drawn.service].0 += pages;
                sums[drawn.service].1 += drawn.pages as f64;
                need += pages;
            }
            let memory = (CLASSES[class].2 << 30) as f64;
            classes[class].push((need * page_bytes / memory).min(1.0));
        }
        let upper = |mut needs: Vec<f64>| {
            needs.sort_by(f64::total_cmp);
            crate::interval::quantile(&needs, 0.95).unwrap_or(0.0)
        };
        Ok(Truth {
            services: sums.into_iter().map(|(need, has)| need / has).collect(),
            classes: classes.into_iter().map(upper).collect(),
        })
    }

    /// The fleet file, with prices and these other latencies of slow memory.
    pub fn file(&self, slow_latencies_ns: &[f64]) -> String {
        let mut text = format!("seed = {}\nslow_latencies_ns = {slow_latencies_ns:?}\n", self.seed);
        for (name, _, memory_gb, _) in CLASSES {
            text += &format!(
                "\n[[classes]]\nname = \"{name}\"\nhosts = \"{name}-*\"\nmemory = \"{memory_gb}G\"\n\
                 slow_latency_ns = {SLOW_LATENCY_NS:.0}\nprice_fast = 4.0\nprice_slow = 1.5\n"
            );
        }
        for service in self.services() {
            text += &format!(
                "\n[[services]]\nname = \"{name}\"\ngroups = [\"/fleet.slice/{name}.service\"]\n\
                 slowdown = \"{:.0}%\"\n",
                100.0 * (service.slowdown - 1.0),
                name = service.name,
            );
        }
        text
    }

    /// The folder of a host.
    pub fn host_name(host: usize) -> String {
        format!("{}-{host:05}", CLASSES[Self::class_of(host)].0)
    }

    /// Writes the fleet file and the histories of all hosts into a folder.
    ///
    /// # Errors
    /// What prevents a file from being written.
    pub fn write(&self, folder: &Path, slow_latencies_ns: &[f64]) -> anyhow::Result<()> {
        let services = self.services();
        for host in 0..self.hosts {
            let of_host = folder.join(Self::host_name(host));
            std::fs::create_dir_all(&of_host).with_context(|| of_host.display().to_string())?;
            for drawn in self.draw(&services, host) {
                let name = &services[drawn.service].name;
                let path = of_host.join(format!("{name}.trec"));
                write_history(&path, name, &Self::host_name(host), &drawn)?;
            }
        }
        let file = folder.join("fleet.toml");
        std::fs::write(&file, self.file(slow_latencies_ns))
            .with_context(|| file.display().to_string())
    }
}

/// Writes a history as terraced saves it, under the name of a service and of a boot.
///
/// # Errors
/// What prevents the file from being written.
pub fn write_history(path: &Path, service: &str, boot: &str, drawn: &Drawn) -> anyhow::Result<()> {
    let header = Header {
        created_by: "terraced".to_owned(),
        experiment: format!("{HISTORY}\n{boot}\n1:1"),
        machine: "host".to_owned(),
        kernel: String::new(),
        period_ms: 1000,
        seed: 0,
        leaves_out_unmovable: false,
        groups: vec![GroupHeader {
            name: format!("/fleet.slice/{service}.service"),
            policy: "none".to_owned(),
            parameters: Default::default(),
            policy_seed: 0,
            page_size: PageSize::Huge,
            fast_share: 0.0,
        }],
    };
    let file = File::create(path).with_context(|| path.display().to_string())?;
    let name = path.display().to_string();
    let mut writer = PeriodWriter::new(BufWriter::new(file), &name, header)?;
    let extent = Extent { space: SpaceId(1), start: 0, pages: drawn.pages };
    let layout = Arc::new(Layout::new(PageSize::Huge, vec![extent])?);
    for period in 0..PERIODS {
        let fast = PageBits::ones(drawn.pages as usize);
        let scan = Scan::new(period, Arc::clone(&layout), drawn.accessed(period), fast);
        writer.scan(0, &scan)?;
        writer.budget(0, period, &Budget::fast(drawn.pages))?;
    }
    writer.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slowdown over what a placement of the most often accessed pages leaves slow, counted on
    /// the pages of the periods.
    fn slowdown(drawn: &Drawn, fast: usize, growth: f64) -> f64 {
        let periods: Vec<PageBits> = (0..PERIODS).map(|p| drawn.accessed(p)).collect();
        let mut pages: Vec<usize> = (0..drawn.pages as usize).collect();
        let often = |page: &usize| periods.iter().filter(|bits| bits.get(*page)).count();
        pages.sort_by_key(|page| std::cmp::Reverse(often(page)));
        let is_slow: Vec<usize> = pages[fast..].to_vec();
        let missed = |bits: &PageBits| {
            let slow = is_slow.iter().filter(|page| bits.get(**page)).count();
            slow as f64 / bits.count().max(1) as f64
        };
        1.0 + growth * periods.iter().map(missed).sum::<f64>() / PERIODS as f64
    }

    #[test]
    fn the_arithmetic_is_that_of_the_pages() {
        let shape = Shape { hosts: 30, services: 40, seed: 3 };
        let services = shape.services();
        for latency_ns in [SLOW_LATENCY_NS, 250.0] {
            let growth = growth(latency_ns).unwrap();
            for drawn in (0..30).flat_map(|host| shape.draw(&services, host)) {
                let need = drawn.need_pages(growth);
                let (enough, less) = (need.ceil() as usize + 1, need.floor() as usize);
                let target = drawn.slowdown;
                assert!(slowdown(&drawn, enough, growth) <= target + 1e-3, "{drawn:?} {need}");
                if let Some(less) = less.checked_sub(2) {
                    assert!(slowdown(&drawn, less, growth) >= target - 1e-3, "{drawn:?} {need}");
                }
            }
        }
    }
}
