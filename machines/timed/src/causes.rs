//! What the kernel's time is for: by the entry through which a processor came into the kernel, and
//! by the kernel's functions that move pages or make room.
//!
//! A program's system call, a fault or an interrupt begins at an address that the kernel's symbols
//! name, and so do the functions. An entry ends with the kernel's return from it. A function ends
//! with the return that takes the word above the first one that it pushed. Each task keeps its own
//! entries and functions while another one runs: the kernel stores the stack pointer in the task
//! that stops, and loads it from the task that continues.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::flow::Block;

/// A cause of the kernel's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// Programs' system calls.
    SystemCalls,
    /// Page faults, but for those below.
    PageFaults,
    /// Faults on pages that were made inaccessible to see which node uses them.
    HintFaults,
    /// Making pages inaccessible for that.
    HintScans,
    /// Moving pages between nodes.
    Migration,
    /// Making free memory.
    Reclaim,
    /// Making free memory contiguous.
    Compaction,
    /// The processor's timer.
    Timer,
    /// Calls by other processors: flushed translations, and waking.
    Calls,
    /// Devices' interrupts, and exceptions.
    Interrupts,
    /// Threads of the kernel, outside of the functions above.
    Threads,
    /// Waiting for work.
    Idle,
    /// The kernel's symbols are not known.
    Unknown,
}

impl Cause {
    /// All of them.
    pub const ALL: [Cause; 13] = [
        Cause::SystemCalls,
        Cause::PageFaults,
        Cause::HintFaults,
        Cause::HintScans,
        Cause::Migration,
        Cause::Reclaim,
        Cause::Compaction,
        Cause::Timer,
        Cause::Calls,
        Cause::Interrupts,
        Cause::Threads,
        Cause::Idle,
        Cause::Unknown,
    ];

    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Cause::SystemCalls => "system calls",
            Cause::PageFaults => "page faults",
            Cause::HintFaults => "NUMA hint faults",
            Cause::HintScans => "NUMA hint scans",
            Cause::Migration => "page migration",
            Cause::Reclaim => "reclaim",
            Cause::Compaction => "compaction",
            Cause::Timer => "timer interrupts",
            Cause::Calls => "inter-processor interrupts",
            Cause::Interrupts => "other interrupts",
            Cause::Threads => "kernel threads",
            Cause::Idle => "idle",
            Cause::Unknown => "unknown",
        }
    }
}

/// What begins with a block of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Role {
    /// Nothing.
    #[default]
    None,
    /// A processor comes into the kernel.
    Entry(Cause),
    /// A function of this cause.
    Function(Cause),
    /// The fault under way is a hint fault.
    HintFault,
    /// A new task.
    NewTask,
}

/// The end of all returns from faults and interrupts.
const RETURN: &str = "native_irq_return_iret";
/// Switches from one task to another.
const SWITCH: &str = "__switch_to_asm";
/// So many bytes from its start contain both of its accesses to tasks.
const SWITCH_BYTES: u64 = 64;

/// A symbol of the guest's kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Symbol {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: u64,
}

/// The role of the kernel's function or entry of this name.
fn role_of(name: &str) -> Option<Role> {
    Some(match name {
        "entry_SYSCALL_64" | "entry_SYSCALL_compat" | "asm_int80_emulation" => {
            Role::Entry(Cause::SystemCalls)
        }
        "asm_exc_page_fault" => Role::Entry(Cause::PageFaults),
        "asm_sysvec_apic_timer_interrupt" => Role::Entry(Cause::Timer),
        "asm_sysvec_call_function"
        | "asm_sysvec_call_function_single"
        | "asm_sysvec_reschedule_ipi" => Role::Entry(Cause::Calls),
        "migrate_pages"
        | "migrate_misplaced_folio"
        | "tm_migrate_ioctl"
        | "tm_exchange_ioctl"
        | "tm_pt_migrate_ioctl" => Role::Function(Cause::Migration),
        "try_to_free_pages" | "shrink_node" => Role::Function(Cause::Reclaim),
        "compact_zone" => Role::Function(Cause::Compaction),
        "task_numa_work" => Role::Function(Cause::HintScans),
        "task_numa_fault" => Role::HintFault,
        "ret_from_fork_asm" => Role::NewTask,
        _ if name.starts_with("asm_sysvec_")
            || name.starts_with("asm_exc_")
            || name == "asm_common_interrupt" =>
        {
            Role::Entry(Cause::Interrupts)
        }
        _ => return None,
    })
}

/// Whether a symbol is needed here.
#[must_use]
pub fn is_needed(name: &str) -> bool {
    name == RETURN || name == SWITCH || role_of(name).is_some()
}

