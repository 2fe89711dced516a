//! Every parser of the project against changed inputs: recordings, other tools' files,
//! experiments, machines. A parser may refuse; it may not panic, and its refusal is one line.
//!
//! `cargo test` tries some thousand inputs; for longer, with another seed:
//!
//! ```text
//! cargo test -p terrace --test fuzz -- --seconds 600 --seed 7
//! ```
//!
//! The same seed gives the same inputs. An input that breaks a parser is kept, and its file named.
//! Coverage-guided fuzzing needs a nightly compiler; this one changes valid inputs instead:
//! bits, bytes, numbers, pieces left out, doubled and taken from other inputs.

use std::fmt::Display;
use std::io::{Cursor, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use terrace_core::bits::PageBits;
use terrace_core::page::{Layout, PageSize};
use terrace_core::scan::Scan;
use terrace_experiments::Experiment;
use terrace_hardware::cache::config::CacheConfig;
use terrace_hardware::dram::config::DramConfig;
use terrace_hardware::dram::presets as dram;
use terrace_hardware::node::Node;
use terrace_hardware::presets::{self as machines, MachineConfig};
use terrace_hardware::random::Random;
use terrace_recordings::champsim::Instruction;
use terrace_recordings::container::{ChunkKind, ContainerWriter};
use terrace_recordings::import::{self, ImportOptions, Input};
use terrace_recordings::perf_record::{
    MemorySample, RecordReader, SampleFormat, put_lost, put_sample, put_throttle,
};
use terrace_recordings::period::{self, PeriodReader, PeriodWriter};
use terrace_recordings::reference::{self, ReferenceReader};

/// Inputs per target in a run without `--seconds`.
const SHORT: u64 = 1500;

/// A parser with valid inputs. It returns the reason of a rejection in one line.
struct Target {
    name: &'static str,
    seeds: Vec<Vec<u8>>,
    parse: fn(&[u8]) -> Result<(), String>,
}

fn text<T, E: Display>(done: Result<T, E>) -> Result<(), String> {
    done.map(|_| ()).map_err(|e| e.to_string())
}

fn utf8(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

fn import_as(format: &str, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let options = ImportOptions {
        page_size: None,
        period_ms: None,
        sample_one_in: None,
        created_by: "fuzz".to_owned(),
    };
    let mut out = Vec::new();
    let input = Input::new(Box::new(Cursor::new(bytes.to_vec())), "file");
    let mut input = input.map_err(|e| e.to_string())?;
    let format = import::find(format).map_err(|e| e.to_string())?;
    format.import(&mut input, &mut out, "out", &options).map_err(|e| e.to_string())?;
    Ok(out)
}

/// The output of an importer must be readable, whatever its input.
fn import_and_read(format: &str, bytes: &[u8]) -> Result<(), String> {
    let out = import_as(format, bytes)?;
    let read = match format {
        "damon" => read_periods(&out),
        _ => read_references(&out),
    };
    read.unwrap_or_else(|e| panic!("what was imported cannot be read: {e}"));
    Ok(())
}

fn read_references(bytes: &[u8]) -> Result<(), String> {
    let mut reader = ReferenceReader::new(Cursor::new(bytes), "r").map_err(|e| e.to_string())?;
    reader.maps().iter().flat_map(|m| &m.regions).for_each(|r| {
        r.huge_page_bytes(2 << 20);
    });
    reader.records().try_for_each(text)
}

fn read_periods(bytes: &[u8]) -> Result<(), String> {
    let reader = PeriodReader::new(bytes, "r").map_err(|e| e.to_string())?;
    reader.records().try_for_each(text)
}

const LACKEY: &[u8] = b"==7== Command: ./t\nI  0401ab70,3\n S 1fff000758,8\nI  0401b770,1\n L 1fff000750,10\n M 0421c7cc,4\n==7==   guest instrs:  2\n";
const PERF: &[u8] = b"# at\n  t  3976/3976   1618.501809: page-faults:  55d08fa92018 ffffffff81752b6a\n  Web Content 12/13 [003]  1618.501857:  4 cpu/mem-stores/P:  7f6a1fce0110  7f6a1fcc6b70\n\t    7f6a1fcc6b70 work+0x10 (/bin/t)\n  t 3976 1618.6: cpu/mem-loads/: 7f00  68100142 |OP STORE|LVL L1 hit| 7 4010\n";
const DAMON_TEXT: &[u8] = b"kdamond.0  4452 [000] 82877.315633: damon:damon_aggregated: target_id=0 nr_regions=2 140731667070976-140731668037632: 0 3\nkdamond.0  4452 [000] 82877.315633: damon:damon_aggregated: target_id=0 nr_regions=2 140731668037632-140731668041728: 5 3\n";
const DAMON_JSON: &[u8] = br#"[{"kdamond_idx": 0, "intervals": {"aggr_us": "100,000"}, "target_id": 0, "snapshots": [{"start_time": 0, "end_time": "100 ms", "regions": [{"start": "4,096", "end": "8,192", "nr_accesses": {"samples": 3, "percent": null}, "age": {"usec": 1}}]}, {"start_time": 100000000, "end_time": 200000000, "regions": [{"start": 4096, "end": 12288, "nr_accesses": {"samples": null, "percent": "5 %"}}]}]}]"#;

fn champsim() -> Vec<u8> {
    let all = (1..20u64).map(|n| Instruction {
        ip: 0x40_0000 + n,
        loads: [n << 12, 0, 0, 0],
        ..Instruction::default()
    });
    all.flat_map(|i| i.to_bytes()).collect()
}

fn damon_binary(version: i32) -> Vec<u8> {
    let mut all = b"damon_recfmt_ver".to_vec();
    all.extend(version.to_le_bytes());
    for time in 1..4u64 {
        all.extend(time.to_le_bytes());
        all.extend(0u64.to_le_bytes());
        all.extend(1u32.to_le_bytes());
        if version == 1 {
            all.extend(1u32.to_le_bytes())
        } else {
            all.extend(1u64.to_le_bytes())
        }
        all.extend(1u32.to_le_bytes());
        all.extend(4096u64.to_le_bytes());
        all.extend((4096 * (time + 1)).to_le_bytes());
        all.extend(3u32.to_le_bytes());
    }
    all
}

/// By gzip, zstd and zlib, which only damo uses.
fn compressed(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(bytes).unwrap();
    zlib.write_all(bytes).unwrap();
    let zst = zstd::stream::encode_all(bytes, 1).unwrap();
    vec![gz.finish().unwrap(), zst, zlib.finish().unwrap()]
}

fn perf_records() -> Vec<u8> {
    let mut all = Vec::new();
    for at in 1..20u64 {
        let sample = MemorySample {
            time_ns: at,
            address: Some(at << 12),
            physical: Some(at << 13),
            ..MemorySample::default()
        };
        put_sample(&mut all, &sample);
    }
    put_lost(&mut all, 3);
    put_throttle(&mut all, 21, true);
    put_throttle(&mut all, 22, false);
    all
}

/// Samples that live machines read; in pieces, as a port gives them.
fn read_perf_records(bytes: &[u8]) -> Result<(), String> {
    let mut reader = RecordReader::new(SampleFormat::of_memory());
    let mut records = 0;
    bytes.chunks(100).for_each(|piece| reader.push(piece, |_| records += 1));
    let counts = reader.counts();
    assert!(8 * records + counts.skipped_bytes <= bytes.len() as u64, "{counts:?}");
    match counts.malformed {
        0 => Ok(()),
        places => Err(format!("{places} places without a record")),
    }
}

fn period_recording() -> Vec<u8> {
    let header = period_header();
    let mut writer = PeriodWriter::new(Vec::new(), "r", header).unwrap();
    let layout = std::sync::Arc::new(Layout::contiguous(PageSize::Base, 100));
    for period in 0..20 {
        let accessed: PageBits = (0..100).map(|page| page % 7 == period as usize % 7).collect();
        let scan = Scan::new(period, layout.clone(), accessed, PageBits::ones(100));
        writer.scan(0, &scan).unwrap();
    }
    writer.lost(0, 2, "late").unwrap();
    writer.ended(0).unwrap();
    writer.finish().unwrap().0
}

fn period_header() -> period::Header {
    period::Header {
        created_by: "fuzz".to_owned(),
        experiment: String::new(),
        machine: "simulated".to_owned(),
        kernel: String::new(),
        period_ms: 1000,
        seed: 1,
        leaves_out_unmovable: false,
        groups: vec![period::GroupHeader {
            name: "g".to_owned(),
            policy: "lru".to_owned(),
            parameters: serde_json::Value::Null,
            policy_seed: 1,
            page_size: PageSize::Base,
            fast_share: 0.5,
        }],
    }
}

/// Chunks of any payload in a sound container: payloads that checksums would otherwise keep from
/// the decoders.
fn in_container(
    content: &str,
    version: u32,
    header: &impl serde::Serialize,
    kinds: &[&[u8; 4]],
    bytes: &[u8],
) -> Vec<u8> {
    let mut writer = ContainerWriter::new(Vec::new(), "r", content, version, header).unwrap();
    let (which, payload) = bytes.split_first().unwrap_or((&0, &[]));
    let kind = kinds[usize::from(*which) % kinds.len()];
    writer.chunk(ChunkKind::new(kind), 0, payload).unwrap();
    writer.finish().unwrap()
}

fn references_of_payload(bytes: &[u8]) -> Result<(), String> {
    let shape = reference::CacheShape { size_bytes: 32 << 10, ways: 8 };
    let header = reference::Header {
        command: Vec::new(),
        filter: reference::Filter {
            level: reference::Level::None,
            line_bytes: 64,
            l1: shape,
            l2: shape,
            llc: shape,
            sample_one_in: 1,
        },
        base_page_bytes: 4096,
        huge_page_bytes: 2 << 20,
        write_backs: false,
        created_by: String::new(),
        executed_by: String::new(),
    };
    let kinds = [b"REFS", b"MAPS", b"PROC", b"LIST", b"ENDS"];
    let version = reference::CONTENT_VERSION;
    read_references(&in_container(reference::CONTENT, version, &header, &kinds, bytes))
}

fn periods_of_payload(bytes: &[u8]) -> Result<(), String> {
    let version = period::CONTENT_VERSION;
    let header = period_header();
    read_periods(&in_container(period::CONTENT, version, &header, &[b"PERD"], bytes))
}

fn targets() -> Vec<Target> {
    let references = import_as("lackey", LACKEY).unwrap();
    let mut perd = vec![0];
    // A scan of group 0, period 0, 100 pages of 4 KB at 0, all bits zero.
    perd.extend([2, 0, 0, 0, 1, 1, 0, 0, 100]);
    perd.extend([0; 40]);
    let mut refs = vec![0, 0, 0, 0, 0, 2];
    refs.extend([0x16, 0x80, 0x20, 0x17, 0x02, 0x1e, 14, 2, 8, 4, 0x1e, 12, 1, 9, 0x1f, 6]);
    let maps = b"\x01\x00\x001000-3000 rw-p 00000000 00:00 0 [heap]\n".to_vec();
    let experiments = ["amp/lru-favor.toml", "amp/mix-1.toml", "redis-zipf.toml"];
    let examples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let damon = [DAMON_TEXT, DAMON_JSON].into_iter().map(<[u8]>::to_vec);
    vec![
        Target {
            name: "import champsim",
            seeds: [&[champsim()], &compressed(&champsim())[..2]].concat(),
            parse: |b| import_and_read("champsim", b),
        },
        Target {
            name: "import lackey",
            seeds: [&[LACKEY.to_vec()], &compressed(LACKEY)[..2]].concat(),
            parse: |b| import_and_read("lackey", b),
        },
        Target {
            name: "import perf",
            seeds: vec![PERF.to_vec()],
            parse: |b| import_and_read("perf", b),
        },
        Target {
            name: "import damon",
            seeds: damon.chain((0..3).map(damon_binary)).chain(compressed(DAMON_JSON)).collect(),
            parse: |b| import_and_read("damon", b),
        },
        Target { name: "perf records", seeds: vec![perf_records()], parse: read_perf_records },
        Target { name: "reference recording", seeds: vec![references], parse: read_references },
        Target {
            name: "reference chunks",
            seeds: vec![refs, maps, vec![3, 0, 0, 0, 1]],
            parse: references_of_payload,
        },
        Target { name: "period recording", seeds: vec![period_recording()], parse: read_periods },
        Target { name: "period chunks", seeds: vec![perd], parse: periods_of_payload },
        Target {
            name: "experiment",
            seeds: experiments.iter().map(|e| std::fs::read(examples.join(e)).unwrap()).collect(),
            parse: |b| text(Experiment::parse(&utf8(b), PathBuf::from("."))),
        },
        Target {
            name: "machine",
            seeds: machines::names()
                .map(|n| toml::to_string(&machines::by_name(n).unwrap()).unwrap().into_bytes())
                .collect(),
            parse: |b| {
                let machine = MachineConfig::from_toml(&utf8(b)).map_err(|e| e.to_string())?;
                // A machine of a million cores is slow to make, and does not concern parsers.
                if machine.node.cores > 64 { Ok(()) } else { text(Node::new(&machine.node)) }
            },
        },
        Target {
            name: "dram",
            seeds: dram::names()
                .map(|n| toml::to_string(&dram::by_name(n).unwrap()).unwrap().into_bytes())
                .collect(),
            parse: |b| text(DramConfig::from_toml(&utf8(b))),
        },
        Target {
            name: "cache geometry",
            seeds: vec![b"32K,8".to_vec(), b"8388608,16,64".to_vec()],
            parse: |b| text(CacheConfig::parse(&utf8(b), None)),
        },
    ]
}

/// Numbers at the edges of their types, as bytes and as text.
const EDGES: [u64; 10] =
    [0, 1, 127, 255, 1 << 16, (1 << 31) - 1, u32::MAX as u64, 1 << 53, i64::MAX as u64, u64::MAX];

/// A valid input, changed in one to six places.
fn changed(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let pick = |random: &mut Random| seeds[random.below(seeds.len() as u64) as usize].clone();
    let mut bytes = pick(random);
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        let length = (random.below(16) as usize + 1).min(bytes.len() - at);
        let edge = EDGES[random.below(EDGES.len() as u64) as usize];
        match random.below(9) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.below(256) as u8,
            2 => drop(bytes.drain(at..at + length)),
            3 => {
                let piece = bytes[at..at + length].to_vec();
                let many = 1 << random.below(10);
                bytes.splice(at..at, piece.repeat(many));
            }
            4 => bytes.truncate(at),
            5 => {
                let other = pick(random);
                let from = random.below(other.len() as u64 + 1) as usize;
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            6 => {
                let width = 1 << random.below(4);
                let end = (at + width).min(bytes.len());
                bytes[at..end].copy_from_slice(&edge.to_le_bytes()[..end - at]);
            }
            7 => {
                // A number in text becomes another.
                let digit = |b: &u8| b.is_ascii_digit();
                if let Some(start) = bytes[at..].iter().position(digit).map(|n| at + n) {
                    let end = bytes[start..].iter().position(|b| !digit(b));
                    let end = end.map_or(bytes.len(), |n| start + n);
                    let text = match random.below(5) {
                        0 => "-1".to_owned(),
                        1 => "1e308".to_owned(),
                        2 => "nan".to_owned(),
                        _ => edge.to_string(),
                    };
                    bytes.splice(start..end, text.into_bytes());
                }
            }
            _ => bytes.insert(at, random.below(256) as u8),
        }
    }
    bytes
}

/// Tries one input; returns the defect in the parser's reaction.
fn broken(target: &Target, input: &[u8]) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(|| (target.parse)(input))) {
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|t| (*t).to_owned()));
            Some(format!("panicked: {}", text.unwrap_or_default()))
        }
        Ok(Err(refusal)) if refusal.contains('\n') || refusal.is_empty() => {
            Some(format!("refuses in other than one line: {refusal:?}"))
        }
        Ok(_) => None,
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str| {
        let at = arguments.iter().position(|a| a == name)?;
        arguments.get(at + 1)?.parse::<u64>().ok()
    };
    if arguments.iter().any(|a| a == "--list") {
        println!("every_parser_refuses_and_never_panics: test");
        return ExitCode::SUCCESS;
    }
    // `cargo test NAME` runs the tests of that name only.
    let named = arguments.first().filter(|a| !a.starts_with("--"));
    if named.is_some_and(|name| !"every_parser_refuses_and_never_panics".contains(name.as_str())) {
        println!("test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 1 filtered out");
        return ExitCode::SUCCESS;
    }
    let seed = number("--seed").unwrap_or(1);
    let until = number("--seconds").map(|s| Instant::now() + Duration::from_secs(s));
    let targets = targets();
    for target in &targets {
        for input in &target.seeds {
            if let Err(refusal) = (target.parse)(input) {
                let chunk = target.name.ends_with("chunks");
                assert!(chunk, "{} refuses a valid input: {refusal}", target.name);
            }
        }
    }
    std::panic::set_hook(Box::new(|_| {}));
    let (mut tried, mut failed) = (0u64, 0);
    let mut round = 0;
    while failed == 0 && until.map_or(round < SHORT, |until| Instant::now() < until) {
        for (number, target) in targets.iter().enumerate() {
            let mut random = Random::new(seed ^ round << 8 ^ (number as u64) << 56);
            let input = changed(&target.seeds, &mut random);
            tried += 1;
            if let Some(problem) = broken(target, &input) {
                failed += 1;
                let file = std::env::temp_dir().join(format!("fuzz-{seed}-{round}-{number}"));
                let _ = std::fs::write(&file, &input);
                println!("{}: {problem}; the input is in {}", target.name, file.display());
            }
        }
        round += 1;
    }
    println!("{tried} inputs to {} parsers, seed {seed}", targets.len());
    let (verdict, passed) = if failed == 0 { ("ok", 1) } else { ("FAILED", 0) };
    println!(
        "test result: {verdict}. {passed} passed; {} failed; 0 ignored; 0 measured; 0 filtered out",
        1 - passed
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
