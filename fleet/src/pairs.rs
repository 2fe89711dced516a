//! Services that should not share a host: those whose working sets peak at the same time, so that
//! together they need more than fits.
//!
//! The rule, for a host on which both ran. Their working sets are the memory accessed in each period;
//! of shorter periods the most in each of the longer ones counts.
//! Histories of a host are saved together, so that they are laid over each other from their ends. Let
//! `J` be the most that both had in one period together, `A` and `B` the most of each alone, and the
//! *room* the fast memory of the class's answer without the reserve and without what the other
//! services of the host need. The two *collide* on the host where
//!
//! 1. `J` is at least nine tenths of `A + B`: they peak together;
//! 2. `A` and `B` each are at least 1.25 times their means: both have a peak;
//! 3. `J` is more than the room, and neither `A` nor `B` alone is.
//!
//! Two services should not share a host where they collide on at least half of the hosts on which
//! both ran, and on three at least.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use terrace_results::FleetPairRow;

use crate::file::Fleet;
use crate::host::{Host, ServiceOnHost};
use crate::interval::quantile;

/// Least part of the two peaks that is a peak of both.
const TOGETHER: f64 = 0.9;
/// Least peak over the mean.
const PEAK: f64 = 1.25;
/// Hosts on which two services collide at least, to be named.
pub const LEAST_HOSTS: u64 = 3;

/// Memory that was accessed in each period, the last one at the end.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Series {
    /// Length of a period.
    pub period_ms: u64,
    /// Bytes accessed in each; NaN of a period that was lost.
    pub bytes: Vec<f64>,
}

/// More periods than these were not lost in a row but left out: what was before is at unknown times.
const MOST_LOST: u64 = 4096;

impl Series {
    /// Adds a period, before which so many were lost.
    pub fn push(&mut self, lost: u64, bytes: f64) {
        match lost <= MOST_LOST {
            true => self.bytes.extend((0..lost).map(|_| f64::NAN)),
            false => self.bytes.clear(),
        }
        self.bytes.push(bytes);
    }

    /// Periods that were not lost.
    pub fn known(&self) -> usize {
        self.bytes.iter().filter(|bytes| !bytes.is_nan()).count()
    }

    /// The most of the periods that end in this step before the end, counted from 0; NaN where all of
    /// them were lost, `None` where the series does not reach so far back.
    fn most_in(&self, step: u64, step_ms: u64) -> Option<f64> {
        let period_ms = self.period_ms.max(1);
        let back = |step: u64| (step * step_ms).div_ceil(period_ms) as usize;
        let end = self.bytes.len().checked_sub(back(step)).filter(|end| *end > 0)?;
        let begin = self.bytes.len().saturating_sub(back(step + 1));
        Some(self.bytes[begin..end].iter().copied().fold(f64::NAN, f64::max))
    }

    /// Both in the same steps of the longer period, from the end back, as far as both reach: of the
    /// shorter one the most in each step, as what is used there at any time has to fit.
    fn beside<'a>(&'a self, other: &'a Series) -> impl Iterator<Item = (f64, f64)> + 'a {
        let step_ms = self.period_ms.max(other.period_ms).max(1);
        (0..).map_while(move |n| Some((self.most_in(n, step_ms)?, other.most_in(n, step_ms)?)))
    }

    /// Adds another of the same service, as far as both reach.
    pub fn add(&mut self, other: &Series) {
        if self.bytes.is_empty() {
            *self = other.clone();
            return;
        }
        let mut sums: Vec<f64> = self.beside(other).map(|(a, b)| a + b).collect();
        sums.reverse();
        *self = Series { period_ms: self.period_ms.max(other.period_ms), bytes: sums };
    }
}

/// Two services of one host that have periods together: kept for each two of each host, so it is small.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Places of the two among the host's services.
    pub services: [u32; 2],
    /// What they used where both peak, and peak together.
    pub burst: Option<Burst>,
}

/// What two services that peak together used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Burst {
    /// Most that both accessed in one period, in bytes.
    pub joint_peak_bytes: f64,
    /// The larger of what each accessed at most in one, in bytes.
    pub larger_peak_bytes: f64,
}

impl Burst {
    /// Whether the two collide where there is so much room.
    pub fn collides(&self, room_bytes: f64) -> bool {
        self.joint_peak_bytes > room_bytes && self.larger_peak_bytes <= room_bytes
    }
}

