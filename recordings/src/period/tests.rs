//! A period recording comes back as it was written; cut, damaged or hostile, it yields a sound
//! beginning and then an error that names the fault.

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::sync::Arc;

use proptest::prelude::*;
use terrace_core::bits::PageBits;
use terrace_core::counts::AccessCounts;
use terrace_core::operations::OperationSize;
use terrace_core::page::{Extent, Layout, PageSize, SpaceId, VirtualRange};
use terrace_core::plan::{
    Decision, Direction, Exchange, Failure, FailureReason, Features, Outcome, Plan,
};
use terrace_core::scan::{Budget, PeriodCounters, Scan};

use super::*;
use crate::container::ContainerWriter;
use crate::error::RecordingError;
use crate::source::PeriodSource;

fn header() -> Header {
    let group = |name: &str, page_size| GroupHeader {
        name: name.to_owned(),
        policy: "lru".to_owned(),
        parameters: serde_json::json!({"threshold": 0.1 + 0.2}),
        policy_seed: 3,
        page_size,
        fast_share: 0.5,
    };
    Header {
        created_by: "terrace test".to_owned(),
        experiment: "two groups".to_owned(),
        machine: "simulated".to_owned(),
        kernel: String::new(),
        period_ms: 1000,
        seed: 7,
        leaves_out_unmovable: false,
        groups: vec![group("huge", PageSize::Huge), group("base", PageSize::Base)],
    }
}

fn layout(page_size: PageSize, pieces: &[(u64, u64)]) -> Arc<Layout> {
    let mut start = 0x10_0000_0000;
    let extents = pieces.iter().map(|&(gap, pages)| {
        start += gap * page_size.bytes();
        let extent = Extent { space: SpaceId(41), start, pages };
        start += pages * page_size.bytes();
        extent
    });
    Arc::new(Layout::new(page_size, extents.collect()).unwrap())
}

fn range(start: u64, size_bytes: u64) -> VirtualRange {
    VirtualRange { space: SpaceId(41), start, size_bytes }
}

/// One period as the engine would report it.
#[derive(Debug, Clone)]
struct Period {
    group: usize,
    scan: Scan,
    budget: Budget,
    decision: Decision,
    outcome: Outcome,
}

fn with_counters(
    scan: Scan,
    (n, reads_per_sample, samples): ([u64; 8], u32, Option<Vec<Option<u16>>>),
) -> Scan {
    let pages = scan.pages();
    let of = |s: Vec<Option<u16>>| s[..pages].iter().map(|c| c.unwrap_or(0)).collect();
    scan.with_counters(Arc::new(PeriodCounters {
        elapsed_ns: n[0],
        migration_stall_ns: n[1],
        slow_stall_ns: n[2],
        references: n[3],
        reads: [n[4], n[5]],
        read_latency_ps: [n[6], n[7]],
        samples: samples.map(of),
        reads_per_sample,
    }))
}

/// Of accessed pages at least one sample found them so.
fn with_counts(scan: Scan, (samples, interval_us, any): (u8, u32, Vec<u8>)) -> Scan {
    let count = |page: usize| match scan.accessed.get(page) {
        true => 1 + any[page] % samples,
        false => 0,
    };
    let counts = (0..scan.pages()).map(count).collect();
    scan.with_counts(AccessCounts { samples, interval_us, counts })
}

