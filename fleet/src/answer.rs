//! The answer: what host classes and services need over all hosts, beside slow memory of each latency.
//!
//! A *host class* gets one size of fast memory, enough for a quantile of its hosts: what a host needs
//! is the sum of what its services need, and the reserve. A *service* gets the share that all of its
//! groups together need: shares of services add up over a fleet as quantiles do not.

use std::collections::BTreeMap;

use serde::Serialize;
use terrace_core::{InputError, refuse};
use terrace_results::{
    FleetClassRow, FleetHostRow, FleetLeftOutRow, FleetPairRow, FleetServiceRow,
};

use crate::copies::without_copies;
use crate::file::{Fleet, HostClass};
use crate::folders::{HostFolder, hosts};
use crate::host::{Host, HostReader, ServiceOnHost};
use crate::interval::{LEAST_HOSTS, quantile, quantile_interval, ratio, ratio_interval, seed_of};
use crate::needs::{HALF_STEP, Need};
use crate::{pairs, rollout};

/// The class of rows over all classes.
pub const ALL_CLASSES: &str = "all";

/// Words of a row without an interval.
pub const TOO_FEW: &str = "too few hosts";

/// The answer for a fleet.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Answer {
    /// Confidence of the intervals.
    pub confidence: f64,
    /// Part of the hosts of a class that the answer is enough for.
    pub quantile: f64,
    /// The assumed share of waiting and its error.
    pub memory_share: (f64, f64),
    /// The policy that was planned with.
    pub policy: String,
    /// Hosts that have a folder.
    pub hosts_found: u64,
    /// Hosts of which something was left out.
    pub hosts_left_out: u64,
    /// Host classes, by latency.
    pub classes: Vec<FleetClassRow>,
    /// Services, by class and latency.
    pub services: Vec<FleetServiceRow>,
    /// Hosts, by latency.
    pub hosts: Vec<FleetHostRow>,
    /// Pairs of services that collide.
    pub pairs: Vec<FleetPairRow>,
    /// Pairs that ran together on enough hosts to be judged.
    pub pairs_judged: u64,
    /// Pairs that did not.
    pub pairs_unseen: u64,
    /// What was left out.
    pub left_out: Vec<FleetLeftOutRow>,
}

/// Reads the histories of a fleet, `jobs` hosts at a time, and answers. `done` receives how many of
/// how many hosts were read. The answer is the same with any number of jobs.
///
/// # Errors
/// A fleet file that names no folders, and a fleet without a host that could be used.
pub fn answer(
    fleet: &Fleet,
    jobs: usize,
    done: &mut dyn FnMut(usize, usize),
) -> Result<Answer, InputError> {
    let folders = hosts(fleet)?;
    let reader = HostReader::new(fleet)?;
    let mut read = Vec::with_capacity(folders.len());
    let work = |folder: &HostFolder| Ok::<_, InputError>(reader.read(folder));
    terrace_jobs::in_turn(&folders, jobs, work, |number, host| {
        read.push(host);
        done(number + 1, folders.len());
        Ok(())
    })?;
    join(fleet, &read, jobs)
}

