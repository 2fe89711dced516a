//! Impossible input is rejected: one line with what was got, what was expected and what to do; exit
//! code 2; nothing made, nothing changed.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use common::{Place, Printed, SMALL, TERRACE, is_root, with_results};
use terrace_results::{ResultsError, RunRow, path, read};

#[test]
fn experiments_that_cannot_be_are_refused_and_leave_nothing() {
    let place = Place::new();
    let ratio = "fast_ratio = 0.5";
    let footprint = "footprint_mib = 64";
    let kind = "kind = \"lru-favor\"";
    let groups = &SMALL[SMALL.find("[[groups]]").unwrap()..];
    // The text replaced in the experiment, its replacement, and words of the rejection.
    let cases: &[(&str, &str, &[&str])] = &[
        ("name = \"small\"", "colour = 1", &["line 1", "`colour`", "expected one of `name`"]),
        ("name = \"small\"", "", &["missing field `name`"]),
        ("name = \"small\"", "name = \"a b\"", &["name = 'a b'", "expected 1 to 64 letters"]),
        ("name = \"small\"", "name = \"../x\"", &["name = '../x'", "letter, digit or '_' first"]),
        ("name = \"small\"", "name = \"\"", &["name = ''"]),
        ("name = \"g\"", "name = \"-g\"", &["group '-g'", "letter, digit or '_' first"]),
        ("name = \"g\"", "name = 5", &["line 5", "got integer `5`, expected a string"]),
        ("period_ms = 1000", "period_ms = 0", &["period_ms = 0: expected 1 to"]),
        ("period_ms = 1000", "period_ms = -1", &["line 2", "expected a whole number"]),
        ("period_ms = 1000", "period_ms = \"1s\"", &["line 2", "expected a whole number"]),
        (
            "period_ms = 1000",
            "period_ms = 3600001",
            &["line 2: period_ms = 3600001: expected 1 to"],
        ),
        ("periods = 20", "periods = 0", &["line 3: periods = 0: expected 1 to"]),
        ("periods = 20", "periods = 1.5", &["line 3", "got floating point `1.5`"]),
        ("periods = 20", "", &["missing field `periods`"]),
        ("[[groups]]", "[[groups]", &["line 4", "expected `]`"]),
        (groups, "", &["missing field `groups`"]),
        (groups, "groups = []", &["no groups: expected at least one [[groups]] section"]),
        ("policy = \"amp\"", "polici = 1", &["line 6", "`polici`", "; did you mean 'policy'?"]),
        (
            "policy = \"amp\"",
            "policy = \"best\"",
            &["line 6: group 'g'", "'best'", "first-touch", "amp"],
        ),
        (
            "policy = \"amp\"",
            "page_size = \"1G\"",
            &["line 6", "got '1G', expected \"auto\", \"2M\" or \"4K\""],
        ),
        (ratio, "fast_ratio = 1.5", &["line 7: group 'g': fast_ratio = 1.5: expected 0 to 1"]),
        (ratio, "fast_ratio = -0.1", &["fast_ratio = -0.1: expected 0 to 1"]),
        (ratio, "fast_ratio = nan", &["fast_ratio = NaN: expected 0 to 1"]),
        (ratio, "fast_ratio = inf", &["fast_ratio = inf: expected 0 to 1"]),
        (ratio, "fast_ratio = \"half\"", &["line 7", "expected a number"]),
        (ratio, "", &["expected one of fast_ratio = 0.5 and fast = \"512M\""]),
        (ratio, "fast_ratio = 0.5\nfast = \"1M\"", &["expected one of fast_ratio"]),
        (ratio, "fast = \"64Q\"", &["size '64Q': expected a number with an optional K, M, G"]),
        (ratio, "fast = -1", &["expected a size, as in \"512M\""]),
        (ratio, "fast_ratio = 0.5\nmoved_pages_per_period = -1", &["expected a whole number"]),
        (kind, "kind = \"lru\"", &["no workload is named 'lru'", "lru-favor"]),
        (kind, "", &["missing field `kind`"]),
        (kind, "kind = \"redis-zipf\"", &["no model", "--machine vm"]),
        (kind, "kind = \"program\"\nname = \"gups\"", &["--fidelity trace", "terrace profile"]),
        (kind, "kind = \"lru-favour\"", &["did you mean 'lru-favor'?"]),
        ("policy = \"amp\"", "policy = \"apm\"", &["; did you mean 'amp'?"]),
        (footprint, "footprint = 64", &["group 'g'", "unknown field `footprint`", "footprint_mib"]),
        (footprint, "footprint_mib = 0", &["footprint_mib is 0, expected 1 to"]),
        (footprint, "footprint_mib = 3", &["footprint_mib is 3, expected a multiple of 2"]),
        (footprint, "footprint_mib = \"1G\"", &["footprint_mib: got string \"1G\", expected a"]),
        (footprint, "footprint_mib = 99999999999999", &["expected 1 to"]),
        (footprint, "sets = nan", &["sets: got null, expected a whole number"]),
    ];
    for (from, to, words) in cases {
        assert!(SMALL.contains(from), "'{from}' is no part of the experiment");
        place.write("e.toml", SMALL.replacen(from, to, 1));
        place.run("run e.toml --out out").refused(words);
    }
    // The text added to the experiment.
    let cases: &[(&str, &[&str])] = &[
        (groups, &["two groups are named 'g': expected different names"]),
        ("[machine]\ncpu = 2", &["line 12", "`cpu`", "`cpus`"]),
        ("[machine]\ncpus = 0", &["line 12: machine.cpus = 0: expected 1 to 64"]),
        ("[machine]\nfast = \"1M\"", &["machine.fast: expected at least one huge page"]),
        ("[machine]\nslow_latency_ns = -1", &["expected a whole number"]),
        ("[machine]\nfast = \"32M\"\nslow = \"16M\"", &["50331648 bytes, expected 67108864"]),
        (
            "[policies.amp]\nwindow = 3",
            &["line 12", "policy 'amp'", "`window`", "did you mean 'window_periods'?"],
        ),
        ("[policies.amp]\nwindow_periods = \"3\"", &["window_periods: got string \"3\", expected"]),
        (
            "[policies.amp]\nrandom_margin = 1.5",
            &["line 12", "random_margin is 1.5; expected 0 to 1"],
        ),
        ("[policies.amp]\nrandom_margin = nan", &["random_margin: got null, expected a number"]),
        ("[policies]\namp = 3", &["policy 'amp'", "expected a table"]),
        ("[policies.best]\nx = 1", &["no policy is named 'best'", "terrace policies"]),
    ];
    for (added, words) in cases {
        place.write("e.toml", format!("{SMALL}{added}\n"));
        place.run("run e.toml --out out").refused(words);
    }
    // Only an emulation can count.
    place.write("e.toml", SMALL);
    place
        .run("run e.toml --out out --count-accesses")
        .refused(&["is to run on sim", "--machine vm"]);
    assert_eq!(place.names(), ["e.toml"]);
}