/// A decision with moves of all kinds. Bits of `fast_pages` choose which averages there are.
fn decision(
    ranges: &[VirtualRange],
    sizes: BTreeMap<u32, (u64, u64)>,
    ratios: [f64; 6],
    fast_pages: u64,
) -> Decision {
    let exchange = |r: &[VirtualRange]| Exchange { up: r[0], down: r[1] };
    Decision {
        plan: Plan {
            promotions: ranges[..2].to_vec(),
            demotions: ranges[2..3].to_vec(),
            exchanges: ranges[4..].chunks_exact(2).map(exchange).collect(),
            operation_sizes: sizes
                .into_iter()
                .map(|(space, (promotion_bytes, demotion_bytes))| OperationSize {
                    space: SpaceId(space),
                    promotion_bytes,
                    demotion_bytes,
                })
                .collect(),
            ..Plan::default()
        },
        applied: "lfu",
        features: Features {
            hit_ratio: ratios[0],
            hit_ratio_of_all: ratios[1],
            stability: ratios[2],
            accessed_ratio: ratios[3],
            lru_hit_average: Some(ratios[4]).filter(|_| fast_pages & 1 == 0),
            lfu_hit_average: Some(ratios[5]).filter(|_| fast_pages & 2 == 0),
        },
    }
}

prop_compose! {
    fn any_period(group: usize, number: u64)(
        pieces in prop::collection::vec((0u64..3, 1u64..70), 0..3),
        bits in prop::collection::vec(any::<(bool, bool)>(), 210),
        lost in 0u32..2,
        ranges in prop::collection::vec((any::<u32>(), 1u64..1 << 40), 8),
        ratios: [f64; 6],
        fast_pages: u64,
        reason in 0..FailureReason::ALL.len(),
        frames in prop::option::of(prop::collection::vec(any::<u64>(), 210)),
        active in prop::option::of(prop::collection::vec(any::<bool>(), 210)),
        sampled in prop::option::of((1u8.., any::<u32>(), prop::collection::vec(any::<u8>(), 210))),
        sizes in prop::collection::btree_map(any::<u32>(), (1u64.., 1u64..), 0..3),
        measured in prop::option::of((
            any::<[u64; 8]>(), any::<u32>(),
            prop::option::of(prop::collection::vec(prop::option::of(any::<u16>()), 210)),
        )),
    ) -> Period {
        let page_size = [PageSize::Huge, PageSize::Base][group];
        let layout = layout(page_size, &pieces);
        let of = |pick: fn(&(bool, bool)) -> bool| -> PageBits {
            bits[..layout.pages()].iter().map(pick).collect()
        };
        let (accessed, fast) = (of(|b| b.0), of(|b| b.1));
        let scan = Scan { lost_periods: lost, ..Scan::new(number, layout, accessed, fast) };
        let ranges: Vec<_> = ranges.iter().map(|r| range(u64::from(r.0) << 12, r.1)).collect();
        let failure = |r: &VirtualRange| Failure {
            range: *r,
            direction: Direction::Demotion,
            reason: FailureReason::ALL[reason],
        };
        let scan = match measured {
            None => scan,
            Some(measured) => with_counters(scan, measured),
        };
        let scan = match active {
            None => scan,
            Some(active) => {
                let active = active[..scan.pages()].iter().copied().collect();
                scan.with_active(active)
            }
        };
        let scan = match sampled {
            None => scan,
            Some(sampled) => with_counts(scan, sampled),
        };
        Period {
            group,
            scan: match frames {
                Some(frames) => {
                    let frames = frames[..scan.pages()].into();
                    scan.with_frames(frames)
                }
                None => scan,
            },
            budget: Budget { fast_pages, moved_pages: u64::MAX },
            decision: decision(&ranges, sizes, ratios, fast_pages),
            outcome: Outcome {
                promoted_pages: 3,
                demoted_pages: fast_pages,
                exchanged_pairs: 1,
                operations: fast_pages / 3,
                failures: ranges[..reason].iter().map(failure).collect(),
                ..Outcome::default()
            },
        }
    }
}

fn any_periods(count: u64) -> impl Strategy<Value = Vec<Period>> {
    (0..count).map(|i| any_period(i as usize % 2, i / 2)).collect::<Vec<_>>()
}

