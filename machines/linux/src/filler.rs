//! Fills fast memory for the time of a run, except for the groups' limits. So mechanisms without
//! limits have the same fast memory as those with limits, and both run on a full node.
//!
//! The kernel's pool of huge pages is used for that: neither reclaim nor migration touches these
//! pages. The pool's size is a setting, journaled and restored like any other.

use crate::files::{self, FileError};
use crate::host::HostError;
use crate::numa;
use crate::roots::Roots;
use crate::session::Session;

const POOL_PAGE_BYTES: u64 = 2 << 20;

/// Leaves this much of these nodes together free above their low watermarks and the kernel's headroom
/// ([`numa::room`]). Pages in lists of the processors are free, too: programs take those first, and
/// terraced empties the lists.
pub(crate) fn leave_free(
    roots: &Roots,
    session: &Session,
    nodes: &[u32],
    bytes: u64,
) -> Result<(), HostError> {
    let each = bytes / (nodes.len() as u64).max(1);
    for &node in nodes {
        let room = numa::room(roots, node)?;
        let free_bytes = room.free_bytes + room.list_bytes;
        let free_bytes = free_bytes.saturating_sub(room.headroom.lacking_bytes);
        let pages = pool_pages(free_bytes, each).map_err(|room| {
            HostError::Nodes(format!(
                "node {node} has {} MiB free, expected {} MiB for the groups: give it more memory, \
                 or the groups less",
                room >> 20,
                each >> 20
            ))
        })?;
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
        leave_free(&roots, &session, &[0], 64 << 20).unwrap();
        // 512 MiB free and 16 on lists, less 4 MiB of watermark, 4 MiB of headroom and 64 MiB.
        assert_eq!(get(), (3 + (512 + 16 - 4 - 4 - 64) / 2).to_string());
        assert!(session.restore().is_empty());
        assert_eq!(get(), "3");

        let session = Session::open(&roots, None).unwrap();
        let error = leave_free(&roots, &session, &[0], 1 << 30).unwrap_err().to_string();
        assert!(error.contains("520 MiB free, expected 1024 MiB"), "{error}");
        assert_eq!(get(), "3");
    }
}
