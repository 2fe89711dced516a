//! The service on a made-up machine: groups that come, go, fail, are reloaded and restarted. Time
//! is real and short; tests wait for conditions and never sleep.

mod machine;

use machine::*;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use terrace_core::bits::PageBits;
use terrace_core::page::{Extent, Layout, PageSize, SpaceId};
use terrace_core::scan::{Budget, Scan};
use terrace_daemon::control::Request;
use terrace_daemon::history::{History, Identity};
use terrace_daemon::notify::Notifier;
use terrace_daemon::status::{GroupStatus, Status};

const LOW: fn(u64, u64) -> bool = |_, page| page < 8;
const HIGH: fn(u64, u64) -> bool = |_, page| page >= 24;

const TWO: &str = "[[groups]]\nname = \"a\"\ncgroup = \"/a\"\npolicy = \"lru\"\nfast_ratio = 0.25\n\
                   [[groups]]\nname = \"b\"\ncgroup = \"/b\"\npolicy = \"lfu\"\nfast_ratio = 0.5\n";

#[test]
fn each_group_gets_its_hot_pages_into_its_own_share() {
    let run = Run::start(TWO, 32);
    run.program("/a", 32, HIGH);
    run.program("/b", 32, LOW);
    run.program("/c", 32, LOW);
    let settled =
        |s: &Status, name| group(s, name).is_some_and(|g| g.scans > 3 && g.hit_ratio == 1.0);
    let status = run.until("settled", |s| settled(s, "a") && settled(s, "b"));
    assert_eq!(status.groups.len(), 2);
    let (a, b) = (group(&status, "a").unwrap(), group(&status, "b").unwrap());
    assert_eq!((a.policy.as_str(), b.policy.as_str()), ("lru", "lfu"));
    assert_eq!((a.fast_bytes / HUGE, a.granted_bytes / HUGE, b.granted_bytes / HUGE), (8, 8, 16));
    assert_eq!((a.fast.hot_bytes / HUGE, a.slow.hot_bytes), (8, 0));
    assert_eq!((a.freed_fast_bytes / HUGE, &a.why_not_better), (24, &None));
    assert!(a.slowdown.is_some_and(|e| e.value < 1.4 && e.error > 0.0), "{a:?}");
    run.world(|w| assert!((24..32).all(|p| w.programs["/a"].fast.get(p))));
}

#[test]
fn a_group_with_more_hot_memory_than_it_may_have_says_how_much_more_would_hold_it() {
    let run = Run::start(TWO, 32);
    run.program("/a", 32, |_, page| page >= 16);
    let says =
        |g: &GroupStatus| g.why_not_better.as_deref().is_some_and(|why| why.contains("would hold"));
    let status = run.until("a message", |s| group(s, "a").is_some_and(says));
    let why = group(&status, "a").unwrap().why_not_better.as_deref().unwrap();
    assert_eq!(
        why,
        "32 MiB are hot and it may have 16 of fast memory: 16 MiB more would hold them"
    );
}

#[test]
fn groups_come_and_go_200_times_and_nothing_is_left() {
    let every = "[[groups]]\nname = \"all\"\ncgroup = \"/*\"\npolicy = \"lru\"\nfast_ratio = 0.5\n";
    let run = Run::start(every, 64);
    for round in 0..50 {
        for n in 0..4 {
            run.program(&format!("/g{round}-{n}"), 8, LOW);
        }
        run.until("four groups", |s| s.groups.len() == 4 && s.groups.iter().all(|g| g.scans > 0));
        run.world(|w| w.programs.clear());
        run.until("none", |s| s.groups.is_empty());
    }
    run.world(|w| {
        assert!(w.attaches >= 200, "{}", w.attaches);
        assert!(w.most_attached <= 4);
    });
    let (fake, _) = run.end();
    assert!(fake.world.lock().unwrap().slots.iter().all(|taken| !taken));
}