/// The answer of hosts that were read.
///
/// # Errors
/// Where no host could be used.
pub fn join(fleet: &Fleet, hosts: &[Host], jobs: usize) -> Result<Answer, InputError> {
    let hosts_found = hosts.len() as u64;
    let (hosts, copies) = without_copies(hosts);
    let hosts = &*hosts;
    if hosts.iter().all(|host| host.services.is_empty()) {
        let first = hosts.iter().find_map(|h| h.left_out.first());
        let first = first.map_or_else(String::new, |l| format!("; {}: {}", l.path, l.reason));
        return Err(refuse!(
            "of {} hosts none has a history that can be used{first}; expected folders with \
             histories of terraced (its 'state' folder)",
            hosts.len()
        ));
    }
    let mut classes = Vec::new();
    for number in 0..fleet.classes.len() {
        classes.extend(class_rows(fleet, hosts, number)?);
    }
    // By class, at its own latency; a class without a whole host gives no room to judge by.
    let fast_share = |class: &HostClass| {
        let own = |r: &&FleetClassRow| r.own_latency && r.class == class.name;
        classes.iter().find(own).map_or(1.0, |r| r.fast_share)
    };
    let fast_shares: Vec<f64> = fleet.classes.iter().map(fast_share).collect();
    let bytes = |(class, share): (&HostClass, &f64)| share * class.memory.0 as f64;
    let fast_bytes: Vec<f64> = fleet.classes.iter().zip(&fast_shares).map(bytes).collect();
    let names: std::collections::BTreeSet<&str> =
        hosts.iter().flat_map(|h| &h.services).map(|s| s.service.as_str()).collect();
    let pairs = pairs::judge(fleet, hosts, &fast_bytes, names.len() as u64);
    let stages = rollout::stages(fleet, hosts, &fast_shares, &pairs.rows);
    let mut host_rows = Vec::new();
    for (host, stage) in hosts.iter().zip(stages) {
        host_rows.extend(rows_of_host(fleet, host, stage, &classes)?);
    }
    let left_out = hosts.iter().flat_map(|host| {
        host.left_out.iter().map(|l| FleetLeftOutRow {
            host: host.name.clone(),
            class: fleet.classes[host.class].name.clone(),
            path: l.path.clone(),
            reason: l.reason.clone(),
        })
    });
    let of_copies = copies.iter().map(|(copy, of)| FleetLeftOutRow {
        host: copy.name.clone(),
        class: fleet.classes[copy.class].name.clone(),
        path: copy.name.clone(),
        reason: format!(
            "has histories of {}, of the same boot: a copy of it; expected one folder for each host",
            of.name
        ),
    });
    Ok(Answer {
        confidence: fleet.confidence,
        quantile: fleet.quantile,
        memory_share: (fleet.memory_share, fleet.memory_share_error),
        policy: fleet.policy.clone(),
        hosts_found,
        hosts_left_out: (hosts.iter().filter(|h| !h.is_whole()).count() + copies.len()) as u64,
        services: service_rows(fleet, hosts, jobs)?,
        hosts: host_rows,
        pairs: pairs.rows,
        pairs_judged: pairs.judged,
        pairs_unseen: pairs.unseen,
        left_out: left_out.chain(of_copies).collect(),
        classes,
    })
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Whether a share is more than a limit; a rounding error is not above it.
pub(crate) fn is_above(share: f64, limit: f64) -> bool {
    share > limit + 1e-9
}

/// The part of values above a limit.
fn part_above(values: &[f64], limit: f64) -> f64 {
    let above = values.iter().filter(|v| is_above(**v, limit)).count();
    above as f64 / values.len().max(1) as f64
}

/// What a host needs, with the reserve, as shares of its memory: all of it is enough.
pub(crate) fn of_host(fleet: &Fleet, host: &Host, latency: usize) -> Need {
    let class = &fleet.classes[host.class];
    let (reserve, memory) = (class.reserve_bytes() as f64, class.memory.0 as f64);
    host.need(latency).map(|bytes| ((bytes + reserve) / memory).min(1.0))
}

fn class_rows(
    fleet: &Fleet,
    hosts: &[Host],
    number: usize,
) -> Result<Vec<FleetClassRow>, InputError> {
    let class = &fleet.classes[number];
    let memory = class.memory.0 as f64;
    let of_class: Vec<&Host> = hosts.iter().filter(|h| h.class == number).collect();
    let whole: Vec<&Host> = of_class.iter().copied().filter(|h| h.is_whole()).collect();
    if whole.is_empty() {
        return Ok(Vec::new());
    }
    let count = class.count.unwrap_or(of_class.len() as u64);
    let mut rows: Vec<FleetClassRow> = Vec::new();
    for (at, latency_ns) in fleet.latencies_ns(class)?.into_iter().enumerate() {
        let shares =
            |of: fn(&Need) -> f64| sorted(whole.iter().map(|h| of(&of_host(fleet, h, at))));
        let upper = |of: fn(&Need) -> f64| quantile(&shares(of), fleet.quantile).unwrap_or(1.0);
        let needs = shares(|n| n.fast);
        let share = upper(|n| n.fast);
        let ends = quantile_interval(&needs, fleet.quantile, fleet.confidence);
        let bought = rows.first().map_or(share, |own| own.fast_share);
        let saved = |share: f64| Some(class.price(memory)? - class.price(share * memory)?);
        rows.push(FleetClassRow {
            class: class.name.clone(),
            slow_latency_ns: latency_ns,
            own_latency: at == 0,
            hosts: whole.len() as u64,
            left_out_hosts: (of_class.len() - whole.len()) as u64,
            memory_bytes: class.memory.0,
            fast_share: share,
            low: ends.map(|e| e.0),
            high: ends.map(|e| e.1),
            interval: match ends {
                Some(_) => format!("order statistics, {} %", 100.0 * fleet.confidence),
                None => TOO_FEW.to_owned(),
            },
            fast_bytes: (share * memory).round() as u64,
            safe_fast_share: upper(|n| n.safe),
            waits_less_fast_share: upper(|n| n.waits_less),
            waits_more_fast_share: upper(|n| n.waits_more),
            overrun_share: part_above(&needs, share),
            overrun_as_bought_share: part_above(&needs, bought),
            count,
            cost: class.price(share * memory),
            all_fast_cost: class.price(memory),
            saved: saved(share),
            saved_low: ends.and_then(|e| saved(e.1)),
            saved_high: ends.and_then(|e| saved(e.0)),
            saved_by_all: saved(share).map(|s| s * count as f64),
        });
    }
    Ok(rows)
}

/// One service in one class or in all, beside slow memory of one latency.
struct Cell<'a> {
    service: &'a str,
    class: Option<usize>,
    /// `None` for the own latency of each class.
    latency_ns: Option<f64>,
}

