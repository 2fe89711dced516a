//! The memory clock of a whole emulated machine: reports to a [`TimedMachine`] what the processors
//! execute, and moves QEMU's clock by its answers.
//!
//! QEMU emulates all processors in one thread where its clock counts instructions, so there is one
//! caller at a time. Until the guest marks the beginning, the plug-in looks for marks only: a boot
//! runs at full speed. Then QEMU translates all code again. A guest with a warm-up marks that first: each
//! instruction takes a cycle from then on, work is counted, samples are taken, and where they are, code that
//! is then translated serves both.

use std::collections::HashSet;
use std::ffi::{c_uint, c_void};
use std::fs::File;
use std::hash::Hash;
use std::io::Write;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use terrace_recorder::nodes::Mark;
use terrace_timed::causes::Addresses;
use terrace_timed::config::{ClockPlan, TierRange, TimedConfig};
use terrace_timed::flow::{self, Block, Effect, Site};
use terrace_timed::full_speed::FullSpeed;
use terrace_timed::machine::observed::Observer;
use terrace_timed::machine::{Access, TimedMachine};
use terrace_timed::samples::{SamplePlan, Sampling};
use terrace_timed::tables::GuestWalk;
use terrace_timed::work::Work;

use crate::clock::QemuClock;
use crate::code_buffer::CodeBuffer;
use crate::host::cpu_ns;
use crate::kernel;
use crate::qemu::{self, Block as QemuBlock, Id, MemInfo};
use crate::registers::Registers;
use crate::samples::SamplePort;
use crate::turns::{self, Turns};

/// Whether blocks are reported to the machine.
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// Whether accesses are timed: not between sampling windows.
static DETAIL: AtomicBool = AtomicBool::new(true);
/// Whether samples are taken before the clock begins.
static SAMPLING: AtomicBool = AtomicBool::new(false);
/// Whether accesses are reported for them.
static OBSERVED: AtomicBool = AtomicBool::new(false);
/// Whether blocks are followed before the clock begins.
static PREPARED: AtomicBool = AtomicBool::new(false);
/// Whether samples wait to be written.
static WAITING: AtomicBool = AtomicBool::new(false);
static TIMED: AtomicPtr<Timed> = AtomicPtr::new(ptr::null_mut());
static ID: AtomicU64 = AtomicU64::new(0);

/// A program that lets so much time pass before it has caught up is not waited for.
const WAITS_NS: u64 = 20_000_000;

struct Timed {
    config: TimedConfig,
    /// `None` until it begins.
    machine: Option<TimedMachine>,
    /// Before that, where samples are taken then.
    observer: Option<Observer>,
    /// Code is translated anew for what comes before the clock begins, and has been.
    prepares: bool,
    is_prepared: bool,
    /// Time before it begins.
    full_speed: FullSpeed,
    /// The program's work, until the clock begins.
    work: Option<Work>,
    /// The beginning was marked at this time, and the program is to do more before.
    catches_up: Option<u64>,
    /// The slice in which the clock could have begun: it begins with the next.
    begins_after: Option<i64>,
    clock: QemuClock,
    /// Where processors are to take turns and have not begun.
    turns: Option<Turns>,
    /// Address range of each tier, as this QEMU reports addresses: start and bytes.
    ranges: Vec<TierRange>,
    /// If QEMU lets page tables be read: the registers, and the start of the kernel's direct map.
    registers: Option<(Registers, u64)>,
    results: File,
    /// Samples of accesses and their target, if requested.
    samples: Option<(SamplePlan, PathBuf)>,
    port: Option<SamplePort>,
    /// Set where the buffer must not fill up.
    code: Option<CodeBuffer>,
    blocks: HashSet<&'static Block>,
    sites: HashSet<&'static Site>,
    /// Entries and functions of the guest's kernel, if they are known.
    kernel: Option<Addresses>,
}

