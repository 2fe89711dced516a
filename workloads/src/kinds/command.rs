//! `command`: any program, started with the user's command line.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::{End, LiveCommand, LiveKind, LiveProgram, LiveWorkload, Ready, bad, parse};

const NAME: &str = "command";

pub(super) const KIND: LiveKind = LiveKind {
    name: NAME,
    summary: "any command line; ends when it does, or with the periods",
    stands_for: "the program you have",
    parameters: &[
        ParameterDoc {
            name: "command",
            default: "none: it must be given",
            meaning: "list of the program (a path, or a name on PATH) and its arguments",
        },
        ParameterDoc {
            name: "package",
            default: "none",
            meaning: "Debian package that has the program, for machines that must be given it",
        },
        ParameterDoc {
            name: "executes",
            default: "none",
            meaning: "further programs that it starts, for machines that must be given them: a list of \
                      tables with a program, and the package that has it",
        },
        ParameterDoc {
            name: "packages",
            default: "none",
            meaning: "Debian packages that it needs whole, with those that they depend on, for machines \
                      that must be given them: for modules and data that programs open by themselves",
        },
        ParameterDoc {
            name: "ready_event",
            default: "none",
            meaning: "wait for a JSON line with this \"event\" on its standard output first",
        },
        ParameterDoc {
            name: "ready_tcp",
            default: "none",
            meaning: "wait until this 'host:port' accepts connections first",
        },
        ParameterDoc {
            name: "ready_within_ms",
            default: "60000",
            meaning: "the longest such wait, in ms",
        },
    ],
    build: |parameters, _| {
        let p: Parameters = parse(NAME, parameters)?;
        let Some((program, arguments)) = p.command.split_first() else {
            return Err(bad(NAME, "command is empty, expected a program and arguments".into()));
        };
        let program = Executed { program: program.clone(), package: p.package }.into();
        let within_ms = p.ready_within_ms;
        let ready = match (p.ready_event, p.ready_tcp) {
            (None, None) => Ready::Started,
            (Some(event), None) => Ready::Event { event, within_ms },
            (None, Some(address)) => Ready::Tcp { address, within_ms },
            (Some(_), Some(_)) => {
                let message = "ready_event and ready_tcp are both given, expected one of them";
                return Err(bad(NAME, message.into()));
            }
        };
        Ok(LiveWorkload {
            main: LiveCommand {
                program,
                arguments: arguments.to_vec(),
                environment: Vec::new(),
                within_ms: 0,
            },
            ready,
            load: None,
            drive: None,
            verify: None,
            begin_line: None,
            end: End::Terminate,
            drive_is_marked: false,
            executes: p.executes.into_iter().map(Executed::into).collect(),
            packages: p.packages,
        })
    },
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    command: Vec<String>,
    package: Option<String>,
    #[serde(default)]
    executes: Vec<Executed>,
    #[serde(default)]
    packages: Vec<String>,
    ready_event: Option<String>,
    ready_tcp: Option<String>,
    #[serde(default = "a_minute")]
    ready_within_ms: u64,
}

/// A program, of a package or of the host.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Executed {
    program: String,
    package: Option<String>,
}

impl From<Executed> for LiveProgram {
    fn from(Executed { program, package }: Executed) -> Self {
        match package {
            Some(package) => LiveProgram::Package { package, program },
            None => LiveProgram::Host(program.into()),
        }
    }
}

fn a_minute() -> u64 {
    60_000
}
