//! The help of `terrace` itself: the commands by purpose.

use clap::{Command, CommandFactory};

use crate::cli::Cli;
use crate::show;

/// Headings and commands, in the order of the help.
const GROUPS: [(&str, &[&str]); 9] = [
    ("First steps", &["init"]),
    ("Experiments", &["run", "compare", "sweep", "replay", "report"]),
    ("Recordings", &["record", "import", "export", "info", "caches"]),
    ("Planning", &["profile", "plan", "fleet"]),
    (
        "This host",
        &["watch", "signals", "status", "top", "explain", "heatmap", "reload", "restore"],
    ),
    ("Virtual machine and the Terrace kernel", &["lab", "numactl"]),
    ("Papers and hardware models", &["reproduce", "rack", "dram"]),
    ("What there is", &["policies", "workloads", "machines", "schema", "coverage"]),
    ("Other", &["completions", "man", "help"]),
];

/// The command line with that help.
pub fn command() -> Command {
    let mut command = Cli::command();
    // Adds the command 'help', and nothing else.
    command.build();
    let mut text = String::new();
    for (heading, names) in GROUPS {
        let mut table = show::list();
        // As wide as clap makes the rest.
        table.set_width(table.width().unwrap_or(100).min(100));
        for command in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            table.add_row([format!(" {:11}", command.get_name()), about]);
        }
        text += &format!("{heading}:\n{table}\n\n");
    }
    let text = text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    Cli::command().help_template(format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{text}\n\
         Options:\n{{options}}{{after-help}}"
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_command_that_is_shown_is_in_one_group() {
        let mut all = Cli::command();
        all.build();
        let shown = all.get_subcommands().filter(|c| !c.is_hide_set());
        let shown: BTreeSet<_> = shown.map(|c| c.get_name().to_owned()).collect();
        let grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).collect();
        assert_eq!(grouped.len(), shown.len(), "{grouped:?} {shown:?}");
        assert!(grouped.iter().all(|name| shown.contains(**name)), "{grouped:?} {shown:?}");
    }
}
