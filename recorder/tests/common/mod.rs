//! Shared parts of the tests: the plug-in, options, small programs.

// Each test file is a program of its own and uses some of it.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use terrace_recorder::Options;
use terrace_recorder::launch::default_filter;
use terrace_recordings::reference::{Filter, Level};

/// The plug-in, built beside this test; `None` where QEMU is missing.
pub fn plugin() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            if Command::new("qemu-x86_64").arg("--version").output().is_err() {
                eprintln!("no qemu-x86_64: apt-get install qemu-user; nothing is tested");
                return None;
            }
            let test = std::env::current_exe().unwrap();
            let target = test.parent().unwrap().parent().unwrap().parent().unwrap();
            let plugin = target.join("debug/libterrace_recorder_plugin.so");
            assert!(plugin.is_file(), "no {}: cargo build --workspace", plugin.display());
            Some(plugin)
        })
        .as_deref()
}

/// Options for a recording into this file.
pub fn options(out: &Path, level: Level) -> Options {
    Options {
        out: out.to_owned(),
        filter: Filter { level, ..default_filter() },
        qemu: None,
        qemu_libraries: None,
        plugin: plugin().map(Path::to_owned),
        created_by: "test".to_owned(),
    }
}

/// Compiles a program; gives its path.
pub fn compile(folder: &Path, flags: &[&str], source: &str) -> String {
    let (c, program) = (folder.join("p.c"), folder.join("p"));
    std::fs::write(&c, source).unwrap();
    let done = Command::new("gcc").args(["-O1", "-o"]).arg(&program).arg(&c).args(flags).status();
    assert!(done.unwrap().success());
    program.display().to_string()
}
