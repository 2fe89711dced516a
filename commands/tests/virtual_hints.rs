//! Hint faults in the virtual machine: they find the base pages that are accessed most, the kernel
//! promotes nothing for them, and NUMA balancing is as it was after them, however they end.

#[path = "common/few_hot_pages.rs"]
mod few_hot_pages;
#[path = "common/guest.rs"]
mod guest;
#[path = "common/known_reads.rs"]
mod known_reads;

use std::process::Command;

use few_hot_pages::{Served, served};
use guest::{CLOCK, in_guest};
use terrace_results::{RunRow, read};

/// Redis as it is packaged, asked as fast as it answers, 16 requests at a time. Some pages, of buffers and
/// counters, are accessed for every batch of them, whatever values are asked for.
#[test]
fn hint_faults_find_the_base_pages_that_are_accessed_most() {
    const PIPELINE: f64 = 16.0;
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("hints.toml"), folder.path().join("hints"));
    let experiment = format!(
        "name = \"hints\"\nperiod_ms = 100\nperiods = 110\nslowdown = false\n\
         [machine]\nfast = \"512M\"\nslow = \"384M\"\nclock = \"instructions\"\nhint_faults = true\n\
         [[groups]]\nname = \"redis\"\npolicy = \"lru\"\nfast_ratio = 0.5\npage_size = \"auto\"\n\
         [groups.workload]\nkind = \"redis-zipf\"\nfootprint_mib = 32\nvalue_bytes = 496\n\
         operations_per_s = 0\npipeline = {PIPELINE}\nsweep_share = 0.0\n"
    );
    std::fs::write(&file, experiment).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["run", file.to_str().unwrap(), "--machine", "vm", "--out", out.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let row = read::<RunRow>(&out).unwrap().remove(0);
    let details = std::fs::read_dir(out.join("details")).unwrap().next().unwrap().unwrap().path();
    let details: serde_json::Value =
        serde_json::from_slice(&std::fs::read(details).unwrap()).unwrap();
    let (counts, hottest) = (&details["redis"]["host_hints"], &details["redis"]["hottest"]);
    println!("{counts} {hottest}");
    let count = |name: &str| counts[name].as_u64().unwrap_or_else(|| panic!("no {name}: {counts}"));
    assert!(count("phases") > 0 && count("scans") > 0 && count("faults") > 1000, "{counts}");
    assert_eq!((count("promoted"), count("lost")), (0, 0), "{counts}");
    let batches_per_s = row.operations_per_s.unwrap() / PIPELINE;
    let of_batches = |range: &&serde_json::Value| {
        let pages = range["pages"].as_u64().unwrap();
        pages <= 16 && range["accesses_per_s"].as_f64().unwrap() >= batches_per_s
    };
    let found = hottest.as_array().unwrap().iter().filter(of_batches).count();
    assert!(found > 0, "{batches_per_s} batches a second: {hottest}");
    // Base pages of slow ranges that are accessed more than others of fast ones take their places, and the
    // server's data are as they were.
    let refined = &details["redis"]["refined"];
    println!("{refined}");
    let pages = |name: &str| refined[name].as_u64().unwrap_or_else(|| panic!("{refined}"));
    assert!(pages("up_pages") > 0, "{refined}");
    assert!(pages("up_pages") <= pages("down_pages"), "{refined}");
    assert_eq!(row.checksum_ok, Some(true));
}

/// Base pages that have nearly all reads of their ranges leave those that are in slow memory, and without
/// hint faults they stay.
#[test]
fn base_pages_that_hint_faults_show_to_be_hot_leave_the_tier_of_their_range() {
    let Served { fast, best_ranges, moved_alone } = served("debian", "hint_faults = true");
    assert!(fast > best_ranges + 0.1 && fast > 0.85, "{fast} {best_ranges}");
    assert!(moved_alone > 0);
    let Served { fast, best_ranges, moved_alone } = served("debian", "");
    assert!(fast < best_ranges + 0.05, "{fast} {best_ranges}");
    assert_eq!(moved_alone, 0);
}

#[test]
fn numa_balancing_is_as_it_was_wherever_a_daemon_with_hint_faults_is_killed() {
    let lines = ["phases seen: 8", "killed 8 times: every setting as before", "all held"];
    println!("{}", in_guest("debian", &CLOCK, "daemon_hints.sh", &["8", "1"], 900, &lines));
}

#[test]
#[ignore = "minutes"]
fn numa_balancing_is_as_it_was_after_fifty_kills() {
    let lines = ["phases seen: 50", "killed 50 times: every setting as before", "all held"];
    println!("{}", in_guest("debian", &CLOCK, "daemon_hints.sh", &["50", "2"], 1800, &lines));
}
