//! Names that have given way to the field's own (`docs/glossary.md`) are used nowhere any more: in
//! code, configurations, options, metrics, tables, reports and documents. Old names that are still
//! read for one release are listed with the files that read them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Where uses of an old name count.
#[derive(Clone, Copy)]
enum Counts {
    /// As words of any text, in names too: `is_told`, `FastShare` and "left alone" have two each.
    /// Singular and plural are written apart, as alternatives.
    Words,
    /// The same, in files below these folders: elsewhere the word has its usual meaning.
    WordsBelow(&'static [&'static str]),
    /// As the whole name of a type or a variant in Rust.
    Type,
    /// As the whole name of a module, function, constant or macro of Rust that is declared.
    Item,
    /// The same, in files below these folders.
    ItemBelow(&'static [&'static str]),
}
use Counts::*;

/// A row of the table of names.
struct Row {
    /// Old names, and the forms in which they were used.
    old: &'static [&'static str],
    /// The name that is used now.
    new: &'static str,
    counts: Counts,
    /// Phrases with the word in its usual meaning.
    usual: &'static [&'static str],
    /// Files that read the old name or say what became of it.
    aliases: &'static [&'static str],
    /// Files in which the word is somebody else's name.
    foreign: &'static [&'static str],
}

const fn row(old: &'static [&'static str], new: &'static str, counts: Counts) -> Row {
    Row { old, new, counts, usual: &[], aliases: &[], foreign: &[] }
}

impl Row {
    const fn usual(self, usual: &'static [&'static str]) -> Row {
        Row { usual, ..self }
    }

    const fn aliases(self, aliases: &'static [&'static str]) -> Row {
        Row { aliases, ..self }
    }

    const fn foreign(self, foreign: &'static [&'static str]) -> Row {
        Row { foreign, ..self }
    }
}

/// Parameters of the policy `terrace` under their old names, and the warning about them.
const PARAMETERS: &[&str] = &["core/src/policies/terrace.rs"];
const WARNED: &[&str] = &["core/src/policies/terrace.rs", "experiments/src/renamed.rs"];
/// Where the policy `terrace` is.
const POLICY: &[&str] = &["core", "bench", "engine", "docs/policies.md", "docs/policies-cases.md"];
const LIVE: &[&str] = &["machines/linux", "daemon", "engine"];

