//! The report: one HTML file with everything in it, for people.
//!
//! Tables and words are filled into a template; pictures are drawn by the plotters library and are
//! in the page as SVG. No script, no fetch, no time of day: the same results give the same bytes,
//! and the file can be mailed, printed and kept.

mod bars;
mod beside;
mod chart;
mod content;
mod explanations;
mod figures;
mod findings;
pub mod fleet;
mod heat;
mod page;
mod picture;
pub mod plan;
pub mod plots;
mod rack;
pub mod sheet;
mod sweep;
mod tables;
mod templates;
mod theme;
mod threads;
mod timeline;

use std::io::Write;
use std::path::Path;

use terrace_results::HeatRow;

use crate::error::ReportError;
use crate::rack::RackResults;
use crate::results::Results;
use templates::filled;

/// Texts of a report that the results do not contain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportMeta {
    /// The heading.
    pub title: String,
    /// The command line that produced the results; may be empty.
    pub command: String,
    /// Name and version of the program that wrote the report.
    pub generated_by_version: String,
}

const CSS: &str = include_str!("report.css");

/// The report as one HTML file that needs nothing else. Names from the results are escaped.
pub fn html(results: &Results, meta: &ReportMeta) -> String {
    filled("report.html", content::content(results, meta))
}

/// The same for results of the rack.
pub fn rack_html(results: &RackResults, meta: &ReportMeta) -> String {
    filled("rack.html", rack::content(results, meta))
}

/// A heat map by itself, as an SVG file: the accessed share and, beside it, the share in fast
/// memory, by address and period. `None` of bins that cover nothing.
pub fn heat_svg(bins: &[HeatRow], label: &str) -> Option<String> {
    let bins: Vec<&HeatRow> = bins.iter().collect();
    let drawn = heat::HeatMap::new(&bins, heat::raster_max(1))?.draw(label);
    let head = "<svg xmlns=\"http://www.w3.org/2000/svg\" font-family=\"sans-serif\" ";
    Some(drawn.replacen("<svg ", head, 1))
}

/// The same as a PNG file, without axes.
pub fn heat_png(bins: &[HeatRow]) -> Option<Vec<u8>> {
    let bins: Vec<&HeatRow> = bins.iter().collect();
    heat::HeatMap::new(&bins, heat::raster_max(1))?.png(3)
}

/// Writes the report, whole or not at all: to a file beside it that then takes its name.
pub fn write_html(path: &Path, results: &Results, meta: &ReportMeta) -> Result<(), ReportError> {
    write_page(path, &html(results, meta))
}

/// The same for results of the rack.
pub fn write_rack_html(
    path: &Path,
    results: &RackResults,
    meta: &ReportMeta,
) -> Result<(), ReportError> {
    write_page(path, &rack_html(results, meta))
}

fn write_page(path: &Path, page: &str) -> Result<(), ReportError> {
    let failed =
        |e: &std::io::Error| ReportError::Write { path: path.to_owned(), problem: e.to_string() };
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".report-").suffix(".part");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As any other file: the umask decides. A temporary file is for its owner only.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(directory).map_err(|e| failed(&e))?;
    file.write_all(page.as_bytes()).map_err(|e| failed(&e))?;
    file.as_file().sync_all().map_err(|e| failed(&e))?;
    file.persist(path).map_err(|e| failed(&e.error))?;
    Ok(())
}

/// The style sheet: the page's own, its dark colours, and those of the pictures.
fn css() -> String {
    // On paper the light colours hold.
    format!(
        "{CSS}@media screen and (prefers-color-scheme:dark){{\n\
         :root{{--ink:#e4e8ef;--muted:#9da7b6;--page:#14181e;--card:#14181e;--line:#2a303a;\
         --soft:#1d222a;--wrong:#ff7a85;--good:#4cc79a;--warn:#e9a23b}}\n{}}}\n",
        theme::dark_css()
    )
}