#[test]
fn a_reload_changes_policies_and_shares_and_forgets_nothing() {
    let run = Run::start(TWO, 32);
    run.program("/a", 32, HIGH);
    run.program("/b", 32, LOW);
    run.until("seen", |s| group(s, "a").is_some_and(|g| g.scans > 20));
    let changed = TWO.replace("lru", "lfu").replace("0.25", "0.5");
    run.reload(&changed).unwrap();
    let status = run.until("changed", |s| {
        group(s, "a").is_some_and(|g| g.policy == "lfu" && g.granted_bytes == 16 * HUGE)
    });
    let a = group(&status, "a").unwrap();
    assert!(a.scans > 20 && a.hit_ratio_all > 0.5, "{a:?}");
    assert_eq!(status.reloads, 1);

    // Another period: a new thread, the same group.
    let before = a.scans;
    let longer = format!("{changed}period_ms = 60\n");
    run.reload(&longer).unwrap();
    let status = run.until("longer periods", |s| {
        group(s, "b").is_some_and(|g| g.period_ms == 60 && g.state == "tracking")
    });
    let b = group(&status, "b").unwrap();
    assert!(b.scans > before / 2 && b.restored_scans > 0, "{b:?}");

    // What the host cannot give to its groups is in the answer, and the groups are as configured.
    run.fake.world.lock().unwrap().unprepared = Some("huge pages are off".to_owned());
    let answer = run.reload(&longer).unwrap().to_string();
    assert!(answer.contains("pages than before: huge pages are off"), "{answer}");
    assert!(!run.reload(&longer).unwrap().to_string().contains("huge pages are off"));

    // A dry run that begins by a reload does not put the host's settings back, and says so.
    let dry = longer.replace("policy = ", "dry_run = true\npolicy = ");
    let answer = run.reload(&dry).unwrap().to_string();
    assert!(answer.contains("kernel settings stay changed until the end"), "{answer}");
    run.until("dry", |s| s.groups.len() == 2 && s.groups.iter().all(|g| g.dry_run));
    assert!(!run.reload(&dry).unwrap().to_string().contains("kernel settings"));
    run.reload(&longer).unwrap();

    // A faulty configuration is refused, and all goes on.
    let error = run.reload("[[groups]]\nname = \"x\"\n").unwrap_err();
    assert!(error.contains("terraced.toml:"), "{error}");
    let status = run.until("refused", |s| s.failed_reloads == 1);
    assert!(status.groups.len() == 2 && status.reload_error.is_some(), "{status:?}");

    // An entry that is gone: its group is not managed.
    run.reload(&changed[..changed.find("[[groups]]\nname = \"b\"").unwrap()]).unwrap();
    run.until("one group", |s| s.groups.len() == 1 && s.groups[0].name == "a");
}

#[test]
fn histories_survive_a_restart_and_no_other_process_gets_them() {
    let run = Run::start(TWO, 32);
    run.program("/a", 32, HIGH);
    run.program("/b", 32, LOW);
    run.until("seen", |s| s.groups.len() == 2 && s.groups.iter().all(|g| g.scans > 10));
    let (fake, folder) = run.end();
    fake.world.lock().unwrap().programs.get_mut("/b").unwrap().pid = 7777;
    let run = Run::start_on(fake, folder, TWO);
    let status =
        run.until("again", |s| s.groups.len() == 2 && s.groups.iter().all(|g| g.scans > 0));
    assert!(group(&status, "a").unwrap().restored_scans > 10);
    assert_eq!(group(&status, "b").unwrap().restored_scans, 0);
}

/// Files of histories in the state folder of a run.
fn stored(folder: &std::path::Path) -> usize {
    std::fs::read_dir(folder.join("state")).map_or(0, |entries| entries.count())
}

#[test]
fn histories_of_groups_that_are_gone_are_removed() {
    let run = Run::start(TWO, 32);
    run.program("/a", 32, HIGH);
    run.program("/b", 32, LOW);
    run.until("seen", |s| s.groups.len() == 2 && s.groups.iter().all(|g| g.scans > 10));
    let (fake, folder) = run.end();
    assert_eq!(stored(folder.path()), 2);
    // A group ended while no daemon ran, and there is what an earlier boot left.
    fake.world.lock().unwrap().programs.remove("/b");
    let mut scans = History::default();
    let extent = Extent { space: SpaceId(1), start: HUGE, pages: 8 };
    let pages = Arc::new(Layout::new(PageSize::Huge, vec![extent]).unwrap());
    let scan = Scan::new(0, pages, PageBits::new(8), PageBits::new(8));
    scans.push(&scan, Budget::fast(4));
    let earlier = Identity {
        cgroup: "/a/earlier".into(),
        boot: "earlier".into(),
        processes: vec![(1, 1)],
        period_ms: 50,
    };
    scans.save(&folder.path().join("state"), &earlier).unwrap();
    std::fs::write(folder.path().join("state/notes.txt"), "an administrator's").unwrap();
    let run = Run::start_on(fake, folder, TWO);
    let status = run.until("again", |s| s.groups.iter().any(|g| g.scans > 0));
    assert!(group(&status, "a").unwrap().restored_scans > 10);
    assert_eq!(stored(run.folder.path()), 2, "a history and a file that is none");
    // A group that fails and then ends has none either.
    run.ask(Request::Save {}).unwrap();
    run.world(|w| w.programs.get_mut("/a").unwrap().refusal = Some("too many".into()));
    run.until("failed", |s| s.unmanaged.iter().any(|u| u.reason == "too many"));
    run.world(|w| w.programs.remove("/a"));
    let folder = run.folder.path().to_owned();
    run.until("gone", |_| stored(&folder) == 1);
}

