//! ChampSim's traces: one record of 64 bytes per instruction, little-endian, without a header
//! (`struct input_instr` in `inc/trace_instruction.h` of <https://github.com/ChampSim/ChampSim>).
//!
//! ```text
//! ip:u64 is_branch:u8 branch_taken:u8 destination_registers:[u8; 2] source_registers:[u8; 4]
//! destination_memory:[u64; 2] source_memory:[u64; 4]
//! ```
//!
//! An address of 0 is an unused place. Sizes of references are not known.

/// Bytes of a record.
pub const RECORD_BYTES: usize = 64;
/// Stores of one instruction.
pub const STORES: usize = 2;
/// Loads of one instruction.
pub const LOADS: usize = 4;

/// One instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Instruction {
    /// Address of the instruction.
    pub ip: u64,
    /// 1 for a branch, else 0.
    pub is_branch: u8,
    /// 1 for a branch that was taken, else 0.
    pub branch_taken: u8,
    /// Registers it writes; 0 for none.
    pub destination_registers: [u8; 2],
    /// Registers it reads; 0 for none.
    pub source_registers: [u8; 4],
    /// Addresses it stores to; 0 for none.
    pub stores: [u64; STORES],
    /// Addresses it loads from; 0 for none.
    pub loads: [u64; LOADS],
}

impl Instruction {
    /// The record's bytes.
    pub fn to_bytes(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(&self.ip.to_le_bytes());
        bytes[8] = self.is_branch;
        bytes[9] = self.branch_taken;
        bytes[10..12].copy_from_slice(&self.destination_registers);
        bytes[12..16].copy_from_slice(&self.source_registers);
        let addresses = self.stores.iter().chain(&self.loads);
        for (to, address) in bytes[16..].chunks_exact_mut(8).zip(addresses) {
            to.copy_from_slice(&address.to_le_bytes());
        }
        bytes
    }

    /// From the bytes of a record; `None` if a flag is neither 0 nor 1, because then the bytes are
    /// no record.
    pub fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        let [is_branch, branch_taken] = [bytes[8], bytes[9]];
        (is_branch <= 1 && branch_taken <= 1).then(|| Instruction {
            ip: number(0),
            is_branch,
            branch_taken,
            destination_registers: [bytes[10], bytes[11]],
            source_registers: [bytes[12], bytes[13], bytes[14], bytes[15]],
            stores: std::array::from_fn(|i| number(16 + 8 * i)),
            loads: std::array::from_fn(|i| number(32 + 8 * i)),
        })
    }
}
