//! The profile (`.tprof`): the cost of a program, interval by interval of its own work, with all of
//! its memory fast and with all of it slow, and the pages that cause it.
//!
//! An interval is a fixed number of references, the same in both runs, so that it can be compared.
//! Its cost under any placement follows from the two costs and from the share of its reads that the
//! placement makes fast ([`Interval::time_ps`]).
//!
//! ```text
//! header  [`Header`]
//! INTV    one interval: numbers, the layout, a bit for each page, reads of each accessed page
//! ```

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use terrace_core::bits::PageBits;
use terrace_core::page::{Layout, PageSize};

use crate::codec::{Cursor, Malformed, put_bits, put_number, put_signed};
use crate::container::{ChunkKind, ContainerReader, ContainerWriter, Truncation, open};
use crate::error::RecordingError;
use crate::mixed::{Curve, MixedRun};
use crate::period::{put_layout, take_layout};

/// The content's name in the container.
pub const CONTENT: &str = "profile";
/// The version of the content that this module writes; it reads the one before too.
pub const CONTENT_VERSION: u32 = 2;
/// The first version had one mixed run, with half of all pages fast.
const ONE_MIXED_RUN: u32 = 1;
/// Mixed runs of an interval, at most.
const MOST_MIXED_RUNS: usize = 16;

const INTERVAL: ChunkKind = ChunkKind::new(b"INTV");

/// The header of a profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The program's name for people.
    pub workload: String,
    /// Name of the simulated machine.
    pub machine: String,
    /// Size of its pages.
    pub page_size: PageSize,
    /// Memory that it touches in all, in bytes, if known beforehand.
    pub footprint_bytes: Option<u64>,
    /// Loads and stores in an interval.
    pub interval_references: u64,
    /// The tiers of that machine, fast first; none in a profile without them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierSpeed>,
    /// The experiment that it was made from, as TOML, where the profile has it: the program can be
    /// run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experiment: Option<String>,
    /// Program and version.
    pub created_by: String,
}

/// Speed of a tier, which causes a profile's costs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierSpeed {
    /// Name of the tier.
    pub name: String,
    /// Idle latency of a read beyond the caches, in ps.
    pub read_latency_ps: u64,
    /// Read bandwidth, in MB/s (10^6 bytes).
    pub read_mb_per_s: u64,
}

/// One interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interval {
    /// Loads and stores: the header's number, except in the last interval.
    pub references: u64,
    /// Time with all memory fast, in ps.
    pub fast_ps: u64,
    /// Time with all memory slow, in ps.
    pub slow_ps: u64,
    /// Times in runs with a part of all pages slow, those that are touched last. Empty where the
    /// time is in proportion to the share of slow reads.
    pub mixed: Vec<MixedRun>,
    /// Cost to the program of reading and clearing its accessed bits at the end of the interval:
    /// page walks after the flush.
    pub scan_ps: u64,
    /// The pages at its end.
    pub layout: Arc<Layout>,
    /// By page: it was accessed.
    pub accessed: PageBits,
    /// Pages that the interval before did not have, in the order in which they were touched.
    pub fresh: Vec<usize>,
    /// By page: lines read from memory, by which the cost is attributed to pages.
    pub reads: Vec<u64>,
}

impl Interval {
    /// Time when `fast` pages are in fast memory: between the two costs, by the share of reads that
    /// are slow. An interval that reads nothing from memory takes its time with all memory fast.
    ///
    /// # Panics
    /// When `fast` has not a bit for every page.
    pub fn time_ps(&self, fast: &PageBits) -> u64 {
        assert_eq!(fast.len(), self.reads.len(), "a bit for every page");
        let (mut all, mut near) = (0u64, 0u64);
        for (reads, &word) in self.reads.chunks(64).zip(fast.words()) {
            for (page, &reads) in reads.iter().enumerate() {
                all += reads;
                near += reads & (word >> page & 1).wrapping_neg();
            }
        }
        if all == 0 {
            return self.fast_ps;
        }
        let slow = all - near;
        let extra = self.slow_ps as f64 - self.fast_ps as f64;
        let part = self.curve().part(slow as f64 / all as f64);
        (self.fast_ps as f64 + extra * part).max(0.0).round() as u64
    }

    /// Part of the extra time by share of slow reads. Which pages are read together is unknown: the
    /// mixed runs split them by first touch, and another placement may split them otherwise.
    pub fn curve(&self) -> Curve {
        Curve::new(self.fast_ps, self.slow_ps, &self.mixed)
    }
}

/// Writes a profile.
pub struct ProfileWriter<W: Write> {
    container: ContainerWriter<W>,
    intervals: u64,
    payload: Vec<u8>,
}

impl<W: Write> ProfileWriter<W> {
    /// Begins a profile; `name` is for error messages.
    pub fn new(out: W, name: &str, header: &Header) -> Result<Self, RecordingError> {
        let container = ContainerWriter::new(out, name, CONTENT, CONTENT_VERSION, header)?;
        Ok(ProfileWriter { container, intervals: 0, payload: Vec::new() })
    }