const ROWS: &[Row] = &[
    row(&["manners"], "migration throttle", Words).aliases(&[
        "CHANGELOG.md",
        "daemon/src/config.rs",
        "daemon/src/config/tests.rs",
        "daemon/src/status.rs",
        "docs/operator.md",
    ]),
    row(&["gate", "gates"], "migration throttle", Words),
    row(&["Gate"], "Throttle", Type),
    // A lock that is held, and memory that a program holds.
    row(&["Held"], "ThrottleReason", Type).foreign(&[
        "machines/linux/src/lock.rs",
        "workloads/src/memory/held.rs",
        "workloads/src/memory/program.rs",
    ]),
    row(&["no_use"], "not_beneficial", WordsBelow(LIVE)),
    row(&["means"], "backend", Item),
    row(&["hindrance", "hindrances"], "conflicts", Words),
    row(
        &["short memory", "middle memory", "long memory", "short memories", "long memories"],
        "EWMA horizon",
        Words,
    ),
    row(&["lindy"], "phase-age factor", Words).aliases(WARNED),
    row(&["doubt", "doubts"], "gain discount", Words).usual(&["in doubt"]).aliases(PARAMETERS),
    row(&["trust"], "win threshold", WordsBelow(POLICY)).aliases(PARAMETERS),
    row(&["conviction"], "regret reserve threshold", Words).aliases(PARAMETERS),
    row(&["allowance", "allowances"], "regret budget", Words).aliases(PARAMETERS),
    row(&["overdraft"], "regret reserve", Words).aliases(PARAMETERS),
    row(&["exposure"], "return cost share", Words)
        .aliases(PARAMETERS)
        .foreign(&["commands/tests/systemd.sh", "docs/operator.md"]),
    row(&["home"], "initial placement", WordsBelow(POLICY)).usual(&["home agents"]),
    row(&["home"], "control group of origin", WordsBelow(LIVE))
        .aliases(&["machines/linux/src/journal.rs"]),
    row(&["told", "tells", "untold"], "reported, exposed", Words),
    row(&["foresee", "foresees", "foresight"], "oracle trace", Words),
    row(&["Measures"], "counters", Type),
    row(&["measures"], "counters", Item).aliases(&["python/src/scan.rs"]),
    row(&["moving ns"], "migration_stall_ns", Words).aliases(&["python/src/scan.rs"]),
    row(&["look", "looks"], "sample, probe", Item),
    row(&["Look"], "Sample, Probe", Type),
    row(&["seen"], "observed", Item),
    row(&["Seen"], "Observed", Type),
    row(&["Carry"], "Remap", Type),
    row(&["carry"], "remap", Item).aliases(&["python/src/scan.rs"]),
    row(&["harvest", "harvests", "harvested"], "accessed-bit scan", Words),
    row(&["shape", "Shape"], "address-space layout", WordsBelow(LIVE)),
    row(&["Passport"], "TargetCheck", Type),
    row(&["Trip"], "MigrationContext", Type),
    row(&["Notice"], "TrackerState", Type),
    row(&["go"], "migrate_pages", Item),
    row(&["send"], "migrate_batch", ItemBelow(&["machines/linux"])),
    // How fast a node of the rack sends.
    row(&["Pace"], "BatchSizer", Type).foreign(&["rack/src/switch.rs"]),
    row(&["Refusal"], "InputError", Type),
    row(&["OwnPolicy"], "CustomPolicy", Type),
    row(&["workshop", "workshops"], "run cache", Words),
    row(&["sabotage", "sabotages", "sabotaged"], "fault injection", Words),
    row(&["book", "books"], "results report", Words).usual(&["md book"]).aliases(&[
        "CHANGELOG.md",
        "commands/src/renamed.rs",
        "commands/src/reproduce.rs",
    ]),
    row(&["period depth"], "interval simulation", Words),
    row(&["reference depth"], "trace-driven simulation", Words),
    row(&["looked after"], "managed", Words),
    row(&["left alone"], "unmanaged", Words),
    row(&["terrace left groups"], "terrace_unmanaged_groups", Words).aliases(&[
        "CHANGELOG.md",
        "daemon/src/metrics.rs",
        "docs/operator.md",
    ]),
    row(&["said"], "message", Words).aliases(&["daemon/src/throttle.rs"]),
    row(&["division", "divisions"], "partitioning", Words)
        .aliases(&[
            "CHANGELOG.md",
            "daemon/src/metrics.rs",
            "daemon/src/status.rs",
            "docs/operator.md",
        ])
        .foreign(&[
            "kernel/letters/batch.md",
            "machines/hardware/src/dram/address_map.rs",
            "machines/timed/src/decode.rs",
        ]),
    row(&["quota", "quotas"], "fast-memory limit", Words)
        .aliases(&["daemon/src/status.rs"])
        .foreign(&["docs/kernel.md", "machines/linux/src/rivals/damon.rs"]),
    row(&["FastShare"], "fast-memory limit", Type),
    row(&["seam", "seams"], "interfaces", Words),
    row(&["least life", "life"], "minimum run length", WordsBelow(POLICY)),
    row(&["price of reads"], "cost per slow read", Words),
    row(&["price", "prices"], "cost per slow read", WordsBelow(&["core/src/policies/terrace"])),
    row(&["stands", "stand"], "is", Words).usual(&["stands for", "stand for", "stand in"]),
    row(&["lies", "lie"], "is placed", Words),
    row(&["goes over to", "go over to"], "switches to", Words),
];

