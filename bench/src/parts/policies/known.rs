//! Figures that have been run already, kept in a file from one piece of the experiment to the next.
//!
//! `TERRACE_FIGURES` names the file: lines of a case, the run and the slowdown, separated by tabs.
//! The file is only as valid as the code that wrote it: delete it when policies or programs change.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;

pub struct Known {
    slowdowns: HashMap<(String, String), f64>,
    file: Option<File>,
}

impl Known {
    /// Reads the file; `None`: nothing is stored.
    pub fn open(path: Option<PathBuf>) -> anyhow::Result<Self> {
        let Some(path) = path else {
            return Ok(Known { slowdowns: HashMap::new(), file: None });
        };
        let signals = || format!("the figures in {}", path.display());
        let text = match std::fs::read_to_string(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text.with_context(signals)?,
        };
        let mut slowdowns = HashMap::new();
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let slowdown = fields.get(2).and_then(|text| text.parse::<f64>().ok());
            let slowdown = slowdown.with_context(|| {
                format!("'{line}' in {}; expected case, run and slowdown", path.display())
            })?;
            slowdowns.insert((fields[0].to_owned(), fields[1].to_owned()), slowdown);
        }
        let file =
            OpenOptions::new().create(true).append(true).open(&path).with_context(signals)?;
        Ok(Known { slowdowns, file: Some(file) })
    }

    /// The slowdown of a case, run if the file does not have it.
    pub fn or_run(
        &mut self,
        case: &str,
        what: &str,
        run: impl FnOnce() -> anyhow::Result<f64>,
    ) -> anyhow::Result<f64> {
        let key = (case.to_owned(), what.to_owned());
        if let Some(&slowdown) = self.slowdowns.get(&key) {
            return Ok(slowdown);
        }
        let slowdown = run().with_context(|| format!("{case}: {what}"))?;
        if let Some(file) = &mut self.file {
            writeln!(file, "{case}\t{what}\t{slowdown}").context("keeping a figure")?;
        }
        self.slowdowns.insert(key, slowdown);
        Ok(slowdown)
    }
}
