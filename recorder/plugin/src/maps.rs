//! The process's memory map and command line.
//!
//! QEMU maps the program's memory into its own process at the program's own addresses, so the
//! process's map is the program's and QEMU's together. QEMU puts the program below 0x5000_0000_0000;
//! the kernel puts QEMU above.

use std::fs;
use std::sync::atomic::Ordering;

use terrace_recorder::shared::Content;

use crate::thread::{Process, Thread};

const FIRST_OF_QEMU: u64 = 0x5000_0000_0000;

/// Sends the map, and before it the command line, unless they were sent.
pub fn send_first(thread: &mut Thread) {
    let process = thread.process();
    if !process.mapped.swap(true, Ordering::Relaxed) {
        let command = if process.forked.load(Ordering::Relaxed) { Vec::new() } else { command() };
        process.send(Content::Command, thread.time(), &command);
        process.send(Content::Maps, thread.time(), map(process).as_bytes());
    }
}

/// Sends the map.
pub fn send(thread: &mut Thread) {
    send_first(thread);
    let process = thread.process();
    process.send(Content::Maps, thread.time(), map(process).as_bytes());
}

/// QEMU's own arguments, and after them the program's argument 0, its file, and the rest.
pub fn arguments() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let all = fs::read("/proc/self/cmdline").unwrap_or_default();
    let all = all.strip_suffix(b"\0").unwrap_or(&all);
    let mut qemu: Vec<Vec<u8>> = all.split(|b| *b == 0).map(<[u8]>::to_vec).collect();
    let at = qemu.iter().position(|a| a == b"-0").map_or(qemu.len(), |at| at + 1);
    let program = qemu.split_off(at);
    (qemu, program)
}

fn command() -> Vec<u8> {
    let (_, program) = arguments();
    let mut command = Vec::new();
    for (i, argument) in program.iter().enumerate() {
        // The map has the file's name.
        if i != 1 {
            command.extend_from_slice(argument);
            command.push(0);
        }
    }
    command
}

fn map(process: &Process) -> String {
    let text = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let [heap_start, heap_end] = [0, 1].map(|i: usize| process.heap[i].load(Ordering::Relaxed));
    let stack = process.stack.load(Ordering::Relaxed);
    let mut map = String::new();
    for line in text.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let Some((start, end)) = range else { continue };
        let parse = |text| u64::from_str_radix(text, 16).unwrap_or(u64::MAX);
        let (start, end) = (parse(start), parse(end));
        if start >= FIRST_OF_QEMU {
            continue;
        }
        map.push_str(line.trim_end());
        if line.split_whitespace().count() == 5 {
            if (start..end).contains(&stack) {
                map.push_str(" [stack]");
            } else if start < heap_end && end > heap_start {
                map.push_str(" [heap]");
            }
        }
        map.push('\n');
    }
    map
}
