//! DAMON's sysfs interface: one kernel thread (kdamond) that watches frozen regions of some
//! processes.
//!
//! Frozen: with `min = max = N` for N equal regions, no two may merge (together they pass the
//! size limit, which is the sum divided by `min`) and none may split (there are more than half
//! of `max`): `kdamond_merge_regions`, `kdamond_split_regions` in mm/damon/core.c. All regions of
//! one thread must be equal, so each group of processes has a thread of its own: groups of 2 MB
//! and of 4 KB pages cannot share one, and one group's rebuild does not cost the others a period.
//!
//! In each sampling interval every region is prepared (accessed bit of a page of it, taken at random,
//! cleared) and checked at its end. `aggr_us` is the period and a multiple of `sample_us`: each region
//! is reported once a period, with the number of samples in which it had been accessed.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use crate::faults;
use crate::files::{self, FileError};
use crate::roots::Roots;

/// Operations of our threads: virtual addresses in given regions.
const OPERATIONS: &str = "fvaddr";
const KERNEL_EXPECTED: &str = "'fvaddr' among them, as kernels with CONFIG_DAMON_VADDR have it";
/// How long a write is retried while another writer holds DAMON's lock.
const PATIENCE: Duration = Duration::from_secs(5);

/// Regions of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The process.
    pub pid: u32,
    /// First addresses of its regions, ascending.
    pub starts: Vec<u64>,
}

/// One of DAMON's kernel threads.
#[derive(Debug)]
pub struct Kdamond {
    folder: PathBuf,
    /// The last configuration; `None` before the first time.
    configured: Option<Vec<Target>>,
    region_bytes: u64,
}

impl Kdamond {
    /// The thread of this number; `nr_kdamonds` must be larger already.
    pub fn new(roots: &Roots, number: usize) -> Self {
        let folder = roots.kdamonds().join(number.to_string());
        Kdamond { folder, configured: None, region_bytes: 0 }
    }

    /// Configures the thread: regions of `region_bytes` each, sampled so many times a period. The
    /// thread must be off. Writes only what changed since the last configuration.
    pub fn configure(
        &mut self,
        targets: &[Target],
        region_bytes: u64,
        interval: Duration,
        samples: u8,
    ) -> Result<(), FileError> {
        let regions: usize = targets.iter().map(|t| t.starts.len()).sum();
        let context = self.folder.join("contexts/0");
        if self.configured.is_none() {
            self.set("contexts/nr_contexts", 1)?;
            if let Some(others) = operations_without_ours(&self.folder)? {
                let path = context.join("avail_operations");
                return Err(FileError::malformed(&path, &others, KERNEL_EXPECTED));
            }
            self.set_text("contexts/0/operations", OPERATIONS)?;
            // No updates: a very long interval.
            self.set("contexts/0/monitoring_attrs/intervals/update_us", 1 << 50)?;
        }
        let sample_us = interval.as_micros() as u64;
        let aggr_us = sample_us * u64::from(samples);
        self.set("contexts/0/monitoring_attrs/intervals/sample_us", sample_us)?;
        self.set("contexts/0/monitoring_attrs/intervals/aggr_us", aggr_us)?;
        // The kernel requires at least 3; fewer regions neither merge nor split, if there are at
        // least two.
        let limit = regions.max(3) as u64;
        self.set("contexts/0/monitoring_attrs/nr_regions/min", limit)?;
        self.set("contexts/0/monitoring_attrs/nr_regions/max", limit)?;

        // Taken, so that a failure half-way leaves no assumed configuration.
        let mut before = self.configured.take().unwrap_or_default();
        if region_bytes != self.region_bytes {
            before.clear();
        }
        self.region_bytes = region_bytes;
        if before.len() != targets.len() {
            self.set("contexts/0/targets/nr_targets", 0)?;
            self.set("contexts/0/targets/nr_targets", targets.len() as u64)?;
            before = vec![Target { pid: 0, starts: Vec::new() }; targets.len()];
        }
        for (number, (target, before)) in targets.iter().zip(&before).enumerate() {
            let folder = context.join(format!("targets/{number}"));
            if target.pid != before.pid {
                patiently(|| files::write(&folder.join("pid_target"), &target.pid.to_string()))?;
            }
            self.write_regions(&folder.join("regions"), target, &before.starts)?;
        }
        self.configured = Some(targets.to_vec());
        Ok(())
    }

