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
    let references = count(&mut *source).map_err(failed)?;
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
    let again = reference::source(experiment, group)?;
    write(file, &name, &header, again, choice)?;
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
