//! A private trace instance, which gets only the records of one kernel thread, so that it does not
//! interfere with other tracers.
//!
//! Bounded: the buffer holds two periods of records; if that times the number of processors exceeds
//! the limit, the kernel thread is bound to as many processors as fit.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{CpuSet, Pid, sched_setaffinity};
use rustix::time::Timespec;

use crate::faults;
use crate::files::{self, FileError};
use crate::ring::{EventFormat, PageFormat, Record, parse_page};

/// Bound on the memory of all buffers of one instance.
const LIMIT_BYTES: u64 = 64 << 20;

/// Faults found while draining.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drained {
    /// Records were overwritten before they were read.
    pub missed: bool,
    /// A page could not be understood in full.
    pub malformed: bool,
}

/// A trace instance with the `damon_aggregated` event on.
#[derive(Debug)]
pub struct TraceInstance {
    path: PathBuf,
    pipes: Vec<(u32, File)>,
    page_format: PageFormat,
    event: EventFormat,
    page: Vec<u8>,
    /// Records of a period that the buffers are made for.
    records: usize,
    /// Size of each processor's buffer as last set.
    buffer_kib: u64,
    /// The kernel thread whose records come in.
    followed: Option<u32>,
    /// The event's filter as last set.
    filter: String,
    /// Others have had the name of the thread whose records come in.
    shares_name: bool,
    /// Processors to which the kernel thread is bound; all when empty.
    kept_to: Vec<u32>,
}

const EVENT: &str = "events/damon/damon_aggregated";

