//! Importers and exporters: totals equal the source tool's own, written files can be read again,
//! cut and hostile files end in one line and leave nothing.

use std::io::{self, Cursor, Read, Write};
use std::path::Path;

use proptest::prelude::*;
use terrace_recordings::champsim::Instruction;
use terrace_recordings::export::{self, ExportOptions};
use terrace_recordings::import::{self, FORMATS, ImportError, ImportOptions, Imported, Input};
use terrace_recordings::period::{PeriodReader, Record as PeriodRecord};
use terrace_recordings::reference::{Event, Placed, Record, Reference, ReferenceReader};
use terrace_recordings::survey::{Survey, survey};

const DAMO_JSON: &[u8] = include_bytes!("data/damo-3.4.3.json.zlib");
const DAMO_TEXT: &[u8] = include_bytes!("data/damo-3.4.3.perf.txt.gz");
const DAMO_V1: &[u8] = include_bytes!("data/damo-1.8.0.v1.data");
const DAMO_V2: &[u8] = include_bytes!("data/damo-1.8.0.v2.data");

const LACKEY: &str = "\
==7== Lackey, an example Valgrind tool
==7== Command: ./t
I  0401ab70,3
I  0401ab73,5
 S 1fff000758,8
I  0401b770,1
 L 1fff000750,10
 M 0421c7cc,4
==7==
==7==   guest instrs:  3
";

const PERF: &str = "\
# captured on: today
               t  3976/3976   1618.501809:          page-faults:     55d08fa92018 ffffffff81752b6a
  Web Content 12/13 [003]  1618.501857:     4 cpu/mem-stores/P:     7f6a1fce0110     7f6a1fcc6b70
\t    7f6a1fcc6b70 work+0x10 (/bin/t)

   t  3976 1618.6: cpu/mem-loads,ldlat=30/P: 7f00  68100142 |OP STORE|LVL L1 hit|SNP None 7 4010
  :-1    -1/-1    1618.65: cpu/mem-loads/:             7f00 4010
   t  3976/3976   1618.7: cpu/mem-loads/:                0 4010
   t  3976/3976   1618.8: cpu/mem-loads/: ffff8881056c4000 4010
";

fn options() -> ImportOptions {
    ImportOptions {
        page_size: None,
        period_ms: None,
        sample_one_in: None,
        created_by: "test".to_owned(),
    }
}

fn import(format: &str, bytes: &[u8]) -> Result<(Imported, Vec<u8>), ImportError> {
    import_with(format, bytes, &options())
}

fn import_with(
    format: &str,
    bytes: &[u8],
    options: &ImportOptions,
) -> Result<(Imported, Vec<u8>), ImportError> {
    let mut out = Vec::new();
    let mut input = Input::new(Box::new(Cursor::new(bytes.to_vec())), "file")?;
    let imported = import::find(format)?.import(&mut input, &mut out, "out", options)?;
    Ok((imported, out))
}

fn references(recording: &[u8]) -> Vec<Placed> {
    let mut reader = ReferenceReader::new(Cursor::new(recording), "r").unwrap();
    assert!(reader.truncation().is_none());
    reader.records().map(Result::unwrap).collect()
}

fn champsim(instructions: &[Instruction]) -> Vec<u8> {
    instructions.iter().flat_map(Instruction::to_bytes).collect()
}

fn some_instructions() -> Vec<Instruction> {
    (1..50u64)
        .map(|n| Instruction {
            ip: 0x40_0000 + 3 * n,
            is_branch: u8::from(n % 5 == 0),
            branch_taken: u8::from(n % 10 == 0),
            stores: [if n % 3 == 0 { 0x1000 * n } else { 0 }, 0],
            loads: [0x2000 * n, if n % 2 == 0 { 64 * n } else { 0 }, 0, 0],
            ..Instruction::default()
        })
        .collect()
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    liblzma::read::XzEncoder::new(bytes, 1).read_to_end(&mut out).unwrap();
    out
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zst(bytes: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(bytes, 1).unwrap()
}

/// A file of each format and each of its forms.
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let trace = champsim(&some_instructions());
    let mut json = Vec::new();
    flate2::read::ZlibDecoder::new(DAMO_JSON).read_to_end(&mut json).unwrap();
    vec![
        ("champsim", xz(&trace)),
        ("champsim", gz(&trace)),
        ("champsim", zst(&trace)),
        ("champsim", trace),
        ("lackey", LACKEY.into()),
        ("lackey", gz(LACKEY.as_bytes())),
        ("perf", PERF.into()),
        ("damon", DAMO_JSON.to_vec()),
        ("damon", json[..9000].to_vec()),
        ("damon", DAMO_TEXT.to_vec()),
        ("damon", DAMO_V1.to_vec()),
        ("damon", DAMO_V2.to_vec()),
    ]
}

