//! Programs that nobody here wrote, live and in simulated time: each file of `examples/programs` with about
//! 25, 50 and 75 % of its memory fast, with nothing moved, under Linux's own tiering, and under policies.
//!
//! Each case is one `terrace compare` with its results in a folder of its own, so an experiment that
//! was interrupted goes on where it stopped. `TERRACE_LIVE` names the folder of all
//! (`target/programs`), `TERRACE_PROGRAMS` and `TERRACE_SHARES` select programs and percents,
//! `TERRACE_RUNS` is the number of runs of each case (1). `TERRACE_KERNEL` is the kernel of all (`debian`);
//! on a newer one (`debian-7.3`) DAMON's own tiering is beside the others, for it sets itself goals there.
//! The `terrace` beside this program is run.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use terrace_core::size::Size;
use terrace_experiments::{Experiment, NOT_FILLED};
use terrace_results::{ALL_FAST, RunRow, read};

use super::Part;
use crate::measure::Report;
use crate::variables::{list, workspace};

pub const PART: Part = Part {
    name: "programs",
    measures: "packaged programs in simulated time: slowdown with nothing moved, under Linux and policies",
    run,
};

/// Percents of a program's memory, by the rough half that its file has.
const SHARES: [u64; 3] = [25, 50, 75];
const SHARE_OF_FILE: u64 = 50;
/// What Linux does by itself, and policies, in the order of the figures. Older kernels have no goals of DAMON.
const RIVALS: [&str; 2] = ["nothing", "linux"];
const NEWER_RIVALS: [&str; 3] = ["nothing", "linux", "damon"];
const POLICIES: [&str; 2] = ["amp", "terrace"];
/// Kernels by the names that experiments have for them. That of experiments that name none is the first.
const KERNELS: [(&str, &[&str]); 2] = [("debian", &RIVALS), ("debian-7.3", &NEWER_RIVALS)];
/// The policy whose place among the others is counted, and what counts as the best.
const OURS: &str = "terrace";
const AS_GOOD: f64 = 1.02;

/// A kernel, and what runs on it.
#[derive(Clone, Copy)]
struct Systems {
    /// `None` for that of experiments that name none.
    kernel: Option<&'static str>,
    rivals: &'static [&'static str],
}

impl Systems {
    /// Those of the kernel of this name.
    fn of(kernel: &str) -> anyhow::Result<Self> {
        let at = KERNELS.iter().position(|(name, _)| *name == kernel).with_context(|| {
            let names = KERNELS.map(|(name, _)| name).join(" or ");
            format!("TERRACE_KERNEL = '{kernel}'; expected {names}")
        })?;
        let (name, rivals) = KERNELS[at];
        Ok(Systems { kernel: (at > 0).then_some(name), rivals })
    }

    /// In the order of the figures.
    fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.rivals.iter().copied().chain(POLICIES)
    }

    /// What the names of figures begin with.
    fn prefix(&self) -> String {
        self.kernel.map_or_else(|| "programs".to_owned(), |kernel| format!("programs.{kernel}"))
    }
}

/// A program at one share of fast memory, for one time.
struct Case {
    program: String,
    share: u64,
    run: u64,
    systems: Systems,
}

impl Case {
    fn name(&self) -> String {
        let kernel = self.systems.kernel.map_or_else(String::new, |kernel| format!("-{kernel}"));
        format!("{}-{}-{}{kernel}", self.program, self.share, self.run)
    }
}

/// What one run gave: its slowdown, over how many instructions, and of the program's accesses that missed
/// all caches the share that was of fast memory.
#[derive(Clone, Copy)]
struct Cell {
    slowdown: f64,
    instructions: u64,
    fast_misses: f64,
}

/// With all memory fast at least this share of a program's misses is of fast memory: otherwise slowdowns
/// against that run say nothing.
const ALL_FAST_SHARE: f64 = 0.99;
/// Beside `terrace`, what makes the results of a virtual machine: the plug-in and the programs in it.
const BINARIES: [&str; 4] =
    ["terrace", "terrace-workload", "lib_terrace.so", "libterrace_recorder_plugin.so"];

