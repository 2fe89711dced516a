//! The policy against processes that do well and badly. They are programs of a few lines that speak
//! the protocol by themselves; `python/tests/test_live.py` has the real one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use terrace_core::bits::PageBits;
use terrace_core::page::{Layout, PageSize};

use super::*;

/// Longest time that anything is waited for.
const BOUND: Duration = Duration::from_secs(60);
/// Pages 0 to 31 of 64 are fast.
const PAGES: usize = 64;

/// Runs all the programs.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/policy/program.py");

struct Place {
    folder: tempfile::TempDir,
    policy: ExternalPolicy,
}

impl Place {
    /// A place with a policy whose process is this program: what it does first, and for each period.
    fn new(first: &str, each: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        let each = each.lines().map(|line| format!("    {line}\n")).collect::<String>();
        let text = format!(
            "{first}\nsend(16)\nn = 0\nwhile True:\n    asked = receive()\n    n += 1\n{each}"
        );
        fs::write(&program, text).unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let policy = ExternalPolicy {
            name: "own",
            file: program,
            source: String::new(),
            class: "Own".into(),
            fallback: "lru".into(),
            fallback_parameters: Value::Null,
            deadline_share: 0.25,
            interpreter: PROGRAM.into(),
            user: None,
            memory_bytes: 1 << 30,
            restarts: 5,
        };
        Place { folder, policy }
    }

    fn start(self, patience: Patience) -> Driven {
        let fallback = self.policy.fallback(1).unwrap();
        let external = self.policy.policy(1, patience, fallback);
        Driven { external, period: 0, _folder: self.folder }
    }
}

/// A policy and the periods that it had.
struct Driven {
    external: External,
    period: u64,
    _folder: tempfile::TempDir,
}

impl Driven {
    /// One more period: pages 32 and up were accessed.
    fn step(&mut self) -> Decision {
        let bits = |range: std::ops::Range<usize>| {
            let mut bits = PageBits::new(PAGES);
            bits.set_range(range, true);
            bits
        };
        let layout = Arc::new(Layout::contiguous(PageSize::Huge, PAGES as u64));
        let scan = Scan::new(self.period, layout, bits(32..64), bits(0..32));
        self.period += 1;
        self.external.decide(&scan, &Budget::fast(32))
    }

