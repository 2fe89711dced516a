//! Tests of files that go into a guest and results that come out.

use super::*;

#[test]
fn words_reach_the_command_as_they_are() {
    let words = ["a b", "it's", "$HOME `x` \\", "new\nline", "", "*"];
    let job = GuestJob::new("printf").args(["[%s]"]).args(words).env("A", "x'y");
    let script = command_script(&job, "printf").unwrap();
    // The same shell grammar, on the host.
    let output = Command::new("sh").arg("-c").arg(&script).output().unwrap();
    let expected: String = words.iter().map(|word| format!("[{word}]")).collect();
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    assert!(script.contains(r"export A='x'\''y'"), "{script}");
}

#[test]
fn an_assertion_of_qemu_is_shown_without_its_source() {
    let failed = |message: &str| {
        probe_failure(&LabError::Qemu {
            status: "signal 6".to_owned(),
            message: message.to_owned(),
            console_tail: Vec::new(),
        })
    };
    let assertion = "qemu-system-x86_64: ../../target/i386/kvm/kvm.c:3183: kvm_buf_set_msrs: \
                     Assertion `ret == n' failed.";
    let short = "a guest under KVM failed: QEMU gave up in kvm_buf_set_msrs";
    assert_eq!(failed(assertion).as_deref(), Some(short));
    let plain = "a guest under KVM failed: Could not access KVM kernel module";
    assert_eq!(failed("Could not access KVM kernel module").as_deref(), Some(plain));
}

#[test]
fn odd_names_and_paths_are_refused() {
    assert!(command_script(&GuestJob::new("x").env("A B", ""), "x").is_err());
    assert!(command_script(&GuestJob::new("x").args(["\0"]), "x").is_err());
    for path in ["relative", "/", "/a/../b", "/a\nb"] {
        assert!(results_list(&GuestJob::new("x").result(path)).is_err(), "{path}");
    }
    let good = GuestJob::new("x").result("/tmp/out/").result("/proc/cmdline");
    assert_eq!(results_list(&good).unwrap(), "tmp/out\nproc/cmdline\n");
}

#[test]
fn a_filled_directory_for_results_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let job = GuestJob::new("x").result("/tmp/a").results_dir(dir.path());
    assert!(results_target(&job).is_ok());
    fs::write(dir.path().join("mine"), "").unwrap();
    let error = results_target(&job).err().unwrap().to_string();
    assert!(error.contains("has something in it"), "{error}");
}

fn archive_of(bytes: &[u8]) -> fs::File {
    use std::io::{Seek, Write};
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

#[test]
fn nothing_leaves_the_directory_for_results() {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(4);
    header.set_mode(0o644);
    // The library refuses such a name: it is written by hand.
    let name = b"../escaped";
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_cksum();
    archive.append(&header, &b"evil"[..]).unwrap();
    let bytes = archive.into_inner().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let _ = unpack(archive_of(&bytes), &inner);
    assert!(!dir.path().join("escaped").exists());
}

#[test]
fn a_damaged_archive_leaves_no_results_behind() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("out");
    let result = ResultsTarget::Given(target.clone()).fill(archive_of(&[b'x'; 3000]));
    let error = result.expect_err("garbage");
    assert!(matches!(error, LabError::Results { .. }), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn programs_of_a_build_go_on_the_path() {
    assert_eq!(program_place(Path::new("/usr/bin/perl")), Path::new("/usr/bin/perl"));
    let built = Path::new("/home/u/target/debug/tool");
    assert_eq!(program_place(built), Path::new("/usr/local/bin/tool"));
}
