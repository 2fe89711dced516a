//! Plans of made-up programs whose answers are known beforehand.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use terrace_core::bits::PageBits;
use terrace_core::page::{Layout, PageSize};
use terrace_core::scan::Scan;
use terrace_planner::memory::Machine;
use terrace_planner::recording::{Evidence, Open, Recording, Waiting};
use terrace_planner::tables::Tables;
use terrace_planner::{Plan, Request, config, plan, words};
use terrace_recordings::mixed::MixedRun;
use terrace_recordings::period::{GroupHeader, Header as PeriodHeader, PeriodWriter};
use terrace_recordings::profile::{Header, Interval, ProfileWriter, TierSpeed};

const PAGES: usize = 200;

/// A program that reads the first `hot` of its pages all the time; half of its time with all memory
/// fast is waiting, and slow memory is twice as slow.
fn profile(path: &Path, machine: &str, hot: usize) {
    let tier = |name: &str, ns: u64| TierSpeed {
        name: name.to_owned(),
        read_latency_ps: ns * 1000,
        read_mb_per_s: 100_000,
    };
    let header = Header {
        workload: "made-up".to_owned(),
        machine: machine.to_owned(),
        page_size: PageSize::Base,
        footprint_bytes: Some(PAGES as u64 * 4096),
        interval_references: 1000,
        tiers: vec![tier("dram", 100), tier("cxl", 200)],
        experiment: None,
        created_by: "test".to_owned(),
    };
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ProfileWriter::new(file, "made-up", &header).unwrap();
    let layout = Arc::new(Layout::contiguous(PageSize::Base, PAGES as u64));
    for number in 0..400 {
        let mut accessed = PageBits::new(PAGES);
        // Cold pages come first, so that first touch gives them the fast memory.
        accessed.set_range(PAGES - hot..PAGES, true);
        let mut reads = vec![0; PAGES];
        reads[PAGES - hot..].fill(100);
        let fresh = if number == 0 { (0..PAGES).collect() } else { Vec::new() };
        let interval = Interval {
            references: 100_000,
            fast_ps: 10_000_000_000,
            slow_ps: 15_000_000_000,
            mixed: vec![MixedRun { slow_ppm: 500_000, took_ps: 12_500_000_000 }],
            scan_ps: 0,
            layout: layout.clone(),
            accessed,
            fresh,
            reads,
        };
        writer.interval(&interval).unwrap();
    }
    writer.finish().unwrap();
}

fn how() -> Open {
    let waiting = Waiting { share: 0.4, error: 0.2 };
    Open { group: None, page_size: None, sample_one_in: None, waiting, machine: None }
}

fn request(recordings: Vec<Recording>, target: f64, policies: &[&str]) -> Request {
    let machines = vec![recordings[0].machine.clone()];
    Request {
        recordings,
        target,
        policies: policies.iter().map(|p| (*p).to_owned()).collect(),
        machines,
        fast_at_most: 1.0,
        seeds: 2,
        period_ms: Some(50),
        moved_pages: None,
        settle_periods: 0,
        resolution: 0.005,
        jobs: 2,
    }
}

fn made_up(folder: &Path, hot: usize) -> Recording {
    let path = folder.join("p.tprof");
    profile(&path, "server-ddr5-cxl", hot);
    Recording::open(&path, &how()).unwrap()
}

fn answer(plan: &Plan, policy: &str) -> f64 {
    let curve = plan.curves.iter().find(|c| c.policy == policy).unwrap();
    curve.least_point().unwrap().share
}

#[test]
fn the_least_fast_memory_is_what_the_program_reads() {
    let folder = tempfile::tempdir().unwrap();
    let request = request(vec![made_up(folder.path(), 60)], 1.05, &["first-touch", "lru", "lfu"]);
    let plan = plan(&request, &|_, _| {}).unwrap();
    // With a fifth of the hot pages slow it loses a tenth of half its time.
    let least = answer(&plan, "lfu");
    assert!((0.26..=0.31).contains(&least), "{least}");
    // First touch fills fast memory with pages that are never read.
    let first_touch = answer(&plan, "first-touch");
    assert!(first_touch > 0.95, "{first_touch}");
    let chosen = &plan.recommended[0];
    assert!(chosen.policy != "first-touch" && chosen.point.slowdown <= 1.05 + 1e-6);
    assert!(
        chosen.point.low <= chosen.point.slowdown && chosen.point.slowdown <= chosen.point.high
    );
    // All of it slow takes half as long again, and all of it fast is what it is measured against.
    let curve = &plan.curves[0];
    assert!((curve.points[0].slowdown - 1.5).abs() < 1e-6, "{}", curve.points[0].slowdown);
    assert_eq!(curve.points.last().unwrap().slowdown, 1.0);
    let printed = words::recommendation(&plan).join(" ");
    assert!(printed.contains("made-up") && printed.contains("within 5.0 %"), "{printed}");
    // As a table and as a configuration it is the same answer.
    let tables = Tables::of(&plan, &[]);
    let row = tables.answers.iter().find(|a| a.recommended).unwrap();
    assert_eq!(row.fast_share, Some(chosen.point.share));
    let text = config::terraced_toml(&plan);
    let read: toml::Table = text.parse().unwrap();
    let group = &read["groups"][0];
    assert_eq!(group["policy"].as_str(), Some(chosen.policy.as_str()));
    let ratio = group["fast_ratio"].as_float().unwrap();
    assert!((ratio - chosen.point.share).abs() < 1e-4);
    // The daemon takes it as it is.
    let daemon = terrace_daemon::config::Config::parse(&text, "terraced.toml").unwrap();
    assert_eq!(daemon.groups.len(), 1);
    assert_eq!(daemon.groups[0].get_ref().policy, chosen.policy);
    let unknown = text.replace("fast_ratio", "fast_ration");
    assert!(terrace_daemon::config::Config::parse(&unknown, "terraced.toml").is_err());
}

