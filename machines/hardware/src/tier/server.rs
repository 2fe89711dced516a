//! A resource that serves one transfer after the other: a bus, one direction of a link.
//!
//! Transfers requested in time order are served first-come first-served, exactly. Cores simulated
//! one after the other make requests a little out of order; such a transfer may use the idle time
//! that later ones left before them, of which the last few gaps are remembered. So a core that ran
//! ahead does not make another wait for the future.

use std::collections::VecDeque;

use crate::units::Picoseconds;

/// Idle gaps remembered.
const GAPS: usize = 8;
/// Idle gaps remembered where requesters run far ahead of each other.
const MANY_GAPS: usize = 4096;

/// A resource that serves one transfer after the other.
#[derive(Debug, Clone)]
pub struct Server {
    /// When the last transfer ends.
    free: u64,
    /// Idle spans before that, start and end, oldest overwritten first.
    gaps: [(u64, u64); GAPS],
    next_gap: usize,
    /// The end of the latest gap: transfers asked for after it need not search.
    last_gap_end: u64,
    busy: u64,
    /// Instead of `gaps`, many of them, in time order.
    many: Option<VecDeque<(u64, u64)>>,
}

impl Default for Server {
    fn default() -> Self {
        Server { free: 0, gaps: [(0, 0); GAPS], next_gap: 0, last_gap_end: 0, busy: 0, many: None }
    }
}

impl Server {
    /// A resource whose requesters may run so far ahead of each other that a few gaps do not reach
    /// back.
    pub fn far_out_of_order() -> Self {
        Server { many: Some(VecDeque::with_capacity(MANY_GAPS + 1)), ..Self::default() }
    }

    /// A transfer of length `time` is requested at `at`; returns its start.
    #[inline]
    pub fn serve(&mut self, at: Picoseconds, time: Picoseconds) -> Picoseconds {
        self.busy += time.0;
        if at.0 >= self.free {
            if at.0 > self.free
                && let Some(many) = &mut self.many
            {
                many.push_back((self.free, at.0));
                if many.len() > MANY_GAPS {
                    many.pop_front();
                }
                self.last_gap_end = at.0;
            } else if at.0 > self.free {
                self.gaps[self.next_gap] = (self.free, at.0);
                self.next_gap = (self.next_gap + 1) % GAPS;
                self.last_gap_end = at.0;
            }
            self.free = at.0 + time.0;
            return at;
        }
        if at.0 + time.0 <= self.last_gap_end
            && let Some(start) = self.in_a_gap(at.0, time.0)
        {
            return Picoseconds(start);
        }
        let start = self.free;
        self.free += time.0;
        Picoseconds(start)
    }

    /// The first gap, in time, that has room.
    fn in_a_gap(&mut self, at: u64, time: u64) -> Option<u64> {
        if let Some(many) = &mut self.many {
            return in_one_of_many(many, at, time);
        }
        // Without branches, which could not be predicted.
        let (mut first, mut earliest) = (GAPS, u64::MAX);
        for (n, &(from, to)) in self.gaps.iter().enumerate() {
            let from = if at.max(from) + time <= to { from } else { u64::MAX };
            first = if from < earliest { n } else { first };
            earliest = earliest.min(from);
        }
        let gap = self.gaps.get_mut(first)?;
        let start = at.max(gap.0);
        // The larger piece stays; the other is dropped, which only makes later transfers wait.
        let (before, after) = ((gap.0, start), (start + time, gap.1));
        *gap = if before.1 - before.0 > after.1 - after.0 { before } else { after };
        Some(start)
    }

    /// Total busy time.
    pub fn busy(&self) -> Picoseconds {
        Picoseconds(self.busy)
    }
}

fn in_one_of_many(gaps: &mut VecDeque<(u64, u64)>, at: u64, time: u64) -> Option<u64> {
    let first = gaps.partition_point(|gap| gap.1 < at + time);
    let (place, start) = gaps.iter().enumerate().skip(first).find_map(|(place, gap)| {
        let start = at.max(gap.0);
        (start + time <= gap.1).then_some((place, start))
    })?;
    let (from, to) = gaps[place];
    // A gap too short for such a transfer is dropped.
    let before = (start - from >= time).then_some((from, start));
    let after = (to - start >= 2 * time).then_some((start + time, to));
    match (before, after) {
        (Some(before), Some(after)) => {
            gaps[place] = after;
            gaps.insert(place, before);
            if gaps.len() > MANY_GAPS {
                gaps.pop_front();
            }
        }
        (Some(one), None) | (None, Some(one)) => gaps[place] = one,
        (None, None) => {
            gaps.remove(place);
        }
    }
    Some(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn transfers_in_order_wait_for_those_before() {
        let mut s = Server::default();
        let (t, ten) = (Picoseconds, Picoseconds(10));
        assert_eq!(s.serve(t(5), ten), t(5));
        assert_eq!(s.serve(t(7), ten), t(15));
        assert_eq!(s.serve(t(7), ten), t(25));
        assert_eq!(s.serve(t(100), ten), t(100));
        assert_eq!(s.busy(), t(40));
    }

    #[test]
    fn a_late_asker_uses_the_idle_time_before() {
        let mut s = Server::default();
        let (t, ten) = (Picoseconds, Picoseconds(10));
        s.serve(t(1000), ten);
        assert_eq!(s.serve(t(20), ten), t(20));
        assert_eq!(s.serve(t(20), ten), t(30));
        // Too long for the rest of the gap.
        assert_eq!(s.serve(t(20), t(2000)), t(1010));
    }

    #[test]
    fn askers_far_behind_find_the_idle_time_that_those_ahead_left() {
        // One requests 10 every 300; the other runs as far behind as a hundred of these requests.
        let mut s = Server::far_out_of_order();
        for slice in 0..20u64 {
            for asker in 0..2u64 {
                for n in 0..100 {
                    let at = Picoseconds((slice * 100 + n) * 300 + asker * 150);
                    assert_eq!(s.serve(at, Picoseconds(10)), at, "{slice} {asker} {n}");
                }
            }
        }
    }

    #[test]
    fn no_two_transfers_overlap_whatever_the_order() {
        for s in [Server::default(), Server::far_out_of_order()] {
            no_two_overlap(s);
        }
    }

    fn no_two_overlap(mut s: Server) {
        let mut random = Random::new(3);
        let mut spans: Vec<(u64, u64)> = (0..20_000u64)
            .map(|n| {
                let at = n * 15 + random.below(400);
                let time = 1 + random.below(20);
                let start = s.serve(Picoseconds(at), Picoseconds(time)).0;
                assert!(start >= at);
                (start, start + time)
            })
            .collect();
        spans.sort_unstable();
        assert!(spans.windows(2).all(|w| w[0].1 <= w[1].0));
    }

    #[test]
    fn random_arrivals_wait_as_in_an_m_d_1_queue() {
        for rho in [0.3, 0.6, 0.9] {
            let mut random = Random::new(11);
            let mut s = Server::default();
            let time = 10_000u64;
            let (mut at, mut wait) = (0.0, 0u64);
            let n = 1_000_000;
            for _ in 0..n {
                at += random.exponential() * time as f64 / rho;
                let now = Picoseconds(at as u64);
                wait += (s.serve(now, Picoseconds(time)) - now).0;
            }
            let mean = wait as f64 / f64::from(n);
            let expected = rho * time as f64 / (2.0 * (1.0 - rho));
            assert!((mean / expected - 1.0).abs() < 0.03, "{rho}: {mean} against {expected}");
        }
    }
}
