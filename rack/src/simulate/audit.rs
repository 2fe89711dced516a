//! Checks of a rack at rest: nothing is left under way, and every block holds its last write.

use crate::NEVER;
use crate::simulate::{Component, Rack, RunError};

impl Rack {
    /// Runs until every node is done and nothing is under way, and then checks that everything is
    /// where it should be: for tests. Returns the number of values compared.
    pub fn run_to_rest(&mut self) -> Result<u64, RunError> {
        self.advance(1)?;
        let switch = self.cells.len() - 1;
        // Nothing new begins; everything under way ends.
        for _ in 0..10_000_000u64 {
            let begin = self.next_event();
            if begin == NEVER {
                return self
                    .audit()
                    .map_err(|what| RunError::Deadlock { at_ns: self.now / 1000, what });
            }
            let begin = begin.max(self.now);
            self.now = begin + self.window;
            for cell in &mut self.cells {
                cell.run(begin, begin + self.window, switch);
            }
            self.exchange();
            if let Some(problem) = self.problem() {
                return Err(problem);
            }
        }
        Err(RunError::Deadlock { at_ns: self.now / 1000, what: "it never comes to rest".into() })
    }

    /// At rest: no packet and no request is left, all buffers are free, every block holds its last
    /// write.
    fn audit(&self) -> Result<u64, String> {
        let Some(Component::Switch(switch)) = self.cells.last().map(|c| &c.component) else {
            return Err("there is no switch".into());
        };
        if switch.waiting() > 0 {
            return Err(format!("{} things are left in the switch", switch.waiting()));
        }
        let mut compared = 0;
        let pool_value = |page: crate::address::RemotePage, block| match &self.cells
            [self.nodes + page.pool()]
        .component
        {
            Component::Pool(pool) => pool.value(page, block),
            _ => 0,
        };
        for (n, cell) in self.cells.iter().enumerate() {
            let nic = match &cell.component {
                Component::Pool(pool) => {
                    if !pool.is_idle() {
                        return Err(format!("requests are left in pool {}", n - self.nodes));
                    }
                    pool.nic()
                }
                Component::Node(node) => {
                    let memory = node.memory_ref();
                    if !memory.is_idle() {
                        return Err(format!("requests are left in node {n}"));
                    }
                    let c = &memory.counts;
                    if c.wrong_values > 0 {
                        return Err(format!("node {n} read {} wrong values", c.wrong_values));
                    }
                    for (page, block, value, here) in memory.written() {
                        compared += 1;
                        let found = here.unwrap_or_else(|remote| {
                            let buffered = switch.controller(n).buffered_value(remote, block);
                            buffered.unwrap_or_else(|| pool_value(remote, block))
                        });
                        if found != value {
                            return Err(format!(
                                "node {n}, page {page}, block {block}: {value} was written, \
                                 {found} is there"
                            ));
                        }
                    }
                    &memory.nic
                }
                Component::Switch(_) => continue,
            };
            if switch.buffered_bytes(n) > 0 {
                return Err(format!("bytes are left in the buffer of port {n}"));
            }
            let sent = (nic.out.packets, nic.out.bytes);
            let down = switch.port(n);
            if (down.packets, down.bytes) != (nic.in_packets, nic.in_bytes) {
                return Err(format!(
                    "port {n} sent {} packets, {} came",
                    down.packets, nic.in_packets
                ));
            }
            if switch.received(n) != sent {
                return Err(format!(
                    "port {n} received {:?}, {sent:?} were sent",
                    switch.received(n)
                ));
            }
        }
        Ok(compared)
    }
}