#[test]
fn hardware_of_a_clock_that_cannot_be_is_refused_before_a_machine_is_booted() {
    let place = Place::new();
    let clock = "[machine]\nclock = \"memory\"\n";
    let tier = |name: &str, gb_per_s: f64| {
        format!(
            "[[machine.hardware.tiers]]\nname = \"{name}\"\ncapacity = \"1G\"\n\
             [machine.hardware.tiers.model.queueing]\nread_latency_ns = 70.0\n\
             write_latency_ns = 70.0\nread_gb_per_s = {gb_per_s:?}\nwrite_gb_per_s = 26.0\n\
             channels = 2\nline_bytes = 64\n"
        )
    };
    let bandwidth = format!(
        "preset = \"granularity-amd-a10-6800k\"\n{}{}",
        tier("fast", 26.0),
        tier("slow", 0.0)
    );
    for (machine, words) in [
        (format!("{clock}slow_latency_ns = 5\n"), &["slow tier's latency is 5 ns", "caches"][..]),
        (format!("{clock}[machine.hardware]\nnode.caches.l1.ways = 0\n"), &["ways"]),
        (
            format!("{clock}[machine.hardware]\npreset = \"abacus\"\n"),
            &["abacus", "server-ddr5-cxl"],
        ),
        (
            format!("{clock}[machine.hardware]\npreset = \"server-ddr5-cxl-timing\"\n"),
            &["as queues"],
        ),
        (format!("{clock}[machine.hardware]\n{bandwidth}"), &["gb_per_s"]),
        ("[machine]\nhardware = {}\n".to_owned(), &["clock = \"memory\""]),
        ("[machine]\nclock = \"sundial\"\n".to_owned(), &["sundial", "memory"]),
    ] {
        place.write("e.toml", SMALL.replacen("[[groups]]", &format!("{machine}[[groups]]"), 1));
        place.run("run e.toml --machine vm --out out").refused(words);
    }
    assert_eq!(place.names(), ["e.toml"]);
}