    /// Goes on until this holds of the report; the decision that it held with.
    fn until(&mut self, holds: impl Fn(&ExternalReport) -> bool) -> (Decision, ExternalReport) {
        let since = Instant::now();
        loop {
            let decision = self.step();
            let report = self.external.external().unwrap();
            if holds(&report) {
                return (decision, report);
            }
            assert!(since.elapsed() < BOUND, "{report:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn lapses(report: &ExternalReport, reason: &str) -> u64 {
    report.fallback_periods.iter().find(|(name, _)| name == reason).unwrap().1
}

const LIVE: Patience = Patience::Live { period_ms: 400 };
/// Page 40 up for page 3.
const SWAP: &str = "answer(1 << 40, 1 << 3)";

#[test]
fn a_plan_of_the_process_is_the_plan() {
    let mut driven = Place::new("", SWAP).start(Patience::Simulated);
    for period in 1..=10 {
        let Decision { plan, applied, .. } = driven.step();
        assert_eq!((applied, plan.pages(PageSize::Huge)), ("own", (1, 1)));
        let [exchange] = plan.exchanges[..] else { panic!("{plan:?}") };
        assert_eq!(exchange.up.start, 40 * PageSize::Huge.bytes());
        assert_eq!(exchange.down.start, 3 * PageSize::Huge.bytes());
        let report = driven.external.external().unwrap();
        assert_eq!((report.state.as_str(), report.decided_periods), ("deciding", period));
        assert!(report.fallback_periods.iter().all(|(_, periods)| *periods == 0));
    }
}

#[test]
fn a_late_answer_costs_its_period_and_no_more() {
    let late = "if n == 3: time.sleep(1.5)";
    let mut driven = Place::new("", &format!("{late}\n{SWAP}")).start(LIVE);
    driven.until(|report| report.decided_periods == 2);
    let (decision, _) = driven.until(|report| lapses(report, "late") > 0);
    // The fallback knows what it saw meanwhile: the accessed pages go up.
    assert_eq!((decision.applied, decision.plan.pages(PageSize::Huge)), ("lru", (32, 32)));
    let (decision, report) = driven.until(|report| report.decided_periods == 4);
    assert_eq!((decision.applied, report.state.as_str()), ("own", "deciding"));
    assert_eq!((report.restarts, lapses(&report, "died")), (0, 0));
}

#[test]
fn a_decision_never_takes_longer_than_its_part_of_the_period() {
    for (first, each) in [("time.sleep(100)", SWAP), ("", "time.sleep(100)")] {
        let mut driven = Place::new(first, each).start(LIVE);
        for _ in 0..3 {
            let begun = Instant::now();
            assert_eq!(driven.step().applied, "lru");
            // A tenth of a second; the rest is for a machine that is busy.
            assert!(begun.elapsed() < Duration::from_millis(1000), "{:?}", begun.elapsed());
        }
        let report = driven.external.external().unwrap();
        assert!(["starting", "late"].contains(&report.state.as_str()), "{report:?}");
    }
}

#[test]
fn a_process_that_dies_is_started_anew_after_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("mark").display().to_string();
    let once = format!(
        "if n == 3 and not os.path.exists({mark:?}):\n    open({mark:?}, 'w').close()\n    \
         print('no such page', file=sys.stderr, flush=True)\n    os._exit(7)\n{SWAP}"
    );
    let mut driven = Place::new("", &once).start(LIVE);
    let (_, report) = driven.until(|report| lapses(report, "died") == 1);
    assert_eq!(report.error.as_deref(), Some("exit status: 7: no such page"));
    assert_eq!(driven.step().applied, "lru");
    assert_eq!(driven.external.external().unwrap().state, "waiting");
    let decided = report.decided_periods;
    let (_, report) = driven.until(|report| report.decided_periods > decided + 1);
    assert_eq!((report.restarts, report.state.as_str()), (1, "deciding"));
    assert!(lapses(&report, "waiting") > 0);
}

#[test]
fn an_exception_is_reported_in_its_own_words_and_one_that_dies_always_is_given_up() {
    let mut place = Place::new("", "send(19, b'own.py, line 3: KeyError: 7')\nsys.exit(1)");
    place.policy.restarts = 1;
    let mut driven = place.start(LIVE);
    let (decision, report) = driven.until(|report| report.state == "given_up");
    assert_eq!(decision.applied, "lru");
    assert_eq!(report.error.as_deref(), Some("own.py, line 3: KeyError: 7"));
    assert_eq!((report.restarts, report.decided_periods), (1, 0));
    assert_eq!(lapses(&report, "died"), 2);
}

#[test]
fn a_plan_that_makes_no_sense_is_refused_and_the_process_goes_on() {
    let wrong = "if n == 2: answer(1 << 3, 0)\nelif n == 4: answer(1 << 40, 0)\nelse: ";
    let mut driven = Place::new("", &format!("{wrong}{SWAP}")).start(LIVE);
    let (decision, report) = driven.until(|report| lapses(report, "refused") == 1);
    assert_eq!(decision.applied, "lru");
    let error = report.error.unwrap();
    assert!(error.contains("promote has page 3, which is in fast memory already"), "{error}");
    let (_, report) = driven.until(|report| lapses(report, "refused") == 2);
    let error = report.error.unwrap();
    assert!(error.contains("leave 33 pages in fast memory, expected at most 32"), "{error}");
    let (_, report) = driven.until(|report| report.decided_periods > 3);
    assert_eq!(report.restarts, 0);
}

#[test]
fn nonsense_ends_the_process() {
    for (nonsense, words) in [
        ("send(9)", "a message of kind 9"),
        ("send(17, b'x')", "out of turn"),
        ("send(16)", "out of turn"),
        ("answer(0, 0); send(17, struct.pack('<QQ', n, 0))", ""),
        ("sys.stdout.buffer.write(bytes([17]) + b'\\xff' * 4); sys.stdout.buffer.flush()", "bytes"),
        ("send(17, struct.pack('<QQ', n - 1, 0))", "an answer of 16 bytes, expected 24"),
    ] {
        let mut place = Place::new("", nonsense);
        place.policy.restarts = 0;
        let mut driven = place.start(LIVE);
        let (decision, report) = driven.until(|report| report.state == "given_up");
        assert_eq!(decision.applied, "lru", "{nonsense}");
        assert!(report.error.clone().unwrap().contains(words), "{nonsense}: {report:?}");
    }
}

#[test]
fn a_program_that_is_not_there_is_no_more_than_an_error() {
    let mut place = Place::new("", SWAP);
    place.policy.interpreter = "/no/such/python".into();
    place.policy.restarts = 0;
    let mut driven = place.start(LIVE);
    let (decision, report) = driven.until(|report| report.state == "given_up");
    assert_eq!(decision.applied, "lru");
    assert!(report.error.unwrap().contains("/no/such/python: No such file"));
}

#[test]
fn the_process_goes_with_the_policy() {
    let place = Place::new("", &format!("{SWAP}\nif n == 1: time.sleep(100)"));
    let mut driven = place.start(Patience::Simulated);
    driven.step();
    let id = driven.external.asked.as_ref().unwrap().process.id();
    assert!(Path::new(&format!("/proc/{id}")).exists());
    drop(driven);
    assert!(!Path::new(&format!("/proc/{id}")).exists());
}

#[test]
fn the_process_has_no_privileges_of_its_parent() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let tell = "status = open('/proc/self/status').read().split('\\n')\n\
                who = [l for l in status if l.split(':')[0] in ('Uid', 'Gid', 'Groups', 'CapEff')]\n\
                send(19, ' '.join(who + sorted(os.environ) + sys.argv[1:]).encode())\nsys.exit(1)";
    let mut place = Place::new("", tell);
    place.policy.user = Some((65534, 65534));
    // That user may not be able to read the sources.
    let program = place.folder.path().join("python");
    fs::copy(PROGRAM, &program).unwrap();
    place.policy.interpreter = program;
    let mut driven = place.start(LIVE);
    let names_it =
        |report: &ExternalReport| report.error.as_ref().is_some_and(|e| e.contains("Uid"));
    let (_, report) = driven.until(names_it);
    let error = report.error.unwrap();
    for expected in [
        "Uid: 65534 65534 65534 65534 Gid: 65534 65534 65534 65534 Groups: CapEff: 0000000000000000",
        "OMP_NUM_THREADS",
        "-I -B -m terrace.serve /",
    ] {
        assert!(error.contains(expected), "{error}");
    }
    assert!(!error.contains("HOME"), "{error}");
}
