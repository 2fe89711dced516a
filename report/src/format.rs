//! Numbers and names as people read them: one way for all outputs.

/// Shown for a number that was not measured.
pub(crate) const MISSING: &str = "-";

/// `1234567` as `1,234,567`.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A share as a percentage: `83.1 %`. All of it is `100 %`, and only all of it: `99.97 %` is not
/// rounded up to it, since a stability of 100 % is that of no move.
pub(crate) fn percent(share: f64) -> String {
    if !share.is_finite() {
        return MISSING.to_owned();
    }
    let hundredths = share * 100.0;
    if hundredths > 99.9 && hundredths < 99.995 {
        format!("{hundredths:.2} %")
    } else if (99.995..100.05).contains(&hundredths) {
        "100 %".to_owned()
    } else if hundredths > 0.0 && hundredths < 0.1 {
        "<0.1 %".to_owned()
    } else {
        format!("{hundredths:.1} %")
    }
}

/// A share as a percentage without decimals, for settings and for axes.
pub(crate) fn percent_round(share: f64) -> String {
    if !share.is_finite() {
        return MISSING.to_owned();
    }
    let tenths = (share * 1000.0).round() / 10.0;
    format!("{tenths} %")
}

/// A measured number with about four significant digits and thousands set apart.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() {
        MISSING.to_owned()
    } else if value.abs() >= 100.0 {
        let whole = count(value.abs().round() as u64);
        if value < 0.0 { format!("-{whole}") } else { whole }
    } else if value == value.trunc() {
        format!("{value}")
    } else if value.abs() >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// A number for an axis: as short as is exact enough (`20k`, `1.5M`).
pub(crate) fn axis_number(value: f64) -> String {
    let magnitude = value.abs();
    let (scaled, unit) = match magnitude {
        m if m >= 1e9 => (value / 1e9, "G"),
        m if m >= 1e6 => (value / 1e6, "M"),
        m if m >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let rounded = (scaled * 100.0).round() / 100.0;
    format!("{}{unit}", if rounded == 0.0 { 0.0 } else { rounded })
}

/// A size in binary units: `2 MiB`, `1.5 GiB`.
pub(crate) fn bytes(size_bytes: f64) -> String {
    if !size_bytes.is_finite() {
        return MISSING.to_owned();
    }
    let mut value = size_bytes;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    let decimals = if value == value.trunc() || value >= 100.0 { 0 } else { 1 };
    format!("{value:.decimals$} {unit}")
}

/// A time in the unit that suits it.
pub(crate) fn duration(ms: f64) -> String {
    if !ms.is_finite() {
        MISSING.to_owned()
    } else if ms < 1.0 {
        format!("{} µs", number(ms * 1e3))
    } else if ms < 1000.0 {
        format!("{} ms", number(ms))
    } else if ms < 120_000.0 {
        format!("{} s", number(ms / 1e3))
    } else {
        format!("{} min", number(ms / 60e3))
    }
}

/// A name from outside, fit to be shown: control characters and those that turn the direction
/// of writing become `\u{fffd}`, so that no name can drive a terminal or disguise its row.
pub(crate) fn clean(name: &str) -> String {
    name.chars()
        .map(|c| {
            let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}' | '\u{feff}');
            if c.is_control() || turns { '\u{fffd}' } else { c }
        })
        .collect()
}

/// A name cut to at most so many characters, with an ellipsis where some are left out.
pub(crate) fn shorten(name: &str, max_chars: usize) -> String {
    if name.chars().count() <= max_chars {
        return name.to_owned();
    }
    let kept: String = name.chars().take(max_chars.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// `a`, `a and b`, `a, b and c`.
pub(crate) fn list(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_people_write_them() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(percent(0.8314), "83.1 %");
        assert_eq!(percent(0.0), "0.0 %");
        assert_eq!(percent(0.0001), "<0.1 %");
        assert_eq!(percent(0.9997), "99.97 %");
        assert_eq!(percent(1.0), "100 %");
        assert_eq!(percent(f64::NAN), "-");
        assert_eq!(percent_round(0.5), "50 %");
        assert_eq!(percent_round(0.125), "12.5 %");
        assert_eq!(number(12_345.6), "12,346");
        assert_eq!(number(3.0), "3");
        assert_eq!(number(f64::INFINITY), "-");
        assert_eq!(axis_number(-0.0), "0");
        assert_eq!(axis_number(20_000.0), "20k");
        assert_eq!(bytes(2_097_152.0), "2 MiB");
        assert_eq!(bytes(1_610_612_736.0), "1.5 GiB");
        assert_eq!(duration(250.0), "250 ms");
        assert_eq!(duration(60_000.0), "60 s");
    }

    #[test]
    fn names_cannot_drive_a_terminal() {
        assert_eq!(clean("a\u{1b}[31mb\n\u{202e}c"), "a\u{fffd}[31mb\u{fffd}\u{fffd}c");
        assert_eq!(shorten("abcdef", 4), "abc…");
        assert_eq!(shorten("abcd", 4), "abcd");
    }
}
