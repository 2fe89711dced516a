//! Where in a TOML file a key is, for messages about its value.

use toml::de::{DeTable, DeValue};

/// The line, from 1, of a byte of a text.
pub fn line_at(text: &str, byte: usize) -> usize {
    text.as_bytes()[..byte.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1
}

/// The line of a key, given by its path; an element of a list is named by its number, from 0. Where
/// the file does not have the last parts of the path, the line of what contains them; nothing for a
/// text that is no TOML and for a path of which nothing is there.
pub fn line_of_key(text: &str, path: &[&str]) -> Option<usize> {
    let file = DeTable::parse(text).ok()?;
    let (first, rest) = path.split_first()?;
    let (key, mut value) = file.get_ref().iter().find(|(key, _)| key.get_ref() == first)?;
    let mut at = key.span().start;
    for part in rest {
        match value.get_ref() {
            DeValue::Table(table) => {
                let Some((key, inner)) = table.iter().find(|(key, _)| key.get_ref() == part) else {
                    break;
                };
                (at, value) = (key.span().start, inner);
            }
            DeValue::Array(list) => {
                let Some(inner) = part.parse().ok().and_then(|nth: usize| list.get(nth)) else {
                    break;
                };
                (at, value) = (inner.span().start, inner);
            }
            _ => break,
        }
    }
    Some(line_at(text, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_whatever_it_is_written_in() {
        let text = "name = \"e\"\n\
                    machine.slow = \"1G\"\n\
                    [[groups]]\n\
                    name = \"a\"\n\
                    [[groups]]\n\
                    # fast_ratio = 1\n\
                    name = \"fast_ratio = 2\"\n\
                    fast_ratio = 3\n\
                    share = {\n  min = 1,\n  max = 2 }\n\
                    [groups.workload]\n\
                    kind = \"zipf\"\n";
        for (path, line) in [
            (&["name"][..], Some(1)),
            (&["machine", "slow"], Some(2)),
            (&["groups", "0"], Some(3)),
            (&["groups", "1"], Some(5)),
            (&["groups", "1", "fast_ratio"], Some(8)),
            (&["groups", "1", "share", "max"], Some(11)),
            (&["groups", "1", "workload", "kind"], Some(13)),
            // What is not there: what it would be in.
            (&["groups", "0", "fast_ratio"], Some(3)),
            (&["groups", "1", "workload", "seed"], Some(12)),
            (&["groups", "7"], Some(3)),
            (&["period_ms"], None),
            (&[], None),
        ] {
            assert_eq!(line_of_key(text, path), line, "{path:?}");
        }
        assert_eq!(line_of_key("name = [", &["name"]), None);
    }
}
