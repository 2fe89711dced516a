//! Fleets whose needs are known beforehand, read from histories as terraced saves them.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use terrace_core::bits::PageBits;
use terrace_core::page::{Extent, Layout, PageSize, SpaceId};
use terrace_core::scan::{Budget, Scan};
use terrace_daemon::history::{History, Identity};
use terrace_fleet::answer::ALL_CLASSES;
use terrace_fleet::synthetic::{Drawn, SLOW_LATENCY_NS, Shape, growth, write_history};
use terrace_fleet::words::remarks;
use terrace_fleet::{Answer, Fleet, answer};
use terrace_results::{FleetClassRow, FleetServiceRow};

const OTHER_LATENCY_NS: f64 = 250.0;
const SHAPE: Shape = Shape { hosts: 240, services: 12, seed: 11 };
/// Points of memory that an answer may be off.
const NEAR: f64 = 0.02;

fn ask(folder: &Path, jobs: usize) -> Answer {
    let fleet = Fleet::read(&folder.join("fleet.toml")).unwrap();
    answer(&fleet, jobs, &mut |_, _| {}).unwrap()
}

fn made(shape: Shape) -> (tempfile::TempDir, Answer) {
    let place = tempfile::tempdir().unwrap();
    shape.write(place.path(), &[OTHER_LATENCY_NS]).unwrap();
    let found = ask(place.path(), 2);
    (place, found)
}

/// The answer for [`SHAPE`], made once.
static KNOWN: LazyLock<Answer> = LazyLock::new(|| made(SHAPE).1);

fn of_service<'a>(found: &'a Answer, name: &str, at: Option<f64>) -> &'a FleetServiceRow {
    let is = |s: &&FleetServiceRow| {
        s.service == name && s.class == ALL_CLASSES && s.slow_latency_ns == at
    };
    found.services.iter().find(is).unwrap()
}

fn of_class<'a>(found: &'a Answer, name: &str, at: f64) -> &'a FleetClassRow {
    let is = |c: &&FleetClassRow| c.class == name && c.slow_latency_ns == at;
    found.classes.iter().find(is).unwrap()
}

#[test]
fn known_needs_are_found_beside_either_slow_memory_with_honest_intervals() {
    let found = &*KNOWN;
    assert_eq!((found.hosts_found, found.hosts_left_out), (240, 0));
    let (mut near, mut contained, mut all) = (0, 0, 0);
    let mut rows = Vec::new();
    for (latency_ns, at) in [(SLOW_LATENCY_NS, None), (OTHER_LATENCY_NS, Some(OTHER_LATENCY_NS))] {
        let truth = SHAPE.truth(latency_ns, 30_000).unwrap();
        for (service, known) in SHAPE.services().iter().zip(&truth.services) {
            let row = of_service(found, &service.name, at);
            all += 1;
            near += usize::from((row.fast_share - known).abs() <= NEAR);
            let (low, high) = (row.low.unwrap(), row.high.unwrap());
            contained += usize::from(low <= *known && *known <= high);
            rows.push((row.service.clone(), latency_ns, *known, row.fast_share, low, high));
        }
        for (class, known) in ["small", "medium", "large"].iter().zip(&truth.classes) {
            let row = of_class(found, class, latency_ns);
            assert!((row.fast_share - known).abs() <= 0.05, "{class} {known} {row:?}");
            let (low, high) = (row.low.unwrap(), row.high.unwrap());
            assert!(low <= *known && *known <= high, "{class} {known} {row:?}");
            assert!((row.overrun_share - 0.05).abs() <= 0.02, "{row:?}");
        }
    }
    assert_eq!(near, all, "within 2 points: {rows:#?}");
    // 24 intervals of 95 %: fewer than 20 would be seen once in 400 tries.
    assert!(contained >= 20, "{contained} of {all}: {rows:#?}");
}

