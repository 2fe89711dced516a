//! `terrace import`, `export`, `info` and `caches` at the command line, and the counts of `caches`
//! against Valgrind's cachegrind for ordinary programs.

mod common;

use std::process::{Command, Stdio};

use common::{Place, Printed, tree};
use serde_json::Value;

/// A program and its arguments, and I1, D1 and LL.
type Case = (&'static [&'static str], [&'static str; 3]);

/// Different kinds of work, different geometries.
const CASES: [Case; 6] = [
    (&["sort", "input"], ["32K,8", "32K,8", "8M,16"]),
    (&["gzip", "-c", "input"], ["32K,8", "32K,8", "256K,4"]),
    (&["awk", "{ s += $1 } END { print s }", "input"], ["8K,1", "8K,1", "64K,4"]),
    (&["md5sum", "input"], ["4K,2", "4K,2", "32K,16"]),
    (&["sed", "s/line/row/", "input"], ["16K,4", "16K,4", "128K,8"]),
    (&["ls", "-l", "/etc"], ["4K,2", "4K,2", "128K,8"]),
];

/// Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw, as cachegrind orders them.
type Counts = [u64; 9];

fn valgrind(place: &Place, tool: &[String], program: &[&str]) {
    let status = Command::new("valgrind")
        .arg("-q")
        .args(tool)
        .args(program)
        .current_dir(place.path("."))
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let status = status.expect("valgrind is installed: apt-get install valgrind");
    assert!(status.success(), "{program:?}");
}

fn bytes(shape: &str) -> String {
    let (size, ways) = shape.split_once(',').unwrap();
    let (number, unit) = size.split_at(size.len() - 1);
    let shift = if unit == "M" { 20 } else { 10 };
    format!("{},{ways},64", number.parse::<u64>().unwrap() << shift)
}

fn cachegrind(place: &Place, program: &[&str], shapes: [&str; 3]) -> Counts {
    let mut tool = vec!["--tool=cachegrind".to_owned(), "--cache-sim=yes".to_owned()];
    tool.push("--cachegrind-out-file=cg.out".to_owned());
    for (name, shape) in ["I1", "D1", "LL"].iter().zip(shapes) {
        tool.push(format!("--{name}={}", bytes(shape)));
    }
    valgrind(place, &tool, program);
    let text = std::fs::read_to_string(place.path("cg.out")).unwrap();
    let line = |key: &str| text.lines().find_map(|l| l.strip_prefix(key)).unwrap();
    assert_eq!(line("events: ").trim(), "Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw");
    let counts: Vec<u64> =
        line("summary: ").split_whitespace().map(|n| n.parse().unwrap()).collect();
    counts.try_into().unwrap()
}

fn caches(place: &Place, recording: &str, shapes: [&str; 3]) -> Value {
    let [i1, d1, ll] = shapes;
    let arguments =
        format!("caches {recording} --i1 {i1} --d1 {d1} --ll {ll} --line 64 --format json");
    place.run(&arguments).good().json()
}

fn counts(answer: &Value) -> Counts {
    let mut counts = [0; 9];
    for (to, kind) in counts.chunks_mut(3).zip(["instructions", "reads", "writes"]) {
        let names = ["references", "first_level_misses", "last_level_misses"];
        to.iter_mut().zip(names).for_each(|(to, name)| *to = answer[kind][name].as_u64().unwrap());
    }
    counts
}

#[test]
fn imported_programs_have_cachegrinds_counts() {
    let place = Place::new();
    let lines: String = (1..400u64).map(|n| format!("{} line {n}\n", n * 7919 % 100_003)).collect();
    place.write("input", lines);
    for (program, shapes) in CASES {
        let name = program[0];
        let tool =
            ["--tool=lackey", "--trace-mem=yes", "--detailed-counts=yes", "--log-file=trace"];
        valgrind(&place, &tool.map(str::to_owned), program);
        let log = std::fs::read_to_string(place.path("trace")).unwrap();
        let printed = place.run("import lackey trace --out r.tref --format json").good();
        let imported = printed.json();
        // Every line, and Valgrind's own summary: instructions exactly, loads and stores except for
        // those of helper functions (x87, xsave), which its summary leaves out: some dozens.
        let lines = |kinds: [&str; 2]| {
            log.lines().filter(|l| kinds.iter().any(|k| l.starts_with(k))).count()
        };
        assert_eq!(imported["instructions"], lines(["I  ", "I  "]), "{name}");
        assert_eq!(imported["loads"], lines([" L ", " M "]), "{name}");
        assert_eq!(imported["stores"], lines([" S ", " M "]), "{name}");
        assert_eq!(imported["file_says"], serde_json::json!({}), "{name}: {printed}");
        let own = |kind: usize| -> u64 {
            let table = log.lines().filter(|l| l.contains("==   ") && l.contains("     "));
            let row = |l: &str| -> Option<u64> {
                let cells: Vec<_> = l.split_whitespace().collect();
                let is_type = |t: &str| t.len() > 1 && "IFVD".contains(&t[..1]);
                (cells.len() == 5 && is_type(cells[1]))
                    .then(|| cells[kind].replace(',', "").parse().ok())?
            };
            table.filter_map(row).sum()
        };
        for (key, kind) in [("loads", 2), ("stores", 3)] {
            let (got, stated) = (imported[key].as_u64().unwrap(), own(kind));
            assert!(stated > 1000, "{name}: no summary in {log:.2000}");
            assert!(
                got >= stated && (got - stated) * 100 <= stated,
                "{name}: {got} {key}, says {stated}"
            );
        }
        let got = counts(&caches(&place, "r.tref", shapes));
        let expected = cachegrind(&place, program, shapes);
        assert!(expected[0] > 10_000, "{name} did not run");
        let names = ["Ir", "I1mr", "ILmr", "Dr", "D1mr", "DLmr", "Dw", "D1mw", "DLmw"];
        for (what, (got, expected)) in names.iter().zip(got.into_iter().zip(expected)) {
            let off = got.abs_diff(expected) as f64 / expected.max(1) as f64;
            assert!(off <= 0.01, "{name}: {what} is {got}, cachegrind says {expected}");
        }
        let info = place.run("info r.tref --format json").good().json();
        assert_eq!(info["loads"], imported["loads"], "{info}");
        assert_eq!((&info["complete"], &info["kind"]), (&true.into(), &"references".into()));
        // ChampSim's form has the same lines, and no sizes.
        place.run("export champsim r.tref --out t.champ").good();
        place.run("import champsim t.champ --out c.tref").good();
        let champ = counts(&caches(&place, "c.tref", shapes));
        assert_eq!(champ[3], got[3], "{name}");
        assert!(champ[4].abs_diff(got[4]) * 10 <= got[4], "{name}: {champ:?} {got:?}");
        for file in ["r.tref", "t.champ", "c.tref"] {
            std::fs::remove_file(place.path(file)).unwrap();
        }
    }
}

#[test]
fn recorded_programs_have_cachegrinds_data_counts() {
    if Command::new("qemu-x86_64").arg("--version").output().is_err() {
        eprintln!("no qemu-x86_64: apt-get install qemu-user; nothing is tested");
        return;
    }
    let place = Place::new();
    // No library, so that both run the same instructions.
    place.write(
        "p.c",
        r#"static volatile unsigned long a[20000];
        void _start(void) {
            unsigned long x = 1;
            for (int r = 0; r < 3; r++)
                for (int i = 0; i < 20000; i++) {
                    x = x * 6364136223846793005ul + 1442695040888963407ul;
                    a[(x >> 33) % 20000] += a[i];
                    a[i] = x;
                }
            __asm__ volatile("mov $231,%eax; mov $0,%edi; syscall");
        }"#,
    );
    let compiled = Command::new("gcc")
        .args(["-O1", "-nostdlib", "-static", "-fno-stack-protector", "-o", "p", "p.c"])
        .current_dir(place.path("."))
        .status()
        .unwrap();
    assert!(compiled.success());
    let printed = place.run("record --level none --out p.tref ./p");
    if printed.err.contains("cannot find the recorder's plug-in") {
        eprintln!("the recorder's plug-in is not built; nothing is tested");
        return;
    }
    printed.good();
    for shapes in [["32K,8", "32K,8", "8M,16"], ["8K,1", "8K,1", "64K,4"]] {
        let expected = cachegrind(&place, &["./p"], shapes);
        let answer = caches(&place, "p.tref", shapes);
        assert!(answer["instructions"].is_null(), "{answer}");
        assert!(answer["notes"][0].as_str().unwrap().contains("no instruction fetches"));
        for (i, (kind, name)) in ["reads", "writes"]
            .into_iter()
            .flat_map(|kind| {
                ["references", "first_level_misses", "last_level_misses"].map(|name| (kind, name))
            })
            .enumerate()
        {
            let (got, expected) = (answer[kind][name].as_u64().unwrap(), expected[3 + i]);
            // A few lines of code and stack more or less.
            let off = got.abs_diff(expected).saturating_sub(2) as f64 / expected.max(1) as f64;
            assert!(off <= 0.01, "{kind} {name}: {got}, cachegrind says {expected}");
        }
    }
    let text = place.run("caches p.tref").good().out;
    assert!(text.contains("no instruction fetches") && text.contains("reads"), "{text}");
    let filtered = place.run("record --level l1 --out f.tref ./p").good();
    assert!(!filtered.err.is_empty());
    place
        .run("caches f.tref")
        .refused(&["taken after cache 'l1'", "terrace record --level none --out FILE -- COMMAND"]);
}

#[test]
fn formats_are_listed_and_damo_records_become_periods() {
    let place = Place::new();
    let listed = place.run("import").good().out;
    let json = place.run("import --format json").good().json();
    for name in ["champsim", "lackey", "perf", "damon"] {
        assert!(listed.contains(name), "{listed}");
        assert!(json.as_array().unwrap().iter().any(|f| f["name"] == name), "{json}");
    }
    let listed = place.run("export").good().out;
    assert!(listed.contains("champsim") && listed.contains("csv"), "{listed}");
    let damo = tree("recordings/tests/data/damo-3.4.3.json.zlib");
    let import = format!("import damon {} --out d.trec --format json", damo.display());
    let imported = place.run(&import).good().json();
    assert_eq!((&imported["snapshots"], &imported["periods"]), (&24.into(), &24.into()));
    let info = place.run("info d.trec --format json").good().json();
    assert_eq!((&info["kind"], &info["complete"]), (&"periods".into(), &true.into()));
    assert_eq!(info["groups"][0]["periods"], 12);
    assert!(place.run("info d.trec").good().out.contains("group target-1"));
    let csv = place.run("export csv d.trec --out -").good().out;
    assert!(csv.starts_with("period,group,space,start,size_bytes,accessed,fast\n0,"), "{csv}");
    // A recording can go through a pipe.
    let mut command = place.command("import lackey - --out -");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"I  1000,4\n L 2000,8\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    place.write("piped.tref", &output.stdout);
    let info = place.run("info piped.tref --format json").good().json();
    assert_eq!((&info["loads"], &info["fetches"]), (&1.into(), &1.into()));
}

#[test]
fn files_that_make_no_sense_are_refused_and_leave_nothing() {
    let place = Place::new();
    place.write("bad", "I  1000,4\nnonsense\n");
    place.write("good", "I  1000,4\n L 2000,8\n");
    place.write("cut", "I  1000,4\n L 2000,8\n L 20");
    place.run("import lackey good --out whole.tref").good();
    let before = place.names();
    for (arguments, words) in [
        ("import lackey bad --out r", &["bad, line 2: got 'nonsense'", "--log-file"][..]),
        ("import lackey absent --out r", &["'absent'", "No such file"]),
        ("import vcd good --out r", &["'vcd'", "champsim, lackey, perf, damon"]),
        ("import lackey good --out r --sample 2", &["'lackey' has no --sample"]),
        ("import damon good --out r --period-ms 0", &["--period-ms is 0"]),
        ("import lackey good --out bad", &["'bad' exists"]),
        ("export csv good --out r", &["'good' is not a Terrace recording"]),
        ("export csv absent --out r", &["'absent'", "No such file"]),
        ("export csv whole.tref --stream 99 --out r", &["no stream 99, but 0"]),
        ("export csv whole.tref --stream 99 --out -", &["no stream 99, but 0"]),
        ("export champsim whole.tref --stream 99 --out r", &["no stream 99, but 0"]),
        ("export vcd good --out r", &["'vcd'", "champsim, csv"]),
        ("info good", &["'good' is not a Terrace recording"]),
        ("info absent", &["'absent'", "No such file"]),
        ("caches good", &["'good' is not a Terrace recording"]),
        ("caches good --d1 48K,8", &["--d1", "makes 96.00 sets"]),
        ("caches good --d1 32K,8,32 --line 64", &["--d1", "lines of 64 are asked for"]),
        ("caches good --line 48", &["power of two from 8 to 4096"]),
    ] {
        place.run(arguments).refused(words);
        assert_eq!(place.names(), before, "{arguments}");
    }
    let printed: Printed = place.run("import lackey cut --out cut.tref").good();
    assert!(printed.err.contains("cut: cut off at line 3"), "{printed}");
    let info = place.run("info cut.tref").good().out;
    assert!(info.contains("a file that was cut off"), "{info}");
    place.run("export csv . --out x").refused(&["recording '.'", "directory"]);
    place.run("export csv cut.tref --out /dev/full/x").failed(2, &["cannot create"]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = place.command("export csv cut.tref --out -").stdout(full).output().unwrap();
    Printed::new("export csv", output).failed(1, &["standard output", "No space"]);
}
