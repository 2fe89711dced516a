//! The rows of a run: written to the tables of a results directory, or kept in memory until it is
//! their turn.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use terrace_results::{
    HardwareRow, HeatRow, KernelCauseRow, KernelThreadRow, PeriodRow, ResultsError, RunRow, Table,
    TablePagesRow, TableWriter, path,
};

/// Takes the rows of a run.
pub(crate) trait Rows {
    /// A period of a group.
    fn period(&mut self, row: PeriodRow) -> Result<(), ResultsError>;
    /// A run of a group.
    fn run(&mut self, row: RunRow) -> Result<(), ResultsError>;
    /// A bin of a heat map.
    fn heat(&mut self, row: HeatRow) -> Result<(), ResultsError>;
    /// Hardware costs of a period of a group.
    fn hardware(&mut self, row: HardwareRow) -> Result<(), ResultsError>;
    /// Page-table pages of a group.
    fn table_pages(&mut self, row: TablePagesRow) -> Result<(), ResultsError>;
    /// Time of the kernel's own threads.
    fn kernel_thread(&mut self, row: KernelThreadRow) -> Result<(), ResultsError>;
    /// Time of the kernel for one cause.
    fn kernel_cause(&mut self, row: KernelCauseRow) -> Result<(), ResultsError>;
}

/// The tables of a results directory.
pub struct Tables {
    periods: TableWriter<PeriodRow>,
    runs: TableWriter<RunRow>,
    heat: TableWriter<HeatRow>,
    /// Created only when a machine knows references.
    hardware: Option<TableWriter<HardwareRow>>,
    /// Created only when a live machine's kernel counts them.
    table_pages: Option<TableWriter<TablePagesRow>>,
    /// Created only when a live machine's kernel reports them.
    kernel_threads: Option<TableWriter<KernelThreadRow>>,
    /// Created only when a virtual machine's clock models the memory.
    kernel_causes: Option<TableWriter<KernelCauseRow>>,
    directory: PathBuf,
}

impl Tables {
    /// Begins the tables of this directory, which must exist. Those of an earlier run stay until these
    /// are finished.
    pub fn create(directory: &Path) -> Result<Self, ResultsError> {
        Ok(Tables {
            periods: TableWriter::create(directory)?,
            runs: TableWriter::create(directory)?,
            heat: TableWriter::create(directory)?,
            hardware: None,
            table_pages: None,
            kernel_threads: None,
            kernel_causes: None,
            directory: directory.to_owned(),
        })
    }

    /// Renames the files to their final names, and removes optional tables of an earlier run that
    /// these do not replace.
    pub fn finish(self) -> Result<(), ResultsError> {
        self.periods.finish()?;
        self.runs.finish()?;
        self.heat.finish()?;
        replace(self.hardware, &self.directory)?;
        replace(self.table_pages, &self.directory)?;
        replace(self.kernel_threads, &self.directory)?;
        replace(self.kernel_causes, &self.directory)
    }
}

/// Puts an optional table in the place of an earlier run's, which goes where there is none.
fn replace<T: Table>(table: Option<TableWriter<T>>, directory: &Path) -> Result<(), ResultsError> {
    match table {
        Some(table) => table.finish(),
        None => forget::<T>(directory),
    }
}

fn forget<T: Table>(directory: &Path) -> Result<(), ResultsError> {
    let earlier = path::<T>(directory);
    match std::fs::remove_file(&earlier) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(ResultsError::Io { path: earlier, source })
        }
        _ => Ok(()),
    }
}

impl Tables {
    /// Adds the heat map of another results directory as that of the run of this name.
    pub(crate) fn heat_of(&mut self, directory: &Path, run: &str) -> Result<(), ResultsError> {
        self.heat.append(directory, "run", run)
    }
}

impl Rows for Tables {
    fn period(&mut self, row: PeriodRow) -> Result<(), ResultsError> {
        self.periods.push(row)
    }

    fn run(&mut self, row: RunRow) -> Result<(), ResultsError> {
        self.runs.push(row)
    }

