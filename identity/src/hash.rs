//! A hash that is the same on every machine and with every compiler.

use std::fmt;

/// The 64-bit FNV-1a hash (Fowler, Noll and Vo). The hasher of the standard library may change
/// with the compiler, and a key made by it would then name nothing, or something else.
#[derive(Clone, Copy, Debug)]
pub struct StableHash(u64);

impl StableHash {
    /// Of nothing yet.
    #[allow(clippy::new_without_default)]
    pub fn new() -> StableHash {
        StableHash(0xcbf2_9ce4_8422_2325)
    }

    /// Adds bytes; where they are divided among calls makes no difference.
    pub fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Adds a part that ends: `ab` and `c` are not `a` and `bc`.
    pub fn add_part(&mut self, bytes: &[u8]) {
        self.add(&(bytes.len() as u64).to_le_bytes());
        self.add(bytes);
    }

    /// The hash as a number.
    pub fn value(self) -> u64 {
        self.0
    }
}

/// 16 hexadecimal digits.
impl fmt::Display for StableHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test values that the authors of FNV publish.
    #[test]
    fn it_is_fnv_1a() {
        let hash = |text: &str| {
            let mut hash = StableHash::new();
            hash.add(text.as_bytes());
            hash.value()
        };
        assert_eq!(hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(hash("foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn parts_are_kept_apart() {
        let hash = |parts: [&str; 2]| {
            let mut hash = StableHash::new();
            parts.iter().for_each(|part| hash.add_part(part.as_bytes()));
            hash.to_string()
        };
        assert_ne!(hash(["ab", "c"]), hash(["a", "bc"]));
    }
}