/// Text that others wrote, patches of Linux, which quote its lines, this table, and a page with it.
const LEFT_OUT: &[&str] = &[
    "commands/tests/words.rs",
    "docs/measurements/house.md",
    "kernel/COPYING",
    "kernel/patches",
    "kernel/patches-7.3",
    "LICENSE-APACHE",
    "LICENSE-MIT",
];

fn tree() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Path below the tree and text of each file that belongs to the project.
fn files() -> Vec<(String, String)> {
    fn add(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            // What builds and runs leave is not the project's.
            if name == "target" || name.to_string_lossy().starts_with('.') {
                continue;
            }
            match path.is_dir() {
                true => add(&path, found),
                false => found.push(path),
            }
        }
    }
    let mut found = Vec::new();
    add(tree(), &mut found);
    let named = found.into_iter().filter_map(|path| {
        let name = path.strip_prefix(tree()).unwrap().to_str()?.to_owned();
        (!LEFT_OUT.iter().any(|folder| is_below(&name, folder)))
            .then(|| Some((name, std::fs::read_to_string(path).ok()?)))?
    });
    named.collect()
}

/// A word of a text, in lower case, with its line.
struct Word {
    text: String,
    line: usize,
    /// Nothing that ends a phrase is between it and the word before.
    joined: bool,
}

/// The words of a text: those of names are taken apart at underscores and capitals.
fn words(text: &str) -> Vec<Word> {
    let mut found: Vec<Word> = Vec::new();
    let (mut line, mut joined, mut before) = (1, true, ' ');
    for c in text.chars() {
        line += usize::from(c == '\n');
        if c.is_alphanumeric() {
            let begins = !before.is_alphanumeric() || c.is_uppercase() && before.is_lowercase();
            if begins {
                found.push(Word { text: String::new(), line, joined });
                joined = true;
            }
            found.last_mut().unwrap().text.extend(c.to_lowercase());
        } else if !c.is_whitespace() && !"_-/*#!".contains(c) {
            joined = false;
        }
        before = c;
    }
    found
}

/// Lines in which a phrase is used.
fn uses(words: &[Word], phrase: &str) -> Vec<usize> {
    let phrase: Vec<String> = phrase.split([' ', '_']).map(str::to_lowercase).collect();
    let is_it = |at: &&[Word]| {
        at.iter().zip(&phrase).all(|(word, wanted)| word.text == *wanted)
            && at[1..].iter().all(|word| word.joined)
    };
    words.windows(phrase.len()).filter(is_it).map(|at| at[0].line).collect()
}

/// The names and keywords in each line of Rust, without remarks.
fn code(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    text.lines().enumerate().map(|(number, line)| {
        let code = line.split("//").next().unwrap_or_default();
        let parts = code.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '!'));
        (number + 1, parts.filter(|part| !["", "mut"].contains(part)).collect())
    })
}

/// Lines of Rust with this name, once for each use.
fn names(text: &str, name: &str) -> Vec<usize> {
    let each = code(text);
    each.flat_map(|(line, parts)| parts.into_iter().filter(|p| *p == name).map(move |_| line))
        .collect()
}

/// Lines of Rust in which an item of this name is declared.
fn declarations(text: &str, name: &str) -> Vec<usize> {
    const KINDS: [&str; 7] = ["fn", "trait", "type", "mod", "const", "static", "macro_rules!"];
    let declares =
        |parts: &[&str]| parts.windows(2).any(|pair| KINDS.contains(&pair[0]) && pair[1] == name);
    code(text).filter(|(_, parts)| declares(parts)).map(|(line, _)| line).collect()
}

impl Row {
    /// Whether a file of these words can have one of the old names: most have none.
    fn may_be_among(&self, of_file: &HashSet<&str>) -> bool {
        let first_is_there =
            |name: &&str| words(name).first().is_none_or(|word| of_file.contains(&*word.text));
        self.old.iter().any(first_is_there)
    }

