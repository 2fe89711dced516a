//! The Python package's compiled half, `terrace._terrace`; `terrace/` beside it is the other, and
//! `docs/python.md` describes both.
//!
//! **Depends on** experiments, sweeps, recordings and the planner, and Python's conventions for
//! them. **Must not depend on** how any of it works.
//!
//! - `errors`: errors as exceptions;
//! - `table`: result tables, handed over as Arrow streams; `cells`: what is in them;
//! - `column`: memory of a scan as Python's buffers, for NumPy to read;
//! - `scan`: scans, budgets and moves for policies;
//! - `bridge`: policies written in Python, behind the engine's interface; `conversation`: the same in a
//!   process of their own, for live programs;
//! - `experiment`: experiments; `results`: their results;
//! - `windows`: windows of programs and estimates from them;
//! - `recording`: recordings; `sweep`: grids and their cells; `planner`: plans; `fleet`: fleets;
//! - `catalogue`: the policies, workloads and machines.

mod bridge;
mod catalogue;
mod cells;
mod column;
mod conversation;
mod errors;
mod experiment;
mod fleet;
mod planner;
mod recording;
mod results;
mod scan;
mod sweep;
mod table;
mod windows;

use pyo3::prelude::*;

/// The module.
#[pymodule]
fn _terrace(module: &Bound<'_, PyModule>) -> PyResult<()> {
    terrace_identity::set(terrace_identity::this_build!());
    let py = module.py();
    let build = terrace_identity::build();
    module.add("__version__", build.version)?;
    module.add("__build__", build.description)?;
    module.add("TerraceError", py.get_type::<errors::TerraceError>())?;
    module.add("Refused", py.get_type::<errors::Refused>())?;
    module.add_class::<column::Column>()?;
    module.add_class::<table::Table>()?;
    module.add_class::<scan::Scan>()?;
    module.add_class::<scan::Budget>()?;
    module.add_class::<scan::Moves>()?;
    module.add_class::<experiment::Experiment>()?;
    module.add_class::<results::Results>()?;
    module.add_class::<results::Run>()?;
    module.add_class::<recording::Recording>()?;
    module.add_class::<recording::Scans>()?;
    module.add_class::<sweep::Grid>()?;
    module.add_class::<conversation::Conversation>()?;
    module.add_class::<planner::Plan>()?;
    module.add_class::<fleet::Fleet>()?;
    module.add_class::<fleet::FleetAnswer>()?;
    module.add_class::<windows::Windows>()?;
    module.add_function(wrap_pyfunction!(errors::hint, module)?)?;
    module.add_function(wrap_pyfunction!(scan::select, module)?)?;
    module.add_function(wrap_pyfunction!(sweep::run_cell, module)?)?;
    module.add_function(wrap_pyfunction!(planner::plan, module)?)?;
    module.add_function(wrap_pyfunction!(catalogue::policies, module)?)?;
    module.add_function(wrap_pyfunction!(catalogue::workloads, module)?)?;
    module.add_function(wrap_pyfunction!(catalogue::machines, module)?)?;
    Ok(())
}
