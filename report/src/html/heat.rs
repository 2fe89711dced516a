//! Heat maps: addresses against periods, with the accessed share and the share in fast memory.
//!
//! The bins of a run are placed on a raster, holes between mappings left out, and the raster is
//! embedded as a PNG: a few kilobytes where a rectangle per cell would take megabytes.

use std::fmt::Write;

use base64::Engine;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};
use terrace_results::HeatRow;

use super::picture::{AXIS_WORDS, Fault, Ground, SCALE, TITLE, escape, picture, px, stroke, words};
use super::theme::{AXIS, GROUND, HEAT, PLACE, Ramp};
use super::timeline::WIDTH;
use crate::format::{bytes, count};

/// Rows and columns that a raster has at most, and at least where there are many maps.
const ROWS: usize = 256;
const COLUMNS: usize = 300;
const LEAST: usize = 48;
/// Cells that all rasters of a report have together at most: keeps the file below two megabytes.
const CELLS: usize = 1_400_000;

const LEFT: f64 = 118.0;
const BETWEEN: f64 = 26.0;
const RIGHT: f64 = 18.0;
const TITLE_ROOM: f64 = 24.0;
const MAP: f64 = 190.0;
const AXIS_ROOM: f64 = 36.0;
/// Least distance between two addresses on the axis.
const ADDRESS_APART: f64 = 15.0;

/// Shades of a ramp in a PNG, beside the one for no memory.
const SHADES: usize = 64;
/// The colour of a cell where no memory was mapped: grey on light and on dark.
const UNMAPPED: [u8; 4] = [128, 134, 144, 70];

/// A stretch of mapped addresses.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Mapping {
    space: u64,
    from: u64,
    /// One past the last address.
    to: u64,
    /// Bytes mapped below it, in the mappings before.
    below: f64,
}

/// The bins of one run and group on a raster.
pub(super) struct HeatMap {
    mappings: Vec<Mapping>,
    total_bytes: f64,
    first: u64,
    /// One past the last period.
    end: u64,
    rows: usize,
    columns: usize,
    /// Row by row from the lowest address; NaN where nothing was mapped.
    accessed: Vec<f64>,
    fast: Vec<f64>,
}

/// How large a raster may be when so many maps are drawn: rows, columns.
pub(super) fn raster_max(maps: usize) -> (usize, usize) {
    let share = CELLS as f64 / (2.0 * maps.max(1) as f64 * (ROWS * COLUMNS) as f64);
    let side = share.sqrt().min(1.0);
    let scaled = |n: usize| ((n as f64 * side) as usize).max(LEAST);
    (scaled(ROWS), scaled(COLUMNS))
}

impl HeatMap {
    /// Places bins on a raster; none where they cover nothing.
    pub(super) fn new(bins: &[&HeatRow], (rows_max, columns_max): (usize, usize)) -> Option<Self> {
        let bins: Vec<&HeatRow> =
            bins.iter().copied().filter(|b| b.size_bytes > 0 && b.periods > 0).collect();
        let mappings = mappings(&bins);
        let last = mappings.last()?;
        let total_bytes = last.below + (last.to - last.from) as f64;
        let first = bins.iter().map(|b| b.period).min()?;
        let end = bins.iter().map(|b| b.period.saturating_add(b.periods)).max()?;
        let span = (end - first) as f64;
        if span <= 0.0 {
            return None;
        }
        // One row for the smallest bin, one column for the shortest, if there is room for them.
        let smallest = bins.iter().map(|b| b.size_bytes).min()? as f64;
        let shortest = bins.iter().map(|b| b.periods).min()? as f64;
        let rows = ((total_bytes / smallest).round() as usize).clamp(1, rows_max);
        let columns = ((span / shortest).round() as usize).clamp(1, columns_max);

        let mut weight = vec![0.0; rows * columns];
        let (mut accessed, mut fast) = (weight.clone(), weight.clone());
        for bin in bins {
            let Some(low) = offset(&mappings, bin.space, bin.address) else { continue };
            let high = low + bin.size_bytes as f64;
            let per_row = rows as f64 / total_bytes;
            let per_column = columns as f64 / span;
            let from = (bin.period - first) as f64 * per_column;
            let to = from + bin.periods as f64 * per_column;
            for (row, tall) in cover(low * per_row, high * per_row, rows) {
                for (column, wide) in cover(from, to, columns) {
                    let cell = row * columns + column;
                    let part = tall * wide;
                    // A share that is not known leaves the cell to the other bins.
                    if bin.accessed_share.is_finite() && bin.fast_share.is_finite() {
                        weight[cell] += part;
                        accessed[cell] += part * bin.accessed_share;
                        fast[cell] += part * bin.fast_share;
                    }
                }
            }
        }
        for (cell, weight) in weight.iter().enumerate() {
            // Nothing over nothing is NaN: not mapped.
            accessed[cell] /= weight;
            fast[cell] /= weight;
        }
        Some(HeatMap { mappings, total_bytes, first, end, rows, columns, accessed, fast })
    }