/// The data of the plug-in instance.
///
/// # Safety
/// To be called from QEMU's callbacks only, and the result dropped before the callback returns.
unsafe fn timed() -> Option<&'static mut Timed> {
    // SAFETY: made in `begin` and never freed; callbacks come from the one thread that runs all
    // processors, one at a time (the caller's promise).
    unsafe { TIMED.load(Ordering::Relaxed).as_mut() }
}

/// Prepares [`on_translate`] for a machine of this plan. A line of figures goes to the file at each
/// mark, samples go to the socket at this path. `once`: QEMU must not discard translated code.
pub fn begin(
    id: Id,
    plan: ClockPlan,
    results: File,
    socket: Option<PathBuf>,
    once: bool,
) -> Result<(), String> {
    let ClockPlan { config, ranges, direct_map, samples, work, symbols } = plan;
    if let Some(samples) = &samples {
        samples.check().map_err(|e| e.to_string())?;
    }
    if let Some(work) = &work {
        work.check().map_err(|e| e.to_string())?;
    }
    let direct_map = direct_map.filter(|_| qemu::has_registers());
    let registers =
        direct_map.map(|at| Registers::find(id).map(|found| (found, at))).transpose()?;
    TimedMachine::new(&config, 0).map_err(|e| e.to_string())?;
    let clock = QemuClock::find()?;
    let (full_speed, turns) = (FullSpeed::of(&config), Turns::find(clock, &config)?);
    let timed = Timed {
        config,
        machine: None,
        observer: None,
        prepares: false,
        is_prepared: false,
        full_speed,
        work: work.as_ref().map(Work::new),
        catches_up: None,
        begins_after: None,
        turns,
        clock,
        ranges,
        registers,
        results,
        samples: samples.zip(socket),
        port: None,
        code: once.then(CodeBuffer::find).transpose()?,
        blocks: HashSet::new(),
        sites: HashSet::new(),
        kernel: Some(Addresses::of(&symbols)).filter(Addresses::are_known),
    };
    ID.store(id, Ordering::Relaxed);
    TIMED.store(Box::into_raw(Box::new(timed)), Ordering::Release);
    Ok(())
}

