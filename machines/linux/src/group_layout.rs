//! The address-space layout of a group: its processes and its pages. Read every period at bounded
//! cost; the tracker decides which changes are worth a new set-up.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use terrace_core::page::{Extent, Layout, PageSize, SpaceId};

use crate::cgroup::Cgroup;
use crate::files::FileError;
use crate::pagemap::{Answers, LeftOut, Pagemap, Run};
use crate::process::{self, Process};
use crate::roots::Roots;

/// Source of the processes of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A control group of version 2 and those below it; the folder, absolute or below
    /// `/sys/fs/cgroup`.
    Cgroup(PathBuf),
    /// These processes and no others.
    Pids(Vec<u32>),
}

/// The layout of a group at one moment.
#[derive(Debug, Clone)]
pub struct GroupLayout {
    /// Its living processes, ascending by identifier.
    pub processes: Vec<Process>,
    /// Its pages: one address space per process, named by the process identifier.
    pub layout: Arc<Layout>,
    /// Pages beyond the cap, which are not in the layout.
    pub truncated_pages: u64,
    /// Memory that its processes map and that is not in the layout.
    pub left_out: LeftOut,
    /// Memory of processes whose page map could not be read.
    pub unreadable_bytes: u64,
}

/// Reads the layout of one group repeatedly.
#[derive(Debug)]
pub struct LayoutReader {
    roots: Roots,
    source: Source,
    page_size: PageSize,
    /// Ranges of 2 MB are pages, whatever maps them.
    by_range: bool,
    cap_pages: u64,
    /// Processes of `Source::Pids` as first seen, so that a new process with an old identifier
    /// is not taken for them.
    known: BTreeMap<u32, Process>,
    pagemaps: BTreeMap<u32, Pagemap>,
    answers: Answers,
}

impl LayoutReader {
    /// A reader of this group; at most `cap_pages` pages are tracked.
    pub fn new(roots: Roots, source: Source, page_size: PageSize, cap_pages: u64) -> Self {
        LayoutReader {
            roots,
            source,
            page_size,
            by_range: false,
            cap_pages,
            known: BTreeMap::new(),
            pagemaps: BTreeMap::new(),
            answers: Answers::default(),
        }
    }

    /// Ranges of 2 MB are the pages of the layout, whatever maps them.
    #[must_use]
    pub fn by_range(self, by_range: bool) -> Self {
        LayoutReader { by_range, ..self }
    }

    /// The group as a control group, when it is one.
    pub fn cgroup(&self) -> Option<Cgroup> {
        match &self.source {
            Source::Cgroup(path) => Some(Cgroup::new(&self.roots, path)),
            Source::Pids(_) => None,
        }
    }

    /// The living processes of the group, ascending.
    pub fn processes(&mut self) -> Result<Vec<Process>, FileError> {
        let pids = match &self.source {
            Source::Cgroup(path) => Cgroup::new(&self.roots, path).processes()?,
            Source::Pids(pids) => {
                let mut pids = pids.clone();
                pids.sort_unstable();
                pids.dedup();
                pids
            }
        };
        let fixed = matches!(self.source, Source::Pids(_));
        let mut processes = Vec::with_capacity(pids.len());
        for pid in pids {
            let Some(process) = process::alive(&self.roots, pid)? else { continue };
            if !fixed || *self.known.entry(pid).or_insert(process) == process {
                processes.push(process);
            }
        }
        Ok(processes)
    }

    /// The layout now. The layout is `before`'s own when nothing changed.
    pub fn read(&mut self, before: Option<&GroupLayout>) -> Result<GroupLayout, FileError> {
        let processes = self.processes()?;
        self.pagemaps.retain(|_, p| processes.binary_search(&p.process()).is_ok());
        // A child that has just been forked shares all its pages with its parent.
        let mut seen = (processes.len() > 1).then(HashSet::new);
        let mut extents = Vec::new();
        let mut room = self.cap_pages;
        let mut truncated_pages = 0;
        let mut left_out = LeftOut::default();
        let mut unreadable_bytes = 0;
        let mut unreadable = None;
        for &process in &processes {
            let runs = match self.runs(process, seen.as_mut(), room, &mut left_out) {
                // For example a process that a security module protects from all others. The others
                // are tracked.
                Err(e) if matches!(e.errno(), Some(libc::EACCES | libc::EPERM)) => {
                    unreadable_bytes += process::resident_bytes(&self.roots, process.pid)?;
                    unreadable = Some(e);
                    continue;
                }
                runs => runs?,
            };
            for Run { start, pages } in runs {
                let taken = pages.min(room);
                room -= taken;
                truncated_pages += pages - taken;
                if taken > 0 {
                    extents.push(Extent { space: SpaceId(process.pid), start, pages: taken });
                }
            }
        }
        // An error if nothing could be read: that is not a group without memory.
        if let Some(error) = unreadable.filter(|_| extents.is_empty()) {
            return Err(error);
        }
        let same = before
            .filter(|b| b.layout.extents() == extents && b.layout.page_size() == self.page_size);
        let layout = match same {
            Some(before) => Arc::clone(&before.layout),
            None => Arc::new(Layout::new(self.page_size, extents).map_err(|e| {
                FileError::malformed(
                    &self.roots.proc.join("PID/pagemap"),
                    &e.to_string(),
                    "runs in order",
                )
            })?),
        };
        Ok(GroupLayout { processes, layout, truncated_pages, left_out, unreadable_bytes })
    }

