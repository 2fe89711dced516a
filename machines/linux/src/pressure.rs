//! Pressure stall information (Documentation/accounting/psi.rst): how long tasks waited for memory.

use std::path::Path;

use crate::cgroup::Cgroup;
use crate::files::{self, FileError};
use crate::roots::Roots;

/// Time since the boot, or since a control group was made, in which tasks waited for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryStalls {
    /// In which some task did, in us.
    pub some_us: u64,
    /// In which all runnable tasks did, in us.
    pub full_us: u64,
}

/// Of the whole host; `None` on a kernel without the information.
pub fn of_host(roots: &Roots) -> Result<Option<MemoryStalls>, FileError> {
    read(&roots.proc.join("pressure/memory"))
}

/// Of a control group; `None` on a kernel without the information.
pub fn of_group(group: &Cgroup) -> Result<Option<MemoryStalls>, FileError> {
    read(&group.path().join("memory.pressure"))
}

fn read(path: &Path) -> Result<Option<MemoryStalls>, FileError> {
    // If it is built in and switched off, the file exists and cannot be read.
    let text = match files::read(path) {
        Ok(Some(text)) => text,
        Ok(None) => return Ok(None),
        Err(e) if e.errno() == Some(libc::EOPNOTSUPP) => return Ok(None),
        Err(e) => return Err(e),
    };
    // "some avg10=0.00 avg60=0.00 avg300=0.00 total=12345"
    let total = |kind: &str| -> Option<u64> {
        let line = text.lines().find(|l| l.split_whitespace().next() == Some(kind))?;
        line.split_whitespace().find_map(|w| w.strip_prefix("total="))?.parse().ok()
    };
    let some_us = total("some")
        .ok_or_else(|| FileError::malformed(path, &text, "a line 'some ... total=MICROSECONDS'"))?;
    // Older kernels have no such line for the host.
    Ok(Some(MemoryStalls { some_us, full_us: total("full").unwrap_or(0) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;

    const TEXT: &str = "some avg10=1.50 avg60=0.00 avg300=0.00 total=12345\n\
                        full avg10=0.00 avg60=0.00 avg300=0.00 total=678\n";

    #[test]
    fn stalls_are_read_of_the_host_and_of_a_group() {
        let (_keep, roots) =
            folder(&[("proc/pressure/memory", TEXT), ("sys/fs/cgroup/a/memory.pressure", TEXT)]);
        let expected = Some(MemoryStalls { some_us: 12_345, full_us: 678 });
        assert_eq!(of_host(&roots).unwrap(), expected);
        let group = |name: &str| Cgroup::new(&roots, Path::new(name));
        assert_eq!(of_group(&group("/a")).unwrap(), expected);
        assert_eq!(of_group(&group("/b")).unwrap(), None);
    }

    #[test]
    fn a_file_without_totals_is_malformed() {
        let (_keep, roots) = folder(&[("proc/pressure/memory", "some avg10=1\n")]);
        let message = of_host(&roots).unwrap_err().to_string();
        assert!(message.contains("pressure/memory"), "{message}");
    }
}
