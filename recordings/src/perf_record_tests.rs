use proptest::prelude::*;

use super::*;

fn read(bytes: &[u8]) -> (Vec<Record>, RecordCounts) {
    let mut reader = RecordReader::new(SampleFormat::of_memory());
    let mut records = Vec::new();
    reader.push(bytes, |record| records.push(record));
    (records, reader.counts())
}

fn sample() -> MemorySample {
    MemorySample {
        pid: Some(42),
        instruction: Some(0x55_5555_1234),
        time_ns: 1_000_000_007,
        address: Some(0x7f00_1234_5678),
        physical: Some(0x8765_4320),
        accesses: 400,
        weight_cycles: 900,
        source: DataSource::of_memory(MemoryLevel::Remote, false),
        kernel: false,
    }
}

/// Word for word what Linux 6.12 writes for `sample_type` 0x8c10f, put together by hand from
/// `perf_output_sample` in its kernel/events/core.c.
#[test]
fn a_sample_is_laid_out_as_the_kernel_does_it() {
    let mut expected: Vec<u8> = vec![9, 0, 0, 0, 2, 0, 72, 0];
    expected.extend(0x55_5555_1234u64.to_le_bytes());
    expected.extend([42, 0, 0, 0, 42, 0, 0, 0]);
    expected.extend(1_000_000_007u64.to_le_bytes());
    expected.extend(0x7f00_1234_5678u64.to_le_bytes());
    expected.extend(400u64.to_le_bytes());
    expected.extend(900u64.to_le_bytes());
    // A load that hit RAM one hop away: op 2; level 0x102 from bit 5; no snoop; lock, TLB and blocked
    // not available; level number 0xd and the remote bit.
    let source =
        0x2u64 | 0x102 << 5 | 0x2 << 19 | 1 << 24 | 1 << 26 | 0xd << 33 | 1 << 37 | 1 << 40;
    expected.extend(source.to_le_bytes());
    expected.extend(0x8765_4320u64.to_le_bytes());
    assert_eq!(SAMPLE_TYPE, 0x8c10f);
    let mut written = Vec::new();
    put_sample(&mut written, &sample());
    assert_eq!(written, expected);
    assert_eq!(read(&written).0, [Record::Sample(sample())]);
}

#[test]
fn data_sources_of_processors_are_distinguished() {
    // As Intel's `snb_pebs` decoding and AMD's `perf_ibs_get_data_src` make them.
    let hit = |level: u64| DataSource(2 | (2 | level) << 5);
    assert_eq!(hit(0x80).memory(), Some(MemoryLevel::Local));
    assert_eq!(hit(0x200).memory(), Some(MemoryLevel::Remote));
    assert_eq!(hit(0x40).memory(), None, "the third level");
    let number = |number: u64, remote: u64| DataSource(4 | number << 33 | remote << 37);
    assert_eq!(number(0xd, 0).memory(), Some(MemoryLevel::Local));
    assert_eq!(number(0xd, 1).memory(), Some(MemoryLevel::Remote));
    assert_eq!(number(0xe, 0).memory(), Some(MemoryLevel::Remote), "persistent memory");
    assert_eq!(number(0x9, 0).memory(), Some(MemoryLevel::Remote), "CXL");
    assert_eq!(number(0x3, 1).memory(), None, "a cache of another node");
    assert!(number(0xd, 0).is_store() && !hit(0x80).is_store());
}

#[test]
fn fields_that_others_ask_for_are_passed_over() {
    // IP, TID, TIME, ADDR, CPU, PERIOD, the struct of weights, the source, the physical address.
    let kind = IP | TID | TIME | ADDR | CPU | PERIOD | WEIGHT_STRUCT | DATA_SRC | PHYS_ADDR;
    let format = SampleFormat::new(kind).unwrap();
    let mut bytes = vec![9, 0, 0, 0, 1, 0x40, 80, 0];
    for word in [0x40_0000u64, 8 << 32 | 7, 11, 0x1000, 3, 1, 5 << 32 | 6, 2, 0x2000] {
        bytes.extend(word.to_le_bytes());
    }
    let mut reader = RecordReader::new(format);
    let mut records = Vec::new();
    reader.push(&bytes, |record| records.push(record));
    let expected = MemorySample {
        pid: Some(7),
        instruction: Some(0x40_0000),
        time_ns: 11,
        address: Some(0x1000),
        physical: Some(0x2000),
        accesses: 1,
        weight_cycles: 6,
        source: DataSource(2),
        kernel: true,
    };
    assert_eq!(records, [Record::Sample(expected)]);
    // A call chain has no fixed size.
    assert_eq!(SampleFormat::new(kind | 1 << 5), None);
}

