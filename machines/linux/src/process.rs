//! Reads `/proc/PID` of a process: whether it lives, its mappings, the processor time of a thread,
//! the nodes of its memory.

use std::path::PathBuf;

use terrace_core::page::PageSize;

use crate::files::{self, FileError};
use crate::roots::Roots;

/// A process that is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process {
    /// Its identifier.
    pub pid: u32,
    /// Start time in clock ticks since boot: distinguishes it from a later process with the same
    /// identifier.
    pub start_ticks: u64,
}

/// Fields of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// State letter: R, S, D, I, Z, ...
    pub state: char,
    /// Processor time in clock ticks.
    pub cpu_ticks: u64,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The name in parentheses may hold anything, parentheses too: the last one closes it.
    let rest = &text[text.rfind(')')? + 1..];
    let mut fields = rest.split_whitespace();
    // Fields after the name, counting from 3 in proc(5): state 3, utime 14, stime 15, starttime 22.
    let state = fields.next()?.chars().next()?;
    let utime: u64 = fields.nth(10)?.parse().ok()?;
    let stime: u64 = fields.next()?.parse().ok()?;
    let start_ticks = fields.nth(6)?.parse().ok()?;
    Some(Stat { state, cpu_ticks: utime.checked_add(stime)?, start_ticks })
}

/// Set in the flags of a thread of the kernel: `PF_KTHREAD`, include/linux/sched.h.
const OF_KERNEL: u64 = 0x0020_0000;

/// The name of a kernel thread; `Some(None)` for a program.
fn parse_kernel_thread(text: &str) -> Option<Option<String>> {
    let name = text.find('(')? + 1..text.rfind(')')?;
    // Flags are field 9 in proc(5), the one after the name is 3.
    let mut fields = text[name.end + 1..].split_whitespace();
    let flags: u64 = fields.nth(6)?.parse().ok()?;
    Some((flags & OF_KERNEL != 0).then(|| text.get(name).unwrap_or_default().to_owned()))
}

/// Identifiers of all present processes and kernel threads, ascending.
pub fn all(roots: &Roots) -> Result<Vec<u32>, FileError> {
    let names = files::list(roots.processes())?;
    let mut pids: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids)
}

/// The name of a kernel thread; `None` for programs, and if it has ended.
pub fn kernel_thread(roots: &Roots, pid: u32) -> Result<Option<String>, FileError> {
    let path = roots.process(pid).join("stat");
    let Some(text) = files::read(&path)? else { return Ok(None) };
    parse_kernel_thread(&text)
        .ok_or_else(|| FileError::malformed(&path, &text, "the fields of proc(5)"))
}

/// Reads `/proc/PID/stat`; `None` when there is no such process.
pub fn stat(roots: &Roots, pid: u32) -> Result<Option<Stat>, FileError> {
    let path = roots.process(pid).join("stat");
    files::read(&path)?
        .map(|text| {
            parse_stat(&text)
                .ok_or_else(|| FileError::malformed(&path, &text, "the fields of proc(5)"))
        })
        .transpose()
}

/// The process, or `None` when it is gone or only waits to be reaped.
pub fn alive(roots: &Roots, pid: u32) -> Result<Option<Process>, FileError> {
    Ok(stat(roots, pid)?
        .filter(|s| !matches!(s.state, 'Z' | 'X' | 'x'))
        .map(|s| Process { pid, start_ticks: s.start_ticks }))
}