impl TraceInstance {
    /// Opens an instance whose directory exists and turns the event on. `cpus` are the processors
    /// that are online.
    pub fn open(path: &Path, cpus: &[u32]) -> Result<Self, FileError> {
        let text = |name: &str| -> Result<(PathBuf, String), FileError> {
            let path = path.join(name);
            let text = files::read(&path)?.ok_or(FileError::Missing {
                path: path.clone(),
                remedy: "expected a kernel with CONFIG_DAMON and tracing; boot one",
            })?;
            Ok((path, text))
        };
        let (event_path, event) = text(&format!("{EVENT}/format"))?;
        let event = EventFormat::parse(&event_path, &event)?;
        let (page_path, page) = text("events/header_page")?;
        let page_format = PageFormat::parse(&page_path, &page)?;

        // Before the event is turned on, which would make each processor's buffer 1.4 MB.
        files::write(&path.join("buffer_size_kb"), "8")?;
        files::write(&path.join("trace_clock"), "mono")?;
        // Wake a reader at the first record.
        files::write(&path.join("buffer_percent"), "0")?;
        // Nothing comes in before a thread is known. The kernel waits for nobody while the event is off.
        let filter = "common_pid == 0".to_owned();
        files::write(&path.join(EVENT).join("filter"), &filter)?;
        files::write(&path.join(EVENT).join("enable"), "1")?;
        files::write(&path.join("tracing_on"), "1")?;

        let mut pipes = Vec::new();
        for &cpu in cpus {
            pipes.extend(open_pipe(path, cpu)?.map(|pipe| (cpu, pipe)));
        }
        let page = vec![0; page_format.page_bytes()];
        Ok(TraceInstance {
            path: path.to_owned(),
            pipes,
            page_format,
            event,
            page,
            records: 0,
            buffer_kib: 0,
            followed: None,
            filter,
            shares_name: false,
            kept_to: Vec::new(),
        })
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the buffers large enough for two periods of `records` records.
    pub fn reserve(&mut self, records: usize) -> Result<(), FileError> {
        self.records = self.records.max(records);
        let per_page = ((self.page.len() - 16) / self.event.record_bytes()).max(1);
        // One more page each for the writer's and the reader's.
        let pages = 2 * records.div_ceil(per_page) as u64 + 2;
        let kib = (pages * self.page.len() as u64).div_ceil(1024);
        if kib <= self.buffer_kib {
            return Ok(());
        }
        let fits = (LIMIT_BYTES / (kib * 1024)).max(1) as usize;
        if fits >= self.pipes.len() {
            self.kept_to.clear();
            files::write(&self.path.join("buffer_size_kb"), &kib.to_string())?;
        } else {
            self.kept_to = self.pipes.iter().take(fits).map(|(cpu, _)| *cpu).collect();
            for cpu in &self.kept_to {
                let size = self.path.join(format!("per_cpu/cpu{cpu}/buffer_size_kb"));
                files::write(&size, &kib.to_string())?;
            }
        }
        self.buffer_kib = kib;
        Ok(())
    }

    /// Filters for the records of this kernel thread, by its name where that is known and no other
    /// thread has had it: the next thread of a lone group has the same one. To change a filter, Linux
    /// 6.12 waits until all processors have left the old one: 12 to 64 ms, measured on an emulated
    /// machine.
    pub fn follow(&mut self, pid: u32, name: Option<&str>) -> Result<(), FileError> {
        // In another namespace of processes the number is that of some other program.
        let is_ours = |name: &&str| {
            let number = name.strip_prefix("kdamond.");
            number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        };
        let filter = match name.filter(is_ours).filter(|_| !self.shares_name) {
            Some(name) => format!("comm == \"{name}\""),
            None => format!("common_pid == {pid}"),
        };
        if filter != self.filter {
            files::write(&self.path.join(EVENT).join("filter"), &filter)?;
            self.filter = filter;
        }
        self.followed = Some(pid);
        if !self.kept_to.is_empty() {
            self.keep(pid, &self.kept_to);
        }
        Ok(())
    }

    /// The kernel thread has ended.
    pub fn unfollow(&mut self) {
        self.followed = None;
    }

    /// Binds the kernel thread to some processors.
    fn keep(&self, pid: u32, cpus: &[u32]) {
        let mut set = CpuSet::new();
        for &cpu in cpus.iter().filter(|c| (**c as usize) < CpuSet::MAX_CPU) {
            set.set(cpu as usize);
        }
        // A thread that cannot be bound can overrun a small buffer: that shows as missed records,
        // so a refusal is no error here.
        if let Some(Err(e)) = Pid::from_raw(pid as i32).map(|p| sched_setaffinity(Some(p), &set)) {
            tracing::debug!(pid, error = %e, "the kernel thread keeps to all processors");
        }
    }

    /// Reads from these processors from now on: the kernel thread may run on any of them, also on
    /// one that has just come online. Records of processors that went offline must have been
    /// drained. Returns whether anything changed.
    pub fn follow_cpus(&mut self, online: &[u32]) -> Result<bool, FileError> {
        let has = |pipes: &[(u32, File)], cpu: u32| pipes.iter().any(|(c, _)| *c == cpu);
        let mut came = Vec::new();
        for &cpu in online.iter().filter(|cpu| !has(&self.pipes, **cpu)) {
            came.extend(open_pipe(&self.path, cpu)?.map(|pipe| (cpu, pipe)));
        }
        let before = self.pipes.len();
        self.pipes.retain(|(cpu, _)| online.contains(cpu));
        if came.is_empty() && self.pipes.len() == before {
            return Ok(false);
        }
        self.pipes.extend(came);
        self.pipes.sort_by_key(|(cpu, _)| *cpu);
        // The limit is on all buffers together, and a processor to which the thread was bound may
        // be offline.
        let was_kept = !self.kept_to.is_empty();
        self.buffer_kib = 0;
        self.reserve(self.records)?;
        if let Some(pid) = self.followed {
            match self.kept_to.is_empty() {
                false => self.keep(pid, &self.kept_to),
                true if was_kept => self.keep(pid, online),
                true => {}
            }
        }
        Ok(true)
    }

    /// Waits for a record, no longer than `limit`. True when there may be one. A signal ends the
    /// wait early.
    pub fn wait(&self, limit: Duration) -> bool {
        let mut fds: Vec<PollFd<'_>> = self
            .pipes
            .iter()
            .map(|(_, pipe)| PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN))
            .collect();
        let limit =
            Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        poll(&mut fds, Some(&limit)).is_ok_and(|ready| ready > 0)
    }