fn run(report: &mut Report) -> anyhow::Result<()> {
    let examples = workspace().join("examples/programs");
    let all = names(&examples)?;
    let programs = list("TERRACE_PROGRAMS", all.clone())?.unwrap_or(all);
    let all = SHARES.map(|share| share.to_string());
    let shares = list("TERRACE_SHARES", all.clone())?.unwrap_or(all.to_vec());
    let runs = std::env::var("TERRACE_RUNS").unwrap_or_else(|_| "1".to_owned());
    let runs: u64 = runs.parse().ok().filter(|n| *n > 0).with_context(|| {
        format!("TERRACE_RUNS = '{runs}'; expected a number of runs of each case, 1 or more")
    })?;
    let kernel = std::env::var("TERRACE_KERNEL").unwrap_or_else(|_| KERNELS[0].0.to_owned());
    let systems = Systems::of(&kernel)?;
    let terrace = std::env::current_exe()?.with_file_name("terrace");
    let folder = std::env::var_os("TERRACE_LIVE").map(PathBuf::from);
    let folder = std::path::absolute(folder.unwrap_or(workspace().join("target/programs")))?;
    is_of_this_build(&folder, &terrace)?;

    let mut cases = Vec::new();
    for run in 1..=runs {
        for share in &shares {
            let share = share.parse()?;
            let case = |program: &String| Case { program: program.clone(), share, run, systems };
            cases.extend(programs.iter().map(case));
        }
    }
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get());
    let done = terrace_jobs::try_all(&cases, jobs, |case| {
        measure(case, &examples, &folder, &terrace).with_context(|| case.name())
    })?;
    let mut of_cell: BTreeMap<(u64, &str, &str), Vec<Cell>> = BTreeMap::new();
    for (case, cells) in cases.iter().zip(&done) {
        for (system, cell) in systems.names().zip(cells) {
            of_cell.entry((case.share, &case.program, system)).or_default().push(*cell);
        }
    }
    for ((share, program, system), cells) in &of_cell {
        let prefix = systems.prefix();
        let name = |what: &str| format!("{prefix}.{program}.{share}.{system}.{what}");
        let spread: Vec<String> =
            cells.iter().map(|cell| format!("{:.3}", cell.slowdown)).collect();
        let instructions =
            cells.iter().map(|cell| cell.instructions).min().unwrap_or(0) / 1_000_000;
        let conditions = format!(
            "runs: {}; {instructions} million instructions; default settings, server-ddr5-cxl",
            spread.join(", ")
        );
        report.add(&name("slowdown_x"), mean(cells), "times", &conditions)?;
        let misses = cells.iter().map(|cell| cell.fast_misses).sum::<f64>() / cells.len() as f64;
        report.add(&name("fast_misses_share"), misses, "share", &conditions)?;
    }
    let means = of_cell.into_iter().map(|(key, cells)| (key, mean(&cells))).collect();
    summary(systems, &means, report)
}

/// The geometric mean of the slowdowns of a cell's runs.
fn mean(cells: &[Cell]) -> f64 {
    geometric(cells.iter().map(|cell| cell.slowdown))
}

fn geometric(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) = values.fold((0.0, 0.0), |(sum, n), value: f64| (sum + value.ln(), n + 1.0));
    f64::exp(sum / n)
}

/// By share: the geometric mean of every system, in how many programs ours is best or within 2 % of
/// the best, and the most that it is behind nothing moved and behind Linux.
fn summary(
    systems: Systems,
    means: &BTreeMap<(u64, &str, &str), f64>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let prefix = systems.prefix();
    let shares: std::collections::BTreeSet<u64> = means.keys().map(|key| key.0).collect();
    for share in shares {
        let of = |system: &str| -> Vec<f64> {
            let here = means.iter().filter(|(key, _)| key.0 == share && key.2 == system);
            here.map(|(_, slowdown)| *slowdown).collect()
        };
        let ours = of(OURS);
        let conditions = format!("{} programs", ours.len());
        for system in systems.names() {
            let name = format!("{prefix}.{share}.{system}.geometric_mean_x");
            report.add(&name, geometric(of(system).into_iter()), "times", &conditions)?;
        }
        let all: Vec<Vec<f64>> = systems.names().map(of).collect();
        let best =
            |program: usize| all.iter().map(|system| system[program]).fold(f64::INFINITY, f64::min);
        let as_good =
            ours.iter().enumerate().filter(|(n, own)| **own <= AS_GOOD * best(*n)).count();
        let name = format!("{prefix}.{share}.terrace.best_or_within_2_percent");
        report.add(&name, as_good as f64, "programs", &conditions)?;
        for (rival, slowdowns) in systems.rivals.iter().zip(&all) {
            let behind = ours.iter().zip(slowdowns).map(|(own, other)| own / other);
            let name = format!("{prefix}.{share}.terrace.most_over_{rival}_x");
            report.add(&name, behind.fold(0.0, f64::max), "times", &conditions)?;
        }
    }
    Ok(())
}

