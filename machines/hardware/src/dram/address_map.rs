//! From a physical address to channel, rank, bank group, bank, row and column.
//!
//! A map lists the fields from the most to the least significant; `"column:2"` takes the lowest two
//! bits of the column that are still free. Sizes need not be powers of two (six channels): fields
//! are extracted by division, or by shifting where they are.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::address::PhysicalAddress;
use crate::dram::config::{Controller, Organization};
use crate::error::ConfigError;

/// A part of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The channel.
    Channel,
    /// The rank.
    Rank,
    /// The bank group.
    BankGroup,
    /// The bank of the group.
    Bank,
    /// The row.
    Row,
    /// The burst of the row.
    Column,
}

const PARTS: [(Part, &str); 6] = [
    (Part::Channel, "channel"),
    (Part::Rank, "rank"),
    (Part::BankGroup, "bank-group"),
    (Part::Bank, "bank"),
    (Part::Row, "row"),
    (Part::Column, "column"),
];

/// A part, or the lowest bits of it that are still free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The part.
    pub part: Part,
    /// Number of bits; all that are left if `None`.
    pub bits: Option<u32>,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PARTS[self.part as usize].1)?;
        self.bits.map_or(Ok(()), |bits| write!(f, ":{bits}"))
    }
}

impl FromStr for Field {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let (name, bits) = match text.split_once(':') {
            None => (text, None),
            Some((name, bits)) => (name, bits.parse::<u32>().ok().filter(|b| (1..=32).contains(b))),
        };
        let part = PARTS.iter().find(|p| p.1 == name).map(|p| p.0);
        match part {
            Some(part) if bits.is_some() || !text.contains(':') => Ok(Field { part, bits }),
            _ => Err(ConfigError::new(
                "address_map",
                format!(
                    "{text:?} is no part of an address; use channel, rank, bank-group, bank, row, \
                     column, or the low bits of one such as column:2"
                ),
            )),
        }
    }
}

impl JsonSchema for Field {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Field".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names = PARTS.map(|part| part.1).join("|");
        // 1 to 32 bits.
        let pattern = format!("^({names})(:([1-9]|[12][0-9]|3[0-2]))?$");
        json_schema!({ "type": "string", "pattern": pattern })
    }
}

impl Serialize for Field {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The place of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Location {
    /// Channel.
    pub channel: u32,
    /// Bank of the channel: ranks, then bank groups, then banks, counted through.
    pub bank: u32,
    /// Row of the bank.
    pub row: u32,
    /// Burst of the row.
    pub column: u32,
}

/// A slice of an address: `value % size` goes to `part`, shifted to its position there.
#[derive(Debug, Clone, Copy)]
struct Cut {
    part: Part,
    size: u64,
    /// Bits of the part that lower cuts took.
    place: u32,
}

/// The map of one configuration.
#[derive(Debug, Clone)]
pub struct AddressMap {
    /// Least significant first.
    cuts: Vec<Cut>,
    line_bits: u32,
    bank_groups: u32,
    banks_per_group: u32,
    bank_hash: bool,
}

impl AddressMap {
    /// The map; an error unless every part is there, whole and once.
    pub fn new(o: &Organization, c: &Controller) -> Result<Self, ConfigError> {
        let bad = |problem: String| ConfigError::new("dram.controller", problem);
        let mut left =
            [o.channels, o.ranks, o.bank_groups, o.banks_per_group, o.rows, o.lines_per_row()]
                .map(u64::from);
        let mut taken = [0u32; 6];
        let mut whole = [false; 6];
        let mut cuts = Vec::new();
        for field in c.address_map.iter().rev() {
            let (i, name) = (field.part as usize, PARTS[field.part as usize].1);
            if whole[i] {
                return Err(bad(format!("address_map has {name} left of a whole {name}")));
            }
            let size = match field.bits {
                None => left[i],
                Some(bits) if left[i] % (1 << bits) == 0 => 1 << bits,
                Some(bits) => {
                    return Err(bad(format!(
                        "address_map takes {bits} bits of {name}, of which {} values are left",
                        left[i]
                    )));
                }
            };
            whole[i] = field.bits.is_none();
            cuts.push(Cut { part: field.part, size, place: taken[i] });
            left[i] /= size;
            taken[i] += field.bits.unwrap_or(0);
        }
        for (part, name) in PARTS {
            if left[part as usize] != 1 {
                return Err(bad(format!(
                    "address_map lacks {name}; it needs channel, rank, bank-group, bank, row, column"
                )));
            }
        }
        if c.bank_hash && !(o.bank_groups.is_power_of_two() && o.banks_per_group.is_power_of_two())
        {
            return Err(bad("bank_hash needs powers of two of bank groups and banks".to_string()));
        }
        Ok(AddressMap {
            cuts,
            line_bits: o.line_bytes().trailing_zeros(),
            bank_groups: o.bank_groups,
            banks_per_group: o.banks_per_group,
            bank_hash: c.bank_hash,
        })
    }