/// Ends a process at once. One that has ended is no error.
pub fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// A process and all that descend from it now, ascending. Those that end meanwhile are left out.
pub fn descendants(roots: &Roots, pid: u32) -> Result<Vec<u32>, FileError> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        next += 1;
        let tasks = std::fs::read_dir(roots.process(parent).join("task"));
        for task in tasks.into_iter().flatten().flatten() {
            let path = task.path().join("children");
            let text = files::read(&path)?.unwrap_or_default();
            found.extend(text.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Processor time of a thread: to the nanosecond where the kernel keeps it (`schedstat`), else in
/// ticks of 10 ms.
pub fn cpu_ns(roots: &Roots, pid: u32) -> Option<u64> {
    let text = files::read(&roots.process(pid).join("schedstat")).ok().flatten();
    if let Some(ns) = text.and_then(|t| t.split_whitespace().next()?.parse::<u64>().ok())
        && ns > 0
    {
        return Some(ns);
    }
    let ticks = stat(roots, pid).ok().flatten()?.cpu_ticks;
    ticks.checked_mul(10_000_000)
}

/// A mapping of `/proc/PID/maps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// It may be written.
    pub writable: bool,
    /// It may be executed.
    pub executable: bool,
    /// Writes are seen by every process that maps it.
    pub shared: bool,
    /// It is the stack of the first thread.
    pub stack: bool,
    /// The mapped object, if it is a file or shared memory.
    pub object: Object,
    /// Offset of its first byte in the object.
    pub offset: u64,
}

/// A file or a piece of shared memory, equal for all that map it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Object {
    /// Major and minor number of its device; 0 and 0 for private memory.
    device: (u32, u32),
    inode: u64,
    /// Shared memory of System V has separate numbers on the same device.
    is_system_v: bool,
}

fn parse_mapping(line: &str) -> Option<Mapping> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let flags = words.next()?.as_bytes();
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    if flags.len() < 4 || start >= end {
        return None;
    }
    let offset = words.next().and_then(|w| u64::from_str_radix(w, 16).ok()).unwrap_or_default();
    let device = words.next().and_then(|w| w.split_once(':'));
    let hex = |number: &str| u32::from_str_radix(number, 16).unwrap_or_default();
    let device = device.map(|(major, minor)| (hex(major), hex(minor))).unwrap_or_default();
    let inode = words.next().and_then(|w| w.parse().ok()).unwrap_or_default();
    let name = words.next().unwrap_or_default();
    let object = Object { device, inode, is_system_v: name.starts_with("/SYSV") };
    let (writable, executable, shared) = (flags[1] == b'w', flags[2] == b'x', flags[3] == b's');
    let stack = name == "[stack]";
    Some(Mapping { start, end, writable, executable, shared, stack, object, offset })
}

/// Smaller mappings of files are not looked at: a program has many, and few pages in them.
const FILE_BYTES: u64 = PageSize::Huge.bytes();

/// The mappings whose pages of files are the program's own: shared memory (shared, and may be
/// written), and files of data, such as an index or weights of a model. Programs and libraries, which
/// all processes share, are no data: a part of them is mapped to be executed.
pub fn data_mappings(all: &[Mapping]) -> Vec<Mapping> {
    let mut executed: Vec<Object> = all.iter().filter(|m| m.executable).map(|m| m.object).collect();
    executed.sort_unstable();
    let is_code = |m: &Mapping| executed.binary_search(&m.object).is_ok();
    let is_file = |m: &Mapping| m.object != Object::default() && m.end - m.start >= FILE_BYTES;
    let is_data = |m: &&Mapping| (m.shared && m.writable) || (is_file(m) && !is_code(m));
    all.iter().filter(is_data).copied().collect()
}

/// The mappings of a process, by address; empty when it is gone.
pub fn mappings(roots: &Roots, pid: u32) -> Result<Vec<Mapping>, FileError> {
    let path = roots.process(pid).join("maps");
    let text = files::read(&path)?.unwrap_or_default();
    text.lines()
        .map(|line| {
            parse_mapping(line).ok_or_else(|| {
                FileError::malformed(&path, line, "a mapping such as '1000-2000 rw-p ...'")
            })
        })
        .collect()
}

/// Address of the topmost page of the first thread's stack; `None` if no mapping is marked as the
/// stack or the process is gone.
pub fn stack_top(roots: &Roots, pid: u32) -> Result<Option<u64>, FileError> {
    let stack = mappings(roots, pid)?.into_iter().find(|m| m.stack);
    Ok(stack.map(|m| m.end - PageSize::Base.bytes()))
}

