//! Faults put in on purpose, in tests only: a checker is worth something when it finds them.

/// A mistake that an operating system could make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code)] // Made by tests alone.
pub(crate) enum FaultInjection {
    /// A move that has arrived does not free the frame it left.
    LeaksOldFrame,
    /// A move that has arrived maps the frame it left, which is free.
    MapsOldFrame,
    /// A page is mapped to a frame that another page has.
    GivesFrameTwice,
    /// The first page of a move is copied without being counted.
    CopiesUncounted,
    /// Mapping a moved page sets its accessed bit.
    SetsAccessedItself,
    /// Mapping a moved page loses its dirty bit.
    LosesDirty,
    /// A table that moved is still counted on its old node.
    MiscountsTables,
    /// Pages in fast memory are not counted by their leaf table.
    ForgetsFastPages,
    /// Unmapping a page under migration leaves its data counted.
    ForgetsMovingPages,
    /// The halves of an exchange both go where the slower was.
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
