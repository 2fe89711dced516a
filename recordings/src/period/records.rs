//! The frames of a recording put together to periods.

use std::collections::VecDeque;
use std::io::Read;

use terrace_core::plan::Outcome;
use terrace_core::scan::{Budget, Scan};

use super::frame::{Frame, RecordedDecision};
use super::{Header, PeriodReader};
use crate::container::Truncation;
use crate::error::RecordingError;

/// One period of one group, as far as it was recorded.
#[derive(Debug, Clone)]
pub struct PeriodRecord {
    /// Number of the group.
    pub group: usize,
    /// The scan.
    pub scan: Scan,
    /// The budget of the plan.
    pub budget: Option<Budget>,
    /// The decision.
    pub decision: Option<RecordedDecision>,
    /// The outcome of the plan.
    pub outcome: Option<Outcome>,
}

/// An event of a group.
#[derive(Debug, Clone)]
pub enum Record {
    /// A period passed.
    Period(Box<PeriodRecord>),
    /// Periods were lost.
    Lost {
        /// Number of the group.
        group: usize,
        /// Number of periods lost.
        periods: u32,
        /// The reason, for people.
        reason: String,
    },
    /// The group ended.
    Ended {
        /// Number of the group.
        group: usize,
    },
}

/// Iterates over the records of all groups; those of one group are in order.
#[derive(Debug)]
pub struct Records<R> {
    reader: PeriodReader<R>,
    open: Vec<Option<PeriodRecord>>,
    ready: VecDeque<Record>,
    /// Set at the end of the input, with the error that ended it, if any.
    end: Option<Option<RecordingError>>,
}

impl<R: Read> Records<R> {
    pub(super) fn new(reader: PeriodReader<R>) -> Self {
        let open = vec![None; reader.header().groups.len()];
        Records { reader, open, ready: VecDeque::new(), end: None }
    }

    /// The header of the recording.
    pub fn header(&self) -> &Header {
        self.reader.header()
    }

    /// Where the recording was cut off, if it was; known once the records have been read.
    pub fn truncation(&self) -> Option<&Truncation> {
        self.reader.truncation()
    }

    /// Completes the period of this group that is being assembled.
    fn close(&mut self, group: usize) {
        self.ready.extend(self.open[group].take().map(|r| Record::Period(Box::new(r))));
    }

    /// The record of this period to which a frame belongs; `None` if the chunk with its scan was
    /// skipped.
    fn open(&mut self, group: usize, period: u64) -> Option<&mut PeriodRecord> {
        self.open[group].as_mut().filter(|r| r.scan.period == period)
    }

    fn take_in(&mut self, frame: Frame) {
        match frame {
            Frame::Budget { group, period, budget } => {
                if let Some(record) = self.open(group, period) {
                    record.budget = Some(budget);
                }
            }
            Frame::Decision { group, period, decision } => {
                if let Some(record) = self.open(group, period) {
                    record.decision = Some(decision);
                }
            }
            Frame::Outcome { group, period, outcome } => {
                if let Some(record) = self.open(group, period) {
                    record.outcome = Some(outcome);
                }
            }
            Frame::Scan { group, scan } => {
                self.close(group);
                let (budget, decision, outcome) = (None, None, None);
                self.open[group] = Some(PeriodRecord { group, scan, budget, decision, outcome });
            }
            Frame::Lost { group, periods, reason } => {
                self.close(group);
                self.ready.push_back(Record::Lost { group, periods, reason });
            }
            Frame::Ended { group } => {
                self.close(group);
                self.ready.push_back(Record::Ended { group });
            }
        }
    }
}

impl<R: Read> Iterator for Records<R> {
    type Item = Result<Record, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && self.end.is_none() {
            match self.reader.next() {
                Some(Ok(frame)) => self.take_in(frame),
                end => {
                    (0..self.open.len()).for_each(|group| self.close(group));
                    self.end = Some(end.and_then(Result::err));
                }
            }
        }
        match self.ready.pop_front() {
            Some(record) => Some(Ok(record)),
            None => self.end.as_mut()?.take().map(Err),
        }
    }
}
