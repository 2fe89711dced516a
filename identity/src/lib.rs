//! Which build of Terrace this is: version, commit, and a hash of its sources.
//!
//! **Owns** the identity that `--version`, results and cache keys have, and the hash of cache keys.
//! **Must not know** what is cached or who prints it.
//!
//! A program that is built (`terrace`, `terraced`, the Python module) finds out what it is built
//! from in its build script ([`embed::emit`]) and says so when it starts ([`set`], with
//! [`this_build!`]). Libraries ask [`build`]: were each to find out by itself, each would be
//! compiled anew after every commit.
#![forbid(unsafe_code)]

pub mod embed;
mod hash;

use std::sync::OnceLock;

pub use hash::StableHash;

/// What a program was built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// The version of Terrace: semantic, `MAJOR.MINOR.PATCH`.
    pub version: &'static str,
    /// The version and in brackets what else is known: `0.2.0 (1a2b3c4d5e6f, modified)`.
    pub description: &'static str,
    /// Hash of all sources, 16 hexadecimal digits; the same for the same sources, wherever and
    /// whenever they are built. "unknown" in programs that say nothing.
    pub sources: &'static str,
}

/// A program that has not set its identity: a test of a library.
const UNKNOWN: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    description: env!("CARGO_PKG_VERSION"),
    sources: "unknown",
};

static BUILD: OnceLock<Build> = OnceLock::new();

/// Says what this program is, once, when it starts. The first word counts: a program does not
/// become another one.
pub fn set(build: Build) {
    let _ = BUILD.set(build);
}

/// What this program is.
pub fn build() -> Build {
    *BUILD.get().unwrap_or(&UNKNOWN)
}

/// Who made a file, for its header: `terrace 0.2.0 (1a2b3c4d5e6f)`.
pub fn created_by(program: &str) -> String {
    format!("{program} {}", build().description)
}

/// The [`Build`] of the crate that calls it; its build script has called [`embed::emit`].
#[macro_export]
macro_rules! this_build {
    () => {
        $crate::Build {
            version: env!("CARGO_PKG_VERSION"),
            description: env!("TERRACE_BUILD_DESCRIPTION"),
            sources: env!("TERRACE_BUILD_SOURCES"),
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_says_once_what_it_is() {
        assert_eq!(build(), UNKNOWN);
        let known = Build { version: "9.8.7", description: "9.8.7 (abc)", sources: "00" };
        set(known);
        set(UNKNOWN);
        assert_eq!((build(), created_by("terrace").as_str()), (known, "terrace 9.8.7 (abc)"));
    }
}
