use proptest::prelude::*;

use super::encode::take_window;
use super::*;
use crate::codec::Cursor;
use crate::error::RecordingError;

fn header(threads: u16, windows: &[Window]) -> Header {
    Header {
        workload: "w".into(),
        threads,
        footprint_bytes: Some(1 << 20),
        references: 1000,
        windows: windows.len() as u64,
        window_references: 2,
        lead_references: 1,
        lines: 64,
        seed: 7,
        experiment: String::new(),
        created_by: "test".into(),
    }
}

fn write(threads: u16, windows: &[Window], tail: &[WindowStep]) -> Vec<u8> {
    let mut writer = WindowsWriter::new(Vec::new(), "t", &header(threads, windows)).unwrap();
    windows.iter().for_each(|w| writer.window(w).unwrap());
    writer.finish(tail).unwrap()
}

fn read(bytes: &[u8]) -> Result<(Vec<Window>, Vec<WindowStep>), RecordingError> {
    let mut reader = WindowsReader::new(bytes, "t")?;
    let mut windows = Vec::new();
    while let Some(window) = reader.next_window()? {
        windows.push(window);
    }
    Ok((windows, reader.tail().to_vec()))
}

fn access(threads: u16) -> impl Strategy<Value = WindowStep> {
    let kind = prop_oneof![Just(Kind::Load), Just(Kind::DependentLoad), Just(Kind::Store)];
    (0u64..1 << 63, any::<u32>(), 0..threads, 1u8.., kind).prop_map(
        |(address, instructions, thread, size, kind)| {
            WindowStep::Access(WindowAccess { address, instructions, thread, size, kind })
        },
    )
}

fn event() -> impl Strategy<Value = WindowStep> {
    let range = || (0u64..1 << 40, 0u64..1 << 10).prop_map(|(at, n)| (at << 12, n << 12));
    prop_oneof![
        Just(WindowStep::Barrier),
        Just(WindowStep::MainBegins),
        range().prop_map(|(start, size_bytes)| WindowStep::Unmap { start, size_bytes }),
        (range(), any::<bool>()).prop_map(|((start, size_bytes), huge_eligible)| {
            WindowStep::Map { start, size_bytes, huge_eligible }
        }),
    ]
}

fn steps(threads: u16) -> impl Strategy<Value = Vec<WindowStep>> {
    prop::collection::vec(prop_oneof![3 => access(threads), 1 => event()], 0..8)
}

fn window(threads: u16) -> impl Strategy<Value = Window> {
    let line = (0u64..1 << 58, 0..threads, any::<bool>()).prop_map(|(n, thread, is_written)| {
        WindowLine { address: n * LINE_BYTES, thread, is_written }
    });
    let measured = (prop::collection::vec(access(threads), 3), event());
    (any::<u64>(), steps(threads), prop::collection::vec(line, 0..20), measured).prop_map(
        |(position, before, lines, (mut steps, between))| {
            steps.insert(1, between);
            Window { position, before, lines, steps }
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        (threads, windows, tail) in (1u16..5).prop_flat_map(|threads| {
            (Just(threads), prop::collection::vec(window(threads), 0..4), steps(threads))
        })
    ) {
        let bytes = write(threads, &windows, &tail);
        prop_assert_eq!(read(&bytes).unwrap(), (windows, tail));
    }

    #[test]
    fn damage_and_cuts_are_errors_and_never_other_data(
        windows in prop::collection::vec(window(2), 1..3), at: usize, flip in 1u8..,
    ) {
        let bytes = write(2, &windows, &[WindowStep::Barrier]);
        let cut = &bytes[..at % bytes.len()];
        if let Ok((got, _)) = read(cut) {
            // Only index and trailer are missing.
            prop_assert_eq!(&got, &windows);
        }
        let mut flipped = bytes.clone();
        flipped[at % bytes.len()] ^= flip;
        if let Ok((got, _)) = read(&flipped) {
            prop_assert_eq!(&got, &windows);
        }
    }

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), threads: u16) {
        let header = Header { lines: u64::MAX, threads, ..header(1, &[]) };
        let _ = take_window(&mut Cursor::new(&bytes), &header);
    }
}

#[test]
fn a_window_with_other_numbers_of_references_is_refused() {
    let access =
        WindowAccess { address: 64, instructions: 1, thread: 0, size: 8, kind: Kind::Load };
    let steps = vec![WindowStep::Access(access); 4];
    let windows = [Window { position: 0, before: vec![], lines: vec![], steps }];
    let error = read(&write(1, &windows, &[])).unwrap_err().to_string();
    assert!(error.contains("a window of 4 references, expected 3"), "{error}");
}

#[test]
fn a_file_that_lacks_windows_is_named_with_how_many() {
    let header = Header { windows: 5, ..header(1, &[]) };
    let bytes = WindowsWriter::new(Vec::new(), "t", &header).unwrap().finish(&[]).unwrap();
    let error = read(&bytes).unwrap_err().to_string();
    assert!(error.contains("0 of its 5 windows"), "{error}");
}