/// What two services used together on one host.
#[derive(Debug, Clone, PartialEq)]
pub struct Together {
    /// Most that both accessed in one period, in bytes.
    pub joint_peak_bytes: f64,
    /// Most of the first alone.
    pub first_peak_bytes: f64,
    /// Mean of the first alone.
    pub first_mean_bytes: f64,
    /// Most of the second alone.
    pub second_peak_bytes: f64,
    /// Mean of the second alone.
    pub second_mean_bytes: f64,
}

/// Lays two services over each other; `None` where they have no period together.
pub fn together(first: &Series, second: &Series) -> Option<Together> {
    let both: Vec<(f64, f64)> =
        first.beside(second).filter(|(a, b)| !a.is_nan() && !b.is_nan()).collect();
    let most = |of: &dyn Fn(&(f64, f64)) -> f64| both.iter().map(of).fold(0.0, f64::max);
    let mean =
        |of: &dyn Fn(&(f64, f64)) -> f64| both.iter().map(of).sum::<f64>() / both.len() as f64;
    (!both.is_empty()).then(|| Together {
        joint_peak_bytes: most(&|p| p.0 + p.1),
        first_peak_bytes: most(&|p| p.0),
        first_mean_bytes: mean(&|p| p.0),
        second_peak_bytes: most(&|p| p.1),
        second_mean_bytes: mean(&|p| p.1),
    })
}

impl Together {
    /// What they used where both have a peak and peak together.
    pub fn burst(&self) -> Option<Burst> {
        let [first, second] = [self.first_peak_bytes, self.second_peak_bytes];
        let burst =
            Burst { joint_peak_bytes: self.joint_peak_bytes, larger_peak_bytes: first.max(second) };
        let peak = first >= PEAK * self.first_mean_bytes && second >= PEAK * self.second_mean_bytes;
        (peak && self.joint_peak_bytes >= TOGETHER * (first + second)).then_some(burst)
    }
}

/// Pairs of a fleet.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pairs {
    /// Pairs that collide anywhere, those that should not share a host first.
    pub rows: Vec<FleetPairRow>,
    /// Pairs that ran together on enough hosts to be judged.
    pub judged: u64,
    /// Pairs that did not.
    pub unseen: u64,
}

/// The joint peak of two services that collide on a host, and their room.
type Collision = [f64; 2];

