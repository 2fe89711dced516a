//! Requests to memory and their completions.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::address::{Kind, PhysicalAddress};
use crate::units::Picoseconds;

/// The number of a request, chosen by the requester and returned with the answer. The parts never
/// interpret it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RequestId(pub u64);

/// Requests by their numbers. Numbers are hashed by multiplication: cheaper than the library's
/// hash, and the same in every run as long as the order is not used.
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
    /// The request's number.
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
    /// Unknown: later requests may still go before it. The number comes back with the completion.
    Pending(RequestId),
}

/// A request that has been served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The request's number.
    pub id: RequestId,
    /// When the data arrived (reads) or was accepted (writes).
    pub done: Picoseconds,
}
