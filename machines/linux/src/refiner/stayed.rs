//! Base pages that did not move when they should have: pinned ones, those of files whose pages cannot be
//! moved. Each attempt costs, for the kernel tries such a page ten times, so each is set aside for twice
//! as long as before.

use std::collections::BTreeMap;

use super::Page;

/// A page is set aside for so many times that more is known, after it stayed for the first time.
const FIRST_WAIT: u64 = 2;
/// And for so many at most, where others came in the same call.
const LONGEST_WAIT: u64 = 256;
/// Where hardly any did, there may have been no room for them.
const WAIT_FOR_ROOM: u64 = 8;
/// Pages that stayed and are kept in mind.
const MOST: usize = 1 << 18;

/// Pages that stayed, by process and address: for how long each is set aside, and until which version of
/// what is known.
#[derive(Debug, Default)]
pub(super) struct Stayed(BTreeMap<(u32, u64), (u64, u64)>);

impl Stayed {
    /// `others_came`: in the same call.
    pub(super) fn add(&mut self, page: Page, version: u64, others_came: bool) {
        if self.0.len() >= MOST {
            return;
        }
        let (wait, until) = self.0.entry((page.pid, page.address)).or_default();
        let most = if others_came { LONGEST_WAIT } else { WAIT_FOR_ROOM.max(*wait) };
        *wait = (2 * *wait).clamp(FIRST_WAIT, most);
        *until = version + *wait;
    }

    pub(super) fn remove(&mut self, page: Page) {
        self.0.remove(&(page.pid, page.address));
    }

    /// Whether this page is set aside now.
    pub(super) fn is_set_aside(&self, pid: u32, address: u64, version: u64) -> bool {
        self.0.get(&(pid, address)).is_some_and(|(_, until)| version < *until)
    }

    /// Forgets those that have not been tried for long since.
    pub(super) fn forget_old(&mut self, version: u64) {
        self.0.retain(|_, (wait, until)| version < *until + 2 * *wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_stays_is_set_aside_for_longer_each_time() {
        let page = Page { pid: 7, address: 4096, is_of_fast: false, per_s: 1.0 };
        let mut stayed = Stayed::default();
        let mut version = 10;
        for wait in [2, 4, 8, 16] {
            stayed.add(page, version, true);
            assert!(stayed.is_set_aside(7, 4096, version + wait - 1), "{wait}");
            assert!(!stayed.is_set_aside(7, 4096, version + wait), "{wait}");
            version += wait;
            stayed.forget_old(version);
        }
        (0..20).for_each(|_| stayed.add(page, version, true));
        assert!(!stayed.is_set_aside(7, 4096, version + LONGEST_WAIT));
        assert!(!stayed.is_set_aside(7, 8192, version) && !stayed.is_set_aside(8, 4096, version));
        stayed.remove(page);
        assert!(!stayed.is_set_aside(7, 4096, version));
        // There may have been no room.
        (0..20).for_each(|_| stayed.add(page, version, false));
        assert!(!stayed.is_set_aside(7, 4096, version + WAIT_FOR_ROOM));
        stayed.forget_old(version + 100);
        assert!(stayed.0.is_empty());
    }
}
