//! The results of the rack in a directory: what its report needs.

use std::path::Path;

use serde::Deserialize;
use terrace_results::{RackLatencyRow, RackPortRow, RackRunRow, RackSampleRow, path, read};

use crate::error::ReportError;

/// What a paper claims, and what came out: a row of `claims.json`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct ClaimRow {
    /// What the paper says.
    pub says: String,
    /// Where.
    pub source: String,
    /// What must lie where.
    pub expected: String,
    /// What came out.
    pub here: String,
    /// "agrees", "partly", "differs" or "not-measured".
    pub agreement: String,
}

/// What is in a directory of results of the rack.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RackResults {
    /// A row for each node of each run.
    pub runs: Vec<RackRunRow>,
    /// Their timelines.
    pub samples: Vec<RackSampleRow>,
    /// The switch's ports.
    pub ports: Vec<RackPortRow>,
    /// Latencies.
    pub latencies: Vec<RackLatencyRow>,
    /// What a paper says, if the experiment has it.
    pub claims: Vec<ClaimRow>,
}

impl RackResults {
    /// Whether a directory has results of the rack.
    pub fn are_in(directory: &Path) -> bool {
        path::<RackRunRow>(directory).exists()
    }

    /// Reads the four tables of a directory, and `claims.json` if it is there.
    pub fn read(directory: &Path) -> Result<RackResults, ReportError> {
        let runs: Vec<RackRunRow> = read(directory)?;
        if runs.is_empty() {
            return Err(ReportError::Empty { path: path::<RackRunRow>(directory) });
        }
        let claims = directory.join("claims.json");
        let claims = match std::fs::read_to_string(&claims) {
            Ok(text) => serde_json::from_str(&text).map_err(|e| ReportError::Claims {
                path: claims.clone(),
                problem: e.to_string(),
            })?,
            Err(_) => Vec::new(),
        };
        Ok(RackResults {
            runs,
            samples: read(directory)?,
            ports: read(directory)?,
            latencies: read(directory)?,
            claims,
        })
    }
}
