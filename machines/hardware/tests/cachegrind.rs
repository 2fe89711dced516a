//! Cache misses against an independent tool: Valgrind's cachegrind, for ordinary programs.
//!
//! The references come from Valgrind's lackey (`--trace-mem=yes`), the counts to compare with from
//! cachegrind with the same geometry, each from its own run of the same program: both are
//! deterministic. Every count must agree within 1 %; they agree to the reference when nothing
//! around the program changed between the two runs.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use terrace_hardware::address::Kind;
use terrace_hardware::cache::config::CacheConfig;
use terrace_hardware::cache::counting::CountingCaches;

/// A program, its arguments (`FILE` is replaced by the input file), and I1, D1 and LL.
type Case = (&'static [&'static str], [&'static str; 3]);

/// Eight programs, five geometries from direct-mapped and small enough to miss a lot up to a real
/// processor's.
const CASES: [Case; 8] = [
    (&["sort", "FILE"], ["32K,8", "32K,8", "8M,16"]),
    (&["gzip", "-c", "FILE"], ["32K,8", "32K,8", "256K,4"]),
    (&["awk", "{ s += $1 } END { print s }", "FILE"], ["8K,1", "8K,1", "64K,4"]),
    (&["md5sum", "FILE"], ["4K,2", "4K,2", "32K,16"]),
    (&["sed", "s/line/row/", "FILE"], ["16K,4", "16K,4", "128K,8"]),
    (&["perl", "-e", "print 1"], ["8K,1", "8K,1", "64K,4"]),
    (&["ls", "-l", "/etc"], ["4K,2", "4K,2", "128K,8"]),
    (&["grep", "-c", "77", "FILE"], ["16K,4", "16K,4", "64K,4"]),
];

const LINE_BYTES: u32 = 64;

/// Runs the program under a Valgrind tool with the tool's log on a pipe.
fn valgrind(tool: &[String], program: &[String]) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec valgrind --log-fd=9 \"$@\" 9>&1 1>/dev/null 2>/dev/null", "sh"])
        .args(tool)
        .args(program)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("LC_ALL", "C")
        // Else perl orders its hashes anew in every run.
        .env("PERL_HASH_SEED", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

/// Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw, as cachegrind orders them.
type Counts = [u64; 9];

fn cachegrind(program: &[String], geometry: [&str; 3], folder: &Path) -> Counts {
    let out = folder.join("cachegrind.out");
    let mut tool = vec![
        "--tool=cachegrind".to_string(),
        "--cache-sim=yes".to_string(),
        format!("--cachegrind-out-file={}", out.display()),
    ];
    for (name, text) in ["I1", "D1", "LL"].iter().zip(geometry) {
        let c = CacheConfig::parse(text, Some(LINE_BYTES)).unwrap();
        tool.push(format!("--{name}={},{},{}", c.size.0, c.ways, c.line_bytes));
    }
    let result = valgrind(&tool, program).output().expect("sh runs");
    let text = std::fs::read_to_string(&out).unwrap_or_else(|_| {
        panic!("cachegrind wrote nothing: {}", String::from_utf8_lossy(&result.stdout))
    });
    let line = |key: &str| {
        text.lines().find_map(|l| l.strip_prefix(key)).unwrap_or_else(|| panic!("no {key} line"))
    };
    assert_eq!(line("events: ").trim(), "Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw");
    let counts: Vec<u64> =
        line("summary: ").split_whitespace().map(|n| n.parse().unwrap()).collect();
    counts.try_into().unwrap()
}

/// One line of lackey's trace: `I  0401ab70,3`, ` L 1fff000678,8`, ` S ...`, ` M ...`.
fn lackey_line(line: &[u8]) -> Option<(u8, u64, u64)> {
    let kind = *line.get(..3)?.iter().find(|b| **b != b' ')?;
    if !b"ILSM".contains(&kind) {
        return None;
    }
    let (address, size) = std::str::from_utf8(line.get(3..)?).ok()?.trim().split_once(',')?;
    Some((kind, u64::from_str_radix(address, 16).ok()?, size.parse().ok()?))
}

fn model(program: &[String], geometry: [&str; 3]) -> Counts {
    let [i1, d1, ll] = geometry.map(|text| CacheConfig::parse(text, Some(LINE_BYTES)).unwrap());
    let mut caches = CountingCaches::new(Some(&i1), &d1, &ll).unwrap();
    let tool = ["--tool=lackey".to_string(), "--trace-mem=yes".to_string()];
    let mut child = valgrind(&tool, program).spawn().expect("sh runs");
    let mut trace = BufReader::with_capacity(1 << 20, child.stdout.take().unwrap());
    let mut line = Vec::new();
    while trace.read_until(b'\n', &mut line).unwrap() > 0 {
        match lackey_line(&line) {
            Some((b'I', address, size)) => caches.fetch(address, size),
            Some((b'S', address, size)) => caches.data(address, size, Kind::Write),
            Some((_, address, size)) => caches.data(address, size, Kind::Read),
            None => {}
        }
        line.clear();
    }
    child.wait().unwrap();
    let mut counts = [0; 9];
    for (out, level) in counts.chunks_mut(3).zip([caches.instructions, caches.reads, caches.writes])
    {
        out.copy_from_slice(&[level.references, level.first_level_misses, level.last_level_misses]);
    }
    counts
}

#[test]
fn misses_equal_cachegrinds_for_eight_programs() {
    assert!(
        Command::new("valgrind").arg("--version").output().is_ok(),
        "valgrind is not installed; run apt-get install valgrind"
    );
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("input");
    let lines: String = (1..500u64).map(|n| format!("{} line {n}\n", n * 7919 % 100_003)).collect();
    std::fs::write(&input, lines).unwrap();
    let input = input.display().to_string();

    let mut worst = 0.0f64;
    for (program, geometry) in CASES {
        let program: Vec<String> = program.iter().map(|a| a.replace("FILE", &input)).collect();
        let expected = cachegrind(&program, geometry, folder.path());
        let got = model(&program, geometry);
        println!("{:8} {geometry:?}\n  cachegrind {expected:?}\n  model      {got:?}", program[0]);
        assert!(expected[0] > 10_000, "{program:?} did not run");
        for (name, (got, expected)) in
            ["Ir", "I1mr", "ILmr", "Dr", "D1mr", "DLmr", "Dw", "D1mw", "DLmw"]
                .iter()
                .zip(got.into_iter().zip(expected))
        {
            let off = got.abs_diff(expected) as f64 / expected.max(1) as f64;
            worst = worst.max(off);
            assert!(off <= 0.01, "{}: {name} is {got}, cachegrind says {expected}", program[0]);
        }
    }
    println!("worst deviation {:.4} %", worst * 100.0);
}

#[test]
fn lackeys_lines_are_read_and_garbage_is_not() {
    assert_eq!(lackey_line(b"I  0401ab70,3\n"), Some((b'I', 0x401ab70, 3)));
    assert_eq!(lackey_line(b" M 1fff000678,16\n"), Some((b'M', 0x1fff000678, 16)));
    for garbage in [&b""[..], b"\n", b"==24642== Lackey", b"I  ,", b" L zz,8", b" S 1,", b" L 1"] {
        assert_eq!(lackey_line(garbage), None, "{garbage:?}");
    }
}