#[test]
fn files_that_are_no_experiments_are_refused() {
    let place = Place::new();
    place.write("empty.toml", "");
    place.write("garbage.toml", [0xff, 0x00, 0xfe, 0x80].repeat(1000));
    place.write("zeros.toml", [0; 4096]);
    place.write("words.toml", "This is no experiment.\n");
    std::fs::create_dir(place.path("folder.toml")).unwrap();
    for (file, words) in [
        ("empty.toml", &["missing field `name`"][..]),
        ("garbage.toml", &["expected an experiment file", "terrace run --help"]),
        ("zeros.toml", &["line 1"]),
        ("words.toml", &["line 1"]),
        ("folder.toml", &["Is a directory", "expected an experiment file"]),
        ("absent.toml", &["No such file", "expected an experiment file"]),
    ] {
        let before = place.names();
        for command in ["run", "compare --policies lru"] {
            let printed = place.run(&format!("{command} {file} --out out"));
            printed.refused(words);
            printed.refused(&[file]);
        }
        assert_eq!(place.names(), before);
    }
}

#[test]
fn policies_to_compare_must_exist_and_be_named_once() {
    let place = Place::new();
    place.write("e.toml", SMALL);
    for (policies, words) in [
        ("lru,lru", &["policy 'lru' is named twice: expected each once"][..]),
        ("lru,best", &["no policy is named 'best'; expected one of first-touch"]),
        ("lru,,lfu", &["no policy is named ''; expected one of"]),
        (",", &["no policy is named ''"]),
    ] {
        place.run(&format!("compare e.toml --policies {policies} --out out")).refused(words);
    }
    for (rest, words) in [
        ("--rivals linux", &["'linux' is Linux's own", "use --machine vm or host"][..]),
        (
            "--machine vm --rivals numad",
            &["rival 'numad'", "expected one of nothing, linux, damon"],
        ),
        ("--machine vm --rivals linux,linux", &["rival 'linux' is named twice"]),
        ("--machine vm --rivals linux", &["group 'g'", "give it a size, as in fast = \"64M\""]),
        ("--kernels debian", &["kernels are chosen for a virtual machine", "use --machine vm"]),
        ("--machine vm --kernels debian,debian", &["kernel 'debian' is named twice"]),
        ("--machine vm --kernels none", &["machine.kernel", "none", "expected a kernel image"]),
        ("--console", &["--console is for the console of", "run on sim", "use --machine vm"]),
        ("--machine vm --fix-conflicts", &["settings of this host", "on vm", "--machine host"]),
    ] {
        place.run(&format!("compare e.toml --policies lru --out out {rest}")).refused(words);
    }
    assert_eq!(place.names(), ["e.toml"]);
    let mut command = place.command("compare e.toml --out out");
    let output = command.args(["--policies", "lru, lfu"]).output().unwrap();
    let printed = Printed::new("compare e.toml --out out --policies 'lru, lfu'", output).good();
    assert!(printed.out.contains("\nlru ") && printed.out.contains("\nlfu "), "{printed}");
}

