//! `terrace heatmap`: a picture of address against time, of a group of a running `terraced` or of
//! the results of a run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use terrace_core::{InputError, refuse};
use terrace_daemon::control::{Request, SentBin};
use terrace_results::HeatRow;

use crate::daemon::Socket;
use crate::output::write_whole;
use crate::show::say;

/// How a picture is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Picture {
    /// Scalable, with axes.
    Svg,
    /// Pixels.
    Png,
}

/// What the name of a picture's file asks for.
pub fn kind(out: &Path) -> Result<Picture, InputError> {
    match out.extension().and_then(|e| e.to_str()) {
        Some("svg") => Ok(Picture::Svg),
        Some("png") => Ok(Picture::Png),
        _ => Err(refuse!("--out {}: expected a name in .svg or .png", out.display())),
    }
}

/// Draws a heat map into a file, whole or not at all.
pub fn write(out: &Path, rows: &[HeatRow], label: &str) -> anyhow::Result<()> {
    let nothing = || refuse!("{label}: nothing was observed yet; there is no picture to draw");
    let picture = match kind(out)? {
        Picture::Svg => terrace_report::heat_svg(rows, label).ok_or_else(nothing)?.into_bytes(),
        Picture::Png => terrace_report::heat_png(rows).ok_or_else(nothing)?,
    };
    write_whole(out, picture).with_context(|| out.display().to_string())
}

/// Draw which addresses were used when, and which were in fast memory.
#[derive(Args)]
pub struct Arguments {
    /// A group of the running daemon, or a folder of results.
    #[arg(value_name = "GROUP|DIR")]
    of: String,
    /// The picture: a file that ends in .svg, or in .png, which has no axes.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The run, where a folder has several runs or groups.
    #[arg(long)]
    run: Option<String>,
    /// The group, where a folder has several.
    #[arg(long)]
    group: Option<String>,
    #[command(flatten)]
    socket: Socket,
}

impl Arguments {
    /// Draws.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        kind(&self.out)?;
        let folder = Path::new(&self.of);
        let (rows, label) =
            if folder.is_dir() { self.of_results(folder)? } else { self.of_daemon()? };
        if rows.is_empty() {
            return Err(InputError::new(format_args!("{}: nothing was seen yet", self.of)).into());
        }
        write(&self.out, &rows, &label)?;
        say!("{}: {label}", self.out.display())?;
        Ok(ExitCode::SUCCESS)
    }

    fn of_daemon(&self) -> anyhow::Result<(Vec<HeatRow>, String)> {
        let answer = self.socket.ask(&Request::Heat { group: self.of.clone() })?;
        let bins: Vec<SentBin> = serde_json::from_value(answer["bins"].clone())?;
        let group = answer["group"].as_str().unwrap_or_default().to_owned();
        let row = |b: SentBin| HeatRow {
            run: String::new(),
            group: group.clone(),
            space: b.space.into(),
            address: b.address,
            size_bytes: b.size_bytes,
            period: b.period,
            periods: b.periods,
            accessed_share: b.accessed_share,
            fast_share: b.fast_share,
        };
        Ok((bins.into_iter().map(row).collect(), group.clone()))
    }

    fn of_results(&self, folder: &Path) -> anyhow::Result<(Vec<HeatRow>, String)> {
        let all = terrace_results::read::<HeatRow>(folder).map_err(InputError::new)?;
        let mut names: Vec<(String, String)> =
            all.iter().map(|r| (r.run.clone(), r.group.clone())).collect();
        names.sort();
        names.dedup();
        names.retain(|(run, group)| {
            self.run.as_ref().is_none_or(|r| r == run)
                && self.group.as_ref().is_none_or(|g| g == group)
        });
        let [(run, group)] = names.as_slice() else {
            let found: Vec<String> = names.iter().map(|(r, g)| format!("{r}/{g}")).collect();
            return Err(InputError::new(format_args!(
                "{}: {} heat maps fit ({}); expected one: name it with --run and --group",
                folder.display(),
                names.len(),
                found.join(", ")
            ))
            .into());
        };
        let rows = all.into_iter().filter(|r| (&r.run, &r.group) == (run, group)).collect();
        Ok((rows, format!("{run}, {group}")))
    }
}
