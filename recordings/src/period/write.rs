//! Writing a period recording as the periods happen.

use std::io::Write;
use std::path::{Path, PathBuf};

use terrace_core::plan::{Decision, Outcome};
use terrace_core::scan::{Budget, Scan};

use super::frame::Encoder;
use super::{CHUNK, CHUNK_BYTES, CONTENT, CONTENT_VERSION, Header, PERIODS_PER_CHUNK};
use crate::container::{ContainerWriter, PartialFile};
use crate::error::RecordingError;

/// Writes a period recording. Memory: one chunk and one scan per group.
///
/// Dropped before [`Self::finish`], it writes the pending frames and leaves the recording marked as
/// cut off.
pub struct PeriodWriter<W: Write> {
    /// Taken by `finish`.
    container: Option<ContainerWriter<W>>,
    header: Header,
    encoder: Encoder,
    pending: Vec<u8>,
    pending_periods: u32,
    /// First period of the pending chunk, and the last of any.
    key: u64,
    last_period: u64,
}

impl PeriodWriter<PartialFile> {
    /// Starts a recording in `path` with `.partial` appended; `finish` gives it its name.
    pub fn create(path: &Path, header: Header) -> Result<Self, RecordingError> {
        let name = path.display().to_string();
        let file = PartialFile::create(path).map_err(|source| RecordingError::Io {
            file: name.clone(),
            action: "create",
            source,
        })?;
        Self::new(file, &name, header)
    }

    /// Ends the recording, puts it on the disk under its name, and returns that.
    pub fn publish(self) -> Result<PathBuf, RecordingError> {
        let (file, name) = self.finish()?;
        file.publish().map_err(|source| RecordingError::Io { file: name, action: "finish", source })
    }
}

impl<W: Write> PeriodWriter<W> {
    /// Starts a recording on any stream; `name` is for error messages.
    pub fn new(out: W, name: &str, header: Header) -> Result<Self, RecordingError> {
        let container = ContainerWriter::new(out, name, CONTENT, CONTENT_VERSION, &header)?;
        Ok(PeriodWriter {
            container: Some(container),
            encoder: Encoder::new(header.groups.len()),
            header,
            pending: Vec::new(),
            pending_periods: 0,
            key: 0,
            last_period: 0,
        })
    }

    /// The scan of a group's tracker.
    pub fn scan(&mut self, group: usize, scan: &Scan) -> Result<(), RecordingError> {
        self.check_group(group)?;
        let (got, expected) = (scan.layout.page_size(), self.header.groups[group].page_size);
        if got != expected {
            return Err(self.bad_frame(format!(
                "a scan of group {group} in {got:?} pages, expected {expected:?}"
            )));
        }
        self.before_period()?;
        self.pending_periods += 1;
        self.last_period = self.last_period.max(scan.period);
        self.encoder.scan(&mut self.pending, group, scan);
        Ok(())
    }

    /// The budget of its plan.
    pub fn budget(
        &mut self,
        group: usize,
        period: u64,
        budget: &Budget,
    ) -> Result<(), RecordingError> {
        self.check_group(group)?;
        self.encoder.budget(&mut self.pending, group, period, budget);
        Ok(())
    }

    /// The decision of its policy.
    pub fn decision(
        &mut self,
        group: usize,
        period: u64,
        decision: &Decision,
    ) -> Result<(), RecordingError> {
        self.check_group(group)?;
        self.encoder.decision(&mut self.pending, group, period, decision);
        Ok(())
    }

    /// The outcome of the plan.
    pub fn outcome(
        &mut self,
        group: usize,
        period: u64,
        outcome: &Outcome,
    ) -> Result<(), RecordingError> {
        self.check_group(group)?;
        self.encoder.outcome(&mut self.pending, group, period, outcome);
        Ok(())
    }

    /// Scan, budget, decision and outcome of one period.
    pub fn period(
        &mut self,
        group: usize,
        scan: &Scan,
        budget: &Budget,
        decision: &Decision,
        outcome: &Outcome,
    ) -> Result<(), RecordingError> {
        self.scan(group, scan)?;
        self.budget(group, scan.period, budget)?;
        self.decision(group, scan.period, decision)?;
        self.outcome(group, scan.period, outcome)
    }

    /// The group's tracker lost periods.
    pub fn lost(&mut self, group: usize, periods: u32, reason: &str) -> Result<(), RecordingError> {
        self.check_group(group)?;
        self.before_period()?;
        self.encoder.lost(&mut self.pending, group, periods, reason);
        Ok(())
    }

    /// The group ended.
    pub fn ended(&mut self, group: usize) -> Result<(), RecordingError> {
        self.check_group(group)?;
        self.encoder.ended(&mut self.pending, group);
        Ok(())
    }

    /// Writes the pending frames to the file; they survive the death of the program.
    pub fn flush(&mut self) -> Result<(), RecordingError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if let Some(container) = &mut self.container {
            container.chunk(CHUNK, self.key, &self.pending)?;
        }
        self.pending.clear();
        self.pending_periods = 0;
        self.key = self.last_period + 1;
        self.encoder.begin_chunk();
        Ok(())
    }

    /// Ends the recording; returns the stream and its name.
    pub fn finish(mut self) -> Result<(W, String), RecordingError> {
        self.flush()?;
        let container = self.container.take().expect("finish is called once, by value");
        let name = container.name().to_owned();
        Ok((container.finish()?, name))
    }

    /// Starts another chunk where this one is full. Only between periods, so that a cut
    /// recording does not end inside one.
    fn before_period(&mut self) -> Result<(), RecordingError> {
        if self.pending_periods >= PERIODS_PER_CHUNK || self.pending.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn check_group(&self, group: usize) -> Result<(), RecordingError> {
        let groups = self.header.groups.len();
        if group < groups {
            return Ok(());
        }
        Err(self.bad_frame(format!("group {group}, but its header has {groups}")))
    }

    fn bad_frame(&self, message: String) -> RecordingError {
        let file = self.container.as_ref().map(|c| c.name().to_owned()).unwrap_or_default();
        RecordingError::BadFrame { file, message }
    }
}

impl<W: Write> Drop for PeriodWriter<W> {
    fn drop(&mut self) {
        // After `finish` nothing is pending; before it, an error here means only that less was
        // saved.
        let _ = self.flush();
    }
}
