//! `terrace-workload`: programs that make memory work for Terrace to manage.
//!
//! Writes JSON lines to standard output (`{"event": "ready" | "phase" | "result", ...}`) and text
//! for people to standard error. Exit codes: 0 all well, 1 failed or found wrong data, 2 cannot do
//! what the arguments request.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::Value;
use terrace_core::page::PageSize;
use terrace_workloads::generators::{self, GeneratorError, Timing};
use terrace_workloads::memory::arena::{ArenaError, size_bytes};
use terrace_workloads::memory::held::HoldKind;
use terrace_workloads::memory::program::{self, Backing, Control, Settings};
use terrace_workloads::memory::schedule::{Choice, Generated, HotCold, Schedule};
use terrace_workloads::programs::cli::ProgramArguments;
use terrace_workloads::programs::{ProgramError, cli};
use terrace_workloads::redis::ClientError;
use terrace_workloads::redis::connection::Address;
use terrace_workloads::redis::load::{Store, load};
use terrace_workloads::redis::popularity::{Mix, Order, Shift};
use terrace_workloads::redis::run::{Load, Marks, WriteWith, run};
use terrace_workloads::redis::verify::verify;
use terrace_workloads::session::{DRIVE_MEASURED, DRIVE_READY};

/// Programs that make memory work for Terrace to manage.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Touch a known set of hot pages and no other; check all memory at the end.
    Hotcold(HotColdArguments),
    /// Touch the pages that a generator of the simulated machine names; check all memory at the
    /// end.
    Generator(GeneratorArguments),
    /// Run a workload program of the papers' classes that checks its own result, or list them.
    Program(ProgramArguments),
    /// A Zipfian load on a Redis server, every value checked.
    #[command(subcommand)]
    RedisZipf(RedisCommand),
}

#[derive(Clone, Copy, ValueEnum)]
enum PageSizeArgument {
    /// 2 MB pages.
    Huge,
    /// 4 KB pages.
    Base,
    /// 2 MB pages of the kernel's pool (hugetlb).
    Pool,
}

#[derive(Args)]
struct MemoryArguments {
    /// Size of the pages.
    #[arg(long, value_enum, default_value = "huge")]
    page_size: PageSizeArgument,
    /// Seed of contents and choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Sleep between two rounds of touches.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pause_ms: u64,
    /// Length of the rounds in all.
    #[arg(long)]
    duration_ms: u64,
    /// Wait for a line 'go' on standard input before the first round.
    #[arg(long)]
    wait_go: bool,
    /// Take the memory from this file, shared with whoever maps it, such as in /dev/shm.
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Only read the file: another program fills it and writes to it.
    #[arg(long, requires = "file", conflicts_with = "hold")]
    reader: bool,
    /// Hold the memory so from a line 'hold' on standard input to a line 'release'.
    #[arg(long, value_enum, value_name = "KIND")]
    hold: Option<HoldArgument>,
}

#[derive(Clone, Copy, ValueEnum)]
enum HoldArgument {
    /// References from a pipe: cannot be moved.
    Piped,
    /// Registered with io_uring: cannot be moved.
    Registered,
    /// Locked in memory.
    Locked,
    /// Offered to be merged with pages of the same contents.
    Merged,
    /// Offered to be joined to huge pages.
    Joined,
    /// In a mapping of its own for each base page.
    Cut,
    /// The memory of a virtual machine of KVM, whose processor touches it.
    Guest,
}

impl From<HoldArgument> for HoldKind {
    fn from(kind: HoldArgument) -> HoldKind {
        match kind {
            HoldArgument::Piped => HoldKind::Piped,
            HoldArgument::Registered => HoldKind::Registered,
            HoldArgument::Locked => HoldKind::Locked,
            HoldArgument::Merged => HoldKind::Merged,
            HoldArgument::Joined => HoldKind::Joined,
            HoldArgument::Cut => HoldKind::Cut,
            HoldArgument::Guest => HoldKind::Guest,
        }
    }
}

