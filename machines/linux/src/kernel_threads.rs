//! Processor time of the kernel's own threads, by name: the time of reclaim, compaction, DAMON and
//! others, which no program's own time contains.

use std::collections::BTreeMap;

use crate::files::{self, FileError};
use crate::process;
use crate::roots::Roots;

/// The processor time that each thread of the kernel has taken since it began.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelThreads {
    /// By identifier: its name, and its time in ns.
    threads: BTreeMap<u32, (String, u64)>,
}

impl KernelThreads {
    /// Reads it from `/proc/PID/schedstat`, whose first number is exact where `/proc/PID/stat`
    /// counts ticks. Threads that end meanwhile are left out, and all on a kernel without that
    /// file.
    pub fn read(roots: &Roots) -> Result<Self, FileError> {
        let mut threads = BTreeMap::new();
        for pid in process::all(roots)? {
            let Some(name) = process::kernel_thread(roots, pid)? else { continue };
            let path = roots.process(pid).join("schedstat");
            let Some(text) = files::read(&path)? else { continue };
            let time_ns = text.split_whitespace().next().and_then(|word| word.parse().ok());
            let time_ns =
                time_ns.ok_or_else(|| FileError::malformed(&path, &text, "three numbers"))?;
            threads.insert(pid, (name, time_ns));
        }
        Ok(Self { threads })
    }

    /// Time that threads of each name have used since `before`, in ns, without those that used
    /// none. A name ends before a slash: a processor's number follows. The time of threads that
    /// ended meanwhile is unknown.
    pub fn since(&self, before: &Self) -> BTreeMap<String, u64> {
        let mut times = BTreeMap::new();
        for (pid, (name, time_ns)) in &self.threads {
            let earlier = match before.threads.get(pid) {
                // A thread with less time is another one with the same identifier.
                Some((_, earlier)) if earlier <= time_ns => *earlier,
                _ => 0,
            };
            if *time_ns > earlier {
                let name = name.split('/').next().unwrap_or(name);
                *times.entry(name.to_owned()).or_default() += time_ns - earlier;
            }
        }
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{folder, put};

    /// `/proc/PID/stat` of a thread of the kernel, or of a program.
    fn stat(pid: u32, name: &str, is_of_kernel: bool) -> String {
        let flags = if is_of_kernel { 0x0020_8040 } else { 0x0040_0000 };
        format!("{pid} ({name}) S 2 0 0 0 -1 {flags} 0 0 0 0 5 6 0 0 20 0 1 0 77 0 0\n")
    }

    #[test]
    fn threads_of_the_kernel_are_summed_by_name_and_programs_left_out() {
        let (keep, roots) = folder(&[
            ("proc/2/stat", &stat(2, "kworker/0:1-events", true)),
            ("proc/2/schedstat", "1000 5 2\n"),
            ("proc/3/stat", &stat(3, "kworker/1:0 (x)", true)),
            ("proc/3/schedstat", "2000 5 2\n"),
            ("proc/4/stat", &stat(4, "kswapd0", true)),
            ("proc/4/schedstat", "700 0 1\n"),
            ("proc/9/stat", &stat(9, "redis-server", false)),
            ("proc/9/schedstat", "9000 0 1\n"),
        ]);
        let before = KernelThreads::read(&roots).unwrap();
        assert_eq!(before.threads.len(), 3);
        put(keep.path(), "proc/2/schedstat", "1500 5 2\n");
        put(keep.path(), "proc/3/schedstat", "2250 5 2\n");
        put(keep.path(), "proc/9/schedstat", "99000 0 1\n");
        // Another thread has the identifier now, and one has begun.
        put(keep.path(), "proc/4/stat", &stat(4, "kdamond.0", true));
        put(keep.path(), "proc/4/schedstat", "40 0 1\n");
        put(keep.path(), "proc/5/stat", &stat(5, "kcompactd1", true));
        put(keep.path(), "proc/5/schedstat", "8 0 1\n");
        let times = KernelThreads::read(&roots).unwrap().since(&before);
        let times: Vec<_> = times.iter().map(|(name, ns)| (name.as_str(), *ns)).collect();
        assert_eq!(times, [("kcompactd1", 8), ("kdamond.0", 40), ("kworker", 750)]);
    }

    #[test]
    fn a_kernel_that_does_not_say_has_none_and_nonsense_is_named() {
        let (keep, roots) = folder(&[("proc/2/stat", &stat(2, "kthreadd", true))]);
        assert_eq!(KernelThreads::read(&roots).unwrap(), KernelThreads::default());
        put(keep.path(), "proc/2/schedstat", "much\n");
        let error = KernelThreads::read(&roots).unwrap_err().to_string();
        assert!(error.contains("2/schedstat") && error.contains("three numbers"), "{error}");
    }
}
