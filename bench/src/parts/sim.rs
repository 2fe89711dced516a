//! The simulated machine at trace fidelity: references per second and core, with TLBs, walker,
//! three caches, two tiers, tracking and a policy that moves pages.
//!
//! The references come from a recording that is made first, so that the measured time is the time
//! of a user of recordings: reading and decoding are included. Processor time of the whole process
//! is counted, the decoding thread's too.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use terrace_core::interfaces::{Mover, Observation, Tracker};
use terrace_core::page::{Layout, PageSize};
use terrace_core::policy;
use terrace_core::scan::Budget;
use terrace_recordings::container::PartialFile;
use terrace_recordings::reference::block::{Encoder, MAX_RECORD_BYTES};
use terrace_recordings::reference::{
    BlockHead, CacheShape, Filter, Header, Level, Process, Reference, ReferenceWriter,
};
use terrace_simulated::hardware::presets;
use terrace_simulated::hardware::random::Random;
use terrace_simulated::hardware::units::Bytes;
use terrace_simulated::os::{OsConfig, TablePolicy};
use terrace_simulated::reference::{
    Options, RecordingChoice, ReferenceConfig, ReferenceGroup, ReferenceMachine, recording,
};

use super::Part;
use crate::measure::{Report, median};

pub const PART: Part = Part {
    name: "sim",
    measures: "references per second and core of the simulated machine at trace fidelity",
    run,
};

/// First address of the recorded program's memory.
const START: u64 = 1 << 32;
pub(super) const MACHINE: &str = "server-ddr5-cxl";
/// Pages that a plan may move, like a promotion rate limit: copying a page takes as many requests
/// as a hundred references.
const MOVED_PAGES: u64 = 512;

/// A kind of recording: its name, number of references, memory, and the pattern.
#[derive(Clone)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) references: u64,
    pub(super) footprint_bytes: u64,
    pub(super) page_size: PageSize,
    period_ns: u64,
    pub(super) what: &'static str,
    address: fn(&mut Random, u64, u64) -> u64,
}

impl Kind {
    /// The same pattern over so many references.
    fn of_length(&self, references: u64) -> Kind {
        Kind { references, ..self.clone() }
    }
}

/// Measures a recording of each of these kinds, of so many references: `measure` receives the kind, its
/// recording, and a folder for files.
pub(super) fn each_recording(
    kinds: &[(&str, u64)],
    mut measure: impl FnMut(&Kind, &Path, &Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("a folder for recordings")?;
    for &(name, references) in kinds {
        let kind = KINDS.iter().find(|kind| kind.name == name).context("a kind of recording")?;
        let kind = kind.of_length(references);
        let path = folder.path().join(format!("{name}.tref"));
        record(&kind, &path).with_context(|| format!("recording {name}"))?;
        measure(&kind, &path, folder.path())?;
        std::fs::remove_file(&path).context("removing a recording")?;
    }
    Ok(())
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "friendly",
        references: 40_000_000,
        footprint_bytes: 64 << 20,
        page_size: PageSize::Base,
        period_ns: 1_000_000,
        what: "two of three references to a stack of 4 KB, the third walking through 256 KB that \
               move on through 64 MB, a quarter stores, base pages",
        address: |_, n, footprint| {
            if n.is_multiple_of(3) {
                let window = (n / 2_000_000 * (256 << 10)) % footprint;
                (window + (n / 3 * 8) % (256 << 10)) % footprint
            } else {
                (n.wrapping_mul(0x9E37_79B9) >> 8) & 0xFF8
            }
        },
    },
    Kind {
        name: "random",
        references: 10_000_000,
        footprint_bytes: 1 << 30,
        page_size: PageSize::Base,
        period_ns: 20_000_000,
        what: "any 8 bytes of 1 GB, a quarter stores, base pages",
        address: |random, _, footprint| random.below(footprint / 8) * 8,
    },
    Kind {
        name: "random_huge",
        references: 10_000_000,
        footprint_bytes: 1 << 30,
        page_size: PageSize::Huge,
        period_ns: 20_000_000,
        what: "any 8 bytes of 1 GB, a quarter stores, huge pages",
        address: |random, _, footprint| random.below(footprint / 8) * 8,
    },
];

fn run(report: &mut Report) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("a folder for recordings")?;
    for kind in &KINDS {
        let path = folder.path().join(format!("{}.tref", kind.name));
        record(kind, &path).with_context(|| format!("recording {}", kind.name))?;
        let mut rates = Vec::new();
        let mut moved = 0;
        for _ in 0..3 {
            let (took, pages) = simulate(kind, &path)?;
            rates.push(kind.references as f64 / took.as_secs_f64() / 1e6);
            moved = pages;
        }
        let conditions = format!(
            "{} references to {}; {MACHINE}, half of the memory fast, policy amp with at most \
             {MOVED_PAGES} pages moved in a period, {moved} in all; processor time of all threads, decoding included; median of 3",
            kind.references, kind.what,
        );
        let name = format!("sim.reference.{}_mrefs_per_s", kind.name);
        report.add(&name, median(rates), "million/s", &conditions)?;
        std::fs::remove_file(&path).context("removing a recording")?;
    }
    memory(report, folder.path())
}

