//! How a policy of one's own is written in a configuration, and what that is when read:
//!
//! ```toml
//! [policies.recent]
//! kind = "python"
//! file = "recent.py"
//! class = "Recent"
//! ```

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use terrace_core::policy::{self, Policy};
use terrace_core::size::Size;
use terrace_core::{InputError, declare_parameters, names, policies, refuse};

use crate::policy::{External, Patience};

/// The key that makes a table of parameters a policy of one's own, and its only value.
pub const KIND: (&str, &str) = ("kind", "python");
/// Largest file of a policy.
const MOST_BYTES: u64 = 1 << 20;
/// Where users and their numbers are found.
const USERS: &str = "/etc/passwd";

declare_parameters! {
    /// The parameters of a policy of one's own.
    pub struct Written {
        kind: String = "python".to_owned(), written "\"python\"", one of ["python"]
            => "language of the policy";
        file: String = String::new(), written "none: it must be given"
            => "the file, relative to this one";
        class: String = String::new(), written "none: it must be given"
            => "class in it, with a method decide(scan, budget)";
        fallback: String = "lru".to_owned(), written "\"lru\""
            => "policy that decides where this one does not";
        deadline_share: f64 = 0.25, from 0.001 to 0.9
            => "part of a period in which it must answer";
        interpreter: String = "/usr/bin/python3".to_owned(), written "\"/usr/bin/python3\""
            => "program that runs it: a Python that has the package terrace";
        user: String = "nobody".to_owned(), written "\"nobody\""
            => "user that it runs as, where Terrace runs as root";
        memory: String = "1G".to_owned(), written "\"1G\""
            => "address space that it may have";
        restarts: u32 = 5, from 0 to 1000
            => "how often in a row it is started anew before it is given up";
    }
}

/// A policy of one's own, read and checked. Its process is started with its first scan.
#[derive(Debug, Clone, PartialEq)]
pub struct ExternalPolicy {
    /// Its name.
    pub name: &'static str,
    /// Its file.
    pub file: PathBuf,
    /// The text of that.
    pub source: String,
    /// The class.
    pub class: String,
    /// Name of the policy that decides where it does not.
    pub fallback: String,
    /// Parameters of that.
    pub fallback_parameters: Value,
    /// Part of a period in which it must answer.
    pub deadline_share: f64,
    /// Program that runs it.
    pub interpreter: PathBuf,
    /// User and group that it runs as; `None`: those of this process.
    pub user: Option<(u32, u32)>,
    /// Address space that it may have.
    pub memory_bytes: u64,
    /// How often in a row it is started anew.
    pub restarts: u32,
}

/// Whether these parameters are of a policy of one's own.
pub fn is_external(parameters: &Value) -> bool {
    parameters.get(KIND.0).is_some()
}