#[test]
fn services_that_burst_together_are_kept_apart_and_others_are_not() {
    let found = &*KNOWN;
    let apart: Vec<(String, String)> = found
        .pairs
        .iter()
        .filter(|p| p.apart)
        .map(|p| (p.first.clone(), p.second.clone()))
        .collect();
    let mut expected = SHAPE.pairs_that_burst_together();
    expected.sort();
    let mut named = apart.clone();
    named.sort();
    assert_eq!(named, expected, "{:#?}", found.pairs);
    assert_eq!(found.pairs_judged + found.pairs_unseen, 12 * 11 / 2);
}

#[test]
fn every_column_of_another_latency_is_computed_for_it() {
    let shape = Shape { hosts: 240, services: 8, seed: 5 };
    let (place, found) = made(shape);
    // The same fleet whose own latency is the other one.
    let text = shape.file(&[]).replace("slow_latency_ns = 180", "slow_latency_ns = 250");
    std::fs::write(place.path().join("fleet.toml"), text).unwrap();
    let there = ask(place.path(), 2);
    for class in ["small", "medium", "large"] {
        let (own, row, alone) = (
            of_class(&found, class, SLOW_LATENCY_NS),
            of_class(&found, class, OTHER_LATENCY_NS),
            of_class(&there, class, OTHER_LATENCY_NS),
        );
        // As if it were asked for alone, but for what is bought.
        let expected = FleetClassRow {
            own_latency: false,
            overrun_as_bought_share: row.overrun_as_bought_share,
            ..alone.clone()
        };
        assert_eq!(*row, expected);
        assert!(row.overrun_as_bought_share > own.overrun_share + 0.1, "{row:?}");
        // And nothing is the own latency's. (The safe share can be: the planner's error near all fast
        // does not depend on latency.)
        let numbers = |r: &FleetClassRow| {
            let some = [r.low, r.high, r.cost, r.saved, r.saved_low, r.saved_high, r.saved_by_all];
            let mut all: Vec<f64> = some.into_iter().map(Option::unwrap).collect();
            all.extend([
                r.fast_share,
                r.fast_bytes as f64,
                r.waits_less_fast_share,
                r.waits_more_fast_share,
            ]);
            all
        };
        for (column, (a, b)) in numbers(own).iter().zip(numbers(row)).enumerate() {
            assert!((a - b).abs() > 1e-4, "{class}: number {column} is {a} at both latencies");
        }
    }
    for service in shape.services() {
        let own = of_service(&found, &service.name, None);
        let row = of_service(&found, &service.name, Some(OTHER_LATENCY_NS));
        let alone = of_service(&there, &service.name, None);
        assert_eq!(row.fast_share, alone.fast_share);
        assert_eq!(row.saved, alone.saved);
        assert_eq!(row.safe_fast_share, alone.safe_fast_share);
        assert_eq!(row.waits_more_fast_share, alone.waits_more_fast_share);
        assert_eq!(row.overrun_share, alone.overrun_share);
        assert!(row.fast_share > own.fast_share + 0.01, "{row:?}");
        assert!(row.low.unwrap() > own.low.unwrap() && row.high.unwrap() > own.high.unwrap());
        assert!(row.waits_less_fast_share > own.waits_less_fast_share);
        assert!(row.saved.unwrap() < own.saved.unwrap());
        assert!(row.overrun_as_bought_share > own.overrun_share);
    }
}

#[test]
fn the_same_fleet_has_the_same_answer_on_any_number_of_threads() {
    let shape = Shape { hosts: 30, services: 6, seed: 2 };
    let (place, found) = made(shape);
    for jobs in [1, 3, 8] {
        assert_eq!(ask(place.path(), jobs), found, "{jobs}");
    }
    let write = |folder: &str| {
        let folder = place.path().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        terrace_fleet::files::write_tables(&ask(place.path(), 2), &folder).unwrap();
        ["classes", "services", "hosts", "pairs", "left_out"]
            .map(|table| std::fs::read(folder.join(format!("fleet_{table}.parquet"))).unwrap())
    };
    assert_eq!(write("a"), write("b"));
    // Another seed draws otherwise: intervals move, and nothing else.
    let path = place.path().join("fleet.toml");
    let text = std::fs::read_to_string(&path).unwrap().replace("seed = 2\n", "seed = 3\n");
    std::fs::write(&path, text).unwrap();
    let other = ask(place.path(), 2);
    assert_ne!(other.services, found.services);
    assert_eq!((&other.classes, &other.hosts), (&found.classes, &found.hosts));
}

