//! Packets of a window of time, one by one, in the JSON form of Chrome's trace viewer, which
//! Perfetto opens too (Google, "Trace Event Format").
//!
//! Each interface's sender, each output of the switch and each pool's memory is a track; a packet is
//! a slice on each that it occupies. A pool's memory serves many at once: its slices may overlap and
//! are asynchronous events.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::Time;
use crate::packet::{Kind, Packet};

/// Which packets are traced: those with a slice that begins in this time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceConfig {
    /// Start of the traced time ...
    pub from_us: f64,
    /// ... and its end.
    pub to_us: f64,
}

/// The place that a packet occupies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The sender of an interface.
    Interface,
    /// The output of the switch to a port.
    Output,
    /// A pool's memory controller and DRAM.
    Memory,
}

/// A packet at one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slice {
    /// Start time.
    pub start: Time,
    /// End time.
    pub end: Time,
    /// Number of the port.
    pub port: u16,
    /// The place at the port.
    pub place: Place,
    /// The packet's purpose.
    pub kind: Kind,
    /// The packet's node.
    pub node: u16,
    /// The packet's page.
    pub page: u32,
    /// The packet's block.
    pub block: u8,
}

/// Collects slices of one component.
#[derive(Debug, Clone, Default)]
pub struct Tracer {
    span: Option<(Time, Time)>,
    port: u16,
    slices: Vec<Slice>,
}

impl Tracer {
    /// A tracer for a port; without a configuration it collects nothing.
    pub fn new(config: Option<TraceConfig>, port: usize) -> Self {
        let ps = |us: f64| (us * 1e6) as Time;
        let span = config.map(|c| (ps(c.from_us), ps(c.to_us)));
        Tracer { span, port: port as u16, slices: Vec::new() }
    }

    /// Records that a packet occupies a place of this tracer's port.
    #[inline]
    pub fn add(&mut self, place: Place, packet: &Packet, start: Time, end: Time) {
        self.add_at(self.port, place, packet, start, end);
    }

    /// Records that a packet occupies a place of any port.
    #[inline]
    pub fn add_at(&mut self, port: u16, place: Place, p: &Packet, start: Time, end: Time) {
        let Some((from, to)) = self.span else { return };
        if start < from || start >= to {
            return;
        }
        self.slices.push(Slice {
            start,
            end,
            port,
            place,
            kind: p.kind,
            node: p.node,
            page: p.page.0,
            block: p.block,
        });
    }

    /// The slices collected.
    pub fn slices(&self) -> &[Slice] {
        &self.slices
    }
}

/// Slices as a JSON document; `nodes` is the number of ports that are nodes'.
pub fn chrome_json(slices: &[Slice], nodes: usize) -> String {
    let mut text = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
    let mut named: Vec<(u16, Place)> = slices.iter().map(|s| (s.port, s.place)).collect();
    named.sort_unstable();
    named.dedup();
    let thread = |port: u16, place: Place| u32::from(port) * 3 + place as u32 + 1;
    let port_name = |port: u16| match usize::from(port).checked_sub(nodes) {
        None => format!("node {port}"),
        Some(pool) => format!("pool {pool}"),
    };
    for &(port, place) in &named {
        let what = match place {
            Place::Interface => "interface of",
            Place::Output => "switch to",
            Place::Memory => "memory of",
        };
        let _ = writeln!(
            text,
            "{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":\"{what} \
             {}\"}}}},",
            thread(port, place),
            port_name(port)
        );
    }
    for (n, s) in slices.iter().enumerate() {
        let us = |t: Time| t as f64 / 1e6;
        let common = format!(
            "\"pid\":1,\"tid\":{},\"name\":\"{}\",\"args\":{{\"node\":{},\"page\":{},\"block\":{}}}",
            thread(s.port, s.place),
            s.kind.name(),
            s.node,
            s.page,
            s.block
        );
        let _ = if s.place == Place::Memory {
            writeln!(
                text,
                "{{\"ph\":\"b\",\"cat\":\"memory\",\"id\":{n},\"ts\":{:.6},{common}}},\n\
                 {{\"ph\":\"e\",\"cat\":\"memory\",\"id\":{n},\"ts\":{:.6},{common}}},",
                us(s.start),
                us(s.end)
            )
        } else {
            let (start, duration) = (us(s.start), us(s.end - s.start));
            writeln!(text, "{{\"ph\":\"X\",\"ts\":{start:.6},\"dur\":{duration:.6},{common}}},")
        };
    }
    text.push_str(
        "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"rack\"}}\n]}\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::RemotePage;

    #[test]
    fn slices_of_the_window_become_events_with_named_tracks() {
        let config = TraceConfig { from_us: 1.0, to_us: 2.0 };
        let mut tracer = Tracer::new(Some(config), 1);
        let packet = Packet::new(Kind::Read, 0, RemotePage(7), 3, 16);
        tracer.add(Place::Interface, &packet, 500_000, 600_000);
        tracer.add(Place::Interface, &packet, 1_500_000, 1_600_000);
        tracer.add(Place::Memory, &packet, 1_700_000, 2_600_000);
        let json: serde_json::Value =
            serde_json::from_str(&chrome_json(tracer.slices(), 1)).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        let of = |ph: &str| events.iter().filter(|e| e["ph"] == ph).count();
        assert_eq!((of("M"), of("X"), of("b"), of("e")), (3, 1, 1, 1));
        let slice = events.iter().find(|e| e["ph"] == "X").unwrap();
        assert_eq!((slice["ts"].as_f64(), slice["dur"].as_f64()), (Some(1.5), Some(0.1)));
        assert_eq!((&slice["name"], &slice["args"]["page"]), (&"read".into(), &7.into()));
        let names: Vec<_> = events.iter().map(|e| e["args"]["name"].clone()).collect();
        assert!(names.contains(&"interface of pool 0".into()));
        assert!(Tracer::new(None, 0).slices().is_empty());
    }
}