#[test]
fn recordings_that_cannot_be_used_are_refused() {
    let place = with_results();
    let whole = std::fs::read(place.path("good/recordings/amp.trec")).unwrap();
    let workload = |path: &str, more: &str| {
        let text = SMALL.replace("kind = \"lru-favor\"", "kind = \"recording\"");
        text.replace("footprint_mib = 64", &format!("path = \"{path}\"\n{more}"))
    };
    let refused = |file: &str, words: &[&str]| {
        place.run(&format!("replay {file}")).refused(words);
        place.write("r.toml", workload(file, ""));
        place.run("run r.toml --out out").refused(words);
        assert!(!place.path("out").exists());
    };
    for length in [1, 7, 20, 100, 300] {
        place.write("cut.trec", &whole[..length]);
        refused("cut.trec", &["cut.trec", "record"]);
    }
    for length in [whole.len() / 2, whole.len() - 20, whole.len() - 1] {
        place.write("cut.trec", &whole[..length]);
        refused("cut.trec", &["the recording was cut off; expected a finished one, run the"]);
    }
    place.write("empty.trec", "");
    place.write("garbage.trec", [0xa5; 5000]);
    place.write("text.trec", SMALL);
    std::fs::create_dir(place.path("folder.trec")).unwrap();
    for file in ["empty.trec", "garbage.trec", "text.trec"] {
        refused(file, &[file, "not a Terrace recording", "give a file that Terrace recorded"]);
    }
    refused("folder.trec", &["cannot read recording 'folder.trec'", "give the path of a file"]);
    refused(
        "absent.trec",
        &["cannot open recording 'absent.trec'", "path of an existing recording"],
    );

    let recording = "good/recordings/amp.trec";
    for (text, words) in [
        (workload(recording, "group = \"h\""), &["no group 'h'; expected one of g"][..]),
        (workload(recording, "footprint_mib = 64"), &["unknown field `footprint_mib`", "`path`"]),
        (workload(recording, "").replace("path =", "#"), &["missing field `path`"]),
        (
            workload(recording, "").replace("policy =", "page_size = \"4K\"\npolicy ="),
            &["pages of 4096 bytes, expected 2097152 as in", "set page_size so"],
        ),
        (
            workload(recording, "").replace("period_ms = 1000", "period_ms = 500"),
            &["period_ms = 500, expected 1000 as in", "set it so"],
        ),
    ] {
        place.write("r.toml", text);
        place.run("run r.toml --out out").refused(words);
        assert!(!place.path("out").exists());
    }
    // And one that can be used, so that the rejections above are not for another reason.
    place.write("r.toml", workload(recording, ""));
    place.run("run r.toml --out out").good();
}

#[test]
fn a_damaged_recording_is_not_replayed_as_if_it_were_sound() {
    let place = with_results();
    let whole = std::fs::read(place.path("good/recordings/amp.trec")).unwrap();
    let positions = (8..whole.len()).step_by(whole.len() / 40);
    let mut refused = 0;
    for position in positions.clone() {
        let mut bytes = whole.clone();
        bytes[position] ^= 0x10;
        place.write("damaged.trec", bytes);
        let printed = place.run("replay damaged.trec");
        if printed.code != Some(0) {
            printed.refused(&["damaged.trec"]);
            refused += 1;
        }
    }
    // Some bytes, such as those of the file's end, have no effect on the replay.
    assert!(refused + 4 >= positions.len(), "{refused} of {} were refused", positions.len());
}

#[test]
fn results_go_only_where_they_can_be_written() {
    let place = Place::new();
    place.write("e.toml", SMALL);
    for out in ["e.toml", "e.toml/out", "/proc/out", "/dev/null/out"] {
        let printed = place.run(&format!("run e.toml --out {out}"));
        printed.refused(&[out, "expected a folder for results that can be written to"]);
    }
    let output = place.command("run e.toml --out").arg("").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    place.run("man --out e.toml").refused(&["e.toml", "expected a folder for manual pages"]);
    assert_eq!(place.names(), ["e.toml"]);
}

