//! Values of arguments that several commands take.

use clap::ValueEnum;
use terrace_core::page::PageSize;

/// The argument of `--page-size`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Pages {
    /// Base pages.
    #[value(name = "4K")]
    Base,
    /// Huge pages.
    #[value(name = "2M")]
    Huge,
}

impl From<Pages> for PageSize {
    fn from(pages: Pages) -> PageSize {
        match pages {
            Pages::Base => PageSize::Base,
            Pages::Huge => PageSize::Huge,
        }
    }
}

/// A share in an argument: `60%` or `0.6`.
pub fn share(text: &str) -> Result<f64, String> {
    let bad = || "expected 0% to 100%".to_owned();
    let text = text.trim();
    let value = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map_err(|_| bad())? / 100.0,
        None => text.parse::<f64>().map_err(|_| bad())?,
    };
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(bad()) }
}
