//! The part of x86-64 decoding that the flow of addresses needs: the general registers of an
//! instruction's memory address, its value and its result, and whether it loads.
//!
//! The emulator supplies lengths. Common integer instructions are decoded; of others (vector
//! instructions among them) only the registers of the address, and that they may load.

/// An instruction's effect on the machine beside computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// No such effect.
    None,
    /// Waits for an interrupt.
    Halt,
    /// Yields to another processor: a waiting loop.
    Pause,
    /// Reads the time.
    ReadClock,
    /// Drops translations.
    FlushTranslations,
}

/// An instruction. Registers are a bit each, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoded {
    /// Effect beside computing.
    pub effect: Effect,
    /// Registers that the address of the memory operand is computed from.
    pub address: u16,
    /// Whether the instruction reads its memory operand.
    pub loads: bool,
    /// Registers that the result is computed from.
    pub reads: u16,
    /// Registers that get the result.
    pub writes: u16,
}

/// Splits the bytes of an instruction into prefixes, register extension, and the rest.
fn parts(bytes: &[u8]) -> Option<(&[u8], u8, &[u8])> {
    let is_prefix = |b: &u8| {
        matches!(b, 0x26 | 0x2E | 0x36 | 0x3E | 0x64 | 0x65 | 0x66 | 0x67 | 0xF0 | 0xF2 | 0xF3)
    };
    let prefixes = bytes.iter().take_while(|b| is_prefix(b)).count();
    let (prefix, rest) = bytes.split_at(prefixes);
    match rest.first()? {
        rex if rex & 0xF0 == 0x40 => Some((prefix, *rex, &rest[1..])),
        _ => Some((prefix, 0, rest)),
    }
}

/// Whether the instruction changes the processor's state (privilege, segments, interrupt flags,
/// control registers) or accesses a device. An emulator executes these in functions of its own and
/// ends the block with them.
pub fn is_of_system(bytes: &[u8]) -> bool {
    let Some((_, _, rest)) = parts(bytes) else { return false };
    let digit = |at: usize| rest.get(at).map(|byte| byte >> 3 & 7);
    match rest {
        [0x0F, 0x00 | 0x01 | 0x05..=0x09 | 0x20..=0x23 | 0x30 | 0x32 | 0x34 | 0x35, ..] => true,
        [0x0F, 0xA1 | 0xA2 | 0xA9 | 0xAA, ..] => true,
        // Restoring a processor's extended state.
        [0x0F, 0xAE | 0xC7, ..] => matches!(digit(2), Some(3 | 5)),
        [0x6C..=0x6F | 0x8E | 0x9D | 0xCA..=0xCF | 0xE4..=0xE7 | 0xEC..=0xEF, ..] => true,
        [0xF1 | 0xF4 | 0xFA | 0xFB, ..] => true,
        // Far calls and jumps.
        [0xFF, ..] => matches!(digit(1), Some(3 | 5)),
        _ => false,
    }
}

/// Bytes that one repetition of a repeated copy or fill (`rep movs`, `rep stos`) writes; `None` for
/// other instructions.
pub fn repeated_bytes(bytes: &[u8]) -> Option<u8> {
    let (prefix, rex, rest) = parts(bytes)?;
    if !prefix.iter().any(|byte| matches!(byte, 0xF2 | 0xF3)) {
        return None;
    }
    match rest {
        [0xA4 | 0xAA] => Some(1),
        [0xA5 | 0xAB] if rex & 8 != 0 => Some(8),
        [0xA5 | 0xAB] if prefix.contains(&0x66) => Some(2),
        [0xA5 | 0xAB] => Some(4),
        _ => None,
    }
}

const NOTHING: Decoded =
    Decoded { effect: Effect::None, address: 0, loads: false, reads: 0, writes: 0 };

