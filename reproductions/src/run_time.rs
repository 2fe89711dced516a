//! How long a quick run of each figure takes, as it was measured.

/// Measured times: a figure, and the processor time of its quick run in seconds. A time that begins
/// with '>' was not reached: the run was ended there. '-' is a run that was not made.
const MEASURED: &str = include_str!("../measured/run-time.tsv");

/// The processor time that a quick run of one figure takes from an empty folder.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RunTime {
    /// So many seconds.
    Seconds(f64),
    /// More than so many seconds: the run was not waited for.
    MoreThan(f64),
    /// Nobody measured it.
    Unknown,
}

impl RunTime {
    fn parse(text: &str) -> Option<Self> {
        let seconds = |text: &str| text.parse().ok().filter(|s: &f64| s.is_finite() && *s >= 0.0);
        match text.strip_prefix('>') {
            _ if text == "-" => Some(RunTime::Unknown),
            Some(bound) => seconds(bound).map(RunTime::MoreThan),
            None => seconds(text).map(RunTime::Seconds),
        }
    }

    /// In few characters, for a table; seconds below two minutes.
    pub fn words(self) -> String {
        let rounded = |seconds: f64| match seconds {
            s if s < 119.5 => format!("{:.0} s", s.max(1.0)),
            s => format!("{:.0} min", s / 60.0),
        };
        match self {
            RunTime::Seconds(s) if s < 1.0 => "< 1 s".to_owned(),
            RunTime::Seconds(s) => rounded(s),
            RunTime::MoreThan(s) => format!("> {}", rounded(s)),
            RunTime::Unknown => "-".to_owned(),
        }
    }

    /// The seconds, where the run was waited for.
    pub fn seconds(self) -> Option<f64> {
        match self {
            RunTime::Seconds(s) => Some(s),
            _ => None,
        }
    }
}

/// The time of a quick run of the figure of this name.
pub fn of(figure: &str) -> RunTime {
    let row = rows().find(|(name, _)| *name == figure);
    row.and_then(|(_, time)| RunTime::parse(time)).unwrap_or(RunTime::Unknown)
}

fn rows() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = MEASURED.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_once('\t').unwrap_or((line, "")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_a_row_and_every_row_a_figure_and_a_time() {
        let named: Vec<String> =
            crate::library::all().unwrap().into_iter().map(|f| f.name).collect();
        let measured: Vec<&str> = rows().map(|(name, _)| name).collect();
        assert_eq!(measured, named, "figures and reproductions/measured/run-time.tsv");
        for (name, time) in rows() {
            assert!(RunTime::parse(time).is_some(), "{name}: '{time}'");
        }
    }

    #[test]
    fn times_are_read_and_shown() {
        let words = |text: &str| RunTime::parse(text).unwrap().words();
        assert_eq!(
            ["0.2", "42.4", "390", ">60", "-"].map(words),
            ["< 1 s", "42 s", "6 min", "> 60 s", "-"]
        );
        for wrong in ["soon", "", "-3", "nan", ">"] {
            assert!(RunTime::parse(wrong).is_none(), "{wrong}");
        }
        assert_eq!(RunTime::parse("7").unwrap().seconds(), Some(7.0));
        assert_eq!(RunTime::parse(">7").unwrap().seconds(), None);
        assert_eq!(of("no/figure"), RunTime::Unknown);
    }
}
