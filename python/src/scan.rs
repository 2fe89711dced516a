//! Input and output of a policy in Python: scans with their columns as NumPy arrays, budgets,
//! moves.

use std::sync::{Arc, OnceLock};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use terrace_core::bits::PageBits;
use terrace_core::remap::Remap;
use terrace_core::scan;
use terrace_core::select::KeyCounts;

use crate::column::Values;
use crate::errors::refused;

/// The greatest key of `select`: that of pages that are not to be promoted.
const COLDEST: u8 = 127;

/// The scan of a group's pages in one period. Arrays have an entry for each page, in the order of
/// addresses, and cannot be written to.
#[pyclass(frozen, module = "terrace")]
pub struct Scan {
    pub scan: scan::Scan,
    /// How its pages follow from those of the scan before; `None` where they are the same.
    remap: Option<Remap>,
    accessed: OnceLock<Arc<[u8]>>,
    fast: OnceLock<Arc<[u8]>>,
}

/// A byte of 0 or 1 for every bit.
fn unpacked(bits: &PageBits) -> Arc<[u8]> {
    // Each byte of the product has the bit of its number, at the top of another's way.
    let spread = |byte: u8| {
        let copies = u64::from(byte) * 0x0101_0101_0101_0101;
        let single = copies & 0x8040_2010_0804_0201;
        (((single + 0x7f7f_7f7f_7f7f_7f7f) | single) >> 7 & 0x0101_0101_0101_0101).to_le_bytes()
    };
    let mut bytes = Vec::with_capacity(64 * bits.words().len());
    for word in bits.words() {
        let mut all = [0; 64];
        for (eight, byte) in all.as_chunks_mut::<8>().0.iter_mut().zip(word.to_le_bytes()) {
            *eight = spread(byte);
        }
        bytes.extend_from_slice(&all);
    }
    bytes.truncate(bits.len());
    bytes.into()
}

impl Scan {
    /// A scan, and how its pages follow from those of the scan before.
    pub fn new(scan: scan::Scan, remap: Option<Remap>) -> Self {
        Scan { scan, remap, accessed: OnceLock::new(), fast: OnceLock::new() }
    }
}

#[pymethods]
impl Scan {
    /// Number of the period, from 0.
    #[getter]
    fn period(&self) -> u64 {
        self.scan.period
    }

    /// Periods lost since the scan before this one.
    #[getter]
    fn lost_periods(&self) -> u32 {
        self.scan.lost_periods
    }

    /// Number of pages.
    #[getter]
    fn pages(&self) -> usize {
        self.scan.pages()
    }

    fn __len__(&self) -> usize {
        self.scan.pages()
    }

    /// Size of a page in bytes.
    #[getter]
    fn page_size_bytes(&self) -> u64 {
        self.scan.layout.page_size().bytes()
    }

