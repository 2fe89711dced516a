//! The table that a terminal shows after a run or a comparison.

use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, Width};
use terrace_results::RunRow;

use crate::format::{MISSING, bytes, clean, count, duration, number, percent, percent_round};
use crate::gain;
use crate::results::{FAILURE_REASONS, Moves, Results, is_adaptive};
use crate::rows::{Rows, is_reference, slowdown_of, values};

/// Lines above and below the table and below its header, none between rows.
const LINES: &str = "  ── ──      ──    ";

/// Words are not broken up to this length.
const WORD_MAX: usize = 24;

/// Name of a run's clock that models the memory.
pub(crate) const MEMORY_CLOCK: &str = "memory";

/// Columns of characters between two columns of the table.
const BETWEEN: usize = 2;

/// Marks a space at which no line may end.
const GLUE: char = '\u{a0}';

/// A table with a row per run and group, a line above it on what is the same for all rows, and
/// notes below it on units and on emulated time. It has no colour and fits `width` columns as
/// far as words can be broken into lines.
pub fn text_table(results: &Results, width: usize) -> String {
    let rows = Rows::new(&results.runs);
    let measured = Measured::new(&results.runs);
    let width = width.max(40);
    let mut grid = Grid::new(&rows, &measured, failed);
    // Where the reasons of failures leave no room for numbers, they go below the table.
    let short = grid.least_width() > width;
    if short {
        grid = Grid::new(&rows, &measured, |run| count(run.failed_pages()));
    }
    let mut lines = wrap(&headline(&results.runs), width);
    lines.extend(grid.lines(width));
    if short {
        for run in rows.runs().filter(|run| run.failed_pages() > 0) {
            let names = rows.shown.iter().map(|p| p.value(run)).chain([clean(&run.policy)]);
            let names = names.collect::<Vec<_>>().join(" ");
            lines.extend(wrap(&format!("Failed under {names}: {}.", failed(run)), width));
        }
    }
    for note in notes(&results.runs, &measured) {
        lines.extend(wrap(&note, width));
    }
    for panel in &rows.compared() {
        if let Some(sentence) = gain::sentence(panel, &rows) {
            let title = if panel.title.is_empty() { "" } else { ": " };
            lines.extend(wrap(&format!("{}{title}{sentence}", panel.title), width));
        }
    }
    lines.push(String::new());
    lines.join("\n").replace(GLUE, " ")
}

/// The words of the table, not yet laid out.
struct Grid {
    header: Vec<&'static str>,
    right: Vec<bool>,
    body: Vec<Vec<String>>,
}

impl Grid {
    fn new(rows: &Rows, measured: &Measured, failed: fn(&RunRow) -> String) -> Self {
        let columns: Vec<&Column> = COLUMNS.iter().filter(|c| (c.shown)(measured)).collect();
        let names = rows.shown.iter().map(|p| p.heading()).chain(["policy"]);
        let cells = |run: &RunRow| -> Vec<String> {
            let names = rows.shown.iter().map(|p| p.value(run)).chain([clean(&run.policy)]);
            let values = columns.iter().map(|column| match column.value {
                Some(value) => value(run),
                None => failed(run),
            });
            names.chain(values).collect()
        };
        Grid {
            right: names.clone().map(|_| false).chain(columns.iter().map(|c| c.right)).collect(),
            header: names.chain(columns.iter().map(|c| c.heading)).collect(),
            body: rows.runs().map(cells).collect(),
        }
    }

    /// The width that a column needs: of a number all, of words the longest.
    fn least(&self, column: usize) -> usize {
        let number = self.right[column];
        let cells = self.body.iter().flat_map(|row| {
            row[column].split(move |c| c == ' ' && !number).map(|word| (word, WORD_MAX))
        });
        let headings = self.header[column].split('\n').map(|word| (word, usize::MAX));
        cells.chain(headings).map(|(word, max)| word.chars().count().min(max)).max().unwrap_or(0)
    }

    fn least_width(&self) -> usize {
        (0..self.header.len()).map(|column| self.least(column) + BETWEEN).sum()
    }

    fn lines(&self, width: usize) -> Vec<String> {
        let mut table = Table::new();
        table
            .load_preset(LINES)
            .force_no_tty()
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(u16::try_from(width).unwrap_or(u16::MAX));
        table.set_header(self.header.iter().zip(&self.right).map(|(words, right)| {
            let side = if *right { CellAlignment::Right } else { CellAlignment::Left };
            Cell::new(words).set_alignment(side)
        }));
        table.add_rows(&self.body);
        for (i, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 1));
            if self.right[i] {
                column.set_cell_alignment(CellAlignment::Right);
                // A number broken over two lines reads as two numbers.
                column.set_constraint(ColumnConstraint::ContentWidth);
            } else {
                let least = u16::try_from(self.least(i) + 1).unwrap_or(u16::MAX);
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
            }
        }
        table.lines().map(|line| line.trim_end().to_owned()).collect()
    }
}

