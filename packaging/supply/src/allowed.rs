//! The licences that deny.toml allows: the same list that cargo-deny reads, checked without it.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use spdx::{Expression, ParseMode};

use crate::crates::{Crate, Crates};

/// The part of deny.toml that is read here.
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
    /// Those of the tree's deny.toml.
    pub fn of_tree(tree: &Path) -> Result<Self> {
        let path = tree.join("deny.toml");
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let deny: Deny =
            toml::from_str(&text).with_context(|| format!("read {}", path.display()))?;
        Ok(Self(deny.licenses.allow))
    }

    /// Fails at the first crate of others with a licence that is not allowed.
    pub fn check(&self, crates: &Crates) -> Result<()> {
        crates.others().try_for_each(|package| self.check_one(package))
    }

    fn check_one(&self, package: &Crate) -> Result<()> {
        let (name, version) = (&package.name, &package.version);
        let Some(license) = &package.license else {
            bail!("{name} {version} names no licence, expected one of deny.toml's");
        };
        let expression = expression(license)
            .with_context(|| format!("the licence of {name} {version}: '{license}'"))?;
        let allowed = |requirement: &spdx::LicenseReq| {
            self.0.iter().any(|allowed| *allowed == requirement.to_string())
        };
        if expression.evaluate(allowed) {
            return Ok(());
        }
        bail!(
            "{name} {version} has the licence '{license}', expected one that deny.toml allows; \
             read its text and add the licence there, or do without the crate"
        )
    }
}

/// The expression, in the older form with a slash too.
fn expression(license: &str) -> Result<Expression> {
    Ok(Expression::parse_mode(license, ParseMode::LAX)?)
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
        for good in ["MIT", "GPL-2.0-only OR MIT", "MIT/Apache-2.0", "MIT AND Unicode-3.0"] {
            allowed.check(&crates(&format!("\"{good}\""))).unwrap();
        }
        for bad in ["GPL-2.0-only", "MIT AND OpenSSL", "MIT WITH LLVM-exception", "nonsense"] {
            let error = format!("{:#}", allowed.check(&crates(&format!("\"{bad}\""))).unwrap_err());
            assert!(error.contains("a 1.0.0") && error.contains(bad), "{error}");
        }
        let error = allowed.check(&crates("null")).unwrap_err().to_string();
        assert!(error.contains("names no licence"), "{error}");
    }
}
