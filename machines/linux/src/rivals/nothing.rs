//! No migration: pages stay where they were allocated, which is the base of comparison. khugepaged
//! collapses pages as usual, because it is part of the packaged kernel.

use super::{Rival, Setting, balancing};
use crate::roots::Roots;

/// No migration.
#[derive(Debug)]
pub(super) struct Nothing;

impl Rival for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn summary(&self) -> &'static str {
        "no migration: pages stay where they were allocated"
    }

    fn settings(&self, roots: &Roots) -> Vec<Setting> {
        balancing::settings(roots, "0", "false")
    }
}