#[derive(Args)]
struct HotColdArguments {
    #[command(flatten)]
    memory: MemoryArguments,
    /// Number of pages.
    #[arg(long)]
    pages: usize,
    #[command(flatten)]
    hot: HotPages,
    /// Of '--hot-every', in the first so many pages alone.
    #[arg(long, value_name = "PAGES", requires = "hot_every")]
    hot_within: Option<usize>,
    /// Take another hot set after this time, again and again. Besides, a line 'phase N' on
    /// standard input chooses hot set N, 'stop' ends the rounds.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    shift_every_ms: Option<u64>,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct HotPages {
    /// Number of hot pages, chosen by the seed.
    #[arg(long)]
    hot: Option<usize>,
    /// Make every k-th page hot.
    #[arg(long, value_name = "K")]
    hot_every: Option<usize>,
}

#[derive(Args)]
struct GeneratorArguments {
    /// Name of the generator, such as lru-favor, lfu-favor, random-favor.
    name: String,
    /// Its parameters, a JSON object.
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = json)]
    parameters: Value,
    /// Length of the generator's periods.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    period_ms: u64,
    #[command(flatten)]
    memory: MemoryArguments,
}

#[derive(Subcommand)]
enum RedisCommand {
    /// Set every key, in order.
    Load {
        #[command(flatten)]
        store: StoreArguments,
        /// Create all keys before the first gets its value: the server's entries are then together
        /// instead of between the values.
        #[arg(long)]
        keys_first: bool,
    },
    /// Read and write by popularity, beside a batch scan.
    Run(Box<RunArguments>),
    /// Read every key and check every byte.
    Verify {
        #[command(flatten)]
        store: StoreArguments,
        /// Versions file of the run before: finds stale values too.
        #[arg(long)]
        versions: Option<PathBuf>,
    },
}

#[derive(Args)]
struct StoreArguments {
    /// Where the server listens: 'unix:/path/of/socket' or 'host:port'.
    #[arg(long)]
    server: Address,
    #[command(flatten)]
    size: StoreSize,
    /// Length of every value. 4,080 and 8,176 fill the server's allocations of 4 and 8 KB.
    #[arg(long, default_value_t = 8176)]
    value_bytes: usize,
    /// Commands in flight on a connection.
    #[arg(long, default_value_t = 32)]
    pipeline: usize,
    /// Longest wait for an answer.
    #[arg(long, default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..))]
    timeout_ms: u64,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct StoreSize {
    /// Number of keys.
    #[arg(long)]
    keys: Option<u64>,
    /// As many keys as make this many MiB (2^20 bytes) of values.
    #[arg(long)]
    footprint_mib: Option<u64>,
}

#[derive(Args)]
struct RunArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Length of the run.
    #[arg(long)]
    duration_ms: u64,
    /// Operations per second; as many as are answered when left out.
    #[arg(long, value_name = "RATE")]
    operations_per_s: Option<f64>,
    /// Exponent of the Zipfian law.
    #[arg(long, default_value_t = 0.99)]
    theta: f64,
    /// Share of the operations that write.
    #[arg(long, default_value_t = 0.1)]
    write_share: f64,
    /// How values are replaced.
    #[arg(long, value_enum, default_value = "set")]
    write_with: WriteWith,
    /// Whether keys of similar popularity are neighbours in memory.
    #[arg(long, value_enum, default_value = "clustered")]
    order: Order,
    /// Where the most popular key is, as a share of all keys in order of insertion.
    #[arg(long, default_value_t = 0.0)]
    hot_start: f64,
    /// Move the hot spot: AT_MS:SHARE. May be given several times, earliest first.
    #[arg(long = "shift", value_name = "AT_MS:SHARE")]
    shifts: Vec<Shift>,
    /// Share of the operations that belong to a batch scan over all keys.
    #[arg(long, default_value_t = 0.0)]
    sweep_share: f64,
    /// The scan reads every k-th key.
    #[arg(long, value_name = "K", default_value_t = 1)]
    sweep_step: u64,
    /// When the scan is over, from the start of the run.
    #[arg(long)]
    sweep_until_ms: Option<u64>,
    /// Connections, all served by one thread.
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Seed of the sequence of operations.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Leave the versions of all keys in this file, for 'verify'.
    #[arg(long)]
    versions: Option<PathBuf>,
    /// Measure from SIGUSR1 on, and end at the second; values are checked all the time.
    #[arg(long)]
    measure_on_signal: bool,
}

