//! Laying one TOML table over another.

use toml::{Table, Value};

/// Key of a table that is laid over every element of the list `groups`.
const ALL_GROUPS: &str = "all_groups";

/// Lays `over` over `under`: tables key by key, lists of tables element by element; any other value
/// replaces the old one. `all_groups` is laid over each element of `groups`.
pub fn merge(under: &mut Table, over: &Table) {
    for (key, value) in over {
        if key == ALL_GROUPS {
            if let (Some(Value::Array(groups)), Value::Table(value)) =
                (under.get_mut("groups"), value)
            {
                groups.iter_mut().filter_map(Value::as_table_mut).for_each(|g| merge(g, value));
            }
            continue;
        }
        match (under.get_mut(key), value) {
            (Some(Value::Table(u)), Value::Table(o)) => merge(u, o),
            (Some(Value::Array(u)), Value::Array(o)) if tables(u) && tables(o) => {
                merge_lists(u, o);
            }
            _ => {
                under.insert(key.clone(), value.clone());
            }
        }
    }
}

fn tables(list: &[Value]) -> bool {
    !list.is_empty() && list.iter().all(Value::is_table)
}

fn merge_lists(under: &mut Vec<Value>, over: &[Value]) {
    for (index, value) in over.iter().enumerate() {
        match (under.get_mut(index).and_then(Value::as_table_mut), value) {
            (Some(u), Value::Table(o)) => merge(u, o),
            _ => under.push(value.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(under: &str, over: &str) -> Table {
        let mut table: Table = toml::from_str(under).unwrap();
        merge(&mut table, &toml::from_str(over).unwrap());
        table
    }

    #[test]
    fn tables_merge_by_key_and_lists_of_tables_by_element() {
        let got = merged(
            "a = 1\n[m]\nx = 1\ny = 2\n[[groups]]\nname = 'g'\nr = 1\n[[groups]]\nname = 'h'",
            "a = 2\nm = { y = 3 }\ngroups = [{ r = 5 }]\nall_groups = { policy = 'lru' }",
        );
        let expected: Table = toml::from_str(
            "a = 2\n[m]\nx = 1\ny = 3\n[[groups]]\nname = 'g'\nr = 5\npolicy = 'lru'\n\
             [[groups]]\nname = 'h'\npolicy = 'lru'",
        )
        .unwrap();
        assert_eq!(got, expected);
    }

    #[test]
    fn plain_lists_are_replaced() {
        assert_eq!(merged("a = [1, 2, 3]", "a = [4]"), toml::from_str("a = [4]").unwrap());
    }
}