/// Memory must not grow with the recording: the peak of one of eight times the references, over the
/// peak of the shorter one.
fn memory(report: &mut Report, folder: &Path) -> anyhow::Result<()> {
    let mut peaks = Vec::new();
    let short = 4_000_000;
    for references in [short, 8 * short] {
        let kind = KINDS[0].of_length(references);
        let path = folder.join(format!("{references}.tref"));
        record(&kind, &path).context("recording for the memory's sake")?;
        forget_peak().context("resetting the peak of resident memory")?;
        simulate(&kind, &path)?;
        peaks.push(peak_bytes().context("reading the peak of resident memory")?);
        std::fs::remove_file(&path).context("removing a recording")?;
    }
    let conditions = format!(
        "peak resident memory simulating {} references over that simulating {short}: {} and {} \
         bytes; {}, {MACHINE}",
        8 * short,
        peaks[1],
        peaks[0],
        KINDS[0].name,
    );
    let growth = peaks[1] as f64 / peaks[0] as f64;
    report.add("sim.reference.rss_growth_x", growth, "x", &conditions)
}

/// Resets the peak of resident memory.
fn forget_peak() -> std::io::Result<()> {
    std::fs::write("/proc/self/clear_refs", "5")
}

/// The peak of this process's resident memory since then.
fn peak_bytes() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    Ok(kib.context("no VmHWM in /proc/self/status")? * 1024)
}

/// Writes the recording.
fn record(kind: &Kind, path: &Path) -> anyhow::Result<()> {
    let shape = CacheShape { size_bytes: 32 << 10, ways: 8 };
    let header = Header {
        command: vec![kind.name.to_owned()],
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
        write_backs: false,
        created_by: "benchmark".to_owned(),
        executed_by: "benchmark".to_owned(),
    };
    let file = PartialFile::create(path)?;
    let mut writer = ReferenceWriter::new(file, "benchmark", &header)?;
    writer.process(&Process { process: 0, system_id: 0, command: header.command.clone() })?;
    let map =
        format!("{START:x}-{:x} rw-p 00000000 00:00 0 [heap]\n", START + kind.footprint_bytes);
    writer.maps(0, 0, map.as_bytes())?;
    let mut random = Random::new(42);
    let mut done = 0u64;
    while done < kind.references {
        let count = (kind.references - done).min(1 << 16);
        let time = done * 3;
        let mut encoder = Encoder::new(time);
        let mut bytes = Vec::with_capacity(count as usize * 6);
        for n in done..done + count {
            let address = START + (kind.address)(&mut random, n, kind.footprint_bytes);
            let reference = Reference { address, size_log2: 3, store: n & 3 == 0 };
            let mut out = [0; MAX_RECORD_BYTES];
            let length = encoder.reference(&mut out, n * 3 + 3, reference);
            bytes.extend_from_slice(&out[..length]);
        }
        let head = BlockHead { stream: 0, process: 0, time, instructions: time, references: count };
        writer.block(head, &bytes)?;
        done += count;
    }
    writer.finish()?.publish()?;
    Ok(())
}

/// Runs the recording under a policy; returns processor time, and the number of pages moved.
fn simulate(kind: &Kind, path: &Path) -> anyhow::Result<(Duration, u64)> {
    let mut hardware = presets::by_name(MACHINE)?;
    hardware.tiers[0].capacity = Bytes(kind.footprint_bytes);
    hardware.tiers[1].capacity = Bytes(2 * kind.footprint_bytes);
    let machine = ReferenceMachine::new(ReferenceConfig {
        hardware,
        os: OsConfig::default(),
        period_ns: kind.period_ns,
        reads_per_sample: 0,
        sample_seed: 0,
        options: Options::default(),
    })?;
    let mut policy = policy::build("amp", &serde_json::Value::Null, 1)?;
    let choice = RecordingChoice { path: path.to_owned(), process: None, dependent: false };
    let source = recording(&choice).map_err(|e| anyhow::anyhow!(e.0))?;
    let half = |layout: &Layout| layout.pages() as u64 / 2;
    let group = ReferenceGroup {
        name: kind.name.to_owned(),
        page_size: kind.page_size,
        allocation: policy.allocation(),
        needs_frames: false,
        tables: TablePolicy::default(),
        fast_budget: Box::new(half),
        start_ns: 0,
        stop_ns: None,
        stop_after_start_up_of: None,
    };
    let (mut tracker, mut mover) = machine.add_group(group, Box::new(source))?;
    let before = process_time();
    let mut moved = 0;
    while let Observation::Period(scan) = tracker.observe()? {
        let budget = Budget { fast_pages: half(&scan.layout), moved_pages: MOVED_PAGES };
        let decision = policy.decide(&scan, &budget);
        let outcome = mover.apply(&decision.plan)?;
        moved += outcome.promoted_pages + outcome.demoted_pages;
    }
    let took = process_time() - before;
    let made = machine.counts(0).references;
    anyhow::ensure!(made == kind.references, "{made} of {} references", kind.references);
    Ok((took, moved))
}

/// Processor time of all threads of this process.
pub(super) fn process_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
