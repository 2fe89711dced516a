//! Grid files: an experiment and the keys of it that take several values.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use terrace_core::names;
use terrace_core::parameters::in_plain_words;
use terrace_core::{InputError, refuse};
use terrace_identity::StableHash;
use toml::{Table, Value};

use super::merge::column_name;
use crate::file::Experiment;

/// More cells than this are a mistake.
const MOST_CELLS: u64 = 1_000_000;

/// Keys of an experiment.
const EXPERIMENT_KEYS: [&str; 11] = [
    "name",
    "description",
    "seed",
    "period_ms",
    "period_us",
    "periods",
    "warm_up_periods",
    "slowdown",
    "machine",
    "groups",
    "policies",
];

/// A grid file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GridFile {
    name: String,
    #[serde(default)]
    description: String,
    base: Option<PathBuf>,
    experiment: Option<Table>,
    #[serde(default)]
    axes: Vec<AxisFile>,
    #[serde(default)]
    exclude: Vec<Table>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AxisFile {
    key: Option<String>,
    values: Option<Vec<Value>>,
    name: Option<String>,
    variants: Option<Vec<VariantFile>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VariantFile {
    name: String,
    set: Table,
}

/// An axis of the grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Its name: the key, unless it sets several.
    pub name: String,
    /// Its values: their labels, and the keys that they set.
    values: Vec<(String, Vec<(String, Value)>)>,
}

impl Axis {
    /// The labels of its values, in order.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|(label, _)| label.as_str())
    }
}

/// A grid: an experiment and its axes.
#[derive(Debug, Clone)]
pub struct Grid {
    /// Its name.
    pub name: String,
    /// Its purpose.
    pub description: String,
    /// Its axes; the last one changes fastest.
    pub axes: Vec<Axis>,
    base: Table,
    folder: PathBuf,
    /// The positions on the axes of every cell that is not left out.
    cells: Vec<Vec<usize>>,
}

/// One cell.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Its number, from 0, in the order of the grid.
    pub index: usize,
    /// Hash of everything that its results depend on.
    pub hash: String,
    /// Axis and value.
    pub values: Vec<(String, String)>,
    /// The experiment.
    pub experiment: Experiment,
}

/// A cell as one line of JSON, for a scheduler of cells.
#[derive(Debug, Serialize)]
pub struct Listed<'a> {
    /// Its number.
    pub cell: usize,
    /// Its hash.
    pub hash: &'a str,
    /// Axis and value.
    pub values: serde_json::Map<String, serde_json::Value>,
    /// Whether its results exist.
    pub done: bool,
}

impl Cell {
    /// Axis and value in words.
    pub fn label(&self) -> String {
        let all: Vec<_> =
            self.values.iter().map(|(axis, value)| format!("{axis}={value}")).collect();
        all.join(" ")
    }

    /// The cell for a list.
    pub fn listed(&self, done: bool) -> Listed<'_> {
        let value = |(axis, value): &(String, String)| (axis.clone(), value.clone().into());
        Listed {
            cell: self.index,
            hash: &self.hash,
            values: self.values.iter().map(value).collect(),
            done,
        }
    }
}

