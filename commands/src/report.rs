//! `terrace report`: the report of a results directory.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use terrace_core::InputError;
use terrace_report::{RackResults, ReportMeta, Results};

use crate::show::{Format, say};

/// Show the results of an earlier run and write its report again.
#[derive(Args)]
pub struct Arguments {
    /// The results directory.
    #[arg(value_name = "DIR")]
    results: PathBuf,
    /// Format of the output.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

impl Arguments {
    /// Shows them.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        if RackResults::are_in(&self.results) {
            let report = write_rack(&self.results).map_err(InputError::new)?;
            say!("report: {}", report.display())?;
            return Ok(ExitCode::SUCCESS);
        }
        let results = Results::read(&self.results).map_err(InputError::new)?;
        let report = write(&self.results, &results).map_err(InputError::new)?;
        show(&results, self.format, &report)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes the HTML report into the results directory and prints its path.
pub fn write(directory: &Path, results: &Results) -> anyhow::Result<PathBuf> {
    let path = directory.join("report.html");
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let meta = ReportMeta {
        title: results.title(),
        command,
        generated_by_version: terrace_identity::created_by("terrace"),
    };
    terrace_report::write_html(&path, results, &meta)?;
    Ok(path)
}

/// The same for a directory with results of the rack.
pub fn write_rack(directory: &Path) -> anyhow::Result<PathBuf> {
    let results = RackResults::read(directory)?;
    let path = directory.join("report.html");
    let meta = ReportMeta {
        title: format!("The rack: {}", results.runs[0].experiment),
        command: std::env::args().collect::<Vec<_>>().join(" "),
        generated_by_version: terrace_identity::created_by("terrace"),
    };
    terrace_report::write_rack_html(&path, &results, &meta)?;
    Ok(path)
}

/// Prints results and the path of the report.
pub fn show(results: &Results, format: Format, report: &Path) -> anyhow::Result<()> {
    match format {
        Format::Json => {
            say!("{}", serde_json::to_string_pretty(&terrace_report::json(results))?)?;
        }
        Format::Text => {
            say!("{}", terrace_report::text_table(results, crate::show::width()))?;
            say!("report: {}", report.display())?;
        }
    }
    Ok(())
}
