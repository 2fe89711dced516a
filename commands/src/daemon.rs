//! `terrace status`, `terrace explain` and `terrace reload`: requests to a running `terraced`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;
use terrace_core::InputError;
use terrace_daemon::control::{self, Request};
use terrace_daemon::discover::shown;
use terrace_daemon::explain::untracked_reasons;
use terrace_daemon::status::{Explanation, GroupStatus, MachineStatus, Status};

use crate::show::{self, Format, say};

/// Path of the daemon's socket.
#[derive(Args)]
pub struct Socket {
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH", default_value = "/run/terrace/control.sock")]
    pub socket: PathBuf,
}

impl Socket {
    /// Sends the request; what prevents it is an input error.
    pub fn ask(&self, request: &Request) -> anyhow::Result<Value> {
        Ok(control::ask(&self.socket, request).map_err(InputError::new)?)
    }

    /// The whole status.
    pub fn status(&self) -> anyhow::Result<Status> {
        let value = self.ask(&Request::Status {})?;
        Ok(serde_json::from_value(value).map_err(|e| {
            InputError::new(format_args!("the daemon is of another version than this command: {e}"))
        })?)
    }
}

/// Show the groups of a running terraced, their hit ratios, moves and shares.
#[derive(Args)]
pub struct StatusArguments {
    #[command(flatten)]
    socket: Socket,
    /// Format of the output.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

impl StatusArguments {
    /// Shows it.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        if self.format == Format::Json {
            // As the structure has it: names first.
            say!("{}", serde_json::to_string_pretty(&self.socket.status()?)?)?;
        } else {
            show(&self.socket.status()?)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints a status for people.
pub fn show(status: &Status) -> anyhow::Result<()> {
    say!("{}", headline(status))?;
    if !status.machine.mechanism.is_empty() {
        say!("mechanisms: {}", shown(&status.machine.mechanism))?;
    }
    status.machine.notes.iter().try_for_each(|note| say!("note: {}", shown(note)))?;
    if let Some(error) = &status.reload_error {
        say!("the last reload was refused: {}", shown(error))?;
    }
    if !status.groups.is_empty() {
        let mut table = show::table(&HEADER);
        status.groups.iter().for_each(|g| {
            table.add_row(row(g));
        });
        say!("\n{table}")?;
    }
    for g in &status.groups {
        for line in remarks(g, &status.machine) {
            say!("{}: {line}", shown(&g.name))?;
        }
    }
    if status.unvisited_groups > 0 {
        say!(
            "{} or more control groups are not visited: there are too many; name cgroup paths \
             more narrowly",
            status.unvisited_groups
        )?;
    }
    for group in &status.unmanaged {
        say!("unmanaged: {} ({}): {}", shown(&group.cgroup), group.entry, shown(&group.reason))?;
    }
    Ok(())
}

/// The daemon and its machine in a line or two.
pub fn headline(status: &Status) -> String {
    let m = &status.machine;
    let mut text = format!(
        "terraced {} (process {}), up {} s, {} of memory, {:.2} s of processor time\n\
         fast nodes {:?}: {}, {} free; slow nodes {:?}: {}{}",
        status.version,
        status.pid,
        status.uptime_s as u64,
        bytes(status.rss_bytes),
        status.cpu_ns as f64 / 1e9,
        m.fast_nodes,
        bytes(m.fast_bytes),
        bytes(m.fast_free_bytes),
        m.slow_nodes,
        bytes(m.slow_bytes),
        m.latency_ratio.map_or(String::new(), |r| format!("; latency ratio {r:.2}")),
    );
    if let Some(s) = &status.sharing {
        text += &format!(
            "\nsharing {} by benefit; largest loss {:.1} points of at most {:.0}{}",
            bytes(s.total_bytes),
            100.0 * s.largest_loss,
            100.0 * s.max_loss,
            if s.minimums_cut { "; minimums do not fit and are cut" } else { "" },
        );
    }
    text
}

/// Columns of the table of groups.
pub const HEADER: [&str; 13] = [
    "group",
    "policy",
    "state",
    "memory",
    "fast",
    "granted",
    "frees",
    "hot in slow",
    "hit %",
    "up",
    "down",
    "slowdown",
    "cpu %",
];

/// The row of a group in it.
pub fn row(g: &GroupStatus) -> Vec<String> {
    let policy = match g.applied.as_str() {
        "" => g.policy.clone(),
        applied if applied == g.policy => g.policy.clone(),
        applied => format!("{} ({applied})", g.policy),
    };
    let state = match () {
        () if g.throttle.pause_left > 0 => "paused",
        () if g.dry_run => "dry run",
        () => &g.state,
    };
    vec![
        shown(&g.name),
        policy,
        state.to_owned(),
        bytes(g.bytes),
        bytes(g.fast_bytes),
        bytes(g.granted_bytes),
        bytes(g.freed_fast_bytes),
        bytes(g.slow.hot_bytes),
        format!("{:.1}", 100.0 * g.hit_ratio),
        g.promoted_pages.to_string(),
        g.demoted_pages.to_string(),
        g.slowdown.map_or("-".to_owned(), |e| format!("{:.2} ± {:.2}", e.value, e.error)),
        format!("{:.2}", g.cpu_percent),
    ]
}

/// Further remarks on a group.
pub fn remarks(g: &GroupStatus, machine: &MachineStatus) -> Vec<String> {
    let mut lines: Vec<String> = g.throttle.message.iter().map(|s| shown(s)).collect();
    lines.extend(g.external.iter().filter(|e| e.lapses() > 0).map(|e| shown(&e.words())));
    let why = g.why_not_better.as_deref().map(shown);
    let no_room = g.no_room(machine);
    if no_room.is_none() || why != no_room {
        lines.extend(no_room);
    }
    lines.extend(why.map(|why| format!("why not better: {why}")));
    lines.extend(g.error.iter().map(|e| format!("fault: {}", shown(e))));
    if !g.failed.is_empty() {
        let failed: Vec<String> =
            g.failed.iter().map(|f| format!("{} {}", f.pages, f.reason)).collect();
        lines.push(format!("pages not moved: {}", failed.join(", ")));
    }
    if g.lost_periods > 0 {
        lines.push(format!("{} periods lost", g.lost_periods));
    }
    if let Some(collapses) = g.collapses.filter(|c| *c > 0) {
        lines.push(format!("khugepaged has made {collapses} huge pages of its base pages"));
    }
    let untracked = g.untracked_fast_bytes + g.untracked_slow_bytes;
    if untracked > g.bytes / 8 && untracked > 8 << 20 {
        let reasons = untracked_reasons(g);
        let why = if reasons.is_empty() { reasons } else { format!(": {reasons}") };
        lines.push(format!("{} is not tracked{why}", bytes(untracked)));
    }
    lines
}

/// A size for people.
pub fn bytes(bytes: u64) -> String {
    let units = ["B", "K", "M", "G", "T"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value >= 100.0 {
        format!("{value:.0}{}", units[unit])
    } else {
        format!("{value:.1}{}", units[unit])
    }
}

/// Show why the pages of a group are where they are, and what would change it.
#[derive(Args)]
pub struct ExplainArguments {
    /// The group: its name, its control group, or the end of either.
    #[arg(value_name = "GROUP")]
    group: String,
    /// Only the page that holds this address of one of its processes, as in 0x7f1200000000.
    #[arg(value_name = "ADDRESS", value_parser = address)]
    address: Option<u64>,
    #[command(flatten)]
    socket: Socket,
    /// Format of the output.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

fn address(text: &str) -> Result<u64, String> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .map_err(|_| "expected an address such as 0x7f1200000000".to_owned())
}

impl ExplainArguments {
    /// Shows it.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let request = Request::Explain { group: self.group, address: self.address };
        let value = self.socket.ask(&request)?;
        if self.format == Format::Json {
            say!("{}", serde_json::to_string_pretty(&value)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let answer: Explanation = serde_json::from_value(value)?;
        say!("{}", shown(&answer.group))?;
        answer.facts.iter().try_for_each(|fact| say!("  {}", shown(fact)))?;
        if answer.ranges.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        let mut table = show::table(&[
            "process",
            if answer.is_relative { "offset" } else { "address" },
            "size",
            "tier",
            "scans ago",
            "in, of 64",
            "why",
            "what would change it",
        ]);
        for r in &answer.ranges {
            let span = |a: String, b: String| if a == b { a } else { format!("{a}-{b}") };
            let age = |age: Option<u32>| age.map_or("never".to_owned(), |a| a.to_string());
            table.add_row([
                r.pid.to_string(),
                format!("{:#x}", r.address),
                bytes(r.size_bytes),
                if r.is_fast { "fast" } else { "slow" }.to_owned(),
                span(age(r.age_periods.0), age(r.age_periods.1)),
                span(r.frequency.0.to_string(), r.frequency.1.to_string()),
                r.why.clone(),
                r.would_change.clone(),
            ]);
        }
        say!("\n{table}")?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Have a running terraced read its configuration again.
#[derive(Args)]
pub struct ReloadArguments {
    #[command(flatten)]
    socket: Socket,
}

impl ReloadArguments {
    /// Sends the request.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let notes = self.socket.ask(&Request::Reload {})?;
        let notes: Vec<String> = serde_json::from_value(notes)?;
        notes.iter().try_for_each(|note| say!("{}", shown(note)))?;
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short_and_addresses_are_read_in_both_bases() {
        assert_eq!([0, 1536, 300 << 20, 5 << 40].map(bytes), ["0B", "1.5K", "300M", "5.0T"]);
        assert_eq!(address("0x10"), Ok(16));
        assert_eq!(address("16"), Ok(16));
        assert!(address("0xzz").is_err());
    }
}
