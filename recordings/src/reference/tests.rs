//! A reference recording: what goes in comes out in order, cut or whole; garbage never panics.

use std::io::Cursor;
use std::ops::ControlFlow;

use proptest::prelude::*;

use super::block::{Encoder, MAX_RECORD_BYTES};
use super::*;
use crate::container::ContainerWriter;

fn header() -> Header {
    let shape = CacheShape { size_bytes: 32 << 10, ways: 8 };
    Header {
        command: vec!["program".to_owned()],
        filter: Filter {
            level: Level::None,
            line_bytes: 64,
            l1: shape,
            l2: shape,
            llc: shape,
            sample_one_in: 1,
        },
        base_page_bytes: 4096,
        huge_page_bytes: 2 << 20,
        write_backs: true,
        created_by: "test".to_owned(),
        executed_by: "test".to_owned(),
    }
}

/// Blocks of (stream, steps of time, records), each stream's time going on where it was.
type Blocks = Vec<(u32, Vec<(u64, Record)>)>;

fn write(blocks: &Blocks) -> (Vec<u8>, Vec<Placed>) {
    let mut writer = ReferenceWriter::new(Vec::new(), "t", &header()).unwrap();
    writer.process(&Process { process: 0, system_id: 0, command: vec![] }).unwrap();
    writer.maps(0, 0, b"1000-3000 rw-p 00000000 00:00 0 [heap]\n").unwrap();
    let mut clocks = [(0u64, 0u64); 4];
    let mut placed = Vec::new();
    for (stream, records) in blocks {
        let (time, instructions) = &mut clocks[*stream as usize];
        let mut head = BlockHead {
            stream: *stream,
            process: 0,
            time: *time,
            instructions: *instructions,
            references: 0,
        };
        let mut encoder = Encoder::new(*time);
        let mut bytes = Vec::new();
        for (step, record) in records {
            *time += step;
            *instructions += step;
            placed.push(Placed {
                stream: *stream,
                process: 0,
                time: *time,
                instructions: *instructions,
                record: *record,
            });
            let mut out = [0; MAX_RECORD_BYTES];
            let length = match *record {
                Record::Reference(r) => {
                    head.references += 1;
                    encoder.reference(&mut out, *time, r)
                }
                Record::WriteBack(w) => encoder.write_back(&mut out, *time, w),
                Record::Event(e) => encoder.event(&mut out, *time, e),
            };
            if let Record::Event(Event::Waited { time: waited }) = record {
                *time += waited;
            }
            bytes.extend_from_slice(&out[..length]);
        }
        writer.block(head, &bytes).unwrap();
    }
    // Within a stream, order is that of writing; among streams, time, then number.
    placed.sort_by_key(|p| (p.time, p.stream));
    (writer.finish().unwrap(), placed)
}

fn read(bytes: &[u8], from: u64) -> Result<Vec<Placed>, crate::error::RecordingError> {
    let mut reader = ReferenceReader::new(Cursor::new(bytes), "t")?;
    reader.records_from(from).collect()
}

fn records() -> impl Strategy<Value = Record> {
    let number = || prop_oneof![0u64..300, any::<u64>()];
    prop_oneof![
        4 => (any::<u64>(), 0u8..7, any::<bool>()).prop_map(|(address, size_log2, store)| {
            Record::Reference(Reference { address, size_log2, store })
        }),
        4 => (0u64..1 << 30, 0u8..7, any::<bool>()).prop_map(|(address, size_log2, store)| {
            Record::Reference(Reference { address, size_log2, store })
        }),
        2 => any::<u64>().prop_map(|line| Record::WriteBack(WriteBack { address: line << 4 })),
        1 => (number(), number(), number(), number()).prop_map(|(a, b, c, d)| {
            Record::Event(Event::Map { address: a, length_bytes: b, protection: c, flags: d })
        }),
        1 => (number(), any::<bool>())
            .prop_map(|(code, process)| Record::Event(Event::Exit { code, process })),
        1 => (0u64..1000).prop_map(|time| Record::Event(Event::Waited { time })),
        1 => (any::<u64>(), number()).prop_map(|(address, size_bytes)| {
            Record::Event(Event::Fetch { address, size_bytes })
        }),
        1 => (100u64..200).prop_map(|kind| Record::Event(Event::Unknown { kind })),
    ]
}