impl ExternalPolicy {
    /// Reads one: its name, its table, the folder that its file is relative to. `parameters` has
    /// those of Terrace's policies by name.
    pub fn read(
        name: &str,
        table: &Value,
        folder: &Path,
        parameters: impl Fn(&str) -> Value,
    ) -> Result<Self, InputError> {
        let named = |text: String| refuse!("policy '{name}': {text}");
        let known = || policies::REGISTRY.iter().map(|kind| kind.name);
        if known().any(|of_terrace| of_terrace == name) {
            return Err(named("it is named like one of Terrace's; expected another name".into()));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !(1..=64).contains(&name.len()) || !name.chars().all(plain) {
            return Err(named(
                "expected a name of 1 to 64 letters, digits, '-', '_' or '.'".into(),
            ));
        }
        let written: Written = terrace_core::parameters::read(table).map_err(named)?;
        terrace_core::parameters::Parameters::check(&written).map_err(named)?;
        for (key, value) in [("file", &written.file), ("class", &written.class)] {
            if value.is_empty() {
                return Err(named(format!("no {key}; expected one, as in {key} = \"...\"")));
            }
        }
        let identifier = |text: &str| {
            text.chars().all(|c| c.is_alphanumeric() || c == '_')
                && !text.starts_with(|c: char| c.is_ascii_digit())
        };
        if !identifier(&written.class) {
            return Err(named(format!(
                "class = '{}': expected the name of a class",
                written.class
            )));
        }
        if !known().any(|of_terrace| of_terrace == written.fallback) {
            let expected = names::expected(&written.fallback, known());
            return Err(named(format!("fallback = '{}': expected {expected}", written.fallback)));
        }
        let fallback_parameters = parameters(&written.fallback);
        let fallback = policy::build(&written.fallback, &fallback_parameters, 0)
            .map_err(|e| named(e.to_string()))?;
        if fallback.needs_oracle() || fallback.needs_frames() {
            return Err(named(format!(
                "fallback = '{}': expected a policy that needs accessed bits alone, such as lru",
                written.fallback
            )));
        }
        let memory = Size::parse(&written.memory)
            .map_err(|e| named(format!("memory = '{}': {e}", written.memory)))?;
        let file = folder.join(&written.file);
        let source = source(&file).map_err(named)?;
        let interpreter = PathBuf::from(&written.interpreter);
        if !interpreter.is_absolute() || !interpreter.is_file() {
            return Err(named(format!(
                "interpreter = '{}': expected the path of a Python that has the package terrace",
                written.interpreter
            )));
        }
        let user = match rustix::process::geteuid().is_root() {
            true => Some(user(Path::new(USERS), &written.user).map_err(named)?),
            false => None,
        };
        Ok(ExternalPolicy {
            name: names::kept(name),
            file,
            source,
            class: written.class,
            fallback: written.fallback,
            fallback_parameters,
            deadline_share: written.deadline_share,
            interpreter,
            user,
            memory_bytes: memory.0,
            restarts: written.restarts,
        })
    }

    /// The policy that decides where it does not, with nothing learnt.
    pub fn fallback(&self, seed: u64) -> Result<Box<dyn Policy>, InputError> {
        policy::build(&self.fallback, &self.fallback_parameters, seed).map_err(InputError::new)
    }

    /// The policy, for groups with this seed and this patience; `fallback` decides where it does not.
    pub fn policy(&self, seed: u64, patience: Patience, fallback: Box<dyn Policy>) -> External {
        External::new(self.clone(), seed, patience, fallback)
    }
}

/// The text of a policy's file. One that others may change is refused: it is run.
fn source(file: &Path) -> Result<String, String> {
    let error =
        |e: &dyn std::fmt::Display| format!("{}: {e}; expected a file of Python", file.display());
    let metadata = fs::metadata(file).map_err(|e| error(&e))?;
    // A group's members are trusted by whoever starts an experiment, not by a service of the host.
    let others = if rustix::process::geteuid().is_root() { 0o022 } else { 0o002 };
    if metadata.mode() & others != 0 {
        return Err(format!(
            "{}: others than its owner may write it; expected chmod go-w",
            file.display()
        ));
    }
    if metadata.len() > MOST_BYTES {
        return Err(error(&format_args!(
            "{} bytes, at most {MOST_BYTES} are read",
            metadata.len()
        )));
    }
    fs::read_to_string(file).map_err(|e| error(&e))
}

/// User and group of a name in this file, or of a number.
fn user(file: &Path, name: &str) -> Result<(u32, u32), String> {
    let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let found = text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let (uid, gid) = (fields.get(2)?, fields.get(3)?);
        let is_meant = fields[0] == name || *uid == name;
        is_meant.then(|| Some((uid.parse().ok()?, gid.parse().ok()?))).flatten()
    });
    match found {
        None => Err(format!("user = '{name}': expected a user of {}", file.display())),
        Some((0, _) | (_, 0)) => {
            Err(format!("user = '{name}': expected one without privileges, such as nobody"))
        }
        Some(found) => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    fn read(name: &str, keys: Value) -> Result<ExternalPolicy, String> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("recent.py"), "class Recent: ...\n").unwrap();
        let open = folder.path().join("open.py");
        fs::write(&open, "").unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o666)).unwrap();
        let mut table = json!({ "kind": "python", "file": "recent.py", "class": "Recent",
            "interpreter": "/bin/sh" });
        table.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        ExternalPolicy::read(name, &table, folder.path(), |_| Value::Null).map_err(|e| e.0)
    }

    #[test]
    fn a_policy_is_read_with_its_text_and_defaults() {
        let policy = read("recent", json!({})).unwrap();
        assert_eq!((policy.name, policy.source.as_str()), ("recent", "class Recent: ...\n"));
        assert_eq!((policy.fallback.as_str(), policy.deadline_share), ("lru", 0.25));
        assert_eq!((policy.memory_bytes, policy.restarts), (1 << 30, 5));
        let root = rustix::process::geteuid().is_root();
        assert!(policy.user.is_none_or(|(uid, gid)| root && uid != 0 && gid != 0));
        assert!(is_external(&json!({ "kind": "python" })) && !is_external(&json!({ "ties": 1 })));
    }

    #[test]
    fn what_cannot_be_used_is_refused_in_a_line() {
        let expect = |name: &str, keys: Value, words: &[&str]| {
            let error = read(name, keys.clone()).expect_err(&keys.to_string());
            assert!(words.iter().all(|w| error.contains(w)) && !error.contains('\n'), "{error}");
            assert!(error.starts_with(&format!("policy '{name}': ")), "{error}");
        };
        expect("lru", json!({}), &["named like one of Terrace's"]);
        expect("a b", json!({}), &["1 to 64 letters"]);
        expect("r", json!({ "kind": "lua" }), &["kind is 'lua'; expected \"python\""]);
        expect("r", json!({ "file": "none.py" }), &["none.py", "expected a file of Python"]);
        expect("r", json!({ "file": "" }), &["no file; expected one"]);
        expect("r", json!({ "file": "open.py" }), &["open.py", "chmod go-w"]);
        expect("r", json!({ "class": "a.b" }), &["expected the name of a class"]);
        expect("r", json!({ "clas": "a" }), &["unknown field `clas`", "did you mean 'class'?"]);
        expect("r", json!({ "fallback": "lur" }), &["did you mean 'lru'?"]);
        expect("r", json!({ "fallback": "optimum" }), &["that needs accessed bits alone"]);
        expect(
            "r",
            json!({ "deadline_share": 2 }),
            &["deadline_share is 2; expected 0.001 to 0.9"],
        );
        expect("r", json!({ "memory": "much" }), &["memory = 'much'"]);
        expect("r", json!({ "interpreter": "python" }), &["expected the path of a Python"]);
        if rustix::process::geteuid().is_root() {
            expect("r", json!({ "user": "root" }), &["one without privileges"]);
            expect("r", json!({ "user": "nobody-here" }), &["expected a user of /etc/passwd"]);
        }
    }
}
