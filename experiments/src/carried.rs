//! Policies in Python for a virtual machine, which has no Python: the one that a policy's table names
//! is carried in, with the packages that the policy imports.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use serde_json::Value;
use terrace_core::{InputError, refuse};
use terrace_external::{ExternalPolicy, is_external};
use terrace_lab::{GuestJob, Program, TemporaryFolder};

use crate::file::Experiment;
use crate::run::Run;

/// The module of the Python package that puts a Python into a folder.
const MODULE: &str = "terrace.pack";
/// Where policies are in the guest, and Pythons, with their number.
const POLICIES: &str = "/srv/policies";
const PYTHON: &str = "/opt/python";
/// Where a Python has its interpreter.
const INTERPRETER: &str = "bin/python3";
/// Whom policies run as in the guest, whatever users this host has.
const USER: &str = "nobody";

/// What a run's policies in Python need in a guest.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    /// By interpreter, the policies that it runs.
    pythons: BTreeMap<PathBuf, Vec<ExternalPolicy>>,
}

impl Carried {
    /// Of a run: nothing where a mechanism of Linux takes the place of its policies.
    pub(crate) fn of(run: &Run<'_>) -> Result<Self, InputError> {
        match run.rival {
            Some(_) => Ok(Self::default()),
            None => Self::of_groups(&run.experiment),
        }
    }

    fn of_groups(experiment: &Experiment) -> Result<Self, InputError> {
        let mut carried = Self::default();
        for group in &experiment.groups {
            let Some(policy) = experiment.external(&group.policy)? else { continue };
            let policies = carried.pythons.entry(policy.interpreter.clone()).or_default();
            if !policies.contains(&policy) {
                policies.push(policy);
            }
        }
        Ok(carried)
    }

    /// Refuses interpreters that lack what has to be carried in.
    pub(crate) fn check(&self) -> Result<(), InputError> {
        for (interpreter, policies) in &self.pythons {
            pack(interpreter, policies, None).map_err(|reason| {
                refuse!(
                    "policy '{}': interpreter = '{}': {reason}; expected a Python that has this \
                     version of the package terrace, to be carried into the virtual machine",
                    policies[0].name,
                    interpreter.display()
                )
            })?;
        }
        Ok(())
    }

    /// The experiment with the guest's paths, and without policies that nothing decides by.
    pub(crate) fn in_guest(&self, experiment: &Experiment) -> Result<Experiment, InputError> {
        let mut guest = experiment.clone();
        guest.policies.retain(|_, table| !is_external(table));
        for group in &mut guest.groups {
            if let Some(policy) = experiment.external(&group.policy)?
                && !self.pythons.contains_key(&policy.interpreter)
            {
                group.policy = policy.fallback;
            }
        }
        for (number, (_, policies)) in self.pythons.iter().enumerate() {
            for policy in policies {
                let mut table = experiment.parameters_of(policy.name);
                let path = |path: PathBuf| Value::from(path.display().to_string());
                table["file"] = path(place(policy));
                table["interpreter"] = path(python(number).join(INTERPRETER));
                table["user"] = Value::from(USER);
                guest.policies.insert(policy.name.to_owned(), table);
            }
        }
        Ok(guest)
    }

    /// Adds it all to a guest's job. The folders must be there until the guest has been started.
    pub(crate) fn put(
        &self,
        mut job: GuestJob,
    ) -> anyhow::Result<(GuestJob, Vec<TemporaryFolder>)> {
        let mut folders = Vec::new();
        for (number, (interpreter, policies)) in self.pythons.iter().enumerate() {
            let folder = TemporaryFolder::new("terrace-python-")
                .context("making a folder for a policy's Python")?;
            pack(interpreter, policies, Some(folder.path()))
                .map_err(|reason| anyhow::anyhow!("{}: {reason}", interpreter.display()))?;
            job = job.program(Program::folder(folder.path(), python(number)));
            for policy in policies {
                job = job.bytes(policy.source.as_bytes(), place(policy));
            }
            folders.push(folder);
        }
        Ok((job, folders))
    }
}