/// Which columns have something in them.
struct Measured {
    adaptive: bool,
    operations: bool,
    tracker_cpu: bool,
    daemon_cpu: bool,
    throughput: bool,
    latency: bool,
    data: bool,
    references: bool,
    accesses: bool,
    run_time: bool,
    slowdown: bool,
    projected: bool,
    shootdowns: bool,
    table_moves: bool,
    kernel: bool,
    sampled: bool,
}

impl Measured {
    fn new(runs: &[RunRow]) -> Self {
        Measured {
            adaptive: runs.iter().any(is_adaptive),
            // Where every page moved in an operation of its own they add nothing.
            operations: runs.iter().any(|r| {
                ![0, r.promoted_pages + r.demoted_pages].contains(&r.migration_operations)
            }),
            tracker_cpu: runs.iter().any(|r| r.tracker_cpu_ms.is_some()),
            daemon_cpu: runs.iter().any(|r| r.daemon_cpu_ms.is_some()),
            throughput: runs.iter().any(|r| r.operations_per_s.is_some()),
            latency: runs.iter().any(|r| r.latency_p99_us.is_some()),
            data: runs.iter().any(|r| r.checksum_ok.is_some()),
            references: runs.iter().any(|r| r.references.is_some()),
            accesses: runs.iter().any(|r| r.access_hit_ratio.is_some()),
            run_time: runs.iter().any(|r| has_simulated_time(r) && r.duration_ms.is_some()),
            slowdown: runs.iter().any(|r| r.slowdown.is_some()),
            projected: runs.iter().any(|r| r.projected_slowdown.is_some()),
            shootdowns: runs.iter().any(|r| r.shootdowns.is_some()),
            table_moves: runs.iter().any(has_table_moves),
            kernel: runs.iter().any(|r| r.kernel_ms.is_some()),
            sampled: runs.iter().any(|r| r.sampled_ratio.is_some()),
        }
    }
}

/// Whether its time is that of memory with two speeds, and not the host's or an emulator's.
fn has_simulated_time(run: &RunRow) -> bool {
    run.references.is_some() || run.clock.as_deref() == Some(MEMORY_CLOCK)
}

/// Whether page tables followed its data, or might have.
fn has_table_moves(run: &RunRow) -> bool {
    let outcomes = [
        run.table_moves,
        run.table_already_there,
        run.table_within_tier,
        run.table_maps_fast,
        run.table_lock_contended,
        run.table_no_room,
    ];
    outcomes.iter().any(|n| n.is_some_and(|n| n > 0))
}

struct Column {
    heading: &'static str,
    right: bool,
    shown: fn(&Measured) -> bool,
    /// Its text; none in the column of failures, which has two forms.
    value: Option<fn(&RunRow) -> String>,
}