/// An error is one line of reasonable length that names the file.
fn is_proper(error: &ImportError) -> bool {
    let text = error.to_string();
    !text.contains('\n') && text.len() < 500 && (text.contains("file") || text.contains("out"))
}

#[test]
fn lackeys_lines_become_fetches_loads_and_stores() {
    let (imported, recording) = import("lackey", LACKEY.as_bytes()).unwrap();
    let totals = [("instructions", 3), ("loads", 2), ("stores", 2), ("modifies", 1)];
    assert_eq!(imported, Imported { counts: totals.to_vec(), ..Imported::default() });
    let fetch = |address, size_bytes| Record::Event(Event::Fetch { address, size_bytes });
    let data =
        |address, size_log2, store| Record::Reference(Reference { address, size_log2, store });
    let got: Vec<_> = references(&recording).iter().map(|p| (p.instructions, p.record)).collect();
    let expected = [
        (1, fetch(0x401ab70, 3)),
        (2, fetch(0x401ab73, 5)),
        (2, data(0x1f_ff00_0758, 3, true)),
        (3, fetch(0x401b770, 1)),
        (3, data(0x1f_ff00_0750, 4, false)), // 10 bytes count as 16
        (3, data(0x421c7cc, 2, false)),
        (3, data(0x421c7cc, 2, true)),
    ];
    assert_eq!(got, expected);
    // The count of Valgrind itself is compared with the imported one.
    let other = LACKEY.replace("guest instrs:  3", "guest instrs:  1,003");
    let (imported, _) = import("lackey", other.as_bytes()).unwrap();
    assert_eq!(imported.differs, [("instructions", 1003, 3)]);
}

#[test]
fn perf_samples_become_threads_with_times() {
    let (imported, recording) = import("perf", PERF.as_bytes()).unwrap();
    let count = |name| imported.count(name).unwrap();
    assert_eq!(["samples", "loads", "stores"].map(count), [6, 1, 2]);
    assert_eq!(["without_process", "without_address", "of_kernel"].map(count), [1; 3]);
    assert_eq!(["threads", "processes"].map(count), [2, 2]);
    let reader = ReferenceReader::new(Cursor::new(&recording), "r").unwrap();
    assert!(!reader.header().counts_instructions());
    let processes = reader.processes().iter().map(|p| format!("{} {}", p.system_id, p.command[0]));
    assert_eq!(processes.collect::<Vec<_>>(), ["3976 t", "12 Web Content"]);
    let got: Vec<_> = references(&recording).iter().map(|p| (p.stream, p.time, p.record)).collect();
    let data = |address, store| Record::Reference(Reference { address, size_log2: 0, store });
    let expected = [
        (0, 0, data(0x55d0_8fa9_2018, false)),
        (1, 48_000, data(0x7f6a_1fce_0110, true)),
        (0, 98_191_000, data(0x7f00, true)),
    ];
    assert_eq!(got, expected);
    let sampled = ImportOptions { sample_one_in: Some(1000), ..options() };
    let (_, recording) = import_with("perf", PERF.as_bytes(), &sampled).unwrap();
    let reader = ReferenceReader::new(Cursor::new(&recording), "r").unwrap();
    assert_eq!(reader.header().filter.sample_one_in, 1000);
}

