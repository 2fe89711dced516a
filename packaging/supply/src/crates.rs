//! The crates of the workspace's lock file, as cargo resolves them for the package's target, and
//! which of them are linked into the package's programs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The members of the workspace whose programs and libraries are in the package.
const PACKAGED: [&str; 4] =
    ["terrace", "terrace-daemon", "terrace-workloads", "terrace-recorder-plugin"];

/// The target that the package is built for.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Part of the output of `cargo metadata` (format version 1).
#[derive(Debug, Deserialize)]
pub struct Crates {
    packages: Vec<Crate>,
    workspace_members: Vec<String>,
    resolve: Resolve,
}

/// A crate.
#[derive(Debug, Deserialize)]
pub struct Crate {
    /// Cargo's identifier.
    pub id: String,
    /// The crate's name.
    pub name: String,
    /// The crate's version.
    pub version: String,
    /// The licence, as an SPDX expression or in the older form with a slash.
    pub license: Option<String>,
    /// The oldest compiler that it supports.
    pub rust_version: Option<String>,
    /// Path of its manifest.
    pub manifest_path: PathBuf,
    /// Names of its authors.
    #[serde(default)]
    pub authors: Vec<String>,
    /// Its own description.
    pub description: Option<String>,
    source: Option<String>,
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Target {
    kind: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Debug, Deserialize)]
struct DependencyKind {
    /// None of a normal dependency, else `dev` or `build`.
    kind: Option<String>,
}

impl Crate {
    /// The folder with its sources.
    pub fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new("/"))
    }

    /// A macro that the compiler runs is in no program.
    fn is_macro(&self) -> bool {
        self.targets.iter().any(|target| target.kind.iter().any(|kind| kind == "proc-macro"))
    }

    /// Whether the crate belongs to this project.
    pub fn is_ours(&self) -> bool {
        self.source.is_none()
    }

    /// The package URL, for bills of materials.
    pub fn purl(&self) -> String {
        // The only character of a version that a package URL has to escape.
        format!("pkg:cargo/{}@{}", self.name, self.version.replace('+', "%2B"))
    }
}

impl Crates {
    /// The crates of the workspace in this folder, from cargo. Without the network where everything
    /// is there, because builds must work without it.
    pub fn of_tree(tree: &Path) -> Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let ask = |offline: bool| {
            let mut command = Command::new(&cargo);
            command.args(["metadata", "--format-version", "1", "--locked"]);
            command.args(["--filter-platform", TARGET]).current_dir(tree);
            if offline {
                command.arg("--offline");
            }
            command.output().with_context(|| format!("run {}", cargo.display()))
        };
        let mut output = ask(true)?;
        if !output.status.success() {
            output = ask(false)?;
        }
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            bail!(
                "cargo metadata failed in {}: {}; run 'cargo fetch --locked' there",
                tree.display(),
                errors.trim()
            );
        }
        Self::parse(&output.stdout)
    }

    /// Reads the output of `cargo metadata`.
    pub fn parse(json: &[u8]) -> Result<Self> {
        let mut crates: Self = serde_json::from_slice(json).context("read cargo's metadata")?;
        crates.packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        Ok(crates)
    }

    fn by_id(&self) -> BTreeMap<&str, &Crate> {
        self.packages.iter().map(|package| (package.id.as_str(), package)).collect()
    }

    /// Third-party crates, whatever their use.
    pub fn others(&self) -> impl Iterator<Item = &Crate> {
        self.packages.iter().filter(|package| !package.is_ours())
    }

    /// The crates that end up in the package's programs, by name: third-party ones and our own. Not
    /// those that only build scripts, tests or the compiler run.
    pub fn linked(&self) -> Vec<&Crate> {
        let by_id = self.by_id();
        let mut reached: BTreeSet<&str> = BTreeSet::new();
        let packaged = self.packages.iter().filter(|package| self.is_packaged(package));
        let mut waiting: Vec<&str> = packaged.map(|package| package.id.as_str()).collect();
        while let Some(id) = waiting.pop() {
            if by_id.get(id).is_some_and(|package| package.is_macro()) || !reached.insert(id) {
                continue;
            }
            waiting.extend(self.dependencies(id));
        }
        self.packages.iter().filter(|package| reached.contains(package.id.as_str())).collect()
    }

    /// Whether this is one of the crates whose programs are in the package.
    pub fn is_packaged(&self, package: &Crate) -> bool {
        package.is_ours() && PACKAGED.contains(&package.name.as_str())
    }

    /// The crates that this one links.
    pub fn dependencies(&self, id: &str) -> impl Iterator<Item = &str> {
        let node = self.resolve.nodes.iter().find(move |node| node.id == id);
        let normal =
            |dependency: &&Dependency| dependency.dep_kinds.iter().any(|k| k.kind.is_none());
        node.into_iter().flat_map(|node| &node.deps).filter(normal).map(|d| d.pkg.as_str())
    }

    /// The oldest compiler that the workspace supports.
    pub fn rust_version(&self) -> Result<&str> {
        let by_id = self.by_id();
        let versions: BTreeSet<&str> = self
            .workspace_members
            .iter()
            .filter_map(|id| by_id.get(id.as_str())?.rust_version.as_deref())
            .collect();
        match versions.iter().collect::<Vec<_>>()[..] {
            [one] => Ok(one),
            _ => bail!("got rust-versions {versions:?} of the workspace's members, expected one"),
        }
    }

    /// Fails where a crate needs a later compiler than the workspace's minimum.
    pub fn check_compiler(&self) -> Result<()> {
        let ours = self.rust_version()?;
        let number = |version: &str| -> Result<Vec<u32>> {
            let part =
                |p: &str| p.parse().with_context(|| format!("a rust-version of '{version}'"));
            version.split('.').map(part).collect()
        };
        // 1.90 is 1.90.0.
        let padded = |version: &str| -> Result<Vec<u32>> {
            let mut numbers = number(version)?;
            numbers.resize(3, 0);
            Ok(numbers)
        };
        for package in self.others() {
            let Some(needed) = &package.rust_version else { continue };
            if padded(needed)? > padded(ours)? {
                bail!(
                    "{} {} needs Rust {needed}, expected at most the workspace's {ours}; take an \
                     older version ('cargo update --precise') or raise rust-version",
                    package.name,
                    package.version
                );
            }
        }
        Ok(())
    }
}