/// Deterministic periods: a group whose pages all stay, with another beside it that grows.
fn some_periods(count: u64) -> Vec<Period> {
    let fixed = layout(PageSize::Huge, &[(0, 100), (7, 30)]);
    (0..count)
        .flat_map(|number| {
            let growing = layout(PageSize::Base, &[(1, number / 3 + 1)]);
            [(0, fixed.clone()), (1, growing)].map(|(group, layout)| {
                let bits = |by: u64| -> PageBits {
                    (0..layout.pages() as u64).map(|p| (p + number).is_multiple_of(by)).collect()
                };
                Period {
                    group,
                    scan: Scan::new(number, layout.clone(), bits(3), bits(2)),
                    budget: Budget::fast(50),
                    decision: Decision {
                        plan: Plan { promotions: vec![range(4096, 4096)], ..Plan::default() },
                        applied: "lru",
                        features: Features {
                            hit_ratio: 0.1 * number as f64,
                            ..Features::default()
                        },
                    },
                    outcome: Outcome { promoted_pages: 1, ..Outcome::default() },
                }
            })
        })
        .collect()
}

fn write(writer: &mut PeriodWriter<impl std::io::Write>, periods: &[Period]) {
    for p in periods {
        writer.period(p.group, &p.scan, &p.budget, &p.decision, &p.outcome).unwrap();
    }
}

fn written(periods: &[Period]) -> Vec<u8> {
    let mut writer = PeriodWriter::new(Vec::new(), "t", header()).unwrap();
    write(&mut writer, periods);
    writer.finish().unwrap().0
}

fn same_scan(a: &Scan, b: &Scan) -> bool {
    (a.period, a.lost_periods) == (b.period, b.lost_periods)
        && a.layout == b.layout
        && a.accessed == b.accessed
        && a.fast == b.fast
        && a.frames == b.frames
        && a.active == b.active
        && a.counts == b.counts
        && a.counters == b.counters
}

/// Whether the record is this period, complete but for what `cut` allows to be missing.
fn is_period(record: &PeriodRecord, period: &Period, cut: bool) -> bool {
    let decision = record.decision.as_ref().map_or(cut, |d| {
        let Decision { plan, applied, features } = &period.decision;
        // By bits: a ratio that is not a number must come back as well.
        let bits = |f: &Features| format!("{f:?}");
        d.plan == *plan && d.applied == *applied && bits(&d.features) == bits(features)
    });
    record.group == period.group
        && same_scan(&record.scan, &period.scan)
        && record.budget.map_or(cut, |b| b == period.budget)
        && decision
        && record.outcome.as_ref().map_or(cut, |o| *o == period.outcome)
}

/// The periods of one group that a recording yields, whether it was cut, and its error.
fn read(
    bytes: &[u8],
    group: usize,
) -> Result<(Vec<PeriodRecord>, bool, Option<RecordingError>), RecordingError> {
    let mut records = PeriodReader::new(bytes, "t")?.records();
    let (mut periods, mut error) = (Vec::new(), None);
    for record in records.by_ref() {
        match record {
            Ok(Record::Period(p)) if p.group == group => periods.push(*p),
            Ok(_) => {}
            Err(e) => error = Some(e),
        }
    }
    Ok((periods, records.truncation().is_some(), error))
}