fn service_rows(
    fleet: &Fleet,
    hosts: &[Host],
    jobs: usize,
) -> Result<Vec<FleetServiceRow>, InputError> {
    let mut on: BTreeMap<&str, Vec<(usize, &ServiceOnHost)>> = BTreeMap::new();
    for host in hosts {
        for service in &host.services {
            on.entry(&service.service).or_default().push((host.class, service));
        }
    }
    let latencies: Vec<Vec<f64>> = fleet
        .classes
        .iter()
        .map(|class| fleet.latencies_ns(class))
        .collect::<Result<_, InputError>>()?;
    let mut cells = Vec::new();
    for (service, hosts) in &on {
        let own = std::iter::once(None);
        let all = own.chain(fleet.slow_latencies_ns.iter().copied().map(Some));
        cells.extend(all.map(|latency_ns| Cell { service, class: None, latency_ns }));
        for (class, latencies) in latencies.iter().enumerate() {
            if hosts.iter().any(|(of, _)| *of == class) {
                let of_class = latencies.iter().map(|ns| Cell {
                    service,
                    class: Some(class),
                    latency_ns: Some(*ns),
                });
                cells.extend(of_class);
            }
        }
    }
    let rows = terrace_jobs::all(&cells, jobs, |cell| service_row(fleet, &on, &latencies, cell));
    Ok(rows.into_iter().flatten().collect())
}