    fn heat(&mut self, row: HeatRow) -> Result<(), ResultsError> {
        self.heat.push(row)
    }

    fn hardware(&mut self, row: HardwareRow) -> Result<(), ResultsError> {
        let table = match &mut self.hardware {
            Some(table) => table,
            none => none.insert(TableWriter::create(&self.directory)?),
        };
        table.push(row)
    }

    fn table_pages(&mut self, row: TablePagesRow) -> Result<(), ResultsError> {
        let table = match &mut self.table_pages {
            Some(table) => table,
            none => none.insert(TableWriter::create(&self.directory)?),
        };
        table.push(row)
    }

    fn kernel_thread(&mut self, row: KernelThreadRow) -> Result<(), ResultsError> {
        let table = match &mut self.kernel_threads {
            Some(table) => table,
            none => none.insert(TableWriter::create(&self.directory)?),
        };
        table.push(row)
    }

    fn kernel_cause(&mut self, row: KernelCauseRow) -> Result<(), ResultsError> {
        let table = match &mut self.kernel_causes {
            Some(table) => table,
            none => none.insert(TableWriter::create(&self.directory)?),
        };
        table.push(row)
    }
}

/// Rows kept until it is their run's turn.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    periods: Vec<PeriodRow>,
    runs: Vec<RunRow>,
    heat: Vec<HeatRow>,
    hardware: Vec<HardwareRow>,
    table_pages: Vec<TablePagesRow>,
    kernel_threads: Vec<KernelThreadRow>,
    kernel_causes: Vec<KernelCauseRow>,
}

impl Kept {
    /// Passes them on, in the order in which they were added.
    pub(crate) fn give(self, to: &mut dyn Rows) -> Result<(), ResultsError> {
        self.periods.into_iter().try_for_each(|row| to.period(row))?;
        self.runs.into_iter().try_for_each(|row| to.run(row))?;
        self.heat.into_iter().try_for_each(|row| to.heat(row))?;
        self.hardware.into_iter().try_for_each(|row| to.hardware(row))?;
        self.table_pages.into_iter().try_for_each(|row| to.table_pages(row))?;
        self.kernel_threads.into_iter().try_for_each(|row| to.kernel_thread(row))?;
        self.kernel_causes.into_iter().try_for_each(|row| to.kernel_cause(row))
    }
}

impl Rows for Kept {
    fn period(&mut self, row: PeriodRow) -> Result<(), ResultsError> {
        self.periods.push(row);
        Ok(())
    }

    fn run(&mut self, row: RunRow) -> Result<(), ResultsError> {
        self.runs.push(row);
        Ok(())
    }

    fn heat(&mut self, row: HeatRow) -> Result<(), ResultsError> {
        self.heat.push(row);
        Ok(())
    }

    fn hardware(&mut self, row: HardwareRow) -> Result<(), ResultsError> {
        self.hardware.push(row);
        Ok(())
    }

    fn table_pages(&mut self, row: TablePagesRow) -> Result<(), ResultsError> {
        self.table_pages.push(row);
        Ok(())
    }

    fn kernel_thread(&mut self, row: KernelThreadRow) -> Result<(), ResultsError> {
        self.kernel_threads.push(row);
        Ok(())
    }

    fn kernel_cause(&mut self, row: KernelCauseRow) -> Result<(), ResultsError> {
        self.kernel_causes.push(row);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_an_earlier_run_stay_until_new_ones_are_finished() {
        let directory = tempfile::tempdir().unwrap();
        let mut earlier = Tables::create(directory.path()).unwrap();
        earlier.kernel_cause(KernelCauseRow::default()).unwrap();
        earlier.finish().unwrap();
        let is_there = || path::<KernelCauseRow>(directory.path()).exists();
        // One that fails, and one that has no such rows.
        drop(Tables::create(directory.path()).unwrap());
        assert!(is_there());
        Tables::create(directory.path()).unwrap().finish().unwrap();
        assert!(!is_there());
    }
}
