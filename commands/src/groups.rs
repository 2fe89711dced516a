//! The help of `terrace` itself: the commands by purpose.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{ArgMatches, Command, CommandFactory};

use crate::cli::{Cli, GROUPS};
use crate::show;

/// Reads a command line. The help is made where it is asked for: it takes as many instructions as all
/// else that `terrace status` does.
///
/// # Errors
/// As clap's own, help and version among them.
pub fn read(words: &[OsString]) -> Result<ArgMatches, clap::Error> {
    let is_help = |kind| {
        let asked = [ErrorKind::DisplayHelp, ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand];
        asked.contains(&kind)
    };
    match plain().try_get_matches_from(words) {
        Err(error) if is_help(error.kind()) => command().try_get_matches_from(words),
        read => read,
    }
}

fn plain() -> Command {
    // A value below 0 is the value of its option, and refused by it.
    Cli::command().mut_subcommands(|c| c.allow_negative_numbers(true))
}

/// The command line with that help.
pub fn command() -> Command {
    let mut command = Cli::command();
    // Adds the command 'help', and nothing else.
    command.build();
    let mut text = String::new();
    for (number, (heading, names)) in GROUPS.iter().enumerate() {
        let mut table = show::list();
        // As wide as clap makes the rest.
        table.set_width(table.width().unwrap_or(100).min(100));
        let mut names: Vec<String> = names.iter().map(|name| name.to_lowercase()).collect();
        // The one that clap adds.
        names.extend((number + 1 == GROUPS.len()).then(|| "help".to_owned()));
        for command in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            table.add_row([format!(" {:11}", command.get_name()), about]);
        }
        text += &format!("{heading}:\n{table}\n\n");
    }
    let text = text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    plain().help_template(format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{text}\n\
         Options:\n{{options}}{{after-help}}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_is_shown_is_in_the_help() {
        let help = command().render_help().to_string();
        let mut all = Cli::command();
        all.build();
        for command in all.get_subcommands().filter(|c| !c.is_hide_set()) {
            let begin = format!("  {:11}", command.get_name());
            assert!(help.lines().any(|line| line.starts_with(&begin)), "{begin} is not in\n{help}");
        }
        assert!(!help.contains("guard"), "{help}");
    }

    #[test]
    fn all_ways_to_ask_for_help_show_it() {
        let shown = |words: &str| {
            let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            read(&words).unwrap_err().render().to_string()
        };
        for words in ["terrace", "terrace help", "terrace --help", "terrace -h"] {
            let help = shown(words);
            for (heading, _) in GROUPS {
                assert!(
                    help.contains(&format!("{heading}:")),
                    "no {heading} by '{words}':\n{help}"
                );
            }
        }
        assert!(shown("terrace status --help").contains("Usage: terrace status"));
        assert!(shown("terrace gone").contains("unrecognized subcommand 'gone'"));
    }
}
