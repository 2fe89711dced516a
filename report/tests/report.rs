//! Reports of realistic results: what a reader would notice.

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use common::{POLICIES, six_policies, two_groups};
use terrace_report::{ReportMeta, Results, html, json, text_table, write_html};

fn meta() -> ReportMeta {
    ReportMeta {
        title: "Redis under six policies".to_owned(),
        command: "terrace compare redis-zipf.toml --machine vm --out results".to_owned(),
        generated_by_version: "terrace 0.1.0".to_owned(),
    }
}

/// Writes a report where a person can open it after the tests: `target/tmp`.
fn look_at(name: &str, results: &Results) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    write_html(&path, results, &ReportMeta { title: results.title(), ..meta() }).unwrap();
}

/// The names of all elements of a page.
fn elements(page: &str) -> BTreeSet<String> {
    page.split('<')
        .skip(1)
        .map(|rest| {
            let name = rest.trim_start_matches('/');
            name.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '!').collect()
        })
        .collect()
}

/// The elements that a report is made of. Another one can only come from its results.
const ELEMENTS: &str = "!doctype a b body circle code dd div dl dt figcaption figure footer g h1 h2 h3 \
    head header html i image li line main meta p path polygon polyline rect section small span \
    style svg table tbody td text th thead title tr ul";

/// A page that needs nothing but itself and holds no element that it should not.
fn assert_sound(page: &str) {
    let known: BTreeSet<&str> = ELEMENTS.split_whitespace().collect();
    for element in elements(page) {
        assert!(known.contains(element.as_str()), "<{element}> in the report");
    }
    // Text within an image is no address.
    let mut parts = page.split("data:image/png;base64,");
    let mut words = parts.next().unwrap().to_owned();
    parts.for_each(|part| words.push_str(part.split_once('"').unwrap().1));
    for foreign in ["http:", "https:", "//", "url(", "@import", "javascript:"] {
        assert!(!words.contains(foreign), "'{foreign}' in the report");
    }
    assert!(!words.contains("NaN") && !words.contains(">inf<"), "a raw number in the report");
    assert!(!page.contains("could not be drawn") && !page.contains("could not be made"));
    for balanced in ["svg", "text", "figure", "table", "section", "title", "dl", "g"] {
        let opened = page.matches(&format!("<{balanced}>")).count()
            + page.matches(&format!("<{balanced} ")).count();
        assert_eq!(opened, page.matches(&format!("</{balanced}>")).count(), "<{balanced}>");
    }
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
}

#[test]
fn a_comparison_becomes_one_sound_page() {
    let results = six_policies();
    look_at("six-policies.html", &results);
    let page = html(&results, &meta());
    assert_sound(&page);
    for policy in POLICIES {
        assert!(page.contains(&format!("Heat map of accesses and placement: {policy}\"")));
    }
    for text in [
        "Redis under six policies",
        "terrace compare redis-zipf.toml",
        "6.12.48+deb13-amd64",
        "384 MiB of 768 MiB",
        "The hit ratio was highest under lru (78.4 %) and lists (78.3 %), against 39.3 % under",
        "lfu 80 %, lru 13 %, random 7 %",
        "amp chose",
        "in emulated time",
        "The kernel was using the page",
        "The tracker lost 2 periods",
        "was checked at the end of every run and was intact",
        "window_periods = 8",
        "60 periods of 1 s",
    ] {
        assert!(page.contains(text), "'{text}' is not in the report");
    }
    // Six heat maps of two panels each.
    assert_eq!(page.matches("data:image/png;base64,").count(), 12);
}

#[test]
fn one_run_is_not_compared() {
    let mut results = six_policies();
    assert!(html(&results, &meta()).contains("Policies compared"));
    results.runs.truncate(1);
    let page = html(&results, &meta());
    assert!(page.contains(">The run<") && !page.contains("Policies compared"));
}

#[test]
fn groups_are_apart() {
    let results = two_groups();
    look_at("two-groups.html", &results);
    let page = html(&results, &meta());
    assert_sound(&page);
    for text in ["group frontend · workload scan", "group batch · workload loop"] {
        assert!(page.contains(text), "{text}");
    }
    assert_eq!(page.matches("Timelines of hit ratio").count(), 2);
    // Nothing was timed on the simulated machine, so the report has no times.
    assert!(!page.contains("emulated") && !page.contains("daemon CPU"));
}