/// Keeps one copy of each value for good: blocks are translated again and again.
fn kept<T: Hash + Eq>(values: &mut HashSet<&'static T>, value: T) -> &'static T {
    if let Some(kept) = values.get(&value) {
        return kept;
    }
    let kept: &'static T = Box::leak(Box::new(value));
    values.insert(kept);
    kept
}

/// Called for each block that QEMU translates.
pub extern "C" fn on_translate(_id: Id, block: *mut QemuBlock) {
    let active = ACTIVE.load(Ordering::Relaxed) || SAMPLING.load(Ordering::Relaxed);
    // SAFETY: QEMU's block is valid during this call, and so are its instructions and their bytes;
    // what is registered are numbers, and values that are never freed.
    unsafe {
        let count = qemu::qemu_plugin_tb_n_insns(block);
        let instruction = |at| qemu::qemu_plugin_tb_get_insn(block, at);
        let mut code = vec![([0; 16], 0); count];
        for (at, (bytes, size)) in code.iter_mut().enumerate() {
            *size = qemu::copy_bytes(instruction(at), bytes);
        }
        for (at, (bytes, size)) in code.iter().enumerate() {
            if *size == 8
                && let Some(mark) = Mark::of(&bytes[..8])
            {
                let mark = mark as usize as *mut c_void;
                let flags = qemu::NO_REGISTERS;
                qemu::qemu_plugin_register_vcpu_insn_exec_cb(instruction(at), on_mark, flags, mark);
            }
        }
        let Some(timed) = timed() else { return };
        if let Some(turns) = timed.turns.take() {
            turns.begin();
        }
        if !active && !PREPARED.load(Ordering::Relaxed) {
            return;
        }
        if active {
            timed.check_room_for_code();
        }
        let start = qemu::qemu_plugin_tb_vaddr(block);
        let kernel = start >> 63 != 0;
        let bytes = code.iter().map(|(bytes, size)| &bytes[..*size]);
        let mut flow = flow::analyse(bytes, kernel);
        if !active {
            let data = ptr::from_ref(kept(&mut timed.blocks, flow.block)).cast_mut().cast();
            qemu::qemu_plugin_register_vcpu_tb_exec_cb(block, on_block, qemu::NO_REGISTERS, data);
            return;
        }
        if let Some(addresses) = timed.kernel.as_ref().filter(|_| kernel) {
            let last: usize = code[..count.saturating_sub(1)].iter().map(|(_, size)| size).sum();
            flow.block.role = addresses.role(start);
            flow.block.leaves = addresses.is_return(start + last as u64);
            kernel::follow(addresses, block, start, &code, flow.block.role);
        }
        let kept_block = kept(&mut timed.blocks, flow.block);
        let data = ptr::from_ref(kept_block).cast_mut().cast();
        qemu::qemu_plugin_register_vcpu_tb_exec_cb(block, on_block, qemu::NO_REGISTERS, data);
        if timed.port.is_some() && !kernel {
            let mut address = start;
            for (site, (_, size)) in flow.sites.iter_mut().zip(&code) {
                site.instruction = address;
                address += *size as u64;
            }
        }
        for (at, (site, effect)) in flow.sites.into_iter().zip(flow.effects).enumerate() {
            let data = ptr::from_ref(kept(&mut timed.sites, site)).cast_mut().cast();
            let (flags, kinds) = (qemu::NO_REGISTERS, qemu::LOADS_AND_STORES);
            // QEMU before 8.0 keeps a pointer to the callbacks of accesses made in its own
            // functions past such an instruction that ends its block, and follows it with the next
            // interrupt of the processor: also when the full code buffer was discarded meanwhile.
            // Other cases are in `code_buffer`.
            if !flow.of_system[at] {
                let instruction = instruction(at);
                qemu::qemu_plugin_register_vcpu_mem_cb(instruction, on_access, flags, kinds, data);
            }
            let on_effect = match effect {
                Effect::None => continue,
                Effect::Halt => on_halt,
                Effect::Pause => on_pause,
                Effect::ReadClock => on_read_clock,
                Effect::FlushTranslations => on_flush,
            };
            let none = ptr::null_mut();
            qemu::qemu_plugin_register_vcpu_insn_exec_cb(instruction(at), on_effect, flags, none);
        }
    }
}

/// Calls with the machine and QEMU's clock, if there is such a processor and time is modelled.
#[inline(always)]
pub(crate) fn with(index: c_uint, call: impl FnOnce(&mut TimedMachine, &QemuClock, usize)) {
    if !ACTIVE.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: in a callback.
    let Some(timed) = (unsafe { timed() }) else { return };
    let Some(machine) = &mut timed.machine else { return };
    let cpu = index as usize;
    if cpu < machine.processors() {
        call(machine, &timed.clock, cpu);
    }
}

extern "C" fn on_block(index: c_uint, block: *mut c_void) {
    if PREPARED.load(Ordering::Relaxed) {
        // SAFETY: what `on_translate` registered, which is never freed.
        at_full_speed(index, unsafe { &*block.cast::<Block>() });
    }
    if SAMPLING.load(Ordering::Relaxed) {
        before_clock(index, block);
    }
    if WAITING.load(Ordering::Relaxed) {
        write_samples();
    }
    with(index, |machine, clock, cpu| {
        if machine.is_switch(cpu) {
            clock.add(machine.switch(cpu, clock.at_slice_ns()));
        }
        // SAFETY: what `on_translate` registered, which is never freed.
        let step = machine.block(cpu, unsafe { &*block.cast::<Block>() });
        clock.add(step.add_ns);
        if let Some(detail) = step.detail {
            DETAIL.store(detail, Ordering::Relaxed);
        }
        if step.yields {
            clock.end_slice(index);
        }
    });
}

/// Writes samples that have waited for long enough.
fn write_samples() {
    // SAFETY: in a callback.
    let Some(timed) = (unsafe { timed() }) else { return };
    let Some(port) = timed.port.as_mut().filter(|port| port.is_due(timed.clock.at_slice_ns()))
    else {
        return;
    };
    let records = match (&mut timed.machine, &mut timed.observer) {
        (Some(machine), _) => machine.waiting_records(),
        (None, Some(observer)) => observer.waiting_records(),
        (None, None) => None,
    };
    if let Some(records) = records {
        port.write(records);
    }
    WAITING.store(false, Ordering::Relaxed);
    timed.sample_as_asked();
}

/// Time and work of a block before the clock begins.
#[inline]
fn at_full_speed(index: c_uint, block: &Block) {
    // SAFETY: in a callback.
    let Some(timed) = (unsafe { timed() }) else { return };
    if timed.catches_up.is_none() {
        timed.clock.add(timed.full_speed.add_ns(block.instructions));
    } else {
        // No time passes meanwhile: what waits for the time comes behind it.
        timed.clock.add(-i64::from(block.instructions));
    }
    if turns::is_to_leave(index) {
        timed.clock.end_slice(index);
    }
    let Some(work) = &mut timed.work else { return };
    work.block(index as usize, block);
    if !work.is_behind() && timed.catches_up.take().is_some() {
        timed.begin_clock(index);
    }
}

/// A block before the clock begins, with which it may begin.
#[inline]
fn before_clock(index: c_uint, block: *mut c_void) {
    // SAFETY: in a callback.
    let Some(timed) = (unsafe { timed() }) else { return };
    if timed.begins_after.is_some_and(|slice| slice != timed.clock.slice()) {
        return timed.start(timed.clock.at_slice_ns());
    }
    if timed.catches_up.is_some() {
        // All that is executed in no time would be samples of one period.
        return OBSERVED.store(false, Ordering::Relaxed);
    }
    let (Some(observer), cpu) = (&mut timed.observer, index as usize) else { return };
    if cpu >= observer.processors() {
        return;
    }
    // SAFETY: what `on_translate` registered, which is never freed.
    if let Some(observed) = observer.block(cpu, unsafe { &*block.cast::<Block>() }) {
        OBSERVED.store(observed, Ordering::Relaxed);
    }
}

extern "C" fn on_access(index: c_uint, info: MemInfo, address: u64, site: *mut c_void) {
    let active = ACTIVE.load(Ordering::Relaxed);
    if !active && !OBSERVED.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: in a callback.
    let Some(timed) = (unsafe { timed() }) else { return };
    let cpu = index as usize;
    let (ranges, registers) = (&timed.ranges, &timed.registers);
    let tier_of = |physical: u64| ranges.iter().find_map(|range| range.find(physical));
    let place = || {
        // SAFETY: asked in the callback of the access, with what QEMU gave it.
        let physical = unsafe {
            let place = qemu::qemu_plugin_get_hwaddr(info, address);
            if place.is_null() || qemu::qemu_plugin_hwaddr_is_io(place) {
                return None;
            }
            qemu::qemu_plugin_hwaddr_phys_addr(place)
        };
        tier_of(physical)
    };
    let levels = timed.config.hardware.node.walker.levels as usize;
    let walk = || {
        let (registers, direct_map) = registers.as_ref()?;
        let (tables, lowest) = registers.walk(address, *direct_map, levels)?;
        Some(GuestWalk { tables: tables.map(tier_of), lowest })
    };
    let access = Access { address, size: 1 << qemu::size_log2(info), store: qemu::is_store(info) };
    // SAFETY: what `on_translate` registered, which is never freed.
    let site = unsafe { &*site.cast::<Site>() };
    let records = if active {
        let Some(machine) = timed.machine.as_mut().filter(|machine| cpu < machine.processors())
        else {
            return;
        };
        if !DETAIL.load(Ordering::Relaxed) {
            return machine.warm(cpu, access, place, walk);
        }
        // An access to a device may wake another processor.
        if !machine.access_walked(cpu, site, access, place, walk) && machine.processors() > 1 {
            timed.clock.end_slice(index);
        }
        machine.records()
    } else {
        let Some(observer) = timed.observer.as_mut().filter(|machine| cpu < machine.processors())
        else {
            return;
        };
        observer.access(cpu, (site, access), timed.clock.at_slice_ns(), place, walk);
        observer.records()
    };
    if let (Some(records), Some(port)) = (records, &mut timed.port) {
        let waits = port.add(records, timed.clock.at_slice_ns());
        WAITING.store(waits, Ordering::Relaxed);
        if !waits {
            timed.sample_as_asked();
        }
    }
}

extern "C" fn on_halt(index: c_uint, _data: *mut c_void) {
    with(index, |machine, clock, cpu| clock.add(machine.halt(cpu)));
}

extern "C" fn on_pause(index: c_uint, _data: *mut c_void) {
    with(index, |machine, _, cpu| machine.pause(cpu));
}

extern "C" fn on_read_clock(index: c_uint, _data: *mut c_void) {
    with(index, |machine, clock, cpu| clock.add(machine.read_clock(cpu)));
}

extern "C" fn on_flush(index: c_uint, _data: *mut c_void) {
    if OBSERVED.load(Ordering::Relaxed)
        // SAFETY: in a callback.
        && let Some(timed) = unsafe { timed() }
        && let Some(observer) = &mut timed.observer
        && (index as usize) < observer.processors()
    {
        observer.flush_translations(index as usize);
    }
    with(index, |machine, _, cpu| machine.flush_translations(cpu));
}

extern "C" fn on_mark(index: c_uint, mark: *mut c_void) {
    let mark = Mark::of_number(mark as u64);
    // SAFETY: in a callback.
    let Some(timed) = (unsafe { timed() }) else { return };
    match mark {
        Mark::Begin if timed.machine.is_some() => {}
        Mark::Begin if timed.work.as_ref().is_some_and(Work::is_behind) => {
            timed.catches_up = Some(timed.clock.at_slice_ns());
        }
        Mark::Begin => timed.begin_clock(index),
        Mark::Sample if timed.is_prepared || timed.machine.is_some() => {}
        Mark::Sample => {
            timed.prepares = true;
            // SAFETY: QEMU's function; its callback lives as long as QEMU.
            unsafe { qemu::qemu_plugin_reset(ID.load(Ordering::Relaxed), on_begin) };
        }
        Mark::Period => {
            if let Some(work) = &mut timed.work {
                work.begin();
            }
            // Time passes only if nothing runs: the program waits for it.
            if timed.catches_up.is_some_and(|at| timed.clock.at_slice_ns() > at + WAITS_NS) {
                timed.catches_up = None;
                timed.begin_clock(index);
            }
            timed.note(mark);
        }
        // Translated code stays. QEMU before 8.0 keeps a pointer to the callbacks of accesses of
        // the block that ran last and uses it for an interrupt's own accesses, even after they are
        // freed.
        Mark::End => {
            timed.note(mark);
            ACTIVE.store(false, Ordering::Relaxed);
            PREPARED.store(false, Ordering::Relaxed);
        }
    }
}

/// No processor runs, and all translated code is discarded.
extern "C" fn on_begin(id: Id) {
    // SAFETY: in a callback.
    if let Some(timed) = unsafe { timed() } {
        if timed.prepares {
            timed.prepare();
        } else {
            timed.start(timed.clock.now_ns());
        }
    }
    // SAFETY: a function of QEMU with the signature that it documents.
    unsafe { qemu::qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate) };
}

