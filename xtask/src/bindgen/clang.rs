//! Runs bindgen: selects the items of the headers, and the form in which they are generated.

use std::path::Path;

use anyhow::{Context as _, Result};
use bindgen::callbacks::{DeriveTrait, ImplementsTrait, ParseCallbacks};

use super::headers::Tree;

/// An architecture whose layout of structs is checked.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// The architecture's name, as in `target_arch`.
    pub(crate) arch: &'static str,
    triple: &'static str,
    /// The folder of the C library's headers in Debian's cross package (`libc6-dev-arm64-cross`).
    sysroot: Option<&'static str>,
}

impl Target {
    pub(crate) const ALL: [Target; 2] = [
        Target { arch: "x86_64", triple: "x86_64-linux-gnu", sysroot: None },
        Target {
            arch: "aarch64",
            triple: "aarch64-linux-gnu",
            sysroot: Some("/usr/aarch64-linux-gnu/include"),
        },
    ];
}

/// Declares the traits of C library types, which `rdma-sys` defines itself instead of generating
/// them.
#[derive(Debug)]
struct SystemTypes;

impl ParseCallbacks for SystemTypes {
    fn blocklisted_type_implements_trait(
        &self,
        name: &str,
        derive: DeriveTrait,
    ) -> Option<ImplementsTrait> {
        let integer = name.starts_with("__u") || name.starts_with("__be");
        match derive {
            DeriveTrait::Copy | DeriveTrait::Debug => Some(ImplementsTrait::Yes),
            DeriveTrait::Default if integer => Some(ImplementsTrait::Yes),
            _ => Some(ImplementsTrait::No),
        }
    }
}

/// Generates unformatted bindings of `infiniband/verbs.h` for `target`, with layout tests.
pub(crate) fn parse(tree: &Tree, target: Target) -> Result<String> {
    let mut arguments =
        vec![format!("--target={}", target.triple), format!("-I{}", tree.include.display())];
    if let Some(sysroot) = target.sysroot {
        if !Path::new(sysroot).join("stdint.h").exists() {
            anyhow::bail!("no {sysroot}/stdint.h: apt-get install libc6-dev-arm64-cross");
        }
        arguments.push(format!("-isystem{sysroot}"));
    }
    let rust_target = bindgen::RustTarget::stable(88, 0).ok().context("unknown to bindgen")?;
    let builder = bindgen::builder()
        .header(tree.include.join("infiniband/verbs.h").display().to_string())
        .clang_args(arguments)
        .rust_target(rust_target)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .use_core()
        .allowlist_file(".*/xtask/include/infiniband/verbs(_api)?[.]h")
        .allowlist_type("ib_uverbs_access_flags")
        .blocklist_file("/usr/(lib|include|local/include|aarch64-linux-gnu)/.*")
        .default_enum_style(bindgen::EnumVariation::NewType {
            is_bitfield: false,
            is_global: false,
        })
        .bitfield_enum(".*_flags|.*_mask")
        .constified_enum("_bindgen_ty_.*")
        .derive_default(true)
        .generate_comments(false)
        .layout_tests(true)
        .disable_header_comment()
        .formatter(bindgen::Formatter::None)
        .parse_callbacks(Box::new(SystemTypes));
    // bindgen panics if libclang cannot be loaded.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.generate()))
        .ok()
        .context("bindgen needs libclang: apt-get install libclang-dev")?
        .map(|bindings| bindings.to_string())
        .context("parsing the headers")
}
