//! Declares a table: a struct whose fields are its columns, each with its meaning.

use crate::cell::{Kind, Value};

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Name of the column.
    pub name: &'static str,
    /// Physical kind of its values.
    pub kind: Kind,
    /// Whether its values may be null.
    pub nullable: bool,
}

/// A row of a table.
pub trait Table: Sized {
    /// The table's name; its file is `NAME.parquet`.
    const NAME: &'static str;
    /// Its columns, in order.
    fn columns() -> Vec<Column>;
    /// The values of this row, in the order of the columns.
    fn values(&self) -> Vec<Option<Value>>;
    /// A row from values in the order of the columns. The error is the column that does not fit.
    fn from_values(values: Vec<Option<Value>>) -> Result<Self, &'static str>;
}

/// Declares a row struct and makes it a [`Table`].
macro_rules! table {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident in $table:literal {
            $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
        $vis struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl $crate::Table for $name {
            const NAME: &'static str = $table;

            fn columns() -> Vec<$crate::Column> {
                use $crate::Cell;
                vec![$($crate::Column {
                    name: stringify!($field),
                    kind: <$type>::KIND,
                    nullable: <$type>::NULLABLE,
                },)*]
            }

            fn values(&self) -> Vec<Option<$crate::Value>> {
                use $crate::Cell;
                vec![$(self.$field.to_value(),)*]
            }

            fn from_values(values: Vec<Option<$crate::Value>>) -> Result<Self, &'static str> {
                use $crate::Cell;
                let mut values = values.into_iter();
                Ok($name {
                    $($field: <$type>::from_value(values.next().flatten())
                        .ok_or(stringify!($field))?,)*
                })
            }
        }
    };
}