impl Grid {
    /// Reads a grid file and checks every cell of it.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        let text = std::fs::read_to_string(path).map_err(|e| {
            refuse!("{}: {e}; expected a grid file, see 'terrace sweep --help'", path.display())
        })?;
        let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
        Self::parse(&text, folder).map_err(|e| refuse!("{}: {e}", path.display()))
    }

    /// Reads the text of a grid file whose relative paths start at `folder`.
    pub fn parse(text: &str, folder: PathBuf) -> Result<Self, InputError> {
        let file: GridFile = toml::from_str(text).map_err(|e| {
            let line = e.span().map(|s| 1 + text[..s.start.min(text.len())].matches('\n').count());
            let place = line.map(|l| format!("line {l}: ")).unwrap_or_default();
            refuse!("{place}{}", in_plain_words(e.message()))
        })?;
        crate::file::name_is_plain("name", &file.name)?;
        let (base, folder) = match (file.base, file.experiment) {
            (Some(path), None) => {
                let path = folder.join(path);
                let text = std::fs::read_to_string(&path).map_err(|e| {
                    refuse!("base = {}: {e}; expected an experiment file", path.display())
                })?;
                let table = text.parse::<Table>().map_err(|e| {
                    refuse!("base = {}: {}", path.display(), in_plain_words(e.message()))
                })?;
                (table, path.parent().unwrap_or(Path::new(".")).to_owned())
            }
            (None, Some(table)) => (table, folder),
            _ => {
                return Err(refuse!(
                    "expected one of base = \"EXPERIMENT.toml\" and an [experiment] section"
                ));
            }
        };
        let mut axes: Vec<Axis> = Vec::new();
        for axis in file.axes {
            let axis = axis_of(axis)?;
            if axes.iter().any(|a| a.name == axis.name) {
                return Err(refuse!("axis '{}' is there twice: expected each once", axis.name));
            }
            let column = column_name(&axis.name);
            if let Some(other) = axes.iter().find(|a| column_name(&a.name) == column) {
                return Err(refuse!(
                    "axes '{}' and '{}' are the same column, '{column}', in the results: expected \
                     names that differ in letters or digits",
                    other.name,
                    axis.name
                ));
            }
            axes.push(axis);
        }
        let all = axes.iter().try_fold(1u64, |n, a| n.checked_mul(a.values.len() as u64));
        let count = all.filter(|n| *n <= MOST_CELLS).ok_or_else(|| {
            refuse!("more than {MOST_CELLS} cells; expected fewer values on the axes")
        })?;
        let mut cells: Vec<Vec<usize>> = (0..count).map(|n| positions(n, &axes)).collect();
        for excluded in &file.exclude {
            let left_out = exclusion(excluded, &axes)?;
            cells.retain(|cell| !left_out.iter().all(|&(axis, value)| cell[axis] == value));
        }
        if cells.is_empty() {
            return Err(refuse!("no cells: expected values that are not all excluded"));
        }
        let (name, description) = (file.name, file.description);
        let grid = Grid { name, description, axes, base, folder, cells };
        for index in 0..grid.len() {
            grid.experiment(index)?;
        }
        Ok(grid)
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether there are none; impossible in a grid that was read.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    fn values(&self, index: usize) -> Vec<(String, String)> {
        let at = self.axes.iter().zip(&self.cells[index]);
        at.map(|(axis, &value)| (axis.name.clone(), axis.values[value].0.clone())).collect()
    }

    /// The experiment of a cell.
    fn experiment(&self, index: usize) -> Result<Experiment, InputError> {
        let cell_error = |e: InputError| {
            let label: Vec<_> =
                self.values(index).iter().map(|(a, v)| format!("{a} = {v}")).collect();
            refuse!("cell {index} ({}): {e}", label.join(", "))
        };
        let mut table = self.base.clone();
        for (axis, &value) in self.axes.iter().zip(&self.cells[index]) {
            for (key, value) in &axis.values[value].1 {
                set(&mut table, key, value).map_err(cell_error)?;
            }
        }
        let text = toml::to_string(&table).map_err(|e| cell_error(InputError::new(e)))?;
        // Lines of the generated text are of no use to the user.
        Experiment::parse(&text, self.folder.clone()).map_err(|e| match e.0.split_once(": ") {
            Some((line, rest)) if line.starts_with("line ") => cell_error(InputError::new(rest)),
            _ => cell_error(e),
        })
    }

    /// A cell.
    pub fn cell(&self, index: usize) -> anyhow::Result<Cell> {
        let experiment = self.experiment(index)?;
        let hash = hash(&experiment)?;
        Ok(Cell { index, hash, values: self.values(index), experiment })
    }

    /// The cells of a selection: a number, a range `3..9`, or the beginning of a hash.
    pub fn select(&self, what: &str) -> anyhow::Result<Vec<usize>> {
        let bad = || {
            refuse!(
                "cell '{what}': expected a number from 0 to {}, a range such as 0..10, or the \
                 beginning of a hash",
                self.len() - 1
            )
        };
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|n| *n <= self.len());
        if let Some((from, to)) = what.split_once("..") {
            let (Some(from), Some(to)) = (number(from), number(to)) else {
                return Err(bad().into());
            };
            return match from < to {
                true => Ok((from..to).collect()),
                false => Err(bad().into()),
            };
        }
        if let Some(index) = number(what).filter(|n| *n < self.len()) {
            return Ok(vec![index]);
        }
        if what.len() >= 4 && what.chars().all(|c| c.is_ascii_hexdigit()) {
            for index in 0..self.len() {
                if self.cell(index)?.hash.starts_with(what) {
                    return Ok(vec![index]);
                }
            }
        }
        Err(bad().into())
    }
}