fn blocks() -> impl Strategy<Value = Blocks> {
    let steps = prop_oneof![0u64..20, 0u64..100_000];
    let records = prop::collection::vec((steps, records()), 0..30);
    prop::collection::vec((0u32..4, records), 0..12)
}

proptest! {
    #[test]
    fn what_is_written_is_read_merged_by_time(blocks in blocks(), from in 0u64..200_000) {
        let (bytes, expected) = write(&blocks);
        prop_assert_eq!(&read(&bytes, 0).unwrap(), &expected);
        let later: Vec<_> = expected.iter().filter(|p| p.time >= from).copied().collect();
        prop_assert_eq!(read(&bytes, from).unwrap(), later);
    }

    #[test]
    fn a_cut_recording_reads_up_to_the_cut_and_says_so(blocks in blocks(), cut: prop::sample::Index) {
        let (bytes, expected) = write(&blocks);
        let cut = cut.index(bytes.len());
        if let Ok(mut reader) = ReferenceReader::new(Cursor::new(&bytes[..cut]), "t") {
            prop_assert!(reader.truncation().is_some());
            for placed in reader.records() {
                prop_assert!(expected.contains(&placed.unwrap()));
            }
        }
    }

    #[test]
    fn garbage_never_panics(
        garbage in prop::collection::vec(any::<u8>(), 0..300),
        stream: u32,
        time: u64,
    ) {
        let _ = read(&garbage, 0);
        let mut writer = ReferenceWriter::new(Vec::new(), "t", &header()).unwrap();
        let head = BlockHead { stream, process: 1, time, instructions: time, references: 9 };
        writer.block(head, &garbage).unwrap();
        writer.maps(0, 0, &garbage).unwrap();
        let bytes = writer.finish().unwrap();
        let _ = read(&bytes, 0);
    }
}

/// Keeps the records of a visitor, up to a number.
struct Kept {
    records: Vec<(u32, u32, u64, Record)>,
    most: usize,
}

impl Kept {
    fn keep(&mut self, stream: u32, process: u32, instructions: u64, r: Record) -> ControlFlow<()> {
        self.records.push((stream, process, instructions, r));
        if self.records.len() < self.most {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }
}

impl Visitor for Kept {
    fn reference(&mut self, stream: u32, process: u32, n: u64, r: Reference) -> ControlFlow<()> {
        self.keep(stream, process, n, Record::Reference(r))
    }

