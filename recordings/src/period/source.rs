//! The accessed pages of one group of a recording, for the simulated machine: so that one
//! recording compares all policies.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use terrace_core::scan::Scan;

use super::frame::Frame;
use super::{Header, PeriodReader};
use crate::container::Truncation;
use crate::error::RecordingError;
use crate::source::{PeriodAccesses, PeriodSource, SourceError};

/// Yields the accessed pages of one group of a recording. A recording that was cut off ends at the
/// cut: [`Self::is_whole`] shows that beforehand, [`Self::truncation`] afterwards.
#[derive(Debug)]
pub struct RecordingSource<R> {
    reader: PeriodReader<R>,
    group: usize,
    /// Read ahead, for the initial placement.
    first: Option<Scan>,
    whole: Option<bool>,
}

impl RecordingSource<BufReader<File>> {
    /// The group of this name in the recording in this file.
    pub fn open(path: &Path, group: &str) -> Result<Self, RecordingError> {
        let mut reader = PeriodReader::open(path)?;
        let group = reader.group(group)?;
        let whole = reader.is_whole()?;
        Ok(RecordingSource { whole: Some(whole), ..Self::new(reader, group)? })
    }
}

impl<R: Read> RecordingSource<R> {
    /// The group with this number in the recording that `reader` is at the start of.
    pub fn new(reader: PeriodReader<R>, group: usize) -> Result<Self, RecordingError> {
        let mut source = RecordingSource { reader, group, first: None, whole: None };
        source.first = source.next_scan()?;
        Ok(source)
    }

    /// The header of the recording.
    pub fn header(&self) -> &Header {
        self.reader.header()
    }

    /// Whether the recording was finished; `None` where that is not known before its end.
    pub fn is_whole(&self) -> Option<bool> {
        self.whole
    }

    /// Where the recording was cut off, if it was; known once the source has ended.
    pub fn truncation(&self) -> Option<&Truncation> {
        self.reader.truncation()
    }

    /// The first scan, before it has been yielded: a simulation may start with its layout and
    /// placement.
    pub fn first_scan(&self) -> Option<&Scan> {
        self.first.as_ref()
    }

    fn next_scan(&mut self) -> Result<Option<Scan>, RecordingError> {
        for frame in self.reader.by_ref() {
            match frame? {
                Frame::Scan { group, scan } if group == self.group => return Ok(Some(scan)),
                Frame::Ended { group } if group == self.group => return Ok(None),
                _ => {}
            }
        }
        Ok(None)
    }
}

impl<R: Read + Send> PeriodSource for RecordingSource<R> {
    fn next_period(&mut self) -> Result<Option<PeriodAccesses>, SourceError> {
        let scan = match self.first.take() {
            Some(scan) => Some(scan),
            None => self.next_scan().map_err(|e| SourceError(e.to_string()))?,
        };
        Ok(scan.map(|scan| PeriodAccesses {
            layout: scan.layout,
            accessed: scan.accessed,
            lost_periods: scan.lost_periods,
        }))
    }
}