fn files_of(folder: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path())
}

#[test]
fn damaged_histories_are_named_and_left_out() {
    let shape = Shape { hosts: 12, services: 8, seed: 4 };
    let (place, whole) = made(shape);
    let host = |number: usize| place.path().join(Shape::host_name(number));
    let first = |number: usize| {
        let mut files: Vec<PathBuf> = files_of(&host(number)).collect();
        files.sort();
        files.remove(0)
    };
    // A flipped byte, a file that was cut, no recording at all, nothing.
    let flipped = first(0);
    let mut bytes = std::fs::read(&flipped).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    std::fs::write(&flipped, bytes).unwrap();
    let cut = first(1);
    let bytes = std::fs::read(&cut).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() - 40]).unwrap();
    std::fs::write(host(2).join("other.trec"), "no recording").unwrap();
    std::fs::remove_dir_all(host(3)).unwrap();
    std::fs::create_dir(host(3)).unwrap();
    std::fs::copy(first(4), host(4).join("twice.trec")).unwrap();
    let found = ask(place.path(), 2);
    assert_eq!((found.hosts_found, found.hosts_left_out), (12, 5));
    let reason = |path: &Path| {
        let path = path.display().to_string();
        let left = found.left_out.iter().find(|l| l.path == path);
        left.unwrap_or_else(|| panic!("{path}: {:#?}", found.left_out)).reason.clone()
    };
    assert!(!reason(&flipped).contains('\n'));
    assert!(reason(&cut).starts_with("cut off"), "{}", reason(&cut));
    assert!(!reason(&host(2).join("other.trec")).is_empty());
    assert!(reason(&host(3)).starts_with("no history"));
    assert!(reason(&host(4).join("twice.trec")).contains("in another history"));
    // Hosts of which something is missing have no part in their classes; the rest is as it was.
    let hosts: u64 = found.classes.iter().filter(|c| c.own_latency).map(|c| c.hosts).sum();
    assert_eq!(hosts, 7);
    let row = |of: &Answer, name: &str| {
        of.hosts.iter().find(|h| h.host == name && h.own_latency).unwrap().fast_bytes
    };
    let untouched = Shape::host_name(7);
    assert_eq!(row(&found, &untouched), row(&whole, &untouched));
    // Nothing left is an error of one line.
    for number in 0..12 {
        let _ = std::fs::remove_dir_all(host(number));
        std::fs::create_dir(host(number)).unwrap();
    }
    let fleet = Fleet::read(&place.path().join("fleet.toml")).unwrap();
    let error = answer(&fleet, 2, &mut |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("of 12 hosts none") && !error.contains('\n'), "{error}");
}

#[test]
fn a_history_of_another_service_moves_the_answer() {
    let shape = Shape { hosts: 30, services: 12, seed: 9 };
    let (place, before) = made(shape);
    let services = shape.services();
    // Of the same slowdown and far apart; the first host that has both swaps their histories.
    let (least, most) = (8, 9);
    let drawn: Vec<Vec<Drawn>> = (0..30).map(|host| shape.draw(&services, host)).collect();
    let find = |host: usize, service: usize| drawn[host].iter().find(|d| d.service == service);
    let both = |host: &usize| find(*host, least).is_some() && find(*host, most).is_some();
    let swapped = (0..30).find(both).unwrap();
    let (a, b) = (find(swapped, least).unwrap(), find(swapped, most).unwrap());
    let folder = place.path().join(Shape::host_name(swapped));
    let put = |number: usize, history: &Drawn| {
        let name = &services[number].name;
        let path = folder.join(format!("{name}.trec"));
        write_history(&path, name, &Shape::host_name(swapped), history).unwrap();
    };
    put(least, b);
    put(most, a);
    let after = ask(place.path(), 2);
    let share =
        |of: &Answer, number: usize| of_service(of, &services[number].name, None).fast_share;
    // What the arithmetic of the shapes says of one history in place of another.
    let growth = growth(SLOW_LATENCY_NS).unwrap();
    let expected = |service: usize, other: &Drawn| {
        let of = |replaced: bool| {
            let (mut need, mut has) = (0.0, 0.0);
            for host in 0..30 {
                let own = find(host, service);
                let one = if replaced && host == swapped { Some(other) } else { own };
                need += one.map_or(0.0, |d| d.need_pages(growth));
                has += one.map_or(0.0, |d| d.pages as f64);
            }
            need / has
        };
        of(true) - of(false)
    };
    for (service, other) in [(least, b), (most, a)] {
        let moved = share(&after, service) - share(&before, service);
        let known = expected(service, other);
        assert!(known.abs() > 0.005, "{known}");
        assert!((moved - known).abs() < 0.2 * known.abs(), "{moved} and {known}");
    }
    for other in (0..12).filter(|n| ![least, most].contains(n)) {
        assert_eq!(share(&after, other), share(&before, other));
    }
}

