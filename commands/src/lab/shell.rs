//! `terrace lab --shell`: a terminal in the virtual machine, with a workload that terraced manages.

use std::path::{Path, PathBuf};

use terrace_core::InputError;
use terrace_lab::{GuestFile, GuestJob, Program, find_program};
use terrace_workloads::live::LiveProgram;

use crate::terminal::Screen;

/// Starts all of it in the guest.
const START: &str = include_str!("shell.sh");

/// The workload where none is given: 256 MB, of which 48 MB are hot, others every minute.
const WORKLOAD: [&str; 12] = [
    "terrace-workload",
    "hotcold",
    "--pages",
    "128",
    "--hot",
    "24",
    "--pause-ms",
    "100",
    "--shift-every-ms",
    "60000",
    "--duration-ms",
    "1000000000",
];

/// The configuration of terraced.
fn configuration(own: bool) -> String {
    let limit = if own { "fast_ratio = 0.5       # of its pages" } else { "fast = \"96M\"" };
    format!(
        "# What terraced manages in this machine. After a change: terrace reload.\n\
         [[groups]]\n\
         name = \"workload\"\n\
         cgroup = \"/workload\"\n\
         {limit}\n"
    )
}

/// The job: `command` is the workload, where there is one.
pub fn job(command: &[String]) -> anyhow::Result<GuestJob> {
    if !Screen::is_there() {
        return Err(InputError::new(
            "--shell: standard input or output is no terminal; expected one, or give a command",
        )
        .into());
    }
    let file = |text: String, to: &str| GuestFile::Bytes {
        bytes: text.into_bytes(),
        mode: 0o644,
        to: PathBuf::from(to),
    };
    let mut job = GuestJob::new("sh").args(["/srv/shell.sh"]).terminal();
    job.files.push(file(START.to_owned(), "/srv/shell.sh"));
    job.files.push(file(configuration(!command.is_empty()), "/etc/terrace/terraced.toml"));
    job.programs.push(Program::host(std::env::current_exe()?));
    job.programs.push(Program::host(terraced()?));
    job.directory = PathBuf::from("/root");
    if let Ok(kind) = std::env::var("TERM") {
        job = job.env("TERM", kind);
    }
    let Some(program) = command.first() else {
        let LiveProgram::Host(workload) = LiveProgram::own().map_err(InputError::new)? else {
            anyhow::bail!(
                "'terrace-workload' is a program of this host and was looked for elsewhere"
            );
        };
        return Ok(job.program(Program::host(workload)).args(WORKLOAD));
    };
    if let Some(path) = find_program(program.as_ref()) {
        job = job.program(Program::host(path));
    }
    // By its name: the guest finds it on its PATH, wherever it was put.
    let name =
        Path::new(program).file_name().map_or(program.as_str().into(), |n| n.to_string_lossy());
    Ok(job.args([name.into_owned()]).args(&command[1..]))
}

/// terraced: beside this program as built, in `sbin` as installed, else on `PATH`.
fn terraced() -> anyhow::Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let places = ["terraced", "../sbin/terraced"];
    let beside = places.iter().map(|place| exe.with_file_name(place)).find(|path| path.is_file());
    let found = beside.or_else(|| find_program("terraced".as_ref()));
    found.ok_or_else(|| {
        InputError::new(
            "--shell: no 'terraced' beside this program or on PATH; install or build it",
        )
        .into()
    })
}
