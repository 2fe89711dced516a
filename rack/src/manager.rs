//! The global memory manager: allocates remote memory over the pools (the paper, sections II and
//! IV-A: 4 MB chunks, round robin).

use terrace_hardware::error::ConfigError;

use crate::address::{POOL_PAGE_BITS, RemotePage};
use crate::config::{Allocation, Organization, PAGE_BYTES, RackConfig};

/// The owners of remote memory.
#[derive(Debug, Clone)]
pub struct GlobalManager {
    allocation: Allocation,
    /// Pages per allocation.
    unit: u32,
    /// Pages of each pool, and how many of them are allocated.
    capacity: u32,
    given: Vec<u32>,
    next: usize,
}

impl GlobalManager {
    /// All memory free.
    pub fn new(config: &RackConfig) -> Result<Self, ConfigError> {
        let bytes = config.pool_dram.organization.capacity_bytes();
        let pages = bytes / PAGE_BYTES;
        let part = "rack.pool_dram";
        if pages > 1 << POOL_PAGE_BITS {
            let most = (1u64 << POOL_PAGE_BITS) * PAGE_BYTES;
            return Err(ConfigError::new(
                part,
                format!("{bytes} bytes in a pool; expected at most {most}"),
            ));
        }
        let unit = match config.organization {
            Organization::Distributed => (config.chunk.0 / PAGE_BYTES) as u32,
            Organization::Shared => 1,
        };
        if u64::from(unit) > pages {
            return Err(ConfigError::new(
                part,
                format!("chunks of {} do not fit in a pool of {bytes} bytes", config.chunk),
            ));
        }
        Ok(GlobalManager {
            allocation: config.allocation,
            unit,
            capacity: pages as u32,
            given: vec![0; config.pools as usize],
            next: 0,
        })
    }

    /// Pages per allocation.
    pub fn unit(&self) -> u32 {
        self.unit
    }

    /// The first of [`GlobalManager::unit`] pages for a node; `None` when all pools are full.
    pub fn allocate(&mut self, node: usize) -> Option<RemotePage> {
        let pools = self.given.len();
        let has_room = |pool: usize| self.capacity - self.given[pool] >= self.unit;
        let in_turn =
            |first: usize| (0..pools).map(|i| (first + i) % pools).find(|&pool| has_room(pool));
        let pool = match self.allocation {
            Allocation::RoundRobin => in_turn(self.next)?,
            Allocation::LeastLoaded => {
                (0..pools).filter(|&p| has_room(p)).min_by_key(|&p| self.given[p])?
            }
            Allocation::Affinity => in_turn(node % pools)?,
        };
        self.next = (pool + 1) % pools;
        let first = RemotePage::new(pool, self.given[pool]);
        self.given[pool] += self.unit;
        Some(first)
    }

    /// Pages allocated, by pool.
    pub fn given(&self) -> &[u32] {
        &self.given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(allocation: Allocation, pools: u32) -> GlobalManager {
        GlobalManager::new(&RackConfig { allocation, pools, ..RackConfig::default() }).unwrap()
    }

    fn pools(m: &mut GlobalManager, nodes: &[usize]) -> Vec<usize> {
        nodes.iter().map(|&n| m.allocate(n).unwrap().pool()).collect()
    }

    #[test]
    fn round_robin_takes_each_pool_in_turn_in_chunks_of_4_mb() {
        let mut m = manager(Allocation::RoundRobin, 3);
        assert_eq!(pools(&mut m, &[0, 0, 1, 0]), [0, 1, 2, 0]);
        assert_eq!(m.given(), [2048, 1024, 1024]);
    }

    #[test]
    fn least_loaded_evens_out_and_affinity_does_not() {
        let mut m = manager(Allocation::LeastLoaded, 2);
        m.given = vec![4096, 1024];
        assert_eq!(pools(&mut m, &[0, 0, 0, 0]), [1, 1, 1, 0]);
        let mut m = manager(Allocation::Affinity, 2);
        assert_eq!(pools(&mut m, &[0, 0, 1, 2, 3]), [0, 0, 1, 0, 1]);
    }

    #[test]
    fn full_pools_are_passed_by_and_then_there_is_no_more() {
        for allocation in [Allocation::RoundRobin, Allocation::LeastLoaded, Allocation::Affinity] {
            let mut m = manager(allocation, 2);
            m.given = vec![m.capacity, m.capacity - 1024];
            assert_eq!(m.allocate(0), Some(RemotePage::new(1, m.capacity - 1024)));
            assert_eq!(m.allocate(0), None);
        }
    }

    #[test]
    fn the_shared_organization_hands_out_pages() {
        let config =
            RackConfig { organization: Organization::Shared, pools: 2, ..RackConfig::default() };
        let mut m = GlobalManager::new(&config).unwrap();
        assert_eq!(m.unit(), 1);
        assert_eq!(m.allocate(0), Some(RemotePage::new(0, 0)));
        assert_eq!(m.allocate(0), Some(RemotePage::new(1, 0)));
    }
}