/// The byte after the opcode, with the bits that prefixes add to it.
struct Operands {
    /// The digit or register in the middle.
    digit: u8,
    /// The register in the middle, as a bit.
    register: u16,
    /// The other register, where the operand is not memory.
    other: u16,
    /// Registers of the address, where the operand is memory.
    address: u16,
    is_memory: bool,
}

fn operands(bytes: &[u8], rex: u8) -> Option<Operands> {
    let (&byte, rest) = bytes.split_first()?;
    let number = |low: u8, bit: u8| 1u16 << (low & 7 | (rex >> bit & 1) << 3);
    let (digit, low) = (byte >> 3 & 7, byte & 7);
    let is_memory = byte < 0xC0;
    let mut address = 0;
    if is_memory && low == 4 {
        let &scaled = rest.first()?;
        // The stack pointer's number means that there is no index.
        let index = number(scaled >> 3, 1);
        if index != 1 << 4 {
            address |= index;
        }
        if scaled & 7 != 5 || byte >= 0x40 {
            address |= number(scaled, 0);
        }
    } else if is_memory && (low != 5 || byte >= 0x40) {
        address = number(low, 0);
    }
    Some(Operands {
        digit,
        register: number(digit, 2),
        other: if is_memory { 0 } else { number(low, 0) },
        address,
        is_memory,
    })
}

/// Decodes the bytes of one instruction of 64-bit code.
pub fn decode(bytes: &[u8]) -> Decoded {
    decoded(bytes).unwrap_or(NOTHING)
}

fn decoded(bytes: &[u8]) -> Option<Decoded> {
    let (prefix, rex, rest) = parts(bytes)?;
    let (&opcode, rest) = rest.split_first()?;
    match opcode {
        0x0F => two_bytes(rest, rex, prefix),
        // Vector instructions: their bits of the registers are inverted.
        0xC5 => {
            let rex = (!rest.first()? >> 7 & 1) << 2;
            vector(rest.get(2..)?, rex)
        }
        0xC4 => vector(rest.get(3..)?, !rest.first()? >> 5 & 7),
        0xF4 => Some(Decoded { effect: Effect::Halt, ..NOTHING }),
        0x90 if prefix.contains(&0xF3) => Some(Decoded { effect: Effect::Pause, ..NOTHING }),
        _ => one_byte(opcode, rest, rex),
    }
}

fn vector(rest: &[u8], rex: u8) -> Option<Decoded> {
    let o = operands(rest, rex)?;
    Some(Decoded { address: o.address, loads: o.is_memory, ..NOTHING })
}

/// An instruction that computes `writes` from `reads` and from its memory operand, if it has one.
fn result(o: &Operands, reads: u16, writes: u16) -> Option<Decoded> {
    Some(Decoded { address: o.address, loads: o.is_memory, reads, writes, ..NOTHING })
}