    /// The place of an address. An address past the capacity wraps around.
    pub fn locate(&self, address: PhysicalAddress) -> Location {
        let mut rest = address.0 >> self.line_bits;
        let mut parts = [0u64; 6];
        for cut in &self.cuts {
            let value = if cut.size.is_power_of_two() {
                let value = rest & (cut.size - 1);
                rest >>= cut.size.trailing_zeros();
                value
            } else {
                let value = rest % cut.size;
                rest /= cut.size;
                value
            };
            parts[cut.part as usize] |= value << cut.place;
        }
        let [channel, rank, mut group, mut bank, row, column] = parts.map(|p| p as u32);
        if self.bank_hash {
            group ^= row & (self.bank_groups - 1);
            bank ^= (row / self.bank_groups) & (self.banks_per_group - 1);
        }
        let bank = (rank * self.bank_groups + group) * self.banks_per_group + bank;
        Location { channel, bank, row, column }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dram::presets;
    use std::collections::HashSet;

    fn tiny(map: &[&str], hash: bool) -> Result<AddressMap, ConfigError> {
        let mut c = presets::by_name("ddr4-2400").unwrap();
        c.organization =
            Organization { channels: 3, ranks: 2, rows: 8, columns: 32, ..c.organization };
        c.controller.address_map = map.iter().map(|f| f.parse().unwrap()).collect();
        c.controller.bank_hash = hash;
        AddressMap::new(&c.organization, &c.controller)
    }

    #[test]
    fn every_line_has_a_place_of_its_own() {
        for hash in [false, true] {
            for map in [
                &["row", "rank", "bank", "column", "bank-group", "channel"][..],
                &["channel", "row", "column", "rank", "bank", "bank-group"],
                &[
                    "row",
                    "rank",
                    "bank",
                    "bank-group",
                    "column",
                    "channel",
                    "bank-group:1",
                    "column:1",
                ],
            ] {
                let map = tiny(map, hash).unwrap();
                let lines = 3 * 2 * 16 * 8 * 4;
                let places: HashSet<Location> =
                    (0..lines).map(|n| map.locate(PhysicalAddress(n * 64))).collect();
                assert_eq!(places.len(), lines as usize);
                assert!(places.iter().all(|p| p.channel < 3 && p.bank < 32 && p.row < 8));
            }
        }
    }

    #[test]
    fn neighbouring_lines_go_to_the_least_significant_part() {
        let map = tiny(&["row", "rank", "bank", "column", "bank-group", "channel"], false).unwrap();
        let place = |line: u64| map.locate(PhysicalAddress(line * 64));
        assert_eq!(place(2).channel, 2);
        assert_eq!(place(3).bank, 4);
        assert_eq!(place(12).column, 1);
        assert_eq!(place(13), Location { channel: 1, column: 1, ..place(0) });
    }

    #[test]
    fn a_map_needs_every_part_once() {
        for map in [
            &["row", "rank", "bank", "column", "channel"][..],
            &["row", "rank", "bank", "column", "bank-group", "channel", "row"],
            &["row", "rank", "bank", "column:1", "bank-group", "channel"],
            &["row", "rank", "bank", "column", "bank-group", "channel:1"],
        ] {
            let error = tiny(map, false).unwrap_err().to_string();
            assert!(error.contains("address_map"), "{error}");
        }
        for field in ["col", "column:0", "column:x", "column:99", ""] {
            assert!(field.parse::<Field>().is_err(), "{field}");
        }
    }
}
