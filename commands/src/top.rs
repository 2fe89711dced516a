//! `terrace top`: the groups of a running `terraced` on a terminal screen, or once as plain text.
//!
//! A screen is text that one function makes ([`screen`]); the rest puts it on the terminal and reads
//! keys.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use comfy_table::{Attribute, Cell, ContentArrangement, Table, presets};
use terrace_core::InputError;
use terrace_daemon::discover::shown;
use terrace_daemon::status::{GroupStatus, Heat, MachineStatus, Status};

use crate::daemon::{self, HEADER, Socket, bytes};
use crate::terminal::{Key, Screen, cut};

/// Show the groups of a running terraced, again and again.
///
/// Keys: up and down (or k and j) choose a group, whose processes, tiers and page tables are
/// shown below; q ends.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    socket: Socket,
    /// Seconds from one sample to the next.
    #[arg(long, default_value_t = 2.0, value_name = "S")]
    every: f64,
    /// Print it once as text and end.
    #[arg(long)]
    once: bool,
}

impl Arguments {
    /// Shows them.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        if !(0.1..=3600.0).contains(&self.every) {
            let every = self.every;
            return Err(
                InputError::new(format_args!("--every {every}: expected 0.1 to 3600")).into()
            );
        }
        let status = self.socket.status()?;
        if self.once {
            daemon::show(&status)?;
            for g in &status.groups {
                crate::show::say!("")?;
                detail(g, &status.machine)
                    .iter()
                    .try_for_each(|line| crate::show::say!("{line}"))?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        let screen = Screen::take()?;
        let watched = self.watch(status);
        drop(screen);
        watched?;
        Ok(ExitCode::SUCCESS)
    }

    fn watch(&self, mut status: Status) -> anyhow::Result<()> {
        let every = Duration::from_secs_f64(self.every);
        let mut chosen = 0usize;
        loop {
            let size = Screen::size()?;
            chosen = chosen.min(status.groups.len().saturating_sub(1));
            Screen::put(&screen(&status, chosen, size))?;
            let due = Instant::now() + every;
            match Screen::key(due)? {
                Some(Key::End) => return Ok(()),
                Some(Key::Down) => chosen += 1,
                Some(Key::Up) => chosen = chosen.saturating_sub(1),
                Some(Key::Other) => {}
                None => status = self.socket.status()?,
            }
        }
    }
}

/// The lines of a screen of this width and height.
fn screen(status: &Status, chosen: usize, (width, height): (u16, u16)) -> Vec<String> {
    let mut lines: Vec<String> = daemon::headline(status).lines().map(str::to_owned).collect();
    lines.push(String::new());
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(width.max(20)).enforce_styling();
    table.set_header(HEADER.map(|name| Cell::new(name).add_attribute(Attribute::Bold)));
    for (number, g) in status.groups.iter().enumerate() {
        let cell = |text: String| {
            let cell = Cell::new(text);
            if number == chosen { cell.add_attribute(Attribute::Reverse) } else { cell }
        };
        table.add_row(daemon::row(g).into_iter().map(cell));
    }
    lines.extend(table.lines());
    lines.push(String::new());
    match status.groups.get(chosen) {
        Some(g) => lines.extend(detail(g, &status.machine).into_iter().map(|l| cut(&l, width))),
        None => lines.push("no group is managed; see 'terrace status'".to_owned()),
    }
    lines.truncate(usize::from(height.max(2)) - 1);
    lines.push(cut("up, down: choose a group   q: end", width));
    lines
}

