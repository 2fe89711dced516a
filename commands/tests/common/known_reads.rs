//! The program of `known_reads.c`, whose reads are known by page, and what it prints.

// Each test file is a program of its own and uses a part.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The program whose reads are known.
pub fn known_reads() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, program) = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a directory");
        let program = folder.path().join("known-reads");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/known_reads.c");
        let gcc = Command::new("gcc")
            .args(["-O2", "-static", "-o"])
            .args([&program, &source])
            .arg("-lm")
            .status();
        assert!(gcc.expect("gcc; apt-get install gcc libc6-dev").success());
        (folder, program)
    });
    program
}

/// What the program itself counted: reads by the address of each page.
pub fn counted(text: &str) -> BTreeMap<u64, f64> {
    let line = |line: &str| {
        let (address, count) = line.strip_prefix("reads ")?.split_once(' ')?;
        Some((address.parse().ok()?, count.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// Starts the program, has `reader` run meanwhile, and prints what the program counted.
pub fn beside_the_program(arguments: &str, reader: &str) -> String {
    format!(
        "known-reads {arguments} > /tmp/reads & P=$!
        until grep -q at /tmp/reads; do sleep 0.02; done
        {reader}
        until grep -q done /tmp/reads; do sleep 0.02; done
        cat /tmp/reads"
    )
}

/// Of the program's reads the share of base pages in fast memory when it ended, and the share that so many
/// whole ranges would have, the best of them.
pub fn fast_and_in_the_best(text: &str, ranges: usize) -> (f64, f64) {
    let fast = text.lines().find_map(|line| line.strip_prefix("fast ")).expect("a share");
    let fast = fast.parse::<f64>().expect("a number") / 1e5;
    let mut of_ranges: Vec<f64> = counted(text).into_values().collect();
    of_ranges.sort_by(|a, b| b.total_cmp(a));
    (fast, of_ranges[..ranges].iter().sum::<f64>() / of_ranges.iter().sum::<f64>())
}