#[test]
fn simulated_time_of_a_virtual_machine_is_reported_with_what_it_went_for() {
    let mut results = six_policies();
    for row in &mut results.runs {
        (row.emulated, row.clock) = (false, Some("memory".to_owned()));
        (row.slowdown, row.kernel_ms) = (Some(1.375), Some(61.5));
        (row.fast_stall_ms, row.slow_stall_ms) = (Some(210.0), Some(345.0));
        (row.fast_loaded_ns, row.slow_loaded_ns) = (Some(81.0), Some(312.0));
        (row.program_hit_ratio, row.kernel_hit_ratio) = (Some(0.961), Some(0.273));
    }
    let page = html(&results, &meta());
    assert_sound(&page);
    for text in
        ["Slowdown", "simulated time", "1.375", "210, 345", "81, 312", "61.5", "96.1 %, 27.3 %"]
    {
        assert!(page.contains(text), "'{text}' is not in the report");
    }
    assert!(!page.contains("emulated time"), "times of memory are not those of emulation");
    let table = text_table(&results, 130);
    for text in ["Time is simulated", "1.375", "345", "61.5", "run", "kernel", "96.1 %", "27.3 %"] {
        assert!(table.contains(text), "'{text}' is not in\n{table}");
    }
    assert!(!table.contains('~'), "{table}");
    let run = &json(&results)["runs"][0];
    assert_eq!((&run["clock"], &run["slowdown"]), (&"memory".into(), &1.375.into()));
    // What a slowdown is of, where it is not run time.
    let flat = |results: &Results, width| {
        let table = text_table(results, width);
        table.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let table = flat(&results, 130);
    assert!(table.contains("Slowdown: run time over that with all memory fast"), "{table}");
    for row in &mut results.runs {
        row.references = Some(7);
        row.slowdown_of = Some("the same instructions".to_owned());
    }
    let table = flat(&results, 130);
    assert!(table.contains("Slowdown: time for the same instructions over that with"), "{table}");
    let page = html(&results, &meta());
    assert!(page.contains("time for the same instructions over that with all memory fast"));
    results.runs[0].slowdown_of = None;
    let table = flat(&results, 200);
    assert!(table.contains("time for all of a run, or for the same instructions over"), "{table}");
    let run = &json(&results)["runs"][0];
    assert_eq!(run["stalls"]["slow_ms"], 345.0);
    assert_eq!(
        (&run["misses_fast"]["program"], &run["misses_fast"]["kernel"]),
        (&0.961.into(), &0.273.into())
    );
}

#[test]
fn a_run_time_of_sampling_windows_is_shown_with_its_error() {
    let mut results = six_policies();
    assert!(!text_table(&results, 130).contains("95 %"));
    for row in &mut results.runs {
        (row.emulated, row.clock) = (false, Some("memory".to_owned()));
        (row.duration_ms, row.duration_error_ms) = (Some(2500.0), Some(43.5));
        row.sampled_ratio = Some(0.125);
    }
    let table = text_table(&results, 130);
    for text in ["43.5", "half the 95 % interval"] {
        assert!(table.contains(text), "'{text}' is not in\n{table}");
    }
    let page = html(&results, &meta());
    assert_sound(&page);
    assert!(page.contains(" ± 43.5"), "{page}");
    let run = &json(&results)["runs"][0];
    assert_eq!((&run["duration_error_ms"], &run["sampled_ratio"]), (&43.5.into(), &0.125.into()));
}

#[test]
fn shares_of_fast_memory_are_swept() {
    let mut results = Results::default();
    for (i, ratio) in [0.25, 0.5, 0.75].into_iter().enumerate() {
        for policy in ["first-touch", "lru"] {
            let run = format!("{policy}-{ratio}");
            common::simulate(&mut results, (&run, policy, "g"), common::Workload::Zipf, 20);
            let row = results.runs.last_mut().unwrap();
            row.fast_ratio = ratio;
            row.hit_ratio = (row.hit_ratio * (0.6 + 0.4 * i as f64)).min(1.0);
        }
    }
    look_at("sweep.html", &results);
    let page = html(&results, &meta());
    assert_sound(&page);
    assert!(page.contains("Hit ratio by fast memory"));
    assert!(page.contains("fast memory 25 %"));
    assert!(!html(&six_policies(), &meta()).contains("Hit ratio by fast memory"));
}

#[test]
fn the_same_results_give_the_same_bytes() {
    let results = six_policies();
    let directory = tempfile::tempdir().unwrap();
    common::write(&results, directory.path());
    let read = Results::read(directory.path()).unwrap();
    assert_eq!(read, results);
    assert_eq!(html(&read, &meta()), html(&results, &meta()));
    assert_eq!(text_table(&read, 110), text_table(&results, 110));
    assert_eq!(json(&read), json(&results));
}

#[test]
fn the_text_table_says_what_happened() {
    let table = text_table(&six_policies(), 110);
    assert!(table.lines().all(|line| line.chars().count() <= 110), "{table}");
    let row = |name: &str| {
        let line = table.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        row("lru "),
        "lru - 78.4 % 1,543 1,543 46 busy, 4 absent 86.8 % ~39.4 ~202 ~24,538 ok"
    );
    assert_eq!(row("first-touch "), "first-touch - 39.3 % 0 0 0 100 % ~24 ~31 ~21,540 ok");
    assert!(row("amp ").starts_with("amp lfu 80 % 67.6 %"));
    for text in ["experiment redis-zipf", "seed 42", "pages of 2 MiB", "~ Emulated time", "lost 2"]
    {
        assert!(table.contains(text), "{text}\n{table}");
    }
    assert!(!table.contains('\u{1b}'), "no colours");

    let table = text_table(&two_groups(), 110);
    for row in ["frontend  first-touch", "frontend  amp", "batch     first-touch", "batch     amp"]
    {
        assert!(table.lines().any(|line| line.starts_with(row)), "{row}\n{table}");
    }
    assert!(!table.contains("ops/s") && !table.contains('~'), "{table}");
}

#[test]
fn the_text_table_fits_with_every_column_and_reason() {
    let mut results = six_policies();
    for run in &mut results.runs {
        (run.promoted_pages, run.demoted_pages) = (1_234_567, 1_234_567);
        (run.failed_no_room, run.failed_out_of_time) = (12_345, 67_890);
        run.notes = Some("a note that is long enough to be broken into lines ".repeat(3));
    }
    results.runs[1].group = "another".to_owned();
    for width in [110, 120] {
        let table = text_table(&results, width);
        println!("{table}");
        assert!(table.lines().all(|line| line.chars().count() <= width), "{table}");
        assert_eq!(table.matches("1,234,567").count(), 12, "no number is broken:\n{table}");
        assert_eq!(table.matches("67,890 out of time").count(), 6, "{table}");
    }
}

#[test]
fn damage_to_data_is_not_overlooked() {
    let mut results = six_policies();
    results.runs[3].checksum_ok = Some(false);
    assert!(text_table(&results, 110).contains("DAMAGED"));
    assert!(html(&results, &meta()).contains("data was damaged in random"));
    assert_eq!(json(&results)["runs"][3]["checksum_ok"], false);
}

#[test]
fn json_has_the_documented_keys_and_nothing_else() {
    let value = json(&two_groups());
    assert_eq!(value["format"], "terrace.runs/1");
    let run = &value["runs"][3];
    let keys: Vec<&str> = run.as_object().unwrap().keys().map(String::as_str).collect();
    let documented: BTreeSet<&str> = include_str!("../src/json.rs")
        .lines()
        .filter(|line| line.starts_with("//! | `"))
        .flat_map(|line| line.split('|').nth(1).unwrap_or("").split(','))
        .map(|key| key.trim().trim_matches('`'))
        .filter(|key| !["format", "runs"].contains(key))
        .collect();
    assert_eq!(keys.iter().copied().collect::<BTreeSet<_>>(), documented);
    assert_eq!(run["policy"], "amp");
    assert_eq!(run["parameters"]["window_periods"], 8);
    assert_eq!(run["applied"]["policy"], "random");
    assert_eq!(run["failed_pages"]["total"], 12);
    assert_eq!(run["failed_pages"]["busy"], 11);
    assert_eq!(run["failed_pages"].as_object().unwrap().len(), 10);
    assert!(run["operations_per_s"].is_null() && run["checksum_ok"].is_null());
}

#[test]
fn hostile_names_stay_names() {
    let hostile = "</text></svg><script>alert(1)</script><img src=x onerror=alert(1)>\"' \u{1b}[31m{{ 7*7 }}\u{202e}";
    let mut results = two_groups();
    for run in &mut results.runs {
        for name in [&mut run.group, &mut run.experiment, &mut run.machine, &mut run.workload] {
            name.push_str(hostile);
        }
        for name in [&mut run.run, &mut run.applied_main, &mut run.policy, &mut run.parameters] {
            name.push_str(hostile);
        }
        run.kernel = Some(hostile.to_owned());
        run.notes = Some(hostile.to_owned());
    }
    for period in &mut results.periods {
        for name in [&mut period.group, &mut period.run, &mut period.applied, &mut period.policy] {
            name.push_str(hostile);
        }
    }
    for bin in &mut results.heat {
        bin.group.push_str(hostile);
        bin.run.push_str(hostile);
    }
    let hostile_meta = ReportMeta {
        title: hostile.to_owned(),
        command: hostile.to_owned(),
        generated_by_version: hostile.to_owned(),
    };
    let page = html(&results, &hostile_meta);
    assert_sound(&page);
    assert!(page.contains("&lt;script&gt;alert(1)"), "the names are to be seen");
    assert!(page.contains("{{ 7*7 }}"), "a name is no template");
    assert!(!page.contains('\u{1b}') && !page.contains('\u{202e}'));
    let table = text_table(&results, 110);
    assert!(!table.contains('\u{1b}') && !table.contains('\u{202e}'));
    let value = json(&results);
    assert_eq!(value["runs"][0]["workload"], format!("scan{hostile}"));
}

#[test]
fn a_share_of_a_processor_is_of_the_periods_that_were_measured() {
    let mut results = six_policies();
    for run in &mut results.runs {
        (run.periods, run.period_ms, run.period_us) = (60, 100, None);
        (run.daemon_cpu_ms, run.tracker_cpu_ms) = (Some(1200.0), Some(900.0));
        // The last two periods alone were timed.
        run.duration_ms = Some(200.0);
    }
    let page = html(&results, &meta());
    assert!(page.contains("Tracking, deciding and moving took 20.0 % of one CPU."));
    assert!(page.contains("15.0 % of a CPU"));
    // Of sixty, those after a warm-up.
    for run in &mut results.runs {
        run.measured_periods = Some(20);
    }
    let page = html(&results, &meta());
    assert!(page.contains("took 60.0 % of one CPU."));
    for run in &mut results.runs {
        (run.periods, run.measured_periods) = (1, None);
    }
    let page = html(&results, &meta());
    assert!(page.contains("took 600.0 % of one CPU."), "six processors are not one");
}

#[test]
fn what_nobody_knows_of_linux_takes_no_room() {
    // The title of a chart is a line of its picture.
    let has = |page: &str, chart: &str| page.lines().any(|line| line.trim().starts_with(chart));
    let charts = ["Fast-memory hit ratio", "Stability", "Pages moved per period"];
    let mut results = six_policies();
    let page = html(&results, &meta());
    assert_eq!(charts.map(|chart| has(&page, chart)), [true, true, true]);
    for run in &mut results.runs {
        (run.hit_ratio, run.stability) = (f64::NAN, f64::NAN);
    }
    for period in &mut results.periods {
        (period.hit_ratio, period.stability) = (f64::NAN, f64::NAN);
    }
    let page = html(&results, &meta());
    assert_sound(&page);
    assert_eq!(charts.map(|chart| has(&page, chart)), [false, false, true]);
}

#[test]
fn numbers_that_are_none_are_shown_as_missing() {
    let mut results = six_policies();
    for run in &mut results.runs {
        (run.hit_ratio, run.stability, run.accessed_ratio) = (f64::NAN, f64::NAN, f64::NAN);
        (run.fast_ratio, run.applied_main_share) = (f64::NAN, f64::NAN);
        run.tracker_cpu_ms = Some(f64::INFINITY);
        run.operations_per_s = Some(f64::NAN);
        run.duration_ms = Some(0.0);
    }
    for period in results.periods.iter_mut().filter(|p| p.period % 7 < 2) {
        (period.hit_ratio, period.stability) = (f64::NAN, f64::NAN);
    }
    results.heat.iter_mut().step_by(3).for_each(|bin| bin.accessed_share = f64::NAN);
    let directory = tempfile::tempdir().unwrap();
    common::write(&results, directory.path());
    let results = Results::read(directory.path()).unwrap();
    assert_sound(&html(&results, &meta()));
    let table = text_table(&results, 110);
    assert!(!table.contains("NaN") && !table.contains("inf"), "{table}");
    assert!(json(&results)["runs"][0]["hit_ratio"].is_null());
}

#[test]
fn runs_without_periods_and_heat_still_make_a_report() {
    let results = Results { periods: Vec::new(), heat: Vec::new(), ..six_policies() };
    let page = html(&results, &meta());
    assert_sound(&page);
    assert!(page.contains("No periods were recorded") && page.contains("No page heat"));
    let nothing = Results::default();
    assert_sound(&html(&nothing, &meta()));
    text_table(&nothing, 0);

    let mut results = six_policies();
    results.runs.pop();
    let page = html(&results, &meta());
    assert!(page.contains("60 rows of periods belong to runs that are not in the table"));
}

#[test]
fn much_is_drawn_coarser_and_not_larger() {
    let mut results = Results::default();
    for group in 0..30 {
        for policy in ["first-touch", "amp"] {
            let names = (format!("{policy}-{group}"), format!("group {group}"));
            common::simulate(
                &mut results,
                (&names.0, policy, &names.1),
                common::Workload::Scan,
                40,
            );
        }
    }
    // As long as thousands of periods, without the time to simulate them.
    let short = std::mem::take(&mut results.periods);
    for repeat in 0..50 {
        results.periods.extend(short.iter().cloned().map(|mut p| {
            p.period += repeat * 40;
            p
        }));
    }
    let page = html(&results, &meta());
    assert_sound(&page);
    assert!(page.contains("6 more timelines are not drawn here"));
    assert!(page.contains("12 more heat maps are not drawn here"));
    assert!(page.contains("each point is the mean of"));
    eprintln!("{} bytes", page.len());
}

#[test]
fn a_report_is_written_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let path: PathBuf = directory.path().join("report.html");
    std::fs::write(&path, "an older one").unwrap();
    let results = six_policies();
    write_html(&path, &results, &meta()).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), html(&results, &meta()));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing beside it");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_ne!(mode & 0o044, 0, "others than its owner may read it: {mode:o}");
    }

    let nowhere = directory.path().join("no/such/place.html");
    let error = write_html(&nowhere, &results, &meta()).unwrap_err().to_string();
    assert!(
        error.contains("place.html") && error.contains("expected") || error.contains("give a path"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1);
    // Where a folder is in its place, it fails and leaves nothing.
    std::fs::create_dir(directory.path().join("folder")).unwrap();
    write_html(&directory.path().join("folder"), &results, &meta()).unwrap_err();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
}

