//! Prints the model's time per reference, in processor time: other work on the machine does not
//! count.

use std::time::Instant;

use terrace_core::page::PageSize;
use terrace_hardware::presets;
use terrace_hardware::speed::Workbench;

/// Time this thread has run, in nanoseconds; wall time where Linux does not report it.
fn processor_ns(started: Instant) -> u64 {
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or_else(|| started.elapsed().as_nanos() as u64)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut only: Vec<String> = std::env::args().skip(1).collect();
    let runs_only =
        only.iter().position(|o| o.starts_with("--")).map(|i| only.remove(i)[2..].to_string());
    let started = Instant::now();
    println!(
        "{:28} {:10} {:>6} {:>9} {:>10} {:>9}",
        "machine", "references", "pages", "ns/ref", "Mrefs/s", "sim ns/ref"
    );
    for name in presets::names() {
        if !only.is_empty() && !only.iter().any(|o| name.contains(o.as_str())) {
            continue;
        }
        let machine = presets::by_name(name)?;
        type Run = fn(&mut Workbench, u64);
        let runs: [(&str, Run, u64); 3] = [
            ("friendly", Workbench::friendly, 20_000_000),
            ("stream", Workbench::stream, 10_000_000),
            ("random", Workbench::random, 2_000_000),
        ];
        for (what, run, references) in runs {
            if runs_only.as_ref().is_some_and(|o| o != what) {
                continue;
            }
            for (pages, size) in [("4K", PageSize::Base), ("2M", PageSize::Huge)] {
                let mut bench = Workbench::new(&machine, 512 << 20, size)?;
                run(&mut bench, references / 2);
                let (from, simulated) = (processor_ns(started), bench.node.core(0).now());
                run(&mut bench, references);
                let ns = (processor_ns(started) - from) as f64 / references as f64;
                let simulated = bench.node.core(0).now().since(simulated).as_ns();
                println!(
                    "{name:28} {what:10} {pages:>6} {ns:9.1} {:10.2} {:9.1}",
                    1000.0 / ns,
                    simulated / references as f64
                );
            }
        }
    }
    Ok(())
}
