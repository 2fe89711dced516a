//! By what the pages of a host are tracked and moved: the Terrace kernel's mechanisms where the
//! kernel has them, or those of a stock kernel.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::conflicts::{self, Conflict};
use crate::damon_sampler::DamonSampler;
use crate::kernel::{LiveKernel, PageKernel};
use crate::numa;
use crate::roots::Roots;
use crate::sampler::Sampler;
use crate::scan_sampler::ScanSampler;
use crate::session::{Session, SessionError};
use crate::tiermem::{Device, TiermemError};
use crate::tiermem_kernel::TiermemKernel;

/// Which mechanisms a run wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mechanisms {
    /// The Terrace kernel's where it has them, else a stock kernel's.
    #[default]
    Auto,
    /// A stock kernel's, on any kernel.
    Stock,
    /// The Terrace kernel's, and no run without them.
    Terrace,
}

impl Mechanisms {
    /// For serde: whether it need not be written.
    #[must_use]
    pub fn is_auto(&self) -> bool {
        *self == Mechanisms::Auto
    }
}

/// Threads that copy a batch of pages, at most (Nimble paper, section 4.2: four saturate a link).
const COPY_THREADS: usize = 4;

/// What was found.
pub(crate) struct Backend {
    device: Option<Arc<Device>>,
}

impl Backend {
    /// Looks for what is wanted.
    pub(crate) fn find(roots: &Roots, wanted: Mechanisms) -> Result<Self, TiermemError> {
        let device = match wanted {
            Mechanisms::Stock => None,
            Mechanisms::Terrace => Some(Device::open_at(&roots.tiermem())?),
            Mechanisms::Auto => match Device::open_at(&roots.tiermem()) {
                Ok(device) => Some(device),
                Err(TiermemError::Absent) => None,
                Err(error) => {
                    tracing::warn!(%error, "the kernel's stock mechanisms are used");
                    None
                }
            },
        };
        Ok(Backend { device: device.map(Arc::new) })
    }

    /// The device, if there is one and it is wanted.
    pub(crate) fn device(&self) -> Option<&Arc<Device>> {
        self.device.as_ref()
    }

    /// The device, if it reads accessed bits.
    fn scanner(&self) -> Option<&Arc<Device>> {
        self.device.as_ref().filter(|d| d.features().scan())
    }

    /// Whether groups need one of DAMON's kernel threads each.
    pub(crate) fn needs_damon(&self) -> bool {
        self.scanner().is_none()
    }

    /// Of what stands in a stock kernel's way, what stands in the way of these.
    pub(crate) fn conflicts_among(&self, found: Vec<Conflict>) -> Vec<Conflict> {
        if self.needs_damon() { found } else { conflicts::of_scans(found) }
    }

    /// What reads the accessed bits of a group.
    pub(crate) fn sampler(
        &self,
        roots: &Roots,
        session: &Arc<Session>,
        slot: usize,
        period: Duration,
    ) -> Box<dyn Sampler> {
        match self.scanner() {
            Some(device) => Box::new(ScanSampler::new(Arc::clone(device), period)),
            None => Box::new(DamonSampler::new(roots, Arc::clone(session), slot, period)),
        }
    }

    /// What moves pages.
    pub(crate) fn kernel(&self, roots: &Roots, move_shared: bool) -> Box<dyn PageKernel> {
        let stock = LiveKernel::new(roots.clone(), move_shared);
        match &self.device {
            Some(device) if device.features().migrate() || device.features().exchange() => {
                Box::new(TiermemKernel::new(stock, Arc::clone(device), move_shared))
            }
            _ => Box::new(stock),
        }
    }

    /// Settings that go with them, until the end of the run: batches are copied by several threads
    /// where there are processors for it.
    pub(crate) fn set_up(&self, roots: &Roots, session: &Session) -> Result<(), SessionError> {
        if self.device.as_ref().is_none_or(|d| !d.features().migrate()) {
            return Ok(());
        }
        let threads = numa::online_cpus(roots)?.len().clamp(1, COPY_THREADS);
        session.set(&roots.copy_threads(), &threads.to_string())
    }
}
