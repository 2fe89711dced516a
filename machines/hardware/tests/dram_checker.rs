//! No timing constraint is ever violated: a checker that shares no rule with the model checks every
//! command of varied traffic on varied configurations. And the checker is itself checked: each
//! timing made one cycle shorter in the model alone must be found.

use proptest::prelude::*;
use terrace_hardware::dram::channel::Logged;
use terrace_hardware::dram::checker::check;
use terrace_hardware::dram::config::{DramConfig, PagePolicy, Scheduler, Timing};
use terrace_hardware::dram::presets;
use terrace_hardware::dram::system::Dram;
use terrace_hardware::dram::traffic::{Load, Pattern, Traffic, run};
use terrace_hardware::units::Bytes;

fn log_of(config: &DramConfig, traffic: &Traffic) -> Vec<Vec<Logged>> {
    let mut dram = Dram::new(config).unwrap();
    dram.keep_log();
    let (_, dram) = run(dram, config, traffic).unwrap();
    (0..config.organization.channels as usize).map(|c| dram.log(c).to_vec()).collect()
}

fn traffic(pattern: Pattern, read_share: f64, load: Load, requests: u64) -> Traffic {
    Traffic { read_share, requests, warm_up: 0, ..Traffic::reads(pattern, load) }
}

fn assert_clean(config: &DramConfig, traffic: &Traffic) {
    for log in log_of(config, traffic) {
        assert!(log.len() > 1 || traffic.requests < 100);
        let violations = check(config, &log, 3);
        assert!(violations.is_empty(), "{:?}\n{violations:?}", config.controller);
    }
}

