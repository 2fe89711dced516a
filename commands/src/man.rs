//! `terrace man`: the manual pages, made from the same source as `--help`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use terrace_core::InputError;

use crate::output::write_whole;
use crate::show;

/// Write the manual pages.
#[derive(Args)]
pub struct Arguments {
    /// Folder to write terrace.1, a page per command and terraced.8 to; without it the first page goes to
    /// standard output.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Arguments {
    /// Writes them.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let mut command = crate::cli::Cli::command().disable_help_subcommand(true);
        command.build();
        match &self.out {
            None => show::line(page(&command)?.trim_end())?,
            Some(folder) => {
                write(&command, folder).and_then(|()| write_daemon(folder)).map_err(|e| {
                    InputError::new(format_args!(
                        "{}: {e}; expected a folder for manual pages that can be written to",
                        folder.display()
                    ))
                })?
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The page of the daemon, terraced.8.
fn write_daemon(folder: &Path) -> std::io::Result<()> {
    let mut command = terrace_daemon::cli::Cli::command().disable_help_subcommand(true);
    command.build();
    write_whole(&folder.join("terraced.8"), page_in(Man::new(command).section("8"))?)
}

fn write(command: &Command, folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let commands = command.get_subcommands().filter(|c| !c.is_hide_set());
    for command in std::iter::once(command).chain(commands) {
        let file = Man::new(command.clone()).get_filename();
        write_whole(&folder.join(file), page(command)?)?;
    }
    Ok(())
}

fn page(command: &Command) -> std::io::Result<String> {
    page_in(Man::new(command.clone()))
}

fn page_in(man: Man) -> std::io::Result<String> {
    let mut page = Vec::new();
    man.manual("Terrace")
        .source(concat!("terrace ", env!("CARGO_PKG_VERSION")))
        .render(&mut page)?;
    let page = String::from_utf8_lossy(&page).into_owned();
    // Text below the options in --help is laid out by hand: its lines are not to be filled.
    let Some((before, notes)) = page.split_once(".SH EXTRA\n") else {
        return Ok(page);
    };
    let (notes, after) = notes.split_at(notes.find(".SH ").unwrap_or(notes.len()));
    Ok(format!("{before}.SH NOTES\n.nf\n{}\n.fi\n{after}", notes.trim_end()))
}