#[test]
fn groups_whose_names_are_shown_alike_have_series_of_their_own() {
    let each = "[[groups]]\nname = \"each\"\ncgroup = \"/*\"\nfast_ratio = 0.5\n";
    let run = Run::start(each, 32);
    let long = "x".repeat(300);
    for name in ["/a\u{1}", "/a\u{2}", &format!("/{long}1"), &format!("/{long}2")] {
        run.program(name, 8, LOW);
    }
    let all = |s: &Status| s.groups.len() == 4 && s.groups.iter().all(|g| g.scans > 0);
    let text = terrace_daemon::metrics::render(&run.until("all", all));
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let series = samples.map(|line| line.rsplit_once(' ').unwrap().0);
    let mut known = std::collections::BTreeSet::new();
    series.for_each(|series| assert!(known.insert(series), "twice: {series}"));
}

#[test]
fn a_dry_run_moves_nothing_and_counts() {
    let run = Run::start(&format!("{TWO}dry_run = true\n"), 16);
    run.program("/b", 32, HIGH);
    let placed = run.world(|w| w.programs["/b"].fast.clone());
    let status = run.until("counted", |s| {
        group(s, "b").is_some_and(|g| g.scans > 10 && g.throttle.throttled_pages[0] > 0)
    });
    let b = group(&status, "b").unwrap();
    assert_eq!((b.promoted_pages, b.demoted_pages), (0, 0));
    assert!(b.dry_run && b.throttle.message.as_ref().is_some_and(|s| s.contains("dry run")));
    assert_eq!(run.world(|w| w.programs["/b"].fast.clone()), placed);
}

#[test]
fn a_reload_changes_what_is_assumed_of_programs_in_estimates_of_slowdowns() {
    let groups = format!("{TWO}dry_run = true\n");
    let run = Run::start(&groups, 16);
    run.program("/b", 32, HIGH);
    let slowdown = |s: &Status| group(s, "b").and_then(|g| g.slowdown.as_ref().map(|e| e.value));
    run.until("slowed down", |s| slowdown(s).is_some_and(|value| value > 1.1));
    let assumed = "max_groups = 4\nmemory_share = 0.0\nmemory_share_error = 0.0\n";
    let text = text(run.folder.path(), &groups).replace("max_groups = 4\n", assumed);
    std::fs::write(&run.config, text).unwrap();
    run.ask(Request::Reload {}).unwrap();
    run.until("not slowed down", |s| slowdown(s) == Some(1.0));
}

#[test]
fn lost_periods_are_counted_whether_they_are_reported_or_overtaken() {
    let run = Run::start(TWO, 64);
    run.program("/a", 32, LOW);
    run.until("seen", |s| group(s, "a").is_some_and(|g| g.scans > 3));
    run.world(|w| w.programs.get_mut("/a").unwrap().lost_periods = 3);
    let scans = |s: &Status| group(s, "a").map_or(0, |g| g.scans);
    let status = run.until("counted", |s| group(s, "a").is_some_and(|g| g.lost_periods > 0));
    let before = scans(&status);
    let status = run.until("no more", |s| scans(s) > before + 3);
    assert_eq!(group(&status, "a").unwrap().lost_periods, 3);
}

