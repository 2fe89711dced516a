//! The kernel's work in the background, where the configuration has it: collapsing base pages to
//! huge pages as khugepaged does, and demoting pages when free fast memory is short.
//!
//! Both run once a period on the daemon's core, at the end of the period, in their real steps.
//! Demotion is TPP's (Maruf et al., "TPP: Transparent Page Placement for CXL-Enabled Tiered-Memory",
//! ASPLOS 2023, section 5.1): it begins before allocation would have to leave the fast tier, and
//! takes pages that were not used, so that new pages find room there.

use terrace_core::interfaces::MachineError;
use terrace_core::page::VirtualRange;
use terrace_core::plan::Direction;
use terrace_core::scan::Scan;
use terrace_hardware::address::VirtualAddress;
use terrace_hardware::units::Picoseconds;
use terrace_hardware::walker::PageTable;
use terrace_os::config::Node;

use super::machine::State;

impl State {
    /// Checks the next regions of a group's memory and collapses those that are worth it.
    pub(super) fn collapse(&mut self, group: usize) -> Result<(), MachineError> {
        let regions = self.config.options.collapse_regions_per_period;
        if regions == 0 {
            return Ok(());
        }
        let space = self.programs[group].space;
        let from = self.members[group].collapse_from;
        let round = self.os.collapse(space, from, regions);
        self.members[group].collapse_from = round.next;
        self.charge(round.cost);
        let rate = self.os.costs().zero_gb_per_s.max(1e-3);
        for page in &round.collapsed {
            self.charge(page.cost);
            self.shoot_down(group, &page.shootdown);
            self.copy(&page.copies, 1, false)?;
            self.charge(Picoseconds((page.zeroed_bytes as f64 * 1000.0 / rate) as u64));
            for copy in &page.copies {
                self.forget_lines(copy.from, copy.bytes);
            }
        }
        Ok(())
    }

    /// Demotes pages of a group that the scan reports as not accessed, when free fast memory is
    /// short. Updates the scan's placement.
    pub(super) fn demote_in_background(
        &mut self,
        group: usize,
        scan: &mut Scan,
    ) -> Result<(), MachineError> {
        let Some(demotion) = self.config.options.background_demotion else { return Ok(()) };
        let capacity_bytes = self.config.hardware.tiers[0].capacity.0 as f64;
        let free_bytes = self.os.free_bytes(Node::FAST);
        // Once begun, demotion continues, over several periods if needed, until enough is free.
        let member = &mut self.members[group];
        if free_bytes as f64 >= demotion.end_free_share * capacity_bytes {
            member.is_demoting = false;
        } else if (free_bytes as f64) < demotion.begin_free_share * capacity_bytes {
            member.is_demoting = true;
        }
        if !member.is_demoting {
            return Ok(());
        }
        let page_bytes = scan.layout.page_size().bytes();
        let short_bytes = (demotion.end_free_share * capacity_bytes) as u64;
        let wanted = short_bytes.saturating_sub(free_bytes).div_ceil(page_bytes) as usize;
        // The start moves round, so that the same pages are not always checked first.
        let pages = scan.pages();
        let hand = self.members[group].demote_from % pages.max(1);
        let unused = |&page: &usize| scan.fast.get(page) && !scan.accessed.get(page);
        let chosen: Vec<usize> = (hand..pages).chain(0..hand).filter(unused).take(wanted).collect();
        let Some(&last) = chosen.last() else { return Ok(()) };
        self.members[group].demote_from = last + 1;
        let range = |&page: &usize| {
            let (space, start) = scan.layout.address(page);
            VirtualRange { space, start, size_bytes: page_bytes }
        };
        let ranges = chosen.iter().map(range).collect();
        let mut carrying = self.carrying(group);
        self.one_way(&mut carrying, ranges, Direction::Demotion)?;
        self.members[group].cost.background_demoted_pages += carrying.outcome.demoted_pages;
        if self.has_ended(group) {
            return Ok(());
        }
        for page in chosen {
            let (space, address) = scan.layout.address(page);
            let leaf = self.os.space_mut(space).path(VirtualAddress(address)).leaf;
            let is_fast = leaf.is_some_and(|leaf| self.os.node_of(leaf.frame) == Node::FAST);
            scan.fast.set(page, is_fast);
        }
        if scan.frames.is_some() {
            scan.frames = Some(self.frames_of(group, &scan.layout));
        }
        Ok(())
    }
}