#[test]
fn results_are_replaced_only_when_that_is_asked_for() {
    let place = Place::new();
    place.write("e.toml", SMALL);
    place.run("run e.toml").good();
    let file = place.path("results/small/runs.parquet");
    let before = std::fs::read(&file).unwrap();
    for command in ["run e.toml", "compare e.toml --policies lru --out results/small"] {
        place.run(command).refused(&["results/small has results already", "--out", "--force"]);
        assert_eq!(std::fs::read(&file).unwrap(), before);
    }
    let plan = "plan results/small/recordings/amp.trec --slowdown 5%";
    place.run(&format!("{plan} --out results/small")).refused(&["has results already"]);
    place.write(
        "grid.toml",
        "name = \"g\"\nbase = \"e.toml\"\n[[axes]]\nkey = \"seed\"\nvalues = [1]\n",
    );
    place.run("sweep grid.toml --out results/small").refused(&["results of another command"]);
    place.run("compare e.toml --policies lru --out results/small --force").good();
    assert_ne!(std::fs::read(&file).unwrap(), before);
    // A plan and a sweep, once they are there. The recording is that of the new results.
    let plan = plan.replace("amp", "lru");
    place.run(&format!("{plan} --out answer")).good();
    place.run(&format!("{plan} --out answer")).refused(&["answer has results already (plan.json)"]);
    place.run(&format!("{plan} --out answer --force")).good();
    place.run("sweep grid.toml --out swept").good();
    place.run("sweep grid.toml --out swept").good();
    // The answer of a fleet is no plan's, and neither is a sweep's.
    let report = std::fs::read(place.path("answer/report.html")).unwrap();
    place.run("sweep grid.toml --out answer").refused(&["another command (plan.json)"]);
    std::fs::rename(place.path("answer/plan.json"), place.path("answer/fleet.json")).unwrap();
    place.run("sweep grid.toml --out answer").refused(&["another command (fleet.json)"]);
    for command in [plan.as_str(), "run e.toml"] {
        let printed = place.run(&format!("{command} --out answer"));
        printed.refused(&["answer has results already (fleet.json)"]);
    }
    assert_eq!(std::fs::read(place.path("answer/report.html")).unwrap(), report);
    assert!(!place.path("answer/cells").exists());
    place.write("p.tprof", "mine");
    place.run("profile e.toml --out p.tprof").refused(&["p.tprof exists", "--force"]);
    assert_eq!(std::fs::read(place.path("p.tprof")).unwrap(), b"mine");
}

#[test]
fn results_that_are_absent_or_damaged_are_reported_in_one_line() {
    let place = with_results();
    std::fs::create_dir(place.path("empty")).unwrap();
    for folder in ["empty", "absent"] {
        let printed = place.run(&format!("report {folder}"));
        printed.refused(&["runs.parquet: no such file; expected a results directory", "--out DIR"]);
    }
    place.run("report e.toml").refused(&["e.toml/runs.parquet", "expected a results directory"]);

    for file in ["runs.parquet", "periods.parquet", "heat.parquet"] {
        let path = place.path("good").join(file);
        let whole = std::fs::read(&path).unwrap();
        let half = &whole[..whole.len() / 2];
        for damaged in [&b""[..], b"PAR1PAR1", &[0x5a; 3000], half, SMALL.as_bytes()] {
            std::fs::write(&path, damaged).unwrap();
            place.run("report good").refused(&[file, "expected a Parquet file", "again"]);
        }
        std::fs::write(&path, whole).unwrap();
    }
    place.run("report good").good();
}

#[test]
fn damage_that_the_parquet_library_panics_on_is_one_line_too() {
    let place = with_results();
    let folder = place.path("good");
    let file = path::<RunRow>(&folder);
    let whole = std::fs::read(&file).unwrap();
    let damage = |&position: &usize| {
        let mut bytes = whole.clone();
        bytes[position] ^= 0x10;
        std::fs::write(&file, bytes).unwrap();
        matches!(read::<RunRow>(&folder), Err(ResultsError::Damaged { .. }))
    };
    // The headers of the first pages are where it gives up most often. A release of the library
    // that never does leaves nothing to check here.
    for _ in (0..400).filter(damage).take(3) {
        place.run("report good").refused(&["runs.parquet", "got a damaged file", "again"]);
    }
}

/// Kernel settings that a live run may change.
fn host_settings() -> Vec<Option<String>> {
    let files = [
        "/proc/sys/kernel/numa_balancing",
        "/sys/kernel/mm/lru_gen/enabled",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds",
    ];
    let folders = ["/sys/kernel/tracing/instances", "/sys/fs/cgroup", "/run/terrace"];
    let names = |folder: &str| {
        let entries = std::fs::read_dir(folder).ok()?;
        let mut names: Vec<_> = entries.flatten().map(|e| e.file_name()).collect();
        names.sort();
        Some(format!("{names:?}"))
    };
    let files = files.iter().map(|f| std::fs::read_to_string(f).ok());
    files.chain(folders.iter().map(|f| names(f))).collect()
}

/// A live experiment that is rejected on every host: its control group does not exist.
const NOBODY: &str = r#"name = "nobody"
period_ms = 1000
periods = 3
[[groups]]
name = "g"
fast_ratio = 0.5
[groups.workload]
kind = "attach"
cgroup = "/terrace-no-such-group"
"#;

