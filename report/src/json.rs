//! The table of runs as JSON, for `--format json`.
//!
//! The keys are stable: they are added to, never renamed. The value is an object with
//!
//! | key | value |
//! |---|---|
//! | `format` | `"terrace.runs/1"`; the number changes when a key changes its meaning |
//! | `runs` | an array with an object per run and group, in the order of the results |
//!
//! and an object of `runs` has
//!
//! | key | value |
//! |---|---|
//! | `run`, `experiment`, `machine`, `policy`, `group`, `workload` | text |
//! | `kernel`, `tracker`, `mover`, `notes` | text or null |
//! | `parameters` | the policy's parameters: an object (text, where it was not valid JSON) |
//! | `page_size_bytes`, `period_ms`, `seed`, `periods`, `lost_periods`, `pages_max` | integer |
//! | `period_us` | integer where the period is given in us (`period_ms` is 0 then), or null |
//! | `fast_ratio` | fast memory over the group's memory, 0 to 1 |
//! | `hit_ratio` | accessed pages in fast memory over accessed pages, 0 to 1, or null |
//! | `access_hit_ratio` | exact share of accesses that fast memory served in the second half, or null |
//! | `migrated_bytes` | bytes that the kernel moved, or null |
//! | `accessed_ratio` | accessed pages over pages, 0 to 1, or null |
//! | `stability` | pages that stayed in their tier over pages, 0 to 1, or null |
//! | `applied` | `{policy, share}`: what was applied most, with its share of the periods |
//! | `promoted_pages`, `demoted_pages`, `exchanged_pairs`, `migration_operations` | integer |
//! | `failed_pages` | an object: `total`, then a key per reason ([`FAILURE_REASONS`]), integers |
//! | `tracker_cpu_ms`, `daemon_cpu_ms`, `operations_per_s`, `duration_ms` | number or null |
//! | `duration_error_ms`, `sampled_ratio` | with sampling windows, half the 95 % interval of the run time, and the part of all instructions timed in detail; number or null |
//! | `operations` | integer or null |
//! | `latency_us` | `{p50, p99}`: times from a request to its answer; numbers or null |
//! | `slowdown` | run time over that with all memory fast and nothing moved, or null |
//! | `slowdown_of`, `slowdown_instructions` | what it is of (`run time`, `an operation`, `the same instructions`, `an instruction`), and how many of the same instructions; or null |
//! | `stalls` | `{walk_ms, fast_ms, slow_ms, kernel_ms}`: what processors waited for, and were busy in the kernel; numbers or null |
//! | `misses_fast` | `{program, kernel}`: of accesses that missed the last level, the share that was of fast memory; numbers or null |
//! | `loaded_latency_ns` | `{fast, slow}`: mean latency of a line beyond the caches; numbers or null |
//! | `clock` | what a virtual machine's clocks counted, or null for the host's time |
//! | `checksum_ok` | whether the program's data was intact, or null where it was not checked |
//! | `emulated` | whether times are those of emulation and not of hardware |

use serde_json::{Map, Value, json};
use terrace_results::RunRow;

use crate::results::{FAILURE_REASONS, Moves, Results};

/// The table of runs as JSON. What was not measured, or could not be computed, is null.
pub fn json(results: &Results) -> Value {
    json!({
        "format": "terrace.runs/1",
        "runs": results.runs.iter().map(run).collect::<Vec<_>>(),
    })
}

fn run(run: &RunRow) -> Value {
    let mut failed = Map::new();
    failed.insert("total".to_owned(), json!(run.failed_pages()));
    for (reason, pages) in FAILURE_REASONS.iter().zip(run.failures()) {
        failed.insert((*reason).to_owned(), json!(pages));
    }
    // serde_json writes NaN and infinities as null.
    let mut object = json!({
        "run": run.run,
        "experiment": run.experiment,
        "machine": run.machine,
        "kernel": run.kernel,
        "tracker": run.tracker,
        "mover": run.mover,
        "policy": run.policy,
        "parameters": parameters(run),
        "group": run.group,
        "workload": run.workload,
        "page_size_bytes": run.page_size_bytes,
        "period_ms": run.period_ms,
        "seed": run.seed,
        "fast_ratio": run.fast_ratio,
        "periods": run.periods,
        "lost_periods": run.lost_periods,
        "pages_max": run.pages_max,
        "hit_ratio": run.hit_ratio,
        "access_hit_ratio": run.access_hit_ratio,
        "migrated_bytes": run.migrated_bytes,
        "accessed_ratio": run.accessed_ratio,
        "stability": run.stability,
        "applied": { "policy": run.applied_main, "share": run.applied_main_share },
        "promoted_pages": run.promoted_pages,
        "demoted_pages": run.demoted_pages,
        "exchanged_pairs": run.exchanged_pairs,
        "migration_operations": run.migration_operations,
        "failed_pages": failed,
        "tracker_cpu_ms": run.tracker_cpu_ms,
        "daemon_cpu_ms": run.daemon_cpu_ms,
        "operations": run.operations,
        "operations_per_s": run.operations_per_s,
        "latency_us": { "p50": run.latency_p50_us, "p99": run.latency_p99_us },
        "duration_ms": run.duration_ms,
        "slowdown": run.slowdown,
        "stalls": {
            "walk_ms": run.walk_stall_ms,
            "fast_ms": run.fast_stall_ms,
            "slow_ms": run.slow_stall_ms,
            "kernel_ms": run.kernel_ms,
        },
        "loaded_latency_ns": { "fast": run.fast_loaded_ns, "slow": run.slow_loaded_ns },
        "clock": run.clock,
        "checksum_ok": run.checksum_ok,
        "emulated": run.emulated,
        "notes": run.notes,
    });
    object["period_us"] = json!(run.period_us);
    object["slowdown_of"] = json!(run.slowdown_of);
    object["slowdown_instructions"] = json!(run.slowdown_instructions);
    object["misses_fast"] =
        json!({ "program": run.program_hit_ratio, "kernel": run.kernel_hit_ratio });
    object["duration_error_ms"] = json!(run.duration_error_ms);
    object["sampled_ratio"] = json!(run.sampled_ratio);
    object
}

/// The parameters as a value; null when there are none.
pub(crate) fn parameters(run: &RunRow) -> Value {
    if run.parameters.trim().is_empty() {
        return Value::Null;
    }
    serde_json::from_str(&run.parameters).unwrap_or_else(|_| Value::String(run.parameters.clone()))
}