#[test]
fn a_group_that_fails_is_reported_unmanaged_and_tried_again_without_harm_to_others() {
    let run = Run::start(TWO, 64);
    run.program("/a", 32, LOW);
    run.program("/b", 32, LOW);
    run.until("both", |s| s.groups.len() == 2 && s.groups.iter().all(|g| g.scans > 3));
    run.world(|w| w.programs.get_mut("/a").unwrap().fault = Some("the kernel printed no".into()));
    let status = run.until("failed", |s| s.groups.len() == 1 && !s.unmanaged.is_empty());
    assert!(status.unmanaged[0].reason.contains("the kernel printed no"), "{:?}", status.unmanaged);
    let scans = group(&status, "b").unwrap().scans;
    run.until("the other goes on", |s| group(s, "b").is_some_and(|g| g.scans > scans + 5));
    let status = run.until("tried again", |s| group(s, "a").is_some_and(|g| g.scans > 0));
    assert!(group(&status, "a").unwrap().restored_scans > 0, "what it knew was lost");
}

#[test]
fn a_budget_of_the_daemon_bounds_the_first_period_too() {
    let run = Run::start(TWO, 32);
    let none = text(run.folder.path(), TWO).replace("bandwidth = 0\n", "bandwidth = \"1K\"\n");
    std::fs::write(&run.config, none).unwrap();
    run.ask(Request::Reload {}).unwrap();
    run.program("/a", 32, HIGH);
    run.program("/b", 32, HIGH);
    let both = |s: &Status| s.groups.len() == 2 && s.groups.iter().all(|g| g.scans > 5);
    for g in &run.until("both", both).groups {
        assert_eq!((g.promoted_pages, g.demoted_pages), (0, 0), "{}", g.name);
    }
}

#[test]
fn a_group_that_failed_takes_no_others_place() {
    const ALL: &str = "[[groups]]\nname = \"all\"\ncgroup = \"/*\"\nfast_ratio = 0.5\n";
    let run = Run::start(ALL, 64);
    // Four may be managed.
    for cgroup in ["/a", "/b", "/c", "/d"] {
        run.program(cgroup, 8, LOW);
    }
    run.until("four", |s| s.groups.len() == 4);
    run.program("/e", 8, LOW);
    let status = run.until("one too many", |s| !s.unmanaged.is_empty());
    assert_eq!(status.unmanaged[0].reason, "4 groups are managed: max_groups");
    run.world(|w| w.programs.get_mut("/a").unwrap().fault = Some("the kernel printed no".into()));
    let status = run.until("the fifth", |s| group(s, "all:/e").is_some());
    assert!(group(&status, "all:/a").is_none());
    let reason = &status.unmanaged[0].reason;
    assert!(reason.contains("the kernel printed no"), "{:?}", status.unmanaged);
}

#[test]
fn a_group_that_grows_past_what_may_be_managed_is_left() {
    let run = Run::start(TWO, 64);
    run.program("/a", 32, LOW);
    run.program("/b", 32, LOW);
    run.until("both", |s| s.groups.len() == 2 && s.groups.iter().all(|g| g.scans > 3));
    run.world(|w| w.programs.get_mut("/a").unwrap().refusal = Some("2000 processes".into()));
    let status = run.until("left", |s| s.groups.len() == 1 && !s.unmanaged.is_empty());
    assert_eq!(status.unmanaged[0].reason, "2000 processes");
    run.world(|w| w.programs.get_mut("/a").unwrap().refusal = None);
    let status = run.until("managed again", |s| group(s, "a").is_some_and(|g| g.scans > 0));
    assert!(group(&status, "a").unwrap().restored_scans > 0, "what it knew was lost");
}

#[test]
fn fast_memory_follows_benefit_and_never_passes_the_total() {
    let share = "[[groups]]\nname = \"all\"\ncgroup = \"/*\"\npolicy = \"lru\"\n\
                 share = { min = \"8M\" }\n";
    let run = Run::start(share, 32);
    // 28 pages of the first are hot, 2 of the second; the first has taken all fast memory.
    run.program("/idle", 32, |_, page| page < 2);
    run.program("/busy", 32, |_, page| page < 28);
    let of = |s: &Status, name: &str| {
        group(s, name).map(|g| (g.granted_bytes / HUGE, g.fast_bytes / HUGE))
    };
    let status = run.until("divided by benefit", |s| {
        of(s, "all:/busy") == Some((28, 28)) && of(s, "all:/idle") == Some((4, 4))
    });
    assert!(run.fake.peak.load(Ordering::Relaxed) <= 32, "{:?}", run.fake.peak);
    let sharing = status.sharing.as_ref().unwrap();
    assert_eq!(sharing.total_bytes, 32 * HUGE);
    assert!(group(&status, "all:/busy").unwrap().loss == Some(0.0));
    // The other way round, once that is their behaviour.
    run.world(|w| {
        w.programs.get_mut("/idle").unwrap().hot = |_, page| page < 28;
        w.programs.get_mut("/busy").unwrap().hot = |_, page| page < 2;
    });
    run.until("divided anew", |s| of(s, "all:/idle").is_some_and(|(_, fast)| fast == 28));
    assert!(run.fake.peak.load(Ordering::Relaxed) <= 32, "{:?}", run.fake.peak);
}