/// Saves the history of a group of 100 pages as terraced does. The last of them are accessed in every
/// period, and no others.
fn save(folder: &Path, cgroup: &str, boot: &str, hot: usize) {
    save_of(100, folder, cgroup, boot, hot);
}

/// The same of a group with so many pages.
fn save_of(pages: usize, folder: &Path, cgroup: &str, boot: &str, hot: usize) {
    let extent = Extent { space: SpaceId(7), start: 0, pages: pages as u64 };
    let extents = Some(extent).filter(|extent| extent.pages > 0);
    let layout = Arc::new(Layout::new(PageSize::Huge, extents.into_iter().collect()).unwrap());
    let mut history = History::default();
    for period in 0..100 {
        let accessed = (0..pages).map(|page| page >= pages - hot).collect::<PageBits>();
        let scan = Scan::new(period, Arc::clone(&layout), accessed, PageBits::ones(pages));
        history.push(&scan, Budget::fast(100));
    }
    let who = Identity {
        cgroup: cgroup.to_owned(),
        boot: boot.to_owned(),
        processes: vec![(7, 7)],
        period_ms: 1000,
    };
    history.save(folder, &who).unwrap();
}

#[test]
fn groups_of_an_earlier_boot_have_no_part_in_what_a_host_needs() {
    let shape = Shape { hosts: 12, services: 6, seed: 4 };
    let (place, before) = made(shape);
    let host = Shape::host_name(0);
    let folder = place.path().join(&host);
    let current: BTreeSet<PathBuf> = files_of(&folder).collect();
    save(&folder, "/kubepods/pod-that-ended", "earlier", 40);
    let ended = files_of(&folder).find(|path| !current.contains(path)).unwrap();
    let at =
        |time: SystemTime| File::options().append(true).open(&ended).unwrap().set_modified(time);
    let saved = current.iter().map(|path| path.metadata().unwrap().modified().unwrap()).max();
    at(saved.unwrap() - Duration::from_secs(3600)).unwrap();
    let found = ask(place.path(), 2);
    assert_eq!((&found.classes, &found.services), (&before.classes, &before.services));
    assert_eq!((&found.hosts, found.hosts_left_out), (&before.hosts, 0));
    let [left] = &found.left_out[..] else { panic!("{:?}", found.left_out) };
    assert_eq!((left.path.as_str(), &left.host), (ended.to_str().unwrap(), &host));
    assert!(left.reason.contains("of an earlier boot"), "{left:?}");
    let words = remarks(&found).join("\n");
    assert!(words.contains("Of an earlier boot: 1 history, of 1 of 12 hosts"), "{words}");
    // A copy that has not kept the times does not show which boot is the last.
    at(saved.unwrap()).unwrap();
    let found = ask(place.path(), 2);
    assert_eq!((found.hosts_left_out, found.left_out.len()), (1, current.len() + 1));
    assert!(found.left_out.iter().all(|l| l.reason.contains("one of 2 boots")));
}

