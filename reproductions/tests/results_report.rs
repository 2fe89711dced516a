//! The results report in `docs/results`: its verdicts are what the figures' claims make of its own tables,
//! so that neither a claim nor a table changes without the other.

use std::path::{Path, PathBuf};

use terrace_experiments::verdict::VerdictKind;
use terrace_reproductions::claims::check;
use terrace_reproductions::data::Data;
use terrace_reproductions::reproduce::draw;
use terrace_reproductions::{Figure, Size, library};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/results")
}

fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_start_matches('|').trim_end_matches('|').split(" | ").map(str::trim).collect()
}

/// The rows of the table that begins after this line.
fn table<'a>(page: &'a str, heading: &str) -> Option<Vec<Vec<&'a str>>> {
    let (_, rest) = page.split_once(heading)?;
    let rows = rest.lines().skip_while(|l| !l.starts_with('|'));
    let rows = rows.take_while(|l| l.starts_with('|')).filter(|l| !l.starts_with("|---"));
    Some(rows.map(cells).collect())
}

/// The values of a page's tables.
fn data(figure: &Figure, page: &str) -> Data {
    let mut data = Size::Quick.empty(figure);
    // A page with rows that a quick run has not is of a whole run.
    let whole = Size::Standard.empty(figure);
    let of_rows = |row: &String| page.contains(&format!("\n| {row} |"));
    if whole.rows.iter().any(|row| !data.rows.contains(row) && of_rows(row)) {
        data = whole;
    }
    for measure in &figure.measures {
        // A table without any value is left out.
        let Some(rows) = table(page, &format!("\n## {measure}\n")) else { continue };
        let [columns, rows @ ..] = &rows[..] else { continue };
        for row in rows {
            for (column, value) in columns.iter().zip(row).skip(1) {
                if let Ok(value) = value.parse() {
                    data.put(row[0], column, measure, value);
                }
            }
        }
    }
    data
}

#[test]
fn verdicts_of_the_report_are_those_of_its_tables() {
    let mut pages = 0;
    for figure in library::all().unwrap() {
        let path = folder().join(format!("{}.md", figure.name.replace('/', "-")));
        // Figures that were not run for the report are named in it.
        let Ok(page) = std::fs::read_to_string(&path) else {
            let contents = std::fs::read_to_string(folder().join("README.md")).unwrap();
            let not_run = contents.lines().find(|l| l.starts_with("Not run for this report:"));
            assert!(not_run.is_some_and(|l| l.contains(&figure.name)), "no page {}", figure.name);
            continue;
        };
        let shown = table(&page, "| claim | paper | here | verdict |").unwrap();
        let shown: Vec<(&str, &str)> = shown.iter().map(|row| (row[0], row[3])).collect();
        let verdicts = check(&figure.claims, &data(&figure, &page)).unwrap();
        let verdicts: Vec<(String, &str)> = verdicts
            .iter()
            .map(|v| {
                let headline = v.headline.as_ref().map(|h| format!("{h}: ")).unwrap_or_default();
                let word = if v.kind == VerdictKind::No { "**no**" } else { v.kind.word() };
                (format!("{headline}{}", v.says), word)
            })
            .collect();
        let verdicts: Vec<(&str, &str)> = verdicts.iter().map(|v| (&v.0[..], v.1)).collect();
        assert_eq!(shown, verdicts, "{}: run the figure again with --report", path.display());
        // Each claim's controls are beside it.
        let rows = table(&page, "| claim | paper | here | verdict |").unwrap();
        for (row, claim) in rows.iter().zip(&figure.claims) {
            for control in &claim.controls {
                let is_there = row[4].contains(&format!("{}: ", control.says));
                assert!(is_there, "{}: {} has no control", path.display(), claim.says);
            }
        }
        pages += 1;
    }
    assert!(pages >= 45, "{pages} pages");
}

/// The pictures are written again with TERRACE_GENERATE set.
#[test]
fn pictures_of_the_report_are_those_of_its_tables() {
    let write = std::env::var_os("TERRACE_GENERATE").is_some();
    for figure in library::all().unwrap() {
        let name = figure.name.replace('/', "-");
        let Ok(page) = std::fs::read_to_string(folder().join(format!("{name}.md"))) else {
            continue;
        };
        let claims = table(&page, "| claim | paper | here | verdict |").unwrap();
        let here: Vec<String> = claims.iter().map(|row| row[2].to_owned()).collect();
        assert_eq!(here.len(), figure.claims.len(), "{name}");
        let drawn = draw(&figure, &data(&figure, &page), &here).unwrap();
        let picture = terrace_report::plots::file(&drawn);
        let path = folder().join(format!("{name}.svg"));
        if write {
            std::fs::write(&path, picture).unwrap();
            continue;
        }
        let there = std::fs::read_to_string(&path).unwrap();
        assert!(there == picture, "{}: run this test with TERRACE_GENERATE=1", path.display());
    }
}