/// Accessed bytes by period, group and address.
fn accessed(recording: &[u8]) -> Vec<(u64, String, u64, u64)> {
    let reader = PeriodReader::new(recording, "r").unwrap();
    let names: Vec<_> = reader.header().groups.iter().map(|g| g.name.clone()).collect();
    let mut all = Vec::new();
    for record in reader.records() {
        if let PeriodRecord::Period(p) = record.unwrap() {
            let ranges = p.scan.layout.ranges(p.scan.accessed.iter_ones());
            all.extend(
                ranges
                    .iter()
                    .map(|r| (p.scan.period, names[p.group].clone(), r.start, r.size_bytes)),
            );
        }
    }
    all.sort();
    all
}

#[test]
fn damos_records_give_damos_totals_in_every_form() {
    let (first, recording) = import("damon", DAMO_JSON).unwrap();
    for (name, total) in [
        ("targets", 2),
        ("snapshots", 24),
        ("regions", 128),
        ("accesses", 706),
        ("region_bytes", 11_350_016),
        ("periods", 24),
    ] {
        assert_eq!(first.count(name), Some(total), "{name}");
    }
    let expected = accessed(&recording);
    // The first snapshot of target 0, as `damo report access --raw_form` shows it: 3, 20 and 20
    // accesses, then a region of 132 KB without, then 24 KB with 3.
    assert_eq!(expected[0], (0, "target-0".to_owned(), 0x55d0_0000_0000, 0x2_7000));
    assert_eq!(expected[1], (0, "target-0".to_owned(), 0x55d0_0004_8000, 0x6000));
    for other in [DAMO_TEXT, DAMO_V1, DAMO_V2] {
        let (imported, recording) = import("damon", other).unwrap();
        assert_eq!(imported, first);
        assert_eq!(accessed(&recording), expected);
    }
    let header = PeriodReader::new(&recording[..], "r").unwrap().header().clone();
    assert_eq!(header.period_ms, 100);
}

