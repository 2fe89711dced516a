//! Samples from the emulator of a virtual machine, at a named virtio port (`terrace lab --clock
//! memory --sample-reads N`).

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

use terrace_recordings::perf_record::{
    MemorySample, Record, RecordCounts, RecordReader, SampleFormat,
};

use super::{SampleError, SampleSource, SourceKind};
use crate::roots::Roots;

/// The port's name on QEMU's command line.
pub const PORT_NAME: &str = "terrace.samples";
/// Most bytes read by one call: 3,600 samples.
const MOST_BYTES: usize = 256 << 10;

pub(super) const KIND: SourceKind = SourceKind {
    name: "port",
    summary: "the emulator of a virtual machine, at its port",
    open: |roots, _| Port::open(roots).map(|port| Box::new(port) as Box<dyn SampleSource>),
};

/// The port, opened.
pub struct Port {
    file: File,
    reader: RecordReader,
    buffer: Vec<u8>,
}

impl Port {
    /// Opens the port of this name. Earlier samples come first, as far as they were kept.
    pub fn open(roots: &Roots) -> Result<Self, SampleError> {
        let ports = std::fs::read_dir(roots.virtio_ports());
        let found = ports.into_iter().flatten().flatten().find(|port| {
            let name = std::fs::read_to_string(port.path().join("name"));
            name.is_ok_and(|name| name.trim() == PORT_NAME)
        });
        let Some(found) = found else {
            return Err(SampleError::Absent(format!("no virtio port named {PORT_NAME}")));
        };
        let path = roots.dev.join(found.file_name());
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
        let file = file.map_err(|source| SampleError::Unusable {
            name: path.display().to_string(),
            source,
            remedy: "one program reads a port at a time, as root",
        })?;
        let reader = RecordReader::new(SampleFormat::of_memory());
        Ok(Port { file, reader, buffer: vec![0; 32 << 10] })
    }
}

impl SampleSource for Port {
    fn name(&self) -> &str {
        KIND.name
    }

    fn read(&mut self, take: &mut dyn FnMut(&MemorySample)) -> std::io::Result<()> {
        let mut taken = 0;
        while taken < MOST_BYTES {
            let count = match self.file.read(&mut self.buffer) {
                // The emulator has ended, or not started.
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
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
        let error = Port::open(&roots).err().expect("no device").to_string();
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
        let mut port = Port::open(&roots).unwrap();
        let mut times = Vec::new();
        port.read(&mut |sample| times.push(sample.time_ns)).unwrap();
        assert_eq!(times, [1, 2, 3]);
        assert_eq!((port.counts().samples, port.counts().lost), (3, 7));
        port.read(&mut |_| panic!("nothing is left")).unwrap();
    }

    #[test]
    fn a_host_without_one_says_so() {
        let (_keep, roots) = folder(&[]);
        let error = Port::open(&roots).err().expect("none").to_string();
        assert!(error.contains(PORT_NAME), "{error}");
    }
}