proptest! {
    #[test]
    fn what_is_recorded_is_read(periods in any_periods(40)) {
        let bytes = written(&periods);
        let reader = PeriodReader::new(&bytes[..], "t").unwrap();
        prop_assert_eq!(reader.header(), &header());
        for group in 0..2 {
            let (got, cut, error) = read(&bytes, group).unwrap();
            prop_assert!(!cut && error.is_none());
            let expected: Vec<_> = periods.iter().filter(|p| p.group == group).collect();
            prop_assert_eq!(got.len(), expected.len());
            for (record, period) in got.iter().zip(expected) {
                prop_assert!(is_period(record, period, false), "{:?} is not {:?}", record, period);
            }
        }
    }

    #[test]
    fn frames_of_garbage_are_an_error(
        garbage in prop::collection::vec(any::<u8>(), 1..60),
        keep in 0usize..80,
    ) {
        // Garbage under a sound checksum: a hostile writer. Sometimes behind a sound scan.
        let mut payload = Vec::new();
        let mut encoder = frame::Encoder::new(2);
        encoder.scan(&mut payload, 0, &some_periods(1)[0].scan);
        payload.truncate(keep);
        payload.extend_from_slice(&garbage);
        let mut writer =
            ContainerWriter::new(Vec::new(), "t", CONTENT, CONTENT_VERSION, &header()).unwrap();
        writer.chunk(CHUNK, 0, &payload).unwrap();
        let bytes = writer.finish().unwrap();
        let frames: Vec<_> = PeriodReader::new(&bytes[..], "t").unwrap().collect();
        prop_assert!(frames.len() <= payload.len() + 1);
        for frame in &frames[..frames.len() - 1] {
            prop_assert!(frame.is_ok(), "only the last is an error");
        }
    }

    #[test]
    fn a_flipped_bit_never_yields_wrong_data(at in 0.0f64..1.0, bit in 0u8..8) {
        let periods = some_periods(12);
        let mut bytes = written(&periods);
        let at = (at * bytes.len() as f64) as usize;
        bytes[at] ^= 1 << bit;
        if let Ok((got, cut, error)) = read(&bytes, 0) {
            prop_assert!(cut || error.is_some());
            for (record, period) in got.iter().zip(periods.iter().filter(|p| p.group == 0)) {
                prop_assert!(is_period(record, period, true));
            }
        }
    }
}

#[test]
fn a_recording_cut_at_any_byte_reads_up_to_the_cut_and_says_so() {
    let periods = some_periods(12);
    let bytes = written(&periods);
    let mine: Vec<_> = periods.iter().filter(|p| p.group == 0).collect();
    let mut most = 0;
    for cut in 0..bytes.len() {
        let Ok((got, reported, error)) = read(&bytes[..cut], 0) else {
            assert_eq!(most, 0, "only a cut in the head is an error");
            continue;
        };
        assert!(reported && error.is_none());
        assert!(got.len() >= most);
        most = got.len();
        assert!(got.iter().zip(&mine).all(|(r, p)| is_period(r, p, false)));
    }
    assert_eq!(most, mine.len());
}

#[test]
fn the_layout_is_shared_while_it_stays() {
    let bytes = written(&some_periods(30));
    let (got, ..) = read(&bytes, 0).unwrap();
    assert!(got.windows(2).all(|w| Arc::ptr_eq(&w[0].scan.layout, &w[1].scan.layout)));
    let (got, ..) = read(&bytes, 1).unwrap();
    for w in got.windows(2) {
        let same = Arc::ptr_eq(&w[0].scan.layout, &w[1].scan.layout);
        assert_eq!(same, w[0].scan.layout == w[1].scan.layout);
    }
}

#[test]
fn a_recording_gets_its_name_when_it_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.trec");
    let partial = dir.path().join("r.trec.partial");
    let periods = some_periods(21);

    // Killed: neither finished nor dropped.
    let mut writer = PeriodWriter::create(&path, header()).unwrap();
    write(&mut writer, &periods);
    std::mem::forget(writer);
    assert!(!path.exists());
    let mut records = PeriodReader::open(&partial).unwrap().records();
    let whole_chunks = 2 * 21 / PERIODS_PER_CHUNK as usize * PERIODS_PER_CHUNK as usize;
    assert_eq!(records.by_ref().map(Result::unwrap).count(), whole_chunks);
    let reported = records.truncation().expect("the cut is reported").to_string();
    assert!(
        reported.contains("r.trec.partial") && reported.contains("cut off after byte"),
        "{reported}"
    );

    // Ended by an error of the writing program: what was held is saved.
    let mut writer = PeriodWriter::create(&path, header()).unwrap();
    write(&mut writer, &periods);
    drop(writer);
    assert!(!path.exists());
    let source = RecordingSource::open(&partial, "huge").unwrap();
    assert_eq!(source.is_whole(), Some(false));
    let (got, cut, _) = read(&fs::read(&partial).unwrap(), 0).unwrap();
    assert_eq!((got.len(), cut), (21, true));

    let mut writer = PeriodWriter::create(&path, header()).unwrap();
    write(&mut writer, &periods);
    assert_eq!(writer.publish().unwrap(), path);
    assert!(!partial.exists());
    assert!(PeriodReader::open(&path).unwrap().is_whole().unwrap());
}

