//! Corrections of an answer by its check.
//!
//! Prediction and measurement differ by some points, and they differ by about as much at a share
//! nearby. So the least share is searched again with the target moved by the difference, and run
//! again, until the measured slowdown is near the target. A share at or below one that failed, or
//! at or above one that met the target, is not run. The answer is the least share that met it.

use crate::check::Checked;
use crate::plan::{Plan, Recommended, Request};
use crate::player::{CurvePoint, Fixed, Player, least_share};
use crate::recording::Recording;
use crate::words::percent_over;

/// Tolerance within which the measured slowdown of a refined answer should be near the target, in
/// slowdown.
const NEAR: f64 = 0.004;

/// Runs a share in a round under a policy: its slowdown.
pub(crate) type Measure<'a> = dyn FnMut(u64, &str, f64) -> anyhow::Result<f64> + 'a;

/// Runs the recommendation for a program, and up to `rounds` corrections of it. The recommendation
/// is changed to the least share that met the target, or to the last where none did.
pub(crate) fn refine(
    plan: &mut Plan,
    request: &Request,
    program: usize,
    rounds: u64,
    measure: &mut Measure<'_>,
) -> anyhow::Result<Vec<Checked>> {
    let target = plan.target;
    let mut rows: Vec<Checked> = Vec::new();
    let mut run: Vec<Recommended> = Vec::new();
    let planned = plan.recommended[program].clone();
    let mut chosen = planned.clone();
    // The share's slowdown at interval fidelity, without any correction.
    let mut uncorrected = chosen.point.slowdown;
    for round in 0..=rounds {
        let share = chosen.point.share;
        if share >= 1.0 {
            break;
        }
        let measured = measure(round, &chosen.policy, share)?;
        rows.push(Checked {
            program: chosen.program.clone(),
            policy: chosen.policy.clone(),
            round,
            share,
            predicted: chosen.point.slowdown,
            measured,
        });
        run.push(chosen.clone());
        if round == rounds || (measured - target).abs() <= NEAR {
            break;
        }
        let next = correct(plan, request, program, &chosen, &rows, measured - uncorrected)?;
        let Some((next, next_uncorrected)) = next else { break };
        (chosen, uncorrected) = (next, next_uncorrected);
    }
    let met = rows.iter().zip(run).filter(|(row, _)| meets(row, target));
    let least = met.min_by(|a, b| a.0.share.total_cmp(&b.0.share)).map(|(_, run)| run);
    if rounds > 0 && least.is_none() && chosen.point.share < 1.0 {
        plan.warnings.extend(rows.last().map(|last| not_met(last, target)));
    }
    plan.recommended[program] = least.unwrap_or(chosen);
    if plan.recommended[program] != planned {
        plan.follow(request, program)?;
    }
    Ok(rows)
}

/// The next recommendation to run, and its slowdown at interval fidelity; `off` is how far the
/// last one was from that.
fn correct(
    plan: &Plan,
    request: &Request,
    program: usize,
    chosen: &Recommended,
    rows: &[Checked],
    off: f64,
) -> anyhow::Result<Option<(Recommended, f64)>> {
    let recording = &request.recordings[program];
    let fixed = Fixed::of(recording, request);
    let machine = &request.machines[plan.machine];
    let mut player = Player::new(recording, machine, &chosen.policy, &fixed, 1);
    let (wanted, at_most) = (plan.target - off, request.fast_at_most);
    let resolution = 0.2 * request.resolution;
    // Where the prediction is off by more than the target allows, no share would be predicted so.
    let predicted = match wanted > 1.0 {
        true => least_share(&mut player, wanted, at_most, resolution)?,
        false => None,
    };
    // Within a bound that may be too tight, the most is the best there is.
    let share = predicted.as_ref().map(|p| p.share).or((wanted > 1.0).then_some(at_most));
    let Some(share) = next_share(share, rows, plan.target, at_most, resolution) else {
        return Ok(None);
    };
    if let Some(point) = predicted.filter(|point| point.share == share) {
        let uncorrected = point.slowdown;
        let next = corrected(chosen, point, off, plan.target, recording);
        return Ok(Some((next, uncorrected)));
    }
    // Between shares that were run the measured slowdown is expected to be the target. What the
    // model has for the share is what the next correction goes by.
    let played = player.probe(share, false)?.played;
    let point = CurvePoint {
        share,
        slowdown: if share >= 1.0 { 1.0 } else { plan.target },
        hit_ratio: played.hit_ratio,
        moved_pages: played.moved_pages,
        periods: played.periods,
        ..chosen.point.clone()
    };
    let next = corrected(chosen, point, 0.0, plan.target, recording);
    Ok(Some((next, played.slowdown)))
}

