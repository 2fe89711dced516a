//! The tiers of one machine in one physical address space: each begins where the one before ends.

use crate::address::PhysicalAddress;
use crate::error::ConfigError;
use crate::node::MemoryPort;
use crate::request::{Completion, Request, When};
use crate::tier::{Tier, TierConfig, TierCounts, next_completion};
use crate::units::Picoseconds;

/// The tiers of one machine.
#[derive(Debug, Clone)]
pub struct TieredMemory {
    tiers: Vec<Tier>,
    /// First address past each tier.
    ends: Vec<u64>,
}

impl TieredMemory {
    /// Idle tiers, fastest first.
    pub fn new(configs: &[TierConfig]) -> Result<Self, ConfigError> {
        if configs.is_empty() {
            return Err(ConfigError::new("tiers", "there are none; expected at least one"));
        }
        let mut end = 0u64;
        let mut ends = Vec::with_capacity(configs.len());
        for config in configs {
            end = end.saturating_add(config.capacity.0);
            ends.push(end);
        }
        if end > 1 << 52 {
            return Err(ConfigError::new(
                "tiers",
                format!(
                    "capacity is {end} bytes in all; expected at most 4 PB, the reach of addresses"
                ),
            ));
        }
        Ok(TieredMemory { tiers: configs.iter().map(Tier::new).collect::<Result<_, _>>()?, ends })
    }

    /// The same for processors that run far ahead of each other: queueing tiers then remember their
    /// idle gaps for long.
    #[must_use]
    pub fn far_out_of_order(mut self) -> Self {
        let tiers = self.tiers.into_iter().map(|tier| match tier {
            Tier::Queueing(tier) => Tier::Queueing(tier.far_out_of_order()),
            Tier::Dram(tier) => Tier::Dram(tier),
        });
        self.tiers = tiers.collect();
        self
    }

    /// The tier of an address; one past the end counts as the last.
    #[inline]
    pub fn tier_of(&self, address: PhysicalAddress) -> usize {
        let last = self.ends.len() - 1;
        self.ends[..last].iter().position(|&end| address.0 < end).unwrap_or(last)
    }

    /// The first address of a tier.
    #[inline]
    pub fn start(&self, tier: usize) -> PhysicalAddress {
        PhysicalAddress(if tier == 0 { 0 } else { self.ends[tier - 1] })
    }

    /// The counters of a tier.
    pub fn counts(&self, tier: usize) -> TierCounts {
        self.tiers[tier].counts()
    }

    /// The tiers, read-only.
    pub fn tiers(&self) -> &[Tier] {
        &self.tiers
    }
}

impl MemoryPort for TieredMemory {
    #[inline]
    fn submit(&mut self, at: Picoseconds, mut request: Request) -> (When, usize) {
        let tier = self.tier_of(request.address);
        request.address.0 -= self.start(tier).0;
        (self.tiers[tier].submit(at, request), tier)
    }

    fn next_completion(&mut self) -> Option<Completion> {
        next_completion(&mut self.tiers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Kind;
    use crate::request::RequestId;
    use crate::tier::TierModel;
    use crate::tier::queueing::QueueingConfig;
    use crate::units::Bytes;

    #[test]
    fn an_address_goes_to_the_tier_it_is_in() {
        let tier = |name: &str, ns| TierConfig {
            name: name.into(),
            capacity: Bytes::mib(1),
            model: TierModel::Queueing(QueueingConfig::dram(ns, 20.0, 1)),
        };
        let mut m = TieredMemory::new(&[tier("fast", 80.0), tier("slow", 240.0)]).unwrap();
        for (address, expected, ns) in
            [(0, 0, 80), ((1 << 20) - 64, 0, 80), (1 << 20, 1, 240), ((2 << 20) - 64, 1, 240)]
        {
            let address = PhysicalAddress(address);
            let request = Request { id: RequestId(1), address, kind: Kind::Read };
            let at = Picoseconds(address.0 * 1000);
            let (done, tier) = m.submit(at, request);
            assert_eq!(tier, expected);
            assert_eq!(done, When::At(at + Picoseconds::from_ns(ns)));
        }
        assert_eq!((m.counts(0).reads, m.counts(1).reads), (2, 2));
        assert!(TieredMemory::new(&[]).is_err());
    }
}
