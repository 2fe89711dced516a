//! Speeds, for people to read; nothing is asserted that depends on the machine. Run with `cargo
//! test --release -p terrace-workloads programs::measure -- --ignored --nocapture`.

use std::hint::black_box;
use std::time::Instant;

use serde_json::json;

use super::shared::random;
use super::sink::Counter;
use super::{Params, REGISTRY, run_native, trace};

const FOOTPRINT_BYTES: u64 = 512 << 20;
const TURNS: usize = 5;

/// The best times of two, in turns, so that both run beside the same load.
fn best(mut one: impl FnMut() -> f64, mut other: impl FnMut() -> f64) -> (f64, f64) {
    (0..TURNS).fold((f64::INFINITY, f64::INFINITY), |(a, b), _| (a.min(one()), b.min(other())))
}

fn seconds(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    began.elapsed().as_secs_f64()
}

fn main_phase(name: &str, options: serde_json::Value) -> f64 {
    let params = Params { options, ..Params::new(FOOTPRINT_BYTES, 1) };
    run_native(name, &params).unwrap().duration_s
}

#[test]
#[ignore = "measures"]
fn gups_against_plain_indexing() {
    let words = (FOOTPRINT_BYTES / 8) as usize;
    let mut table: Vec<u64> = (0..words as u64).collect();
    let sequence = random::Sequence::of(black_box(1));
    let plain = || {
        seconds(|| {
            for i in 0..words {
                let word = sequence.at(i as u64);
                table[random::below(word, words)] ^= word;
            }
            black_box(&table);
        })
    };
    let (plain, program) = best(plain, || main_phase("gups", json!({"updates_per_word": 1})));
    let mups = |s: f64| words as f64 / s / 1e6;
    println!(
        "gups: {:.1} million updates/s, plain indexing {:.1}: {:.3} x the time",
        mups(program),
        mups(plain),
        program / plain
    );
}

#[test]
#[ignore = "measures"]
#[expect(clippy::manual_memcpy, reason = "the loop is what is measured")]
fn stream_against_plain_indexing() {
    let n = (FOOTPRINT_BYTES / 24) as usize;
    let (mut a, mut b, mut c) = (vec![1.0f64; n], vec![2.0f64; n], vec![0.0f64; n]);
    let plain = || {
        seconds(|| {
            for i in 0..n {
                c[i] = a[i];
            }
            for i in 0..n {
                b[i] = 3.0 * c[i];
            }
            for i in 0..n {
                c[i] = a[i] + b[i];
            }
            for i in 0..n {
                a[i] = b[i] + 3.0 * c[i];
            }
            black_box((&a, &b, &c));
        })
    };
    let (plain, program) = best(plain, || main_phase("stream", json!({"iterations": 1})));
    let gbps = |s: f64| 80.0 * n as f64 / s / 1e9;
    println!(
        "stream: {:.1} GB/s, plain indexing {:.1}: {:.3} x the time",
        gbps(program),
        gbps(plain),
        program / plain
    );
}

#[test]
#[ignore = "measures"]
fn references_per_second() {
    for kind in REGISTRY {
        let params = Params::new(32 << 20, 1);
        let mut counter = Counter::default();
        let mut program = None;
        let traced = seconds(|| program = trace(kind.name, &params, &mut counter).unwrap());
        let native = seconds(|| drop(run_native(kind.name, &params).unwrap()));
        let references = (counter.loads + counter.stores) as f64;
        println!(
            "{:9} {:7.1} million references, {:5.1} % stores, {:4.2} instructions each, {:6.1} million/s; native {:6.2} s",
            kind.name,
            references / 1e6,
            100.0 * counter.stores as f64 / references,
            counter.instructions as f64 / references,
            references / traced / 1e6,
            native
        );
    }
}
