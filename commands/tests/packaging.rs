//! The Debian package, the unit, the manifests: built, and read by tools of others, as far as these
//! are available.

use std::path::{Path, PathBuf};
use std::process::Command;

mod common;

fn tree(path: &str) -> PathBuf {
    common::tree(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(tree(path)).unwrap()
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let printed = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {printed}");
    printed
}

#[test]
fn the_debian_package_has_what_it_should_and_the_same_bytes_each_time() {
    let binaries = Path::new(common::TERRACE).parent().unwrap();
    for program in
        ["terraced", "terrace-workload", "libterrace_recorder_plugin.so", "terrace-supply"]
    {
        assert!(binaries.join(program).is_file(), "{program}: run 'cargo build --workspace' first");
    }
    let out = tempfile::tempdir().unwrap();
    let build = |folder: &str| {
        let out = out.path().join(folder);
        let (binaries, out) = (binaries.to_str().unwrap(), out.to_str().unwrap());
        let printed =
            run(tree("tools/deb").to_str().unwrap(), &["--binaries", binaries, "--out", out]);
        PathBuf::from(printed.lines().last().unwrap())
    };
    let package = build("a");
    let fields = run("dpkg-deb", &["--field", package.to_str().unwrap()]);
    assert!(fields.contains("Package: terrace\n") && fields.contains("Depends: libc6"), "{fields}");
    // It is refused where the C library is older than what the programs link to.
    let needed = run("objdump", &["-T", common::TERRACE]);
    let needed = needed.split("GLIBC_2.").skip(1).map(|rest| {
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
        digits.parse::<u32>().unwrap()
    });
    let named = fields.split("libc6 (>= 2.").nth(1).and_then(|rest| rest.split(')').next());
    let named: u32 = named.unwrap().parse().unwrap();
    assert!(needed.max().unwrap() <= named, "{fields}");
    let files = run("dpkg-deb", &["--contents", package.to_str().unwrap()]);
    for file in [
        "./usr/bin/terrace",
        "./usr/bin/terraced",
        "./usr/share/man/man8/terraced.8.gz",
        "./usr/share/man/man1/terrace-status.1.gz",
        "./usr/lib/systemd/system/terraced.service",
        "./etc/terrace/terraced.toml",
        "./usr/share/doc/terrace/operator.md",
        // The texts that the licences of the linked crates require, and the list of them.
        "./usr/share/doc/terrace/THIRD-PARTY.gz",
        "./usr/share/doc/terrace/rust-library.html.gz",
        "./usr/share/doc/terrace/terrace.cdx.json",
    ] {
        let line = files.lines().find(|l| l.ends_with(file));
        assert!(line.is_some_and(|l| l.contains(" root/root ")), "{file}: {files}");
    }
    // The programs in the package are those that were built, and start.
    let unpacked = out.path().join("unpacked");
    run("dpkg-deb", &["--raw-extract", package.to_str().unwrap(), unpacked.to_str().unwrap()]);
    let conffiles = std::fs::read_to_string(unpacked.join("DEBIAN/conffiles")).unwrap();
    assert_eq!(conffiles, "/etc/terrace/terraced.toml\n");
    let notices = unpacked.join("usr/share/doc/terrace/THIRD-PARTY.gz");
    assert!(run("gzip", &["-dc", notices.to_str().unwrap()]).contains("clap "), "no notices");
    let terraced = unpacked.join("usr/bin/terraced");
    let config = unpacked.join("etc/terrace/terraced.toml");
    run(terraced.to_str().unwrap(), &["check", config.to_str().unwrap()]);
    for script in ["postinst", "prerm", "postrm"] {
        run("sh", &["-n", unpacked.join("DEBIAN").join(script).to_str().unwrap()]);
    }
    let again = build("b");
    let is_same = std::fs::read(package).unwrap() == std::fs::read(again).unwrap();
    assert!(is_same, "another package of the same programs and sources");
}

#[test]
fn the_archive_has_what_make_install_installs_and_the_same_bytes_each_time() {
    let binaries = Path::new(common::TERRACE).parent().unwrap().to_str().unwrap();
    let out = tempfile::tempdir().unwrap();
    let build = |folder: &str, options: &[&str]| {
        let folder = out.path().join(folder);
        let output = Command::new(tree("tools/archive"))
            .args(["--binaries", binaries, "--out", folder.to_str().unwrap()])
            .args(options)
            .env("XZ_LEVEL", "-0")
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    // These programs need this host's libraries: nobody gets them as static ones.
    let (code, _, printed) = build("refused", &[]);
    assert_eq!(code, Some(2), "{printed}");
    assert!(printed.contains("terrace is not static: it needs ") && printed.contains("libc.so.6"));
    assert!(!out.path().join("refused").exists());

    let (code, archive, printed) = build("a", &["--dynamic"]);
    assert_eq!(code, Some(0), "{printed}");
    let name = format!("terrace-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    let archive = PathBuf::from(archive.trim_end());
    assert!(archive.ends_with(format!("{name}.tar.xz")), "{}", archive.display());
    let files = run("tar", &["-tvJf", archive.to_str().unwrap()]);
    for file in [
        "bin/terrace",
        "bin/terrace-workload",
        "sbin/terraced",
        "lib/terrace/libterrace_recorder_plugin.so",
        "lib/systemd/system/terraced.service",
        "etc/terrace/terraced.toml",
        "share/man/man8/terraced.8.gz",
        "share/man/man1/terrace-status.1.gz",
        "share/bash-completion/completions/terrace",
        "share/doc/terrace/operator.md",
        "share/doc/terrace/examples/terraced.toml",
        "share/doc/terrace/THIRD-PARTY.gz",
        "share/doc/terrace/rust-library.html.gz",
        "share/doc/terrace/terrace.cdx.json",
        "README.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
    ] {
        let line = files.lines().find(|l| l.ends_with(&format!(" {name}/{file}")));
        assert!(line.is_some_and(|l| l.contains(" 0/0 ")), "{file}: {files}");
    }
    let folder = archive.parent().unwrap().to_str().unwrap();
    run("sh", &["-c", &format!("cd {folder} && sha256sum --check --strict {name}.tar.xz.sha256")]);
    let (_, again, _) = build("b", &["--dynamic"]);
    let is_same = std::fs::read(archive).unwrap() == std::fs::read(again.trim_end()).unwrap();
    assert!(is_same, "another archive of the same programs and sources");
}

/// What is built, what is started: one image, by one name.
#[test]
fn manifests_and_chart_name_the_image_that_is_built() {
    let version = env!("CARGO_PKG_VERSION");
    let image = format!("terrace:{version}");
    let mut named = 0;
    for file in ["terrace.yaml", "restore.yaml"] {
        let all = keys(&read(&format!("packaging/kubernetes/{file}")));
        for (key, value) in all.iter().filter(|(key, _)| key.ends_with(".image")) {
            assert_eq!(*value, image, "{file}: {key}");
            named += 1;
        }
    }
    assert!(named >= 4, "{named} images in the manifests");
    let values = keys(&read("packaging/helm/terrace/values.yaml"));
    let value = |key: &str| values.iter().find(|(k, _)| k == key).unwrap().1.trim_matches('"');
    assert_eq!(format!("{}:{}", value("image.repository"), value("image.tag")), image);
    let built = read("packaging/image/Dockerfile");
    let defaults: Vec<_> = built.lines().filter_map(|l| l.strip_prefix("ARG VERSION=")).collect();
    assert_eq!(defaults, [version; 2]);
    assert!(built.contains(&format!("--tag {image} ")), "{built}");
    // The manifests start it by this path, and mount what is of the host there.
    assert!(
        built.contains("install -D -t /image/usr/bin /terrace/bin/terrace /terrace/sbin/terraced")
    );
    assert!(built.contains("/image/run/terrace /image/var/lib/terrace"));
    for document in ["docs/operator.md", "packaging/kubernetes/terrace.yaml"] {
        assert!(read(document).contains("make image"), "{document} does not say how it is built");
    }
}

/// A process of another user is started and ended with these, and with none that the unit has not asked
/// for.
#[test]
fn policies_of_ones_own_take_three_rights_more_and_nothing_else() {
    let drop_in = read("packaging/systemd/policies-of-ones-own.conf");
    let lines: Vec<_> = drop_in.lines().filter(|l| !l.starts_with('#')).collect();
    let rights = "CapabilityBoundingSet=CAP_SETUID CAP_SETGID CAP_KILL";
    assert_eq!(lines, ["[Service]", rights]);
}

#[test]
fn the_unit_gives_no_more_than_it_needs() {
    let unit = read("packaging/systemd/terraced.service");
    let value = |key: &str| {
        unit.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default()
    };
    // DAC_READ_SEARCH: page maps of programs are their users'. Without it no service that is not
    // root's can be tracked.
    assert_eq!(
        value("CapabilityBoundingSet"),
        "CAP_SYS_ADMIN CAP_SYS_PTRACE CAP_SYS_NICE CAP_DAC_READ_SEARCH CAP_CHOWN"
    );
    // No device but the Terrace kernel's, which PrivateDevices would hide.
    assert_eq!(value("PrivateDevices"), "");
    assert_eq!(value("DevicePolicy"), "closed");
    assert_eq!(value("DeviceAllow"), "/dev/tiermem rw");
    // A hanging daemon is noticed by the messages of its own process and not the guard's.
    assert_eq!(value("Type"), "notify");
    assert_eq!(value("NotifyAccess"), "main");
    assert_eq!(value("WatchdogSec"), "30");
    // A configuration that cannot work is not retried every few seconds.
    assert_eq!(value("RestartPreventExitStatus"), "2");
    assert_eq!(value("ExecStartPre"), "");
    for key in ["NoNewPrivileges", "ProtectHome", "MemoryDenyWriteExecute", "ProtectControlGroups"]
    {
        assert_eq!(value(key), "yes", "{key}");
    }
    // The guard must live long enough to put settings back, and find the journal.
    assert_eq!(value("KillMode"), "control-group");
    assert_eq!(value("RuntimeDirectoryPreserve"), "yes");
    assert!(value("ExecStopPost").ends_with("terraced restore"));
    // systemd's own reader, where available.
    let there = Command::new("systemd-analyze").arg("--version").output();
    if there.is_ok_and(|o| o.status.success()) {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("terraced.service");
        // The reader requires that the programs exist.
        let program =
            |unit: String, name: &str| unit.replace(&format!("/usr/bin/{name} "), "/bin/true ");
        std::fs::write(&copy, program(program(unit, "terraced"), "terrace")).unwrap();
        let output = Command::new("systemd-analyze")
            .args(["verify", copy.to_str().unwrap()])
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        let faults: Vec<_> = printed.lines().filter(|l| l.contains("terraced.service")).collect();
        assert!(faults.iter().all(|l| l.contains("man terraced")), "{printed}");
    }
}

#[test]
fn make_install_brings_a_unit_that_works_and_uninstall_takes_all_of_it_away() {
    let place = tempfile::tempdir().unwrap();
    let binaries = Path::new(common::TERRACE).parent().unwrap();
    let make = |target: &str| {
        let destination = format!("DESTDIR={}", place.path().display());
        let binaries = format!("BINARIES={}", binaries.display());
        let tree = tree(".");
        let tree = tree.to_str().unwrap();
        run("make", &["-s", "-C", tree, target, &destination, &binaries, "PREFIX=/opt/terrace"]);
    };
    let installed = || {
        let output = run("find", &[place.path().to_str().unwrap(), "-type", "f"]);
        let at = place.path().to_str().unwrap().to_owned();
        output.lines().map(|l| l.replace(&at, "")).collect::<Vec<_>>()
    };
    make("install-built");
    // The unit starts an existing program with an existing configuration.
    let unit = place.path().join("opt/terrace/lib/systemd/system/terraced.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    let files = installed();
    let mut commands = 0;
    for line in unit.lines().filter(|l| l.starts_with("Exec")) {
        for path in line.split(['=', ' ']).filter(|word| word.starts_with('/')) {
            assert!(files.contains(&path.to_owned()), "{line}: nothing at {path} in {files:?}");
            commands += 1;
        }
    }
    assert!(commands >= 4, "{unit}");
    assert!(!unit.contains("/usr/"), "{unit}");
    // Every example, and the dashboard.
    let examples = run("find", &[tree("examples").to_str().unwrap(), "-type", "f"]);
    let from = tree("examples").display().to_string();
    let examples = examples.lines().map(|line| line.replace(&from, ""));
    for file in examples.chain(["/terrace.json".to_owned()]) {
        let file = format!("/opt/terrace/share/doc/terrace/examples{file}");
        assert!(files.contains(&file), "{file} is not in {files:?}");
    }
    // An edited configuration stays, at another installation and at the end.
    let config = place.path().join("etc/terrace/terraced.toml");
    std::fs::write(&config, "# mine\n").unwrap();
    make("install-built");
    assert_eq!(std::fs::read_to_string(&config).unwrap(), "# mine\n");
    make("uninstall");
    assert_eq!(installed(), ["/etc/terrace/terraced.toml"]);
}

/// Keys of a YAML text by their path, for the YAML that our manifests use: maps, lists of maps and
/// block texts, indented by two.
fn keys(text: &str) -> Vec<(String, String)> {
    let mut path: Vec<(usize, String)> = Vec::new();
    let mut keys = Vec::new();
    let mut block: Option<usize> = None;
    for line in text.lines() {
        let bare = line.trim_start();
        let indent = line.len() - bare.len();
        if bare.is_empty() || block.is_some_and(|b| indent > b) {
            continue;
        }
        block = None;
        if bare.starts_with('#') || bare.starts_with("{{") {
            continue;
        }
        assert!(!line.contains('\t'), "a tab: {line}");
        let (indent, entry) = match bare.strip_prefix("- ") {
            Some(rest) => (indent + 2, rest),
            None => (indent, bare),
        };
        assert!(indent % 2 == 0, "indented by {indent}: {line}");
        let Some((key, value)) = entry.split_once(':') else { continue };
        path.retain(|(i, _)| *i < indent);
        path.push((indent, key.to_owned()));
        let value = value.trim();
        if value.ends_with('|') {
            block = Some(indent);
        }
        let name: Vec<&str> = path.iter().map(|(_, k)| k.as_str()).collect();
        keys.push((name.join("."), value.to_owned()));
    }
    keys
}

/// The block text below a key.
fn block(text: &str, key: &str) -> String {
    let mut lines = text.lines().skip_while(|l| !l.trim_start().starts_with(&format!("{key}: |")));
    let first = lines.next().unwrap();
    let indent = first.len() - first.trim_start().len() + 2;
    lines
        .take_while(|l| l.is_empty() || l.starts_with(&" ".repeat(indent)))
        .map(|l| l.get(indent..).unwrap_or_default().to_owned() + "\n")
        .collect()
}

#[test]
fn manifests_and_chart_say_the_same_and_their_configuration_is_one() {
    let plain = read("packaging/kubernetes/terrace.yaml");
    let values = read("packaging/helm/terrace/values.yaml");
    for (text, key) in [(&plain, "terraced.toml"), (&values, "config")] {
        let config = block(text, key);
        terrace_daemon::Config::parse(&config, key).unwrap_or_else(|e| panic!("{e}\n{config}"));
    }
    let chart = read("packaging/helm/terrace/templates/daemonset.yaml");
    let pod = |text: &str| -> Vec<String> {
        let of_pod = |(k, _): &(String, String)| k.starts_with("spec.template.spec.");
        keys(text).into_iter().filter(of_pod).map(|(k, _)| k).collect()
    };
    let in_plain = pod(&plain[plain.find("---").unwrap()..]);
    assert!(in_plain.len() > 25, "{in_plain:?}");
    for key in pod(&chart) {
        let optional = ["imagePullSecrets", "nodeSelector", "tolerations", "affinity"];
        let is_optional = optional.iter().any(|o| key.ends_with(o));
        assert!(is_optional || in_plain.contains(&key), "{key} is in the chart alone");
    }
    // A container has what the unit has, and no more; the init container puts settings back first.
    let unit = read("packaging/systemd/terraced.service");
    let unit_rights = unit.lines().find_map(|l| l.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let restore_only = read("packaging/kubernetes/restore.yaml");
    let init = |text: &str| -> String {
        let begin = text.find("      initContainers:").unwrap();
        text[begin..begin + text[begin..].find("\n      containers:").unwrap()].to_owned()
    };
    for (text, what) in [(&plain, "manifest"), (&chart, "chart"), (&restore_only, "restore.yaml")] {
        assert!(!text.contains("privileged:"), "{what}");
        assert!(init(text).contains("exec /usr/bin/terraced restore\""), "{what}");
        let added: Vec<&str> =
            text.lines().filter_map(|l| l.trim().strip_prefix("add: ")).collect();
        assert!(!added.is_empty(), "{what}");
        for rights in added {
            let names = rights.trim_matches(['[', ']']).split(", ");
            let names: Vec<String> =
                names.map(|n| format!("CAP_{}", n.trim_matches('"'))).collect();
            let mut of_unit: Vec<&str> = unit_rights.split(' ').collect();
            let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
            of_unit.sort_unstable();
            names.sort_unstable();
            assert_eq!(names, of_unit, "{what}");
        }
        let drops = text.matches("drop: [\"ALL\"]").count();
        let contexts = text.matches("securityContext:").count();
        assert_eq!(drops, contexts, "{what}: a container keeps rights that it was not given");
    }
    assert_eq!(init(&plain), init(&restore_only));
    // Every value that the templates use exists.
    let known: Vec<String> = keys(&values).into_iter().map(|(k, _)| k).collect();
    for template in ["daemonset", "configmap"] {
        let text = read(&format!("packaging/helm/terrace/templates/{template}.yaml"));
        for asked in text.split(".Values.").skip(1) {
            let key: String =
                asked.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '.').collect();
            assert!(known.contains(&key), "{template}: no value '{key}' in {known:?}");
        }
    }
    // The versions are the workspace's.
    let version = format!("appVersion: \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(read("packaging/helm/terrace/Chart.yaml").contains(&version));
}

#[test]
fn what_has_no_daemon_to_ask_is_refused_with_its_remedy() {
    let place = common::Place::new();
    for arguments in [
        "status --socket none.sock",
        "explain g --socket none.sock",
        "top --once --socket none.sock",
        "reload --socket none.sock",
        "heatmap g --out x.svg --socket none.sock",
    ] {
        place.run(arguments).refused(&["none.sock", "no terraced listens", "start it"]);
    }
    place.run("heatmap g --out x.txt").refused(&["expected a name in .svg or .png"]);
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn a_picture_of_results_is_an_svg_and_a_png() {
    let place = common::with_results();
    place.run("heatmap good --out heat.svg").good();
    place.run("heatmap good --out heat.png").good();
    let svg = std::fs::read_to_string(place.path("heat.svg")).unwrap();
    assert!(svg.starts_with("<svg xmlns=") && svg.contains("<image ") && svg.contains("</svg>"));
    let png = std::fs::read(place.path("heat.png")).unwrap();
    assert!(png.starts_with(b"\x89PNG\r\n\x1a\n") && png.len() > 200);
    place.run("heatmap good --run nosuch --out x.svg").refused(&["0 heat maps fit"]);
}
