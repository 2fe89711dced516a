//! Which registers and loads a load's address is computed from.
//!
//! Loads that do not need each other overlap; a pointer chase does not. An emulator that exposes
//! instruction bytes makes the difference visible: for each block, from which registers and from
//! which earlier loads of the block each load's address is computed, and what each register holds
//! at the end. The sixteen general registers are followed, whole. Not followed: flags (a
//! conditional move waits for its values and not for its condition), vector registers, and memory
//! (a value that is stored and loaded again is like any other load). A register that an instruction
//! unknown to [`crate::decode`] writes keeps its old sources.

use crate::causes::Role;
pub use crate::decode::Effect;
use crate::decode::{Decoded, decode, is_of_system, repeated_bytes};

/// Registers that are followed.
pub const REGISTERS: usize = 16;
/// Loads of a block that are followed; in a block with more the rest count as independent.
pub const LOADS: usize = 64;
/// A load that is not followed, or an instruction that loads nothing.
pub const NO_LOAD: u8 = u8::MAX;

/// The sources that a value is computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Sources {
    /// Registers as they were when the block began, a bit for each.
    pub registers: u16,
    /// Loads of the block, a bit for each.
    pub loads: u64,
}

impl Sources {
    fn and(self, other: Sources) -> Sources {
        Sources { registers: self.registers | other.registers, loads: self.loads | other.loads }
    }
}

/// An instruction that accesses memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Site {
    /// Its place in the block, from 1.
    pub position: u32,
    /// The load's number in the block, or [`NO_LOAD`].
    pub load: u8,
    /// Sources of the load's address.
    pub address: Sources,
    /// Address of the instruction, where accesses are sampled; 0 otherwise, so that sites that do
    /// the same are one.
    pub instruction: u64,
}

/// A block of instructions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Block {
    /// Number of instructions.
    pub instructions: u32,
    /// Bytes that the block writes, where it is one repetition of a repeated copy or fill; 0 otherwise.
    pub repeated_bytes: u8,
    /// Whether the instructions are the kernel's.
    pub kernel: bool,
    /// What begins with it in the kernel.
    pub role: Role,
    /// Whether an entry into the kernel ends with it.
    pub leaves: bool,
    /// Sources of each register that the block changes, at its end.
    pub changes: Vec<(u8, Sources)>,
}

/// Analysis of a block's instructions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flow {
    /// The block.
    pub block: Block,
    /// By instruction, the site of its accesses; also for those that make none.
    pub sites: Vec<Site>,
    /// By instruction, its effect.
    pub effects: Vec<Effect>,
    /// By instruction, whether it is a system instruction, with which a block ends.
    pub of_system: Vec<bool>,
}

