//! Policies in processes of their own: reports on periods that they did not decide.

use anyhow::bail;
use terrace_core::policy::ExternalReport;
use terrace_engine::Engine;

/// The report of each group's policy; `None` for Terrace's own.
fn reports(engine: &mut Engine) -> Vec<Option<ExternalReport>> {
    let mut reports = Vec::new();
    while let Some(group) = engine.group_mut(reports.len()) {
        reports.push(group.policy.external());
    }
    reports
}

/// For each group whose policy has a process of its own: how many periods it decided, how many its
/// fallback, and why.
pub(crate) fn notes(engine: &mut Engine) -> Vec<Option<String>> {
    reports(engine).into_iter().map(|report| report.map(|r| r.words() + ".")).collect()
}

/// Refuses results in which the fallback decided a part: on a simulated machine, which waits for
/// the policy, only a fault can cause that.
pub(crate) fn all_decided(engine: &mut Engine) -> anyhow::Result<()> {
    let names: Vec<String> = engine.group_names().map(str::to_owned).collect();
    for (name, report) in names.iter().zip(reports(engine)) {
        let Some(report) = report.filter(|report| report.lapses() > 0) else { continue };
        bail!(
            "group '{name}': its policy did not decide all periods ({}): {}",
            report.reasons(),
            report.error.as_deref().unwrap_or("no reason is known")
        );
    }
    Ok(())
}
