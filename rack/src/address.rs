//! Pages of remote memory and their addresses in nodes.
//!
//! A remote page has a 32-bit number, as in the paper's structures: the pool in the upper bits, the
//! page within the pool in the lower ones. In the *shared* organization nodes use these numbers. In
//! the *distributed* one a node's chunks are one after the other in its own address space, and a
//! translation unit turns that address into pool and page; [`Translation`] is that unit.

use crate::config::{BLOCK_BYTES, PAGE_BYTES};

/// Bits of the number of a page within its pool: 128 GB.
pub const POOL_PAGE_BITS: u32 = 25;

/// A page of remote memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemotePage(pub u32);

impl RemotePage {
    /// Page `index` of `pool`.
    pub fn new(pool: usize, index: u32) -> Self {
        debug_assert!(index >> POOL_PAGE_BITS == 0);
        RemotePage((pool as u32) << POOL_PAGE_BITS | index)
    }

    /// The page's pool.
    #[inline]
    pub fn pool(self) -> usize {
        (self.0 >> POOL_PAGE_BITS) as usize
    }

    /// Address of a block of the page, within the pool.
    #[inline]
    pub fn address(self, block: u8) -> u64 {
        let index = u64::from(self.0 & ((1 << POOL_PAGE_BITS) - 1));
        index * PAGE_BYTES + u64::from(block) * BLOCK_BYTES
    }
}

/// The translation unit of a node in the distributed organization: its remote address space
/// consists of its chunks, in order.
#[derive(Debug, Clone, Default)]
pub struct Translation {
    /// First page of each chunk.
    chunks: Vec<RemotePage>,
    pages_per_chunk: u32,
}

impl Translation {
    /// A unit for chunks of so many pages.
    pub fn new(pages_per_chunk: u32) -> Self {
        Translation { chunks: Vec::new(), pages_per_chunk }
    }

    /// Appends a chunk; returns the local number of its first page.
    pub fn append(&mut self, first: RemotePage) -> u32 {
        self.chunks.push(first);
        (self.chunks.len() as u32 - 1) * self.pages_per_chunk
    }

    /// The remote page of a page of the node's remote address space.
    ///
    /// # Panics
    /// If it is in no chunk.
    #[inline]
    pub fn remote(&self, local: u32) -> RemotePage {
        let first = self.chunks[(local / self.pages_per_chunk) as usize];
        RemotePage(first.0 + local % self.pages_per_chunk)
    }

    /// Number of chunks.
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_know_their_pool_and_their_address_in_it() {
        let page = RemotePage::new(3, 5);
        assert_eq!((page.pool(), page.address(2)), (3, 5 * 4096 + 128));
        let last = RemotePage::new(63, (1 << POOL_PAGE_BITS) - 1);
        assert_eq!(last.pool(), 63);
    }

    #[test]
    fn chunks_follow_each_other_in_a_nodes_address_space() {
        let mut unit = Translation::new(1024);
        assert_eq!(unit.append(RemotePage::new(1, 2048)), 0);
        assert_eq!(unit.append(RemotePage::new(0, 0)), 1024);
        assert_eq!(unit.remote(7), RemotePage::new(1, 2055));
        assert_eq!(unit.remote(1024), RemotePage::new(0, 0));
    }
}
