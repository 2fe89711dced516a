//! Old names in experiment files: read for one release, each with a warning.

use toml::{Table, Value};

/// One line for each old name that the text of an experiment file uses.
pub fn warnings(text: &str) -> Vec<String> {
    let Ok(file) = text.parse::<Table>() else { return Vec::new() };
    let mut found = Vec::new();
    let mut note = |old: &str, new: &str| {
        found.push(format!("{old} is now {new}; rename it, the next release refuses it"));
    };
    let machine = file.get("machine").and_then(Value::as_table);
    if machine.is_some_and(|machine| machine.contains_key("depth")) {
        note("machine.depth", "machine.fidelity");
    }
    let fidelity = machine.and_then(|m| m.get("fidelity").or(m.get("depth")));
    match fidelity.and_then(Value::as_str) {
        Some("period") => note("\"period\"", "\"interval\""),
        Some("reference") => note("\"reference\"", "\"trace\""),
        _ => {}
    }
    for (policy, old, new) in terrace_core::policies::renamed_parameters() {
        let parameters = file.get("policies").and_then(|all| all.get(policy));
        if parameters.is_some_and(|parameters| parameters.get(old).is_some()) {
            note(&format!("policies.{policy}.{old}"), &format!("policies.{policy}.{new}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::Experiment;

    const OLD: &str = "name = \"e\"\nperiod_ms = 5\nperiods = 9\n[machine]\ndepth = \"reference\"\n\
        fast = \"32M\"\nslow = \"32M\"\n[[groups]]\nname = \"g\"\npolicy = \"terrace\"\n\
        fast_ratio = 0.5\nworkload = { kind = \"program\", name = \"gups\", footprint = \"1M\" }\n\
        [policies.terrace]\nlindy = 0.5\ntrust = 0.2\n";

    #[test]
    fn old_names_are_read_and_each_is_named_with_the_new_one() {
        let new = OLD
            .replace("depth = \"reference\"", "fidelity = \"trace\"")
            .replace("lindy", "phase_age_factor")
            .replace("trust", "win_threshold");
        let [of_old, of_new] = [OLD, &new].map(|text| {
            let experiment = Experiment::parse(text, PathBuf::new()).unwrap();
            toml::to_string(&experiment.machine).unwrap()
        });
        assert_eq!(of_old, of_new);
        assert!(warnings(&new).is_empty());
        let of_old = warnings(OLD);
        for expected in [
            "machine.depth is now machine.fidelity",
            "\"reference\" is now \"trace\"",
            "policies.terrace.lindy is now policies.terrace.phase_age_factor",
            "policies.terrace.trust is now policies.terrace.win_threshold",
        ] {
            assert!(of_old.iter().any(|line| line.starts_with(expected)), "{expected}: {of_old:?}");
        }
        assert_eq!(of_old.len(), 4, "{of_old:?}");
    }
}