    /// Draws the accessed share and, beside it, the share in fast memory. `left` keeps the first
    /// period of maps below one another in line.
    pub(super) fn draw(&self, label: &str) -> String {
        let height = TITLE_ROOM + MAP + AXIS_ROOM;
        picture((WIDTH as u32, height as u32), label, |ground| {
            let width = (WIDTH - LEFT - BETWEEN - RIGHT) / 2.0;
            let mut overlay = String::new();
            let panels = [
                (LEFT, "Accessed share", &self.accessed, &HEAT),
                (LEFT + width + BETWEEN, "Share in fast memory", &self.fast, &PLACE),
            ];
            for (left, title, cells, ramp) in panels {
                self.panel(ground, &mut overlay, (left, width), title, cells, ramp)?;
            }
            self.addresses(ground)?;
            Ok(overlay)
        })
    }

    /// The accessed share and, beside it, the share in fast memory, a pixel a cell times `scale`,
    /// as a PNG.
    pub(super) fn png(&self, scale: usize) -> Option<Vec<u8>> {
        let between = 4;
        let width = (2 * self.columns + between) * scale;
        let mut shades = Self::shades(&HEAT);
        let places = Self::shades(&PLACE);
        let offset = shades.len() as u8;
        shades.extend(places);
        let mut pixels = Vec::with_capacity(width * self.rows * scale);
        for row in (0..self.rows).rev() {
            let cells = row * self.columns..(row + 1) * self.columns;
            let mut line = Vec::with_capacity(width);
            let mut put = |pixel: u8, times: usize| line.extend(std::iter::repeat_n(pixel, times));
            self.accessed[cells.clone()].iter().for_each(|c| put(shade(*c), scale));
            put(SHADES as u8, between * scale);
            self.fast[cells].iter().for_each(|c| put(offset + shade(*c), scale));
            (0..scale).for_each(|_| pixels.extend_from_slice(&line));
        }
        encode((width as u32, (self.rows * scale) as u32), &pixels, &shades).ok()
    }

    /// The colours of a ramp, and that of cells where nothing was mapped.
    fn shades(ramp: &Ramp) -> Vec<[u8; 4]> {
        let mut shades: Vec<[u8; 4]> =
            (0..SHADES).map(|i| ramp.at(i as f64 / (SHADES - 1) as f64)).collect();
        shades.push(UNMAPPED);
        shades
    }

    fn panel(
        &self,
        ground: &Ground,
        overlay: &mut String,
        (left, width): (f64, f64),
        title: &str,
        cells: &[f64],
        ramp: &Ramp,
    ) -> Result<(), Fault> {
        words(ground, (left, TITLE_ROOM / 2.0 - 1.0), title, TITLE, HPos::Left)?;
        let (all_width, all_height) = ground.dim_in_pixel();
        let area = ground.clone().margin(
            px(TITLE_ROOM),
            all_height as i32 - px(TITLE_ROOM + MAP + AXIS_ROOM),
            px(left),
            all_width as i32 - px(left + width),
        );
        let periods = self.first as f64 - 0.5..self.end as f64 - 0.5;
        let mut chart = ChartBuilder::on(&area)
            .x_label_area_size(px(AXIS_ROOM))
            .build_cartesian_2d(periods, 0.0..1.0)?;
        chart.plotting_area().fill(&GROUND.light)?;
        let whole = |v: &f64| if v.fract() == 0.0 { count(*v as u64) } else { String::new() };
        chart
            .configure_mesh()
            .disable_mesh()
            .disable_y_axis()
            .x_labels(8)
            .axis_style(stroke(AXIS, 1.0))
            .x_label_style(AXIS_WORDS.style(HPos::Center, VPos::Top))
            .x_label_formatter(&whole)
            .draw()?;
        let middle = (left + width / 2.0, TITLE_ROOM + MAP + AXIS_ROOM - 7.0);
        words(ground, middle, "period", AXIS_WORDS, HPos::Center)?;

        let (x, y) = (px(left), px(TITLE_ROOM));
        let (w, h) = (px(left + width) - x, px(TITLE_ROOM + MAP) - y);
        let image = self.image(cells, ramp);
        // Writing to a string cannot fail, here and below.
        let _ = write!(
            overlay,
            "<image x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" \
             preserveAspectRatio=\"none\" href=\"data:image/png;base64,{image}\"/>"
        );
        let mut holes = String::new();
        for mapping in &self.mappings[1..] {
            let _ = write!(holes, "M{x} {}h{w}", px(self.height_of(mapping.below)));
        }
        if !holes.is_empty() && self.mappings.len() <= ROWS / 4 {
            let _ = write!(
                overlay,
                "<path d=\"{holes}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{SCALE}\" \
                 stroke-dasharray=\"6 4\"/>",
                AXIS.hex()
            );
        }
        Ok(())
    }

