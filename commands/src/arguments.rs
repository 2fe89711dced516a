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
