//! Linux's own tiering: NUMA balancing in its mode for memory tiers (since Linux 5.18) samples
//! pages of the slow tier by making them fault, and promotes those that fault soon; reclaim on the
//! fast tier demotes in place of paging out (since 5.15). The rate of its scans is the kernel's
//! default. See `numa_balancing` in the kernel's Documentation/admin-guide/sysctl/kernel.rst and
//! Documentation/ABI/testing/sysfs-kernel-mm-numa.

use super::{Rival, Setting};
use crate::roots::Roots;

/// NUMA balancing.
#[derive(Debug)]
pub(super) struct Balancing;

impl Rival for Balancing {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn summary(&self) -> &'static str {
        "Linux's NUMA balancing between tiers (mode 2), with demotion by reclaim"
    }

    fn settings(&self, roots: &Roots) -> Vec<Setting> {
        // Demotion first: promotions need room.
        settings(roots, "2", "true")
    }
}

/// Both settings, to these values.
pub(super) fn settings(
    roots: &Roots,
    balancing: &'static str,
    demotion: &'static str,
) -> Vec<Setting> {
    vec![
        Setting {
            path: roots.demotion(),
            value: demotion,
            what: "demotion by reclaim",
            option: "CONFIG_MIGRATION and CONFIG_NUMA",
        },
        Setting {
            path: roots.numa_balancing(),
            value: balancing,
            what: "automatic NUMA balancing",
            option: "CONFIG_NUMA_BALANCING",
        },
    ]
}