    fn write_regions(
        &self,
        folder: &Path,
        target: &Target,
        before: &[u64],
    ) -> Result<(), FileError> {
        let mut before = before;
        if before.len() != target.starts.len() {
            // The kernel drops all regions and makes new ones, which are empty.
            let number = target.starts.len().to_string();
            patiently(|| files::write(&folder.join("nr_regions"), &number))?;
            before = &[];
        }
        // Tens of thousands of files: opened relative to their own folder, not from the root.
        let open = openat(CWD, folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let folder_fd =
            open.map_err(|e| FileError::Read { path: folder.to_owned(), source: e.into() })?;
        for (number, &start) in target.starts.iter().enumerate() {
            if before.get(number) != Some(&start) {
                let end = start + self.region_bytes;
                put_at(&folder_fd, folder, &format!("{number}/start"), start)?;
                put_at(&folder_fd, folder, &format!("{number}/end"), end)?;
            }
        }
        Ok(())
    }

    /// Turns the thread on; returns its process identifier.
    pub fn on(&self) -> Result<u32, FileError> {
        self.set_text("state", "on")?;
        let path = self.folder.join("pid");
        let pid = patiently(|| files::read_number::<i64>(&path))?;
        pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0).ok_or_else(|| {
            let got = pid.map_or("nothing".to_owned(), |p| p.to_string());
            FileError::malformed(&path, &got, "the identifier of a running kdamond")
        })
    }

    /// Turns the thread off; one that is off already is no error. The thread reports its samples so
    /// far before it ends.
    pub fn off(&self) -> Result<(), FileError> {
        turn_off(&self.folder)
    }

    /// Whether the thread runs: it ends by itself when all its processes have.
    pub fn is_on(&self) -> Result<bool, FileError> {
        is_on(&self.folder)
    }

    /// Whether the thread runs and is the one that [`Kdamond::on`] returned: another program may
    /// have turned that one off and its own on.
    pub fn runs_as(&self, pid: u32) -> Result<bool, FileError> {
        if !is_on(&self.folder)? {
            return Ok(false);
        }
        let now: Option<i64> = patiently(|| files::read_number(&self.folder.join("pid")))?;
        Ok(now == Some(i64::from(pid)))
    }

    fn set(&self, file: &str, value: u64) -> Result<(), FileError> {
        self.set_text(file, &value.to_string())
    }

    fn set_text(&self, file: &str, value: &str) -> Result<(), FileError> {
        patiently(|| files::write(&self.folder.join(file), value))
    }
}

fn put_at(folder: &OwnedFd, path: &Path, name: &str, value: u64) -> Result<(), FileError> {
    let text = value.to_string();
    let check = || {
        faults::check(&path.join(name)).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    };
    let written = check()
        .and_then(|()| openat(folder, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()))
        .and_then(|file| rustix::io::write(&file, text.as_bytes()));
    match written {
        Ok(bytes) if bytes == text.len() => Ok(()),
        other => Err(FileError::Write {
            path: path.join(name),
            value: text,
            source: other.err().map_or(ErrorKind::WriteZero.into(), Into::into),
        }),
    }
}

/// Retries for a while when the kernel reports that DAMON's lock is held.
fn patiently<T>(mut act: impl FnMut() -> Result<T, FileError>) -> Result<T, FileError> {
    let begin = Instant::now();
    loop {
        match act() {
            Err(e) if e.errno() == Some(libc::EBUSY) && begin.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other,
        }
    }
}

fn is_on(folder: &Path) -> Result<bool, FileError> {
    Ok(patiently(|| files::read(&folder.join("state")))?.is_some_and(|s| s.trim() == "on"))
}

fn turn_off(folder: &Path) -> Result<(), FileError> {
    if !is_on(folder)? {
        return Ok(());
    }
    match patiently(|| files::write(&folder.join("state"), "off")) {
        // The thread ended by itself meanwhile.
        Err(e) if matches!(e.errno(), Some(libc::EPERM | libc::EINVAL)) && !is_on(folder)? => {
            Ok(())
        }
        other => other,
    }
}

/// Number of threads that DAMON's interface holds; `None` without DAMON.
pub fn threads(roots: &Roots) -> Result<Option<u32>, FileError> {
    patiently(|| files::read_number(&roots.kdamonds().join("nr_kdamonds")))
}

/// The operations that this kernel's DAMON has, if those of virtual addresses are not among them. Only
/// a context says so: without a thread of somebody it is unknown.
pub fn lacks_operations(roots: &Roots) -> Result<Option<String>, FileError> {
    for name in files::list(&roots.kdamonds())? {
        if name.parse::<u32>().is_ok()
            && let Some(others) = operations_without_ours(&roots.kdamonds().join(name))?
        {
            return Ok(Some(others));
        }
    }
    Ok(None)
}