#[test]
fn a_host_that_is_there_twice_counts_once() {
    let (place, before) = made(Shape { hosts: 12, services: 6, seed: 4 });
    let host = Shape::host_name(3);
    let copy = format!("{host}-before-it-was-renamed");
    std::fs::create_dir(place.path().join(&copy)).unwrap();
    for file in files_of(&place.path().join(&host)) {
        std::fs::copy(&file, place.path().join(&copy).join(file.file_name().unwrap())).unwrap();
    }
    let found = ask(place.path(), 2);
    assert_eq!((found.hosts_found, found.hosts_left_out), (13, 1));
    assert_eq!((&found.services, &found.classes), (&before.services, &before.classes));
    assert_eq!(found.hosts, before.hosts);
    let [left] = &found.left_out[..] else { panic!("{:?}", found.left_out) };
    assert_eq!((&left.host, &left.path), (&copy, &copy));
    assert!(
        left.reason.contains(&format!("has histories of {host}, of the same boot")),
        "{left:?}"
    );
}

#[test]
fn a_service_waits_for_its_share_of_the_time_on_the_fast_memory_of_its_class() {
    let place = tempfile::tempdir().unwrap();
    save(&place.path().join("h1"), "/system.slice/busy.service", "b", 100);
    let text = "slowdown = \"20%\"\n[[classes]]\nname = \"web\"\nhosts = \"h*\"\nmemory = \"1G\"\n\
                fast_latency_ns = 120\nslow_latency_ns = 250\n";
    let fleet = Fleet::parse(text, place.path().to_owned()).unwrap();
    let found = answer(&fleet, 1, &mut |_, _| {}).unwrap();
    // All pages are accessed alike, so that the slowdown grows with the part that is slow, up to
    // that of all of it.
    let all_slow = 0.4 * (250.0 / 120.0 - 1.0);
    let expected = 1.0 - 0.2 / all_slow;
    let row = of_service(&found, "/system.slice/busy.service", None);
    assert!((row.fast_share - expected).abs() <= 0.02, "{expected}: {row:?}");
}

#[test]
fn what_terraced_saves_is_read() {
    let place = tempfile::tempdir().unwrap();
    save(&place.path().join("h1"), "/system.slice/redis.service", "b", 40);
    let text = "slowdown = \"0%\"\n[[classes]]\nname = \"web\"\nhosts = \"h*\"\nmemory = \"1G\"\n";
    let fleet = Fleet::parse(text, place.path().to_owned()).unwrap();
    let found = answer(&fleet, 1, &mut |_, _| {}).unwrap();
    assert_eq!(found.left_out, []);
    let row = of_service(&found, "/system.slice/redis.service", None);
    assert!((row.fast_share - 0.4).abs() <= 0.015, "{row:?}");
    assert_eq!((row.low, row.interval.as_str()), (None, "too few hosts (of 10)"));
    assert_eq!(found.classes[0].interval, "too few hosts");
    assert_eq!(found.classes[0].saved, None);
}

#[test]
fn a_group_without_pages_needs_nothing_and_its_host_counts() {
    let place = tempfile::tempdir().unwrap();
    save(&place.path().join("h1"), "/system.slice/redis.service", "b", 40);
    save_of(0, &place.path().join("h1"), "/system.slice/idle.service", "b", 0);
    let text = "slowdown = \"0%\"\n[[classes]]\nname = \"web\"\nhosts = \"h*\"\nmemory = \"1G\"\n";
    let fleet = Fleet::parse(text, place.path().to_owned()).unwrap();
    let found = answer(&fleet, 1, &mut |_, _| {}).unwrap();
    assert_eq!(found.left_out, []);
    assert_eq!((found.classes[0].hosts, found.hosts_left_out), (1, 0));
    // 40 pages of 1 GB.
    assert!((found.classes[0].fast_share - 0.078).abs() <= 0.001, "{:?}", found.classes[0]);
    // Of nothing there is no share.
    let idle = |row: &&FleetServiceRow| row.service == "/system.slice/idle.service";
    assert_eq!(found.services.iter().find(idle), None);
}