/// A group in full.
fn detail(g: &GroupStatus, machine: &MachineStatus) -> Vec<String> {
    let tier = |name: &str, heat: &Heat| {
        format!(
            "{name}: hot {}, warm {}, cold {}",
            bytes(heat.hot_bytes),
            bytes(heat.warm_bytes),
            bytes(heat.cold_bytes)
        )
    };
    let tables: Vec<String> = g
        .pagetable_bytes
        .iter()
        .enumerate()
        .map(|(node, size)| format!("node {node} {}", bytes(*size)))
        .collect();
    let tables = if tables.is_empty() { "not counted".to_owned() } else { tables.join(", ") };
    let mut lines = vec![
        format!(
            "{} ({}), period {} ms, {} periods seen",
            shown(&g.name),
            shown(&g.cgroup),
            g.period_ms,
            g.scans
        ),
        tier("fast memory", &g.fast),
        tier("slow memory", &g.slow),
        format!(
            "hit ratio {:.1} % now, {:.1} % in all; accessed {:.1} % of pages; stability {:.1} %",
            100.0 * g.hit_ratio,
            100.0 * g.hit_ratio_all,
            100.0 * g.accessed_ratio,
            100.0 * g.stability
        ),
        format!(
            "moved {} up, {} down, {} to and fro; longest batch {:.1} ms",
            g.promoted_pages,
            g.demoted_pages,
            g.throttle.thrashed_pages,
            g.longest_move_ns as f64 / 1e6
        ),
        format!("page tables: {tables}"),
    ];
    lines.extend(daemon::remarks(g, machine));
    for p in g.processes.iter().take(12) {
        lines.push(format!(
            "process {:>7}: {:>7}, {:>7} fast, {:>7} accessed in the last period",
            p.pid,
            bytes(p.bytes),
            bytes(p.fast_bytes),
            bytes(p.accessed_bytes)
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_daemon::status::{ProcessStatus, UntrackedBytes};

    fn status() -> Status {
        let group = GroupStatus {
            name: "redis\u{1b}[2J".into(),
            policy: "amp".into(),
            applied: "lru".into(),
            bytes: 1 << 30,
            hit_ratio: 0.875,
            freed_fast_bytes: 600 << 20,
            why_not_better: Some("64 MiB more would hold them".into()),
            processes: vec![ProcessStatus { pid: 4242, bytes: 1 << 30, ..Default::default() }],
            ..GroupStatus::default()
        };
        let other = GroupStatus { name: "other".into(), ..Default::default() };
        Status { groups: vec![group, other], ..Status::default() }
    }

    #[test]
    fn the_screen_shows_groups_and_the_chosen_one_in_full() {
        let text = screen(&status(), 0, (150, 40)).join("\n");
        for word in [
            "amp (lru)",
            "87.5",
            "1.0G",
            "process    4242",
            "600M",
            "why not better: 64 MiB more",
            "q: end",
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(!text.contains("\u{1b}[2J"), "a name reached the terminal as a command");
        assert!(!screen(&status(), 1, (150, 40)).join("\n").contains("4242"));
    }

    #[test]
    fn memory_that_is_not_tracked_and_pages_without_room_are_reported_by_reason() {
        let mut status = status();
        let group = &mut status.groups[0];
        group.untracked_slow_bytes = 300 << 20;
        let of =
            |reason: &str, mib: u64| UntrackedBytes { reason: reason.into(), bytes: mib << 20 };
        group.untracked = vec![of("few_pages", 100), of("unmapped", 200), of("file", 0)];
        group.collapses = Some(40);
        (group.no_room_bytes, group.granted_bytes) = (64 << 20, 512 << 20);
        status.machine.fast_bytes = 1 << 30;
        let text = |status: &Status| screen(status, 0, (150, 40)).join("\n");
        let shown = text(&status);
        let reasons = "200 MiB unmapped page cache, 100 MiB ranges with too few pages";
        assert!(shown.contains(&format!("300M is not tracked: {reasons}")), "{shown}");
        assert!(shown.contains("made 40 huge pages"), "{shown}");
        assert!(shown.contains("no room: 64 MiB were to be promoted"), "{shown}");
        // Others are named where it is they who hold what the group may have.
        assert!(!shown.contains("unmanaged"), "{shown}");
        status.machine.unmanaged_fast_bytes = 900 << 20;
        let shown = text(&status);
        assert!(shown.contains("held by unmanaged programs (900 of 1024 MiB)"), "{shown}");
        status.groups[0].no_room_bytes = 0;
        assert!(!text(&status).contains("no room"));
    }

    #[test]
    fn no_screen_is_higher_than_the_terminal() {
        for (width, height) in [(1, 1), (10, 3), (200, 5), (20, 100), (0, 0)] {
            let lines = screen(&status(), 0, (width, height));
            assert!(lines.len() <= usize::from(height.max(2)), "{width} x {height}: {lines:?}");
        }
        assert!(screen(&Status::default(), 0, (80, 24)).join(" ").contains("no group"));
    }
}
