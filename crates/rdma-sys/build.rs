//! Nothing to build: a build script is what Cargo asks for beside `links`.
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