    /// Adds an interval.
    pub fn interval(&mut self, interval: &Interval) -> Result<(), RecordingError> {
        let out = &mut self.payload;
        out.clear();
        let i = interval;
        for number in [i.references, i.fast_ps, i.slow_ps, i.mixed.len() as u64] {
            put_number(out, number);
        }
        for run in &i.mixed {
            put_number(out, run.took_ps);
            put_number(out, run.slow_ppm);
        }
        put_number(out, i.scan_ps);
        put_layout(out, &interval.layout);
        put_bits(out, &interval.accessed, None);
        put_number(out, interval.fresh.len() as u64);
        let mut next = 0;
        for &page in &interval.fresh {
            put_signed(out, page as i64 - next);
            next = page as i64 + 1;
        }
        for (page, &ns) in interval.reads.iter().enumerate() {
            if interval.accessed.get(page) {
                put_number(out, ns);
            }
        }
        self.intervals += 1;
        self.container.chunk(INTERVAL, self.intervals, &self.payload)
    }

    /// Ends the profile.
    pub fn finish(self) -> Result<W, RecordingError> {
        self.container.finish()
    }
}

/// Reads a profile, interval by interval.
#[derive(Debug)]
pub struct ProfileReader<R> {
    container: ContainerReader<R>,
    header: Header,
}

impl ProfileReader<BufReader<File>> {
    /// Opens a profile.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let (file, name) = open(path, 1 << 16)?;
        Self::new(file, &name)
    }
}

impl<R: Read> ProfileReader<R> {
    /// Reads a profile from any stream; `name` is for error messages.
    pub fn new(from: R, name: &str) -> Result<Self, RecordingError> {
        let versions = ONE_MIXED_RUN..=CONTENT_VERSION;
        let (container, header) = ContainerReader::of_versions(from, name, CONTENT, versions)?;
        Ok(ProfileReader { container, header })
    }

    /// The header of the profile.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Where it was cut off, if it was; known once it has ended.
    pub fn truncation(&self) -> Option<&Truncation> {
        self.container.truncation()
    }

    /// The next interval; `None` at the end, or at the cut.
    pub fn next_interval(&mut self) -> Result<Option<Interval>, RecordingError> {
        while let Some(chunk) = self.container.next_chunk()? {
            if chunk.kind != INTERVAL {
                continue;
            }
            let interval =
                decode(&chunk.payload, self.header.page_size, self.container.content_version());
            return interval.map(Some).map_err(|malformed| RecordingError::Damaged {
                file: self.container.name().to_owned(),
                offset: chunk.offset,
                message: malformed.0,
            });
        }
        Ok(None)
    }
}