    fn other(&mut self, p: Placed) -> ControlFlow<()> {
        self.keep(p.stream, p.process, p.instructions, p.record)
    }
}

proptest! {
    #[test]
    fn a_visitor_is_given_what_the_iterator_gives_however_often_it_breaks(
        blocks in blocks(),
        from in prop_oneof![Just(0), 0u64..200_000],
        most in 1usize..40,
    ) {
        let (bytes, _) = write(&blocks);
        let expected = read(&bytes, from).unwrap();
        let mut reader = ReferenceReader::new(Cursor::new(&bytes), "t").unwrap();
        let mut references = reader.records_from(from);
        let mut got = Vec::new();
        loop {
            let mut kept = Kept { records: Vec::new(), most };
            references.visit(&mut kept).unwrap();
            got.extend_from_slice(&kept.records);
            // The two ways may take turns.
            match references.next() {
                None => break,
                Some(placed) => {
                    let p = placed.unwrap();
                    got.push((p.stream, p.process, p.instructions, p.record));
                }
            }
        }
        let expected: Vec<_> =
            expected.iter().map(|p| (p.stream, p.process, p.instructions, p.record)).collect();
        prop_assert_eq!(got, expected);
    }

    #[test]
    fn a_visitor_of_garbage_gets_records_or_an_error_and_never_panics(
        garbage in prop::collection::vec(any::<u8>(), 0..300),
        time: u64,
    ) {
        let mut writer = ReferenceWriter::new(Vec::new(), "t", &header()).unwrap();
        let head = BlockHead { stream: 0, process: 1, time, instructions: time, references: 9 };
        writer.block(head, &garbage).unwrap();
        let bytes = writer.finish().unwrap();
        let by_iterator = read(&bytes, 0);
        let mut reader = ReferenceReader::new(Cursor::new(&bytes), "t").unwrap();
        let mut kept = Kept { records: Vec::new(), most: usize::MAX };
        let visited = reader.records().visit(&mut kept);
        prop_assert_eq!(visited.is_ok(), by_iterator.is_ok());
        if let Ok(expected) = by_iterator {
            prop_assert_eq!(kept.records.len(), expected.len());
        }
    }
}

#[test]
fn maps_and_processes_are_read() {
    let (bytes, _) = write(&vec![]);
    let reader = ReferenceReader::new(Cursor::new(bytes), "t").unwrap();
    assert_eq!(reader.processes().len(), 1);
    let region = &reader.maps()[0].regions[0];
    assert_eq!((region.start, region.end, region.kind), (0x1000, 0x3000, RegionKind::Heap));
    let whole = Region { start: 0x1f_f000, end: 0x60_0000, ..region.clone() };
    assert_eq!(whole.huge_page_bytes(2 << 20), 4 << 20);
    assert_eq!(region.huge_page_bytes(2 << 20), 0);
}

#[test]
fn an_ending_is_reported_and_a_recording_of_the_first_version_has_none() {
    let ending = Ending { signal: Some(9), killed: 1, ..Ending::default() };
    let mut writer = ReferenceWriter::new(Vec::new(), "t", &header()).unwrap();
    writer.ending(&ending).unwrap();
    let bytes = writer.finish().unwrap();
    let reader = ReferenceReader::new(Cursor::new(bytes), "t").unwrap();
    assert_eq!(reader.ending(), Some(&ending));
    assert!(reader.ending().unwrap().is_cut_off() && !Ending::default().is_cut_off());

    let mut first = serde_json::to_value(header()).unwrap();
    first.as_object_mut().unwrap().remove("write_backs");
    let write = |version| {
        let writer = ContainerWriter::new(Vec::new(), "t", CONTENT, version, &first).unwrap();
        ReferenceReader::new(Cursor::new(writer.finish().unwrap()), "t")
    };
    let reader = write(1).unwrap();
    assert!(reader.ending().is_none() && !reader.header().write_backs);
    let error = write(3).unwrap_err().to_string();
    assert!(error.contains("references version 3, expected 2"), "{error}");
}

#[test]
fn references_are_counted_by_process_and_of_equals_the_first_is_the_largest() {
    let mut builder = ReferenceBuilder::new(Vec::new(), "t", &header()).unwrap();
    for n in 0..300 {
        // (stream, process, references): of the last stream there are only events.
        for (stream, process, most) in [(0, 0, 3), (1, 1, 150), (2, 2, 300), (3, 1, 150)] {
            if n < most {
                let reference = Reference { address: 64 * n, size_log2: 3, store: false };
                builder.reference(stream, process, n, reference).unwrap();
            }
        }
        builder.event(4, 4, n, Event::Mark { mark: n }).unwrap();
    }
    let bytes = builder.finish(false).unwrap();
    let known = |process, references, streams: &[u32]| ProcessReferences {
        process,
        references,
        streams: streams.to_vec(),
    };
    let expected = [known(0, 3, &[0]), known(1, 300, &[1, 3]), known(2, 300, &[2])];
    // Whole, and without its end.
    for kept in [bytes.len(), bytes.len() - 30] {
        let mut reader = ReferenceReader::new(Cursor::new(&bytes[..kept]), "t").unwrap();
        assert_eq!(reader.truncation().is_some(), kept < bytes.len());
        assert_eq!(reader.by_process().unwrap(), expected);
        assert_eq!(reader.largest_process().unwrap(), Some(expected[1].clone()));
    }
}
