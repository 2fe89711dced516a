//! A page of sections: findings first, then pictures and tables. Reports of plans and sweeps are
//! made of it.

use serde::Serialize;

use super::ReportMeta;
use super::templates::filled;

/// A page.
#[derive(Serialize, Default)]
pub(super) struct Page {
    pub(super) subtitle: String,
    pub(super) findings: Vec<Finding>,
    pub(super) sections: Vec<Section>,
}

/// A finding, with its weight.
#[derive(Serialize)]
pub(super) struct Finding {
    /// "good", "wrong", "note" or "plain".
    pub(super) kind: &'static str,
    pub(super) text: String,
}

#[derive(Serialize, Default)]
pub(super) struct Section {
    pub(super) title: String,
    pub(super) note: String,
    /// Whether its figures take the whole width.
    pub(super) full: bool,
    pub(super) figures: Vec<Picture>,
    pub(super) tables: Vec<Sheet>,
    pub(super) text: String,
    pub(super) terms: Vec<Term>,
}

#[derive(Serialize)]
pub(super) struct Picture {
    pub(super) title: String,
    pub(super) note: String,
    pub(super) legend: Vec<Entry>,
    pub(super) svg: String,
}

#[derive(Serialize)]
pub(super) struct Entry {
    pub(super) chip: String,
    pub(super) name: String,
}

#[derive(Serialize, Default)]
pub(super) struct Sheet {
    pub(super) title: String,
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Row>,
    pub(super) note: String,
}

#[derive(Serialize)]
pub(super) struct Column {
    pub(super) name: String,
    /// Numbers are aligned to the right.
    pub(super) right: bool,
}

#[derive(Serialize)]
pub(super) struct Row {
    pub(super) cells: Vec<Cell>,
    pub(super) best: bool,
}

#[derive(Serialize)]
pub(super) struct Cell {
    pub(super) text: String,
    /// How deep its ground is coloured, 0 to 1 as text; empty for not.
    pub(super) shade: String,
}

#[derive(Serialize)]
pub(super) struct Term {
    pub(super) name: &'static str,
    pub(super) meaning: String,
}

/// Columns of these names; a `>` before a name puts it to the right.
pub(super) fn columns(names: &[&str]) -> Vec<Column> {
    let column = |name: &&str| match name.strip_prefix('>') {
        Some(name) => Column { name: name.to_owned(), right: true },
        None => Column { name: (*name).to_owned(), right: false },
    };
    names.iter().map(column).collect()
}

/// A row of plain cells.
pub(super) fn row(cells: impl IntoIterator<Item = String>, best: bool) -> Row {
    let cell = |text| Cell { text, shade: String::new() };
    Row { cells: cells.into_iter().map(cell).collect(), best }
}

/// The page as HTML.
pub(super) fn render(page: &Page, meta: &ReportMeta) -> String {
    let context = minijinja::context! {
        title => meta.title,
        command => meta.command,
        version => meta.generated_by_version,
        css => super::css(),
        ..minijinja::Value::from_serialize(page)
    };
    filled("page.html", context)
}