const COLUMNS: [Column; 27] = [
    Column { heading: "policy\nchosen", right: false, shown: |m| m.adaptive, value: Some(chosen) },
    Column {
        heading: "hit\nratio",
        right: true,
        shown: |_| true,
        value: Some(|run| percent(run.hit_ratio)),
    },
    Column {
        heading: "by\nreads",
        right: true,
        shown: |m| m.references,
        value: Some(|run| run.reference_hit_ratio.map_or(MISSING.to_owned(), percent)),
    },
    Column {
        heading: "prog-\nrams'",
        right: true,
        shown: |m| m.kernel,
        value: Some(|run| run.program_hit_ratio.map_or(MISSING.to_owned(), percent)),
    },
    Column {
        heading: "ker-\nnel's",
        right: true,
        shown: |m| m.kernel,
        value: Some(|run| run.kernel_hit_ratio.map_or(MISSING.to_owned(), percent)),
    },
    Column {
        heading: "accesses\nfast",
        right: true,
        shown: |m| m.accesses,
        value: Some(|run| run.access_hit_ratio.map_or(MISSING.to_owned(), percent)),
    },
    Column {
        heading: "moved\nMiB",
        right: true,
        shown: |m| m.accesses,
        value: Some(|run| run.migrated_bytes.map_or(MISSING.to_owned(), |b| count(b >> 20))),
    },
    Column {
        heading: "run\ntime ms",
        right: true,
        shown: |m| m.run_time,
        value: Some(|run| timed(run, run.duration_ms)),
    },
    Column {
        heading: "error\n95 % ms",
        right: true,
        shown: |m| m.sampled,
        value: Some(|run| timed(run, run.duration_error_ms)),
    },
    Column {
        heading: "slow-\ndown",
        right: true,
        shown: |m| m.slowdown,
        value: Some(|run| run.slowdown.map_or(MISSING.to_owned(), |s| format!("{s:.3}"))),
    },
    Column {
        heading: "pro-\njected",
        right: true,
        shown: |m| m.projected,
        value: Some(|run| run.projected_slowdown.map_or(MISSING.to_owned(), |s| format!("{s:.3}"))),
    },
    Column {
        heading: "stalled\nslow ms",
        right: true,
        shown: |m| m.kernel,
        value: Some(|run| timed(run, run.slow_stall_ms)),
    },
    Column {
        heading: "kernel\nms",
        right: true,
        shown: |m| m.kernel,
        value: Some(|run| timed(run, run.kernel_ms)),
    },
    Column {
        heading: "walks\nms",
        right: true,
        shown: |m| m.references,
        value: Some(|run| timed(run, run.walk_ms)),
    },
    Column {
        heading: "shoot-\ndowns",
        right: true,
        shown: |m| m.shootdowns,
        value: Some(|run| run.shootdowns.map_or(MISSING.to_owned(), count)),
    },
    Column {
        heading: "tables\nmoved",
        right: true,
        shown: |m| m.table_moves,
        value: Some(|run| run.table_moves.map_or(MISSING.to_owned(), count)),
    },
    Column {
        heading: "promoted",
        right: true,
        shown: |_| true,
        value: Some(|run| count(run.promoted_pages)),
    },
    Column {
        heading: "demoted",
        right: true,
        shown: |_| true,
        value: Some(|run| count(run.demoted_pages)),
    },
    Column {
        heading: "in oper-\nations",
        right: true,
        shown: |m| m.operations,
        value: Some(|run| count(run.migration_operations)),
    },
    Column { heading: "failed", right: false, shown: |_| true, value: None },
    Column {
        heading: "stable",
        right: true,
        shown: |_| true,
        value: Some(|run| percent(run.stability)),
    },
    Column {
        heading: "tracker\nCPU ms",
        right: true,
        shown: |m| m.tracker_cpu,
        value: Some(|run| timed(run, run.tracker_cpu_ms)),
    },
    Column {
        heading: "daemon\nCPU ms",
        right: true,
        shown: |m| m.daemon_cpu,
        value: Some(|run| timed(run, run.daemon_cpu_ms)),
    },
    Column {
        heading: "ops/s",
        right: true,
        shown: |m| m.throughput,
        value: Some(|run| timed(run, run.operations_per_s)),
    },
    Column {
        heading: "p50\nms",
        right: true,
        shown: |m| m.latency,
        value: Some(|run| timed(run, run.latency_p50_us.map(|us| us / 1e3))),
    },
    Column {
        heading: "p99\nms",
        right: true,
        shown: |m| m.latency,
        value: Some(|run| timed(run, run.latency_p99_us.map(|us| us / 1e3))),
    },
    Column {
        heading: "data",
        right: false,
        shown: |m| m.data,
        value: Some(|run| data(run).to_owned()),
    },
];

/// A number that depends on time, marked where time is emulated.
pub(crate) fn timed(run: &RunRow, value: Option<f64>) -> String {
    match value.filter(|v| v.is_finite()) {
        Some(value) if run.emulated => format!("~{}", number(value)),
        Some(value) => number(value),
        None => MISSING.to_owned(),
    }
}

/// The policy that an adaptive policy applied most, with its share of the periods.
pub(crate) fn chosen(run: &RunRow) -> String {
    if !is_adaptive(run) {
        return MISSING.to_owned();
    }
    let share = whole_percent(run.applied_main_share).replace(' ', &GLUE.to_string());
    format!("{} {share}", clean(&run.applied_main))
}

/// A share of periods, without decimals.
fn whole_percent(share: f64) -> String {
    percent_round((share * 100.0).round() / 100.0)
}

/// Failed moves by reason: `3 busy, 1 absent`, or `0`.
fn failed(run: &RunRow) -> String {
    let reasons: Vec<String> = run
        .failures()
        .iter()
        .zip(FAILURE_REASONS)
        .filter(|(n, _)| **n > 0)
        .map(|(&n, reason)| format!("{}_{reason}", count(n)).replace('_', &GLUE.to_string()))
        .collect();
    if reasons.is_empty() { "0".to_owned() } else { reasons.join(", ") }
}

/// Whether the program's data was intact.
pub(crate) fn data(run: &RunRow) -> &'static str {
    match run.checksum_ok {
        Some(true) => "ok",
        Some(false) => "DAMAGED",
        None => MISSING,
    }
}

