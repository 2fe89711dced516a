//! The answer as a configuration of the daemon (`terraced.toml`; `docs/operator.md` has every key).

use std::fmt::Write;

use crate::plan::{Plan, Program, Recommended};

/// Shortest period of the daemon.
const LEAST_PERIOD_MS: u64 = 50;

/// The part of the answer that concerns the daemon. A program with all of its memory fast needs no
/// group, and one whose pages stay where they were first touched needs none that moves them.
pub fn terraced_toml(plan: &Plan) -> String {
    let machine = &plan.machines[plan.machine];
    let ratio = machine.slow.latency_ns / machine.fast.latency_ns.max(1e-9);
    let mut text = format!(
        "# Made by 'terrace plan' for a slowdown of at most {:.1} %.\n\
         # Put in each group's control group, relative to /sys/fs/cgroup.\n\n\
         [daemon]\n\
         # Latency of slow memory over that of fast memory, as it was planned with.\n\
         latency_ratio = {ratio:.3}\n",
        100.0 * (plan.target - 1.0)
    );
    for (chosen, program) in plan.recommended.iter().zip(&plan.programs) {
        group(&mut text, chosen, program);
    }
    text
}

fn group(text: &mut String, chosen: &Recommended, program: &Program) {
    let name = plain(&chosen.program);
    let page_size = if program.page_size_bytes > 4096 { "2M" } else { "4K" };
    let period_ms = program.period_ms.max(LEAST_PERIOD_MS);
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "\n[[groups]]\n\
         name = \"{name}\"\n\
         cgroup = \"/{name}\"\n\
         policy = \"{}\"\n\
         page_size = \"{page_size}\"\n\
         # Of {} MiB that were seen; expected slowdown {:.1} % ({:.1} % to {:.1} %).\n\
         fast_ratio = {:.4}\n\
         period_ms = {period_ms}\n",
        chosen.policy,
        program.footprint_bytes >> 20,
        100.0 * (chosen.point.slowdown - 1.0),
        100.0 * (chosen.point.low - 1.0),
        100.0 * (chosen.point.high - 1.0),
        chosen.point.share,
    );
    if period_ms != program.period_ms {
        let _ = writeln!(text, "# Planned with periods of {} ms.", program.period_ms);
    }
    if let Some(pages) = program.moved_pages_per_period {
        let bytes = pages.saturating_mul(program.page_size_bytes);
        let a_second = bytes.saturating_mul(1000) / program.period_ms.max(1);
        let _ = writeln!(text, "# {pages} pages a period, as planned.\nbandwidth = {a_second}");
    }
}

/// A name that can be a group's and a control group's.
pub(crate) fn plain(name: &str) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = name.chars().map(fit).take(64).collect();
    let name = name.trim_start_matches(['.', '-']);
    if name.is_empty() { "program".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_names_of_control_groups() {
        for (name, expected) in
            [("redis", "redis"), ("my prog/1", "my-prog-1"), ("..", "program"), ("", "program")]
        {
            assert_eq!(plain(name), expected);
        }
    }
}
