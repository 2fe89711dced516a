//! Samples from the emulator of a virtual machine, at a named virtio port (`terrace lab --clock
//! memory --sample-reads N`).
//!
//! As a processor's, they take time of what runs. So where no number of reads for each is asked for,
//! it follows what runs ([`super::pace`]): the emulator is asked for another one through the same port, as
//! four bytes, the lowest first. Which of its processors takes a sample is unknown, so all count as one's.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Instant;

use terrace_recordings::perf_record::{
    MemorySample, Record, RecordCounts, RecordReader, SampleFormat,
};

use super::pace::SamplePace;
use super::{SampleError, SampleReads, SampleSource, SourceKind};
use crate::roots::Roots;

/// The port's name on QEMU's command line.
pub const PORT_NAME: &str = "terrace.samples";
/// Reads for each sample at first, and at least, where no number is asked for.
pub const READS_PER_SAMPLE: u32 = 400;
/// Most bytes read by one call: 3,600 samples.
const MOST_BYTES: usize = 256 << 10;

pub(super) const KIND: SourceKind = SourceKind {
    name: "port",
    summary: "the emulator of a virtual machine, at its port",
    open: |roots, reads| {
        Port::open(roots, reads).map(|port| Box::new(port) as Box<dyn SampleSource>)
    },
};

/// The port, opened.
pub struct Port {
    file: File,
    reader: RecordReader,
    buffer: Vec<u8>,
    /// Reads for each sample at first.
    reads: u32,
    /// How many reads there are for each sample; `None` where a number was asked for.
    pace: Option<SamplePace>,
    /// The clock of the pace.
    since: Instant,
}

impl Port {
    /// Opens the port of this name. Earlier samples come first, as far as they were kept.
    pub fn open(roots: &Roots, reads: SampleReads) -> Result<Self, SampleError> {
        let ports = std::fs::read_dir(roots.virtio_ports());
        let found = ports.into_iter().flatten().flatten().find(|port| {
            let name = std::fs::read_to_string(port.path().join("name"));
            name.is_ok_and(|name| name.trim() == PORT_NAME)
        });
        let Some(found) = found else {
            return Err(SampleError::Absent(format!("no virtio port named {PORT_NAME}")));
        };
        let path = roots.dev.join(found.file_name());
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path);
        let file = file.map_err(|source| SampleError::Unusable {
            name: path.display().to_string(),
            source,
            remedy: "one program reads a port at a time, as root",
        })?;
        let reader = RecordReader::new(SampleFormat::of_memory());
        let pace = SamplePace::at(READS_PER_SAMPLE.into(), u32::MAX.into());
        Ok(Port {
            file,
            reader,
            buffer: vec![0; 32 << 10],
            reads: reads.or(READS_PER_SAMPLE),
            pace: reads.is_auto().then_some(pace),
            since: Instant::now(),
        })
    }

    /// Asks the emulator for one sample in so many reads. Whether it can be asked.
    fn ask_for(&mut self, reads: u32) -> bool {
        let asked = self.file.write(&reads.to_le_bytes());
        if let Err(error) = &asked {
            tracing::debug!(%error, reads, "for each sample: the emulator cannot be asked");
        }
        asked.is_ok_and(|bytes| bytes == size_of::<u32>())
    }

    /// Another number of reads for each sample, where too many samples come or few.
    fn keep_pace(&mut self) {
        let RecordCounts { samples, lost, .. } = self.reader.counts();
        let (now, taken) = (self.since.elapsed(), samples.saturating_add(lost));
        let wanted = self.pace.as_mut().and_then(|pace| pace.count(now, &[taken]));
        let Some(wanted) = wanted.and_then(|wanted| u32::try_from(wanted).ok()) else { return };
        if self.ask_for(wanted)
            && let Some(pace) = &mut self.pace
        {
            pace.set(wanted.into());
        }
    }
}

impl SampleSource for Port {
    fn name(&self) -> &str {
        KIND.name
    }

    fn sample(&mut self, on: bool) -> std::io::Result<()> {
        if on {
            // Another program may have asked for others before, or this one, for what ran then.
            self.ask_for(self.reads);
            self.pace.iter_mut().for_each(|pace| pace.set(self.reads.into()));
        }
        Ok(())
    }

    fn read(&mut self, take: &mut dyn FnMut(&MemorySample)) -> std::io::Result<()> {
        let mut taken = 0;
        while taken < MOST_BYTES {
            let count = match self.file.read(&mut self.buffer) {
                // The emulator has ended, or not started.
                Ok(0) => break,
                Ok(count) => count,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            taken += count;
            self.reader.push(&self.buffer[..count], |record| {
                if let Record::Sample(sample) = &record {
                    take(sample);
                }
            });
        }
        self.keep_pace();
        Ok(())
    }

    fn counts(&self) -> RecordCounts {
        self.reader.counts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{folder, put};
    use terrace_recordings::perf_record::{put_lost, put_sample};

    #[test]
    fn the_port_is_found_by_its_name_and_read_to_its_end() {
        let (keep, roots) = folder(&[
            ("sys/class/virtio-ports/vport0p1/name", "control\n"),
            ("sys/class/virtio-ports/vport0p5/name", "terrace.samples\n"),
        ]);
        let error = Port::open(&roots, SampleReads::Auto).err().expect("no device").to_string();
        assert!(error.contains("vport0p5") && error.lines().count() == 1, "{error}");
        let mut bytes = Vec::new();
        for at in 1..=3 {
            let sample = MemorySample { time_ns: at, ..MemorySample::default() };
            put_sample(&mut bytes, &sample);
        }
        put_lost(&mut bytes, 7);
        let path = keep.path().join("dev/vport0p5");
        put(keep.path(), "dev/vport0p5", "");
        std::fs::write(path, &bytes).unwrap();
        let mut port = Port::open(&roots, SampleReads::OneIn(400)).unwrap();
        let mut times = Vec::new();
        port.read(&mut |sample| times.push(sample.time_ns)).unwrap();
        assert_eq!(times, [1, 2, 3]);
        assert_eq!((port.counts().samples, port.counts().lost), (3, 7));
        port.read(&mut |_| panic!("nothing is left")).unwrap();
    }

    #[test]
    fn the_emulator_is_asked_for_a_number_as_soon_as_samples_are_taken() {
        let (keep, roots) =
            folder(&[("sys/class/virtio-ports/vport0p5/name", "terrace.samples\n")]);
        for (reads, number) in [(SampleReads::Auto, 400u32), (SampleReads::OneIn(1000), 1000)] {
            put(keep.path(), "dev/vport0p5", "");
            let asked = || std::fs::read(keep.path().join("dev/vport0p5")).unwrap();
            let mut port = Port::open(&roots, reads).unwrap();
            assert!(asked().is_empty(), "whoever only asks what there is changes nothing");
            port.sample(true).unwrap();
            assert_eq!(asked(), number.to_le_bytes());
            // What was slowed down begins anew.
            port.pace.iter_mut().for_each(|pace| pace.set(51_200));
            port.sample(false).unwrap();
            port.sample(true).unwrap();
            let begins = port.pace.as_ref().map(SamplePace::accesses);
            assert_eq!(begins, reads.is_auto().then_some(400));
            assert_eq!(asked().len(), 8);
        }
    }

    #[test]
    fn a_host_without_one_says_so() {
        let (_keep, roots) = folder(&[]);
        let error = Port::open(&roots, SampleReads::Auto).err().expect("none").to_string();
        assert!(error.contains(PORT_NAME), "{error}");
    }
}