fn positions(mut number: u64, axes: &[Axis]) -> Vec<usize> {
    let mut at = vec![0; axes.len()];
    for (place, axis) in at.iter_mut().zip(axes).rev() {
        let values = axis.values.len() as u64;
        (*place, number) = ((number % values) as usize, number / values);
    }
    at
}

fn axis_of(axis: AxisFile) -> Result<Axis, InputError> {
    let axis = match (axis.key, axis.values, axis.name, axis.variants) {
        (Some(key), Some(values), name, None) => {
            let value = |value: Value| (shown(&value), vec![(key.clone(), value)]);
            Axis {
                name: name.unwrap_or_else(|| key.clone()),
                values: values.into_iter().map(value).collect(),
            }
        }
        (None, None, Some(name), Some(variants)) => {
            let value = |v: VariantFile| (v.name, v.set.into_iter().collect());
            Axis { name, values: variants.into_iter().map(value).collect() }
        }
        _ => {
            return Err(refuse!(
                "an axis: expected key = \"fast_ratio\" and values = [0.3, 0.5], or name and \
                 variants = [{{ name = \"a\", set = {{ ... }} }}]"
            ));
        }
    };
    if axis.values.is_empty() {
        return Err(refuse!("axis '{}' has no values: expected at least one", axis.name));
    }
    for (index, (label, _)) in axis.values.iter().enumerate() {
        if axis.values[..index].iter().any(|(other, _)| other == label) {
            return Err(refuse!("axis '{}' has {label} twice: expected each once", axis.name));
        }
    }
    Ok(axis)
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn exclusion(excluded: &Table, axes: &[Axis]) -> Result<Vec<(usize, usize)>, InputError> {
    let mut places = Vec::new();
    for (name, value) in excluded {
        let at = axes.iter().position(|a| &a.name == name).ok_or_else(|| {
            let known: Vec<_> = axes.iter().map(|a| a.name.as_str()).collect();
            refuse!("exclude: no axis '{name}'; expected {}", names::expected(name, known))
        })?;
        let label = shown(value);
        let value = axes[at].labels().position(|l| l == label).ok_or_else(|| {
            refuse!("exclude: axis '{name}' has no value {label}; expected one of its values")
        })?;
        places.push((at, value));
    }
    if places.is_empty() {
        return Err(refuse!("exclude: expected axes and values"));
    }
    Ok(places)
}

/// Sets a key, given as a path of keys with dots between. One that is a key of groups and none of
/// experiments is set for every group; `groups.0`, `groups.NAME` and `groups.*` name some.
fn set(table: &mut Table, key: &str, value: &Value) -> Result<(), InputError> {
    let path: Vec<&str> = key.split('.').collect();
    if path.iter().any(|p| p.is_empty()) {
        return Err(refuse!("key '{key}': expected names with dots between"));
    }
    match path[..] {
        ["groups", which, ref rest @ ..] if !rest.is_empty() => {
            set_in_groups(table, key, which, rest, value)
        }
        [first, ..] if EXPERIMENT_KEYS.contains(&first) => set_at(table, key, &path, value),
        _ => set_in_groups(table, key, "*", &path, value),
    }
}

fn set_in_groups(
    table: &mut Table,
    key: &str,
    which: &str,
    path: &[&str],
    value: &Value,
) -> Result<(), InputError> {
    let groups = table.get_mut("groups").and_then(Value::as_array_mut);
    let groups = groups.ok_or_else(|| refuse!("key '{key}': the experiment has no groups"))?;
    let mut found = false;
    for (number, group) in groups.iter_mut().enumerate() {
        let Some(group) = group.as_table_mut() else { continue };
        let name = group.get("name").and_then(Value::as_str).unwrap_or_default();
        if which != "*" && which != name && which.parse() != Ok(number) {
            continue;
        }
        found = true;
        // Both are valid alternatives; a cell has one of them.
        match path {
            ["fast_ratio"] => drop(group.remove("fast")),
            ["fast"] => drop(group.remove("fast_ratio")),
            _ => {}
        }
        set_at(group, key, path, value)?;
    }
    match found {
        true => Ok(()),
        false => Err(refuse!("key '{key}': no group '{which}'; expected its number, name, or *")),
    }
}

fn set_at(table: &mut Table, key: &str, path: &[&str], value: &Value) -> Result<(), InputError> {
    let (last, folders) = path.split_last().ok_or_else(|| refuse!("an empty key"))?;
    let mut at = table;
    for folder in folders {
        let next = at.entry(*folder).or_insert_with(|| Value::Table(Table::new()));
        at = next.as_table_mut().ok_or_else(|| {
            refuse!("key '{key}': '{folder}' holds no keys; expected a section there")
        })?;
    }
    at.insert((*last).to_owned(), value.clone());
    Ok(())
}

/// Hash of everything that a cell's results depend on: the experiment, the files that it names, and
/// the sources that this program was built from. Not of where the files are.
pub fn hash(experiment: &Experiment) -> anyhow::Result<String> {
    hash_of(experiment, terrace_identity::build().sources)
}

/// The hash for a program with these sources.
fn hash_of(experiment: &Experiment, sources: &str) -> anyhow::Result<String> {
    let mut hash = StableHash::new();
    hash.add_part(sources.as_bytes());
    hash.add_part(serde_json::to_string(experiment)?.as_bytes());
    for group in &experiment.groups {
        if let Some(external) = experiment.external(&group.policy)? {
            hash.add_part(external.source.as_bytes());
        }
        let Some(path) = group.workload.parameters.get("path").and_then(|p| p.as_str()) else {
            continue;
        };
        let path = experiment.folder.join(path);
        let mut file = std::fs::File::open(&path)
            .map_err(|e| refuse!("{}: {e}; expected the workload's file", path.display()))?;
        let mut buffer = vec![0; 1 << 16];
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                n => hash.add(&buffer[..n]),
            }
        }
    }
    Ok(hash.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRID: &str = r#"
        name = "g"
        [experiment]
        name = "e"
        period_ms = 100
        periods = 5
        [[experiment.groups]]
        name = "a"
        fast = "64M"
        workload = { kind = "lru-favor", footprint_mib = 64 }
        [[experiment.groups]]
        name = "b"
        fast_ratio = 0.5
        workload = { kind = "zipf", footprint_mib = 64 }
        [[axes]]
        key = "policy"
        values = ["lru", "amp"]
        [[axes]]
        key = "fast_ratio"
        values = [0.3, 0.5, 0.7]
        [[axes]]
        name = "how"
        variants = [
            { name = "short", set = { seed = 2, "policies.amp.window_periods" = 4 } },
            { name = "b-large", set = { "groups.b.workload.footprint_mib" = 128 } },
        ]
        [[exclude]]
        policy = "amp"
        fast_ratio = 0.7
    "#;

    #[test]
    fn every_key_of_an_experiment_is_set_there_and_not_in_its_groups() {
        let error = toml::from_str::<Experiment>("no_such_key = 1").unwrap_err().to_string();
        let (_, expected) = error.split_once("expected one of ").unwrap();
        let mut keys: Vec<_> = expected.split('`').skip(1).step_by(2).collect();
        let mut listed = EXPERIMENT_KEYS.to_vec();
        keys.sort_unstable();
        listed.sort_unstable();
        assert_eq!(keys, listed);
    }

    fn grid(text: &str) -> Result<Grid, InputError> {
        Grid::parse(text, PathBuf::from("."))
    }

    #[test]
    fn every_combination_is_a_cell_but_those_left_out() {
        let grid = grid(GRID).unwrap();
        assert_eq!(grid.len(), 2 * 3 * 2 - 2);
        let first = grid.cell(0).unwrap();
        assert_eq!(first.label(), "policy=lru fast_ratio=0.3 how=short");
        assert_eq!(first.experiment.seed, 2);
        assert!(first.experiment.groups.iter().all(|g| g.policy == "lru"));
        assert!(
            first.experiment.groups.iter().all(|g| g.fast_ratio == Some(0.3) && g.fast.is_none())
        );
        let second = grid.cell(1).unwrap();
        assert_eq!(second.experiment.groups[1].workload.parameters["footprint_mib"], 128);
        assert_eq!(second.experiment.groups[0].workload.parameters["footprint_mib"], 64);
        let last = grid.cell(grid.len() - 1).unwrap();
        assert_eq!(last.label(), "policy=amp fast_ratio=0.5 how=b-large");
        let mut hashes: Vec<_> = (0..grid.len()).map(|i| grid.cell(i).unwrap().hash).collect();
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), grid.len());
    }

    #[test]
    fn a_cell_keeps_its_hash_when_the_grid_grows() {
        let before = grid(GRID).unwrap().cell(0).unwrap();
        let larger = GRID.replace("[0.3, 0.5, 0.7]", "[0.1, 0.3, 0.5, 0.7]");
        let after = grid(&larger).unwrap();
        let again = (0..after.len()).map(|i| after.cell(i).unwrap());
        let again = again.into_iter().find(|c| c.label() == before.label()).unwrap();
        assert_eq!((before.hash.clone(), 2), (again.hash, again.index));
    }

    #[test]
    fn another_build_takes_no_cell_of_this_one() {
        let cell = grid(GRID).unwrap().cell(0).unwrap();
        let by = |sources| hash_of(&cell.experiment, sources).unwrap();
        assert_eq!(by("0123"), by("0123"));
        assert_ne!(by("0123"), by("4567"));
    }

    #[test]
    fn cells_are_named_by_number_range_and_hash() {
        let grid = grid(GRID).unwrap();
        assert_eq!(grid.select("3").unwrap(), [3]);
        assert_eq!(grid.select("2..4").unwrap(), [2, 3]);
        let hash = grid.cell(7).unwrap().hash;
        assert_eq!(grid.select(&hash[..12]).unwrap(), [7]);
        for bad in ["10", "x", "4..2", "", "0..99", "zzzz"] {
            assert!(
                grid.select(bad).unwrap_err().to_string().contains("expected a number"),
                "{bad}"
            );
        }
    }

    #[test]
    fn mistakes_are_named_in_one_line() {
        for (from, to, printed) in [
            ("\"lru\", \"amp\"]", "\"lfo\", \"amp\"]", "no policy is named 'lfo'"),
            ("key = \"policy\"", "key = \"polizy\"", "no axis 'policy'"),
            ("key = \"fast_ratio\"", "key = \"machine.cpuz\"", "cpuz"),
            ("\"groups.b.", "\"groups.c.", "no group 'c'"),
            ("[0.3, 0.5, 0.7]", "[]", "has no values"),
            ("[0.3, 0.5, 0.7]", "[0.3, 0.3]", "twice"),
            ("fast_ratio = 0.7", "fast_ratio = 0.9", "no value 0.9"),
            ("fast_ratio = 0.7", "color = 0.7", "no axis 'color'"),
            ("name = \"g\"", "name = \"g\"\nsize = 3", "unknown field `size`"),
            ("[experiment]", "[experimint]", "unknown field `experimint`"),
            ("key = \"policy\"", "key = \"seed.x\"", "x"),
            ("name = \"how\"", "name = \"fast-ratio\"", "are the same column, 'axis_fast_ratio'"),
        ] {
            let error = grid(&GRID.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(printed) && !error.contains('\n'), "{to}: {error}");
        }
    }
}
