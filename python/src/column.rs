//! Memory that Python reads through its buffer protocol: NumPy's arrays of a scan are views of it.
//! The only unsafe code of the package.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Values of one kind, shared and never changed.
#[derive(Clone)]
pub enum Values {
    /// A byte for each page: 0 or 1.
    Truth(Arc<[u8]>),
    /// 16 bits.
    Short(Arc<[u16]>),
    /// 64 bits.
    Long(Arc<[u64]>),
    /// 64 bits with a sign.
    Whole(Arc<[i64]>),
    /// Numbers of 64 bits.
    Number(Arc<[f64]>),
}

impl Values {
    /// NumPy's name of their kind.
    fn kind(&self) -> &'static str {
        match self {
            Values::Truth(_) => "?",
            Values::Short(_) => "u2",
            Values::Long(_) => "u8",
            Values::Whole(_) => "i8",
            Values::Number(_) => "f8",
        }
    }

    /// Their address, how many bytes they are, and how many bytes one is; the buffer protocol's name
    /// of their kind.
    fn parts(&self) -> (*const c_void, usize, usize, &'static CStr) {
        match self {
            Values::Truth(v) => (v.as_ptr().cast(), v.len(), 1, c"?"),
            Values::Short(v) => (v.as_ptr().cast(), 2 * v.len(), 2, c"H"),
            Values::Long(v) => (v.as_ptr().cast(), 8 * v.len(), 8, c"Q"),
            Values::Whole(v) => (v.as_ptr().cast(), 8 * v.len(), 8, c"q"),
            Values::Number(v) => (v.as_ptr().cast(), 8 * v.len(), 8, c"d"),
        }
    }

    /// A NumPy array over them. They live as long as it does.
    pub fn array<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static FROM_BUFFER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let from_buffer = FROM_BUFFER.import(py, "numpy", "frombuffer")?;
        let kind = self.kind();
        from_buffer.call1((Column { values: self }, kind))
    }
}

/// The object that owns an array's memory: its `base`.
#[pyclass(frozen, module = "terrace")]
pub struct Column {
    values: Values,
}

#[pymethods]
impl Column {
    // SAFETY: called by Python with a view that is its own to fill.
    unsafe fn __getbuffer__(
        this: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        if flags & ffi::PyBUF_WRITABLE != 0 {
            return Err(PyBufferError::new_err("this array cannot be written to; copy it"));
        }
        let (start, bytes, each, kind) = this.get().values.parts();
        // SAFETY: the view is not null and Python's to be filled. It gets a reference to this object,
        // which keeps the values in place as long as the view is there. `shape` is a box of its
        // own, which `__releasebuffer__` drops; `strides` points to the view's own `itemsize`.
        unsafe {
            (*view).buf = start.cast_mut();
            (*view).len = bytes as isize;
            (*view).readonly = 1;
            (*view).itemsize = each as isize;
            (*view).format = match flags & ffi::PyBUF_FORMAT {
                0 => ptr::null_mut(),
                _ => kind.as_ptr().cast_mut(),
            };
            (*view).ndim = 1;
            (*view).shape = match flags & ffi::PyBUF_ND {
                0 => ptr::null_mut(),
                _ => Box::into_raw(Box::new((bytes / each) as isize)),
            };
            (*view).internal = (*view).shape.cast();
            (*view).strides = match flags & ffi::PyBUF_STRIDES {
                ffi::PyBUF_STRIDES => &raw mut (*view).itemsize,
                _ => ptr::null_mut(),
            };
            (*view).suboffsets = ptr::null_mut();
            (*view).obj = this.into_ptr();
        }
        Ok(())
    }

    // SAFETY: called by Python with a view that `__getbuffer__` filled, once.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: `internal` is null or the box that `__getbuffer__` made, which is given back once.
        unsafe {
            if !(*view).internal.is_null() {
                drop(Box::from_raw((*view).internal.cast::<isize>()));
                (*view).internal = ptr::null_mut();
            }
        }
    }

    /// How many values there are.
    fn __len__(&self) -> usize {
        let (_, bytes, each, _) = self.values.parts();
        bytes / each
    }
}