impl Timed {
    /// Ends QEMU where it would have to discard translated code, and must not.
    fn check_room_for_code(&self) {
        if let Some(bytes) = self.code.as_ref().and_then(CodeBuffer::nearly_full) {
            fail(&format!(
                "the {} MiB of translated code that this QEMU can have are used up, and with several \
                 processors it cannot discard it; give the machine one (--cpus 1) or a QEMU since 8.0, \
                 or have it do less",
                bytes >> 20
            ));
        }
    }

    /// From now on instructions take cycles, work is counted, and samples are taken if they are asked for;
    /// the clock begins later.
    fn prepare(&mut self) {
        (self.prepares, self.is_prepared) = (false, true);
        PREPARED.store(true, Ordering::Relaxed);
        let Some((plan, socket)) = &self.samples else { return };
        let Some(observation) = plan.before_clock else { return };
        match (Observer::new(&self.config, observation, plan), SamplePort::connect(socket)) {
            (Ok(observer), Ok(port)) => {
                (self.observer, self.port) = (Some(observer), Some(port));
            }
            (Err(error), _) => return fail(&error.to_string()),
            (_, Err(error)) => return fail(&error),
        }
        SAMPLING.store(true, Ordering::Relaxed);
    }

    /// Takes as many samples as the guest has asked for.
    fn sample_as_asked(&mut self) {
        let asked = self.port.as_mut().and_then(SamplePort::asked).filter(|asked| *asked > 0);
        let Some(accesses) = asked else { return };
        self.observer.iter_mut().for_each(|observer| observer.sample_one_in(accesses));
        self.machine.iter_mut().for_each(|machine| machine.sample_one_in(accesses));
        // Of the machine that is to begin.
        self.samples.iter_mut().for_each(|(plan, _)| plan.accesses_per_sample = accesses);
    }

