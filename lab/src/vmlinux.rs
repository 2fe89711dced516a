//! Extracts the kernel proper from a compressed image, once, so that no guest has to unpack it with
//! an emulated processor: QEMU can start it directly if it has the PVH entry point. Its addresses
//! are then as linked, the same on every boot.
//!
//! Offsets are those of the x86 boot protocol (Documentation/arch/x86/boot.rst in Linux, "The
//! Real-Mode Kernel Header" and `payload_offset`).

use std::io::{self, Read};

/// Far more than the size of any kernel.
const VMLINUX_MAX_BYTES: u64 = 512 << 20;

/// Type of the note with the PVH entry point (Xen's public/elfnote.h).
const XEN_ELFNOTE_PHYS32_ENTRY: u32 = 18;

/// The kernel in this image, or the reason why the image has to be booted unextracted.
pub(crate) fn from_image(image: &[u8]) -> Result<Vec<u8>, String> {
    let payload = payload(image).ok_or("it is no bzImage of boot protocol 2.08 or later")?;
    if !payload.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        return Err("its kernel is not compressed with zstd".to_owned());
    }
    let mut vmlinux = Vec::new();
    let decoder = zstd::stream::read::Decoder::with_buffer(payload)
        // Four bytes of length follow the frame.
        .map(|decoder| decoder.single_frame())
        .map_err(|e: io::Error| e.to_string())?;
    decoder.take(VMLINUX_MAX_BYTES).read_to_end(&mut vmlinux).map_err(|e| e.to_string())?;
    if !has_pvh_entry(&vmlinux) {
        return Err("its kernel has no PVH entry point".to_owned());
    }
    Ok(vmlinux)
}

fn payload(image: &[u8]) -> Option<&[u8]> {
    let u32_at = |at: usize| {
        let bytes = image.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let protocol = u16::from_le_bytes(image.get(0x206..0x208)?.try_into().ok()?);
    if image.get(0x202..0x206)? != b"HdrS" || protocol < 0x0208 {
        return None;
    }
    // For old loaders, zero means four.
    let setup_sectors = match *image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let begin = (setup_sectors + 1) * 512 + usize::try_from(u32_at(0x248)?).ok()?;
    let bytes = usize::try_from(u32_at(0x24c)?).ok()?;
    image.get(begin..begin.checked_add(bytes)?)
}

fn has_pvh_entry(vmlinux: &[u8]) -> bool {
    let Ok(elf) = goblin::elf::Elf::parse(vmlinux) else { return false };
    elf.iter_note_headers(vmlinux).into_iter().flatten().flatten().any(|note| {
        note.n_type == XEN_ELFNOTE_PHYS32_ENTRY && note.name.trim_end_matches('\0') == "Xen"
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn image(protocol: u16, offset: u32, bytes: u32, body: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&protocol.to_le_bytes());
        image[0x248..0x24c].copy_from_slice(&offset.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&bytes.to_le_bytes());
        image.extend_from_slice(body);
        image
    }

    #[test]
    fn the_payload_is_where_the_header_says() {
        assert_eq!(payload(&image(0x020f, 2, 3, b"xxabcxx")), Some(&b"abc"[..]));
        assert_eq!(payload(&image(0x0207, 2, 3, b"xxabcxx")), None);
        assert_eq!(payload(&image(0x020f, 2, 30, b"xxabcxx")), None);
        assert_eq!(payload(&image(0x020f, u32::MAX, u32::MAX, b"")), None);
    }

    #[test]
    fn images_that_cannot_be_unpacked_say_why() {
        let why = |image: &[u8]| from_image(image).expect_err("no kernel in it");
        assert!(why(b"").contains("no bzImage"));
        assert!(
            why(&image(0x020f, 0, 4, b"\x1f\x8b\x08\x00")).contains("not compressed with zstd")
        );
        let zstd = zstd::encode_all(&b"not an ELF file"[..], 1).expect("compressible");
        let bytes = u32::try_from(zstd.len()).expect("short");
        assert!(why(&image(0x020f, 0, bytes, &zstd)).contains("no PVH entry"));
        // Cut short.
        assert!(from_image(&image(0x020f, 0, bytes - 4, &zstd)).is_err());
    }

    proptest! {
        #[test]
        fn garbage_does_no_harm(
            offset in any::<u32>(), bytes in any::<u32>(),
            body in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = from_image(&image(0x020f, offset, bytes, &body));
            let _ = from_image(&body);
            let _ = has_pvh_entry(&body);
        }
    }
}