/// The values that are the same for all rows, in one line.
fn headline(runs: &[RunRow]) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut same = |name: &str, value: &dyn Fn(&RunRow) -> String| {
        let compared = runs.iter().filter(|run| !is_reference(run));
        if let [value] = values(compared, value).as_slice()
            && !value.is_empty()
            && value != MISSING
        {
            words.push(if name.is_empty() { value.clone() } else { format!("{name} {value}") });
        }
    };
    same("experiment", &|r| clean(&r.experiment));
    same("machine", &|r| clean(&r.machine));
    same("kernel", &|r| clean(r.kernel.as_deref().unwrap_or("")));
    same("workload", &|r| clean(&r.workload));
    same("fast memory", &|r| percent_round(r.fast_ratio));
    same("", &|r| format!("{} periods of {}", count(r.periods), duration(r.period_length_ms())));
    same("seed", &|r| r.seed.to_string());
    words.join(" · ")
}

fn table_moves(run: &RunRow) -> String {
    let of = |n: Option<u64>| count(n.unwrap_or(0));
    format!(
        "Leaf tables of {} under {}, for each of its pages that moved: moved {}, there \
         already {}, within their tier {}, still mapping fast pages {}, lock contended {}, \
         without a frame {}.",
        clean(&run.group),
        clean(&run.policy),
        of(run.table_moves),
        of(run.table_already_there),
        of(run.table_within_tier),
        of(run.table_maps_fast),
        of(run.table_lock_contended),
        of(run.table_no_room),
    )
}

/// The lines below a table of runs: what its columns mean, and what has to be known of these runs.
fn notes(runs: &[RunRow], measured: &Measured) -> Vec<String> {
    let mut notes = meanings(runs, measured);
    notes.extend(runs.iter().filter(|r| has_table_moves(r)).map(table_moves));
    if measured.adaptive {
        notes.push(
            "Policy chosen: what the adaptive policy applied most, with its share of the periods."
                .to_owned(),
        );
    }
    let lost: u64 = runs.iter().map(|r| r.lost_periods).fold(0, u64::saturating_add);
    if lost > 0 {
        notes.push(format!(
            "The tracker lost {} periods beside those that are counted.",
            count(lost)
        ));
    }
    if runs.iter().any(|r| r.emulated) {
        notes.push(
            "~ Emulated time: CPU times and throughput compare rows with each other; they are not \
             those of real memory."
                .to_owned(),
        );
    }
    if runs.iter().any(|r| r.checksum_ok == Some(false)) {
        notes.push("DAMAGED: the program's data was not what it should be at the end.".to_owned());
    }
    let own = values(runs, |r| clean(r.notes.as_deref().unwrap_or("")));
    notes.extend(own.into_iter().filter(|note| !note.is_empty()));
    notes
}

/// What the columns of what was measured mean.
fn meanings(runs: &[RunRow], measured: &Measured) -> Vec<String> {
    let page_sizes = values(runs, |r| bytes(r.page_size_bytes as f64));
    let mut notes = vec![format!(
        "Hit ratio: of the pages accessed in a period, the share that was in fast memory. \
         Promoted, demoted, failed: pages of {}. Stable: pages that stayed in their tier from \
         one period to the next.",
        page_sizes.join(" or ")
    )];
    let slowdown = format!(
        "Slowdown: {} over that with all memory fast and nothing moved.",
        slowdown_of(runs)
    );
    if measured.references {
        notes.push(format!(
            "By reads: of the lines read from memory, the share that came from fast memory. \
             {slowdown} Walks: time of page walks, which overlap with other work."
        ));
    } else if measured.slowdown {
        notes.push(slowdown);
    }
    if measured.sampled {
        notes.push(
            "Error: half the 95 % interval of a run time that was estimated from sampling windows."
                .to_owned(),
        );
    }
    if measured.kernel {
        notes.push(
            "Programs', kernel's: of their own loads and stores that missed all caches, the share \
             that was of fast memory. No policy places the kernel's own memory; it copies programs', too. \
             Stalled slow, kernel: time that processors waited for slow memory and were busy in \
             the kernel, all processors and programs together."
                .to_owned(),
        );
    }
    if runs.iter().any(|r| r.clock.as_deref() == Some(MEMORY_CLOCK)) {
        notes.push(
            "Time is simulated: the machine's clock knows what its instructions and accesses of \
             memory take."
                .to_owned(),
        );
    }
    if measured.projected {
        let errors = runs.iter().filter_map(|r| r.projection_error).map(f64::abs);
        notes.push(format!(
            "Projected: the slowdown that the extended leading-load model makes of the run with \
             all memory fast and the share of reads from fast memory; off by at most {} of run \
             time here.",
            percent(errors.fold(0.0, f64::max))
        ));
    }
    notes
}

/// Breaks a line between words.
fn wrap(line: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in line.split(' ') {
        let long = word.chars().count();
        if used > 0 && used + 1 + long > width {
            lines.push(String::new());
            used = 0;
        }
        if let Some(last) = lines.last_mut() {
            if used > 0 {
                last.push(' ');
                used += 1;
            }
            last.push_str(word);
        }
        used += long;
    }
    lines
}
