//! The signals of accesses that a host may have, a file each.
//!
//! [`accessed_bits`] are the signal that each period is made of, by a [`crate::sampler::Sampler`]. What
//! others know is added to the scan of a period, by one trait for all ([`GroupSignal`]): [`hint_faults`] raise the counts of
//! ranges, [`sampled_reads`] bring samples and latencies. Some know rates of base pages too, by which
//! those leave the tier of their range ([`crate::refiner`]).

mod accessed_bits;
mod hint_faults;
mod sampled_reads;

use std::sync::Arc;
use std::time::Duration;

use terrace_core::scan::Scan;

use crate::files::FileError;
use crate::host::{HostError, HostOptions};
use crate::refiner::BaseRates;
use crate::roots::Roots;
use crate::samples::hub::GroupPages;
use crate::samples::{self, SampleReads};
use crate::session::Session;
use crate::tiers::Topology;

/// A source of a signal on this host, as `terrace signals` shows it.
pub struct Probe {
    /// The signal's name.
    pub name: String,
    /// What gives it here, or why nothing does: a line.
    pub found: Result<String, String>,
}

/// What became of a signal in a run.
pub struct SignalReport {
    /// A line for status and notes.
    pub line: String,
    /// Counts by their keys in a run's details.
    pub details: serde_json::Map<String, serde_json::Value>,
}

/// What a signal may use of its host to be opened.
pub(crate) struct Opening<'a> {
    pub(crate) options: &'a HostOptions,
    pub(crate) session: &'a Arc<Session>,
    pub(crate) topology: &'a Topology,
}

/// A signal, or nothing where none is wanted or a run goes on without it.
pub(crate) type Opened = Result<Option<Arc<dyn HostSignal>>, HostError>;

/// A signal that a host may have.
pub struct SignalKind {
    /// Its name, which is also its file's.
    pub name: &'static str,
    /// Its sources and what is there of them, changing nothing. Where a source can be asked, for these
    /// accesses.
    pub probe: fn(&Roots, SampleReads) -> Vec<Probe>,
    /// Opens it for a run, by the run's options.
    pub(crate) open: fn(&Opening) -> Opened,
}

/// All signals, in the order in which they add to a scan. Of those that know base pages the first that is
/// open decides: samples are of both tiers, and cost the program next to nothing.
pub const SIGNALS: &[SignalKind] = &[accessed_bits::KIND, sampled_reads::KIND, hint_faults::KIND];

