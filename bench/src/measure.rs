//! Figures and their output.

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

/// One figure.
#[derive(Debug, Serialize)]
struct Figure<'a> {
    name: &'a str,
    value: f64,
    unit: &'a str,
    /// The machine, the size and kind of the input, the number of measurements.
    conditions: String,
}

/// Prints figures as they come and keeps them for the file.
#[derive(Debug, Default)]
pub struct Report {
    lines: String,
}

impl Report {
    /// Adds a figure; the machine is added to its conditions.
    pub fn add(
        &mut self,
        name: &str,
        value: f64,
        unit: &str,
        conditions: &str,
    ) -> anyhow::Result<()> {
        let conditions = format!("{conditions}; one core of {}", cpu_model());
        let line = serde_json::to_string(&Figure { name, value, unit, conditions })?;
        println!("{line}");
        self.lines.push_str(&line);
        self.lines.push('\n');
        Ok(())
    }

    /// Writes every figure to `path`, whole or not at all.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let unfinished = path.with_extension("json.tmp");
        fs::write(&unfinished, &self.lines)
            .and_then(|()| fs::rename(&unfinished, path))
            .with_context(|| format!("writing {}", path.display()))
    }
}

/// The processor's name, from Linux.
fn cpu_model() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    info.lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or_else(|| "an unknown processor".to_owned(), |(_, name)| name.trim().to_owned())
}

/// The median; of an even number of values the lower one of the two.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}
