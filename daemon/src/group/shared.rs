//! What a group's thread and the rest of the daemon share: what the group shows, and what others want
//! of it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use terrace_core::curve::HitCurve;
use terrace_core::heat::Heat as HeatMap;
use terrace_core::hotness::Hotness;
use terrace_core::page::VirtualRange;
use terrace_core::plan::{Direction, FailureReason};
use terrace_core::scan::Scan;

use crate::config::Settings;
use crate::slowdown::Assumed;
use crate::status::GroupStatus;

/// What a group shows: written once a period, read by whoever asks.
#[derive(Debug, Default)]
pub struct View {
    /// For status, screens and metrics.
    pub status: GroupStatus,
    /// The last scan.
    pub scan: Option<Scan>,
    /// Ages and histories, as of that scan.
    pub hotness: Hotness,
    /// What fast memory is worth to it.
    pub curve: HitCurve,
    /// Failed moves of the last period.
    pub failures: Vec<(VirtualRange, Direction, FailureReason)>,
    /// Accesses by address and period.
    pub heat: Option<Arc<Mutex<HeatMap>>>,
    /// What its policy could use in that period: pages of fast memory.
    pub budget_pages: u64,
}

/// What others want of a group.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pub(super) settings: Option<Settings>,
    pub(super) save: Option<PathBuf>,
    /// What is assumed of the program, if that has changed.
    pub(super) assumed: Option<Option<Assumed>>,
}

/// Shared between a group's thread and the rest.
#[derive(Debug, Default)]
pub struct Shared {
    pub(super) view: Mutex<View>,
    pub(super) orders: Mutex<Orders>,
    /// Ends it.
    pub stop: Arc<AtomicBool>,
    /// What partitioning gave it, in bytes; `None` before the first partitioning.
    pub(super) grant_bytes: Mutex<Option<u64>>,
    /// Its part of what all groups may move in a second, in bytes; 0: no bound.
    pub(super) bandwidth_bytes_per_s: AtomicU64,
    /// Its part of the processor time of all, in percent of one processor times 1,000; 0: no bound.
    pub(super) cpu_milli_percent: AtomicU64,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// What it shows.
    pub fn view(&self) -> MutexGuard<'_, View> {
        lock(&self.view)
    }

    /// Gives it so much fast memory, where it has a share.
    pub fn grant(&self, bytes: u64) {
        *lock(&self.grant_bytes) = Some(bytes);
    }

    /// What it was given, in bytes; `None` before the first partitioning.
    pub fn granted(&self) -> Option<u64> {
        *lock(&self.grant_bytes)
    }

    /// Sets its part of the daemon's budgets.
    pub fn limit(&self, bandwidth_bytes_per_s: Option<u64>, cpu_percent: Option<f64>) {
        self.bandwidth_bytes_per_s.store(bandwidth_bytes_per_s.unwrap_or(0), Ordering::Relaxed);
        let milli = cpu_percent.map_or(0, |p| ((p * 1000.0) as u64).max(1));
        self.cpu_milli_percent.store(milli, Ordering::Relaxed);
    }

    /// Changes its settings, from the next period on.
    pub fn configure(&self, settings: Settings) {
        lock(&self.orders).settings = Some(settings);
    }

    /// Changes what is assumed of its program.
    pub fn assume(&self, assumed: Option<Assumed>) {
        lock(&self.orders).assumed = Some(assumed);
    }

    /// Has it write its history into this folder, soon.
    pub fn save(&self, folder: PathBuf) {
        lock(&self.orders).save = Some(folder);
    }
}
