//! The figures that come with Terrace. A figure is a file under `figures` and a line here.

use crate::figure::Figure;

macro_rules! figures {
    ($($name:literal,)*) => {
        /// Names and files.
        const FIGURES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../figures/", $name, ".toml"))),)*];
    };
}

figures! {
    "nimble/fig2",
    "nimble/fig3",
    "nimble/fig8",
    "nimble/fig9",
    "nimble/fig10",
    "nimble/fig11",
    "nimble/fig12",
    "nimble/fig13",
    "nimble/fig14",
    "nimble/platform",
    "nimble/table2",
    "nimble/kernel",
    "radiant/fig1",
    "radiant/fig4",
    "radiant/fig5",
    "radiant/fig6",
    "radiant/fig7",
    "radiant/fig9",
    "radiant/fig10",
    "radiant/fig11",
    "radiant/fig13",
    "radiant/fig14",
    "radiant/table5",
    "radiant/upper",
    "granularity/fig1",
    "granularity/fig2",
    "granularity/fig3",
    "granularity/fig4",
    "granularity/fig8",
    "granularity/fig9",
    "granularity/fig10",
    "granularity/fig11",
    "granularity/fig12",
    "granularity/fig13",
    "granularity/lambda",
    "granularity/interval",
    "granularity/threads",
    "amp/fig2",
    "amp/fig4",
    "amp/fig5",
    "amp/fig6",
    "amp/fig7",
    "amp/fig8",
    "amp/fig10",
    "amp/fig11",
    "amp/fig12",
    "amp/fig13",
    "amp/fig14",
    "amp/fig15",
    "amp/fig16",
    "amp/table6",
}

/// The papers' short names and titles.
pub const PAPERS: &[(&str, &str)] = &[
    ("nimble", "Nimble Page Management for Tiered Memory Systems (ASPLOS 2019)"),
    ("radiant", "Radiant: Efficient Page Table Management for Tiered Memory Systems (ISMM 2021)"),
    ("granularity", "Adaptive page migration granularity in heterogeneous memory"),
    ("amp", "Adaptive Page Migration Policy with Huge Pages in Tiered Memory Systems"),
];

/// Results in the papers that no figure here shows, and why. Drawings of mechanisms, lists of
/// machines and programs, and comparisons in words report no result and are left out here.
pub const NOT_SHOWN: &[(&str, &str, &str)] = &[
    ("nimble", "table 2, platforms other than the first", "their machines are not modelled"),
    ("radiant", "figure 12", "shown with radiant/fig11"),
    (
        "radiant",
        "table 4",
        "each of its lines is claimed in a figure: run time, walks and stalls in radiant/fig1, fig9, fig10, fig11 and fig13; its percentiles of latency are not simulated",
    ),
    (
        "amp",
        "figure 3",
        "access frequencies of pages over time: what `terrace heatmap` draws of any run; it has no numbers to compare with",
    ),
    ("amp", "figure 17 and table 1", "shown with amp/table6 and amp/fig6"),
    (
        "amp",
        "table 3",
        "the share of memory that Linux gave out as huge pages; the simulated machine gives what is asked for",
    ),
];

/// The file of the figure of this name.
pub fn text_of(name: &str) -> Option<&'static str> {
    FIGURES.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
}

/// All figures, in the order of papers and figures.
pub fn all() -> Result<Vec<Figure>, String> {
    FIGURES.iter().map(|(name, text)| Figure::parse(name, text, &text_of)).collect()
}

/// The figures of these names; a paper's name selects all of its figures.
pub fn find(names: &[String]) -> Result<Vec<Figure>, String> {
    let all = all()?;
    let mut found: Vec<Figure> = Vec::new();
    for name in names {
        let before = found.len();
        let fits = |f: &&Figure| f.name == *name || f.paper() == name;
        for figure in all.iter().filter(fits) {
            if found.iter().all(|f| f.name != figure.name) {
                found.push(figure.clone());
            }
        }
        if found.len() == before && !all.iter().any(|f| fits(&f)) {
            return Err(format!(
                "figure '{name}': expected one of 'terrace reproduce list', or a paper: {}",
                PAPERS.iter().map(|(p, _)| *p).collect::<Vec<_>>().join(", ")
            ));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_experiments::verdict::VerdictKind;

    use crate::claims::check;
    use crate::data::Data;

    #[test]
    fn every_figure_that_comes_with_terrace_is_sound() {
        let figures = all().unwrap();
        for figure in &figures {
            assert!(PAPERS.iter().any(|(p, _)| *p == figure.paper()), "{}", figure.name);
            assert!(!figure.claims.is_empty(), "{}: a figure without a claim", figure.name);
        }
        assert!(figures.len() >= 7);
    }

    #[test]
    fn every_claim_makes_sense_before_anything_is_run() {
        for figure in all().unwrap() {
            let names = |parts: &[crate::figure::Part]| -> Vec<String> {
                parts.iter().map(|p| p.name.clone()).collect()
            };
            let (rows, columns) = (names(&figure.rows), names(&figure.columns));
            let mut data = Data::new(rows.clone(), columns.clone(), figure.measures.clone());
            let mut value = 1.0;
            for (row, column) in rows.iter().flat_map(|r| columns.iter().map(move |c| (r, c))) {
                for measure in &figure.measures {
                    value += 1.0;
                    data.put(row, column, measure, value);
                }
            }
            let verdicts =
                check(&figure.claims, &data).unwrap_or_else(|e| panic!("{}: {e}", figure.name));
            for verdict in verdicts {
                // A misspelt name would make it undecided.
                assert!(verdict.kind != VerdictKind::NotRun, "{}: {}", figure.name, verdict.says);
                let control = verdict.controls.iter().map(|(_, here)| here);
                let not_run = control.chain([&verdict.here]).any(|here| here == "not run");
                assert!(!not_run, "{}: {}", figure.name, verdict.says);
            }
        }
    }

    #[test]
    fn figures_are_found_by_name_and_by_paper() {
        let names = |of: &[&str]| {
            let wanted: Vec<String> = of.iter().map(|s| (*s).to_owned()).collect();
            find(&wanted).map(|f| f.iter().map(|f| f.name.clone()).collect::<Vec<_>>())
        };
        assert_eq!(names(&["nimble/fig8"]).unwrap(), ["nimble/fig8"]);
        assert_eq!(names(&["nimble/fig8", "nimble"]).unwrap()[0], "nimble/fig8");
        assert!(names(&["nimble"]).unwrap().len() > 3);
        assert!(names(&["nimble/fig99"]).unwrap_err().contains("expected one of"));
    }
}
