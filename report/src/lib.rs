//! Result tables as text, JSON, and one self-contained HTML file.
//!
//! **Depends on** tables and pictures. **Must not depend on** the origin of the tables: no machine,
//! no engine, no policy. A policy is a name with a colour, here.
//!
//! - [`results`]: the contents of a directory of results; [`rack`]: of the rack's;
//! - [`text`]: the table for a terminal;
//! - [`mod@json`]: the same for programs;
//! - [`mod@html`]: the report for people; [`html::plots`]: charts of any table of values.
//!
//! Same results in, same bytes out.
#![forbid(unsafe_code)]

mod error;
mod format;
mod gain;
pub mod html;
pub mod json;
pub mod rack;
pub mod results;
mod rows;
pub mod text;

pub use error::ReportError;
pub use html::fleet::{FleetPage, fleet_html, write_fleet_html};
pub use html::plan::{PlanPage, plan_html, write_plan_html};
pub use html::plots;
pub use html::sheet::{SweepPage, SweepRow, sweep_html, write_sweep_html};
pub use html::{ReportMeta, heat_png, heat_svg, html, rack_html, write_html, write_rack_html};
pub use json::json;
pub use rack::RackResults;
pub use results::Results;
pub use text::text_table;
