//! Faults injected on purpose, in tests only: a checker is worth something when it finds them.

/// A mistake that an operating system could make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code)] // Made by tests alone.
pub(crate) enum FaultInjection {
    /// A finished move does not free the frame that the page left.
    LeaksOldFrame,
    /// A finished move maps the frame that the page left, which is free.
    MapsOldFrame,
    /// A page is mapped to a frame that another page occupies.
    GivesFrameTwice,
    /// The first page of a move is copied without being counted.
    CopiesUncounted,
    /// Mapping a moved page sets its accessed bit.
    SetsAccessedItself,
    /// Mapping a moved page loses its dirty bit.
    LosesDirty,
    /// A table that moved is still counted on its old node.
    MiscountsTables,
    /// The leaf table does not count its pages in fast memory.
    ForgetsFastPages,
    /// Unmapping a page under migration does not uncount its data.
    ForgetsMovingPages,
    /// Both halves of an exchange are placed where the slower one was.
    ExchangesOneWay,
}

#[cfg(test)]
impl crate::Os {
    pub(crate) fn does(&self, what: FaultInjection) -> bool {
        self.fault_injection == Some(what)
    }
}

#[cfg(not(test))]
impl crate::Os {
    #[inline(always)]
    pub(crate) fn does(&self, _: FaultInjection) -> bool {
        false
    }
}
