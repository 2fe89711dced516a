//! Boots the virtual two-tier machine and runs a command in it:
//!
//! `cargo run -p terrace-lab --example boot -- [--program PATH]... [--package PACKAGE:PROGRAM]...
//! [--file FROM:TO]... [--result PATH]... [--out DIR] [--fast-mib N] [--slow-mib N] [--kvm|--tcg] [--tcg-threads]
//! [--kernel PATH] [--kernel-arg WORD]... [--qemu-arg WORD]... [--timeout-s N] COMMAND [ARG]...`

use std::time::Duration;

use anyhow::{Context, Result, bail};
use terrace_lab::{Accel, Event, GuestJob, Kernel, Lab, LabConfig, Program, TcgThreads};

fn main() -> Result<()> {
    let mut config = LabConfig::default();
    let mut job = GuestJob::new("");
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if !word.starts_with("--") {
            job.command = word;
            break;
        }
        let machine = &mut config.machine;
        match word.as_str() {
            "--kvm" => machine.accel = Accel::Kvm,
            "--tcg" => machine.accel = Accel::Tcg,
            "--tcg-threads" => machine.tcg_threads = TcgThreads::Multi,
            option => {
                let value = words.next().with_context(|| format!("{option}: expected a value"))?;
                let pair = || value.split_once(':').with_context(|| format!("{value}: no colon"));
                match option {
                    "--program" => job.programs.push(Program::host(value)),
                    "--package" => job.programs.push(Program::package(pair()?.0, pair()?.1)),
                    "--file" => job = job.clone().file(pair()?.0, pair()?.1),
                    "--result" => job.results.push(value.into()),
                    "--out" => job.results_dir = Some(value.into()),
                    "--fast-mib" => machine.fast_bytes = value.parse::<u64>()? << 20,
                    "--slow-mib" => machine.slow_bytes = value.parse::<u64>()? << 20,
                    "--kernel" => machine.kernel = Kernel::Path(value.into()),
                    "--kernel-arg" => machine.kernel_args.push(value),
                    "--qemu-arg" => machine.extra_qemu_args.push(value),
                    "--timeout-s" => machine.timeout = Duration::from_secs(value.parse()?),
                    _ => bail!("unknown option {option}"),
                }
            }
        }
    }
    job.args = words.collect();
    if job.command.is_empty() {
        bail!("no command given");
    }
    let result = Lab::new(config)?.run(&job, |event| match event {
        Event::Stdout(line) => println!("{line}"),
        Event::Stderr(line) => eprintln!("{line}"),
        Event::Console(line) => eprintln!("console: {line}"),
        Event::Preparing(text) => eprintln!("lab: {text}"),
        Event::Starting { accel, initramfs_bytes } => {
            eprintln!("lab: starting with {accel}, {initramfs_bytes} bytes of initramfs");
        }
        Event::Booted { kernel_release, boot_ms } => {
            eprintln!("lab: {kernel_release} up after {boot_ms} ms");
        }
    })?;
    eprintln!("lab: exit code {} after {} ms", result.exit_code, result.run_ms);
    for path in &result.missing_results {
        eprintln!("lab: no {}", path.display());
    }
    if let Some(dir) = result.results_dir() {
        eprintln!("lab: results in {}", dir.display());
    }
    std::process::exit(result.exit_code);
}