    /// Which pages were accessed in the period (bool).
    #[getter]
    fn accessed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let bytes = self.accessed.get_or_init(|| unpacked(&self.scan.accessed));
        Values::Truth(bytes.clone()).array(py)
    }

    /// Which pages were in fast memory during the period (bool).
    #[getter]
    fn fast<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let bytes = self.fast.get_or_init(|| unpacked(&self.scan.fast));
        Values::Truth(bytes.clone()).array(py)
    }

    /// Which pages the kernel has on its active lists (bool); None where the machine does not
    /// report that.
    #[getter]
    fn active<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let bits = self.scan.active.as_ref();
        bits.map(|bits| Values::Truth(unpacked(bits)).array(py)).transpose()
    }

    /// `accessed` as bits, 64 pages a word (uint64); bits past the last page are 0.
    #[getter]
    fn accessed_words<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Values::Long(self.scan.accessed.words().into()).array(py)
    }

    /// `fast` as bits, 64 pages a word (uint64); bits past the last page are 0.
    #[getter]
    fn fast_words<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Values::Long(self.scan.fast.words().into()).array(py)
    }

    /// Sampled reads of each page (uint16); None where reads are not sampled.
    #[getter]
    fn samples<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let samples = self.scan.counters.as_ref().and_then(|m| m.samples.clone());
        samples.map(|s| Values::Short(s).array(py)).transpose()
    }

    /// Virtual address of each page (uint64).
    #[getter]
    fn addresses<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let layout = &self.scan.layout;
        let size = layout.page_size().bytes();
        let mut all = Vec::with_capacity(layout.pages());
        for extent in layout.extents() {
            all.extend((0..extent.pages).map(|n| extent.start + n * size));
        }
        Values::Long(all.into()).array(py)
    }

    /// Further counters of the machine, by name; None where it measures nothing. Times are in ns,
    /// `reads` are lines read from fast and from slow memory, `read_latency_ps` the latency of one.
    #[getter]
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(m) = &self.scan.counters else { return Ok(None) };
        let all = pyo3::types::PyDict::new(py);
        all.set_item("elapsed_ns", m.elapsed_ns)?;
        all.set_item("migration_stall_ns", m.migration_stall_ns)?;
        all.set_item("slow_stall_ns", m.slow_stall_ns)?;
        all.set_item("references", m.references)?;
        all.set_item("reads", m.reads)?;
        all.set_item("read_latency_ps", m.read_latency_ps)?;
        all.set_item("reads_per_sample", m.reads_per_sample)?;
        Ok(Some(all.into_any()))
    }

    /// The old name of `counters`, with that of one of them, for one release.
    #[getter]
    fn measures<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        renamed(py, c"scan.measures is now scan.counters, and moving_ns migration_stall_ns")?;
        let counters = self.counters(py)?;
        if let (Some(all), Some(m)) = (&counters, &self.scan.counters) {
            all.set_item("moving_ns", m.migration_stall_ns)?;
        }
        Ok(counters)
    }

    /// The old name of `remap`, for one release.
    #[pyo3(signature = (array, fresh=None))]
    fn carry<'py>(
        &self,
        py: Python<'py>,
        array: Bound<'py, PyAny>,
        fresh: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        renamed(py, c"scan.carry is now scan.remap")?;
        self.remap(py, array, fresh)
    }

    /// Whether the group has other pages than in the scan before: indices are of other pages then,
    /// and data kept by page must go through `remap`.
    #[getter]
    fn pages_changed(&self) -> bool {
        self.remap.is_some()
    }

    /// An array of the pages of the scan before, for the pages of this one: entries go with their
    /// pages, new pages get `fresh`. An array of no page is one of new pages only.
    #[pyo3(signature = (array, fresh=None))]
    fn remap<'py>(
        &self,
        py: Python<'py>,
        array: Bound<'py, PyAny>,
        fresh: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let numpy = py.import("numpy")?;
        let had = array.len()?;
        let kind = array.getattr("dtype")?;
        let made = match fresh {
            Some(fresh) => numpy.call_method1("full", (self.scan.pages(), fresh, kind))?,
            None => numpy.call_method1("zeros", (self.scan.pages(), kind))?,
        };
        let Some(remap) = &self.remap else {
            if had == self.scan.pages() {
                return Ok(array);
            }
            if had == 0 {
                return Ok(made);
            }
            return Err(refused(format_args!(
                "an array of {had} entries, expected {} pages",
                self.scan.pages()
            )));
        };
        if had == 0 {
            return Ok(made);
        }
        if had != remap.old_pages() {
            return Err(refused(format_args!(
                "an array of {had} entries, expected the {} pages of the scan before",
                remap.old_pages()
            )));
        }
        for run in remap.runs() {
            let slice = |first: usize| {
                pyo3::types::PySlice::new(py, first as isize, (first + run.pages) as isize, 1)
            };
            made.set_item(slice(run.new), array.get_item(slice(run.old))?)?;
        }
        Ok(made)
    }

    fn __repr__(&self) -> String {
        format!(
            "<terrace.Scan of period {}: {} pages, {} accessed, {} fast>",
            self.scan.period,
            self.scan.pages(),
            self.scan.accessed.count(),
            self.scan.fast.count()
        )
    }
}

/// The bounds of a plan.
#[pyclass(frozen, module = "terrace")]
pub struct Budget {
    pub budget: scan::Budget,
}

