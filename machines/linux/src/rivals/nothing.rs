//! Nobody moves anything: pages stay where they were first put, which shows what any system brings.
//! khugepaged collapses pages as it always does, for it is part of the kernel as packaged.

use super::{Rival, Setting, balancing};
use crate::roots::Roots;

/// See the top of this file.
#[derive(Debug)]
pub(super) struct Nothing;

impl Rival for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn summary(&self) -> &'static str {
        "nothing moves: pages stay where they were first put"
    }

    fn settings(&self, roots: &Roots) -> Vec<Setting> {
        balancing::settings(roots, "0", "false")
    }
}
