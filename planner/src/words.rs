//! The answer in plain words: sentences for people who decide, each of which the tables bear out.

use crate::check::{Checked, WhatIf};
use crate::plan::{Curve, Plan};
use crate::recording::{ASSUMED_MACHINE, Evidence};

/// Percent above 1.
pub fn percent_over(slowdown: f64) -> String {
    format!("{:.1} %", 100.0 * (slowdown - 1.0))
}

/// A size as people read it.
pub fn size(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.iter().find(|(_, shift)| bytes >= 1 << shift);
    unit.map_or(format!("{bytes} bytes"), |(name, shift)| {
        let value = bytes as f64 / (1u64 << shift) as f64;
        if value >= 100.0 { format!("{value:.0} {name}") } else { format!("{value:.1} {name}") }
    })
}

/// A price, with more places where it is small.
pub fn money(cost: f64) -> String {
    match cost {
        c if c == 0.0 || c.abs() >= 1.0 => format!("{c:.2}"),
        c if c.abs() >= 0.01 => format!("{c:.4}"),
        c => format!("{c:.2e}"),
    }
}

/// The recommendation, sentence by sentence; the first is the answer.
pub fn recommendation(plan: &Plan) -> Vec<String> {
    let mut lines = Vec::new();
    for chosen in &plan.recommended {
        let Some(program) = plan.programs.iter().find(|p| p.name == chosen.program) else {
            continue;
        };
        let point = &chosen.point;
        lines.push(match point.share {
            share if share >= 1.0 => format!(
                "{}: keep all of its {} in fast memory; less of it would slow it by more than {}.",
                chosen.program,
                size(program.footprint_bytes),
                percent_over(plan.target)
            ),
            0.0 => format!(
                "{}: no fast memory is needed; with all of its {} slow it loses {}.",
                chosen.program,
                size(program.footprint_bytes),
                percent_over(point.slowdown)
            ),
            share => format!(
                "{}: {} of fast memory, {:.1} % of its {}, keep it within {}: {} is expected under \
                 {}, and {} to {} with the errors of prediction.",
                chosen.program,
                size(chosen.fast_bytes),
                100.0 * share,
                size(program.footprint_bytes),
                percent_over(plan.target),
                percent_over(point.slowdown),
                chosen.policy,
                percent_over(point.low),
                percent_over(point.high),
            ),
        });
        if point.share < 1.0
            && let Some(safe) = chosen.safe_share
            && safe > point.share
        {
            lines.push(if safe >= 1.0 {
                format!(
                    "To be safe from errors of prediction {} would need all of its memory fast; \
                     check the answer by running it ('--check').",
                    chosen.program
                )
            } else {
                format!(
                    "To be safe from errors of prediction, give {} {:.1} %.",
                    chosen.program,
                    100.0 * safe
                )
            });
        }
        lines.extend(policies(plan, chosen.curve));
    }
    lines.push(machine(plan));
    if let (Some(cost), Some(all)) = (plan.cost, plan.all_fast_cost) {
        let saved = if all > 0.0 { 100.0 * (1.0 - cost / all) } else { 0.0 };
        lines.push(format!(
            "The memory costs {} on machine '{}', against {} with all of it fast ({saved:.0} % less).",
            money(cost),
            plan.machines[plan.machine].name,
            money(all)
        ));
    }
    if plan.programs.iter().any(|p| p.evidence != Evidence::Measured) {
        let weakest = plan.programs.iter().find(|p| p.evidence != Evidence::Measured);
        lines.extend(weakest.map(|p| {
            format!(
                "{}: {}; it is assumed to wait for memory {:.0} % of its time (--memory-share).",
                p.name,
                p.evidence.in_words(),
                100.0 * p.assumed_waiting.unwrap_or_default()
            )
        }));
    }
    lines
}

/// The machine that the answer is for.
fn machine(plan: &Plan) -> String {
    let machine = &plan.machines[plan.machine];
    let (fast, slow) = (&machine.fast, &machine.slow);
    let assumed = plan.programs.iter().any(|p| p.evidence != Evidence::Measured)
        && machine.name == ASSUMED_MACHINE;
    format!(
        "Planned for machine '{}': fast memory of {:.0} ns and {:.0} GB/s, slow memory of {:.0} ns \
         and {:.0} GB/s{}.",
        machine.name,
        fast.latency_ns,
        fast.gb_per_s,
        slow.latency_ns,
        slow.gb_per_s,
        match assumed {
            true =>
                ", an assumption, because such a recording has none; --machine or \
                 --slow-latency-ns names yours",
            false => "",
        }
    )
}

/// The shares that the other policies would need.
fn policies(plan: &Plan, chosen: usize) -> Option<String> {
    let chosen = &plan.curves[chosen];
    let same = |c: &&Curve| {
        c.program == chosen.program && c.machine == chosen.machine && c.policy != chosen.policy
    };
    let others: Vec<String> = plan
        .curves
        .iter()
        .filter(same)
        .map(|c| match c.least_point() {
            Some(p) => format!("{} {:.1} %", c.policy, 100.0 * p.share),
            None => format!("{} cannot", c.policy),
        })
        .collect();
    (!others.is_empty())
        .then(|| format!("Fast memory under other policies: {}.", others.join(", ")))
}

/// The result of the check.
pub fn checked(rows: &[Checked]) -> Vec<String> {
    let line = |c: &Checked| {
        let off = 100.0 * (c.measured - c.predicted);
        format!(
            "Checked at trace fidelity: {} with {:.1} % fast under {} is slowed by {}; predicted \
             {} ({off:+.1} points).",
            c.program,
            100.0 * c.share,
            c.policy,
            percent_over(c.measured),
            percent_over(c.predicted),
        )
    };
    rows.iter().map(line).collect()
}

/// The gain from page tables in fast memory and huge pages.
pub fn what_if(rows: &[WhatIf]) -> Vec<String> {
    let line = |w: &WhatIf| {
        let by = match w.gain {
            g if g.abs() < 0.001 => "make no difference".to_owned(),
            g if g > 0.0 => format!("cut run time by {:.1} %", 100.0 * g),
            g => format!("add {:.1} % of run time", -100.0 * g),
        };
        format!("{}: {} {by}.", w.program, w.variant)
    };
    rows.iter().filter(|w| w.variant != crate::check::AS_PLANNED).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_people_write_them() {
        assert_eq!(percent_over(1.0534), "5.3 %");
        assert_eq!(size(16 << 20), "16.0 MiB");
        assert_eq!(size(3 << 38), "768 GiB");
        assert_eq!((money(0.0567), money(12.3456)), ("0.0567".to_owned(), "12.35".to_owned()));
        assert_eq!(size(12), "12 bytes");
    }
}
