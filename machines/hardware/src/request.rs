//! What goes to memory and what comes back.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::address::{Kind, PhysicalAddress};
use crate::units::Picoseconds;

/// The number of a request, chosen by who asks and given back with the answer. The parts never
/// look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RequestId(pub u64);

/// Requests by their numbers. Numbers are spread by multiplication: cheaper than the library's
/// hash, and the same in every run as long as nobody asks for their order.
pub type ByRequest<T> = HashMap<RequestId, T, BuildHasherDefault<Spread>>;

/// The hash of [`ByRequest`].
#[derive(Debug, Default)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(26);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A read or write of one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Its number.
    pub id: RequestId,
    /// First byte of the line.
    pub address: PhysicalAddress,
    /// Read or write.
    pub kind: Kind,
}

/// When a request is or was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At this time, known when it was submitted.
    At(Picoseconds),
    /// Later requests may still go before it: ask for the number again.
    Pending(RequestId),
}

/// A request that has been served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Its number.
    pub id: RequestId,
    /// When the data was there (reads) or taken (writes).
    pub done: Picoseconds,
}