    /// Where an offset into the mapped bytes is on the picture: low addresses at the bottom.
    fn height_of(&self, offset: f64) -> f64 {
        TITLE_ROOM + MAP * (1.0 - offset / self.total_bytes)
    }

    /// Writes addresses beside the map: where each mapping begins, and some within, as far as
    /// there is room.
    fn addresses(&self, ground: &Ground) -> Result<(), Fault> {
        let spaces = self.mappings.iter().any(|m| m.space != self.mappings[0].space);
        let mut taken: Vec<f64> = Vec::new();
        let mut put = |y: f64, address: u64, space: Option<u64>| -> Result<(), Fault> {
            if taken.iter().any(|other| (other - y).abs() < ADDRESS_APART) {
                return Ok(());
            }
            taken.push(y);
            let text = match space {
                Some(space) => format!("{space}: {address:#x}"),
                None => format!("{address:#x}"),
            };
            let tick = PathElement::new(
                vec![(px(LEFT - 4.0), px(y)), (px(LEFT), px(y))],
                stroke(AXIS, 1.0),
            );
            ground.draw(&tick)?;
            let small = super::picture::Lettering { size: 10.0, ..AXIS_WORDS };
            words(ground, (LEFT - 7.0, y), &text, small, HPos::Right)
        };
        // The largest first: where there is no room for all, the visible ones are named.
        let mut by_size: Vec<&Mapping> = self.mappings.iter().collect();
        by_size.sort_by_key(|m| std::cmp::Reverse(m.to - m.from));
        for mapping in &by_size {
            let space = spaces.then_some(mapping.space);
            put(self.height_of(mapping.below), mapping.from, space)?;
        }
        for mapping in &by_size {
            let size = mapping.to - mapping.from;
            // A power of two, so that the addresses are round ones.
            let mut step = 1u64 << 12;
            while (step as f64) < self.total_bytes / MAP * 40.0 && step < 1 << 62 {
                step <<= 1;
            }
            let mut address = (mapping.from / step).saturating_add(1).saturating_mul(step);
            while address > mapping.from && address - mapping.from < size {
                let y = self.height_of(mapping.below + (address - mapping.from) as f64);
                put(y, address, spaces.then_some(mapping.space))?;
                let Some(next) = address.checked_add(step) else { break };
                address = next;
            }
        }
        Ok(())
    }

    /// The extent of the map, in words.
    pub(super) fn extent(&self) -> String {
        let mappings = match self.mappings.len() {
            1 => String::new(),
            n => format!(" in {} mappings", count(n as u64)),
        };
        let row = bytes(self.total_bytes / self.rows as f64);
        format!("{}{mappings}, {row} per row", bytes(self.total_bytes))
    }

    /// The raster as a PNG in base64; empty if it could not be encoded.
    fn image(&self, cells: &[f64], ramp: &Ramp) -> String {
        let mut pixels = Vec::with_capacity(cells.len());
        for row in cells.chunks(self.columns).rev() {
            pixels.extend(row.iter().map(|share| shade(*share)));
        }
        let shades = Self::shades(ramp);
        let size = (self.columns as u32, self.rows as u32);
        let png = encode(size, &pixels, &shades).unwrap_or_default();
        escape(&base64::engine::general_purpose::STANDARD.encode(png))
    }
}

/// The shade of a share: the last is for no memory.
fn shade(share: f64) -> u8 {
    if share.is_nan() {
        return SHADES as u8;
    }
    (share.clamp(0.0, 1.0) * (SHADES - 1) as f64).round() as u8
}

fn encode(
    (width, height): (u32, u32),
    pixels: &[u8],
    shades: &[[u8; 4]],
) -> Result<Vec<u8>, png::EncodingError> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width, height);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette(shades.iter().flat_map(|s| [s[0], s[1], s[2]]).collect::<Vec<u8>>());
    encoder.set_trns(shades.iter().map(|s| s[3]).collect::<Vec<u8>>());
    encoder.set_compression(png::Compression::High);
    encoder.set_filter(png::Filter::NoFilter);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(out)
}