#[test]
fn moving_pauses_where_doing_nothing_is_better() {
    // A loop over twice the fast memory, a few pages a period: LRU promotes each too late.
    let one = "[[groups]]\nname = \"loop\"\ncgroup = \"/l\"\npolicy = \"lru\"\nfast_ratio = 0.5\n\
               [policies.lru]\nresident_bonus = 0\n";
    let run = Run::start(one, 16);
    run.program("/l", 32, |period, page| (period * 4) % 32 <= page && page < (period * 4) % 32 + 4);
    let status =
        run.until("paused", |s| group(s, "loop").is_some_and(|g| g.throttle.pause_left > 0));
    let g = group(&status, "loop").unwrap();
    assert!(g.throttle.thrashed_pages > 0 && (g.throttle.gain as f64) < g.throttle.cost, "{g:?}");
    let moved = g.promoted_pages;
    let status = run
        .until("still paused, later", |s| group(s, "loop").is_some_and(|n| n.scans > g.scans + 4));
    assert_eq!(group(&status, "loop").unwrap().promoted_pages, moved);
}

#[test]
fn a_bandwidth_budget_bounds_every_period() {
    let one = "[[groups]]\nname = \"b\"\ncgroup = \"/b\"\npolicy = \"lru\"\nfast_ratio = 0.5\n\
               bandwidth = \"80M\"\n";
    let run = Run::start(one, 16);
    run.program("/b", 32, |_, page| page >= 16);
    // 80 MB/s at 50 ms: 2 pages a period.
    let status = run.until("moved", |s| group(s, "b").is_some_and(|g| g.hit_ratio == 1.0));
    let b = group(&status, "b").unwrap();
    assert_eq!((b.promoted_pages, b.demoted_pages), (16, 16));
    assert!(b.throttle.bound_periods[3] >= 16, "{:?}", b.throttle);
    assert!(b.scans >= 16, "{b:?}");
}

#[test]
fn a_loop_that_hangs_falls_silent_for_the_service_manager() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let receive = || {
        let mut bytes = [0; 256];
        manager.recv(&mut bytes).map(|n| String::from_utf8_lossy(&bytes[..n]).into_owned())
    };
    let watchdog = Duration::from_millis(600);
    let address = SocketAddr::from_pathname(&path).unwrap();
    let notifier = Notifier::to(&address, Some(watchdog)).unwrap();
    let world = Arc::new(Mutex::new(World::default()));
    let fake = Fake { world, fast_pages: 32, peak: Arc::default() };
    let run = Run::start_notifying(fake, folder, TWO, notifier);
    assert_eq!(receive().unwrap(), "READY=1\n");
    for _ in 0..3 {
        assert_eq!(receive().unwrap(), "WATCHDOG=1\n");
    }
    run.world(|w| w.hangs = true);
    // What was on its way comes; then nothing, for longer than the watchdog waits.
    manager.set_read_timeout(Some(2 * watchdog)).unwrap();
    let mut late = 0;
    while receive().is_ok() {
        late += 1;
        assert!(late < 10, "it notifies on while it hangs");
    }
    run.world(|w| w.hangs = false);
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(receive().unwrap(), "WATCHDOG=1\n");
    run.end();
    let mut last = String::new();
    manager.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    while let Ok(text) = receive() {
        last = text;
    }
    assert!(["STOPPING=1\n", "WATCHDOG=1\n"].contains(&last.as_str()), "{last}");
}

