//! Fills fast memory for the time of a run, except for the groups' limits. So mechanisms without
//! limits have the same fast memory as those with limits, and both run on a full node.
//!
//! The kernel's pool of huge pages is used for that: neither reclaim nor migration touches these
//! pages. The pool's size is a setting, journaled and restored like any other.
//!
//! The kernel's headroom comes on top. Those who keep it free have it from the beginning. Mechanisms
//! without limits would use it for their groups, and what the kernel allocates would come from slow memory
//! or not by chance. So they get it before anything is measured ([`give_headroom`]): as much as the others
//! have, whatever of it is in use.

use terrace_core::interfaces::Headroom;

use crate::files::{self, FileError};
use crate::free_lists;
use crate::host::HostError;
use crate::numa;
use crate::roots::Roots;
use crate::session::Session;

const POOL_PAGE_BYTES: u64 = 2 << 20;

/// Pages of the pool that are the kernel's headroom and were taken, by node.
#[derive(Debug, Default)]
pub struct Filled(Vec<(u32, u64)>);

/// Leaves this much of these nodes together free above their low watermarks and, where that is kept, the
/// kernel's headroom ([`numa::room`]). Lists of the processors are emptied before, as terraced does, and what they keep counts
/// as free: programs take those pages first.
pub(crate) fn leave_free(
    roots: &Roots,
    session: &Session,
    nodes: &[u32],
    bytes: u64,
    keeps_headroom: bool,
) -> Result<Filled, HostError> {
    if let Err(error) = free_lists::drain(roots, session) {
        tracing::warn!(%error, "free pages stay in the processors' lists");
    }
    let each = bytes / (nodes.len() as u64).max(1);
    let mut filled = Filled::default();
    for &node in nodes {
        let room = numa::room(roots, node)?;
        let Headroom { wanted_bytes, lacking_bytes, .. } = room.headroom;
        let free_bytes = room.free_bytes + room.list_bytes + wanted_bytes - lacking_bytes;
        let pages = |free_bytes| {
            pool_pages(free_bytes, each).map_err(|room| {
                HostError::Nodes(format!(
                    "node {node} has {} MiB free, expected {} MiB for the groups: give it more memory, \
                     or the groups less",
                    room >> 20,
                    each >> 20
                ))
            })
        };
        let with_headroom = pages(free_bytes.saturating_sub(wanted_bytes))?;
        let pages = if keeps_headroom { with_headroom } else { pages(free_bytes)? };
        let path = roots.huge_page_pool(node);
        let had: u64 = files::read_number(&path)?.ok_or_else(|| FileError::Missing {
            path: path.clone(),
            remedy: "expected a kernel with CONFIG_HUGETLBFS; boot one",
        })?;
        let wanted = had + pages;
        session.set(&path, &wanted.to_string())?;
        let got: u64 = files::read_number(&path)?.unwrap_or(0);
        if got != wanted {
            // Restored to the earlier value: the file does not have the value in the journal.
            files::write(&path, &had.to_string())?;
            return Err(HostError::Nodes(format!(
                "node {node} gave {} of {pages} huge pages, expected memory that can be taken: \
                 it is in too many pieces; restart the host, or give it more memory",
                got.saturating_sub(had)
            )));
        }
        filled.0.push((node, pages - with_headroom));
    }
    Ok(filled)
}

/// Takes all of these nodes but the kernel's headroom and so many bytes of them together, as far as it comes
/// in pages of the pool: for groups that may have had all of it, have most of what they need, and may grow
/// by that much.
pub(crate) fn take_rest(
    roots: &Roots,
    session: &Session,
    nodes: &[u32],
    bytes: u64,
) -> Result<(), HostError> {
    let each = bytes / (nodes.len() as u64).max(1);
    if let Err(error) = free_lists::drain(roots, session) {
        tracing::warn!(%error, "free pages stay in the processors' lists");
    }
    let mut lacking = None;
    for &node in nodes {
        let room = numa::room(roots, node)?;
        let path = roots.huge_page_pool(node);
        let had: u64 = files::read_number(&path)?.unwrap_or(0);
        let wanted = had + room.free_bytes.saturating_sub(each) / POOL_PAGE_BYTES;
        session.set(&path, &wanted.to_string())?;
        let got: u64 = files::read_number(&path)?.unwrap_or(0);
        if got != wanted {
            // So what is in the journal is what the file has: a smaller pool can always be had.
            session.set(&path, &got.saturating_sub(1).max(had).to_string())?;
            lacking = Some(HostError::Nodes(format!(
                "node {node} gave {} of {} huge pages, expected all: its free memory is in too many pieces",
                got.saturating_sub(had),
                wanted - had
            )));
        }
    }
    lacking.map_or(Ok(()), Err)
}