    /// The clock begins as soon as it can.
    fn begin_clock(&mut self, index: c_uint) {
        if self.observer.is_some() {
            // The code that is there serves, and a block that is under way is not of the clock.
            self.begins_after = Some(self.clock.slice());
            self.clock.end_slice(index);
        } else {
            // SAFETY: QEMU's function; its callback lives as long as QEMU.
            unsafe { qemu::qemu_plugin_reset(ID.load(Ordering::Relaxed), on_begin) };
        }
    }

    /// The clock begins at this time.
    fn start(&mut self, now_ns: u64) {
        SAMPLING.store(false, Ordering::Relaxed);
        OBSERVED.store(false, Ordering::Relaxed);
        PREPARED.store(false, Ordering::Relaxed);
        (self.observer, self.catches_up) = (None, None);
        if !self.clock.counts_instructions() {
            return fail(
                "the clock of this machine counts no instructions; start it with 'terrace lab --clock memory'",
            );
        }
        match TimedMachine::new(&self.config, now_ns) {
            Ok(machine) => self.machine = Some(machine),
            Err(error) => return fail(&error.to_string()),
        }
        if let Some(machine) = self.machine.as_mut().filter(|_| self.kernel.is_some()) {
            machine.know_causes();
        }
        if let (Some((plan, socket)), Some(machine)) = (self.samples.take(), &mut self.machine) {
            if self.port.is_none() {
                match SamplePort::connect(&socket) {
                    Ok(port) => self.port = Some(port),
                    Err(error) => return fail(&error),
                }
            }
            machine.sample(Sampling::new(plan));
        }
        if let (Some(work), Some(machine)) = (self.work.take(), &mut self.machine) {
            machine.follow_work(work);
        }
        turns::end();
        self.note(Mark::Begin);
        ACTIVE.store(true, Ordering::Relaxed);
    }

    /// Writes a line of figures.
    fn note(&mut self, mark: Mark) {
        let Some(machine) = &self.machine else { return };
        let name = match mark {
            Mark::Begin => "begin",
            Mark::Period => "period",
            Mark::End => "end",
            Mark::Sample => "sample",
        };
        let line = serde_json::json!({
            "mark": name,
            "figures": machine.figures(),
            "work": machine.work(),
            "host_cpu_ns": cpu_ns(),
        });
        if let Err(error) = self.results.write_all(format!("{line}\n").as_bytes()) {
            eprintln!("terrace recorder: the clock's figures were not written: {error}");
        }
    }
}

/// Ends QEMU: a wrong clock is worse than no machine.
fn fail(message: &str) {
    eprintln!("terrace recorder: {message}");
    std::process::exit(1);
}
