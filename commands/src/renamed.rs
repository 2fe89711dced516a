//! Old names of options: read for one release, each with a warning.

/// Commands that had an option under another name, its old name and its new one.
const OPTIONS: [(&[&str], &str, &str); 2] =
    [(&["run", "compare"], "--depth", "--fidelity"), (&["reproduce"], "--book", "--report")];

/// One line for each old name on a command line.
pub fn warnings(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let own: Vec<String> = arguments.take_while(|argument| argument != "--").collect();
    let is_used = |old: &str| own.iter().any(|a| a.split('=').next() == Some(old));
    OPTIONS
        .iter()
        .filter(|(commands, old, _)| {
            own.iter().any(|a| commands.contains(&a.as_str())) && is_used(old)
        })
        .map(|(_, old, new)| format!("{old} is now {new}; the next release refuses it"))
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    #[test]
    fn an_old_option_is_read_and_named_with_the_new_one() {
        let lines = |text: &str| warnings(text.split(' ').map(str::to_owned));
        assert_eq!(
            lines("terrace reproduce list --book=x"),
            ["--book is now --report; the next release refuses it"]
        );
        assert_eq!(lines("terrace run x.toml --depth trace").len(), 1);
        assert!(lines("terrace lab -- reproduce --book x").is_empty());
        assert!(lines("terrace reproduce list --report x").is_empty());
        for (commands, old, _) in OPTIONS {
            for command in commands {
                let value = if old == "--depth" { "trace" } else { "x" };
                let words = ["terrace", command, "x", old, value];
                let error = crate::groups::command().try_get_matches_from(words).err();
                let is_read = error.is_none_or(|e| e.kind() != ErrorKind::UnknownArgument);
                assert!(is_read, "terrace {command} reads {old}");
            }
        }
    }
}
