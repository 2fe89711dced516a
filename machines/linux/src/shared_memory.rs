//! Memory that several groups map, shared or of files of data: moved by one of them, by the accesses of all.
//!
//! Each group observes the accesses of its own processes only. If every group that maps such memory
//! moved it, one would demote what another promotes, for as long as both run. So the group that
//! mapped it first moves it and has it in its account; the others report their accesses to that
//! one. When the first is gone, the next takes its place.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use terrace_core::page::{Extent, Layout};
use terrace_core::scan::Scan;

use crate::files::FileError;
use crate::process::{self, Object};
use crate::roots::Roots;

/// The shared memory of a host's groups.
#[derive(Debug, Default)]
pub(crate) struct SharedMemory(Mutex<Users>);

#[derive(Debug, Default)]
struct Users {
    /// Number of the next group.
    next: u64,
    /// Groups that map an object; the first one moves it.
    of: BTreeMap<Object, Vec<User>>,
}

#[derive(Debug)]
struct User {
    group: u64,
    /// Its accesses in its last period, by offset in the object.
    accessed: Vec<Accessed>,
}

/// Accesses of a group to a part of an object.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Accessed {
    /// First byte in the object, and one past the last. A range of 2 MB may begin before it.
    bytes: (i64, i64),
    /// Share of the period's samples in which it was accessed, above 0.
    share: f64,
}

impl SharedMemory {
    /// Adds a group.
    pub(crate) fn join(self: &Arc<Self>) -> Member {
        let mut users = lock(&self.0);
        let group = users.next;
        users.next += 1;
        Member { all: Arc::clone(self), group, followed: None, parts: Vec::new(), own: None }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Users {
    /// Sets the objects that the group maps, sorted.
    fn maps(&mut self, group: u64, objects: &[Object]) {
        self.of.retain(|object, users| {
            users.retain(|user| user.group != group || objects.binary_search(object).is_ok());
            !users.is_empty()
        });
        for &object in objects {
            let users = self.of.entry(object).or_default();
            if users.iter().all(|user| user.group != group) {
                users.push(User { group, accessed: Vec::new() });
            }
        }
    }

    fn moves(&self, group: u64, object: Object) -> bool {
        self.of.get(&object).and_then(|users| users.first()).is_none_or(|u| u.group == group)
    }
}

/// One group's membership.
#[derive(Debug)]
pub(crate) struct Member {
    all: Arc<SharedMemory>,
    group: u64,
    /// The layout of `parts`.
    followed: Option<Arc<Layout>>,
    parts: Vec<Part>,
    /// The part of the layout that this group moves, if that is not all.
    own: Option<Own>,
}

/// Adjacent pages of a layout that belong to one object.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    pages: Range<usize>,
    object: Object,
    /// Offset of the first page's first byte in the object.
    offset: i64,
}

/// The part of its layout that a group moves.
#[derive(Debug)]
struct Own {
    layout: Arc<Layout>,
    pages: Vec<Range<usize>>,
    /// Numbers of the parts that others move.
    others: Vec<usize>,
}

impl Member {
    /// Finds the pages of a layout that are shared memory or a file's. `layout` is the group's from now on.
    pub(crate) fn follow(&mut self, roots: &Roots, layout: &Arc<Layout>) -> Result<(), FileError> {
        let mut parts = Vec::new();
        let mut mappings: Vec<process::Mapping> = Vec::new();
        let mut space = None;
        for (number, extent) in layout.extents().iter().enumerate() {
            if space != Some(extent.space) {
                space = Some(extent.space);
                mappings = process::data_mappings(&process::mappings(roots, extent.space.0)?);
            }
            let first = layout.first_index(number);
            parts_of(extent, first, layout.page_size().bytes(), &mappings, &mut parts);
        }
        let mut objects: Vec<Object> = parts.iter().map(|part| part.object).collect();
        objects.sort_unstable();
        objects.dedup();
        lock(&self.all.0).maps(self.group, &objects);
        self.followed = Some(Arc::clone(layout));
        self.parts = parts;
        self.own = None;
        Ok(())
    }

