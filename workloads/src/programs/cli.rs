//! The arguments and the output of `terrace-workload program`.

use std::time::Instant;

use clap::Args;
use serde_json::{Map, Value, json};

use super::sink::Counter;
use super::{Params, ProgramError, REGISTRY, run_listening, trace};

/// Run a workload program that checks its own result, or list them.
#[derive(Args)]
pub struct ProgramArguments {
    /// The program; see --list.
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// Memory that its data take, as in 512M. K, M, G and T are powers of 1024.
    #[arg(long, value_parser = size, default_value = "256M")]
    footprint: u64,
    /// Seed of data and choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of threads, where the program can use several.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// A parameter of the program, as in iterations=20. May be given several times.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = option)]
    options: Vec<(String, Value)>,
    /// Count the references that it makes instead of running at full speed.
    #[arg(long)]
    count_references: bool,
    /// Print the programs, the workloads they represent and their parameters.
    #[arg(long)]
    list: bool,
}

/// Reads a size.
fn size(text: &str) -> Result<u64, String> {
    let bad = || {
        format!("size '{text}': expected a whole number with an optional K, M, G or T, as in 512M")
    };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_uppercase();
    let shift = match unit.trim_end_matches("IB").trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(bad()),
    };
    let number = digits.parse::<u64>().map_err(|_| bad())?;
    number.checked_mul(1 << shift).ok_or_else(bad)
}

/// Reads a parameter. A value that is no number or other JSON is text.
fn option(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("parameter '{text}': expected NAME=VALUE, as in iterations=20"))?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
    Ok((name.to_owned(), value))
}

/// Carries out the arguments; `print` gets each event. Returns whether all is well: false when the
/// program found its own result wrong.
pub fn run(
    arguments: &ProgramArguments,
    print: &mut (dyn FnMut(&Value) + Send),
) -> Result<bool, ProgramError> {
    let Some(name) = arguments.name.as_ref().filter(|_| !arguments.list) else {
        REGISTRY.iter().for_each(|kind| print(&described(kind)));
        return Ok(true);
    };
    let params = Params {
        footprint_bytes: arguments.footprint,
        seed: arguments.seed,
        threads: arguments.threads,
        options: match &arguments.options[..] {
            [] => Value::Null,
            options => Value::Object(options.iter().cloned().collect::<Map<_, _>>()),
        },
    };
    let began = Instant::now();
    if arguments.count_references {
        let mut counter = Counter::default();
        let result = trace(name, &params, &mut counter)?;
        let seconds = began.elapsed().as_secs_f64();
        let references = (counter.loads + counter.stores) as f64;
        let rate = references / seconds / 1e6;
        print(&json!({"event": "references", "counted": counter, "mrefs_per_s": rate}));
        let verified = result.as_ref().is_some_and(|r| r.verified);
        print(&event("result", json!(result)));
        return Ok(verified);
    }
    let listener = |mark: &_| {
        let elapsed_s = began.elapsed().as_secs_f64();
        let mut mark = event("mark", json!(mark));
        mark["elapsed_s"] = elapsed_s.into();
        print(&mark);
    };
    let result = run_listening(name, &params, Some(Box::new(listener)))?;
    let verified = result.verified;
    print(&event("result", json!(result)));
    Ok(verified)
}

/// Puts the kind of event before an object's members.
fn event(kind: &str, mut value: Value) -> Value {
    if let Some(object) = value.as_object_mut() {
        object.insert("event".into(), kind.into());
    }
    value
}

fn described(kind: &super::ProgramKind) -> Value {
    let parameters = kind
        .parameters
        .iter()
        .map(|p| json!({"name": p.name, "default": p.default, "meaning": p.meaning}));
    json!({
        "event": "program",
        "program": kind.name,
        "summary": kind.summary,
        "stands_for": kind.stands_for,
        "operation": kind.operation,
        "threads": kind.threads,
        "parameters": parameters.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: ProgramArguments,
    }

    fn events(line: &str) -> (Result<bool, String>, Vec<Value>) {
        let words = ["terrace-workload"].into_iter().chain(line.split_whitespace());
        let arguments = match Command::try_parse_from(words) {
            Ok(command) => command.arguments,
            Err(error) => return (Err(error.to_string()), Vec::new()),
        };
        let mut events = Vec::new();
        let done = run(&arguments, &mut |e| events.push(e.clone()));
        (done.map_err(|e| e.to_string()), events)
    }

    #[test]
    fn a_program_says_its_marks_and_its_result() {
        let (done, events) = events("gups --footprint 2M --set updates_per_word=1 --seed 3");
        assert_eq!(done, Ok(true));
        let last = events.last().unwrap();
        assert_eq!(last["event"], "result");
        assert_eq!(last["verified"], true);
        assert_eq!(last["operations"], (2 << 20) / 8);
        let marks: Vec<_> = events.iter().filter(|e| e["event"] == "mark").collect();
        assert_eq!(marks.len() + 1, events.len());
        assert_eq!((&marks[0]["phase"], &marks[0]["edge"]), (&json!("init"), &json!("begin")));
    }

    #[test]
    fn references_are_counted() {
        let (done, events) =
            events("gups --footprint 2048k --set updates_per_word=1 --count-references");
        assert_eq!(done, Ok(true));
        let words = (2u64 << 20) / 8;
        assert_eq!(events[0]["counted"]["loads"], words);
        assert_eq!(events[0]["counted"]["stores"], 2 * words);
    }

    #[test]
    fn every_program_is_listed_with_what_it_stands_for() {
        let (done, events) = events("--list");
        assert_eq!(done, Ok(true));
        assert_eq!(events.len(), REGISTRY.len());
        let papers = ["granularity", "Radiant", "Nimble", "adaptive policy", "rack"];
        for event in events {
            let text = event["stands_for"].as_str().unwrap();
            assert!(papers.iter().any(|p| text.contains(p)), "{event}");
        }
    }

    #[test]
    fn slips_are_reported() {
        for (line, part) in [
            ("", "required"),
            ("gups --footprint 5X", "as in 512M"),
            ("gups --footprint 99999999999T", "as in 512M"),
            ("gups --footprint 1K", "expected 2097152"),
            ("gups --set updates", "NAME=VALUE"),
            ("gups --set nosuch=1", "unknown field `nosuch`"),
            ("nosuch", "expected one of"),
        ] {
            let message = events(line).0.unwrap_err();
            assert!(message.contains(part), "'{line}': {message}");
        }
    }
}
