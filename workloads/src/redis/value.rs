//! Self-checking keys and values. A value holds its key, its version and words that follow from
//! both, so that a reader can check whether it is whole and which key it belongs to; the last
//! writer can check whether it is the latest.

use std::io::Write;
use std::path::Path;

use super::ClientError;
use crate::memory::checked::mix;

/// The shortest value: key and version.
pub const MIN_VALUE_BYTES: usize = 16;
/// The most keys: the range of the ten digits of a key's name.
pub const MAX_KEYS: u64 = 10_000_000_000;
const NAME_BYTES: usize = 14;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The name of a key: `key:` and ten digits, so that all names have one length.
pub fn name(key: u64) -> [u8; NAME_BYTES] {
    let mut name = *b"key:0000000000";
    let mut rest = key;
    for digit in name[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    name
}

/// Appends the value of this key and version, `size_bytes` long.
pub fn append(out: &mut Vec<u8>, key: u64, version: u64, size_bytes: usize) {
    out.extend_from_slice(&key.to_le_bytes());
    out.extend_from_slice(&version.to_le_bytes());
    let mut word = mix(key ^ mix(version));
    let body = size_bytes - MIN_VALUE_BYTES;
    for _ in 0..body / 8 {
        out.extend_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(STEP);
    }
    out.extend_from_slice(&word.to_le_bytes()[..body % 8]);
}

/// The version of a value, or `None` when it is not a whole value of this key and size.
pub fn version(bytes: &[u8], key: u64, size_bytes: usize) -> Option<u64> {
    if bytes.len() != size_bytes {
        return None;
    }
    let word_at = |b: &[u8]| u64::from_le_bytes(b.try_into().expect("8 bytes"));
    let (head, body) = bytes.split_at_checked(MIN_VALUE_BYTES)?;
    let version = word_at(&head[8..]);
    let mut difference = word_at(&head[..8]) ^ key;
    let mut word = mix(key ^ mix(version));
    let words = body.chunks_exact(8);
    let tail = words.remainder();
    for chunk in words {
        difference |= word_at(chunk) ^ word;
        word = word.wrapping_add(STEP);
    }
    let tail_right = tail == &word.to_le_bytes()[..tail.len()];
    (difference == 0 && tail_right).then_some(version)
}

/// The version that a reader must find for each key.
pub struct Versions(Vec<u32>);

/// No version is known yet: the first value read sets it.
const UNKNOWN: u32 = u32::MAX;

impl Versions {
    /// Versions of `keys` keys, all unknown.
    pub fn unknown(keys: u64) -> Self {
        Versions(vec![UNKNOWN; keys as usize])
    }

    /// The version that the key must have, if it is known.
    pub fn expected(&self, key: u64) -> Option<u64> {
        let known = self.0[key as usize];
        (known != UNKNOWN).then_some(known.into())
    }

    /// Takes the version that a read returned as the right one, when none is known for the key.
    pub fn learn(&mut self, key: u64, version: u64) {
        let known = &mut self.0[key as usize];
        if *known == UNKNOWN {
            *known = u32::try_from(version).unwrap_or(UNKNOWN);
        }
    }

    /// The version to write next. The load writes version 0.
    pub fn next(&mut self, key: u64) -> u64 {
        let known = &mut self.0[key as usize];
        *known = if *known >= UNKNOWN - 1 { 1 } else { *known + 1 };
        u64::from(*known)
    }

    /// Drops the version of a key, when a write may or may not have happened.
    pub fn forget(&mut self, key: u64) {
        self.0[key as usize] = UNKNOWN;
    }

    /// Writes them to a file for a later verification: 4 bytes a key, little-endian. The file
    /// appears whole or not at all.
    pub fn save(&self, path: &Path) -> Result<(), ClientError> {
        let failed = |e: std::io::Error| ClientError::Versions {
            path: path.to_owned(),
            what: e.to_string(),
        };
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        let bytes: Vec<u8> = self.0.iter().flat_map(|v| v.to_le_bytes()).collect();
        file.write_all(&bytes).map_err(failed)?;
        file.persist(path).map_err(|e| failed(e.error))?;
        Ok(())
    }

    /// Reads the file of a run over `keys` keys.
    pub fn load(path: &Path, keys: u64) -> Result<Self, ClientError> {
        let failed = |what: String| ClientError::Versions { path: path.to_owned(), what };
        let bytes = std::fs::read(path).map_err(|e| failed(e.to_string()))?;
        if bytes.len() as u64 != keys * 4 {
            return Err(failed(format!(
                "has {} bytes, expected {} for {keys} keys; give the same keys as to 'run'",
                bytes.len(),
                keys * 4
            )));
        }
        let words = bytes.chunks_exact(4);
        Ok(Versions(words.map(|b| u32::from_le_bytes(b.try_into().expect("4 bytes"))).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_have_one_length_and_sort_by_number() {
        assert_eq!(&name(0), b"key:0000000000");
        assert_eq!(&name(MAX_KEYS - 1), b"key:9999999999");
        assert!(name(99) < name(100));
    }

    proptest! {
        #[test]
        fn a_value_is_its_own_proof(key in 0..MAX_KEYS, version_written: u32, size in 16usize..200,
                                    at: prop::sample::Index, flip in 1u8..) {
            let mut value = Vec::new();
            append(&mut value, key, version_written.into(), size);
            prop_assert_eq!(value.len(), size);
            prop_assert_eq!(version(&value, key, size), Some(version_written.into()));
            prop_assert_eq!(version(&value, key + 1, size), None);
            prop_assert_eq!(version(&value[..size - 1], key, size), None);
            let at = at.index(size);
            value[at] ^= flip;
            // A changed version is detected by the words that follow from it, if there are any.
            if size >= MIN_VALUE_BYTES + 8 || !(8..16).contains(&at) {
                prop_assert_eq!(version(&value, key, size), None);
            }
        }

        #[test]
        fn any_bytes_can_be_looked_at(bytes in prop::collection::vec(any::<u8>(), 0..64), size in 0usize..64) {
            let _ = version(&bytes, 1, size);
        }
    }

    #[test]
    fn the_version_to_expect_is_learnt_written_and_forgotten() {
        let mut versions = Versions::unknown(2);
        assert_eq!(versions.expected(0), None);
        versions.learn(0, 5);
        versions.learn(0, 9);
        assert_eq!(versions.expected(0), Some(5), "only the first read learns");
        assert_eq!((versions.next(0), versions.expected(0)), (6, Some(6)));
        assert_eq!((versions.next(1), versions.expected(1)), (1, Some(1)));
        versions.forget(0);
        versions.learn(0, u64::MAX);
        assert_eq!(versions.expected(0), None, "no version of ours");
    }

    #[test]
    fn versions_survive_a_file_and_a_file_of_another_size_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("versions");
        let mut versions = Versions::unknown(3);
        versions.next(1);
        versions.save(&path).unwrap();
        let mut read = Versions::load(&path, 3).unwrap();
        let next = read.next(1);
        assert_eq!(next, versions.next(1));
        let error = Versions::load(&path, 4).err().unwrap().to_string();
        assert!(error.contains("has 12 bytes, expected 16"), "{error}");
        assert!(versions.save(&folder.path().join("no/such")).is_err());
    }
}