/// Bytes that a process maps per node (`numa_maps`), index is the node. Walks all of its page
/// tables: not for every period.
pub fn bytes_per_node(roots: &Roots, pid: u32) -> Result<Vec<u64>, FileError> {
    let path: PathBuf = roots.process(pid).join("numa_maps");
    let text = files::read(&path)?.unwrap_or_default();
    let mut nodes = Vec::new();
    for line in text.lines() {
        // "7f00 default anon=512 dirty=512 N0=256 N1=256 kernelpagesize_kB=4"
        let page_kib: u64 = line
            .split_whitespace()
            .find_map(|w| w.strip_prefix("kernelpagesize_kB=")?.parse().ok())
            .unwrap_or(4);
        for word in line.split_whitespace() {
            let Some((node, pages)) = word.strip_prefix('N').and_then(|w| w.split_once('=')) else {
                continue;
            };
            let bad = || FileError::malformed(&path, word, "'N<node>=<pages>'");
            let node: usize = node.parse().map_err(|_| bad())?;
            let pages: u64 = pages.parse().map_err(|_| bad())?;
            if node >= 4096 {
                return Err(bad());
            }
            if nodes.len() <= node {
                nodes.resize(node + 1, 0);
            }
            nodes[node] += pages.saturating_mul(page_kib).saturating_mul(1024);
        }
    }
    Ok(nodes)
}

/// Resident memory of a process (`VmRSS`); 0 if it is gone.
pub fn resident_bytes(roots: &Roots, pid: u32) -> Result<u64, FileError> {
    let kib = |value: &str| value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok();
    Ok(status_field(roots, pid, "VmRSS:", kib)?.unwrap_or_default().saturating_mul(1024))
}

/// Nodes that a process may use (`Mems_allowed_list`); `None` if the kernel does not report them.
pub fn allowed_nodes(roots: &Roots, pid: u32) -> Result<Option<Vec<u32>>, FileError> {
    status_field(roots, pid, "Mems_allowed_list:", files::parse_list)
}

/// Effective capabilities of a process as a mask; `None` if the kernel does not report them.
pub fn capabilities(roots: &Roots, pid: &str) -> Result<Option<u64>, FileError> {
    let path = roots.proc.join(pid).join("status");
    field(&path, "CapEff:", |v| u64::from_str_radix(v.trim(), 16).ok())
}