    fn runs(
        &mut self,
        process: Process,
        seen: Option<&mut HashSet<u64>>,
        most: u64,
        left_out: &mut LeftOut,
    ) -> Result<Vec<Run>, FileError> {
        // A file opened before exec(2) shows memory that is gone: opened once more.
        for _ in 0..2 {
            if !self.pagemaps.contains_key(&process.pid) {
                match Pagemap::open(&self.roots, process)? {
                    Some(pagemap) => self.pagemaps.insert(process.pid, pagemap),
                    None => break,
                };
            }
            let Some(pagemap) = self.pagemaps.get(&process.pid) else { break };
            let before = *left_out;
            let runs = if self.by_range {
                pagemap.ranges(&self.roots, &mut self.answers, left_out)?
            } else {
                pagemap.runs(&self.roots, self.page_size, &mut self.answers, left_out)?
            };
            match runs {
                Some(runs) => {
                    return match seen {
                        Some(seen) => pagemap.leave_out_seen(runs, self.page_size, seen, most),
                        None => Ok(runs),
                    };
                }
                None => {
                    *left_out = before;
                    self.pagemaps.remove(&process.pid)
                }
            };
        }
        Ok(Vec::new())
    }
}

/// Pages in `new` that are not in `old`, and the other way round.
pub fn difference(old: &Layout, new: &Layout) -> (u64, u64) {
    let common = common_pages(old, new);
    (new.pages() as u64 - common, old.pages() as u64 - common)
}

fn common_pages(a: &Layout, b: &Layout) -> u64 {
    if a.page_size() != b.page_size() {
        return 0;
    }
    let bytes = a.page_size().bytes();
    let end = |e: &Extent| e.start + e.pages * bytes;
    let (mut left, mut right) = (a.extents().iter().peekable(), b.extents().iter().peekable());
    let mut common = 0;
    while let (Some(l), Some(r)) = (left.peek(), right.peek()) {
        if l.space == r.space {
            let from = l.start.max(r.start);
            let to = end(l).min(end(r));
            common += to.saturating_sub(from) / bytes;
        }
        if (l.space, end(l)) <= (r.space, end(r)) {
            left.next();
        } else {
            right.next();
        }
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;
    use proptest::prelude::*;

    fn layout(extents: &[(u32, u64, u64)]) -> Layout {
        let extents = extents
            .iter()
            .map(|&(space, page, pages)| Extent { space: SpaceId(space), start: page << 12, pages })
            .collect();
        Layout::new(PageSize::Base, extents).unwrap()
    }

    #[test]
    fn difference_counts_pages_that_came_and_went() {
        let old = layout(&[(1, 10, 5), (2, 0, 4)]);
        assert_eq!(difference(&old, &old), (0, 0));
        assert_eq!(difference(&old, &layout(&[(1, 12, 6), (2, 0, 1), (2, 3, 1)])), (3, 4));
        assert_eq!(difference(&old, &layout(&[])), (0, 9));
    }

    proptest! {
        #[test]
        fn difference_agrees_with_sets_of_pages(
            a in prop::collection::btree_set((0u32..3, 0u64..20), 0..30),
            b in prop::collection::btree_set((0u32..3, 0u64..20), 0..30),
        ) {
            let of = |pages: &std::collections::BTreeSet<(u32, u64)>| {
                layout(&pages.iter().map(|&(s, p)| (s, p, 1)).collect::<Vec<_>>())
            };
            let expected = (b.difference(&a).count() as u64, a.difference(&b).count() as u64);
            prop_assert_eq!(difference(&of(&a), &of(&b)), expected);
        }
    }

    const STAT: &str = ") S 1 2 3 4 5 6 7 8 9 10 0 0 0 0 20 0 1 0 ";

    #[test]
    fn the_dead_and_those_who_took_their_numbers_are_no_members() {
        let (keep, roots) = folder(&[
            ("proc/5/stat", &format!("5 (a{STAT}100 0\n")),
            ("proc/6/stat", &format!("6 (b{}200 0\n", STAT.replace(") S", ") Z"))),
        ]);
        let source = Source::Pids(vec![6, 5, 5, 7]);
        let mut layout_reader = LayoutReader::new(roots, source, PageSize::Base, 10);
        let five = Process { pid: 5, start_ticks: 100 };
        assert_eq!(layout_reader.processes().unwrap(), [five]);
        crate::testing::put(keep.path(), "proc/5/stat", &format!("5 (a{STAT}101 0\n"));
        assert_eq!(layout_reader.processes().unwrap(), []);
    }

    #[test]
    fn this_process_has_a_layout_whose_cap_holds() {
        let roots = Roots::default();
        let source = Source::Pids(vec![std::process::id()]);
        let mut layout_reader = LayoutReader::new(roots, source, PageSize::Base, 16);
        match layout_reader.read(None) {
            Ok(group) => {
                assert_eq!(group.layout.pages(), 16);
                assert!(group.truncated_pages > 0);
                assert_eq!(group.layout.extents()[0].space, SpaceId(std::process::id()));
            }
            Err(e) => assert!(matches!(e.errno(), Some(libc::ENOTTY | libc::EPERM)), "{e}"),
        }
    }
}
