//! The data-movement schemes: each a choice among the same parts (the paper, section IV-B), and
//! one of our own. To add one, write its row in [`REGISTRY`].

use terrace_hardware::error::ConfigError;

/// The condition under which a remote page moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// Never.
    Never,
    /// Its first access: blocks cannot be accessed remotely.
    FirstAccess,
    /// The page has become hot.
    Hot,
}

/// How a page is read from its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetch {
    /// Whole, in one packet.
    Whole,
    /// Block by block.
    Blocks,
}

/// The treatment of accesses to a page that is being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InFlight {
    /// They go to the pool like other accesses.
    Pass,
    /// They wait for their block, in the pending queues.
    Wait,
    /// They wait for their page; their number is not limited.
    WaitUnbounded,
}

/// Number of pages that migrate together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batch {
    /// A fixed number.
    Fixed(u32),
    /// The configured NPM, never changed.
    Npm,
    /// The configured NPM, changed by feedback.
    Feedback,
}

/// Additions of our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Own {
    /// The block that made the page hot is read first, and those around it next.
    pub critical_first: bool,
    /// Weights of the selector follow the waiting requests, instead of being fixed.
    pub adaptive_share: bool,
    /// A page that was passed through once is spent: it is not fetched, and leaves its buffer
    /// without migrating. Pages that were used again migrate.
    pub skip_spent: bool,
    /// The access count that makes a page hot follows the score: doubled when migrations cost more
    /// than they gain, halved when they gain.
    pub adaptive_threshold: bool,
}

/// A data-movement scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheme {
    /// The paper's name.
    pub name: &'static str,
    /// Summary in one line.
    pub summary: &'static str,
    /// Section that describes it.
    pub source: &'static str,
    /// The condition under which a page moves.
    pub trigger: Trigger,
    /// How a page is read.
    pub fetch: Fetch,
    /// Whether pages are kept in the switch's buffers until their batch migrates; else they are
    /// read when the node is ready and go straight to it.
    pub buffers: bool,
    /// The treatment of accesses to a page being read.
    pub in_flight: InFlight,
    /// Number of pages that migrate together.
    pub batch: Batch,
    /// Whether blocks and pages share bandwidth by weight, everywhere.
    pub partition: bool,
    /// Additions of our own.
    pub own: Own,
}

const NONE: Own = Own {
    critical_first: false,
    adaptive_share: false,
    skip_spent: false,
    adaptive_threshold: false,
};

const BLOCK: Scheme = Scheme {
    name: "BLOCK",
    summary: "every access to remote memory is one of a block; nothing moves",
    source: "the rack paper, section IV-B: the baseline with coherent interconnects",
    trigger: Trigger::Never,
    fetch: Fetch::Whole,
    buffers: false,
    in_flight: InFlight::Pass,
    batch: Batch::Npm,
    partition: false,
    own: NONE,
};

const CPM: Scheme = Scheme {
    name: "CPM",
    summary: "hot pages read block by block within a share of the bandwidth, kept in buffers, \
              migrated in batches whose size follows feedback",
    source: "the rack paper, section III: its proposal with everything enabled",
    trigger: Trigger::Hot,
    fetch: Fetch::Blocks,
    buffers: true,
    in_flight: InFlight::Wait,
    batch: Batch::Feedback,
    partition: true,
    own: NONE,
};

/// Every scheme.
pub static REGISTRY: &[Scheme] = &[
    Scheme {
        name: "PAGE",
        summary: "remote memory is accessed by the page only, as over RDMA; pages are buffered in \
                  the switch and migrate in batches",
        source: "the rack paper, section IV-B",
        trigger: Trigger::FirstAccess,
        buffers: true,
        in_flight: InFlight::WaitUnbounded,
        ..BLOCK
    },
    BLOCK,
    Scheme {
        name: "OTF",
        summary: "a hot page migrates at once, alone (on the fly), without buffers",
        source: "the rack paper, section IV-B, after its reference 19",
        trigger: Trigger::Hot,
        batch: Batch::Fixed(1),
        ..BLOCK
    },
    Scheme {
        name: "E25",
        summary: "hot pages migrate when there are 25, without buffers",
        source: "the rack paper, section IV-B, after its reference 21",
        trigger: Trigger::Hot,
        batch: Batch::Fixed(25),
        ..BLOCK
    },
    Scheme {
        name: "E100",
        summary: "hot pages migrate when there are 100, without buffers",
        source: "the rack paper, section IV-B, after its reference 21",
        trigger: Trigger::Hot,
        batch: Batch::Fixed(100),
        ..BLOCK
    },
    Scheme {
        name: "PB",
        summary: "CPM with pages read whole in one packet, no shares of bandwidth and no pending \
                  queues",
        source: "the rack paper, section IV-B",
        fetch: Fetch::Whole,
        in_flight: InFlight::Pass,
        partition: false,
        ..CPM
    },
    CPM,
    Scheme {
        name: "APM",
        summary: "CPM with the demanded block first, shares that follow what waits, pages passed \
                  through once read ahead but not migrated, and a threshold that follows the score",
        source: "our own",
        own: Own {
            critical_first: true,
            adaptive_share: true,
            skip_spent: true,
            adaptive_threshold: true,
        },
        ..CPM
    },
];

impl Scheme {
    /// The scheme of this name.
    pub fn by_name(name: &str) -> Result<&'static Scheme, ConfigError> {
        REGISTRY.iter().find(|s| s.name.eq_ignore_ascii_case(name)).ok_or_else(|| {
            let known: Vec<_> = REGISTRY.iter().map(|s| s.name).collect();
            ConfigError::new("scheme", format!("no {name:?}; expected one of {}", known.join(", ")))
        })
    }

    /// Pages that migrate together at first, if `npm` is configured.
    pub fn first_batch(&self, npm: u32) -> u32 {
        match self.batch {
            Batch::Fixed(pages) => pages,
            Batch::Npm | Batch::Feedback => npm,
        }
    }
}