/// The signals that are open, by name, in the order of [`SIGNALS`].
pub(crate) type OpenSignals = Vec<(&'static str, Arc<dyn HostSignal>)>;

/// All that the options ask for.
pub(crate) fn open(opening: &Opening) -> Result<OpenSignals, HostError> {
    open_missing(SIGNALS, opening, &[])
}

/// Those of these kinds that the options ask for; of those that are open already, the same.
pub(crate) fn open_missing(
    kinds: &[SignalKind],
    opening: &Opening,
    opened: &[(&'static str, Arc<dyn HostSignal>)],
) -> Result<OpenSignals, HostError> {
    let mut signals = Vec::new();
    for kind in kinds {
        if let Some((name, signal)) = opened.iter().find(|(name, _)| *name == kind.name) {
            signals.push((*name, Arc::clone(signal)));
        } else if let Some(signal) = (kind.open)(opening)? {
            tracing::info!(signal = kind.name, "opened beside accessed bits");
            signals.push((kind.name, signal));
        }
    }
    Ok(signals)
}

/// Refuses what [`open`] would refuse, changing nothing.
pub(crate) fn check(options: &HostOptions) -> Result<(), HostError> {
    match options.sample_reads {
        SampleReads::Auto | SampleReads::NONE => Ok(()),
        reads => Ok(samples::open(&options.roots, reads).map(drop)?),
    }
}

/// A signal of all groups of a host.
pub(crate) trait HostSignal: Send + Sync {
    /// A group's part; `None` where such groups have none.
    fn join(self: Arc<Self>, slot: u32, by_range: bool) -> Option<Box<dyn GroupSignal>>;

    /// Rates of the base pages of a group by ranges, where they are known.
    fn base_rates(self: Arc<Self>, slot: u32) -> Option<Box<dyn BaseRates>>;

    /// What became of it so far.
    fn report(&self) -> SignalReport;
}

/// A group's part of a signal; when it is dropped the group has none.
pub(crate) trait GroupSignal: Send {
    /// A period begins with these pages, after so many calls that moved some; none moves until this
    /// returns.
    fn begin(&mut self, pages: GroupPages<'_>, period: Duration) -> Result<(), FileError>;

    /// Takes what has come: called some times a period.
    fn poll(&self);

    /// Adds what came in a period to its scan.
    fn add_to(&self, scan: &mut Scan);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conflicts::Intent;
    use crate::testing::clean_host;
    use crate::tiers;

    /// Of a host that has neither a source of samples nor a bound on promotions.
    #[test]
    fn samples_that_are_wanted_are_had_or_refused_and_hint_faults_are_left_out() {
        let (_host, roots) = clean_host();
        let session = Arc::new(Session::open(&roots, None).unwrap());
        let topology = tiers::discover(&roots).unwrap();
        let opened = |sample_reads, hint_faults| {
            let options = HostOptions {
                roots: roots.clone(),
                sample_reads,
                hint_faults,
                fix_conflicts: true,
                ..HostOptions::new(Intent::of([]))
            };
            let opening = Opening { options: &options, session: &session, topology: &topology };
            open(&opening).map(|signals| signals.len())
        };
        assert_eq!(opened(SampleReads::NONE, false).unwrap(), 0);
        assert_eq!(opened(SampleReads::NONE, true).unwrap(), 0);
        assert_eq!(opened(SampleReads::Auto, false).unwrap(), 0, "bits alone, and no refusal");
        let error = opened(SampleReads::OneIn(1000), false).unwrap_err();
        assert!(matches!(error, HostError::Samples(_)), "{error}");
        assert!(error.is_permanent() && error.to_string().contains("terrace signals"), "{error}");
    }

    struct Nothing;

    impl HostSignal for Nothing {
        fn join(self: Arc<Self>, _: u32, _: bool) -> Option<Box<dyn GroupSignal>> {
            None
        }
        fn base_rates(self: Arc<Self>, _: u32) -> Option<Box<dyn BaseRates>> {
            None
        }
        fn report(&self) -> SignalReport {
            SignalReport { line: String::new(), details: serde_json::Map::new() }
        }
    }

    #[test]
    fn what_a_dry_run_left_out_is_opened_after_it_and_the_rest_stays() {
        let (_host, roots) = clean_host();
        let session = Arc::new(Session::open(&roots, None).unwrap());
        let topology = tiers::discover(&roots).unwrap();
        let always: fn(&Opening) -> Opened = |_| Ok(Some(Arc::new(Nothing)));
        let changing: fn(&Opening) -> Opened = |opening| match opening.options.dry_run {
            true => Ok(None),
            false => Ok(Some(Arc::new(Nothing))),
        };
        let kind = |name, open| SignalKind { name, probe: |_, _| Vec::new(), open };
        let kinds = [kind("always", always), kind("changing", changing)];
        let missing = |dry_run, opened: &OpenSignals| {
            let options =
                HostOptions { roots: roots.clone(), dry_run, ..HostOptions::new(Intent::of([])) };
            let opening = Opening { options: &options, session: &session, topology: &topology };
            open_missing(&kinds, &opening, opened).unwrap()
        };
        let dry = missing(true, &Vec::new());
        let after = missing(false, &dry);
        let names = |open: &OpenSignals| open.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        assert_eq!((names(&dry), names(&after)), (vec!["always"], vec!["always", "changing"]));
        assert!(Arc::ptr_eq(&dry[0].1, &after[0].1));
    }

    #[test]
    fn each_signal_is_probed_and_has_a_file_of_its_name() {
        let (_host, roots) = clean_host();
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/signals");
        for kind in SIGNALS {
            assert!(folder.join(format!("{}.rs", kind.name)).is_file(), "{}", kind.name);
            assert!(!(kind.probe)(&roots, SampleReads::Auto).is_empty(), "{}", kind.name);
        }
    }
}
