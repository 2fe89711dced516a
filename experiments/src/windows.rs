//! Takes windows of a workload: short parts from which `estimate` has the time of the whole.

use std::path::Path;

use anyhow::Context;
use terrace_core::refuse;
use terrace_recordings::container::PartialFile;
use terrace_recordings::windows::{Header, WindowsWriter};
use terrace_simulated::reference::ReferenceSource;
pub use terrace_simulated::reference::windows::Choice;
use terrace_simulated::reference::windows::{count, take};

use crate::file::{Experiment, GroupSpec};
use crate::reference;
use crate::run::{Event, Events};
use crate::unfinished::Unfinished;

/// A program must make so many times the references of all windows: else it is as well run whole.
const LEAST_TIMES: u64 = 2;

/// The only group of an experiment.
pub(crate) fn only_group(experiment: &Experiment) -> anyhow::Result<&GroupSpec> {
    match &experiment.groups[..] {
        [group] => Ok(group),
        groups => {
            Err(refuse!("{} groups: expected one, windows are of one program each", groups.len())
                .into())
        }
    }
}

/// Takes windows of the workload of the only group of an experiment. Returns its header.
pub fn windows(
    experiment: &Experiment,
    out: &Path,
    choice: &Choice,
    events: &mut dyn Events,
) -> anyhow::Result<Header> {
    let group = only_group(experiment)?;
    let mut source = reference::source(experiment, group)?;
    let known = reference::known_references(experiment, group)?;
    let references = match known {
        Some(references) => references,
        None => count(&mut *source).map_err(failed)?,
    };
    let needed = choice.windows.saturating_mul(choice.window_and_lead()) * LEAST_TIMES;
    if references < needed {
        return Err(refuse!(
            "the program makes {references} loads and stores: expected at least {needed} for {} \
             windows of {}; take fewer or shorter ones, or run it whole",
            choice.windows,
            choice.window_references,
        )
        .into());
    }
    let header = Header {
        workload: reference::workload_name(&group.workload),
        threads: source.threads().clamp(1, usize::from(u16::MAX)) as u16,
        footprint_bytes: source.footprint_bytes(),
        references,
        windows: choice.windows,
        window_references: choice.window_references,
        lead_references: choice.lead_references,
        lines: choice.lines,
        seed: choice.seed,
        experiment: toml::to_string(experiment).context("the experiment as text")?,
        created_by: terrace_identity::created_by("terrace"),
    };
    let name = out.display().to_string();
    let file = PartialFile::create(out)
        .map_err(|e| refuse!("{name}: {e}; expected a path that can be written"))?;
    let _unfinished = Unfinished::of(out);
    let text = format!("taking windows from {references} loads and stores");
    events.event(Event::Stage(&text));
    if known.is_none() {
        source = reference::source(experiment, group)?;
    }
    write(file, &name, &header, source, choice)?;
    Ok(header)
}

fn write(
    file: PartialFile,
    name: &str,
    header: &Header,
    mut source: Box<dyn ReferenceSource>,
    choice: &Choice,
) -> anyhow::Result<()> {
    let mut writer = WindowsWriter::new(file, name, header)?;
    let mut failure = None;
    let tail = take(&mut *source, header.references, choice, &mut |window| {
        writer.window(window).map_err(|e| {
            let text = terrace_recordings::source::SourceError(e.to_string());
            failure = Some(e);
            text
        })
    });
    if let Some(failure) = failure {
        return Err(failure.into());
    }
    let file = writer.finish(&tail.map_err(failed)?).context("writing the windows")?;
    file.publish().with_context(|| format!("writing {name}"))?;
    Ok(())
}

fn failed(error: terrace_recordings::source::SourceError) -> anyhow::Error {
    anyhow::anyhow!(error.0)
}

#[cfg(test)]
mod tests {
    use terrace_recordings::reference::{
        CacheShape, Filter, Level, Process, Reference, ReferenceBuilder,
    };

    use super::*;
    use crate::run::Quiet;

    /// A shell's 30,000 references, and the 50,000 of the two threads of the program that it begins.
    fn recording(path: &Path) {
        let shape = CacheShape { size_bytes: 32 << 10, ways: 8 };
        let filter = Filter {
            level: Level::None,
            line_bytes: 64,
            l1: shape,
            l2: shape,
            llc: shape,
            sample_one_in: 1,
        };
        let header = terrace_recordings::reference::Header {
            command: vec!["sh".to_owned()],
            filter,
            base_page_bytes: 4096,
            huge_page_bytes: 2 << 20,
            write_backs: false,
            created_by: "test".to_owned(),
            executed_by: "test".to_owned(),
        };
        let file = std::fs::File::create(path).unwrap();
        let mut builder = ReferenceBuilder::new(file, "r", &header).unwrap();
        for process in [0, 1] {
            builder.process(&Process { process, system_id: process, command: vec![] }).unwrap();
        }
        for n in 0..30_000 {
            for (stream, process, most) in [(0, 0, 30_000), (1, 1, 25_000), (2, 1, 25_000)] {
                if n < most {
                    let address = (1 << 20) + 64 * (n % 1000);
                    let reference = Reference { address, size_log2: 3, store: false };
                    builder.reference(stream, process, n, reference).unwrap();
                }
            }
        }
        builder.finish(false).unwrap();
    }

    #[test]
    fn references_of_a_recording_are_known_and_are_those_of_one_process() {
        let folder = tempfile::tempdir().unwrap();
        recording(&folder.path().join("r.tref"));
        for (process, expected) in [("", 50_000), ("process = 0, ", 30_000)] {
            let text = format!(
                "name = \"e\"\nperiod_ms = 1\nperiods = 1\n[machine]\nfidelity = \"trace\"\n\
                 [[groups]]\nname = \"g\"\nfast_ratio = 0.5\npage_size = \"4K\"\n\
                 workload = {{ kind = \"recording\", {process}path = \"r.tref\" }}\n"
            );
            let experiment = Experiment::parse(&text, folder.path().into()).unwrap();
            let group = only_group(&experiment).unwrap();
            let known = reference::known_references(&experiment, group).unwrap();
            assert_eq!(known, Some(expected));
            let mut source = reference::source(&experiment, group).unwrap();
            assert_eq!(count(&mut *source).unwrap(), expected);
            let choice = Choice {
                windows: 8,
                window_references: 1000,
                lead_references: 100,
                lines: 1000,
                seed: 1,
            };
            let out = folder.path().join("w.twin");
            let header = windows(&experiment, &out, &choice, &mut Quiet).unwrap();
            assert_eq!(header.references, expected);
            let reader = terrace_recordings::windows::WindowsReader::open(&out).unwrap();
            assert_eq!(reader.header().windows, 8);
        }
    }
}
