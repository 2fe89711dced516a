//! `terrace replay`: a recording against the policies again.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use terrace_core::InputError;
use terrace_recordings::period::PeriodReader;
use terrace_simulated::replay::{InitialPlacement, replay_placement, replay_plans};

use crate::show::{Format, say};

/// Mismatches shown before the rest is only counted.
const SHOWN: usize = 10;

/// Check that the policies repeat the decisions of a recording.
///
/// Feeds the recorded scans to fresh policies and compares their decisions, period by period and
/// page by page. Exits with 1 when a decision differs. With --placement the simulated machine also moves the
/// pages itself, from the recorded accesses alone, and shows how far its placement follows the
/// recorded one: pages that a live machine could not move are where the two part.
#[derive(Args)]
pub struct Arguments {
    /// The recording (.trec), as runs write them into DIR/recordings.
    #[arg(value_name = "RECORDING")]
    recording: PathBuf,
    /// Compare placements too.
    #[arg(long)]
    placement: bool,
    /// Format of the answer.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

impl Arguments {
    /// Replays.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let mut reader = PeriodReader::open(&self.recording).map_err(InputError::new)?;
        if !reader.is_whole().map_err(InputError::new)? {
            return Err(InputError::new(format_args!(
                "{}: the recording was cut off; expected a finished one, run the experiment again",
                self.recording.display()
            ))
            .into());
        }
        let header = reader.header().clone();
        let plans = replay_plans(reader.records()).map_err(InputError::new)?;
        let mut placements = Vec::new();
        if self.placement {
            for group in &header.groups {
                let initial = InitialPlacement::Recorded;
                let replay = replay_placement(&self.recording, &group.name, initial)
                    .map_err(InputError::new)?;
                placements.push((group.name.clone(), replay));
            }
        }
        match self.format {
            Format::Json => {
                let placements: Vec<_> = placements
                    .iter()
                    .map(|(group, p)| {
                        json!({
                            "group": group,
                            "compared_periods": p.compared_periods,
                            "differing_periods": p.differing_periods,
                            "mean_differing_ratio": p.mean_differing_ratio,
                        })
                    })
                    .collect();
                let answer = json!({
                    "machine": header.machine,
                    "experiment": header.experiment,
                    "compared_periods": plans.compared_periods,
                    "mismatches": plans.mismatches.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    "placements": placements,
                });
                say!("{}", serde_json::to_string_pretty(&answer)?)?;
            }
            Format::Text => {
                let policies: Vec<_> = header.groups.iter().map(|g| g.policy.as_str()).collect();
                say!(
                    "{} periods of '{}' on machine '{}' under {}: {} decisions differ",
                    plans.compared_periods,
                    header.experiment,
                    header.machine,
                    policies.join(", "),
                    plans.mismatches.len()
                )?;
                for mismatch in plans.mismatches.iter().take(SHOWN) {
                    say!("  {mismatch}")?;
                }
                for (group, p) in &placements {
                    say!(
                        "placement of '{group}': {} of {} periods differ, {:.2} % of pages on average",
                        p.differing_periods,
                        p.compared_periods,
                        100.0 * p.mean_differing_ratio
                    )?;
                }
            }
        }
        let same = plans.mismatches.is_empty();
        Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