#[test]
fn what_a_program_needs_to_settle_can_be_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let of = |settle_periods| {
        let recordings = vec![made_up(folder.path(), 60)];
        plan(&Request { settle_periods, ..request(recordings, 1.05, &["lru"]) }, &|_, _| {})
    };
    let at_half = |plan: Plan| {
        let curve = plan.curves.into_iter().next().unwrap();
        curve.points.into_iter().find(|p| (p.share - 0.5).abs() < 1e-9).unwrap()
    };
    // All pages that are read were touched last and begin in slow memory.
    let whole = at_half(of(0).unwrap());
    assert!(whole.hit_ratio < 1.0 && whole.slowdown > 1.0, "{whole:?}");
    let settled = at_half(of(5).unwrap());
    assert_eq!((settled.hit_ratio, settled.slowdown), (1.0, 1.0));
    let refused = of(1_000_000).unwrap_err().to_string();
    assert!(refused.contains("are not to be counted: expected fewer"), "{refused}");
}

#[test]
fn the_same_request_has_the_same_answer_however_many_run_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let plans: Vec<Plan> = [1, 4]
        .map(|jobs| {
            let mut request = request(vec![made_up(folder.path(), 60)], 1.05, &["amp", "random"]);
            request.jobs = jobs;
            plan(&request, &|_, _| {}).unwrap()
        })
        .into();
    assert_eq!(plans[0], plans[1]);
}

#[test]
fn slower_memory_needs_more_fast_memory_and_prices_choose_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    let recording = made_up(folder.path(), 100);
    let own = Machine { price_fast: Some(4.0), price_slow: Some(2.0), ..recording.machine.clone() };
    let slower = Machine { price_slow: Some(1.0), ..own.with_slow(Some(400.0), None) };
    let mut request = request(vec![recording], 1.10, &["lfu"]);
    request.machines = vec![own, slower];
    let plan = plan(&request, &|_, _| {}).unwrap();
    let share = |machine| {
        let curve = plan.curves.iter().find(|c| c.machine == machine).unwrap();
        curve.least_point().unwrap().share
    };
    assert!(share(1) > share(0), "{} {}", share(1), share(0));
    // Hardly more fast memory, and slow memory at half the price.
    assert_eq!(plan.machine, 1);
    assert!(plan.cost.unwrap() < plan.all_fast_cost.unwrap());
    assert!(plan.front.windows(2).all(|w| w[0].cost < w[1].cost && w[0].slowdown > w[1].slowdown));
    // At three times the latency the same share slows it more.
    let slowdowns: Vec<f64> = plan.sensitivity.iter().map(|s| s.slowdown).collect();
    assert!(slowdowns.windows(2).all(|w| w[0] <= w[1]), "{slowdowns:?}");
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |change: &dyn Fn(&mut Request)| {
        let mut request = request(vec![made_up(folder.path(), 60)], 1.0, &["lfu"]);
        change(&mut request);
        let error = plan(&request, &|_, _| {}).unwrap_err();
        assert!(error.is::<terrace_core::InputError>(), "{error}");
        let error = error.to_string();
        assert!(!error.contains('\n'), "{error}");
        error
    };
    let no_fast = refused(&|r| r.fast_at_most = 0.0);
    assert!(no_fast.contains("no policy stays within 0.0 %"), "{no_fast}");
    assert!(no_fast.contains("50.0 %"), "it says what can be had: {no_fast}");
    assert!(refused(&|r| r.target = 0.9).contains("expected 0 %"));
    assert!(refused(&|r| r.target = f64::NAN).contains("expected 0 %"));
    assert!(refused(&|r| r.policies = vec!["lfo".into()]).contains("no policy is named 'lfo'"));
    assert!(refused(&|r| r.policies = vec!["lfu".into(), "lfu".into()]).contains("twice"));
    assert!(refused(&|r| r.fast_at_most = 1.5).contains("expected 0 % to 100 %"));
    assert!(refused(&|r| r.machines[0].slow.latency_ns = 20.0).contains("slower one"));
    assert!(refused(&|r| r.machines[0].price_fast = Some(-1.0)).contains("a price of -1"));
}

