//! A hardware prefetcher: it follows streams of lines within a page and requests the next ones
//! before the program does, as those of Intel's and AMD's second levels do (Intel 248966, AMD 47414).
//! Intel's follows 32 streams, one in a page and direction, and runs up to 20 lines ahead.
//!
//! - It is trained by references that the first level misses, hits of the next levels among them.
//!   Two steps in one direction, of up to [`LONGEST_STEP`] lines, confirm a stream.
//! - It stays in its base page: the next frame is another program's, or another part of this one's.
//! - A line is put into the second level, or into the last where there is none, and reads memory as
//!   a line that is missed does. A program that reaches it sooner than memory waits for the rest.
//!
//! A page is a frame of 4 KB, so that a huge page is 512 of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::{BASE_PAGE_BITS, LineAddress};
use crate::cache::hierarchy::{HierarchyConfig, Inclusion};
use crate::error::{ConfigError, check_range};
use crate::units::Picoseconds;

/// Lines from one reference of a stream to the next, at most.
const LONGEST_STEP: i64 = 4;
/// Prefetched lines whose arrival is remembered; each place is taken by the newest line of it.
const ARRIVALS: usize = 4096;

/// The prefetcher of each core.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StreamPrefetcherConfig {
    /// Streams that are followed at once; the one that was longest without a reference gives way.
    #[schemars(range(min = 1, max = 1024))]
    pub streams: u32,
    /// How many lines ahead of the program a stream is read.
    #[schemars(range(min = 1, max = 64))]
    pub lines_ahead: u32,
}

impl Default for StreamPrefetcherConfig {
    /// Intel's.
    fn default() -> Self {
        StreamPrefetcherConfig { streams: 32, lines_ahead: 20 }
    }
}

impl StreamPrefetcherConfig {
    /// Refuses what cannot be simulated.
    pub(super) fn check(&self, caches: &HierarchyConfig) -> Result<(), ConfigError> {
        let part = "prefetcher";
        check_range(part, "streams", u64::from(self.streams), 1..=1024)?;
        check_range(part, "lines_ahead", u64::from(self.lines_ahead), 1..=64)?;
        if caches.l2.is_none() && caches.inclusion == Inclusion::Victim {
            let message = "the caches have no level for its lines: l2 is \"none\" and the last \
                           level takes victims only; expected an l2, or another inclusion";
            return Err(ConfigError::new(part, message));
        }
        Ok(())
    }
}

/// A stream, or what may become one.
#[derive(Debug, Clone, Copy)]
struct Stream {
    page: i64,
    /// The last line that the program reached.
    line: i64,
    /// The first line that was not yet requested, in the stream's direction.
    next: i64,
    /// 1 upwards, -1 downwards, 0 after a single reference.
    direction: i64,
    /// Whether two steps went this way.
    confirmed: bool,
    used: u64,
}

/// The streams of one core.
#[derive(Debug, Clone)]
pub(super) struct Streams {
    streams: Vec<Stream>,
    most: usize,
    lines_ahead: i64,
    page_line_bits: u32,
    clock: u64,
}

impl Streams {
    pub(super) fn new(config: &StreamPrefetcherConfig, line_bits: u32) -> Self {
        Streams {
            streams: Vec::with_capacity(config.streams as usize),
            most: config.streams as usize,
            lines_ahead: i64::from(config.lines_ahead),
            page_line_bits: BASE_PAGE_BITS.saturating_sub(line_bits),
            clock: 0,
        }
    }

    /// A reference to a line that the first level missed: the lines to request now, nearest first.
    pub(super) fn train(&mut self, line: LineAddress) -> impl Iterator<Item = LineAddress> + use<> {
        // An address has less than 63 bits.
        let (first, count, direction) = self.follow(line.0 as i64).unwrap_or((0, 0, 1));
        (0..count).map(move |n| LineAddress((first + direction * n) as u64))
    }

    /// The first line to request, how many, and in which direction.
    fn follow(&mut self, line: i64) -> Option<(i64, i64, i64)> {
        self.clock += 1;
        let page = line >> self.page_line_bits;
        let Some(stream) = self.streams.iter_mut().find(|s| s.page == page) else {
            self.begin(page, line);
            return None;
        };
        stream.used = self.clock;
        let step = (line - stream.line).abs();
        let direction = if line > stream.line { 1 } else { -1 };
        if step == 0 {
            return None;
        }
        stream.line = line;
        if step > LONGEST_STEP || stream.direction != direction {
            stream.confirmed = false;
            stream.direction = if step > LONGEST_STEP { 0 } else { direction };
            return None;
        }
        let after = line + direction;
        if !stream.confirmed {
            stream.confirmed = true;
            stream.next = after;
        }
        let first_of_page = page << self.page_line_bits;
        let last_of_page = first_of_page + (1 << self.page_line_bits) - 1;
        // The program may have overtaken what was requested.
        let (from, count) = if direction > 0 {
            let from = stream.next.max(after);
            (from, (line + self.lines_ahead).min(last_of_page) - from + 1)
        } else {
            let from = stream.next.min(after);
            (from, from - (line - self.lines_ahead).max(first_of_page) + 1)
        };
        let count = count.max(0);
        stream.next = from + direction * count;
        Some((from, count, direction))
    }

