//! `terrace caches`: a recording through caches, counted as cachegrind counts.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use terrace_core::InputError;
use terrace_hardware::cache::config::CacheConfig;
use terrace_hardware::cache::counting::LevelCounts;
use terrace_recordings::reference::{Level, ReferenceReader};
use terrace_simulated::caches::{CacheCounter, CacheCounts, count};

use crate::show::{self, Format, say, tell};

/// Count a recording's references and misses per cache level.
///
/// Two levels, LRU, write-allocate, as Valgrind's cachegrind simulates them and counts: a
/// reference that crosses a line is one reference and at most one miss; a load and store of the
/// same bytes by one instruction is one read; the last level is shared by instructions and data.
/// Works on recordings of every reference: 'terrace record --level none', 'terrace import lackey'
/// and 'terrace import champsim'. Recordings without instruction fetches have no instruction
/// counts, and data has the last level for itself.
#[derive(Args)]
pub struct Arguments {
    /// The recording (.tref).
    #[arg(value_name = "RECORDING")]
    recording: PathBuf,
    /// First-level instruction cache.
    #[arg(long, value_name = "SIZE,WAYS", default_value = "32K,8")]
    i1: String,
    /// First-level data cache.
    #[arg(long, value_name = "SIZE,WAYS", default_value = "32K,8")]
    d1: String,
    /// Last level.
    #[arg(long, value_name = "SIZE,WAYS", default_value = "8M,16")]
    ll: String,
    /// Bytes in a line of all three; each may state its own, as in 32K,8,64.
    #[arg(long, value_name = "BYTES")]
    line: Option<u32>,
    /// Format of the answer.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

impl Arguments {
    /// Counts.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let cache = |name: &str, text: &str| {
            CacheConfig::parse(text, self.line)
                .map_err(|e| InputError::new(e.within(&format!("--{name}"))))
        };
        let (i1, d1, ll) = (cache("i1", &self.i1)?, cache("d1", &self.d1)?, cache("ll", &self.ll)?);
        let counter = CacheCounter::new(&i1, &d1, &ll).map_err(InputError::new)?;
        let mut reader = ReferenceReader::open(&self.recording).map_err(InputError::new)?;
        let filter = &reader.header().filter;
        if filter.level != Level::None || filter.sample_one_in > 1 {
            return Err(InputError::new(format_args!(
                "{}: taken after cache '{}', one in {}; expected every reference: record again with 'terrace record --level none --out FILE -- COMMAND'",
                self.recording.display(),
                filter.level.name(),
                filter.sample_one_in
            ))
            .into());
        }
        let counts = count(&mut reader, counter).map_err(InputError::new)?;
        if let Some(cut) = reader.truncation() {
            tell!("{cut}");
        }
        let caches = [("i1", &i1), ("d1", &d1), ("ll", &ll)];
        match self.format {
            Format::Json => {
                let complete = reader.truncation().is_none();
                say!("{}", serde_json::to_string_pretty(&document(&caches, &counts, complete))?)?;
            }
            Format::Text => text(&caches, &counts)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

const NO_INSTRUCTIONS: &str =
    "the recording has no instruction fetches: data has the last level for itself";

fn text(caches: &[(&str, &CacheConfig); 3], counts: &CacheCounts) -> anyhow::Result<()> {
    let shapes: Vec<_> = caches
        .iter()
        .map(|(name, c)| format!("{name} {},{},{}", c.size, c.ways, c.line_bytes))
        .collect();
    say!("{}", shapes.join("  "))?;
    let head = ["", "references", "first-level misses", "%", "last-level misses", "%"];
    let mut table = show::table(&head);
    let mut row = |name: &str, l: &LevelCounts| {
        let share = |n: u64| format!("{:.2}", 100.0 * n as f64 / l.references.max(1) as f64);
        table.add_row([
            name.to_owned(),
            l.references.to_string(),
            l.first_level_misses.to_string(),
            share(l.first_level_misses),
            l.last_level_misses.to_string(),
            share(l.last_level_misses),
        ]);
    };
    if let Some(instructions) = &counts.instructions {
        row("instructions", instructions);
    }
    row("reads", &counts.reads);
    row("writes", &counts.writes);
    say!("{table}")?;
    if counts.instructions.is_none() {
        say!("{NO_INSTRUCTIONS}")?;
    }
    Ok(())
}

fn document(
    caches: &[(&str, &CacheConfig); 3],
    counts: &CacheCounts,
    complete: bool,
) -> serde_json::Value {
    let shape = |c: &CacheConfig| json!({ "size_bytes": c.size.0, "ways": c.ways, "line_bytes": c.line_bytes });
    let [i1, d1, ll] = caches.map(|(_, c)| shape(c));
    let mut notes = Vec::new();
    if counts.instructions.is_none() {
        notes.push(NO_INSTRUCTIONS);
    }
    json!({
        "caches": { "i1": i1, "d1": d1, "ll": ll },
        "instructions": counts.instructions,
        "reads": counts.reads,
        "writes": counts.writes,
        "modifies": counts.modifies,
        "complete": complete,
        "notes": notes,
    })
}