    /// Adds all records that have arrived to `records`, in the order in which they were written. Those
    /// of another thread, with the same name, are the last that come of others.
    pub fn drain(&mut self, records: &mut Vec<Record>) -> Result<Drained, FileError> {
        let mut drained = Drained::default();
        let old = records.len();
        for (cpu, pipe) in &mut self.pipes {
            loop {
                let raw = self.path.join(format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
                match faults::check(&raw).and_then(|()| pipe.read(&mut self.page)) {
                    Ok(0) => break,
                    Ok(bytes) => {
                        let page = &self.page[..bytes];
                        let facts = parse_page(page, &self.page_format, &self.event, records);
                        drained.missed |= facts.missed;
                        drained.malformed |= facts.malformed;
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(source) => return Err(FileError::Read { path: raw, source }),
                }
            }
        }
        if let Some(pid) = self.followed
            && !self.shares_name
            && records[old..].iter().any(|record| record.pid != pid)
        {
            self.shares_name = true;
            // The collector takes none of them anyway.
            if let Err(error) = self.follow(pid, None) {
                tracing::warn!(%error, "records of another thread come in, too");
            }
        }
        records[old..].sort_by_key(|r| r.time_ns);
        Ok(drained)
    }
}

/// The records of a processor; `None` for one that went offline meanwhile.
fn open_pipe(instance: &Path, cpu: u32) -> Result<Option<File>, FileError> {
    let path = instance.join(format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    match faults::check(&path).and_then(|()| options.open(&path)) {
        Ok(file) => Ok(Some(file)),
        Err(e) if files::is_gone(&e) => Ok(None),
        Err(source) => Err(FileError::Read { path, source }),
    }
}

/// Removes an instance. Its files must be closed; one that is gone already is no error.
pub fn remove(path: &Path) -> Result<(), FileError> {
    files::remove_folder(path)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::ring::tests::{FORMAT, HEADER_PAGE, body, header, page};
    use crate::testing::put;

    #[test]
    fn a_filter_is_kept_for_the_next_thread_of_the_name_until_another_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let filter_file = format!("{EVENT}/filter");
        put(folder.path(), &format!("{EVENT}/format"), FORMAT);
        put(folder.path(), "events/header_page", HEADER_PAGE);
        for file in [
            "buffer_size_kb",
            "trace_clock",
            "buffer_percent",
            "tracing_on",
            "per_cpu/cpu0/trace_pipe_raw",
            format!("{EVENT}/enable").as_str(),
            filter_file.as_str(),
        ] {
            put(folder.path(), file, "");
        }
        let filter = || files::read(&folder.path().join(&filter_file)).unwrap().unwrap();
        let records_of = |pid, time_ns| {
            let record = Record { time_ns, pid, target: 0, start: 0, end: 4096, accesses: 0 };
            let data = [&header(12, 1)[..], &body(&record)].concat();
            let pipe = folder.path().join("per_cpu/cpu0/trace_pipe_raw");
            let mut pipe = File::options().append(true).open(pipe).unwrap();
            pipe.write_all(&page(time_ns, &data, 0)).unwrap();
        };
        let mut trace = TraceInstance::open(folder.path(), &[0]).unwrap();
        let mut records = Vec::new();
        assert_eq!(filter(), "common_pid == 0");

        trace.follow(77, Some("kdamond.0")).unwrap();
        assert_eq!(filter(), "comm == \"kdamond.0\"");
        records_of(77, 1);
        trace.drain(&mut records).unwrap();
        put(folder.path(), &filter_file, "untouched");
        // Records that the last thread left behind are no other's.
        trace.unfollow();
        records_of(76, 1);
        trace.drain(&mut records).unwrap();
        trace.follow(78, Some("kdamond.0")).unwrap();
        assert_eq!(filter(), "untouched");
        trace.follow(79, Some("kdamond.1")).unwrap();
        assert_eq!(filter(), "comm == \"kdamond.1\"");
        // Neither of unknown names nor of those that would be more than a name.
        trace.follow(79, None).unwrap();
        assert_eq!(filter(), "common_pid == 79");
        for (pid, name) in [(80, "kdamond.1\" || 1"), (81, "kdamond."), (82, "sshd")] {
            trace.follow(pid, Some(name)).unwrap();
            assert_eq!(filter(), format!("common_pid == {pid}"));
        }

        // Of another group's thread.
        trace.follow(81, Some("kdamond.1")).unwrap();
        records_of(99, 2);
        trace.drain(&mut records).unwrap();
        assert_eq!(filter(), "common_pid == 81");
        trace.follow(82, Some("kdamond.1")).unwrap();
        assert_eq!(filter(), "common_pid == 82");
        assert_eq!(records.iter().map(|record| record.pid).collect::<Vec<_>>(), [77, 76, 99]);
    }
}