fn json(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(text)
}

/// Arguments that clap accepts and the program cannot follow.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Hotcold(a) => hotcold(a),
        Command::Generator(a) => generator(&a),
        Command::Program(a) => program_of(&a),
        Command::RedisZipf(command) => redis(command),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("terrace-workload: {error:#}");
            let usage = error.is::<Usage>()
                || error.is::<GeneratorError>()
                || error.is::<ProgramError>()
                || error.downcast_ref().is_some_and(|e| {
                    matches!(e, ArenaError::BadSize { .. } | ArenaError::TooLarge { .. })
                })
                || error.downcast_ref().is_some_and(|e| {
                    matches!(e, ClientError::BadParameter(_) | ClientError::BadAddress(_))
                });
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

impl From<PageSizeArgument> for PageSize {
    fn from(size: PageSizeArgument) -> PageSize {
        match size {
            PageSizeArgument::Huge | PageSizeArgument::Pool => PageSize::Huge,
            PageSizeArgument::Base => PageSize::Base,
        }
    }
}

fn at_most(got: usize, most: usize, name: &str) -> anyhow::Result<()> {
    if (1..=most).contains(&got) {
        Ok(())
    } else {
        Err(Usage(format!("{name} {got}: expected 1 to {most}")).into())
    }
}

fn hotcold(a: HotColdArguments) -> anyhow::Result<()> {
    // Before the choice, which takes memory by the page. The pool's is not among what is available.
    if !matches!(a.memory.page_size, PageSizeArgument::Pool) {
        size_bytes(a.memory.page_size.into(), a.pages)?;
    }
    let choice = match (a.hot.hot, a.hot.hot_every) {
        (Some(count), _) => {
            at_most(count, a.pages, "--hot")?;
            Choice::Seeded { count }
        }
        (None, Some(step)) => {
            let within = a.hot_within.unwrap_or(a.pages);
            at_most(within, a.pages, "--hot-within")?;
            at_most(step, within, "--hot-every")?;
            Choice::Every { step, within }
        }
        (None, None) => return Err(Usage("expected --hot or --hot-every".into()).into()),
    };
    let mut schedule = HotCold::new(a.pages, choice, a.shift_every_ms, a.memory.seed);
    memory_program(&a.memory, a.pages, &mut schedule)
}

fn generator(a: &GeneratorArguments) -> anyhow::Result<()> {
    let page_size = PageSize::from(a.memory.page_size);
    let timing = Timing { page_size, period_ms: a.period_ms, seed: a.memory.seed };
    let bytes = generators::footprint_bytes(&a.name, &a.parameters)?;
    let pages = (bytes / page_size.bytes()) as usize;
    size_bytes(page_size, pages)?;
    let source = generators::build(&a.name, &a.parameters, timing)?;
    memory_program(&a.memory, pages, &mut Generated::new(source, a.period_ms))
}

