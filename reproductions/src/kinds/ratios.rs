//! Measures derived from other measures: sums, and ratios of sums.

/// A derived measure: the sum of others, divided by that of the divisors where there are any.
struct Made {
    name: &'static str,
    factor: f64,
    of: &'static [&'static str],
    by: &'static [&'static str],
}

const MADE: &[Made] = &[
    // Time of a page walk.
    Made { name: "walk_ns", factor: 1e6, of: &["walk_ms"], by: &["walks"] },
    // Page walks per 1,000 instructions: misses of the last TLB.
    Made { name: "walks_per_1000", factor: 1e3, of: &["walks"], by: &["instructions"] },
    // Time of page walks, which overlap with other work, over that of the program's threads.
    Made {
        name: "walk_share",
        factor: 1.0,
        of: &["walk_ms"],
        by: &[
            "compute_ms",
            "walk_stall_ms",
            "cache_stall_ms",
            "fast_stall_ms",
            "slow_stall_ms",
            "store_stall_ms",
        ],
    },
    // Time of allocating page-table pages per fault that needs them.
    Made {
        name: "table_allocation_ns",
        factor: 1e6,
        of: &["table_allocation_ms"],
        by: &["table_faults"],
    },
    // All stalls of cores.
    Made {
        name: "stall_ms",
        factor: 1.0,
        of: &[
            "walk_stall_ms",
            "cache_stall_ms",
            "fast_stall_ms",
            "slow_stall_ms",
            "store_stall_ms",
        ],
        by: &[],
    },
    // Lines read from memory: misses of the last cache.
    Made { name: "memory_reads", factor: 1.0, of: &["fast_reads", "slow_reads"], by: &[] },
    // Share of them that fast memory served: of the main phase, since the whole run's is a column.
    Made {
        name: "reference_hit_ratio",
        factor: 1.0,
        of: &["fast_reads"],
        by: &["fast_reads", "slow_reads"],
    },
    // How often a page is read between two looks at it, by scans of 4,096 pages: lines read from
    // memory in a period, of each page that a scan sees (granularity paper, section 4).
    Made {
        name: "lambda",
        factor: 1.0 / 4096.0,
        of: &["fast_reads", "slow_reads"],
        by: &["periods"],
    },
    // The same in bytes, of lines of 64: what a program that streams goes on by.
    Made {
        name: "bytes_per_look",
        factor: 64.0,
        of: &["fast_reads", "slow_reads"],
        by: &["periods"],
    },
    // Pages that an operation moves.
    Made {
        name: "pages_per_operation",
        factor: 1.0,
        of: &["promoted_pages", "demoted_pages"],
        by: &["migration_operations"],
    },
    // Shootdowns of an operation.
    Made {
        name: "shootdowns_per_operation",
        factor: 1.0,
        of: &["shootdowns"],
        by: &["migration_operations"],
    },
    // Share of page-table pages in slow memory.
    Made {
        name: "slow_table_share",
        factor: 1.0,
        of: &["slow_table_pages"],
        by: &["slow_table_pages", "fast_table_pages"],
    },
];

/// The value of a derived measure, from the values of others; none where `measure` is no such
/// measure, where one of the others is missing, or where the divisor is 0.
pub(super) fn made(measure: &str, value: &dyn Fn(&str) -> Option<f64>) -> Option<f64> {
    let made = MADE.iter().find(|made| made.name == measure)?;
    let sum = |names: &[&str]| names.iter().map(|name| value(name)).sum::<Option<f64>>();
    let (of, by) = (sum(made.of)?, sum(made.by)?);
    match made.by {
        [] => Some(made.factor * of),
        _ => (by > 0.0).then(|| made.factor * of / by),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_ratios_of_sums_need_all_that_they_are_made_of() {
        let value = |name: &str| match name {
            "walk_ms" | "fast_reads" | "slow_table_pages" => Some(1.0),
            "walks" => Some(4.0),
            "slow_reads" => Some(2.0),
            "fast_table_pages" => Some(3.0),
            "instructions" => Some(0.0),
            "periods" => Some(0.5),
            _ => None,
        };
        assert_eq!(made("walk_ns", &value), Some(2.5e5));
        assert_eq!(made("memory_reads", &value), Some(3.0));
        assert_eq!(made("slow_table_share", &value), Some(0.25));
        // 3 lines in half a period: 6 a period, over 4,096 pages, or 384 bytes.
        assert_eq!(made("lambda", &value), Some(6.0 / 4096.0));
        assert_eq!(made("bytes_per_look", &value), Some(384.0));
        assert_eq!(made("walks_per_1000", &value), None, "nothing to divide by");
        assert_eq!(made("table_allocation_ns", &value), None, "of what is not known");
        assert_eq!(made("walks", &value), None, "not made of others");
    }
}