/// The experiment of a case.
fn experiment(case: &Case, examples: &Path) -> anyhow::Result<Experiment> {
    let mut experiment = Experiment::read(&examples.join(format!("{}.toml", case.program)))?;
    // Runs with the same length and seed are the same to the digit: each is measured a little later
    // than the one before.
    experiment.seed = case.run;
    experiment.warm_up_periods += case.run - 1;
    experiment.periods += case.run - 1;
    let [group] = experiment.groups.as_mut_slice() else { bail!("expected one group") };
    let half = group.fast.context("expected a size of fast memory")?.0;
    group.fast = Some(Size(half * case.share / SHARE_OF_FILE));
    if let Some(kernel) = case.systems.kernel {
        experiment.machine.kernel = Some(kernel.into());
    }
    Ok(experiment)
}

/// Runs a case that has no results yet; its cells in the order of the systems.
fn measure(
    case: &Case,
    examples: &Path,
    folder: &Path,
    terrace: &Path,
) -> anyhow::Result<Vec<Cell>> {
    let out = folder.join(case.name());
    let file = folder.join(format!("{}.toml", case.name()));
    let text = toml::to_string(&experiment(case, examples)?)?;
    if out.join("report.html").is_file() {
        let of = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        ensure!(
            of == text,
            "{} has runs of another {}.toml; remove it, or name another folder by TERRACE_LIVE",
            out.display(),
            case.program
        );
    } else {
        fs::write(&file, text).with_context(|| file.display().to_string())?;
        let mut command = Command::new(terrace);
        command.arg("compare").arg(&file).args(["--machine", "vm", "--jobs", "1", "--force"]);
        command
            .args(["--rivals", &case.systems.rivals.join(",")])
            .args(["--policies", &POLICIES.join(",")]);
        let output =
            command.arg("--out").arg(&out).output().context(terrace.display().to_string())?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "terrace compare ended with {}: {}",
            output.status,
            errors.lines().last().unwrap_or("nothing printed")
        );
    }
    let rows: Vec<RunRow> = read(&out)?;
    let cells = cells_of(&rows, case.systems).with_context(|| out.display().to_string())?;
    Ok(cells)
}

/// The cells of a comparison in the order of the systems. Refuses one whose slowdowns cannot be compared:
/// with memory that was not all fast, or by different work.
fn cells_of(rows: &[RunRow], systems: Systems) -> anyhow::Result<Vec<Cell>> {
    let fast = rows.iter().find(|row| row.policy == ALL_FAST);
    let share = fast.context("no run with all memory fast")?.program_hit_ratio;
    let share = share.context("nothing is known of the misses with all memory fast")?;
    ensure!(
        share >= ALL_FAST_SHARE,
        "with all memory fast {share:.3} of the misses were of fast memory; expected \
         {ALL_FAST_SHARE} or more: give the machine more memory"
    );
    for row in rows {
        let notes = row.notes.as_deref().unwrap_or_default();
        ensure!(!notes.contains(NOT_FILLED), "under {}: {notes}", row.policy);
    }
    let cell = |system: &str| {
        let row = rows.iter().find(|row| row.policy == system);
        let row = row.with_context(|| format!("no run under {system}"))?;
        let [Some(slowdown), Some(fast_misses)] = [row.slowdown, row.program_hit_ratio] else {
            bail!("no slowdown under {system}");
        };
        let instructions = row.slowdown_instructions.with_context(|| {
            let of = row.slowdown_of.as_deref().unwrap_or("unknown work");
            format!(
                "the slowdown under {system} is of {of}; expected the same instructions: let \
                 warm_up_periods be larger"
            )
        })?;
        Ok(Cell { slowdown, instructions, fast_misses })
    };
    let cells: Vec<Cell> = systems.names().map(cell).collect::<anyhow::Result<_>>()?;
    let compared = |cell: &Cell| cell.instructions;
    let [least, most] = [cells.iter().map(compared).min(), cells.iter().map(compared).max()]
        .map(|n| n.unwrap_or(0));
    ensure!(
        least == most,
        "slowdowns are of {least} to {most} instructions; expected the same for all systems: let \
         periods be more"
    );
    Ok(cells)
}

