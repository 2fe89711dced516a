//! A first experiment.

use std::path::{Path, PathBuf};

use terrace_core::InputError;
use terrace_experiments::Experiment;
use terrace_lab::find_program;

use super::survey::Survey;
use super::{Made, quoted};

/// Latencies where the firmware states none: local DRAM beside a CXL expander, rounded.
const TYPICAL_NS: (u64, u64) = (80, 300);

/// The experiment for a host, with a program of the user's or with a made-up workload.
pub fn made(survey: &Survey, command: &[String], out: &Path) -> Result<Made, InputError> {
    let made = match command.split_first() {
        None => simulated(survey, out),
        Some((program, arguments)) => live(survey, program, arguments, out)?,
    };
    // What is written runs as it is.
    Experiment::parse(&made.text, PathBuf::new())?;
    Ok(made)
}

fn latencies(survey: &Survey) -> ((u64, u64), &'static str) {
    match survey.latencies_ns() {
        Some(stated) => (stated, "as this host's firmware states it"),
        None => (TYPICAL_NS, "typical of DRAM beside CXL; this host states none"),
    }
}

fn simulated(survey: &Survey, out: &Path) -> Made {
    let ((fast_ns, slow_ns), why) = latencies(survey);
    let text = format!(
        r#"# A first experiment, made by 'terrace init experiment': a made-up workload on the simulated
# machine. It needs no rights and takes a second. 'terrace run --help' has every key.
name = "first"
description = "a skewed workload with 30 % of its memory fast"
seed = 1                    # the same seed gives the same results, to the byte
period_ms = 1000            # pages are tracked and moved once a period
periods = 100               # policies that remember need some tens of them to settle

[machine]
fast_latency_ns = {fast_ns:<4}      # {why}
slow_latency_ns = {slow_ns}

[[groups]]
name = "example"
policy = "amp"              # 'terrace policies' says which to take; 'terrace compare' tries several
fast_ratio = 0.3            # three tenths of its memory may be fast
page_size = "2M"            # tracked and moved in these; "4K" is finer and slower

[groups.workload]
kind = "zipf"               # a few pages get most accesses; 'terrace workloads' lists the others
footprint_mib = 1024
"#
    );
    let next = format!("terrace compare {} --policies first-touch,lru,lfu,amp", shown(out));
    Made { text, next }
}

fn live(
    survey: &Survey,
    program: &str,
    arguments: &[String],
    out: &Path,
) -> Result<Made, InputError> {
    let path = find_program(Path::new(program)).and_then(|path| std::path::absolute(path).ok());
    let path = path.ok_or_else(|| {
        InputError::new(format_args!(
            "'{program}' is no program; expected a path, or a name on the PATH"
        ))
    })?;
    let words = std::iter::once(path.display().to_string()).chain(arguments.iter().cloned());
    let words: Vec<String> = words.map(|word| quoted(&word)).collect();
    let ((fast_ns, slow_ns), why) = latencies(survey);
    let on_host = survey.tiers.is_some();
    let (place, machine, option) = match on_host {
        true => (
            "on this host's two tiers, as root",
            "# On this host its own tiers are used.".to_owned(),
            "--machine host --fix-conflicts",
        ),
        false => (
            "in a virtual machine with two tiers",
            format!(
                "cpus = 2\n\
                 fast = \"512M\"               # the guest's fast memory\n\
                 slow = \"2G\"                 # and its slow memory: the program has to fit\n\
                 fast_latency_ns = {fast_ns:<4}      # {why}\n\
                 slow_latency_ns = {slow_ns}"
            ),
            "--machine vm",
        ),
    };
    let text = format!(
        r#"# A first experiment, made by 'terrace init experiment': a program of yours
# {place}. 'terrace run --help' has every key.
name = "own"
period_ms = 1000            # pages are tracked and moved once a period
periods = 60                # at most; it ends with the program

[machine]
{machine}

[[groups]]
name = "program"
policy = "amp"              # 'terrace policies' says which to take; 'terrace compare' tries several
fast = "256M"               # fast memory that it may use: less than it needs, or nothing is to be gained
page_size = "auto"          # ranges of 2 MB, whatever pages the program has

[groups.workload]
kind = "command"
command = [{}]
"#,
        words.join(", ")
    );
    let next = format!("terrace compare {} --policies first-touch,amp {option}", shown(out));
    Ok(Made { text, next })
}

/// A path as a shell takes it.
fn shown(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::super::survey::Node;
    use super::*;

    #[test]
    fn a_program_goes_to_the_tiers_of_the_host_where_it_has_some() {
        let command = ["sh".to_owned(), "-c".to_owned(), "echo \"a\"".to_owned()];
        let bare = Survey::default();
        let made = super::made(&bare, &command, Path::new("my e.toml")).unwrap();
        assert!(made.next.ends_with("'my e.toml' --policies first-touch,amp --machine vm"));
        let experiment = Experiment::parse(&made.text, PathBuf::new()).unwrap();
        let words = experiment.groups[0].workload.parameters["command"].clone();
        assert_eq!(words.as_array().unwrap()[2], "echo \"a\"");
        assert!(words[0].as_str().unwrap().starts_with('/'), "{words}");
        let node = |id, ns| Node { id, bytes: 1, has_cpus: id == 0, latency_ns: Some(ns) };
        let tiered = Survey {
            nodes: vec![node(0, 90), node(1, 250)],
            tiers: Some((vec![0], vec![1])),
            ..Survey::default()
        };
        let made = super::made(&tiered, &command, Path::new("e.toml")).unwrap();
        assert!(made.next.ends_with("--machine host --fix-conflicts"), "{}", made.next);
        // The made-up workload has the latencies of the host.
        let made = super::made(&tiered, &[], Path::new("e.toml")).unwrap();
        let machine = Experiment::parse(&made.text, PathBuf::new()).unwrap().machine;
        assert_eq!((machine.fast_latency_ns, machine.slow_latency_ns), (90, 250));
        let none = super::made(&bare, &["no-such-program".to_owned()], Path::new("e.toml"));
        assert!(none.err().unwrap().to_string().contains("is no program; expected a path"));
    }
}