#[pymethods]
impl Budget {
    /// A budget of this much fast memory, in pages, and of this many moves.
    #[new]
    #[pyo3(signature = (fast_pages, moved_pages=None))]
    fn new(fast_pages: u64, moved_pages: Option<u64>) -> Self {
        let moved_pages = moved_pages.unwrap_or(u64::MAX);
        Budget { budget: scan::Budget { fast_pages, moved_pages } }
    }

    /// Pages of the group that may be in fast memory.
    #[getter]
    fn fast_pages(&self) -> u64 {
        self.budget.fast_pages
    }

    /// Pages that may be moved, both of an exchange counted; None without bound.
    #[getter]
    fn moved_pages(&self) -> Option<u64> {
        Some(self.budget.moved_pages).filter(|n| *n != u64::MAX)
    }

    fn __repr__(&self) -> String {
        match self.moved_pages() {
            Some(moved) => format!("Budget(fast_pages={}, moved_pages={moved})", self.fast_pages()),
            None => format!("Budget(fast_pages={})", self.fast_pages()),
        }
    }
}

/// Pages to move, as `select` chose them; what `decide` may return.
#[pyclass(frozen, module = "terrace")]
pub struct Moves {
    pub moves: terrace_external::Moves,
}

#[pymethods]
impl Moves {
    /// Pages to promote (indices, uint64).
    #[getter]
    fn promote<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Values::Long(self.moves.up.iter_ones().map(|n| n as u64).collect()).array(py)
    }

    /// Pages to demote (indices, uint64).
    #[getter]
    fn demote<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Values::Long(self.moves.down.iter_ones().map(|n| n as u64).collect()).array(py)
    }

    fn __repr__(&self) -> String {
        format!("<terrace.Moves: {} up, {} down>", self.moves.up.count(), self.moves.down.count())
    }
}

/// Moves that put the pages with the smallest keys into fast memory, within the budget: the method
/// of Terrace's own policies, by counting keys instead of sorting pages.
///
/// `keys` has a number for each page (uint8, 0 to 127): 0 is the hottest, 127 a page that is not to
/// be promoted. `resident_bonus` is how much colder a page in fast memory must be to make way.
#[pyfunction]
#[pyo3(signature = (scan, budget, keys, resident_bonus=1))]
pub fn select(
    py: Python<'_>,
    scan: &Bound<'_, Scan>,
    budget: &Bound<'_, Budget>,
    keys: PyBuffer<u8>,
    resident_bonus: u8,
) -> PyResult<Moves> {
    let scan = &scan.get().scan;
    let pages = scan.pages();
    if keys.dimensions() != 1 || keys.item_count() != pages {
        return Err(refused(format_args!(
            "{} keys, expected one for each of {pages} pages",
            keys.item_count()
        )));
    }
    // Pages past the last have the key of pages that stay, as the counting requires.
    let mut padded = vec![COLDEST; pages.next_multiple_of(64)];
    keys.copy_to_slice(py, &mut padded[..pages])?;
    let greatest = padded.iter().fold(0, |all, key| all | key);
    if greatest > COLDEST {
        let key = padded.iter().max().copied().unwrap_or(0);
        return Err(refused(format_args!("a key of {key}, expected 0 (hottest) to {COLDEST}")));
    }
    let budget = budget.get().budget;
    Ok(py.detach(|| {
        let fast = scan.fast.words();
        let mut counts = KeyCounts::new();
        for (keys, &fast) in padded.as_chunks::<64>().0.iter().zip(fast) {
            counts.count(keys, fast);
        }
        let selection = counts.select(COLDEST, &budget, resident_bonus);
        let (mut up, mut down) = (vec![0; fast.len()], vec![0; fast.len()]);
        selection.moves(&padded, fast, |word, ups, downs| {
            up[word] = ups;
            down[word] = downs;
        });
        let [up, down] = [up, down].map(|words| PageBits::from_words(words, pages));
        Moves { moves: terrace_external::Moves { up, down } }
    }))
}

/// Warns the caller of an old name.
fn renamed(py: Python<'_>, message: &std::ffi::CStr) -> PyResult<()> {
    PyErr::warn(py, &py.get_type::<pyo3::exceptions::PyDeprecationWarning>(), message, 1)
}
