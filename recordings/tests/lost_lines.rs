//! What perf lost of DAMON's tracepoint is missing after an import, and nothing else.

use std::io::{Cursor, Read, sink};

use flate2::read::GzDecoder;
use terrace_recordings::import::{self, ImportOptions, Imported, Input};

const DAMO_TEXT: &[u8] = include_bytes!("data/damo-3.4.3.perf.txt.gz");

fn import(text: String) -> Imported {
    let options = ImportOptions {
        page_size: None,
        period_ms: None,
        sample_one_in: None,
        created_by: String::new(),
    };
    let mut input = Input::new(Box::new(Cursor::new(text.into_bytes())), "file").unwrap();
    import::find("damon").unwrap().import(&mut input, &mut sink(), "out", &options).unwrap()
}

#[test]
fn a_lost_line_of_damons_tracepoint_loses_its_snapshot_and_no_other() {
    let mut text = String::new();
    GzDecoder::new(DAMO_TEXT).read_to_string(&mut text).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let regions = |line: &str| {
        let (_, after) = line.split_once("nr_regions=").unwrap();
        after.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let third = lines.len() / 3;
    for lost in third..2 * third {
        let kept = lines.iter().enumerate().filter(|(n, _)| *n != lost);
        let kept = kept.map(|(_, line)| format!("{line}\n")).collect::<String>();
        let imported = import(kept);
        let counted = ["snapshots", "incomplete", "regions", "periods"];
        let counted = counted.map(|name| imported.count(name).unwrap());
        assert_eq!(counted, [23, 1, 128 - regions(lines[lost]), 23], "{}", lines[lost]);
        assert_eq!(imported.cut, None, "{}", lines[lost]);
    }
}