#[test]
fn nodes_that_change_begin_groups_anew_and_nothing_is_forgotten() {
    let run = Run::start(TWO, 64);
    run.program("/a", 32, LOW);
    run.program("/b", 32, LOW);
    run.until("both", |s| s.groups.len() == 2 && s.groups.iter().all(|g| g.scans > 5));
    let attaches = run.world(|w| {
        w.change = Some("node 1 has gone".into());
        w.attaches
    });
    let status = run.until("anew", |s| {
        s.groups.len() == 2 && s.groups.iter().all(|g| g.restored_scans > 5 && g.error.is_none())
    });
    assert!(status.unmanaged.is_empty(), "{:?}", status.unmanaged);
    assert_eq!(run.world(|w| w.attaches), attaches + 2);
    // The heat map goes on where it was, with a column for each scan.
    let more = group(&status, "a").unwrap().scans + 10;
    run.until("more", |s| group(s, "a").is_some_and(|g| g.scans >= more));
    let group = run.board.group("a").unwrap();
    let view = group.view();
    let heat = view.heat.as_ref().unwrap().lock().unwrap();
    let periods = heat.bins().map(|bin| bin.period + bin.periods).max().unwrap();
    assert!(periods >= view.status.scans, "{periods} of {}", view.status.scans);
}

#[test]
fn a_group_that_cannot_be_attached_anew_at_once_forgets_nothing() {
    let run = Run::start(TWO, 64);
    run.program("/a", 32, LOW);
    run.until("seen", |s| group(s, "a").is_some_and(|g| g.scans > 10));
    run.world(|w| {
        w.change = Some("node 1 has gone".into());
        w.refused_attaches = 1;
    });
    let status = run.until("refused", |s| !s.unmanaged.is_empty());
    assert_eq!(status.unmanaged[0].reason, "all nodes are of one tier");
    let status = run.until("attached", |s| group(s, "a").is_some_and(|g| g.state == "tracking"));
    let a = group(&status, "a").unwrap();
    assert!(a.restored_scans > 10 && a.scans > 10, "{a:?}");
}

/// An external policy decides; where its process dies, its fallback does, and both are reported.
#[test]
fn a_policy_in_its_own_process_decides_and_its_fallback_where_it_does_not() {
    use std::os::unix::fs::PermissionsExt;

    // As Python would be started; it answers without moves, and dies after some periods.
    let folder = tempfile::tempdir().unwrap();
    let (python, file) = (folder.path().join("python"), folder.path().join("own.py"));
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../external/src/policy/program.py");
    std::fs::copy(program, &python).unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let still = "send(16)\nn = 0\nwhile True:\n    asked = receive()\n    n += 1\n    \
                 if n > 6: send(19, b'own.py, line 6: KeyError: 7'); sys.exit(1)\n    answer(0, 0)\n";
    std::fs::write(&file, still).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let groups = format!(
        "[[groups]]\nname = \"a\"\ncgroup = \"/a\"\npolicy = \"own\"\nfast_ratio = 0.25\n\
         period_ms = 200\n[policies.own]\nkind = \"python\"\nfile = \"{}\"\nclass = \"Own\"\n\
         interpreter = \"{}\"\nrestarts = 0\ndeadline_share = 0.9\n",
        file.display(),
        python.display()
    );
    let run = Run::start(&groups, 32);
    run.program("/a", 32, HIGH);
    let decides = |g: &GroupStatus| g.applied == "own";
    run.until("decided", |s| group(s, "a").is_some_and(decides));
    // It was given up: the fallback promotes the hot pages.
    let gave_up = |g: &GroupStatus| g.external.as_ref().is_some_and(|e| e.state == "given_up");
    let fell_back = |g: &GroupStatus| gave_up(g) && g.applied == "lru" && g.hit_ratio == 1.0;
    let status = run.until("taken over", |s| group(s, "a").is_some_and(fell_back));
    let a = group(&status, "a").unwrap();
    let report = a.external.clone().unwrap();
    assert_eq!(a.policy, "own");
    assert!(report.decided_periods > 0 && report.decided_periods <= 6, "{report:?}");
    assert_eq!(report.error.as_deref(), Some("own.py, line 6: KeyError: 7"));
    let metrics = terrace_daemon::metrics::render(&status);
    let decided = format!(
        "terrace_group_policy_decided_periods_total{{group=\"a\",policy=\"own\"}} {}\n",
        report.decided_periods
    );
    assert!(metrics.contains(&decided), "{metrics}");
    let died = "terrace_group_policy_fallback_periods_total{group=\"a\",reason=\"died\"} 1\n";
    assert!(metrics.contains(died), "{metrics}");

    // Another text of the file is another policy: a reload takes it.
    std::fs::write(&file, "send(16)\nwhile True:\n    asked = receive()\n    answer(0, 0)\n")
        .unwrap();
    run.reload(&groups).unwrap();
    let again = |g: &GroupStatus| g.external.as_ref().is_some_and(|e| e.state == "deciding");
    run.until("decided again", |s| group(s, "a").is_some_and(again));
}