fn decode(payload: &[u8], page_size: PageSize, version: u32) -> Result<Interval, Malformed> {
    let mut from = Cursor::new(payload);
    let (references, fast_ps) = (from.number()?, from.number()?);
    let slow_ps = from.number()?;
    let runs = match version {
        ONE_MIXED_RUN => 1,
        _ => from.count("mixed runs")?,
    };
    if runs > MOST_MIXED_RUNS {
        return Err(Malformed(format!("{runs} mixed runs, expected {MOST_MIXED_RUNS} at most")));
    }
    let mut mixed = Vec::with_capacity(runs);
    for _ in 0..runs {
        let took_ps = from.number()?;
        let slow_ppm = from.number_below(1_000_001, "a share in millionths")?;
        mixed.push(MixedRun { slow_ppm, took_ps });
    }
    let scan_ps = from.number()?;
    let layout = take_layout(&mut from, page_size)?;
    let accessed = from.bits(layout.pages(), None)?;
    let mut fresh = Vec::new();
    let mut next = 0i64;
    for _ in 0..from.count("fresh pages")? {
        let page = from.signed()?.wrapping_add(next);
        let known = usize::try_from(page).ok().filter(|page| *page < layout.pages());
        fresh.push(known.ok_or_else(|| Malformed(format!("fresh page {page} that is not there")))?);
        next = page + 1;
    }
    let mut reads = vec![0; layout.pages()];
    for (page, ns) in reads.iter_mut().enumerate() {
        if accessed.get(page) {
            // Sums of all pages stay within 64 bits.
            *ns = from.number_below(1 << 40, "reads of a page")?;
        }
    }
    if from.remaining() > 0 {
        return Err(Malformed(format!("{} bytes too many in an interval", from.remaining())));
    }
    Ok(Interval {
        references,
        fast_ps,
        slow_ps,
        mixed,
        scan_ps,
        layout: Arc::new(layout),
        accessed,
        fresh,
        reads,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> Header {
        Header {
            workload: "w".into(),
            machine: "m".into(),
            page_size: PageSize::Base,
            footprint_bytes: None,
            interval_references: 1000,
            tiers: vec![TierSpeed {
                name: "dram".into(),
                read_latency_ps: 84_667,
                read_mb_per_s: 270_000,
            }],
            experiment: None,
            created_by: "test".into(),
        }
    }

    fn interval(reads: &[u64], costs: (u64, u64)) -> Interval {
        let mut accessed = PageBits::new(reads.len());
        reads.iter().enumerate().filter(|(_, r)| **r > 0).for_each(|(p, _)| accessed.set(p, true));
        Interval {
            references: 1000,
            fast_ps: costs.0,
            slow_ps: costs.1,
            mixed: vec![MixedRun {
                slow_ppm: 500_000,
                took_ps: (costs.0 / 2).saturating_add(costs.1 / 2),
            }],
            scan_ps: 9,
            layout: Arc::new(Layout::contiguous(PageSize::Base, reads.len() as u64)),
            accessed,
            fresh: (0..reads.len()).rev().collect(),
            reads: reads.to_vec(),
        }
    }

    fn write(intervals: &[Interval]) -> Vec<u8> {
        let mut writer = ProfileWriter::new(Vec::new(), "t", &header()).unwrap();
        intervals.iter().for_each(|i| writer.interval(i).unwrap());
        writer.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Vec<Interval>, RecordingError> {
        let mut reader = ProfileReader::new(bytes, "t")?;
        let mut intervals = Vec::new();
        while let Some(interval) = reader.next_interval()? {
            intervals.push(interval);
        }
        Ok(intervals)
    }

    #[test]
    fn time_is_between_the_costs_by_the_share_of_reads() {
        let i = interval(&[30, 0, 10], (1000, 3000));
        let with = |fast: &[usize]| {
            let mut bits = PageBits::new(3);
            fast.iter().for_each(|&p| bits.set(p, true));
            i.time_ps(&bits)
        };
        assert_eq!(with(&[0, 1, 2]), 1000);
        assert_eq!(with(&[]), 3000);
        assert_eq!(with(&[0]), 1500);
        assert_eq!(with(&[1, 2]), 2500);
        // Two reads at a time: the mixed run takes three quarters of the extra time.
        let took_ps = 2500;
        let paired = Interval { mixed: vec![MixedRun { slow_ppm: 500_000, took_ps }], ..i.clone() };
        let mut half = PageBits::new(3);
        half.set(0, true);
        // A quarter of the reads is slow: 1 - 0.75^2 of the extra time.
        assert_eq!(paired.time_ps(&half), 1000 + 875);
        let idle = interval(&[0, 0], (700, 900));
        assert_eq!(idle.time_ps(&PageBits::new(2)), 700);
    }

    #[test]
    fn profiles_of_the_first_version_have_one_mixed_run() {
        let mut old = interval(&[30, 0, 10], (1000, 3000));
        let mut payload = Vec::new();
        for number in [old.references, old.fast_ps, old.slow_ps, 2500, 400_000, old.scan_ps] {
            put_number(&mut payload, number);
        }
        put_layout(&mut payload, &old.layout);
        put_bits(&mut payload, &old.accessed, None);
        // Fresh pages 2, 1, 0 and the reads of pages 0 and 2.
        put_number(&mut payload, 3);
        [2, -2, -2].into_iter().for_each(|step| put_signed(&mut payload, step));
        [30, 10].into_iter().for_each(|reads| put_number(&mut payload, reads));
        let mut writer = ContainerWriter::new(Vec::new(), "t", CONTENT, 1, &header()).unwrap();
        writer.chunk(INTERVAL, 1, &payload).unwrap();
        old.mixed = vec![MixedRun { slow_ppm: 400_000, took_ps: 2500 }];
        assert_eq!(read(&writer.finish().unwrap()).unwrap(), [old]);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            all in prop::collection::vec(
                (prop::collection::vec(0u64..1 << 40, 0..100), any::<u64>(), any::<u64>()), 0..6)
        ) {
            let intervals: Vec<_> =
                all.iter().map(|(reads, fast, slow)| interval(reads, (*fast, *slow))).collect();
            prop_assert_eq!(read(&write(&intervals)).unwrap(), intervals);
        }

        #[test]
        fn damage_is_an_error_or_a_cut_and_never_other_data(at: usize, flip in 1u8..) {
            let intervals = [interval(&[5, 0, 7], (1, 2)), interval(&[9; 40], (3, 4))];
            let bytes = write(&intervals);
            let cut = &bytes[..at % bytes.len()];
            if let Ok(got) = read(cut) {
                prop_assert_eq!(&got[..], &intervals[..got.len()]);
            }
            let mut flipped = bytes.clone();
            let place = at % bytes.len();
            flipped[place] ^= flip;
            if let Ok(got) = read(&flipped) {
                prop_assert_eq!(&got[..], &intervals[..got.len()]);
            }
        }

        #[test]
        fn garbage_never_panics(
            bytes in prop::collection::vec(any::<u8>(), 0..300), version in 1u32..=2,
        ) {
            let _ = decode(&bytes, PageSize::Huge, version);
        }
    }
}