/// The stretches of addresses that the bins cover, in order, touching ones joined.
fn mappings(bins: &[&HeatRow]) -> Vec<Mapping> {
    let mut ranges: Vec<(u64, u64, u64)> = bins
        .iter()
        .map(|b| (b.space, b.address, b.address.saturating_add(b.size_bytes)))
        .filter(|(_, from, to)| from < to)
        .collect();
    ranges.sort_unstable();
    let mut all: Vec<Mapping> = Vec::new();
    for (space, from, to) in ranges {
        match all.last_mut() {
            Some(last) if last.space == space && from <= last.to => last.to = last.to.max(to),
            _ => all.push(Mapping { space, from, to, below: 0.0 }),
        }
    }
    let mut below = 0.0;
    for mapping in &mut all {
        mapping.below = below;
        below += (mapping.to - mapping.from) as f64;
    }
    all
}

/// Bytes mapped below an address.
fn offset(mappings: &[Mapping], space: u64, address: u64) -> Option<f64> {
    let i = mappings.partition_point(|m| (m.space, m.from) <= (space, address)).checked_sub(1)?;
    let mapping = mappings.get(i)?;
    Some(mapping.below + (address - mapping.from) as f64)
}

/// The cells that a stretch touches, and how much of each it covers.
fn cover(from: f64, to: f64, cells: usize) -> impl Iterator<Item = (usize, f64)> {
    let (from, to) = (from.max(0.0), to.min(cells as f64));
    let end = (to.ceil().max(0.0) as usize).min(cells);
    (from as usize..end)
        .map(move |cell| (cell, to.min((cell + 1) as f64) - from.max(cell as f64)))
        // Rounding leaves slivers of neighbours, which must not count as mapped.
        .filter(|(_, part)| *part > 1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bin(space: u64, address: u64, size: u64, period: u64, accessed: f64, fast: f64) -> HeatRow {
        HeatRow {
            space,
            address,
            size_bytes: size,
            period,
            periods: 1,
            accessed_share: accessed,
            fast_share: fast,
            ..HeatRow::default()
        }
    }

    #[test]
    fn a_bin_is_a_cell_where_there_is_room() {
        let bins = [
            bin(0, 0x1000, 0x1000, 5, 1.0, 0.0),
            bin(0, 0x2000, 0x1000, 5, 0.25, 1.0),
            // A hole of addresses, then a page that appears one period later.
            bin(0, 0x9_0000, 0x1000, 6, 0.5, 0.5),
        ];
        let map = HeatMap::new(&bins.iter().collect::<Vec<_>>(), (256, 300)).unwrap();
        assert_eq!((map.rows, map.columns), (3, 2));
        assert_eq!(map.mappings.len(), 2);
        assert_eq!(map.accessed[0], 1.0);
        assert_eq!(map.accessed[2], 0.25);
        assert_eq!(map.fast[2], 1.0);
        assert_eq!(map.accessed[5], 0.5);
        assert!(map.accessed[4].is_nan(), "not mapped yet");
    }

    #[test]
    fn bins_that_do_not_fit_are_averaged() {
        let bins: Vec<HeatRow> = (0..512)
            .map(|i| bin(0, i * 4096, 4096, 0, if i % 2 == 0 { 1.0 } else { 0.0 }, 1.0))
            .collect();
        let mut bins = bins;
        // A share that is not known leaves the cell to its other bin.
        bins[3].accessed_share = f64::NAN;
        let map = HeatMap::new(&bins.iter().collect::<Vec<_>>(), (256, 300)).unwrap();
        assert_eq!((map.rows, map.columns), (256, 1));
        assert_eq!(map.accessed[1], 1.0);
        let mut known = map.accessed.clone();
        known.remove(1);
        assert!(known.iter().all(|a| (a - 0.5).abs() < 1e-9));
        assert!(map.fast.iter().all(|a| (a - 1.0).abs() < 1e-9));
    }

    #[test]
    fn nonsense_is_drawn_as_far_as_it_goes() {
        let bins = [
            bin(0, u64::MAX - 4, u64::MAX, u64::MAX, f64::NAN, 0.0),
            bin(1, 0, u64::MAX, 0, 1.0, 1.0),
            bin(2, 7, 0, 1, 1.0, 1.0),
        ];
        let map = HeatMap::new(&bins.iter().collect::<Vec<_>>(), (256, 300)).unwrap();
        assert!(map.draw("nonsense").starts_with("<svg"));
        assert!(HeatMap::new(&[], (256, 300)).is_none());
        assert!(HeatMap::new(&[&bins[2]], (256, 300)).is_none());
    }

    #[test]
    fn many_maps_are_coarser() {
        assert_eq!(raster_max(1), (ROWS, COLUMNS));
        let (rows, columns) = raster_max(48);
        assert!(2 * 48 * rows * columns <= CELLS && rows >= LEAST);
    }
}
