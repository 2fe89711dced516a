//! Counts the result of each page of a plan, and names the reasons of failures.

use terrace_core::page::{PageSize, VirtualRange};
use terrace_core::plan::{Direction, Failure, FailureReason, Outcome};

use super::{Page, PageResult};

/// Counts the result of each page; merges neighbours that failed alike.
pub(super) struct Account {
    page_bytes: u64,
    pub(super) outcome: Outcome,
}

impl Account {
    pub(super) fn new(page_size: PageSize) -> Self {
        Account { page_bytes: page_size.bytes(), outcome: Outcome::default() }
    }

    pub(super) fn pages(&mut self, direction: Direction, pages: &[Page], results: &[PageResult]) {
        for (&page, &result) in pages.iter().zip(results) {
            self.page(direction, page, result);
        }
    }

    pub(super) fn page(&mut self, direction: Direction, page: Page, result: PageResult) {
        let reason = match (result, direction) {
            (Ok(()), Direction::Promotion) => return self.outcome.promoted_pages += 1,
            (Ok(()), Direction::Demotion) => return self.outcome.demoted_pages += 1,
            (Err(reason), _) => reason,
        };
        if let Some(last) = self.outcome.failures.last_mut()
            && (last.direction, last.reason) == (direction, reason)
            && last.range.space == page.space
            && last.range.end() == page.address
        {
            last.range.size_bytes += self.page_bytes;
            return;
        }
        let range =
            VirtualRange { space: page.space, start: page.address, size_bytes: self.page_bytes };
        self.outcome.failures.push(Failure { range, direction, reason });
    }
}

/// Why one page failed, from its status.
pub(super) fn of_page(status: i32) -> FailureReason {
    match -status {
        libc::ENOENT | libc::EFAULT => FailureReason::Absent,
        libc::EBUSY | libc::EAGAIN => FailureReason::Busy,
        libc::EACCES | libc::EPERM => FailureReason::Denied,
        libc::ENOMEM => FailureReason::NoRoom,
        libc::ENODEV | libc::EINVAL => FailureReason::NotAllowed,
        libc::ESRCH => FailureReason::ProcessGone,
        _ => FailureReason::Unsupported,
    }
}

/// Why a whole call failed. Error numbers differ from those in a page's status: EACCES means that
/// the node is outside the process's cpuset, EINVAL that the process has no memory any more
/// (`find_mm_struct` in mm/migrate.c).
pub(super) fn of_call(error: &std::io::Error) -> FailureReason {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::ENODEV) => FailureReason::NotAllowed,
        Some(libc::ESRCH | libc::EINVAL) => FailureReason::ProcessGone,
        Some(libc::EPERM) => FailureReason::Denied,
        Some(libc::ENOMEM) => FailureReason::NoRoom,
        Some(libc::EAGAIN | libc::EBUSY | libc::EINTR) => FailureReason::Busy,
        Some(libc::EFAULT | libc::ENOENT) => FailureReason::Absent,
        _ => FailureReason::Unsupported,
    }
}