fn one_byte(opcode: u8, rest: &[u8], rex: u8) -> Option<Decoded> {
    let low = 1u16 << (opcode & 7 | (rex & 1) << 3);
    let stored = |o: &Operands| Decoded { address: o.address, ..NOTHING };
    match opcode {
        // Arithmetic of two operands; the last of the eight is a comparison.
        0x00..=0x3F if opcode & 7 < 4 => {
            let o = operands(rest, rex)?;
            let to_register = opcode & 2 != 0;
            // Exclusive or, and subtraction, of a register and itself is zero.
            let is_zero = matches!(opcode & 0xF8, 0x28 | 0x30) && o.other == o.register;
            let writes = match opcode & 0xF8 {
                0x38 => 0,
                _ if to_register => o.register,
                _ => o.other,
            };
            result(&o, if is_zero { 0 } else { o.register | o.other }, writes)
        }
        0x00..=0x3F if opcode & 7 < 6 && opcode < 0x38 => {
            Some(Decoded { reads: 1, writes: 1, ..NOTHING })
        }
        // The stack pointer moves by constants.
        0x58..=0x5F => Some(Decoded { loads: true, writes: low, ..NOTHING }),
        0xC2 | 0xC3 | 0xC9 => Some(Decoded { loads: true, ..NOTHING }),
        0x63 | 0x8A | 0x8B => {
            let o = operands(rest, rex)?;
            result(&o, o.other, o.register)
        }
        0x69 | 0x6B => {
            let o = operands(rest, rex)?;
            result(&o, o.other, o.register)
        }
        0x80..=0x83 => {
            let o = operands(rest, rex)?;
            result(&o, o.other, if o.digit == 7 { 0 } else { o.other })
        }
        0x84 | 0x85 => result(&operands(rest, rex)?, 0, 0),
        0x86 | 0x87 => {
            let o = operands(rest, rex)?;
            result(&o, o.register | o.other, o.register | o.other)
        }
        0x88 | 0x89 => {
            let o = operands(rest, rex)?;
            let moved = Decoded { reads: o.register, writes: o.other, ..NOTHING };
            Some(if o.is_memory { stored(&o) } else { moved })
        }
        // An address and no access.
        0x8D => {
            let o = operands(rest, rex)?;
            Some(Decoded { reads: o.address, writes: o.register, ..NOTHING })
        }
        0x91..=0x97 => Some(Decoded { reads: low | 1, writes: low | 1, ..NOTHING }),
        0xA4 | 0xA5 => Some(Decoded { address: 1 << 6, loads: true, ..NOTHING }),
        0xAC | 0xAD => Some(Decoded { address: 1 << 6, loads: true, writes: 1, ..NOTHING }),
        0xB0..=0xBF => Some(Decoded { writes: low, ..NOTHING }),
        0xC0 | 0xC1 | 0xD0..=0xD3 => {
            let o = operands(rest, rex)?;
            let count = if opcode >= 0xD2 { 1 << 1 } else { 0 };
            result(&o, o.other | count, o.other)
        }
        0xC6 | 0xC7 => {
            let o = operands(rest, rex)?;
            Some(if o.is_memory { stored(&o) } else { Decoded { writes: o.other, ..NOTHING } })
        }
        0xF6 | 0xF7 => {
            let o = operands(rest, rex)?;
            match o.digit {
                0 | 1 => result(&o, 0, 0),
                2 | 3 => result(&o, o.other, o.other),
                // Multiplications and divisions, of the accumulator and its extension.
                _ => result(&o, o.other | 0b101, 0b101),
            }
        }
        0xFE | 0xFF => {
            let o = operands(rest, rex)?;
            let counts = o.digit < 2;
            result(&o, o.other, if counts { o.other } else { 0 })
        }
        _ => Some(NOTHING),
    }
}

