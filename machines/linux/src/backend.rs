//! The mechanisms by which the pages of a host are tracked and moved: the Terrace kernel's where
//! the kernel has them, or those of a stock kernel.

use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};

use crate::conflicts::{self, Conflict};
use crate::damon;
use crate::damon_sampler::DamonSampler;
use crate::kernel::{LiveKernel, PageKernel};
use crate::numa;
use crate::roots::Roots;
use crate::sampler::Sampler;
use crate::sampling::Samples;
use crate::scan_sampler::ScanSampler;
use crate::session::{Session, SessionError};
use crate::tiermem::{Device, TiermemError};
use crate::tiermem_kernel::TiermemKernel;

/// The mechanisms that a run requests.
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
    /// For serde: whether the default need not be written.
    #[must_use]
    pub fn is_auto(&self) -> bool {
        *self == Mechanisms::Auto
    }
}

/// The mechanism that reads accessed bits of pages on this host; or why there is none.
pub fn accessed_bits(roots: &Roots) -> Result<String, String> {
    let scans = Device::open_at(&roots.tiermem()).is_ok_and(|device| device.features().scan());
    let kdamonds = roots.kdamonds();
    if scans {
        Ok("scan: the Terrace kernel's own (TM_SCAN)".to_owned())
    } else if !kdamonds.exists() {
        Err("this kernel has neither DAMON nor the Terrace kernel's scan".to_owned())
    } else if access(kdamonds.join("nr_kdamonds"), Access::WRITE_OK).is_err() {
        Err("this kernel has DAMON, which may not be used by this user: run as root".to_owned())
    } else if let Ok(Some(operations)) = damon::lacks_operations(roots) {
        Err(format!(
            "this kernel's DAMON observes no programs (it has {operations}); expected CONFIG_DAMON_VADDR"
        ))
    } else {
        Ok("damon: a stock kernel's, a bit a page or samples of it".to_owned())
    }
}

/// Threads that copy a batch of pages, at most (Nimble paper, section 4.2: four saturate a link).
const COPY_THREADS: usize = 4;

/// The mechanisms in use.
pub(crate) struct Backend {
    device: Option<Arc<Device>>,
    /// Their names and the reason for them.
    reason: String,
}

impl Backend {
    /// Selects the mechanisms.
    pub(crate) fn find(roots: &Roots, wanted: Mechanisms) -> Result<Self, TiermemError> {
        let path = roots.tiermem();
        let opened = match wanted {
            Mechanisms::Stock => None,
            Mechanisms::Terrace => Some(Ok(Device::open_at(&path)?)),
            Mechanisms::Auto => Some(Device::open_at(&path)),
        };
        let (device, reason) = match opened {
            None => (None, "a stock kernel's, as asked for".to_owned()),
            Some(Ok(device)) => {
                let names: Vec<&str> = device
                    .features()
                    .all()
                    .filter(|(_, _, is_there)| *is_there)
                    .map(|(name, ..)| name)
                    .collect();
                let reason = format!("the Terrace kernel's ({})", names.join(", "));
                (Some(Arc::new(device)), reason)
            }
            // The kernel has the device and this process cannot see it, because of the service
            // manager.
            Some(Err(TiermemError::Absent)) if roots.tiermem_class().exists() => {
                let reason = format!(
                    "a stock kernel's: this kernel has tiermem, but {} is not there; let the service see it (no PrivateDevices, DeviceAllow={} rw)",
                    path.display(),
                    path.display()
                );
                tracing::warn!("{reason}");
                (None, reason)
            }
            Some(Err(TiermemError::Absent)) => {
                (None, format!("a stock kernel's: there is no {}", path.display()))
            }
            Some(Err(error)) => {
                let reason =
                    format!("a stock kernel's: {} cannot be used: {error}", path.display());
                tracing::warn!("{reason}");
                (None, reason)
            }
        };
        tracing::info!(mechanisms = reason, "found");
        Ok(Backend { device, reason })
    }

    /// Which mechanisms these are and why.
    pub(crate) fn reason(&self) -> &str {
        &self.reason
    }

    /// The device, if it is there and requested.
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

    /// Of the conflicts with a stock kernel's mechanisms, those that concern these.
    pub(crate) fn conflicts_among(&self, found: Vec<Conflict>) -> Vec<Conflict> {
        if self.needs_damon() { found } else { conflicts::of_scans(found) }
    }

    /// The sampler of a group's accessed bits.
    pub(crate) fn sampler(
        &self,
        roots: &Roots,
        session: &Arc<Session>,
        slot: usize,
        period: Duration,
        samples: Samples,
    ) -> Box<dyn Sampler> {
        match self.scanner() {
            Some(device) => {
                Box::new(ScanSampler::new(Arc::<Device>::clone(device), period, samples))
            }
            None => Box::new(DamonSampler::new(roots, Arc::clone(session), slot, period, samples)),
        }
    }

    /// The calls that move pages.
    pub(crate) fn kernel(&self, roots: &Roots, move_shared: bool) -> Box<dyn PageKernel> {
        let stock = LiveKernel::new(roots.clone(), move_shared);
        match &self.device {
            Some(device) if device.features().migrate() || device.features().exchange() => {
                Box::new(TiermemKernel::new(stock, Arc::clone(device), move_shared))
            }
            _ => Box::new(stock),
        }
    }

    /// Makes the settings of these mechanisms, until the end of the run: batches are copied by
    /// several threads where there are processors for it.
    pub(crate) fn set_up(&self, roots: &Roots, session: &Session) -> Result<(), SessionError> {
        if self.device.as_ref().is_none_or(|d| !d.features().migrate()) {
            return Ok(());
        }
        let threads = numa::online_cpus(roots)?.len().clamp(1, COPY_THREADS);
        session.set(&roots.copy_threads(), &threads.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{folder, put};

    #[test]
    fn which_mechanism_is_used_and_why_is_reported() {
        let (keep, roots) = folder(&[]);
        let reason = |wanted| Backend::find(&roots, wanted).unwrap().reason().to_owned();
        assert!(reason(Mechanisms::Auto).contains("there is no"), "{}", reason(Mechanisms::Auto));
        assert!(reason(Mechanisms::Stock).contains("as asked for"));
        // A kernel that has it and a service that does not see it.
        put(keep.path(), "sys/class/misc/tiermem/dev", "10:126\n");
        assert!(reason(Mechanisms::Auto).contains("PrivateDevices"));
        // The file exists and is no device of ours.
        put(keep.path(), "dev/tiermem", "");
        let message = reason(Mechanisms::Auto);
        assert!(message.contains("dev/tiermem cannot be used"), "{message}");
        assert!(Backend::find(&roots, Mechanisms::Terrace).is_err());
    }
}
