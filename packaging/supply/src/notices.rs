//! The notices of the crates whose code is in the package's programs: their licences require that
//! their texts go with every copy.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::crates::{Crate, Crates};

/// Beginnings of names of files with a licence's text or a notice.
const NAMES: [&str; 7] =
    ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE", "AUTHORS"];

/// How deep below a crate's folder they are: bundled C sources have theirs in folders of their own.
const DEPTH: u32 = 3;

/// The notices of all linked third-party crates, those with the same texts together.
pub fn notices(crates: &Crates, tree: &Path) -> Result<String> {
    let mut by_texts: BTreeMap<Vec<String>, Vec<&Crate>> = BTreeMap::new();
    for package in crates.linked().into_iter().filter(|package| !package.is_ours()) {
        by_texts.entry(texts(package, tree)?).or_default().push(package);
    }
    let mut groups: Vec<(Vec<&Crate>, Vec<String>)> =
        by_texts.into_iter().map(|(texts, packages)| (packages, texts)).collect();
    groups.sort_by(|a, b| a.0[0].name.cmp(&b.0[0].name).then(a.0[0].version.cmp(&b.0[0].version)));
    let rule = "=".repeat(78);
    let mut out = String::from(
        "Terrace's programs contain code of the crates below, each under the licence named\n\
         with it. Of licences joined by OR, any one is enough. The Rust standard library is\n\
         linked, too: its notices are in rust-library.html.gz beside this file.\n",
    );
    for (packages, texts) in groups {
        out.push_str(&format!("\n{rule}\n"));
        for package in packages {
            let license = package.license.as_deref().unwrap_or("no licence named");
            out.push_str(&format!("{} {}: {license}\n", package.name, package.version));
        }
        for text in texts {
            out.push_str(&format!("\n{}\n{text}\n", "-".repeat(78)));
        }
    }
    Ok(out)
}

/// The texts of a crate's licences. A crate without any gets Apache 2.0's from the tree where it
/// allows that licence, with its authors.
fn texts(package: &Crate, tree: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    find(package.folder(), DEPTH, &mut files)?;
    files.sort();
    let mut texts = Vec::new();
    for file in files {
        let bytes = std::fs::read(&file).with_context(|| format!("read {}", file.display()))?;
        let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n").trim().to_owned();
        if !is_not_taken(&text) && !texts.contains(&text) {
            texts.push(text);
        }
    }
    let (name, version) = (&package.name, &package.version);
    if texts.is_empty() {
        let license = package.license.as_deref().unwrap_or_default();
        if !license.contains("Apache-2.0") {
            bail!("{name} {version} ({license}) brings no licence text; add one to {NAMES:?}");
        }
        let apache = std::fs::read_to_string(tree.join("LICENSE-APACHE"))
            .context("read LICENSE-APACHE of the tree")?;
        texts.push(format!("Authors: {}\n\n{}", package.authors.join(", "), apache.trim()));
    }
    Ok(texts)
}

/// Bundled C libraries contain the texts of alternatives that are not taken: none of them is among
/// the licences that deny.toml allows.
fn is_not_taken(text: &str) -> bool {
    let start: String = text.chars().take(200).collect();
    start.contains("GNU GENERAL PUBLIC LICENSE") || start.contains("GNU LESSER GENERAL PUBLIC")
}

fn find(folder: &Path, depth: u32, files: &mut Vec<PathBuf>) -> Result<()> {
    let reading = || format!("read {}", folder.display());
    for entry in std::fs::read_dir(folder).with_context(reading)? {
        let entry = entry.with_context(reading)?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let kind = entry.file_type().with_context(reading)?;
        let is_text = !name.ends_with(".SH") && !name.ends_with(".RS");
        if kind.is_dir() && depth > 1 {
            find(&entry.path(), depth - 1, files)?;
        } else if kind.is_file() && is_text && NAMES.iter().any(|begin| name.starts_with(begin)) {
            files.push(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_bundled_sources_are_found_and_alternatives_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("Cargo.toml", "");
        put("LICENSE-MIT", "of the crate\r\n");
        put("c/LICENSE", "of the C library");
        put("c/COPYING", "        GNU GENERAL PUBLIC LICENSE\n Version 2");
        put("c/src/license.rs", "no text");
        let json = format!(
            r#"{{"packages": [{{"id": "a", "name": "a", "version": "1.0.0", "license": "MIT",
                "rust_version": null, "manifest_path": "{}/Cargo.toml", "source": "registry",
                "targets": []}}],
                "workspace_members": [], "resolve": {{"nodes": []}}}}"#,
            folder.path().display()
        );
        let crates = Crates::parse(json.as_bytes()).unwrap();
        let package = crates.others().next().unwrap();
        assert_eq!(texts(package, Path::new("/")).unwrap(), ["of the crate", "of the C library"]);
        for file in ["LICENSE-MIT", "c/LICENSE"] {
            std::fs::remove_file(folder.path().join(file)).unwrap();
        }
        let error = texts(package, Path::new("/")).unwrap_err().to_string();
        assert!(error.contains("a 1.0.0 (MIT) brings no licence text"), "{error}");
    }
}
