//! The results of the rack in a directory, as its report needs them.

use std::path::Path;

use serde::Deserialize;
use terrace_results::{RackLatencyRow, RackPortRow, RackRunRow, RackSampleRow, path, read};

use crate::error::ReportError;

/// A paper's claim, and the measured value: a row of `claims.json`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct ClaimRow {
    /// The claim.
    pub says: String,
    /// Its place in the paper.
    pub source: String,
    /// The bounds of agreement.
    pub expected: String,
    /// The measured value.
    pub here: String,
    /// "agrees", "partly", "differs" or "not-measured".
    pub agreement: String,
}

/// The contents of a directory of results of the rack.
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
    /// The paper's claims, if the experiment has them.
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