    /// Lines of a file in which the old name is used, whatever reads it.
    fn uses(&self, path: &str, text: &str, words: &[Word]) -> Vec<usize> {
        let folders = match self.counts {
            WordsBelow(folders) | ItemBelow(folders) => Some(folders),
            Words | Type | Item => None,
        };
        if folders.is_some_and(|all| !all.iter().any(|f| is_below(path, f))) {
            return Vec::new();
        }
        let each = |name: &&str| match self.counts {
            Words | WordsBelow(_) => uses(words, name),
            _ if !path.ends_with(".rs") => Vec::new(),
            Type => names(text, name),
            Item | ItemBelow(_) => declarations(text, name),
        };
        let mut lines: Vec<usize> = self.old.iter().flat_map(each).collect();
        for usual in self.usual.iter().flat_map(|phrase| uses(words, phrase)) {
            // A phrase may break where a line does: the word is on the line before, then.
            let near = |line: &usize| *line == usual || *line == usual + 1;
            if let Some(at) = lines.iter().position(near) {
                lines.remove(at);
            }
        }
        lines
    }
}

#[test]
fn old_names_are_used_nowhere_but_where_they_are_read() {
    let mut table = String::new();
    let mut wrong = Vec::new();
    let files: Vec<_> =
        files().into_iter().map(|(path, text)| (words(&text), path, text)).collect();
    assert!(files.len() > 800, "{} files found below {}", files.len(), tree().display());
    let of_files: Vec<HashSet<&str>> =
        files.iter().map(|(words, ..)| words.iter().map(|word| &*word.text).collect()).collect();
    for row in ROWS {
        let (mut count, mut aliases) = (0, 0);
        for ((words, path, text), of_file) in files.iter().zip(&of_files) {
            let used = row.may_be_among(of_file);
            let lines = if used { row.uses(path, text, words) } else { Vec::new() };
            let listed = |list: &[&str]| list.contains(&path.as_str());
            match (listed(row.aliases), listed(row.foreign)) {
                (true, _) if lines.is_empty() => {
                    wrong.push(format!("{path} does not read {:?} any more", row.old));
                }
                (true, _) => aliases += lines.len(),
                (_, true) if lines.is_empty() => {
                    wrong.push(format!("{path} has no {:?} any more", row.old));
                }
                (_, true) => {}
                _ => {
                    count += lines.len();
                    wrong.extend(lines.iter().map(|line| {
                        format!("{path}:{line}: {}; it is now: {}", row.old[0], row.new)
                    }));
                }
            }
        }
        table += &format!("| {} | {} | {count} | {aliases} |\n", row.old.join(", "), row.new);
    }
    println!("| old name | new name | uses | in aliases |\n|---|---|---|---|\n{table}");
    assert!(wrong.is_empty(), "{} uses of old names:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_use_is_found_in_names_and_across_lines_and_not_in_other_words() {
    let lines = |text: &str, phrase: &str| uses(&words(text), phrase);
    assert_eq!(lines("fn it_is_told() {}\n// unfolded\n/// TOLD", "told"), [1, 3]);
    assert_eq!(lines("was left\n    /// alone, leftAlone", "left alone"), [1, 2]);
    assert_eq!(lines("what is left. Alone", "left alone"), Vec::<usize>::new());
    assert_eq!(lines("moving_ns removing_ns MovingNs", "moving ns"), [1, 1]);
    let declared = |text: &str| declarations(text, "look");
    assert_eq!(declared("pub(crate) fn look(&self)\nfn looked()\nlet look = look();"), [1]);
    assert_eq!(declared("// fn look()\npub const fn look<T>()\nmod look;"), [2, 3]);
    assert_eq!(names("struct Trip;\n// Trip\nlet t: Trip = Trip {};\nTripped", "Trip"), [1, 3, 3]);
    let row = ROWS.iter().find(|row| row.old.contains(&"stands")).unwrap();
    let text = "what it stands for; it stands\nit stands there";
    assert_eq!(row.uses("a.rs", text, &words(text)), [1, 2]);
}