/// Gives the kernel its headroom on these nodes from what was taken.
pub(crate) fn give_headroom(
    roots: &Roots,
    session: &Session,
    filled: &Filled,
) -> Result<(), HostError> {
    for &(node, pages) in filled.0.iter().filter(|(_, pages)| *pages > 0) {
        let path = roots.huge_page_pool(node);
        let has: u64 = files::read_number(&path)?.unwrap_or(0);
        session.set(&path, &has.saturating_sub(pages).to_string())?;
    }
    Ok(())
}

/// Pages for the pool, so that `each` of this room remains; as an error the room, if it is smaller.
fn pool_pages(room: u64, each: u64) -> Result<u64, u64> {
    room.checked_sub(each).map(|surplus| surplus / POOL_PAGE_BYTES).ok_or(room)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;
    use std::fs;

    #[test]
    fn what_remains_is_what_was_asked_for_and_the_pool_is_put_back() {
        let pool = "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
        let (keep, roots) = folder(&[
            (
                "proc/zoneinfo",
                "Node 0, zone   Normal\n  pages free     131072\n        low      1024\n\
                 \x20       managed  262144\n        protection: (0, 0)\n\
                 \x20             count:    3072\n              count:    1024\n",
            ),
            (pool, "3\n"),
        ]);
        let get = || fs::read_to_string(keep.path().join(pool)).unwrap();
        let session = Session::open(&roots, None).unwrap();
        let filled = leave_free(&roots, &session, &[0], 64 << 20, true).unwrap();
        // 512 MiB free and 16 on lists, less 4 MiB of watermark, 4 MiB of headroom and 64 MiB.
        let taken = (512 + 16 - 4 - 4 - 64) / 2;
        assert_eq!(get(), (3 + taken).to_string());
        // They have had the headroom from the beginning, in use or not.
        let zones = keep.path().join("proc/zoneinfo");
        let text = fs::read_to_string(&zones).unwrap();
        let full = text.replace("pages free     131072", "pages free     1280");
        fs::write(&zones, &full).unwrap();
        give_headroom(&roots, &session, &filled).unwrap();
        assert_eq!(get(), (3 + taken).to_string());
        assert!(session.restore().is_empty());
        assert_eq!(get(), "3");

        // The others have as much in the end: where the groups use all, and where some is free again.
        for later in [&full, &text] {
            fs::write(&zones, &text).unwrap();
            let session = Session::open(&roots, None).unwrap();
            let filled = leave_free(&roots, &session, &[0], 64 << 20, false).unwrap();
            assert_eq!(get(), (3 + taken + 2).to_string());
            fs::write(&zones, later).unwrap();
            give_headroom(&roots, &session, &filled).unwrap();
            assert_eq!(get(), (3 + taken).to_string());
            assert!(session.restore().is_empty());
        }

        let session = Session::open(&roots, None).unwrap();
        take_rest(&roots, &session, &[0], 0).unwrap();
        let rest = (512 - 4 - 4) / 2;
        assert_eq!(get(), (3 + rest).to_string());
        assert!(session.restore().is_empty());

        // The groups may still grow.
        let session = Session::open(&roots, None).unwrap();
        take_rest(&roots, &session, &[0], 100 << 20).unwrap();
        assert_eq!(get(), (3 + rest - 50).to_string());
        assert!(session.restore().is_empty());
        assert_eq!(get(), "3");

        let session = Session::open(&roots, None).unwrap();
        let error = leave_free(&roots, &session, &[0], 1 << 30, true).unwrap_err().to_string();
        assert!(error.contains("520 MiB free, expected 1024 MiB"), "{error}");
        assert_eq!(get(), "3");
    }
}
