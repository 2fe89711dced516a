//! The licences that deny.toml allows: the same list that cargo-deny reads, checked without it.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::crates::{Crate, Crates};

/// The part of deny.toml that is used here.
#[derive(Deserialize)]
struct Deny {
    licenses: Licenses,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

/// Licences that a crate may have.
pub struct Allowed(Vec<String>);

impl Allowed {
    /// The licences in the tree's deny.toml.
    pub fn of_tree(tree: &Path) -> Result<Self> {
        let path = tree.join("deny.toml");
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let deny: Deny =
            toml::from_str(&text).with_context(|| format!("read {}", path.display()))?;
        Ok(Self(deny.licenses.allow))
    }

    /// Fails at the first third-party crate with a licence that is not allowed.
    pub fn check(&self, crates: &Crates) -> Result<()> {
        crates.others().try_for_each(|package| self.check_one(package))
    }

    fn check_one(&self, package: &Crate) -> Result<()> {
        let (name, version) = (&package.name, &package.version);
        let Some(license) = &package.license else {
            bail!("{name} {version} names no licence, expected one of deny.toml's");
        };
        let is_allowed = |one: &str| self.0.iter().any(|allowed| allowed == one);
        let good = evaluate(license, &is_allowed)
            .with_context(|| format!("the licence of {name} {version}: '{license}'"))?;
        if good {
            return Ok(());
        }
        bail!(
            "{name} {version} has the licence '{license}', expected one that deny.toml allows; \
             read its text and add the licence there, or do without the crate"
        )
    }
}

/// Whether an SPDX expression holds with these licences; the older form with a slash for OR too.
/// AND binds more tightly than OR, and a licence WITH an exception is one of its own.
fn evaluate(expression: &str, is_allowed: &dyn Fn(&str) -> bool) -> Result<bool> {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    let good = any(&mut rest, is_allowed)?;
    match rest {
        [] => Ok(good),
        [word, ..] => bail!("got '{word}', expected AND, OR, WITH or the end"),
    }
}

fn any(words: &mut &[&str], is_allowed: &dyn Fn(&str) -> bool) -> Result<bool> {
    let mut good = all(words, is_allowed)?;
    while let ["OR", rest @ ..] = *words {
        *words = rest;
        good |= all(words, is_allowed)?;
    }
    Ok(good)
}

fn all(words: &mut &[&str], is_allowed: &dyn Fn(&str) -> bool) -> Result<bool> {
    let mut good = one(words, is_allowed)?;
    while let ["AND", rest @ ..] = *words {
        *words = rest;
        good &= one(words, is_allowed)?;
    }
    Ok(good)
}

fn one(words: &mut &[&str], is_allowed: &dyn Fn(&str) -> bool) -> Result<bool> {
    match *words {
        ["(", rest @ ..] => {
            *words = rest;
            let good = any(words, is_allowed)?;
            let [")", rest @ ..] = *words else { bail!("expected a closing bracket") };
            *words = rest;
            Ok(good)
        }
        [] | [")" | "AND" | "OR" | "WITH", ..] => bail!("expected a licence"),
        [license, "WITH", exception, rest @ ..] => {
            *words = rest;
            Ok(is_allowed(&format!("{license} WITH {exception}")))
        }
        [license, rest @ ..] => {
            *words = rest;
            Ok(is_allowed(license))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crates::Crates;

    fn crates(license: &str) -> Crates {
        let json = format!(
            r#"{{"packages": [{{"id": "a", "name": "a", "version": "1.0.0", "license": {license},
                "rust_version": null, "manifest_path": "/a/Cargo.toml", "source": "registry",
                "targets": []}}],
                "workspace_members": [], "resolve": {{"nodes": []}}}}"#
        );
        Crates::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn a_licence_is_allowed_as_its_expression_says() {
        let allowed = Allowed(vec!["MIT".to_owned(), "Unicode-3.0".to_owned()]);
        for good in ["MIT", "GPL-2.0-only OR MIT", "MIT/Apache-2.0", "(MIT OR X) AND Unicode-3.0"] {
            allowed.check(&crates(&format!("\"{good}\""))).unwrap();
        }
        for bad in
            ["GPL-2.0-only", "MIT AND OpenSSL", "MIT WITH LLVM-exception", "(MIT", "MIT X", "X"]
        {
            let error = format!("{:#}", allowed.check(&crates(&format!("\"{bad}\""))).unwrap_err());
            assert!(error.contains("a 1.0.0") && error.contains(bad), "{error}");
        }
        let error = allowed.check(&crates("null")).unwrap_err().to_string();
        assert!(error.contains("names no licence"), "{error}");
    }
}