#[test]
fn programs_of_one_name_are_kept_apart() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = ["a", "b", "c"].map(|name| folder.path().join(name)).into();
    for (path, hot) in paths.iter().zip([40, 80, 120]) {
        profile(path, "server-ddr5-cxl", hot);
    }
    let recordings = Recording::open_all(&paths, &how()).unwrap();
    let plan = plan(&request(recordings, 1.05, &["lfu"]), &|_, _| {}).unwrap();
    let names: Vec<_> = plan.recommended.iter().map(|r| r.program.as_str()).collect();
    assert_eq!(names, ["made-up", "made-up-2", "made-up-3"]);
    // The daemon takes its configuration, which has a group for each.
    let text = config::terraced_toml(&plan);
    let daemon = terrace_daemon::config::Config::parse(&text, "terraced.toml").unwrap();
    let groups: Vec<_> = daemon.groups.iter().map(|g| g.get_ref().name.clone()).collect();
    assert_eq!(groups, names);
}

#[test]
fn a_share_of_time_that_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    profile(&path, "server-ddr5-cxl", 50);
    for (share, error) in [(40.0, 0.2), (-0.4, 0.2), (f64::NAN, 0.2), (0.4, 1.5)] {
        let waiting = Waiting { share, error };
        let refused = Recording::open(&path, &Open { waiting, ..how() });
        let refused = refused.err().unwrap().to_string();
        assert!(refused.ends_with("expected 0 to 1"), "{refused}");
    }
}

#[test]
fn recordings_of_different_machines_are_not_mixed() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str, machine: &str| {
        let path = folder.path().join(name);
        profile(&path, machine, 50);
        Recording::open(&path, &how()).unwrap()
    };
    let (a, b) = (open("a", "server-ddr5-cxl"), open("b", "radiant-xeon-6252n-optane"));
    let error = Recording::check_alike(&[a, b]).unwrap_err().to_string();
    assert!(error.contains("of machine 'server-ddr5-cxl'") && error.contains("radiant"), "{error}");
    let two = [open("a", "server-ddr5-cxl"), open("c", "server-ddr5-cxl")];
    assert!(Recording::check_alike(&two).is_ok());
    let request = request(two.into(), 1.05, &["lfu"]);
    let plan = plan(&request, &|_, _| {}).unwrap();
    assert_eq!(plan.recommended.len(), 2, "both programs have an answer");
}

#[test]
fn accessed_pages_are_a_weaker_recording_and_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.trec");
    let header = PeriodHeader {
        created_by: "test".to_owned(),
        experiment: "e".to_owned(),
        machine: "host".to_owned(),
        kernel: String::new(),
        period_ms: 1000,
        seed: 1,
        leaves_out_unmovable: false,
        groups: vec![GroupHeader {
            name: "g".to_owned(),
            policy: "lfu".to_owned(),
            parameters: serde_json::Value::Null,
            policy_seed: 1,
            page_size: PageSize::Huge,
            fast_share: 0.5,
        }],
    };
    let mut writer = PeriodWriter::create(&path, header).unwrap();
    let layout = Arc::new(Layout::contiguous(PageSize::Huge, 100));
    for period in 0..50 {
        let mut accessed = PageBits::new(100);
        accessed.set_range(70..100, true);
        writer.scan(0, &Scan::new(period, layout.clone(), accessed, PageBits::new(100))).unwrap();
    }
    writer.ended(0).unwrap();
    writer.publish().unwrap();
    let recording = Recording::open(&path, &how()).unwrap();
    assert_eq!(recording.evidence, Evidence::Pages);
    let request = Request { period_ms: None, ..request(vec![recording], 1.05, &["lfu"]) };
    let plan = plan(&request, &|_, _| {}).unwrap();
    let least = answer(&plan, "lfu");
    assert!((0.2..=0.35).contains(&least), "{least}");
    assert!(plan.curves[0].points[2].uncertainty.waiting > 0.0);
    let printed = words::recommendation(&plan).join(" ");
    assert!(printed.contains("weaker than a profile's"), "{printed}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn files_of_any_content_are_refused_or_opened(
        bytes in prop::collection::vec(any::<u8>(), 0..400), cut in 0usize..2000, flip in 0usize..2000,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, &bytes).unwrap();
        if let Err(error) = Recording::open(&path, &how()) {
            prop_assert!(!error.to_string().is_empty());
        }
        profile(&path, "server-ddr5-cxl", 10);
        let mut whole = std::fs::read(&path).unwrap();
        let at = flip % whole.len();
        whole[at] ^= 0x40;
        whole.truncate(whole.len().saturating_sub(cut % 700));
        std::fs::write(&path, &whole).unwrap();
        let _ = Recording::open(&path, &how());
    }
}
