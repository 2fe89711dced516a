//! The software bill of materials: CycloneDX 1.5 as JSON, of the crates linked into the package's
//! programs. Same sources, same bytes.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::crates::{Crate, Crates};

/// The part of a lock file that is used here.
#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
}

/// Makes the bill of materials.
pub fn sbom(crates: &Crates, tree: &Path) -> Result<String> {
    let path = tree.join("Cargo.lock");
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let lock: Lock = toml::from_str(&text).with_context(|| format!("read {}", path.display()))?;
    let checksums: BTreeMap<(String, String), String> =
        lock.package.into_iter().filter_map(|p| Some(((p.name, p.version), p.checksum?))).collect();

    let linked = crates.linked();
    let names: BTreeMap<&str, String> =
        linked.iter().map(|package| (package.id.as_str(), package.purl())).collect();
    let mut components = Vec::new();
    let mut dependencies = Vec::new();
    for package in &linked {
        components.push(component(package, &checksums)?);
        let on: Vec<&String> =
            crates.dependencies(&package.id).filter_map(|id| names.get(id)).collect();
        dependencies.push(json!({"ref": package.purl(), "dependsOn": on}));
    }
    let version = env!("CARGO_PKG_VERSION");
    let package = format!("pkg:deb/terrace@{version}");
    let programs: Vec<String> = linked
        .iter()
        .filter(|package| crates.is_packaged(package))
        .map(|package| package.purl())
        .collect();
    dependencies.push(json!({"ref": &package, "dependsOn": programs}));
    let mut metadata = json!({
        "component": {
            "type": "application", "bom-ref": &package, "name": "terrace", "version": version,
            "purl": &package, "licenses": [{"expression": env!("CARGO_PKG_LICENSE")}],
        },
    });
    if let Some(time) = source_time()? {
        metadata["timestamp"] = Value::String(time);
    }
    let bill = json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": metadata, "components": components, "dependencies": dependencies,
    });
    Ok(serde_json::to_string_pretty(&bill)? + "\n")
}

fn component(package: &Crate, checksums: &BTreeMap<(String, String), String>) -> Result<Value> {
    let license = package.license.as_deref().unwrap_or_default();
    // The older form with a slash is no SPDX expression.
    let license = license.replace('/', " OR ");
    let mut component = json!({
        "type": "library", "bom-ref": package.purl(), "name": &package.name,
        "version": &package.version, "purl": package.purl(),
        "licenses": [{"expression": license}],
    });
    if let Some(description) = &package.description {
        component["description"] = Value::String(description.trim().to_owned());
    }
    let key = (package.name.clone(), package.version.clone());
    match checksums.get(&key) {
        Some(sum) => component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]),
        None if package.is_ours() => {}
        None => bail!("{} {} has no checksum in Cargo.lock", package.name, package.version),
    }
    Ok(component)
}

/// The date of the sources: `SOURCE_DATE_EPOCH`, as in reproducible builds.
fn source_time() -> Result<Option<String>> {
    let Some(epoch) = std::env::var_os("SOURCE_DATE_EPOCH") else { return Ok(None) };
    let text = epoch.to_string_lossy();
    let seconds: u64 = text
        .parse()
        .with_context(|| format!("SOURCE_DATE_EPOCH: got '{text}', expected seconds since 1970"))?;
    Ok(Some(utc(seconds)))
}

/// A time in UTC, in the form of RFC 3339.
fn utc(seconds: u64) -> String {
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
