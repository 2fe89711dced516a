//! Which of a node's pages are local and which remote: the memory manager allocates pages by the
//! set share, and requests remote memory from the global manager when its own runs out.

use super::LocalMemory;
use crate::Time;
use crate::address::RemotePage;
use crate::packet::{Kind, Packet};
use crate::pages::Place;

impl LocalMemory {
    /// Chunks or pages that must be allocated before so many more pages can be mapped remotely.
    pub fn units_missing(&self, pages: u32) -> u32 {
        pages.saturating_sub(self.free_remote.len() as u32).div_ceil(self.unit)
    }

    /// Adds remote memory to the node.
    pub fn give(&mut self, first: RemotePage) {
        let local = self.translation.append(first);
        self.free_remote.extend(local..local + self.unit);
    }

    /// How many of the next pages will be remote by the set share.
    pub fn remote_among(&self, pages: usize) -> u32 {
        self.dealer.remote_among(pages)
    }

    /// Maps the page of an address, locally or remotely by the set share. `false` if that needs
    /// remote memory that is missing; it is requested.
    pub fn map(&mut self, now: Time, address: u64) -> bool {
        let local = self.dealer.is_local();
        let full = self.frames >= self.most_frames && self.free_frames.is_empty();
        let place = if local && !full {
            let frame = self.new_frame();
            self.counts.pages_local += 1;
            Place::Local(frame)
        } else {
            let Some(remote) = self.free_remote.pop_front() else {
                self.ask(now);
                return false;
            };
            self.counts.pages_remote += 1;
            Place::Remote(remote)
        };
        self.dealer.dealt();
        let page = self.pages.map(address, place);
        if let Place::Remote(remote) = place {
            if let Some(check) = &mut self.check
                && check.used.contains(&remote)
            {
                check.unknown.insert(page);
            }
            self.remote_to_page.insert(self.translation.remote(remote).0, page);
        }
        true
    }

    pub(super) fn new_frame(&mut self) -> u32 {
        self.frames += 1;
        self.frames - 1
    }

    pub(super) fn ask(&mut self, now: Time) {
        if !self.asked {
            self.asked = true;
            // The time of a faulting core may be before the node's.
            let now = now.max(self.latest);
            let packet =
                Packet::new(Kind::AskMemory, self.node, RemotePage(0), 0, self.header_bytes);
            self.send(now, packet);
        }
    }

    /// Reserves frames for the pages of a first batch, so that they can arrive before victims have
    /// left.
    pub fn reserve(&mut self, pages: u32) {
        for _ in 0..pages {
            let frame = self.new_frame();
            self.free_frames.push(frame);
        }
    }
}