fn memory_program(
    a: &MemoryArguments,
    pages: usize,
    schedule: &mut dyn Schedule,
) -> anyhow::Result<()> {
    let settings = Settings {
        page_size: a.page_size.into(),
        pages,
        seed: a.seed,
        pause: Duration::from_millis(a.pause_ms),
        duration: Duration::from_millis(a.duration_ms),
        wait_go: a.wait_go,
        backing: match (&a.file, a.page_size) {
            (Some(_), PageSizeArgument::Pool) => {
                bail!(
                    "got '--page-size pool' with '--file', expected huge or base: a file's pages are no pool's"
                )
            }
            (Some(file), _) if a.reader => Backing::FileOfAnother(file.clone()),
            (Some(file), _) => Backing::File(file.clone()),
            (None, PageSizeArgument::Huge | PageSizeArgument::Base) => Backing::Advised,
            (None, PageSizeArgument::Pool) => Backing::Pool,
        },
        hold: a.hold.map(HoldKind::from),
    };
    if !program::run(&settings, schedule, &control_lines(), &mut print)? {
        bail!("memory does not hold what was written to it; see the result line");
    }
    Ok(())
}

/// The control lines from standard input. Other lines are reported and ignored: an operator's
/// typing error must not end a managed program.
fn control_lines() -> Receiver<Control> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match line.parse() {
                Ok(control) if sender.send(control).is_err() => return,
                Ok(_) => {}
                Err(message) => eprintln!("terrace-workload: {message}"),
            }
        }
    });
    receiver
}

/// Prints an event. A reader that has gone does not end the program.
fn print(event: &Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{event}").and_then(|()| out.flush());
}

fn store(a: &StoreArguments) -> Store {
    let keys = a.size.keys.unwrap_or_else(|| {
        let bytes = a.size.footprint_mib.unwrap_or(0).saturating_mul(1 << 20);
        bytes.div_ceil(a.value_bytes.max(1) as u64)
    });
    Store {
        server: a.server.clone(),
        keys,
        value_bytes: a.value_bytes,
        pipeline: a.pipeline,
        timeout: Duration::from_millis(a.timeout_ms),
    }
}

fn program_of(a: &ProgramArguments) -> anyhow::Result<()> {
    if !cli::run(a, &mut print)? {
        bail!("the program found its result wrong; see the result line");
    }
    Ok(())
}

fn redis(command: RedisCommand) -> anyhow::Result<()> {
    match command {
        RedisCommand::Load { store: a, keys_first } => {
            let store = store(&a);
            let all = store.keys * if keys_first { 2 } else { 1 };
            let result = load(&store, keys_first, &mut |done| {
                eprintln!("loading: {done} of {all} commands");
            })?;
            print(&result);
        }
        RedisCommand::Run(a) => {
            let over = || print(&serde_json::json!({ "event": DRIVE_MEASURED }));
            let marks = a.measure_on_signal.then(|| Marks::on_signal(over)).transpose();
            let marks = marks.context("catching SIGUSR1")?;
            if marks.is_some() {
                print(&serde_json::json!({ "event": DRIVE_READY }));
            }
            let store = store(&a.store);
            let load = Load {
                mix: Mix {
                    keys: store.keys,
                    theta: a.theta,
                    write_share: a.write_share,
                    order: a.order,
                    hot_start: a.hot_start,
                    shifts: a.shifts,
                    sweep_share: a.sweep_share,
                    sweep_step: a.sweep_step,
                    sweep_until_ms: a.sweep_until_ms,
                    seed: a.seed,
                },
                write_with: a.write_with,
                operations_per_s: a.operations_per_s,
                duration: Duration::from_millis(a.duration_ms),
                connections: a.connections,
                versions: a.versions,
                marks,
            };
            let (result, right) = run(&store, &load, &mut |p| {
                eprintln!(
                    "{:.1} s: {} operations, {} wrong values, {} errors",
                    p.elapsed_ms as f64 / 1e3,
                    p.operations,
                    p.wrong_values,
                    p.errors
                );
            })?;
            print(&result);
            if !right {
                bail!("wrong or missing values, or errors; see the result line");
            }
        }
        RedisCommand::Verify { store: a, versions } => {
            let store = store(&a);
            let keys = store.keys;
            let (result, right) = verify(&store, versions.as_deref(), &mut |read| {
                eprintln!("verified {read} of {keys} keys");
            })?;
            print(&result);
            if !right {
                bail!("wrong, stale or missing values; see the result line");
            }
        }
    }
    Ok(())
}
