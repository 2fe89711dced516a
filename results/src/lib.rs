//! Result tables: the same columns from every machine, as Parquet files.
//!
//! **Depends on** the columns and the files. **Must not depend on** writers of the tables or
//! programs that draw them: experiments write, reports read.
//!
//! A results directory holds [`PeriodRow`]s in `periods.parquet`, [`RunRow`]s in
//! `runs.parquet`, [`HeatRow`]s in `heat.parquet` and, from machines with references,
//! [`HardwareRow`]s in `hardware.parquet`, [`KernelThreadRow`]s in `kernel-threads.parquet`,
//! [`KernelCauseRow`]s in `kernel-causes.parquet`. A table is a struct declared with
//! the macro of `table.rs`; a column is added by adding a field.
#![forbid(unsafe_code)]

mod cell;
mod copy;
#[macro_use]
mod table;
// After the macro that it uses.
mod figure;
mod file;
mod fleet;
mod plan;
mod quiet;
mod rack;
mod rows;
mod wide;

pub use cell::{Cell, Kind, Value};
pub use figure::FigureRow;
pub use file::{ResultsError, TableWriter, path, read};
pub use fleet::{FleetClassRow, FleetHostRow, FleetLeftOutRow, FleetPairRow, FleetServiceRow};
pub use plan::{PlanAnswerRow, PlanFrontRow, PlanPointRow, PlanSensitivityRow};
pub use rack::{RackLatencyRow, RackPortRow, RackRunRow, RackSampleRow};
pub use rows::{
    ALL_FAST, HardwareRow, HeatRow, KernelCauseRow, KernelThreadRow, PeriodRow, RUN_TIME, RunRow,
    TablePagesRow,
};
pub use table::{Column, Table};
pub use wide::{WideColumn, WideWriter};
