//! A container against cuts, flipped bits and garbage: an error or a cut, never wrong data.

use std::io::Cursor;

use proptest::prelude::*;

use super::*;
use crate::error::RecordingError;

const KIND: ChunkKind = ChunkKind::new(b"TEST");

fn payloads() -> Vec<Vec<u8>> {
    vec![b"first".to_vec(), Vec::new(), (0..2000u32).map(|i| ((i * i) >> 3) as u8).collect()]
}

fn written() -> Vec<u8> {
    let mut writer = ContainerWriter::new(Vec::new(), "t", "test", 7, &"a header").unwrap();
    for (key, payload) in payloads().iter().enumerate() {
        writer.chunk(KIND, key as u64, payload).unwrap();
    }
    writer.finish().unwrap()
}

type Read = (Vec<Vec<u8>>, Option<Truncation>);

fn read(bytes: &[u8]) -> Result<Read, (Vec<Vec<u8>>, RecordingError)> {
    let (mut reader, header) =
        ContainerReader::new::<String>(bytes, "t", "test", 7).map_err(|e| (Vec::new(), e))?;
    assert_eq!(header, "a header");
    let mut chunks = Vec::new();
    loop {
        match reader.next_chunk() {
            Ok(Some(chunk)) => {
                assert_eq!(chunk.kind, KIND);
                chunks.push(chunk.payload);
            }
            Ok(None) => return Ok((chunks, reader.truncation().cloned())),
            Err(e) => {
                assert!(reader.next_chunk().unwrap().is_none(), "nothing after an error");
                return Err((chunks, e));
            }
        }
    }
}

#[test]
fn what_is_written_is_read() {
    assert_eq!(read(&written()).unwrap(), (payloads(), None));
}

#[test]
fn a_recording_cut_at_any_byte_reads_up_to_the_cut_and_says_so() {
    let bytes = written();
    let mut most = 0;
    for cut in 0..bytes.len() {
        match read(&bytes[..cut]) {
            Ok((chunks, truncation)) => {
                assert_eq!(chunks[..], payloads()[..chunks.len()]);
                assert!(chunks.len() >= most, "a later cut leaves no less");
                most = chunks.len();
                let truncation = truncation.expect("a cut is reported");
                assert!(truncation.offset <= cut as u64);
            }
            Err((chunks, e)) => {
                assert!(chunks.is_empty() && most == 0, "only a cut in the head is an error");
                assert!(matches!(
                    e,
                    RecordingError::NoHeader { .. } | RecordingError::NotARecording { .. }
                ));
            }
        }
    }
    assert_eq!(most, payloads().len());
}

#[test]
fn no_flipped_bit_goes_unnoticed() {
    let bytes = written();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let (chunks, _) = read(&flipped).expect_err("a flipped bit is an error");
        assert_eq!(chunks[..], payloads()[..chunks.len()], "bit {bit}");
    }
}

#[test]
fn bytes_after_the_end_are_an_error() {
    let mut bytes = written();
    bytes.push(0);
    let (chunks, e) = read(&bytes).unwrap_err();
    assert_eq!(chunks, payloads());
    assert!(e.to_string().contains("after the trailer"), "{e}");
}

#[test]
fn other_files_versions_and_contents_are_distinguished() {
    let error = |bytes: &[u8], content, version| {
        ContainerReader::new::<String>(bytes, "t", content, version).unwrap_err().to_string()
    };
    assert_eq!(
        error(b"PAR1 and so on", "test", 7),
        "'t' is not a Terrace recording: it does not begin with \"TERRACE\"; give a file that Terrace recorded"
    );
    assert!(error(&written(), "test", 8).contains("test version 7, expected 8"));
    assert!(error(&written(), "other", 7).contains("holds 'test', expected 'other'"));
    let mut newer = written();
    newer[8] = 2;
    assert!(error(&newer, "test", 7).contains("container version 2, expected 1"));
}

#[test]
fn a_length_that_the_file_does_not_hold_allocates_nothing() {
    let mut bytes = ContainerWriter::new(Vec::new(), "t", "test", 7, &"a header")
        .and_then(|w| w.finish())
        .unwrap();
    bytes.truncate(HEAD_BYTES + number_at(&bytes, 12) as usize);
    for (raw, stored) in [(u32::MAX, 10), (10, u32::MAX), (1 << 29, 1 << 29)] {
        let mut hostile = bytes.clone();
        let mut head = Vec::new();
        for n in [KIND.0, raw, stored, 0] {
            head.extend_from_slice(&n.to_le_bytes());
        }
        let crc = checksum(&[&head]);
        hostile.extend_from_slice(&head);
        hostile.extend_from_slice(&crc.to_le_bytes());
        hostile.extend_from_slice(b"few");
        match read(&hostile) {
            Ok((chunks, cut)) => assert!(chunks.is_empty() && cut.is_some()),
            Err((chunks, e)) => {
                assert!(chunks.is_empty() && matches!(e, RecordingError::Damaged { .. }));
            }
        }
    }
}

fn number_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn a_payload_that_expands_beyond_its_length_is_stopped() {
    let bomb = zstd::bulk::compress(&vec![0; 50 << 20], 3).unwrap();
    let mut bytes = written();
    bytes.truncate(HEAD_BYTES + number_at(&bytes, 12) as usize);
    let mut head = Vec::new();
    for n in [KIND.0, 100, bomb.len() as u32, checksum(&[&bomb])] {
        head.extend_from_slice(&n.to_le_bytes());
    }
    let crc = checksum(&[&head]);
    bytes.extend_from_slice(&head);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes.extend_from_slice(&bomb);
    let (_, e) = read(&bytes).unwrap_err();
    assert!(e.to_string().contains("not of 100 bytes"), "{e}");
}

#[test]
fn the_index_leads_to_each_chunk_and_is_missing_from_a_cut_file() {
    let bytes = written();
    let open = |bytes: Vec<u8>| {
        ContainerReader::new::<String>(Cursor::new(bytes), "t", "test", 7).unwrap().0
    };
    let mut reader = open(bytes.clone());
    let index = reader.index().unwrap().expect("a whole file has an index");
    assert_eq!(index.iter().map(|e| e.key).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(reader.next_chunk().unwrap().unwrap().payload, payloads()[0], "place is kept");
    for (entry, payload) in index.iter().zip(payloads()).rev() {
        reader.seek(entry).unwrap();
        assert_eq!(reader.next_chunk().unwrap().unwrap().payload, payload);
    }
    let mut cut = open(bytes[..bytes.len() - 1].to_vec());
    assert_eq!(cut.index().unwrap(), None);
    assert_eq!(cut.next_chunk().unwrap().unwrap().payload, payloads()[0]);
}

proptest! {
    #[test]
    fn garbage_is_never_read_as_data(
        garbage in prop::collection::vec(any::<u8>(), 0..200),
        keep in 0usize..400,
    ) {
        // Garbage alone, and garbage behind the sound beginning of a file.
        prop_assert!(read(&garbage).is_err());
        let whole = written();
        let keep = keep.min(whole.len());
        let mut bytes = whole[..keep].to_vec();
        bytes.extend_from_slice(&garbage);
        if !whole.starts_with(&bytes) {
            let chunks = match read(&bytes) {
                Ok((chunks, truncation)) => {
                    prop_assert!(truncation.is_some());
                    chunks
                }
                Err((chunks, _)) => chunks,
            };
            prop_assert_eq!(&chunks[..], &payloads()[..chunks.len()]);
        }
    }
}
