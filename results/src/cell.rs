//! A field of a row in a file: its physical kind, whether it may be null, and the conversions.

/// Physical kinds of columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// INT64.
    Integer,
    /// DOUBLE.
    Real,
    /// BYTE_ARRAY (UTF8).
    Text,
    /// BOOLEAN.
    Truth,
}

/// One value of a column.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    Integer(i64),
    Real(f64),
    Text(String),
    Truth(bool),
}

/// A type that can be a field of a row.
pub trait Cell: Sized {
    /// Physical kind of the field.
    const KIND: Kind;
    /// Whether the field may be null.
    const NULLABLE: bool = false;
    /// As a value, or `None` for null.
    fn to_value(&self) -> Option<Value>;
    /// From a value; `None` when it does not fit.
    fn from_value(value: Option<Value>) -> Option<Self>;
}

impl Cell for u64 {
    const KIND: Kind = Kind::Integer;
    fn to_value(&self) -> Option<Value> {
        // A count past 2^63 does not occur; a saturated one is better than a negative one.
        Some(Value::Integer(i64::try_from(*self).unwrap_or(i64::MAX)))
    }
    fn from_value(value: Option<Value>) -> Option<Self> {
        match value {
            Some(Value::Integer(v)) => u64::try_from(v).ok(),
            _ => None,
        }
    }
}

impl Cell for f64 {
    const KIND: Kind = Kind::Real;
    fn to_value(&self) -> Option<Value> {
        Some(Value::Real(*self))
    }
    fn from_value(value: Option<Value>) -> Option<Self> {
        match value {
            Some(Value::Real(v)) => Some(v),
            _ => None,
        }
    }
}

impl Cell for String {
    const KIND: Kind = Kind::Text;
    fn to_value(&self) -> Option<Value> {
        Some(Value::Text(self.clone()))
    }
    fn from_value(value: Option<Value>) -> Option<Self> {
        match value {
            Some(Value::Text(v)) => Some(v),
            _ => None,
        }
    }
}

impl Cell for bool {
    const KIND: Kind = Kind::Truth;
    fn to_value(&self) -> Option<Value> {
        Some(Value::Truth(*self))
    }
    fn from_value(value: Option<Value>) -> Option<Self> {
        match value {
            Some(Value::Truth(v)) => Some(v),
            _ => None,
        }
    }
}

impl<T: Cell> Cell for Option<T> {
    const KIND: Kind = T::KIND;
    const NULLABLE: bool = true;
    fn to_value(&self) -> Option<Value> {
        self.as_ref().and_then(T::to_value)
    }
    fn from_value(value: Option<Value>) -> Option<Self> {
        match value {
            None => Some(None),
            some => T::from_value(some).map(Some),
        }
    }
}
