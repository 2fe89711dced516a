//! The README's picture and numbers are those that were measured, and the citation is of this version.

mod common;

fn read(path: &str) -> String {
    std::fs::read_to_string(common::tree(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The systems of the picture, by the columns of the table of slowdowns by seed.
const SYSTEMS: [&str; 4] = ["nothing", "linux", "amp", "terrace"];

/// The table of slowdowns by seed: what each system loses in percent of the run time with all memory
/// fast, and what Linux, AMP and terrace get back of what is lost where nothing moves, in percent.
fn by_seed(page: &str) -> ([Vec<f64>; 4], [Vec<f64>; 3]) {
    let mut lines = page.lines().skip_while(|line| !line.starts_with("| seed | slowdown: nothing"));
    let head = lines.next().expect("a table of slowdowns by seed");
    let systems = "| seed | slowdown: nothing moved | Linux | AMP | terrace |";
    let shares = "| of the loss got back: Linux, AMP, terrace |";
    assert!(head.starts_with(systems) && head.ends_with(shares), "{head}");
    let (mut lost, mut got_back): ([Vec<f64>; 4], [Vec<f64>; 3]) = Default::default();
    for row in lines.skip(1).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        for (system, cell) in lost.iter_mut().zip(&cells[2..]) {
            system.push((cell.parse::<f64>().unwrap() - 1.0) * 100.0);
        }
        let last = cells[cells.len() - 2].trim_end_matches(" %");
        for (system, share) in got_back.iter_mut().zip(last.split(", ")) {
            system.push(share.parse().unwrap());
        }
    }
    (lost, got_back)
}

/// A number with the sign that print has; nothing has none.
fn in_words(number: String) -> String {
    match number.strip_prefix('-') {
        Some(zero) if zero.starts_with("0.0 ") => zero.to_owned(),
        _ => number.replace('-', "\u{2212}"),
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Values of an attribute in a part of a picture.
fn numbers(part: &str, element: &str, attribute: &str) -> Vec<f64> {
    let open = format!("<{element} ");
    let of = format!(" {attribute}=\"");
    let elements = part.split(&open).skip(1).map(|rest| rest.split('>').next().unwrap());
    let texts = elements.filter_map(|e| format!(" {e}").split(&of).nth(1).map(str::to_owned));
    texts.map(|text| text.split('"').next().unwrap().parse().unwrap()).collect()
}

/// The part of a picture with this name.
fn group<'a>(picture: &'a str, name: &str) -> &'a str {
    let start = picture.split(&format!("<g id=\"{name}\">")).nth(1);
    start.unwrap_or_else(|| panic!("no part '{name}'")).split("</g>").next().unwrap()
}

#[test]
fn the_readme_shows_what_the_demo_was_measured_to_give() {
    let (picture, readme) = (read("docs/demo.svg"), read("README.md"));
    let (lost, got_back) = by_seed(&read("docs/measurements/live.md"));
    assert!(readme.contains("](docs/demo.svg)"), "README.md has no picture");
    assert!(picture.contains("prefers-color-scheme: dark") && picture.contains("<title"));

    // The scale, by the axis: lines at 0, 4, 8, 12 and 16 %.
    let ticks = numbers(&picture, "line", "x1");
    let (zero, percent) = (ticks[0], (ticks[4] - ticks[0]) / 16.0);
    for (tick, name) in ticks.iter().zip([0, 4, 8, 12, 16]) {
        assert!((tick - (zero + percent * f64::from(name))).abs() < 0.1, "{ticks:?}");
        let label = in_words(format!("{name} %"));
        assert!(
            picture.contains(&format!("x=\"{tick}\" y=\"246\" text-anchor=\"middle\">{label}"))
        );
    }
    for (name, seeds) in SYSTEMS.iter().zip(&lost) {
        let part = group(&picture, name);
        assert_eq!(seeds.len(), 3, "{name}");
        let (left, width) = (numbers(part, "rect", "x")[0], numbers(part, "rect", "width")[0]);
        let ends = [(left - zero) / percent, (left + width - zero) / percent];
        let measured = [mean(seeds).min(0.0), mean(seeds).max(0.0)];
        for (end, measured) in ends.iter().zip(measured) {
            assert!((end - measured).abs() < 0.01, "{name}: a bar to {ends:?}, not {measured}");
        }
        let dots = numbers(part, "circle", "cx");
        assert_eq!(dots.len(), seeds.len(), "{name}");
        for (dot, seed) in dots.iter().zip(seeds) {
            let shown = (dot - zero) / percent;
            assert!((shown - seed).abs() < 0.01, "{name}: a dot at {shown}, {seed} measured");
        }
        let words = in_words(format!("{:.1} %", mean(seeds)));
        assert!(part.contains(&format!("mean {words}<")), "{name}: {words}");
        let line = readme.lines().find(|line| line.starts_with("![")).unwrap();
        assert!(line.contains(&words), "the picture's words in README.md lack {words} of {name}");
    }

    // The sentences beside it.
    let nothing = &lost[0];
    let ends = [
        nothing.iter().fold(100.0f64, |a, b| a.min(*b)),
        nothing.iter().fold(0.0, |a: f64, b| a.max(*b)),
    ];
    // Shares are of slowdowns with more digits than the table has.
    for (system, shares) in got_back.iter().enumerate() {
        for ((share, left), all) in shares.iter().zip(&lost[system + 1]).zip(nothing) {
            assert!((share - (1.0 - left / all) * 100.0).abs() < 1.0, "{shares:?}");
        }
    }
    let range = |system: usize| {
        let mut all: Vec<f64> = got_back[system].clone();
        all.sort_by(f64::total_cmp);
        format!("{:.0} to {:.0} %", all[0], all[2])
    };
    // Of the mean loss, as the picture has it. A mean of each seed's share would weigh the seed with
    // the smallest loss most.
    let of_mean = |system: usize| 100.0 * (1.0 - mean(&lost[system + 1]) / mean(nothing));
    for says in [
        format!("loses {:.0} to {:.0} % of its time", ends[0], ends[1]),
        format!("Terrace gets back {:.0} % of the mean loss", of_mean(2)),
        format!("AMP gets back {:.0} % of the mean loss", of_mean(1)),
        format!("Linux's NUMA balancing gets back {:.0} % of the mean loss", of_mean(0)),
        format!("`terrace` got back {} of what was lost", range(2)),
        format!("Linux's NUMA balancing {}", range(0)),
        format!("AMP {} (", range(1)),
    ] {
        assert!(readme.contains(&says), "README.md does not say '{says}'");
    }
}

#[test]
fn the_citation_is_of_this_version_and_has_the_five_papers() {
    let file = read("CITATION.cff");
    let value = |key: &str| {
        let line = file.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("CITATION.cff has no '{key}'")).trim_matches('"').to_owned()
    };
    assert_eq!(value("version"), env!("CARGO_PKG_VERSION"));
    assert_eq!(value("cff-version"), "1.2.0");
    assert_eq!(value("type"), "software");
    let licences: Vec<&str> = file
        .lines()
        .filter_map(|l| l.strip_prefix("  - "))
        .take_while(|l| !l.contains(' '))
        .collect();
    assert_eq!(licences.join(" OR "), env!("CARGO_PKG_LICENSE"));
    let titles: Vec<String> = file
        .lines()
        .filter_map(|line| line.strip_prefix("    title: "))
        .map(|title| title.trim_matches('"').to_lowercase())
        .collect();
    assert_eq!(titles.len(), 5, "{titles:?}");
    // Papers that the results' page names by their titles.
    let results = read("docs/results/README.md");
    for paper in ["nimble page", "radiant", "adaptive page migration policy"] {
        let title = titles.iter().find(|title| title.starts_with(paper)).expect(paper);
        assert!(results.to_lowercase().contains(title), "{title}");
    }
}