fn meets(row: &Checked, target: f64) -> bool {
    row.measured <= target + NEAR
}

/// The next share to run: the predicted one, if it is between the largest that failed and the
/// smallest that met the target. Otherwise the slowdown is taken to fall in a line between the two,
/// or up to all memory fast.
fn next_share(
    predicted: Option<f64>,
    rows: &[Checked],
    target: f64,
    at_most: f64,
    resolution: f64,
) -> Option<f64> {
    let (met, failed): (Vec<&Checked>, Vec<&Checked>) = rows.iter().partition(|r| meets(r, target));
    let by_share = |a: &&Checked, b: &&Checked| a.share.total_cmp(&b.share);
    let low = failed.into_iter().max_by(by_share).map(|r| (r.share, r.measured));
    let high = met.into_iter().min_by(by_share).map(|r| (r.share, r.measured));
    let between = |share: &f64| {
        low.is_none_or(|low| *share > low.0) && high.is_none_or(|high| *share < high.0)
    };
    if let Some(share) = predicted.filter(between) {
        return Some(share);
    }
    let (low, high) = (low?, high.unwrap_or((1.0, 1.0)));
    let part = ((low.1 - target) / (low.1 - high.1)).clamp(0.0, 1.0);
    let share = (low.0 + part * (high.0 - low.0)).min(at_most);
    (high.0 - low.0 > resolution && share > low.0).then_some(share)
}

/// Where no share that was run met the target.
fn not_met(last: &Checked, target: f64) -> String {
    format!(
        "{}: the target of {} is not met: with {:.1} % fast it is slowed by {}; expected a larger \
         target, more fast memory (--fast-at-most) or more rounds (--refine)",
        last.program,
        percent_over(target),
        100.0 * last.share,
        percent_over(last.measured),
    )
}

