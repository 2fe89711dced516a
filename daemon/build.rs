//! Sets the build's identity.

fn main() {
    let folder = std::path::PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
    terrace_identity::embed::emit(&folder, env!("CARGO_PKG_VERSION"));
}