fn status_field<T>(
    roots: &Roots,
    pid: u32,
    name: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, FileError> {
    field(&roots.process(pid).join("status"), name, parse)
}

fn field<T>(
    path: &std::path::Path,
    name: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, FileError> {
    let Some(text) = files::read(path)? else { return Ok(None) };
    text.lines()
        .find_map(|l| l.strip_prefix(name))
        .map(|value| {
            parse(value).ok_or_else(|| FileError::malformed(path, value, "the field of proc(5)"))
        })
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;
    use proptest::prelude::*;

    const STAT: &str = "42 (a ) R (b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0 777 0 0\n";

    #[test]
    fn a_process_is_known_by_its_start_even_with_a_spiteful_name() {
        let (_keep, roots) = folder(&[("proc/42/stat", STAT)]);
        let got = stat(&roots, 42).unwrap().unwrap();
        assert_eq!(got, Stat { state: 'S', cpu_ticks: 300, start_ticks: 777 });
        assert_eq!(alive(&roots, 42).unwrap(), Some(Process { pid: 42, start_ticks: 777 }));
        assert_eq!(alive(&roots, 43).unwrap(), None);
        assert_eq!(cpu_ns(&roots, 42), Some(3_000_000_000));
    }

    #[test]
    fn a_zombie_is_gone() {
        let (_keep, roots) = folder(&[("proc/42/stat", &STAT.replace(") S", ") Z"))]);
        assert_eq!(alive(&roots, 42).unwrap(), None);
    }

    #[test]
    fn mappings_keep_what_matters_and_name_the_file_when_malformed() {
        let (_keep, roots) = folder(&[
            (
                "proc/1/maps",
                "1000-3000 rw-p 00000000 00:00 0\n8000-9000 rw-s 3000 0a:01 5 /dev/x y\n\
                 9000-a000 rw-s 3000 0a:01 5 /SYSV00000000 (deleted)\n",
            ),
            ("proc/2/maps", "what\n"),
        ]);
        let got = mappings(&roots, 1).unwrap();
        assert_eq!(got.len(), 3);
        let private = Mapping {
            start: 0x1000,
            end: 0x3000,
            writable: true,
            executable: false,
            shared: false,
            stack: false,
            object: Object::default(),
            offset: 0,
        };
        assert_eq!(got[0], private);
        assert!(got[1].shared && !got[1].executable);
        let object = Object { device: (10, 1), inode: 5, is_system_v: false };
        assert_eq!((got[1].object, got[1].offset), (object, 0x3000));
        assert_ne!(got[2].object, object, "another's numbers");
        assert!(mappings(&roots, 2).unwrap_err().to_string().contains("2/maps: got 'what'"));
    }

    #[test]
    fn data_is_shared_memory_and_large_files_that_are_no_programs() {
        let (_keep, roots) = folder(&[(
            "proc/1/maps",
            "1000000-2000000 r--p 00000000 08:01 5 /usr/lib/library.so\n\
             2000000-2100000 r-xp 01000000 08:01 5 /usr/lib/library.so\n\
             3000000-3200000 r--s 00000000 08:01 6 /srv/index\n\
             4000000-4200000 r--p 00000000 08:01 7 /srv/weights\n\
             5000000-5100000 r--p 00000000 08:01 8 /srv/small\n\
             6000000-6001000 rw-s 00000000 00:01 9 /dev/shm/shared\n\
             7000000-8000000 rw-p 00000000 00:00 0\n",
        )]);
        let data = data_mappings(&mappings(&roots, 1).unwrap());
        let starts: Vec<u64> = data.iter().map(|m| m.start).collect();
        assert_eq!(starts, [0x300_0000, 0x400_0000, 0x600_0000]);
    }

    #[test]
    fn memory_per_node_counts_pages_of_their_own_size() {
        let (_keep, roots) = folder(&[(
            "proc/1/numa_maps",
            "7f00 default anon=3 N0=1 N1=2 kernelpagesize_kB=4\n\
             8f00 default file=/N9 huge N1=1 kernelpagesize_kB=2048\n",
        )]);
        assert_eq!(bytes_per_node(&roots, 1).unwrap(), [4096, 8192 + (2 << 20)]);
    }

    #[test]
    fn allowed_nodes_and_capabilities_come_from_status() {
        let (_keep, roots) = folder(&[(
            "proc/1/status",
            "Name:\tx\nVmRSS:\t    2048 kB\nCapEff:\t000001ffffffffff\nMems_allowed_list:\t0-1\n",
        )]);
        assert_eq!(allowed_nodes(&roots, 1).unwrap(), Some(vec![0, 1]));
        assert_eq!(capabilities(&roots, "1").unwrap(), Some(0x1ff_ffff_ffff));
        assert_eq!(allowed_nodes(&roots, 2).unwrap(), None);
        assert_eq!(resident_bytes(&roots, 1).unwrap(), 2 << 20);
        assert_eq!(resident_bytes(&roots, 2).unwrap(), 0);
    }

    proptest! {
        #[test]
        fn no_text_breaks_a_parser(text in "\\PC{0,80}", fields in "[0-9a-f() SR-]{0,80}") {
            for t in [&text, &fields] {
                parse_stat(t);
                parse_mapping(t);
            }
        }
    }
}
