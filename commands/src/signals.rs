//! `terrace signals`: which signals of accesses this host has.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use terrace_core::InputError;
use terrace_core::bits::PageBits;
use terrace_core::page::{Layout, PageSize};
use terrace_linux::Source;
use terrace_linux::group_layout::LayoutReader;
use terrace_linux::roots::Roots;
use terrace_linux::samples::SampleReads;
use terrace_linux::samples::hub::{GroupPages, SampleHub};
use terrace_linux::signals::{Probe, SIGNALS};

use crate::show::{self, Format, say};

/// Instructions with the most samples that are shown.
const INSTRUCTIONS: usize = 8;

/// Show which signals of accesses this host has: accessed bits, hint faults, samples of reads.
#[derive(Args)]
pub struct Arguments {
    /// Read samples for so long, and show what came.
    #[arg(long, value_name = "MS")]
    read_ms: Option<u64>,
    /// Of the samples, show those of this process by range of 2 MB.
    #[arg(long, value_name = "PID", requires = "read_ms")]
    pid: Option<u32>,
    /// One sample in so many accesses, where the source can be asked for that.
    /// Without it, by what runs.
    #[arg(long, value_name = "READS", value_parser = clap::value_parser!(u32).range(1..))]
    sample_reads: Option<u32>,
    /// Format of the output.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

impl Arguments {
    /// Shows them, or reads.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        match self.read_ms {
            None => self.show()?,
            Some(ms) => self.read(Duration::from_millis(ms))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn reads(&self) -> SampleReads {
        self.sample_reads.map_or(SampleReads::Auto, SampleReads::OneIn)
    }

    fn show(&self) -> anyhow::Result<()> {
        let roots = Roots::default();
        let rows: Vec<Probe> =
            SIGNALS.iter().flat_map(|kind| (kind.probe)(&roots, self.reads())).collect();
        if self.format == Format::Json {
            let rows = rows.iter().map(|Probe { name, found }| {
                json!({ "signal": name, "available": found.is_ok(),
                        "by": found.as_ref().ok(), "reason": found.as_ref().err() })
            });
            return say!("{}", serde_json::to_string_pretty(&rows.collect::<Vec<_>>())?);
        }
        let mut table = show::table(&["signal", "here", "by what, or why not"]);
        for Probe { name, found } in &rows {
            let (here, text) = match found {
                Ok(text) => ("yes", text),
                Err(text) => ("no", text),
            };
            table.add_row([name, here, text]);
        }
        say!("{table}")
    }

    fn read(&self, time: Duration) -> anyhow::Result<()> {
        let roots = Roots::default();
        let hub = SampleHub::open(&roots, self.reads()).map_err(InputError::new)?;
        let layout = self.pid.map(|pid| layout(&roots, pid)).transpose()?;
        let group = hub.group(0, false);
        if let Some(layout) = &layout {
            group.follow(GroupPages { layout, processes: self.pid.as_slice(), moved: 0 })?;
        }
        let end = Instant::now() + time;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10).min(time));
            hub.poll();
        }
        let pages = layout.map(|layout| {
            let nowhere = PageBits::new(layout.pages());
            let counters = group.take(&layout, &nowhere).unwrap_or_default();
            let samples = counters.samples.unwrap_or_default();
            let of = |(page, &count): (usize, &u16)| (layout.address(page).1, count);
            samples.iter().enumerate().map(of).collect::<Vec<(u64, u16)>>()
        });
        let counts = hub.counts();
        if self.format == Format::Json {
            let document = json!({ "source": hub.source(), "counts": counts,
                                   "memory": hub.by_memory(), "pages": pages,
                                   "instructions": hub.by_instruction(INSTRUCTIONS) });
            return say!("{}", serde_json::to_string_pretty(&document)?);
        }
        say!("{}: {}", hub.source(), counts.line())?;
        let [local, remote] = hub.by_memory();
        say!("served by local memory: {local}, by remote memory: {remote}")?;
        for (address, count) in hub.by_instruction(INSTRUCTIONS) {
            say!("instruction {address:#x} {count}")?;
        }
        for (address, count) in pages.into_iter().flatten().filter(|(_, count)| *count > 0) {
            say!("{address:#x} {count}")?;
        }
        Ok(())
    }
}

/// The memory of a process, by range of 2 MB.
fn layout(roots: &Roots, pid: u32) -> anyhow::Result<Arc<Layout>> {
    let source = Source::Pids(vec![pid]);
    let reader = LayoutReader::new(roots.clone(), source, PageSize::Huge, 1 << 16);
    let group = reader.by_range(true).read(None)?;
    if group.layout.pages() == 0 {
        return Err(InputError::new(format!(
            "process {pid} has no memory in ranges of 2 MB; expected one that runs, as root"
        ))
        .into());
    }
    Ok(group.layout)
}
