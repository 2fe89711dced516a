//! Writes a fleet whose needs are known: a folder of histories for each host, and the fleet file.
//! usage: `cargo run -p terrace-fleet --example known_fleet -- FOLDER HOSTS SERVICES SEED`

use std::path::Path;

use terrace_fleet::synthetic::Shape;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, hosts, services, seed] = &arguments[..] else {
        anyhow::bail!("got {} arguments, expected FOLDER HOSTS SERVICES SEED", arguments.len());
    };
    let shape = Shape { hosts: hosts.parse()?, services: services.parse()?, seed: seed.parse()? };
    std::fs::create_dir_all(folder)?;
    shape.write(Path::new(folder), &[250.0])
}