/// Addresses in the guest's kernel.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    roles: HashMap<u64, Role>,
    ends_with: Option<u64>,
    switch: Option<u64>,
}

impl Addresses {
    /// Of these symbols.
    #[must_use]
    pub fn of(symbols: &[Symbol]) -> Self {
        let find = |name| symbols.iter().find(|s| s.name == name).map(|s| s.address);
        let role = |s: &Symbol| Some((s.address, role_of(&s.name)?));
        Addresses {
            roles: symbols.iter().filter_map(role).collect(),
            ends_with: find(RETURN),
            switch: find(SWITCH),
        }
    }

    /// Whether entries, returns and switches are all known: without one of them time would go to the
    /// wrong cause.
    #[must_use]
    pub fn are_known(&self) -> bool {
        let has = |cause| self.roles.values().any(|role| *role == Role::Entry(cause));
        self.ends_with.is_some()
            && self.switch.is_some()
            && has(Cause::SystemCalls)
            && has(Cause::PageFaults)
            && has(Cause::Timer)
    }

    /// The role of a block at this address.
    #[must_use]
    pub fn role(&self, address: u64) -> Role {
        self.roles.get(&address).copied().unwrap_or_default()
    }

    /// Whether an entry ends with the instruction at this address.
    #[must_use]
    pub fn is_return(&self, address: u64) -> bool {
        self.ends_with == Some(address)
    }

    /// Whether the instruction at this address stores a task's stack pointer, or loads one.
    #[must_use]
    pub fn switch(&self, address: u64, bytes: &[u8]) -> Option<Switch> {
        if address.wrapping_sub(self.switch?) >= SWITCH_BYTES {
            return None;
        }
        match bytes {
            // mov %rsp, disp32(%rdi) and mov disp32(%rsi), %rsp
            [0x48, 0x89, 0xA7, ..] => Some(Switch::From),
            [0x48, 0x8B, 0xA6, ..] => Some(Switch::To),
            _ => None,
        }
    }
}

/// An access of a switch between tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// A task stops.
    From,
    /// A task continues.
    To,
}

/// The instruction of a function's first block that pushes the first word, right below the return
/// address. `None` where something else is done first.
pub fn first_push<'a>(instructions: impl Iterator<Item = &'a [u8]>) -> Option<usize> {
    for (at, bytes) in instructions.enumerate() {
        match bytes {
            [0x50..=0x57] | [0x41, 0x50..=0x57] => return Some(at),
            // endbr64; no-operations, also in the place of the tracer's call; moves and logic
            // between registers.
            [0xF3, 0x0F, 0x1E, 0xFA] | [0x0F, 0x1F, ..] | [0x66, 0x0F, 0x1F, ..] => {}
            [0x90] | [0x66, 0x90] => {}
            [0x31 | 0x33 | 0x89 | 0x8B | 0x85, modrm] if *modrm >= 0xC0 => {}
            [0x40..=0x4F, 0x31 | 0x33 | 0x63 | 0x89 | 0x8B | 0x85, modrm] if *modrm >= 0xC0 => {}
            // An address relative to the stack or a constant into a register.
            [0xB8..=0xBF, ..] | [0x40..=0x4F, 0xB8..=0xBF | 0x8D, ..] => {}
            _ => return None,
        }
    }
    None
}

/// Whether an instruction is a return.
#[must_use]
pub fn is_return(bytes: &[u8]) -> bool {
    matches!(bytes, [0xC3] | [0xF3, 0xC3] | [0xC2, _, _])
}

/// An entry or function under way.
#[derive(Debug, Clone, Copy)]
struct Frame {
    cause: Cause,
    /// Address of a function's return address; 0 for an entry.
    stack: u64,
    took_ps: u64,
}

/// Entries and functions under way in a task.
#[derive(Debug, Clone)]
struct Task {
    frames: Vec<Frame>,
    /// What the task does outside of them.
    base: Frame,
    /// It ran before anything was known about it: it may be a program in a system call.
    unsure: bool,
}

impl Task {
    fn new(cause: Cause, unsure: bool) -> Self {
        Task { frames: Vec::new(), base: Frame { cause, stack: 0, took_ps: 0 }, unsure }
    }
}

/// The kernel's time by cause, of all processors.
#[derive(Debug, Clone)]
pub struct Causes {
    known: bool,
    ps: [u64; Cause::ALL.len()],
    /// The running task of each processor.
    running: Vec<Task>,
    /// Tasks that do not run, by the address of their stack pointer.
    waiting: HashMap<u64, Task>,
}