#[test]
fn damon_snapshots_are_put_together_and_gaps_are_lost_periods() {
    let snapshot = |end: u64, regions: &str| {
        format!(r#"{{"start_time": {}, "end_time": "{end}", "regions": [{regions}]}}"#, end - 100)
    };
    let region = |start: u64, end: u64, n: u32| {
        format!(r#"{{"start": {start}, "end": "{end}", "nr_accesses": {{"samples": {n}}}}}"#)
    };
    let ms = 1_000_000;
    let all = [
        snapshot(100 * ms, &region(4096, 8192, 1)),
        snapshot(200 * ms, &region(8192, 12_000, 1)),
        snapshot(600 * ms, &[region(4096, 8192, 0), region(8192, 8193, 1)].join(",")),
    ];
    let text =
        format!(r#"[{{"snapshots": [{}], "intervals": {{"aggr_us": "100000"}}}}]"#, all.join(","));
    let scans = |options: &ImportOptions| {
        let (_, recording) = import_with("damon", text.as_bytes(), options).unwrap();
        PeriodReader::new(&recording[..], "r")
            .unwrap()
            .records()
            .filter_map(|r| match r.unwrap() {
                PeriodRecord::Period(p) => {
                    let scan = p.scan;
                    Some((scan.period, scan.lost_periods, scan.pages(), scan.accessed.count()))
                }
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(scans(&options()), [(0, 0, 1, 1), (1, 0, 1, 1), (5, 3, 2, 1)]);
    let slower = ImportOptions { period_ms: Some(300), ..options() };
    assert_eq!(scans(&slower), [(0, 0, 2, 2), (1, 0, 2, 1)]);
    let huge = ImportOptions { page_size: Some(terrace_core::page::PageSize::Huge), ..slower };
    assert_eq!(scans(&huge), [(0, 0, 1, 1), (1, 0, 1, 1)]);
}

#[test]
fn champsim_traces_come_out_as_they_went_in_whatever_their_compression() {
    let instructions = some_instructions();
    let trace = champsim(&instructions);
    let (imported, recording) = import("champsim", &trace).unwrap();
    assert_eq!(imported.count("instructions"), Some(49));
    assert_eq!(imported.count("loads"), Some(49 + 24));
    assert_eq!(imported.count("stores"), Some(16));
    assert_eq!(imported.count("branches"), Some(9));
    for packed in [xz(&trace), gz(&trace), zst(&trace)] {
        assert_eq!(import("champsim", &packed).unwrap(), (imported.clone(), recording.clone()));
    }
    // Two compressed files, one after the other, are one.
    let twice = import("champsim", &[xz(&trace), xz(&trace)].concat()).unwrap().0;
    assert_eq!(twice.count("instructions"), Some(98));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.tref");
    std::fs::write(&path, &recording).unwrap();
    let mut out = Vec::new();
    let format = export::find("champsim").unwrap();
    format.export(&path, &mut out, "out", &ExportOptions::default()).unwrap();
    let expected: Vec<_> =
        instructions.iter().map(|i| Instruction { is_branch: 0, branch_taken: 0, ..*i }).collect();
    assert!(out == champsim(&expected));
}

#[test]
fn instructions_without_references_are_in_exported_traces_too() {
    let text = "I  1000,4\nI  1004,4\n L 2000,8\n L 2008,8\n L 2010,8\n L 2018,8\n L 2020,8\n S 3000,8\nI  1008,4\n";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.tref");
    std::fs::write(&path, import("lackey", text.as_bytes()).unwrap().1).unwrap();
    let mut out = Vec::new();
    let format = export::find("champsim").unwrap();
    format.export(&path, &mut out, "out", &ExportOptions::default()).unwrap();
    let got: Vec<_> = out
        .as_chunks::<64>()
        .0
        .iter()
        .map(|b| Instruction::from_bytes(b).map(|i| (i.ip, i.loads, i.stores)).unwrap())
        .collect();
    let expected = [
        (0x1000, [0; 4], [0; 2]),
        (0x1004, [0x2000, 0x2008, 0x2010, 0x2018], [0; 2]),
        (0x1004, [0x2020, 0, 0, 0], [0x3000, 0]), // more than a record holds
        (0x1008, [0; 4], [0; 2]),
    ];
    assert_eq!(got, expected);
    let csv = export::find("csv").unwrap();
    let mut out = Vec::new();
    csv.export(&path, &mut out, "out", &ExportOptions::default()).unwrap();
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "time,stream,process,instructions,kind,address,size_bytes");
    assert_eq!(lines[1], "1,0,0,1,fetch,0x1000,4");
    assert_eq!(lines[8], "2,0,0,2,store,0x3000,8");
    assert_eq!(lines.len(), 10);
}

#[test]
fn traces_of_several_threads_and_wrong_kinds_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (refs, periods) = (folder.path().join("r.tref"), folder.path().join("r.trec"));
    std::fs::write(&refs, import("perf", PERF.as_bytes()).unwrap().1).unwrap();
    std::fs::write(&periods, import("damon", DAMO_V2).unwrap().1).unwrap();
    let export = |format: &str, from: &Path, stream| {
        let mut out = Vec::new();
        let done = export::find(format)?.export(from, &mut out, "out", &ExportOptions { stream });
        done.map(|exported| (exported, out))
    };
    let error = |format, from, stream| export(format, from, stream).unwrap_err().to_string();
    assert!(error("champsim", &refs, None).contains("streams 0, 1; give --stream N"));
    assert!(error("champsim", &refs, Some(7)).contains("no stream 7, but 0, 1"));
    assert!(error("champsim", &periods, None).contains("export it as csv"));
    assert!(error("csv", &periods, Some(0)).contains("no streams"));
    assert!(error("vcd", &periods, None).contains("expected one of champsim, csv"));
    // Samples do not count instructions: each is one.
    let (exported, out) = export("champsim", &refs, Some(0)).unwrap();
    assert_eq!((out.len(), exported.notes.len()), (2 * 64, 1));
    let (exported, out) = export("csv", &periods, None).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("period,group,space,start,size_bytes,accessed,fast\n0,target-"));
    assert!(text.contains("\n0,target-0,0,0x55d000000000,159744,1,1\n"));
    assert_eq!(text.lines().count() as u64, exported.counts[0].1 + 1);
}

#[test]
fn a_survey_counts_what_a_recording_holds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r");
    let recording = import("lackey", LACKEY.as_bytes()).unwrap().1;
    std::fs::write(&path, &recording).unwrap();
    let Survey::References(s) = survey(&path).unwrap() else { panic!("not references") };
    assert_eq!((s.loads, s.stores, s.fetches, s.instructions), (2, 2, 3, 3));
    assert_eq!((s.streams, s.processes, s.complete), (1, 1, true));
    assert_eq!((s.footprint_bytes, s.code_bytes), (2 * 4096, 2 * 4096));
    std::fs::write(&path, &recording[..recording.len() - 1]).unwrap();
    let Survey::References(s) = survey(&path).unwrap() else { panic!("not references") };
    assert_eq!((s.loads, s.complete), (2, false));
    std::fs::write(&path, import("damon", DAMO_V1).unwrap().1).unwrap();
    let Survey::Periods(s) = survey(&path).unwrap() else { panic!("not periods") };
    assert_eq!(s.groups.iter().map(|g| g.periods).sum::<u64>(), 24);
    assert!(s.complete && s.groups.iter().all(|g| g.ended && g.lost_periods == 0));
}

#[test]
fn what_makes_no_sense_is_reported_with_its_place() {
    let record = |ip: u64| Instruction { ip, ..Instruction::default() };
    let mut bad_trace = champsim(&[record(1), record(2)]);
    bad_trace[64 + 8] = 7;
    let long = vec![b'1'; 200_000];
    let snapshot = |body: &str| format!("[{{\"snapshots\": [{body}]}}]").into_bytes();
    let v2 = |seconds: u64, nanos: u64, targets: u32, regions: u32| {
        let mut all = b"damon_recfmt_ver\x02\0\0\0".to_vec();
        all.extend(seconds.to_le_bytes());
        all.extend(nanos.to_le_bytes());
        all.extend(targets.to_le_bytes());
        all.extend(1u64.to_le_bytes());
        all.extend(regions.to_le_bytes());
        all
    };
    let mut backwards = v2(1, 0, 1, 1);
    for number in [8192u64, 4096] {
        backwards.extend(number.to_le_bytes());
    }
    backwards.extend([0; 4]);
    let cases: &[(&str, &[u8], &str)] = &[
        (
            "champsim",
            &bad_trace,
            "file, byte 72: is_branch is 7 and branch_taken 0, expected 0 or 1",
        ),
        ("lackey", b"I  1000,4\nhello\n", "line 2: got 'hello', expected a line of lackey's"),
        ("lackey", b"I  1000,4\n L zz,8\n", "line 2: got ' L zz,8'"),
        ("lackey", b" L 11112222333344445,8\n", "line 1: got"),
        ("lackey", b" L 10,0\n", "line 1: got"),
        ("lackey", b" L 10,99999999999999999999\n", "line 1: got"),
        ("lackey", b" L 10,-8\n", "line 1: got"),
        ("lackey", b"==1== nothing else\n", "line 1: no references; run valgrind"),
        ("lackey", b"", "line 0: no references"),
        ("lackey", b"I  1000,4", "line 0: no references"),
        ("champsim", b"", "byte 0: no instructions"),
        ("champsim", &[0; 63], "byte 0: no instructions"),
        ("lackey", &long, "line 1: a line of more than 65536 bytes, beginning '1111"),
        ("perf", &long, "line 1: a line of more than 65536 bytes"),
        ("perf", b"", "no samples; expected"),
        ("perf", b"what is this\n", "line 1: got 'what is this', expected a sample"),
        ("perf", b"t 1/1 5.5: page-faults:\n", "line 1: got"),
        ("perf", b"t 1/1 5.5: page-faults: xyz\n", "line 1: got"),
        ("perf", b"t 1/1 99999999999999999999.5: page-faults: 10\n", "line 1: got"),
        ("perf", b"t 99999999999/1 5.5: page-faults: 10\n", "line 1: got"),
        ("damon", b"[]", "no snapshots; run damo record"),
        ("damon", b"{\"a\": [1]}", "line 1: no record of damo's: a document without 'record_list'"),
        ("damon", b"[\n{\"a\": 1}]", "line 2: no record of damo's: a record without 'snapshots'"),
        ("damon", b"[5]", "line 1: no record of damo's: invalid type: integer `5`"),
        ("damon", &snapshot(r#"{"end_time": "soon", "regions": []}"#), "'soon' is no number"),
        ("damon", &snapshot(r#"{"end_time": -5, "regions": []}"#), "an end_time that is no time"),
        ("damon", &snapshot(r#"{"end_time": 5}"#), "missing field `regions`"),
        (
            "damon",
            &snapshot(r#"{"end_time": 5, "regions": [{"start": 8192, "end": 4096}]}"#),
            "a region from 0x2000 to 0x1000 ends before it starts",
        ),
        (
            "damon",
            &snapshot(r#"{"end_time": 5, "regions": [{"start": 0, "end": 1e15}]}"#),
            "give --page-size 2M",
        ),
        (
            "damon",
            &snapshot(r#"{"end_time": 5, "regions": [{"start": 0, "end": 18446744073709551615}]}"#),
            "give --page-size 2M",
        ),
        (
            "damon",
            &snapshot(r#"{"end_time": 9, "regions": []}, {"end_time": 5, "regions": []}"#),
            "expected them in the order of time",
        ),
        ("damon", &[b"[\"", &long[..]].concat(), "a string or number of more than 4096 bytes"),
        ("damon", &[b"[", &long[..]].concat(), "a string or number of more than 4096 bytes"),
        ("damon", &[&b"[{\"x\":"[..], &[b'['; 100_000]].concat(), "nested more than 128 deep"),
        ("damon", b"PERFILE2xx", "byte 0: perf's own file"),
        ("damon", b"damon_recfmt_ver\x09\0\0\0", "byte 16: format version 9"),
        ("damon", &v2(1, 5_000_000_000, 1, 1), "byte 20: a time of 1 seconds and 5000000000"),
        ("damon", &v2(u64::MAX, 0, 1, 1), "byte 20: a time of"),
        ("damon", &v2(1, 0, u32::MAX, 1), "byte 20: 4294967295 targets, expected at most 256"),
        ("damon", &v2(1, 0, 1, u32::MAX), "byte 40: 4294967295 regions, expected at most"),
        ("damon", &backwards, "byte 40: a region from 0x2000 to 0x1000"),
        ("damon", b"x 1 [0] 5.5: sched:sched_switch: prev\n", "line 1: got"),
        ("damon", b"x 1 [0] 5.5: damon:damon_aggregated: target_id=1\n", "line 1: got"),
        ("lackey", &[&gz(b"I  1000,4\n")[..], b"garbage after it"].concat(), "cannot read 'file'"),
    ];
    for (format, bytes, words) in cases {
        let error = import(format, bytes).map(|(imported, _)| imported).unwrap_err();
        assert!(error.to_string().contains(words), "{format}: got '{error}', expected '{words}'");
        assert!(is_proper(&error), "{error}");
    }
    let sampled = ImportOptions { sample_one_in: Some(2), ..options() };
    let error = import_with("lackey", b"", &sampled).unwrap_err().to_string();
    assert_eq!(error, "format 'lackey' has no --sample; leave it out");
    let never = ImportOptions { period_ms: Some(0), ..options() };
    let error = import_with("damon", b"", &never).unwrap_err().to_string();
    assert!(error.contains("--period-ms is 0"), "{error}");
    assert!(import("vcd", b"").unwrap_err().to_string().contains("champsim, lackey, perf, damon"));
}

#[test]
fn a_file_cut_at_any_byte_is_imported_up_to_the_cut_or_refused() {
    for (format, bytes) in seeds() {
        let whole = import(format, &bytes);
        let most = whole.as_ref().map_or(u64::MAX, |(i, _)| i.counts[0].1);
        let mut last = 0;
        let step = (bytes.len() / 300).max(1);
        for end in (0..bytes.len()).step_by(step) {
            match import(format, &bytes[..end]) {
                Ok((imported, recording)) => {
                    // The import is a whole recording of a part of the file.
                    let count = imported.counts[0].1;
                    assert!(count >= last && count <= most, "{format} cut at {end}");
                    last = count;
                    match import::find(format).unwrap().makes.suffix() {
                        "tref" => drop(references(&recording)),
                        _ => drop(accessed(&recording)),
                    }
                }
                Err(error) => assert!(is_proper(&error), "{format} cut at {end}: {error}"),
            }
        }
    }
    // A cut is reported with its place.
    let cut = |format, bytes: &[u8]| import(format, bytes).unwrap().0.cut.unwrap().to_string();
    assert_eq!(cut("lackey", &LACKEY.as_bytes()[..110]), "line 6");
    assert_eq!(cut("champsim", &champsim(&some_instructions())[..1000]), "byte 960");
    assert_eq!(cut("damon", &DAMO_V2[..1000]), "byte 904");
}

#[test]
fn nothing_half_written_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.tref");
    let input = |bytes: &[u8]| Input::new(Box::new(Cursor::new(bytes.to_vec())), "file").unwrap();
    let names = || {
        let names = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name());
        names.collect::<Vec<_>>()
    };
    let format = import::find("lackey").unwrap();
    format.import_file(&mut input(b"I  1000,4\nI  bad\n"), &path, &options()).unwrap_err();
    assert!(names().is_empty());
    format.import_file(&mut input(b"I  1000,4\n"), &path, &options()).unwrap();
    assert_eq!(names(), ["r.tref"]);
    let error = format.import_file(&mut input(b"I  1000,4\n"), &path, &options()).unwrap_err();
    assert!(error.to_string().contains("exists; give --out a name that is free"), "{error}");
    let out = folder.path().join("x.csv");
    let csv = export::find("csv").unwrap();
    let none = folder.path().join("none.tref");
    csv.export_file(&none, &out, &ExportOptions::default()).unwrap_err();
    assert_eq!(names(), ["r.tref"]);
    // A disk that is full.
    let full = format.import(
        &mut input(b"I  1000,4\n"),
        &mut std::fs::File::options().write(true).open("/dev/full").unwrap(),
        "full",
        &options(),
    );
    assert!(full.unwrap_err().to_string().contains("cannot write recording 'full'"));
    let elsewhere = folder.path().join("no/such/folder/r.tref");
    format.import_file(&mut input(b"I  1000,4\n"), &elsewhere, &options()).unwrap_err();
    // A source that fails.
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is on fire"))
        }
    }
    let begin = Cursor::new(b"I  1000,4\n".to_vec());
    let mut broken = Input::new(Box::new(begin.chain(Broken)), "file").unwrap();
    let error = format.import(&mut broken, &mut Vec::new(), "out", &options()).unwrap_err();
    assert!(error.to_string().contains("at byte 10: the disk is on fire"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn changed_files_never_panic_and_errors_are_one_line(
        which in 0usize..12,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let (format, mut bytes) = seeds().swap_remove(which);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Err(error) = import(format, &bytes) {
            prop_assert!(is_proper(&error), "{}", error);
        }
    }

    #[test]
    fn garbage_never_panics(
        garbage in prop::collection::vec(any::<u8>(), 0..400),
        which in 0usize..4,
    ) {
        if let Err(error) = import(FORMATS[which].name, &garbage) {
            prop_assert!(is_proper(&error), "{}", error);
        }
    }

    #[test]
    fn any_trace_comes_out_as_it_went_in(
        instructions in prop::collection::vec((any::<u64>(), any::<[u64; 2]>(), any::<[u64; 4]>()), 1..60),
    ) {
        // Used places come first, as tracers fill them.
        let instructions: Vec<_> = instructions
            .into_iter()
            .map(|(ip, stores, loads)| Instruction { ip, stores, loads, ..Instruction::default() })
            .filter(|i| !i.stores.contains(&0) && !i.loads.contains(&0))
            .collect();
        prop_assume!(!instructions.is_empty());
        let trace = champsim(&instructions);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        std::fs::write(&path, import("champsim", &trace).unwrap().1).unwrap();
        let mut out = Vec::new();
        let format = export::find("champsim").unwrap();
        format.export(&path, &mut out, "out", &ExportOptions::default()).unwrap();
        prop_assert!(out == trace);
    }
}
