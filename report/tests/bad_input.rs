//! Results that are missing, damaged or impossible: an error of one line, never a panic.

mod common;

use std::path::Path;
use std::sync::OnceLock;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tempfile::TempDir;
use terrace_report::{ReportMeta, Results, html, json, text_table};
use terrace_results::{Column, Kind, Table, TableWriter, Value};

const FILES: [&str; 3] = ["runs.parquet", "periods.parquet", "heat.parquet"];

fn results() -> &'static Results {
    static RESULTS: OnceLock<Results> = OnceLock::new();
    RESULTS.get_or_init(|| {
        let mut results = Results::default();
        let workload = common::Workload::Zipf;
        common::simulate(&mut results, ("a", "lru", "g"), workload, 4);
        common::simulate(&mut results, ("b", "amp", "g"), workload, 4);
        results
    })
}

fn written() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    common::write(results(), directory.path());
    directory
}

/// The error of reading: it names the file and is one line.
fn refused(directory: &Path, file: &str) -> String {
    let error = Results::read(directory).unwrap_err().to_string();
    assert!(error.contains(file), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

#[test]
fn a_missing_file_is_named() {
    for file in FILES {
        let directory = written();
        std::fs::remove_file(directory.path().join(file)).unwrap();
        let error = refused(directory.path(), file);
        assert!(error.contains("expected") && error.contains("terrace run"), "{error}");
    }
    refused(Path::new("no/such/directory"), "runs.parquet");
}

#[test]
fn a_file_that_is_none_is_named() {
    for file in FILES {
        let directory = written();
        for garbage in ["", "PAR1", "PAR1\u{0}\u{0}\u{0}\u{0}PAR1", "not at all"] {
            std::fs::write(directory.path().join(file), garbage).unwrap();
            refused(directory.path(), file);
        }
        let whole = written();
        let bytes = std::fs::read(whole.path().join(file)).unwrap();
        std::fs::write(directory.path().join(file), &bytes[..bytes.len() / 2]).unwrap();
        refused(directory.path(), file);
        std::fs::remove_file(directory.path().join(file)).unwrap();
        std::fs::create_dir(directory.path().join(file)).unwrap();
        refused(directory.path(), file);
    }
}

/// A table of runs that lacks all columns but one.
struct Poor;

impl Table for Poor {
    const NAME: &'static str = "runs";
    fn columns() -> Vec<Column> {
        vec![Column { name: "run", kind: Kind::Text, nullable: false }]
    }
    fn values(&self) -> Vec<Option<Value>> {
        vec![Some(Value::Text("r".to_owned()))]
    }
    fn from_values(_: Vec<Option<Value>>) -> Result<Self, &'static str> {
        Ok(Poor)
    }
}

#[test]
fn a_missing_column_is_named() {
    let directory = written();
    let mut writer = TableWriter::create(directory.path()).unwrap();
    writer.push(Poor).unwrap();
    writer.finish().unwrap();
    let error = refused(directory.path(), "runs.parquet");
    assert!(error.contains("experiment") && error.contains("again"), "{error}");
}

#[test]
fn no_runs_are_no_results() {
    let directory = written();
    common::write(&Results { runs: Vec::new(), ..results().clone() }, directory.path());
    let error = refused(directory.path(), "runs.parquet");
    assert!(error.contains("got no runs"), "{error}");
}

#[test]
fn a_share_beyond_its_bounds_is_refused() {
    type Spoil = fn(&mut Results, f64);
    let spoils: [(&str, &str, Spoil); 4] = [
        ("runs.parquet", "hit_ratio", |r, v| r.runs[1].hit_ratio = v),
        ("runs.parquet", "applied_main_share", |r, v| r.runs[1].applied_main_share = v),
        ("periods.parquet", "stability", |r, v| r.periods[1].stability = v),
        ("heat.parquet", "fast_share", |r, v| r.heat[1].fast_share = v),
    ];
    for (file, column, spoil) in spoils {
        for value in [-0.5, 57.3, f64::INFINITY, f64::NEG_INFINITY] {
            let directory = tempfile::tempdir().unwrap();
            let mut spoilt = results().clone();
            spoil(&mut spoilt, value);
            common::write(&spoilt, directory.path());
            let error = refused(directory.path(), file);
            assert!(error.contains(column) && error.contains("row 2"), "{error}");
            assert!(error.contains("expected a share from 0 to 1"), "{error}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(6),
        ..ProptestConfig::default()
    })]

    /// Damage anywhere in a file is an error or goes unnoticed; nothing panics, and what is read
    /// can be shown.
    #[test]
    fn damaged_files_do_not_panic(
        file in 0..FILES.len(),
        at in any::<prop::sample::Index>(),
        change in 1u8..,
        cut in any::<prop::sample::Index>(),
        cuts in prop::bool::weighted(0.2),
    ) {
        static FILES_WRITTEN: OnceLock<TempDir> = OnceLock::new();
        let whole = FILES_WRITTEN.get_or_init(written);
        let directory = tempfile::tempdir().unwrap();
        for name in FILES {
            std::fs::copy(whole.path().join(name), directory.path().join(name)).unwrap();
        }
        let path = directory.path().join(FILES[file]);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        if cuts {
            bytes.truncate(cut.index(bytes.len()));
        }
        std::fs::write(&path, bytes).unwrap();
        match Results::read(directory.path()) {
            Err(error) => prop_assert!(error.to_string().contains(".parquet")),
            Ok(results) => {
                html(&results, &ReportMeta::default());
                text_table(&results, 100);
                json(&results);
            }
        }
    }
}