fn two_bytes(rest: &[u8], rex: u8, prefix: &[u8]) -> Option<Decoded> {
    let (&opcode, rest) = rest.split_first()?;
    let is = |effect| Some(Decoded { effect, ..NOTHING });
    match opcode {
        0x01 if rest.first() == Some(&0xF9) => is(Effect::ReadClock),
        // Waiting for a store to a monitored line: a processor that does not halt.
        0x01 if rest.first() == Some(&0xC9) => is(Effect::Pause),
        0x01 => {
            let o = operands(rest, rex)?;
            let flushes = o.digit == 7 && o.is_memory;
            is(if flushes { Effect::FlushTranslations } else { Effect::None })
        }
        0x22 => {
            let o = operands(rest, rex)?;
            let flushes = matches!(o.register, 0b1000 | 0b1_0000);
            is(if flushes { Effect::FlushTranslations } else { Effect::None })
        }
        0x31 => is(Effect::ReadClock),
        0x38 if rest.first() == Some(&0x82) && prefix.contains(&0x66) => {
            is(Effect::FlushTranslations)
        }
        0x38 | 0x3A => vector(rest.get(1..)?, rex),
        // Conditional moves; multiplication.
        0x40..=0x4F | 0xAF => {
            let o = operands(rest, rex)?;
            result(&o, o.register | o.other, o.register)
        }
        // Extensions, and searches for bits.
        0xB6..=0xB8 | 0xBC..=0xBF => {
            let o = operands(rest, rex)?;
            result(&o, o.other, o.register)
        }
        0x90..=0x9F => {
            let o = operands(rest, rex)?;
            Some(Decoded { address: o.address, writes: o.other, ..NOTHING })
        }
        // Exchanges with an addition or a comparison.
        0xB0 | 0xB1 => {
            let o = operands(rest, rex)?;
            result(&o, o.register | o.other | 1, o.other | 1)
        }
        0xC0 | 0xC1 => {
            let o = operands(rest, rex)?;
            result(&o, o.register | o.other, o.register | o.other)
        }
        0xC8..=0xCF
        | 0x80..=0x8F
        | 0x05
        | 0x06
        | 0x07
        | 0x08
        | 0x09
        | 0x0B
        | 0x30
        | 0x32..=0x35
        | 0x77
        | 0xA0..=0xA2
        | 0xA8..=0xAA => Some(NOTHING),
        // Stores of vector registers.
        0x11 | 0x13 | 0x17 | 0x29 | 0x2B | 0x7F | 0xD6 | 0xE7 => {
            let o = operands(rest, rex)?;
            Some(Decoded { address: o.address, ..NOTHING })
        }
        _ => vector(rest, rex),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_their_base_and_their_index() {
        for (bytes, address) in [
            // mov rax,[rbx]; mov eax,[r12+r13*8+16]; mov rax,[rip+0]; mov rax,[rcx*8+0]
            (&[0x48, 0x8B, 0x03][..], 1 << 3),
            (&[0x43, 0x8B, 0x44, 0xEC, 0x10], 1 << 12 | 1 << 13),
            (&[0x48, 0x8B, 0x05, 0, 0, 0, 0], 0),
            (&[0x48, 0x8B, 0x04, 0xCD, 0, 0, 0, 0], 1 << 1),
            // vmovdqu ymm0,[r8+rax]; movq xmm0,[rbx]
            (&[0xC4, 0xC1, 0x7E, 0x6F, 0x04, 0x00], 1 << 8 | 1),
            (&[0xF3, 0x0F, 0x7E, 0x03], 1 << 3),
        ] {
            let got = decode(bytes);
            assert_eq!((got.address, got.loads), (address, true), "{bytes:x?}");
        }
    }

    #[test]
    fn results_are_computed_from_their_sources() {
        for (bytes, loads, reads, writes) in [
            // add rax,rbx; add [rbx],rax; cmp rax,rbx; mov r9,rax; mov [rax],rbx; lea rax,[rbx+rcx]
            (&[0x48, 0x01, 0xD8][..], false, 0b1001, 1),
            (&[0x48, 0x01, 0x03], true, 1, 0),
            (&[0x48, 0x39, 0xD8], false, 0b1001, 0),
            (&[0x49, 0x89, 0xC1], false, 1, 1 << 9),
            (&[0x48, 0x89, 0x18], false, 0, 0),
            (&[0x48, 0x8D, 0x04, 0x0B], false, 0b1010, 1),
            // movzx eax,byte [rbx]; imul rax,rbx; shl rax,3; mov eax,5; cmovne rax,rbx; not code
            (&[0x0F, 0xB6, 0x03], true, 0, 1),
            (&[0x48, 0x0F, 0xAF, 0xC3], false, 0b1001, 1),
            (&[0x48, 0xC1, 0xE0, 0x03], false, 1, 1),
            (&[0xB8, 5, 0, 0, 0], false, 0, 1),
            (&[0x48, 0x0F, 0x45, 0xC3], false, 0b1001, 1),
            (&[0x0F], false, 0, 0),
            (&[], false, 0, 0),
        ] {
            let got = decode(bytes);
            assert_eq!((got.loads, got.reads, got.writes), (loads, reads, writes), "{bytes:x?}");
        }
    }
}