/// Judges all pairs; `fast_bytes` is the fast memory of a host by class, at its own latency.
pub fn judge(fleet: &Fleet, hosts: &[Host], fast_bytes: &[f64], services: u64) -> Pairs {
    // By pair: hosts on which both ran, and what collides.
    let mut seen: BTreeMap<[&str; 2], (u64, Vec<Collision>)> = BTreeMap::new();
    for host in hosts.iter().filter(|h| h.is_whole()) {
        let room = fast_bytes[host.class] - fleet.classes[host.class].reserve_bytes() as f64;
        let all = host.need(0).fast;
        let need = |of: &ServiceOnHost| of.needs.first().map_or(0.0, |need| need.fast);
        for pair in &host.pairs {
            let of = pair.services.map(|at| host.services.get(at as usize));
            let [Some(first), Some(second)] = of else { continue };
            let (count, collisions) = seen.entry([&first.service, &second.service]).or_default();
            *count += 1;
            let others = (all - need(first) - need(second)).max(0.0);
            let room = (room - others).max(0.0);
            let burst = pair.burst.filter(|burst| burst.collides(room));
            collisions.extend(burst.map(|burst| [burst.joint_peak_bytes, room]));
        }
    }
    let mut pairs = Pairs::default();
    for ([first, second], (count, collisions)) in seen {
        pairs.judged += u64::from(count >= LEAST_HOSTS);
        let colliding = collisions.len() as u64;
        if colliding == 0 {
            continue;
        }
        let median = |number: usize| {
            let mut all: Vec<f64> = collisions.iter().map(|of| of[number]).collect();
            all.sort_by(f64::total_cmp);
            quantile(&all, 0.5).unwrap_or(0.0) as u64
        };
        pairs.rows.push(FleetPairRow {
            first: first.to_owned(),
            second: second.to_owned(),
            hosts: count,
            colliding_hosts: colliding,
            colliding_share: colliding as f64 / count as f64,
            apart: colliding >= LEAST_HOSTS && 2 * colliding >= count,
            joint_peak_bytes: median(0),
            room_bytes: median(1),
        });
    }
    pairs.rows.sort_by(|a, b| {
        let by_share = b.colliding_share.total_cmp(&a.colliding_share);
        b.apart.cmp(&a.apart).then(by_share).then(b.colliding_hosts.cmp(&a.colliding_hosts))
    });
    pairs.unseen = (services * services.saturating_sub(1) / 2).saturating_sub(pairs.judged);
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(period_ms: u64, bytes: &[f64]) -> Series {
        Series { period_ms, bytes: bytes.to_vec() }
    }

    #[test]
    fn a_lost_period_shifts_nothing_against_others() {
        let burst = series(1000, &[1.0, 5.0, 1.0, 5.0, 1.0, 5.0]);
        let mut lost = Series { period_ms: 1000, bytes: Vec::new() };
        for (lost_before, bytes) in [(0, 1.0), (0, 5.0), (1, 5.0), (0, 1.0), (0, 5.0)] {
            lost.push(lost_before, bytes);
        }
        assert_eq!((lost.bytes.len(), lost.known()), (6, 5));
        let both = together(&burst, &lost).unwrap();
        assert_eq!((both.first_mean_bytes, both.second_mean_bytes), (3.4, 3.4));
        let both = both.burst().unwrap();
        assert!(both.joint_peak_bytes == 10.0 && both.collides(9.0), "{both:?}");
        // They would take turns before the period that was lost: 1 beside 5.
        let mut sum = burst.clone();
        sum.add(&lost);
        assert_eq!((sum.bytes.len(), sum.known(), sum.bytes[0]), (6, 5, 2.0));
        lost.push(MOST_LOST + 1, 7.0);
        assert_eq!(lost.bytes, [7.0]);
    }

    #[test]
    fn two_collide_where_they_peak_together_and_there_is_no_room() {
        let burst = series(1000, &[1.0, 5.0, 1.0, 5.0]);
        let other = series(1000, &[5.0, 1.0, 5.0, 1.0]);
        let burst_of = |first, second| together(first, second).unwrap().burst();
        let same = burst_of(&burst, &burst).unwrap();
        assert!(same.collides(9.0), "10 are more than 9");
        assert!(!same.collides(10.0), "it fits");
        assert!(!same.collides(4.0), "each alone is too much already");
        assert_eq!(burst_of(&burst, &other), None, "they take turns");
        let steady = series(1000, &[5.0; 4]);
        assert_eq!(burst_of(&steady, &steady), None, "no peak");
        assert_eq!(burst_of(&burst, &steady), None, "one peak");
    }

    #[test]
    fn histories_are_laid_over_each_other_from_their_ends() {
        // Of one second and of two; the shorter one began later.
        let fine = series(1000, &[9.0, 9.0, 1.0, 2.0, 3.0, 4.0]);
        let coarse = series(2000, &[10.0, 20.0]);
        let pair = together(&fine, &coarse).unwrap();
        assert_eq!((pair.first_peak_bytes, pair.joint_peak_bytes), (4.0, 24.0));
        let mut sum = fine;
        sum.add(&coarse);
        assert_eq!(sum, series(2000, &[12.0, 24.0]));
        assert_eq!(together(&sum, &Series::default()), None);
    }

    #[test]
    fn of_shorter_periods_the_most_in_each_longer_one_counts() {
        // Of one second, with bursts in the first of two, and of two seconds.
        let fine = series(1000, &[9.0, 1.0, 9.0, 1.0, 9.0, f64::NAN]);
        let coarse = series(2000, &[20.0, 2.0, 20.0]);
        let pair = together(&fine, &coarse).unwrap();
        assert_eq!((pair.first_peak_bytes, pair.joint_peak_bytes), (9.0, 29.0));
        assert_eq!(together(&coarse, &fine).unwrap().second_peak_bytes, 9.0);
        for (mut sum, other) in [(fine.clone(), &coarse), (coarse.clone(), &fine)] {
            sum.add(other);
            assert_eq!(sum, series(2000, &[29.0, 11.0, 29.0]));
        }
        // Periods that do not fit into each other: the last three of four, then the one before.
        let odd = together(&series(3000, &[1.0, 1.0]), &series(1000, &[5.0, 3.0, 2.0, 4.0]));
        assert_eq!(odd.unwrap().second_mean_bytes, 4.5);
    }
}