/// The place of a Python in the guest.
fn python(number: usize) -> PathBuf {
    format!("{PYTHON}-{}", number + 1).into()
}

/// The place of a policy's file in the guest. Its name is in the errors that it causes.
fn place(policy: &ExternalPolicy) -> PathBuf {
    Path::new(POLICIES).join(policy.name).join(policy.file.file_name().unwrap_or_default())
}

/// Puts what policies need of this interpreter into a folder; without one, only tries. The error is
/// the last line that it printed.
fn pack(
    interpreter: &Path,
    policies: &[ExternalPolicy],
    folder: Option<&Path>,
) -> Result<(), String> {
    let output = Command::new(interpreter)
        .args(["-I", "-B", "-m", MODULE])
        .args(folder.into_iter().flat_map(|folder| [Path::new("--into"), folder]))
        .args(policies.iter().map(|policy| &policy.file))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let printed = String::from_utf8_lossy(&output.stderr);
    let last = printed.lines().rev().map(str::trim).find(|line| !line.is_empty());
    Err(last.map_or_else(|| output.status.to_string(), str::to_owned))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// An experiment with a group under each of these policies. The Pythons are shell scripts.
    fn experiment(folder: &Path, policies: &[&str]) -> Experiment {
        let mut text = "name = \"e\"\nperiod_ms = 1000\nperiods = 3\n".to_owned();
        for (name, script) in [("one", "exit 0"), ("two", "echo no package >&2; exit 1")] {
            let interpreter = folder.join(format!("python-{name}"));
            std::fs::write(&interpreter, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&interpreter, std::fs::Permissions::from_mode(0o755)).unwrap();
            std::fs::write(folder.join("own.py"), "class Own: ...\n").unwrap();
            text += &format!(
                "[policies.{name}]\nkind = \"python\"\nfile = \"own.py\"\nclass = \"Own\"\n\
                 fallback = \"lfu\"\nrestarts = 1\ninterpreter = \"{}\"\n",
                interpreter.display()
            );
        }
        for policy in policies {
            text += &format!(
                "[[groups]]\nname = \"under-{policy}\"\npolicy = \"{policy}\"\n\
                 fast_ratio = 0.5\nworkload = {{ kind = \"zipf\" }}\n"
            );
        }
        Experiment::parse(&text, folder.to_owned()).unwrap()
    }

    #[test]
    fn the_guest_has_its_own_paths_and_no_policy_that_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let here = experiment(folder.path(), &["one", "lru"]);
        let carried = Carried::of_groups(&here).unwrap();
        let guest = carried.in_guest(&here).unwrap();
        assert_eq!(guest.policies.keys().collect::<Vec<_>>(), ["one"]);
        let table = &guest.policies["one"];
        assert_eq!(table["file"], "/srv/policies/one/own.py");
        assert_eq!(table["interpreter"], "/opt/python-1/bin/python3");
        assert_eq!(table["user"], "nobody");
        assert_eq!(table["restarts"], 1);
        let (job, folders) = carried.put(GuestJob::new("true")).unwrap();
        let to = "/opt/python-1";
        assert_eq!(job.programs, [Program::folder(folders[0].path(), to)]);
        assert_eq!(job.files.len(), 1);
    }

    #[test]
    fn where_linux_decides_no_python_is_carried_and_none_is_missed() {
        let folder = tempfile::tempdir().unwrap();
        let here = experiment(folder.path(), &["one", "lru"]);
        let guest = Carried::default().in_guest(&here).unwrap();
        let policies: Vec<&str> = guest.groups.iter().map(|g| g.policy.as_str()).collect();
        assert_eq!((policies, guest.policies.len()), (vec!["lfu", "lru"], 0));
    }

    #[test]
    fn an_interpreter_without_the_package_is_refused_in_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let carried = |policies| Carried::of_groups(&experiment(folder.path(), policies)).unwrap();
        carried(&["one"]).check().unwrap();
        let error = carried(&["one", "two"]).check().unwrap_err().to_string();
        for words in ["policy 'two'", "python-two': no package; expected a Python"] {
            assert!(error.contains(words) && !error.contains('\n'), "{error}");
        }
    }
}