    /// The scan of the pages that this group moves, with the accesses of the other groups that map
    /// them; and the number of pages left out. The groups that move those get this group's
    /// accesses.
    pub(crate) fn divide(&mut self, mut scan: Scan) -> (Scan, u64) {
        let is_followed = self.followed.as_ref().is_some_and(|l| Arc::ptr_eq(l, &scan.layout));
        if !is_followed || self.parts.is_empty() {
            return (scan, 0);
        }
        let mut users = lock(&self.all.0);
        let mut others = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            if users.moves(self.group, part.object) {
                let of_others = users.of.get(&part.object).into_iter().flatten();
                for user in of_others.filter(|user| user.group != self.group) {
                    add(&mut scan, part, &user.accessed);
                }
            } else {
                others.push(number);
            }
        }
        let bytes = scan.layout.page_size().bytes();
        for users in users.of.values_mut() {
            if let Some(user) = users.iter_mut().find(|user| user.group == self.group) {
                user.accessed.clear();
            }
        }
        for &number in &others {
            let part = &self.parts[number];
            let users = users.of.get_mut(&part.object).into_iter().flatten();
            for user in users.filter(|user| user.group == self.group) {
                user.accessed.extend(accessed(&scan, part, bytes as i64));
            }
        }
        drop(users);
        if others.is_empty() {
            self.own = None;
            return (scan, 0);
        }
        let parts = &self.parts;
        let left_out = others.iter().map(|&number| parts[number].pages.len() as u64).sum();
        // The layout stays the same while nothing changes.
        let own = match self.own.take() {
            Some(own) if own.others == others => self.own.insert(own),
            _ => self.own.insert(Own::of(&scan.layout, parts, others)),
        };
        (scan.of_pages(&own.layout, &own.pages), left_out)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        lock(&self.all.0).maps(self.group, &[]);
    }
}

/// The parts of an extent's pages that belong to shared mappings, which come by address. A page
/// belongs to the mapping of its middle: a range of 2 MB may hold several.
fn parts_of(
    extent: &Extent,
    first: usize,
    bytes: u64,
    mappings: &[process::Mapping],
    parts: &mut Vec<Part>,
) {
    let page_at = |address: u64| {
        // The first page whose middle is not before it.
        let pages = address.saturating_sub(extent.start + bytes / 2).div_ceil(bytes);
        pages.min(extent.pages)
    };
    let from = mappings.partition_point(|m| m.end <= extent.start);
    let end = extent.start + extent.pages * bytes;
    for mapping in mappings[from..].iter().take_while(|m| m.start < end) {
        let pages = page_at(mapping.start)..page_at(mapping.end);
        if pages.is_empty() {
            continue;
        }
        let address = extent.start + pages.start * bytes;
        parts.push(Part {
            offset: mapping.offset as i64 + (address as i64 - mapping.start as i64),
            pages: first + pages.start as usize..first + pages.end as usize,
            object: mapping.object,
        });
    }
}

/// Adds the accesses of others to the pages of a part: the hottest group decides.
fn add(scan: &mut Scan, part: &Part, of_others: &[Accessed]) {
    let bytes = scan.layout.page_size().bytes() as i64;
    for accessed in of_others {
        let page_at = |place: i64| place.clamp(0, part.pages.len() as i64 * bytes);
        let from = page_at(accessed.bytes.0 - part.offset) / bytes;
        let to = (page_at(accessed.bytes.1 - part.offset) + bytes - 1) / bytes;
        for page in part.pages.start + from as usize..part.pages.start + to as usize {
            scan.accessed.set(page, true);
            if let Some(counts) = &mut scan.counts {
                let found = (accessed.share * f64::from(counts.samples)).round().max(1.0) as u8;
                if counts.counts[page] < found {
                    Arc::make_mut(&mut counts.counts)[page] = found;
                }
            }
        }
    }
}

/// The scan's values for a part's pages.
fn accessed<'a>(
    scan: &'a Scan,
    part: &'a Part,
    bytes: i64,
) -> impl Iterator<Item = Accessed> + use<'a> {
    part.pages.clone().enumerate().filter(|&(_, page)| scan.accessed.get(page)).map(
        move |(nth, page)| {
            let place = part.offset + nth as i64 * bytes;
            let share = scan.counts.as_ref().map_or(1.0, |counts| counts.share(page));
            Accessed { bytes: (place, place + bytes), share }
        },
    )
}

impl Own {
    fn of(layout: &Layout, parts: &[Part], others: Vec<usize>) -> Self {
        let mut pages = Vec::new();
        let mut from = 0;
        for &number in &others {
            let left_out = &parts[number].pages;
            if from < left_out.start {
                pages.push(from..left_out.start);
            }
            from = left_out.end;
        }
        if from < layout.pages() {
            pages.push(from..layout.pages());
        }
        Own { layout: Arc::new(layout.of_pages(&pages)), pages, others }
    }
}

#[cfg(test)]
mod tests;