#[test]
fn lost_periods_and_the_end_are_recorded() {
    let mut writer = PeriodWriter::new(Vec::new(), "t", header()).unwrap();
    write(&mut writer, &some_periods(1));
    writer.lost(0, 3, "the tracker was late").unwrap();
    writer.ended(1).unwrap();
    let bytes = writer.finish().unwrap().0;
    let records: Vec<_> =
        PeriodReader::new(&bytes[..], "t").unwrap().records().map(Result::unwrap).collect();
    assert!(matches!(&records[0], Record::Period(p) if p.group == 0));
    assert!(matches!(&records[1], Record::Lost { group: 0, periods: 3, reason }
        if reason == "the tracker was late"));
    assert!(matches!(&records[2], Record::Period(p) if p.group == 1));
    assert!(matches!(&records[3], Record::Ended { group: 1 }));
}

#[test]
fn a_source_yields_one_group_and_knows_where_it_began() {
    let periods = some_periods(20);
    let bytes = written(&periods);
    let reader = PeriodReader::new(Cursor::new(bytes), "t").unwrap();
    let group = reader.group("base").unwrap();
    let mut source = RecordingSource::new(reader, group).unwrap();
    let first = source.first_scan().unwrap();
    assert!(same_scan(first, &periods[1].scan));
    for period in periods.iter().filter(|p| p.group == 1) {
        let got = source.next_period().unwrap().unwrap();
        assert_eq!((&got.layout, &got.accessed), (&period.scan.layout, &period.scan.accessed));
    }
    assert!(source.next_period().unwrap().is_none());
    assert!(source.truncation().is_none());
}

#[test]
fn seeking_goes_to_the_period_and_reads_what_follows() {
    let periods = some_periods(40);
    let mut reader = PeriodReader::new(Cursor::new(written(&periods)), "t").unwrap();
    for wanted in [39, 17, 0, 8] {
        assert!(reader.seek_period(wanted).unwrap());
        let scans: Vec<_> = reader
            .by_ref()
            .filter_map(|f| match f.unwrap() {
                Frame::Scan { group: 0, scan } => Some(scan),
                _ => None,
            })
            .collect();
        let first = scans[0].period;
        assert!(first <= wanted && wanted - first < PERIODS_PER_CHUNK.into());
        for scan in scans {
            assert!(same_scan(&scan, &periods[2 * scan.period as usize].scan));
        }
    }
}

#[test]
fn what_cannot_be_recorded_is_refused_in_one_line() {
    let mut writer = PeriodWriter::new(Vec::new(), "t", header()).unwrap();
    let scan = &some_periods(1)[0].scan;
    let errors = [
        writer.scan(2, scan).unwrap_err().to_string(),
        writer.scan(1, scan).unwrap_err().to_string(),
    ];
    assert_eq!(errors[0], "cannot record into 't': group 2, but its header has 2");
    assert_eq!(errors[1], "cannot record into 't': a scan of group 1 in Huge pages, expected Base");
    let reader = written(&[]);
    let reader = PeriodReader::new(&reader[..], "t").unwrap();
    assert_eq!(
        reader.group("redis").unwrap_err().to_string(),
        "recording 't' has no group 'redis'; expected one of huge, base"
    );
}

