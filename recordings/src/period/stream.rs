//! Scans one by one, each with its budget, for a process that decides elsewhere: the frames of a
//! recording of one group, without the container. Each holds only the changes since the scan
//! before, so every message has to arrive, in order.
//!
//! ```text
//! message = page_size:number scan budget
//! ```

use terrace_core::page::PageSize;
use terrace_core::scan::{Budget, Scan};

use super::CONTENT_VERSION;
use super::frame::{Decoder, Encoder, Frame};
use crate::codec::{Cursor, Malformed, put_number};

/// Turns scans into messages.
pub struct ScanEncoder(Encoder);

impl Default for ScanEncoder {
    fn default() -> Self {
        ScanEncoder(Encoder::new(1))
    }
}

impl ScanEncoder {
    /// The message of a scan and the budget of its plan.
    pub fn encode(&mut self, scan: &Scan, budget: &Budget) -> Vec<u8> {
        let mut message = Vec::new();
        put_number(&mut message, scan.layout.page_size().bytes());
        self.0.scan(&mut message, 0, scan);
        self.0.budget(&mut message, 0, scan.period, budget);
        message
    }
}

/// Turns messages into scans.
#[derive(Debug, Default)]
pub struct ScanDecoder(Option<(PageSize, Decoder)>);

impl ScanDecoder {
    /// The scan of a message, with its budget. After an error no later message can be read.
    pub fn decode(&mut self, message: &[u8]) -> Result<(Scan, Budget), String> {
        self.decoded(message).map_err(|Malformed(fault)| fault)
    }

    fn decoded(&mut self, message: &[u8]) -> Result<(Scan, Budget), Malformed> {
        let from = &mut Cursor::new(message);
        let bytes = from.number()?;
        let size = [PageSize::Base, PageSize::Huge].into_iter().find(|size| size.bytes() == bytes);
        let size = size.ok_or_else(|| Malformed(format!("pages of {bytes} bytes")))?;
        let (known, decoder) =
            self.0.get_or_insert_with(|| (size, Decoder::new(vec![size], CONTENT_VERSION)));
        if *known != size {
            return Err(Malformed(format!("pages of {bytes} bytes after others")));
        }
        match (decoder.frame(from)?, decoder.frame(from)?, from.remaining()) {
            (Frame::Scan { scan, .. }, Frame::Budget { budget, .. }, 0) => Ok((scan, budget)),
            (_, _, rest) => Err(Malformed(format!(
                "expected a scan, a budget and nothing else; {rest} bytes are left"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use terrace_core::bits::PageBits;
    use terrace_core::page::Layout;

    use super::*;

    fn bits(pages: usize, set: &[usize]) -> PageBits {
        let mut bits = PageBits::new(pages);
        set.iter().for_each(|&page| bits.set(page, true));
        bits
    }

    #[test]
    fn scans_arrive_as_they_were_and_layouts_once() {
        let small = Arc::new(Layout::contiguous(PageSize::Base, 100));
        let large = Arc::new(Layout::contiguous(PageSize::Base, 130));
        let (mut encoder, mut decoder) = (ScanEncoder::default(), ScanDecoder::default());
        let mut layouts = Vec::new();
        for (period, layout) in [(0, &small), (1, &small), (5, &large)] {
            let pages = layout.pages();
            let accessed = bits(pages, &[period, 99]);
            let scan = Scan::new(period as u64, layout.clone(), accessed, bits(pages, &[3]))
                .with_active(bits(pages, &[1]));
            let budget = Budget { fast_pages: 7, moved_pages: u64::MAX };
            let message = encoder.encode(&scan, &budget);
            let (got, allowed) = decoder.decode(&message).unwrap();
            assert_eq!((got.period, allowed), (scan.period, budget));
            assert_eq!((&got.accessed, &got.fast), (&scan.accessed, &scan.fast));
            assert_eq!((&got.active, &got.layout), (&scan.active, &scan.layout));
            layouts.push(got.layout);
        }
        assert!(Arc::ptr_eq(&layouts[0], &layouts[1]) && layouts[2].pages() == 130);
    }

    #[test]
    fn messages_that_make_no_sense_are_errors() {
        let layout = Arc::new(Layout::contiguous(PageSize::Base, 64));
        let scan = Scan::new(0, layout, bits(64, &[]), bits(64, &[]));
        let message = ScanEncoder::default().encode(&scan, &Budget::fast(1));
        for length in 0..message.len() {
            assert!(ScanDecoder::default().decode(&message[..length]).is_err(), "{length}");
        }
        let longer = [&message[..], &[0]].concat();
        assert!(ScanDecoder::default().decode(&longer).is_err());
        assert!(ScanDecoder::default().decode(&[7]).unwrap_err().contains("pages of 7 bytes"));
    }
}