#[test]
fn threads_of_the_kernel_are_shown_by_run_the_busiest_first() {
    let mut results = six_policies();
    assert!(!html(&results, &meta()).contains("Threads of the kernel"));
    let mut times =
        vec![("lru", "kdamond.0", 12.5), ("amp", "kdamond.0", 3.0), ("amp", "<b>", 50.0)];
    let names: Vec<_> = (0..12).map(|n| format!("kworker{n}")).collect();
    times.extend(names.iter().map(|name| ("lfu", name.as_str(), 0.5)));
    times.push(("lru", "rcu_preempt", 0.004));
    results.kernel_threads = common::kernel_threads(&times);
    let directory = tempfile::tempdir().unwrap();
    common::write(&results, directory.path());
    let page = html(&Results::read(directory.path()).unwrap(), &meta());
    assert_sound(&page);
    let section = page.split("id=\"threads\"").nth(1).unwrap();
    let section = section.split("</section>").next().unwrap();
    let at = |text: &str| section.find(text).unwrap_or_else(|| panic!("{text}: {section}"));
    assert!(at("&lt;b&gt;") < at("kdamond.0") && at("kdamond.0") < at("kworker0"), "{section}");
    assert!(!section.contains("rcu_preempt"), "{section}");
    // Two of twelve alike are beyond what is shown by name.
    assert!(at("2 others") > at("12.5") && section.contains(">1<"), "{section}");
}

#[test]
fn causes_of_the_kernels_time_are_shown_by_run() {
    let mut results = six_policies();
    assert!(!html(&results, &meta()).contains("Causes of the kernel"));
    let times = [("lru", "page faults", 2.5), ("amp", "page migration", 7.25)];
    results.kernel_causes = common::kernel_causes(&times);
    let directory = tempfile::tempdir().unwrap();
    common::write(&results, directory.path());
    let page = html(&Results::read(directory.path()).unwrap(), &meta());
    assert_sound(&page);
    let section = page.split("id=\"causes\"").nth(1).unwrap();
    let section = section.split("</section>").next().unwrap();
    let at = |text: &str| section.find(text).unwrap_or_else(|| panic!("{text}: {section}"));
    assert!(at("page migration") < at("7.25") && at("7.25") < at("page faults"), "{section}");
}