#[test]
fn a_chunk_that_leans_on_the_one_before_is_refused() {
    let scan = &some_periods(1)[0].scan;
    let mut encoder = frame::Encoder::new(2);
    let mut writer =
        ContainerWriter::new(Vec::new(), "t", CONTENT, CONTENT_VERSION, &header()).unwrap();
    for _ in 0..2 {
        // No `begin_chunk` between them.
        let mut payload = Vec::new();
        encoder.scan(&mut payload, 0, scan);
        writer.chunk(CHUNK, 0, &payload).unwrap();
    }
    let bytes = writer.finish().unwrap();
    let frames: Vec<_> = PeriodReader::new(&bytes[..], "t").unwrap().collect();
    assert_eq!(frames.len(), 2);
    assert!(frames[1].as_ref().unwrap_err().to_string().contains("scan flags 2, expected 1"));
}

#[test]
fn a_recording_of_the_version_before_is_read_without_what_it_had_not() {
    let Period { scan, .. } = &some_periods(1)[0];
    let mut payload = Vec::new();
    frame::Encoder::new(2).scan(&mut payload, 0, scan);
    // A decision without sizes of operations and an outcome without a count of them.
    payload.extend([4, 0, 0, 3, b'l', b'r', b'u', 0]);
    payload.extend([0; 4 * 8]);
    payload.extend([0; 4]);
    payload.extend([5, 0, 0, 7, 8, 9, 0]);
    let mut writer = ContainerWriter::new(Vec::new(), "t", CONTENT, 1, &header()).unwrap();
    writer.chunk(CHUNK, 0, &payload).unwrap();
    let (got, cut, error) = read(&writer.finish().unwrap(), 0).unwrap();
    assert!(!cut && error.is_none(), "{error:?}");
    assert!(same_scan(&got[0].scan, scan));
    assert_eq!(got[0].decision.as_ref().unwrap().plan, Plan::default());
    let expected =
        Outcome { promoted_pages: 7, demoted_pages: 8, exchanged_pairs: 9, ..Outcome::default() };
    assert_eq!(got[0].outcome, Some(expected));

    let newer = ContainerWriter::new(Vec::new(), "t", CONTENT, CONTENT_VERSION + 1, &header());
    let newer = newer.unwrap().finish().unwrap();
    let error = PeriodReader::new(&newer[..], "t").unwrap_err().to_string();
    assert!(error.contains("version 6, expected 5"), "{error}");
}

#[test]
fn frames_that_stay_take_no_room_and_are_shared() {
    let pages = 10_000;
    let layout = Arc::new(Layout::contiguous(PageSize::Huge, pages));
    let frames: Arc<[u64]> =
        (0..pages).map(|p: u64| p.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20).collect();
    let scan = |number| {
        let none = PageBits::new(pages as usize);
        Scan::new(number, layout.clone(), none.clone(), none).with_frames(frames.clone())
    };
    let mut encoder = frame::Encoder::new(1);
    let sizes: Vec<usize> = (0..3)
        .map(|number| {
            let mut bytes = Vec::new();
            encoder.scan(&mut bytes, 0, &scan(number));
            bytes.len()
        })
        .collect();
    assert!(sizes[0] > 5 * pages as usize && sizes[1] == sizes[2]);
    assert!(sizes[1] < 2600, "two bit vectors and a head: {}", sizes[1]);
    let mut writer = PeriodWriter::new(Vec::new(), "t", header()).unwrap();
    (0..3).for_each(|number| writer.scan(0, &scan(number)).unwrap());
    let (got, ..) = read(&writer.finish().unwrap().0, 0).unwrap();
    let got: Vec<_> = got.iter().map(|r| r.scan.frames.as_ref().unwrap()).collect();
    assert_eq!(*got[0], frames);
    assert!(got.windows(2).all(|w| Arc::ptr_eq(w[0], w[1])));
}