#[test]
fn busy_presets_violate_nothing() {
    for name in presets::names() {
        for ranks in [1, 2] {
            let mut config = presets::by_name(name).unwrap();
            config.organization.ranks = ranks;
            for pattern in [Pattern::Random, Pattern::Sequential] {
                for read_share in [1.0, 0.7, 0.3] {
                    assert_clean(
                        &config,
                        &traffic(pattern, read_share, Load::Outstanding(64), 5_000),
                    );
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn no_configuration_violates_its_own_timings(
        preset in prop::sample::select(presets::names().collect::<Vec<_>>()),
        ranks in 1u32..4,
        policy in prop::sample::select(vec![PagePolicy::Open, PagePolicy::Closed, PagePolicy::Timeout]),
        scheduler in prop::sample::select(vec![Scheduler::FrFcfs, Scheduler::Fcfs]),
        scale in prop::collection::vec(0.3f64..3.0, 20),
        read_share in 0.0f64..=1.0,
        sequential in any::<bool>(),
        offered in prop::option::of(0.5f64..60.0),
        footprint_mb in 1u64..512,
        postpone in 0u32..=8,
        seed in any::<u64>(),
    ) {
        let mut config = presets::by_name(preset).unwrap();
        config.organization.ranks = ranks;
        config.controller.page_policy = policy;
        config.controller.scheduler = scheduler;
        config.controller.refresh_postpone = postpone;
        for ((_, get), scale) in FIELDS.iter().zip(scale) {
            let value = get(&mut config.timing);
            *value = ((f64::from(*value) * scale) as u32).max(1);
        }
        let load = offered.map_or(Load::Outstanding(40), Load::OfferedGbPerS);
        let pattern = if sequential { Pattern::Sequential } else { Pattern::Random };
        let traffic = Traffic {
            footprint: Some(Bytes::mib(footprint_mb)),
            seed,
            ..traffic(pattern, read_share, load, 1_500)
        };
        assert_clean(&config, &traffic);
    }
}

type Field = (&'static str, fn(&mut Timing) -> &mut u32);

/// Every timing that is a rule between commands, with the rule's name in the checker.
const FIELDS: [Field; 20] = [
    ("tRCD", |t| &mut t.rcd),
    ("tRP", |t| &mut t.rp),
    ("tRAS", |t| &mut t.ras),
    ("tRC", |t| &mut t.rc),
    ("tRRD_S", |t| &mut t.rrd_s),
    ("tRRD_L", |t| &mut t.rrd_l),
    ("tFAW", |t| &mut t.faw),
    ("tCCD_S", |t| &mut t.ccd_s),
    ("tCCD_L", |t| &mut t.ccd_l),
    ("tCCD_L_WR", |t| &mut t.ccd_l_wr),
    ("tWTR_S", |t| &mut t.wtr_s),
    ("tWTR_L", |t| &mut t.wtr_l),
    ("tRTP", |t| &mut t.rtp),
    ("tWR", |t| &mut t.wr),
    ("read to write", |t| &mut t.read_to_write_gap),
    ("tRTRS", |t| &mut t.rank_switch_gap),
    ("tRFC", |t| &mut t.rfc),
    ("the command bus", |t| &mut t.act_command_cycles),
    ("the command bus", |t| &mut t.column_command_cycles),
    ("tRTP + tRP", |t| &mut t.rtp),
];

#[test]
fn the_checker_finds_every_timing_that_is_a_cycle_short() {
    for (rule, get) in FIELDS {
        let mut found = false;
        // Some rules bind only in some traffic: dense enough rows, writes, ranks, closed pages.
        'search: for policy in [PagePolicy::Open, PagePolicy::Closed] {
            for (pattern, read_share, footprint) in [
                (Pattern::Random, 1.0, Bytes::gib(8)),
                (Pattern::Random, 0.5, Bytes::gib(8)),
                (Pattern::Sequential, 0.5, Bytes::gib(8)),
                (Pattern::Random, 0.5, Bytes::kib(64)),
                (Pattern::Random, 0.5, Bytes::mib(1)),
            ] {
                let mut right = presets::by_name("ddr5-4800").unwrap();
                right.organization.ranks = 2;
                right.controller.page_policy = policy;
                // Longer than the rule that hides it, so that this rule binds.
                let lengthen = match rule {
                    "tRC" | "tFAW" => 20,
                    "tRRD_L" | "tWTR_L" | "tWTR_S" | "tRRD_S" | "tCCD_S" | "tCCD_L_WR" => 6,
                    "the command bus" => 4,
                    _ => 0,
                };
                *get(&mut right.timing) += lengthen;
                let mut wrong = right.clone();
                *get(&mut wrong.timing) -= 1;
                let traffic = Traffic {
                    footprint: Some(footprint),
                    ..traffic(pattern, read_share, Load::Outstanding(64), 4_000)
                };
                for log in log_of(&wrong, &traffic) {
                    assert!(check(&wrong, &log, 1).is_empty());
                    found |= check(&right, &log, 50).iter().any(|v| v.rule == rule);
                }
                if found {
                    break 'search;
                }
            }
        }
        assert!(found, "{rule} one cycle short was not found");
    }
}

#[test]
fn the_checker_finds_commands_out_of_state() {
    let config = presets::by_name("ddr4-2400").unwrap();
    let load = Load::Outstanding(8);
    let log = log_of(&config, &traffic(Pattern::Random, 0.8, load, 2_000)).remove(0);
    assert!(check(&config, &log, 1).is_empty());
    for (i, _) in log.iter().enumerate().skip(50).step_by(97) {
        // Without its activation or precharge, or with another row, some rule is violated.
        let mut without = log.clone();
        let gone = without.remove(i);
        if gone.command == terrace_hardware::dram::constraint::Command::Act {
            assert!(!check(&config, &without, 1).is_empty());
        }
        let mut other_row = log.clone();
        if other_row[i].command.is_column() {
            other_row[i].row ^= 1;
            assert!(!check(&config, &other_row, 1).is_empty());
        }
    }
    // A rank that is never refreshed.
    let mut config = config;
    config.controller.refresh = false;
    let quiet = traffic(Pattern::Random, 1.0, Load::OfferedGbPerS(0.5), 2_000);
    let mut log = log_of(&config, &quiet).remove(0);
    let last = *log.last().unwrap();
    log.push(Logged {
        cycle: last.cycle + 1_000,
        command: terrace_hardware::dram::constraint::Command::Prea,
        ..last
    });
    log.push(Logged {
        cycle: last.cycle + 2_000,
        command: terrace_hardware::dram::constraint::Command::Ref,
        bank: 0,
        row: 0,
    });
    assert!(check(&config, &log, 9).iter().any(|v| v.rule == "tREFI"));
}