/// Analyses a block of 64-bit code, given the bytes of each of its instructions.
pub fn analyse<'a>(instructions: impl Iterator<Item = &'a [u8]>, kernel: bool) -> Flow {
    let mut state: [Sources; REGISTERS] =
        std::array::from_fn(|n| Sources { registers: 1 << n, loads: 0 });
    let mut flow = Flow::default();
    let (mut loads, mut repeated) = (0, 0);
    let all = |state: &[Sources; REGISTERS], registers: u16| {
        (0..REGISTERS)
            .filter(|n| registers >> n & 1 != 0)
            .fold(Sources::default(), |all, n| all.and(state[n]))
    };
    for (at, bytes) in instructions.enumerate() {
        let Decoded { effect, address, loads: is_load, reads, writes } = decode(bytes);
        let position = at as u32 + 1;
        repeated = repeated_bytes(bytes).unwrap_or(0);
        let mut site =
            Site { position, load: NO_LOAD, address: Sources::default(), instruction: 0 };
        let mut value = all(&state, reads);
        if is_load {
            site.address = all(&state, address);
        }
        if is_load && loads < LOADS {
            site.load = loads as u8;
            value.loads |= 1 << loads;
            loads += 1;
        }
        for (n, register) in state.iter_mut().enumerate() {
            if writes >> n & 1 != 0 {
                *register = value;
            }
        }
        flow.effects.push(effect);
        flow.of_system.push(is_of_system(bytes));
        flow.sites.push(site);
    }
    let unchanged = |n: usize| Sources { registers: 1 << n, loads: 0 };
    flow.block = Block {
        instructions: flow.sites.len() as u32,
        // The emulator executes the first repetition with the instructions before it, and each of the
        // others as a block of its own.
        repeated_bytes: if flow.sites.len() == 1 { repeated } else { 0 },
        kernel,
        role: Role::None,
        leaves: false,
        changes: (0..REGISTERS)
            .filter(|&n| state[n] != unchanged(n))
            .map(|n| (n as u8, state[n]))
            .collect(),
    };
    flow
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(instructions: &[&[u8]]) -> Flow {
        analyse(instructions.iter().copied(), false)
    }

    const RAX: u16 = 1;
    const RBX: u16 = 1 << 3;

    #[test]
    fn a_chase_needs_the_load_before() {
        // mov rax,[rax]; mov rax,[rax]
        let flow = flow(&[&[0x48, 0x8b, 0x00], &[0x48, 0x8b, 0x00]]);
        assert_eq!(flow.sites[0].address, Sources { registers: RAX, loads: 0 });
        assert_eq!(flow.sites[1].address, Sources { registers: 0, loads: 1 });
        assert_eq!(flow.block.changes, [(0, Sources { registers: 0, loads: 2 })]);
    }

    #[test]
    fn an_address_computed_from_a_load_needs_it_too() {
        // mov eax,[rbx]; and eax,0xff; lea rcx,[rdx+rax*8]; mov rsi,[rcx]; mov rdi,[rdx]
        let flow = flow(&[
            &[0x8b, 0x03],
            &[0x25, 0xff, 0, 0, 0],
            &[0x48, 0x8d, 0x0c, 0xc2],
            &[0x48, 0x8b, 0x31],
            &[0x48, 0x8b, 0x3a],
        ]);
        assert_eq!(flow.sites[0].address, Sources { registers: RBX, loads: 0 });
        let needed = flow.sites[3].address;
        assert_eq!(needed.loads, 1);
        assert_eq!(flow.sites[4].address, Sources { registers: 1 << 2, loads: 0 });
        assert_eq!((flow.sites[1].load, flow.sites[3].load, flow.sites[4].load), (NO_LOAD, 1, 2));
    }

    #[test]
    fn a_cleared_register_needs_nothing() {
        // mov rax,[rbx]; xor eax,eax; mov rcx,[rbx+rax]
        let flow = flow(&[&[0x48, 0x8b, 0x03], &[0x31, 0xc0], &[0x48, 0x8b, 0x0c, 0x03]]);
        assert_eq!(flow.sites[2].address, Sources { registers: RBX, loads: 0 });
        assert!(flow.block.changes.iter().any(|c| *c == (0, Sources::default())));
    }

    #[test]
    fn pushes_and_pops_do_not_chain() {
        // pop rax; pop rbx; ret
        let flow = flow(&[&[0x58], &[0x5b], &[0xc3]]);
        assert!(flow.sites.iter().all(|site| site.address.loads == 0));
    }

    #[test]
    fn the_systems_instructions_are_distinguished_from_a_programs() {
        let of_system: [&[u8]; 14] = [
            &[0x48, 0xCF],             // iretq
            &[0x0F, 0x05],             // syscall
            &[0x48, 0x0F, 0x07],       // sysretq
            &[0xCD, 0x80],             // int 0x80
            &[0x9D],                   // popf
            &[0xEC],                   // in al,dx
            &[0x66, 0xEF],             // out dx,ax
            &[0x0F, 0x30],             // wrmsr
            &[0x0F, 0x22, 0xD8],       // mov cr3,rax
            &[0x0F, 0x01, 0x3F],       // invlpg [rdi]
            &[0x8E, 0xD8],             // mov ds,eax
            &[0xFB],                   // sti
            &[0x48, 0x0F, 0xAE, 0x2F], // xrstor64 [rdi]
            &[0x48, 0xFF, 0x2F],       // far jump
        ];
        let of_program: [&[u8]; 8] = [
            &[0xC3],                   // ret
            &[0xE8, 1, 0, 0, 0],       // call
            &[0xFF, 0xD0],             // call rax
            &[0xFF, 0x20],             // jmp [rax]
            &[0xFF, 0x30],             // push [rax]
            &[0xF3, 0x48, 0xAB],       // rep stosq
            &[0x48, 0x8B, 0x03],       // mov rax,[rbx]
            &[0x0F, 0x84, 0, 0, 0, 0], // je
        ];
        for bytes in of_system {
            assert!(flow(&[bytes]).of_system[0], "{bytes:x?}");
        }
        for bytes in of_program {
            assert!(!flow(&[bytes]).of_system[0], "{bytes:x?}");
        }
    }

    #[test]
    fn repetitions_of_a_copy_are_counted_by_their_bytes() {
        let blocks: [(&[&[u8]], u8); 8] = [
            (&[&[0xF3, 0xA4]], 1),                // rep movsb
            (&[&[0xF3, 0x48, 0xA5]], 8),          // rep movsq
            (&[&[0xF3, 0x66, 0xAB]], 2),          // rep stosw
            (&[&[0xF3, 0xAB]], 4),                // rep stosd
            (&[&[0x48, 0xA5]], 0),                // movsq
            (&[&[0xF3, 0x48, 0xA7]], 0),          // repe cmpsq
            (&[&[0x90], &[0xF3, 0x48, 0xA5]], 0), // nop; rep movsq
            (&[&[0xF3, 0x90]], 0),                // pause
        ];
        for (instructions, bytes) in blocks {
            assert_eq!(flow(instructions).block.repeated_bytes, bytes, "{instructions:x?}");
        }
    }

    #[test]
    fn what_matters_to_the_machine_is_recognised() {
        let flow = flow(&[
            &[0xf4],
            &[0xf3, 0x90],
            &[0x0f, 0x31],
            &[0x0f, 0x01, 0xf9],
            &[0x0f, 0x22, 0xd8],
            &[0x0f, 0x01, 0x38],
            &[0x0f, 0x22, 0xc0],
            &[0x06],
        ]);
        use Effect::{FlushTranslations, Halt, None, Pause, ReadClock};
        let expected =
            [Halt, Pause, ReadClock, ReadClock, FlushTranslations, FlushTranslations, None, None];
        assert_eq!(flow.effects, expected);
        assert_eq!(flow.block.instructions, 8);
    }
}
