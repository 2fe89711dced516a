//! Common parts of the command-line tests: a folder to work in, the program, its output.

// Each test file is a program of its own and uses a part.
#![allow(dead_code)]

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// The program under test.
pub const TERRACE: &str = env!("CARGO_BIN_EXE_terrace");

/// An experiment that is over in no time.
pub const SMALL: &str = r#"name = "small"
period_ms = 1000
periods = 20
[[groups]]
name = "g"
policy = "amp"
fast_ratio = 0.5
[groups.workload]
kind = "lru-favor"
footprint_mib = 64
"#;

/// Whether the tests run as root.
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// A place with the experiment in `e.toml` and its results in `good`.
pub fn with_results() -> Place {
    let place = Place::new();
    place.write("e.toml", SMALL);
    place.run("run e.toml --out good").good();
    place
}

/// A file of the source tree.
pub fn tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// A folder that commands run in, removed at the end of the test.
pub struct Place(TempDir);

impl Place {
    /// An empty place.
    pub fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file into it.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// The program with these arguments, separated by blanks.
    pub fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(TERRACE);
        command.args(arguments.split_whitespace()).current_dir(self.0.path());
        command.env_remove("TERRACE_LOG");
        command
    }

    /// Runs it.
    pub fn run(&self, arguments: &str) -> Printed {
        Printed::new(arguments, self.command(arguments).output().unwrap())
    }

    /// Names in it, those of folders with a slash, sorted.
    pub fn names(&self) -> Vec<String> {
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            let entry = entry.unwrap();
            let slash = if entry.file_type().unwrap().is_dir() { "/" } else { "" };
            format!("{}{slash}", entry.file_name().to_string_lossy())
        };
        let mut names: Vec<_> = std::fs::read_dir(self.0.path()).unwrap().map(name).collect();
        names.sort();
        names
    }
}

/// Output and exit code of a command.
pub struct Printed {
    /// Its arguments.
    pub arguments: String,
    /// Its exit code.
    pub code: Option<i32>,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Printed {
    /// The output of a command with these arguments.
    pub fn new(arguments: &str, output: Output) -> Self {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Printed {
            arguments: arguments.to_owned(),
            code: output.status.code(),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }

    /// Success: exit code 0, and no panic on the way.
    #[track_caller]
    pub fn good(self) -> Self {
        assert_eq!(self.code, Some(0), "{self}");
        assert!(!self.err.contains("panicked"), "{self}");
        self
    }

    /// The JSON document that it wrote.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self}"))
    }

    /// Rejection: exit code 2 and one line that has all these words.
    #[track_caller]
    pub fn refused(&self, words: &[&str]) {
        self.failed(2, words);
    }

    /// Failure: this exit code and one line that has all these words.
    #[track_caller]
    pub fn failed(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self}");
        assert_eq!(self.out, "", "{self}");
        let lines: Vec<_> = self.err.lines().collect();
        assert!(lines.len() == 1 && lines[0].starts_with("terrace: "), "{self}");
        for word in words {
            assert!(lines[0].contains(word), "nothing of '{word}': {self}");
        }
    }
}

impl std::fmt::Display for Printed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Printed { arguments, code, out, err } = self;
        write!(f, "terrace {arguments}\nexit code {code:?}\n{out}{err}")
    }
}