#[test]
fn a_host_that_cannot_be_used_is_left_as_it_was() {
    if !is_root() {
        return; // the messages for other users have a test of their own
    }
    let place = Place::new();
    place.write("live.toml", NOBODY);
    let before = host_settings();
    let printed = place.run("run live.toml --machine host --out out");
    printed.refused(&["expected"]);
    let nodes = std::fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    let is_node = |name: &str| name.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok());
    if nodes.filter(|e| is_node(&e.file_name().to_string_lossy())).count() == 1 {
        printed.refused(&["one tier, expected two or more", "run in the virtual machine"]);
    }
    place.write("live.toml", SMALL.replace("lru-favor", "profile"));
    for machine in ["host", "vm"] {
        let printed = place.run(&format!("run live.toml --machine {machine} --out out"));
        printed.refused(&["workload 'profile' has no live program", "--machine sim"]);
    }
    place.write("live.toml", NOBODY.replace("cgroup =", "control_group ="));
    place.run("run live.toml --machine host --out out").refused(&["unknown field", "`cgroup`"]);
    assert_eq!(host_settings(), before);
    assert_eq!(place.names(), ["live.toml"]);

    let printed = place.run("restore").good();
    assert_eq!(printed.out, "nothing to restore\n");
    assert_eq!(host_settings(), before);
}

#[test]
fn without_root_a_live_run_is_refused_and_a_simulated_one_works() {
    let place = Place::new();
    place.write("live.toml", NOBODY);
    place.write("e.toml", SMALL);
    // The user nobody cannot read root's build folders: the program is copied for it.
    std::fs::set_permissions(place.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let program = place.path("terrace");
    std::fs::copy(TERRACE, &program).unwrap();
    std::fs::create_dir(place.path("results")).unwrap();
    std::fs::set_permissions(place.path("results"), PermissionsExt::from_mode(0o777)).unwrap();
    let nobody = |arguments: &str| {
        let mut command = Command::new(&program);
        command.args(arguments.split(' ')).current_dir(place.path(""));
        // Root becomes nobody, without its capabilities; other users stay themselves.
        if is_root() {
            command.uid(65534).gid(65534);
        }
        Printed::new(arguments, command.output().unwrap())
    };
    let before = (host_settings(), place.names());
    let printed = nobody("run live.toml --machine host --out results/live");
    printed.refused(&["expected a privileged process: run it as root"]);
    nobody("restore").refused(&["run it as root"]);
    nobody("run e.toml --out /forbidden").refused(&["/forbidden", "that can be written to"]);
    assert_eq!((host_settings(), place.names()), before);

    nobody("run e.toml --out results/sim").good();
    nobody("replay results/sim/recordings/amp.trec").good();
    assert!(!place.path("results/live").exists());
}

#[test]
fn a_guest_that_cannot_be_is_refused_before_it_is_booted() {
    let place = Place::new();
    for (arguments, words) in [
        ("lab --cpus 0", &["cpus", "got 0, expected 1 to 255"][..]),
        ("lab --fast 1M", &["fast memory", "got 1048576 bytes, expected at least"]),
        ("lab --slow 0", &["slow memory", "got 0 bytes"]),
        ("lab --kernel absent", &["absent is not a file; give the path of a bzImage"]),
        ("lab --program no-such-program", &["no-such-program", "give a path, a name on PATH"]),
        (
            "lab --instructions-as-time --threads each",
            &["a clock of instructions", "a thread for each processor, expected one thread"],
        ),
        (
            "lab --clock memory --threads each",
            &["a clock of instructions", "a thread for each processor, expected one thread"],
        ),
        ("lab --clock memory --instructions-as-time", &["the machine's clock", "one of them"]),
        ("lab --clock memory --slow-gb-per-s 0", &["slow tier's bandwidth is 0 GB/s"]),
        ("lab --clock memory --slow-latency-ns 5", &["slow tier's latency is 5 ns", "caches"]),
        ("lab --clock memory --hardware nothing", &["nothing", "server-ddr5-cxl"]),
        ("lab --hardware server-ddr5-cxl", &["--hardware without '--clock memory'"]),
        ("lab --file somewhere", &["--file somewhere: expected FROM:TO"]),
        ("lab --file absent:/x", &["--file absent:/x: No such file", "expected a file of this"]),
    ] {
        place.run(arguments).refused(words);
    }
}
