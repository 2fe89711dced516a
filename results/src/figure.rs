//! The columns of a reproduced figure's table.

table! {
    /// A value of a figure.
    pub struct FigureRow in "figure" {
        /// PAPER/FIGURE.
        figure: String,
        /// Its row: a workload, or a number that is varied.
        row: String,
        /// Its column: a policy or another setting.
        column: String,
        /// The measure's name, with its unit.
        measure: String,
        /// The value; its unit is in the measure's name.
        value: f64,
    }
}
