//! The answer as files: result tables (Parquet), the report (`report.html`), and everything as JSON
//! (`fleet.json`).

use std::path::Path;

use serde_json::{Value, json};
use terrace_core::refuse;
use terrace_experiments::run::write_whole;
use terrace_planner::tables::put;
use terrace_report::{FleetPage, ReportMeta, write_fleet_html};
use terrace_results::ResultsError;

use crate::answer::Answer;
use crate::rollout::{self, WATCH};
use crate::words;

/// Heading of the report.
pub fn title(answer: &Answer) -> String {
    format!("Fast memory for {} hosts", answer.hosts_found)
}

/// The answer with its words, as one JSON document.
pub fn document(answer: &Answer) -> Value {
    json!({
        "answer": words::recommendation(answer), "remarks": words::remarks(answer),
        "rollout": rollout::in_words(answer), "fleet": answer,
    })
}

/// Writes all files into a folder, which is made if it is not there.
///
/// # Errors
/// What prevents a file from being written.
pub fn write(answer: &Answer, out: &Path, meta: &ReportMeta) -> anyhow::Result<()> {
    std::fs::create_dir_all(out).map_err(|e| {
        refuse!("{}: {e}; expected a folder for the answer that can be written to", out.display())
    })?;
    write_tables(answer, out)?;
    let watch = WATCH.iter();
    let page = FleetPage {
        answer: words::recommendation(answer),
        remarks: words::remarks(answer),
        quantile: answer.quantile,
        classes: answer.classes.clone(),
        services: answer.services.clone(),
        hosts: answer.hosts.clone(),
        pairs: answer.pairs.clone(),
        left_out: answer.left_out.clone(),
        watch: watch.map(|w| [w.metric, w.shows, w.stop].map(str::to_owned).into()).collect(),
    };
    write_fleet_html(&out.join("report.html"), &page, meta)?;
    let text = serde_json::to_string_pretty(&document(answer))?;
    write_whole(&out.join("fleet.json"), text.as_bytes())
}

/// Writes the tables alone, into a folder that exists.
///
/// # Errors
/// What prevents a file from being written.
pub fn write_tables(answer: &Answer, folder: &Path) -> Result<(), ResultsError> {
    put(folder, &answer.classes)?;
    put(folder, &answer.services)?;
    put(folder, &answer.hosts)?;
    put(folder, &answer.pairs)?;
    put(folder, &answer.left_out)
}