    fn begin(&mut self, page: i64, line: i64) {
        let stream =
            Stream { page, line, next: line, direction: 0, confirmed: false, used: self.clock };
        if self.streams.len() < self.most {
            self.streams.push(stream);
        } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|s| s.used) {
            *oldest = stream;
        }
    }
}

/// When prefetched lines arrive, and from which memory.
#[derive(Debug, Clone)]
pub(super) struct Arrivals(Vec<(LineAddress, Picoseconds, usize)>);

impl Arrivals {
    pub(super) fn new() -> Self {
        Arrivals(vec![(LineAddress(u64::MAX), Picoseconds::ZERO, 0); ARRIVALS])
    }

    pub(super) fn add(&mut self, line: LineAddress, at: Picoseconds, memory: usize) {
        self.0[line.0 as usize % ARRIVALS] = (line, at, memory);
    }

    /// When this line arrives, and from which memory, if that is after `time`.
    pub(super) fn after(
        &self,
        line: LineAddress,
        time: Picoseconds,
    ) -> Option<(Picoseconds, usize)> {
        let (of, at, memory) = self.0[line.0 as usize % ARRIVALS];
        (of == line && at > time).then_some((at, memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams(streams: u32, lines_ahead: u32) -> Streams {
        Streams::new(&StreamPrefetcherConfig { streams, lines_ahead }, 6)
    }

    fn train(streams: &mut Streams, line: u64) -> Vec<u64> {
        streams.train(LineAddress(line)).map(|line| line.0).collect()
    }

    #[test]
    fn the_third_line_of_a_stream_requests_those_ahead_and_each_further_one_its_share() {
        let mut s = streams(4, 4);
        assert_eq!(train(&mut s, 64), [0; 0]);
        assert_eq!(train(&mut s, 65), [0; 0]);
        assert_eq!(train(&mut s, 66), [67, 68, 69, 70]);
        assert_eq!(train(&mut s, 67), [71]);
        assert_eq!(train(&mut s, 67), [0; 0], "the same line again");
        assert_eq!(train(&mut s, 70), [72, 73, 74]);
    }

    #[test]
    fn a_stream_downwards_is_followed_downwards() {
        let mut s = streams(4, 3);
        assert_eq!(train(&mut s, 127), [0; 0]);
        assert_eq!(train(&mut s, 126), [0; 0]);
        assert_eq!(train(&mut s, 125), [124, 123, 122]);
        assert_eq!(train(&mut s, 124), [121]);
    }

    #[test]
    fn streams_end_with_their_page() {
        let mut s = streams(4, 8);
        for line in [59, 60] {
            assert_eq!(train(&mut s, line), [0; 0]);
        }
        assert_eq!(train(&mut s, 61), [62, 63]);
        assert_eq!(train(&mut s, 62), [0; 0]);
        assert_eq!(train(&mut s, 63), [0; 0]);
        let mut s = streams(4, 8);
        for line in [4, 3] {
            assert_eq!(train(&mut s, line), [0; 0]);
        }
        assert_eq!(train(&mut s, 2), [1, 0]);
        assert_eq!(train(&mut s, 1), [0; 0]);
        assert_eq!(train(&mut s, 0), [0; 0]);
    }

    #[test]
    fn references_at_random_request_nothing() {
        let mut s = streams(16, 8);
        let mut random = crate::random::Random::new(7);
        let requested: usize =
            (0..10_000).map(|_| train(&mut s, random.below(1 << 20)).len()).sum();
        assert!(requested < 10, "{requested} lines requested");
    }

    #[test]
    fn as_many_streams_as_there_are_places_are_followed_and_no_more() {
        let interleaved = |streams: &mut Streams, pages: u64| -> usize {
            (0..8)
                .flat_map(|n| (0..pages).map(move |page| page * 64 + n))
                .map(|line| train(streams, line).len())
                .sum()
        };
        assert!(interleaved(&mut streams(4, 4), 4) > 0);
        assert_eq!(interleaved(&mut streams(4, 4), 5), 0, "each gives way before its next line");
    }

    #[test]
    fn a_line_arrives_once_and_only_where_it_is_waited_for() {
        let mut arrivals = Arrivals::new();
        arrivals.add(LineAddress(5), Picoseconds(100), 1);
        assert_eq!(arrivals.after(LineAddress(5), Picoseconds(99)), Some((Picoseconds(100), 1)));
        assert_eq!(arrivals.after(LineAddress(5), Picoseconds(100)), None);
        assert_eq!(arrivals.after(LineAddress(5 + ARRIVALS as u64), Picoseconds(0)), None);
    }
}