fn operations_without_ours(kdamond: &Path) -> Result<Option<String>, FileError> {
    let there = patiently(|| files::read(&kdamond.join("contexts/0/avail_operations")))?;
    let others = there.filter(|all| !all.split_whitespace().any(|one| one == OPERATIONS));
    Ok(others.map(|all| all.split_whitespace().collect::<Vec<_>>().join(", ")))
}

/// Sets the number of threads; all must be off. Their configuration is forgotten by the kernel.
pub fn set_threads(kdamonds: &Path, number: u32) -> Result<(), FileError> {
    patiently(|| files::write(&kdamonds.join("nr_kdamonds"), &number.to_string()))
}

/// Whether a thread runs that is not Terrace's, by its operations: others than these, or than those
/// of trackers if there are none.
pub fn has_threads_of_others(kdamonds: &Path, operations: Option<&str>) -> Result<bool, FileError> {
    let ours = operations.unwrap_or(OPERATIONS);
    for name in files::list(kdamonds)? {
        let folder = kdamonds.join(&name);
        if name.parse::<u32>().is_err() || !is_on(&folder)? {
            continue;
        }
        let operations = patiently(|| files::read(&folder.join("contexts/0/operations")))?;
        if operations.is_some_and(|o| o.trim() != ours) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Turns every thread below `kdamonds` off.
pub fn turn_all_off(kdamonds: &Path) -> Result<(), FileError> {
    for name in files::list(kdamonds)? {
        if name.parse::<u32>().is_ok() {
            turn_off(&kdamonds.join(name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{folder, put, put_kdamond};

    fn tree() -> (tempfile::TempDir, Roots) {
        let (keep, roots) = folder(&[]);
        put_kdamond(keep.path(), 3);
        (keep, roots)
    }

    fn get(roots: &Roots, file: &str) -> String {
        std::fs::read_to_string(roots.kdamonds().join("0").join(file)).unwrap()
    }

    #[test]
    fn regions_are_written_frozen_and_only_changes_are_written() {
        let (keep, roots) = tree();
        let mut kdamond = Kdamond::new(&roots, 0);
        let period = Duration::from_millis(1500);
        let target = |starts: &[u64]| vec![Target { pid: 42, starts: starts.to_vec() }];
        kdamond.configure(&target(&[0x1000, 0x2000, 0x9000]), 0x1000, period, 1).unwrap();
        let attrs = "contexts/0/monitoring_attrs";
        assert_eq!(get(&roots, "contexts/0/operations"), "fvaddr");
        assert_eq!(get(&roots, &format!("{attrs}/intervals/sample_us")), "1500000");
        assert_eq!(get(&roots, &format!("{attrs}/intervals/aggr_us")), "1500000");
        assert_eq!(get(&roots, &format!("{attrs}/nr_regions/min")), "3");
        assert_eq!(get(&roots, &format!("{attrs}/nr_regions/max")), "3");
        let regions = "contexts/0/targets/0/regions";
        assert_eq!(get(&roots, "contexts/0/targets/0/pid_target"), "42");
        assert_eq!(get(&roots, &format!("{regions}/nr_regions")), "3");
        assert_eq!(get(&roots, &format!("{regions}/2/start")), 0x9000.to_string());
        assert_eq!(get(&roots, &format!("{regions}/2/end")), 0xa000.to_string());

        let mark = roots.kdamonds().join("0").join(regions).join("0/start");
        put(keep.path(), mark.strip_prefix(keep.path()).unwrap().to_str().unwrap(), "untouched");
        kdamond.configure(&target(&[0x1000, 0x3000, 0x9000]), 0x1000, period, 1).unwrap();
        assert_eq!(get(&roots, &format!("{regions}/0/start")), "untouched");
        assert_eq!(get(&roots, &format!("{regions}/1/start")), 0x3000.to_string());
    }

    #[test]
    fn a_thread_that_does_not_start_is_an_error() {
        let (_keep, roots) = tree();
        let message = Kdamond::new(&roots, 0).on().unwrap_err().to_string();
        assert!(message.contains("0/pid: got '-1'"), "{message}");
    }

    #[test]
    fn threads_are_counted_and_turned_off() {
        let (keep, roots) = tree();
        assert_eq!(threads(&roots).unwrap(), Some(1));
        put(keep.path(), "sys/kernel/mm/damon/admin/kdamonds/0/state", "on\n");
        turn_all_off(&roots.kdamonds()).unwrap();
        assert_eq!(get(&roots, "state"), "off");
        let (_keep, empty) = folder(&[]);
        assert_eq!(threads(&empty).unwrap(), None);
    }
}