#[test]
fn addresses_of_a_guest_are_none_of_the_host() {
    let mut bytes = Vec::new();
    put_sample(&mut bytes, &sample());
    for (mode, kernel, own) in
        [(2, false, true), (1, true, true), (4, true, false), (5, false, false)]
    {
        bytes[4] = mode;
        let [Record::Sample(got)] = read(&bytes).0[..] else { panic!("one sample") };
        assert_eq!(got.kernel, kernel, "{mode}");
        let addresses = [got.address, got.instruction, got.physical];
        assert!(addresses.iter().all(|address| address.is_some() == own), "{mode}: {got:?}");
    }
}

#[test]
fn losses_and_throttling_are_counted() {
    let mut bytes = Vec::new();
    put_lost(&mut bytes, 12);
    put_throttle(&mut bytes, 5, true);
    put_throttle(&mut bytes, 6, false);
    put_lost(&mut bytes, 1);
    // An exit of a process, whatever it says.
    bytes.extend([4, 0, 0, 0, 0, 0, 16, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    let (records, counts) = read(&bytes);
    let expected =
        [Record::Lost(12), Record::Throttle, Record::Unthrottle, Record::Lost(1), Record::Other];
    assert_eq!(records, expected);
    let expected = RecordCounts { lost: 13, throttled: 1, others: 1, ..RecordCounts::default() };
    assert_eq!(counts, expected);
}

#[test]
fn what_is_damaged_is_counted_and_the_next_record_is_found() {
    let mut one = Vec::new();
    put_sample(&mut one, &sample());
    // A sample of another format, of another size: refused whole.
    let mut longer = one.clone();
    longer[6] += 8;
    longer.extend([0; 8]);
    let cut = &one[..one.len() - 3];
    for damage in [&longer[..], cut, &[0xff; 11], &[0; 24]] {
        let bytes = [&one[..], damage, &one, &one].concat();
        let (records, counts) = read(&bytes);
        assert_eq!(counts.malformed, 1, "{damage:?}");
        assert!(counts.skipped_bytes > 0);
        // A cut record ends inside the next one, which is then invalid.
        assert_eq!(records.len(), 3, "{damage:?}");
        assert_eq!(records.last(), Some(&Record::Sample(sample())));
    }
}

fn record() -> impl Strategy<Value = Record> {
    let words = (any::<[u64; 6]>(), any::<bool>(), any::<bool>(), 0u32..100);
    let sample = words.prop_map(
        |([time_ns, address, physical, weight, instruction, accesses], store, far, pid)| {
            let level = if far { MemoryLevel::Remote } else { MemoryLevel::Local };
            Record::Sample(MemorySample {
                pid: Some(pid).filter(|&pid| pid > 0),
                instruction: Some(instruction).filter(|&at| at != 0),
                time_ns,
                address: Some(address).filter(|&address| address != 0),
                physical: Some(physical).filter(|&physical| physical != 0),
                accesses,
                weight_cycles: weight,
                source: DataSource::of_memory(level, store),
                kernel: store,
            })
        },
    );
    prop_oneof![
        8 => sample,
        1 => (0u64..1 << 40).prop_map(Record::Lost),
        1 => Just(Record::Throttle),
        1 => Just(Record::Unthrottle),
    ]
}

proptest! {
    #[test]
    fn records_come_back_however_the_stream_is_cut(
        records in prop::collection::vec(record(), 0..40),
        cuts in prop::collection::vec(1usize..200, 1..40),
    ) {
        let mut bytes = Vec::new();
        for record in &records {
            match record {
                Record::Sample(sample) => put_sample(&mut bytes, sample),
                Record::Lost(count) => put_lost(&mut bytes, *count),
                Record::Throttle | Record::Unthrottle => {
                    put_throttle(&mut bytes, 3, *record == Record::Throttle);
                }
                Record::Other => {}
            }
        }
        let mut reader = RecordReader::new(SampleFormat::of_memory());
        let (mut got, mut rest) = (Vec::new(), &bytes[..]);
        for cut in cuts.iter().cycle() {
            if rest.is_empty() { break }
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            reader.push(now, |record| got.push(record));
            rest = later;
        }
        prop_assert_eq!(got, records);
        prop_assert_eq!(reader.counts().malformed, 0);
    }

    #[test]
    fn no_bytes_break_the_reader_or_make_it_keep_much(
        pieces in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..300),
                // Headers of every type and size.
                (0u32..20, any::<u16>(), any::<u16>()).prop_map(|(kind, misc, size)| {
                    [&kind.to_le_bytes()[..], &misc.to_le_bytes(), &size.to_le_bytes()].concat()
                }),
            ],
            0..40,
        ),
    ) {
        let mut reader = RecordReader::new(SampleFormat::of_memory());
        let (mut given, mut records) = (0u64, 0u64);
        for piece in &pieces {
            reader.push(piece, |_| records += 1);
            given += piece.len() as u64;
            prop_assert!(reader.rest.len() <= usize::from(u16::MAX) + 8);
        }
        let counts = reader.counts();
        prop_assert!(counts.skipped_bytes + 8 * records + reader.rest.len() as u64 <= given);
    }
}