/// Makes the folder; refuses one with cells of another build.
fn is_of_this_build(folder: &Path, terrace: &Path) -> anyhow::Result<()> {
    let hint = || format!("{}; make it with 'cargo build --release'", terrace.display());
    let output = Command::new(terrace).arg("--version").output().with_context(hint)?;
    let mut this = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    for binary in BINARIES {
        // What is not there is not used.
        let Ok(bytes) = fs::read(terrace.with_file_name(binary)) else { continue };
        write!(this, "; {binary} {:08x}", crc32fast::hash(&bytes))?;
    }
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let note = folder.join("build");
    match fs::read_to_string(&note) {
        Ok(build) => ensure!(
            build.trim() == this,
            "{} has runs of {}; expected {this}: remove it, or name another folder by TERRACE_LIVE",
            folder.display(),
            build.trim()
        ),
        Err(_) => fs::write(&note, &this).with_context(|| note.display().to_string())?,
    }
    Ok(())
}

/// The programs that have a file, by name.
fn names(examples: &Path) -> anyhow::Result<Vec<String>> {
    let files = fs::read_dir(examples).with_context(|| examples.display().to_string())?;
    let mut names = Vec::new();
    for file in files {
        let path = file?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        if let (Some(stem), true) = (stem, path.extension().is_some_and(|e| e == "toml")) {
            names.push(stem.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(system: &str) -> RunRow {
        RunRow {
            policy: system.to_owned(),
            slowdown: Some(1.1),
            slowdown_of: Some("the same instructions".to_owned()),
            slowdown_instructions: Some(80_000_000),
            program_hit_ratio: Some(0.7),
            ..RunRow::default()
        }
    }

    #[test]
    fn what_cannot_be_compared_is_refused() {
        let systems = Systems::of("debian").unwrap();
        let mut rows: Vec<RunRow> = systems.names().map(row).collect();
        rows.push(RunRow { program_hit_ratio: Some(0.995), ..row(ALL_FAST) });
        let cells = cells_of(&rows, systems).unwrap();
        assert_eq!((cells.len(), cells[0].instructions), (4, 80_000_000));
        let refusal = |change: fn(&mut Vec<RunRow>)| {
            let mut rows = rows.clone();
            change(&mut rows);
            cells_of(&rows, systems).map(|cells| cells.len()).unwrap_err().to_string()
        };
        let text = refusal(|rows| rows[4].program_hit_ratio = Some(0.23));
        assert!(text.contains("0.230 of the misses"), "{text}");
        let text = refusal(|rows| rows[1].slowdown_instructions = Some(79_000_000));
        assert!(text.contains("79000000 to 80000000 instructions"), "{text}");
        let text = refusal(|rows| {
            rows[3].slowdown_instructions = None;
            rows[3].slowdown_of = Some("an instruction".to_owned());
        });
        assert!(text.contains("under terrace is of an instruction"), "{text}");
        let text =
            refusal(|rows| rows[4].notes = Some(format!("{NOT_FILLED}: node 0 gave 1 of 2")));
        assert!(text.contains("under all-fast: ") && text.contains("node 0 gave 1"), "{text}");
        let text = refusal(|rows| drop(rows.remove(0)));
        assert!(text.contains("no run under nothing"), "{text}");
    }
}