fn service_row(
    fleet: &Fleet,
    on: &BTreeMap<&str, Vec<(usize, &ServiceOnHost)>>,
    latencies: &[Vec<f64>],
    cell: &Cell<'_>,
) -> Option<FleetServiceRow> {
    let hosts = on.get(cell.service)?.iter();
    let hosts: Vec<_> = hosts.filter(|(c, _)| cell.class.is_none_or(|of| of == *c)).collect();
    let at = |class: usize| match cell.latency_ns {
        None => Some(0),
        Some(ns) => latencies[class].iter().position(|of| *of == ns),
    };
    // What a host needs and what it has, in bytes, and the same at the class's own latency.
    let mut needs: Vec<(Need, f64)> = Vec::new();
    let mut own: Vec<(f64, f64)> = Vec::new();
    for (class, service) in &hosts {
        needs.push((*service.needs.get(at(*class)?)?, service.footprint_bytes));
        own.push((service.needs.first()?.fast, service.footprint_bytes));
    }
    let over = |of: fn(&Need) -> f64| {
        let pairs: Vec<(f64, f64)> = needs.iter().map(|(n, bytes)| (of(n), *bytes)).collect();
        ratio(&pairs)
    };
    let pairs: Vec<(f64, f64)> = needs.iter().map(|(n, bytes)| (n.fast, *bytes)).collect();
    let share = ratio(&pairs)?;
    let bought = ratio(&own)?;
    let class_name = cell.class.map_or(ALL_CLASSES, |c| &fleet.classes[c].name);
    let latency = cell.latency_ns.map_or_else(|| "own".to_owned(), |ns| ns.to_string());
    let seed = seed_of(fleet.seed, &[cell.service, class_name, &latency]);
    // Between two shares that the planner has tried nothing is known, and that is no less with more
    // hosts.
    let ends = ratio_interval(&pairs, fleet.confidence, seed)
        .map(|(low, high)| ((low - HALF_STEP).max(0.0), (high + HALF_STEP).min(1.0)));
    let shares = sorted(pairs.iter().map(|(need, has)| need / has.max(1.0)));
    // Beyond the largest of so few there is nothing to see.
    let enough = shares.len() as f64 * (1.0 - fleet.quantile) >= 1.0 - 1e-9;
    let footprint: f64 = pairs.iter().map(|p| p.1).sum();
    let price = |share: f64| -> Option<f64> {
        let of_host = |(class, service): &&(usize, &ServiceOnHost)| {
            let class = &fleet.classes[*class];
            let (bytes, gb) = (service.footprint_bytes, (1u64 << 30) as f64);
            Some(bytes / gb * (share * class.price_fast? + (1.0 - share) * class.price_slow?))
        };
        hosts.iter().map(of_host).sum()
    };
    let saved = |share: f64| Some(price(1.0)? - price(share)?);
    Some(FleetServiceRow {
        service: cell.service.to_owned(),
        class: class_name.to_owned(),
        slow_latency_ns: cell.latency_ns,
        own_latency: match cell.class {
            None => cell.latency_ns.is_none(),
            Some(class) => at(class) == Some(0),
        },
        slowdown: hosts.first()?.1.target,
        hosts: hosts.len() as u64,
        groups: hosts.iter().map(|h| h.1.groups).sum(),
        footprint_bytes: footprint as u64,
        fast_share: share,
        low: ends.map(|e| e.0),
        high: ends.map(|e| e.1),
        interval: match ends {
            Some(_) => format!("bootstrap over hosts, {} %", 100.0 * fleet.confidence),
            None => format!("{TOO_FEW} (of {LEAST_HOSTS})"),
        },
        upper_fast_share: quantile(&shares, fleet.quantile).filter(|_| enough),
        fast_bytes: (share * footprint).round() as u64,
        safe_fast_share: over(|n| n.safe)?,
        waits_less_fast_share: over(|n| n.waits_less)?,
        waits_more_fast_share: over(|n| n.waits_more)?,
        overrun_share: part_above(&shares, share),
        overrun_as_bought_share: part_above(&shares, bought),
        cost: price(share),
        all_fast_cost: price(1.0),
        saved: saved(share),
        saved_low: ends.and_then(|e| saved(e.1)),
        saved_high: ends.and_then(|e| saved(e.0)),
    })
}

fn rows_of_host(
    fleet: &Fleet,
    host: &Host,
    stage: u64,
    classes: &[FleetClassRow],
) -> Result<Vec<FleetHostRow>, InputError> {
    let class = &fleet.classes[host.class];
    let memory = class.memory.0 as f64;
    let latencies = fleet.latencies_ns(class)?.into_iter().enumerate();
    let row = |(at, latency_ns): (usize, f64)| {
        let share = of_host(fleet, host, at).fast;
        let answer =
            classes.iter().find(|r| r.class == class.name && r.slow_latency_ns == latency_ns);
        FleetHostRow {
            host: host.name.clone(),
            class: class.name.clone(),
            slow_latency_ns: latency_ns,
            own_latency: at == 0,
            whole: host.is_whole(),
            services: host.services.len() as u64,
            footprint_bytes: host.footprint_bytes() as u64,
            fast_bytes: (share * memory).round() as u64,
            fast_share: share,
            spare_share: answer.map_or(0.0, |r| r.fast_share - share),
            stage,
        }
    };
    Ok(latencies.map(row).collect())
}
