//! An empty build script: Cargo requires one for the key `links`.
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