/// The recommendation with another share, its prediction moved by the result of the check.
fn corrected(
    chosen: &Recommended,
    mut point: CurvePoint,
    off: f64,
    target: f64,
    recording: &Recording,
) -> Recommended {
    // With all memory fast nothing is predicted.
    let off = if point.share >= 1.0 { 0.0 } else { off };
    point.slowdown += off;
    // What is left of the error is how much it differs between shares nearby; half of the correction
    // is a cautious guess.
    let half = if point.share >= 1.0 { 0.0 } else { (0.5 * off.abs()).max(NEAR) };
    (point.low, point.high) = ((point.slowdown - half).max(1.0), point.slowdown + half);
    let safe_share = (point.high <= target + NEAR).then_some(point.share);
    // A share that was safe by the uncorrected prediction is not where less than it is too little.
    let safe_share =
        safe_share.or(chosen.safe_share.filter(|&safe_share| safe_share >= point.share));
    let pages = recording.footprint_bytes.div_ceil(recording.page_size.bytes());
    Recommended {
        fast_bytes: (pages as f64 * point.share).floor() as u64 * recording.page_size.bytes(),
        point,
        safe_share,
        ..chosen.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use terrace_core::bits::PageBits;
    use terrace_core::page::{Layout, PageSize};
    use terrace_recordings::mixed::MixedRun;
    use terrace_recordings::profile::{Header, Interval, ProfileWriter, TierSpeed};

    use super::*;
    use crate::plan::plan;
    use crate::recording::{Open, Waiting};
    use crate::tables::Tables;

    const PAGES: usize = 200;

    /// Reads the last 60 of its pages all the time. With all of them slow it takes half as long
    /// again.
    fn profile(path: &Path) {
        let tier = |name: &str, ns: u64| TierSpeed {
            name: name.to_owned(),
            read_latency_ps: ns * 1000,
            read_mb_per_s: 100_000,
        };
        let header = Header {
            workload: "made-up".to_owned(),
            machine: "server-ddr5-cxl".to_owned(),
            page_size: PageSize::Base,
            footprint_bytes: Some(PAGES as u64 * 4096),
            interval_references: 1000,
            tiers: vec![tier("dram", 100), tier("cxl", 200)],
            experiment: None,
            created_by: "test".to_owned(),
        };
        let file = std::fs::File::create(path).unwrap();
        let mut writer = ProfileWriter::new(file, "made-up", &header).unwrap();
        let layout = Arc::new(Layout::contiguous(PageSize::Base, PAGES as u64));
        let mut accessed = PageBits::new(PAGES);
        accessed.set_range(140..PAGES, true);
        let mut reads = vec![0; PAGES];
        reads[140..].fill(100);
        for number in 0..400 {
            let interval = Interval {
                references: 6000,
                fast_ps: 10_000_000_000,
                slow_ps: 15_000_000_000,
                mixed: vec![MixedRun { slow_ppm: 500_000, took_ps: 12_500_000_000 }],
                scan_ps: 0,
                layout: layout.clone(),
                accessed: accessed.clone(),
                fresh: if number == 0 { (0..PAGES).collect() } else { Vec::new() },
                reads: reads.clone(),
            };
            writer.interval(&interval).unwrap();
        }
        writer.finish().unwrap();
    }

    fn request(fast_at_most: f64) -> Request {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.tprof");
        profile(&path);
        let waiting = Waiting { share: 0.4, error: 0.2 };
        let how =
            Open { group: None, page_size: None, sample_one_in: None, waiting, machine: None };
        let recording = Recording::open(&path, &how).unwrap();
        Request {
            machines: vec![recording.machine.clone()],
            recordings: vec![recording],
            target: 1.05,
            policies: vec!["lfu".to_owned()],
            fast_at_most,
            seeds: 1,
            period_ms: Some(50),
            moved_pages: None,
            settle_periods: 0,
            resolution: 0.005,
            jobs: 1,
        }
    }

    /// The corrections of an answer where `real` is what a share is measured to have.
    fn refined(fast_at_most: f64, rounds: u64, real: impl Fn(f64) -> f64) -> (Plan, Vec<Checked>) {
        let request = request(fast_at_most);
        let mut plan = plan(&request, &|_, _| {}).unwrap();
        let mut measure = |_: u64, _: &str, share: f64| Ok(real(share));
        let rows = refine(&mut plan, &request, 0, rounds, &mut measure).unwrap();
        (plan, rows)
    }

    fn shares(rows: &[Checked]) -> Vec<f64> {
        rows.iter().map(|r| r.share).collect()
    }

    #[test]
    fn a_share_that_failed_is_not_gone_back_below() {
        // Far slower than predicted, and falling late: two rounds end between shares that were run.
        let real = |share: f64| if share < 0.75 { 1.14 - share / 12.0 } else { 1.04 };
        let (plan, rows) = refined(1.0, 5, real);
        let all = shares(&rows);
        assert!(all.len() >= 3 && all[..3].windows(2).all(|w| w[0] < w[1]), "{all:?}");
        for (number, row) in rows.iter().enumerate() {
            let failed = rows[..number].iter().filter(|r| r.measured > 1.054);
            assert!(failed.into_iter().all(|r| r.share < row.share), "{all:?}");
        }
        let least = rows.iter().filter(|r| r.measured <= 1.054).map(|r| r.share);
        assert_eq!(plan.recommended[0].point.share, least.fold(1.0, f64::min), "{all:?}");
        // The row of the answer is of the corrected share throughout.
        let answers = Tables::of(&plan, &rows).answers;
        assert_eq!(answers[0].safe_fast_share, plan.recommended[0].safe_share);
        assert!(answers[0].safe_fast_share.is_none_or(|safe| Some(safe) >= answers[0].fast_share));
    }

    #[test]
    fn the_answer_is_the_least_share_that_was_measured_to_meet_the_target() {
        // Met at once with something to spare; all shares below it fail.
        let first = refined(1.0, 0, |_| 1.0).1[0].share;
        let real = |share: f64| if share >= first { 1.01 } else { 1.2 };
        let (plan, rows) = refined(1.0, 1, real);
        assert!(rows.len() == 2 && rows[1].share < first, "{rows:?}");
        assert_eq!(plan.recommended[0].point.share, first);
        let answers = Tables::of(&plan, &rows).answers;
        assert_eq!(answers[0].measured_slowdown, Some(1.01), "that of the answer");
        assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
    }

    #[test]
    fn corrections_stay_within_the_bound_and_tell_when_it_is_too_tight() {
        let (plan, rows) = refined(0.3, 5, |share| 1.2 - share / 10.0);
        assert!(rows.len() > 1 && rows.iter().all(|r| r.share <= 0.3), "{rows:?}");
        assert_eq!(rows.last().map(|r| r.share), Some(0.3));
        assert_eq!(plan.recommended[0].point.share, 0.3);
        let not_met = "made-up: the target of 5.0 % is not met: with 30.0 % fast it is slowed by";
        assert!(plan.warnings[0].starts_with(not_met), "{:?}", plan.warnings);
        // A bound within which it is met changes nothing.
        let (plan, rows) = refined(0.6, 5, |share| if share < 0.5 { 1.1 } else { 1.05 });
        assert!(rows.iter().all(|r| r.share <= 0.6), "{rows:?}");
        assert!((0.5..=0.6).contains(&plan.recommended[0].point.share), "{rows:?}");
    }

    #[test]
    fn other_latencies_are_corrected_as_the_answer_is() {
        // So much slower than predicted, whatever is fast.
        for off in [0.03, 0.06] {
            other_latencies(off);
        }
    }

    fn other_latencies(off: f64) {
        let request = request(1.0);
        let predicted = plan(&request, &|_, _| {}).unwrap();
        let point = predicted.recommended[0].point.clone();
        let mut slower = predicted.clone();
        let fixed = Fixed::of(&request.recordings[0], &request);
        let mut measure = |_: u64, _: &str, share: f64| {
            let (recording, machine) = (&request.recordings[0], &request.machines[0]);
            let mut player = Player::new(recording, machine, "lfu", &fixed, 1);
            Ok(player.probe(share, false)?.played.slowdown + off)
        };
        refine(&mut slower, &request, 0, 3, &mut measure).unwrap();
        assert!(slower.recommended[0].point.share > point.share + 0.01, "{point:?}");
        let rows = &slower.sensitivity;
        assert!(rows.windows(2).all(|two| two[0].slow_latency_ns < two[1].slow_latency_ns));
        let shares: Vec<_> = rows.iter().map(|row| row.share).collect();
        assert!(shares.is_sorted(), "more memory for a slower tier: {shares:?}");
        assert!(shares.iter().all(Option::is_some), "all of it fast is an answer: {shares:?}");
        let slowdowns: Vec<_> = rows.iter().map(|row| row.slowdown).collect();
        assert!(slowdowns.is_sorted(), "{slowdowns:?}");
    }
}