impl Causes {
    /// No time yet. `known`: entries will be reported.
    pub fn new(processors: usize, known: bool) -> Self {
        let cause = if known { Cause::Threads } else { Cause::Unknown };
        Causes {
            known,
            ps: [0; Cause::ALL.len()],
            running: vec![Task::new(cause, true); processors],
            waiting: HashMap::new(),
        }
    }

    /// Time by cause, in ps.
    pub fn ps(&self) -> impl Iterator<Item = (Cause, u64)> + '_ {
        Cause::ALL.into_iter().zip(self.ps)
    }

    /// The kernel took so much time on a processor.
    pub fn took(&mut self, cpu: usize, ps: u64) {
        let task = &mut self.running[cpu];
        let frame = task.frames.last_mut().unwrap_or(&mut task.base);
        frame.took_ps += ps;
        self.ps[frame.cause as usize] += ps;
    }

    /// A block of the kernel or of a program begins after one that took so much; one of the two is
    /// the kernel's.
    pub fn follows(&mut self, cpu: usize, took_ps: u64, before: &Block, now: &Block) {
        if before.kernel {
            self.took(cpu, took_ps);
            if before.leaves {
                self.returned(cpu);
            }
        }
        if !now.kernel {
            self.in_program(cpu);
        } else if now.role != Role::None {
            self.begins(cpu, now.role);
        }
    }

    /// A return from an entry was executed.
    pub fn returned(&mut self, cpu: usize) {
        let frames = &mut self.running[cpu].frames;
        let entry = frames.iter().rposition(|frame| frame.stack == 0);
        frames.truncate(entry.unwrap_or(0));
    }

    /// A program runs on the processor.
    #[inline]
    pub fn in_program(&mut self, cpu: usize) {
        if !self.known {
            return;
        }
        let task = &mut self.running[cpu];
        task.frames.clear();
        if task.base.cause == Cause::Interrupts {
            return;
        }
        if task.unsure {
            let took = task.base.took_ps;
            self.ps[task.base.cause as usize] -= took;
            self.ps[Cause::SystemCalls as usize] += took;
        }
        // An interrupt has instructions before its entry's address.
        *task = Task::new(Cause::Interrupts, false);
    }

    /// A block of the kernel with this role begins.
    pub fn begins(&mut self, cpu: usize, role: Role) {
        if !self.known {
            return;
        }
        match role {
            Role::Entry(cause) => {
                self.running[cpu].frames.push(Frame { cause, stack: 0, took_ps: 0 });
            }
            Role::HintFault => {
                let frames = &mut self.running[cpu].frames;
                let fault = frames.iter_mut().rev().find(|frame| frame.stack == 0);
                if let Some(fault) = fault.filter(|fault| fault.cause == Cause::PageFaults) {
                    self.ps[fault.cause as usize] -= fault.took_ps;
                    fault.cause = Cause::HintFaults;
                    self.ps[fault.cause as usize] += fault.took_ps;
                }
            }
            Role::NewTask => self.running[cpu] = Task::new(Cause::Threads, false),
            Role::None | Role::Function(_) => {}
        }
    }

    /// A function pushed its first word at this address.
    pub fn calls(&mut self, cpu: usize, cause: Cause, address: u64) {
        if self.known {
            let stack = address.wrapping_add(8);
            self.running[cpu].frames.push(Frame { cause, stack, took_ps: 0 });
        }
    }

    /// A return took its address from there.
    pub fn returns(&mut self, cpu: usize, address: u64) {
        let frames = &mut self.running[cpu].frames;
        if let Some(function) = frames.iter().rposition(|frame| frame.stack == address) {
            frames.truncate(function);
        }
    }

    /// The running task stops, or another one continues.
    pub fn switches(&mut self, cpu: usize, switch: Switch, address: u64) {
        if !self.known {
            return;
        }
        let running = &mut self.running[cpu];
        match switch {
            Switch::From => {
                let next = Task::new(Cause::Threads, true);
                self.waiting.insert(address, std::mem::replace(running, next));
            }
            Switch::To => {
                if let Some(task) = self.waiting.remove(&address) {
                    *running = task;
                }
            }
        }
    }

    /// The running task waits for interrupts: it is the one that runs where no other does.
    pub fn waits(&mut self, cpu: usize) {
        if self.known {
            let task = &mut self.running[cpu];
            if task.frames.is_empty() && task.base.cause != Cause::Idle {
                *task = Task::new(Cause::Idle, false);
            }
        }
    }
}

#[cfg(test)]
#[path = "causes_tests.rs"]
mod tests;
