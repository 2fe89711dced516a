//! Time that processors have spent in programs, from `/proc/stat`.

use std::time::Duration;

use crate::files::{self, FileError};
use crate::roots::Roots;

/// A tick of the times that Linux reports to programs, whatever its own: proc(5), `USER_HZ`.
const TICK: Duration = Duration::from_millis(10);

/// Time since boot that these processors have spent in programs, outside of the kernel.
pub fn in_programs(roots: &Roots, cpus: &[u32]) -> Result<Duration, FileError> {
    let path = roots.processes().join("stat");
    let text = files::read(&path)?.unwrap_or_default();
    let of_cpu = |cpu: &u32| {
        let name = format!("cpu{cpu}");
        let mut fields = text.lines().find_map(|line| {
            let mut fields = line.split_whitespace();
            (fields.next()? == name).then_some(fields)
        })?;
        // User, and user of low priority.
        let mut ticks = || fields.next()?.parse::<u32>().ok();
        Some(TICK * ticks()?.checked_add(ticks()?)?)
    };
    cpus.iter().map(of_cpu).sum::<Option<Duration>>().ok_or_else(|| {
        FileError::malformed(&path, &text, "a line of times for each of these processors")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_programs_is_that_of_these_processors() {
        let host = tempfile::tempdir().unwrap();
        let roots = Roots::below(host.path());
        assert!(in_programs(&roots, &[0]).is_err());
        std::fs::create_dir_all(roots.processes()).unwrap();
        let text = "cpu 9 9 9 9\ncpu0 100 5 700 1\ncpu1 7 0 1 1\ncpu10 3 1 1 1\nintr 4 4\n";
        std::fs::write(roots.processes().join("stat"), text).unwrap();
        let ms = |cpus: &[u32]| in_programs(&roots, cpus).map(|time| time.as_millis());
        assert_eq!(ms(&[0]).unwrap(), 1050);
        assert_eq!(ms(&[1, 10]).unwrap(), 110);
        let error = ms(&[0, 2]).unwrap_err().to_string();
        assert!(error.contains("a line of times for each"), "{error}");
    }
}
