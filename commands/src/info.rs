//! `terrace info`: the totals of a recording.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use comfy_table::Table;
use indicatif::{HumanBytes, HumanCount};
use terrace_core::InputError;
use terrace_recordings::survey::{PeriodSurvey, ReferenceSurvey, Survey, survey};

use crate::show::{self, Format, say};

/// Show the totals of a recording.
///
/// Reads it through once: references by kind, threads, instructions, regions and footprint of a
/// reference recording, groups and periods of a period recording, and whether it is complete.
#[derive(Args)]
pub struct Arguments {
    /// The recording (.tref or .trec).
    #[arg(value_name = "RECORDING")]
    recording: PathBuf,
    /// Format of the answer.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

impl Arguments {
    /// Counts and shows them.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let survey = survey(&self.recording).map_err(InputError::new)?;
        match (self.format, &survey) {
            (Format::Json, survey) => say!("{}", serde_json::to_string_pretty(survey)?)?,
            (Format::Text, Survey::References(s)) => say!("{}", references(s))?,
            (Format::Text, Survey::Periods(s)) => say!("{}", periods(s))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn state(complete: bool) -> &'static str {
    if complete { "complete" } else { "cut off: its writer was killed or is still writing" }
}

fn references(s: &ReferenceSurvey) -> Table {
    let mut table = show::list();
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    let filter = &s.header.filter;
    row("kind", "references".to_owned());
    row("command", s.header.command.join(" "));
    row("executed by", s.header.executed_by.clone());
    row(
        "state",
        match &s.ending {
            Some(e) if e.stopped => "of a run that was stopped, or a file that was cut off".into(),
            Some(e) if e.killed > 0 => format!("{} processes were killed", e.killed),
            _ => state(s.complete).to_owned(),
        },
    );
    let sample = match filter.sample_one_in {
        1 => "every reference".to_owned(),
        n => format!("one in {n}"),
    };
    row("taken after cache", format!("{}, {sample}", filter.level.name()));
    row("loads", HumanCount(s.loads).to_string());
    row("stores", HumanCount(s.stores).to_string());
    row("instruction fetches", HumanCount(s.fetches).to_string());
    if s.lost > 0 {
        row("lost", HumanCount(s.lost).to_string());
    }
    if s.header.write_backs {
        row("write-backs", HumanCount(s.write_backs).to_string());
    }
    row("other events", HumanCount(s.events).to_string());
    row(
        "instructions",
        match s.header.counts_instructions() {
            true => HumanCount(s.instructions).to_string(),
            false => format!("not counted; {:.3} s", s.end_time as f64 / 1e9),
        },
    );
    row("threads", HumanCount(s.streams).to_string());
    row("processes", HumanCount(s.processes).to_string());
    row("footprint", HumanBytes(s.footprint_bytes).to_string());
    if s.fetches > 0 {
        row("code", HumanBytes(s.code_bytes).to_string());
    }
    for (kind, r) in &s.regions {
        row(
            &format!("{kind} regions"),
            format!(
                "{}, {}, of which {} can be huge pages",
                r.regions,
                HumanBytes(r.size_bytes),
                HumanBytes(r.huge_page_bytes)
            ),
        );
    }
    table
}

fn periods(s: &PeriodSurvey) -> Table {
    let mut table = show::list();
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("kind", "periods".to_owned());
    row("experiment", s.header.experiment.clone());
    row("written by", s.header.created_by.clone());
    row("state", state(s.complete).to_owned());
    row("period", format!("{} ms", s.header.period_ms));
    for (g, head) in s.groups.iter().zip(&s.header.groups) {
        let periods = g.periods.max(1);
        row(
            &format!("group {}", g.name),
            format!(
                "{} periods, {} lost, {} decisions of {}; at most {}, {} accessed a period{}",
                g.periods,
                g.lost_periods,
                g.decisions,
                head.policy,
                HumanBytes(g.largest_bytes),
                HumanBytes(g.accessed_bytes / periods),
                if g.ended { "" } else { "; has not ended" }
            ),
        );
    }
    table
}
