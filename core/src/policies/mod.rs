//! The policies, one file each, and their registry. To add one: write its file beside these,
//! name it here, and add its row to [`REGISTRY`].

mod access_unit;
mod amp;
mod colloid;
mod first_touch;
mod granularity;
mod interleave;
mod lfu;
mod lists;
mod lru;
mod memtis;
mod optimum;
mod physical;
mod random;
mod ranked;
mod sampled;
mod terrace;
mod tpp;

use crate::policy::PolicyKind;

/// Parameters that have another name since the last release: policy, old name and new name. Old
/// names are read until the next one.
pub fn renamed_parameters() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    terrace::RENAMED.iter().map(|&(old, new)| (terrace::KIND.name, old, new))
}

/// Every policy there is.
pub static REGISTRY: &[PolicyKind] = &[
    first_touch::KIND,
    interleave::KIND,
    lru::KIND,
    lfu::KIND,
    random::KIND,
    lists::KIND,
    amp::KIND,
    granularity::DYNAMIC,
    granularity::STATIC_4K,
    granularity::STATIC_64K,
    granularity::STATIC_2M,
    physical::KIND,
    tpp::KIND,
    memtis::KIND,
    colloid::KIND,
    optimum::KIND,
    terrace::KIND,
];
