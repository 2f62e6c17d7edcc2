//! Checks the layers: which crates may depend on which.

use std::path::Path;

use anyhow::{Context as _, Result};
use cargo_metadata::{Dependency, DependencyKind, MetadataCommand};

use super::Finding;

/// A crate that users may depend on.
struct Layer {
    name: &'static str,
    may_use: &'static [&'static str],
    unsafe_code: bool,
}

const fn layer(name: &'static str, may_use: &'static [&'static str], unsafe_code: bool) -> Layer {
    Layer { name, may_use, unsafe_code }
}

/// The layers, starting with the lowest one. A new crate needs a row here and one in the table of
/// ARCHITECTURE.md.
const LAYERS: &[Layer] = &[
    layer("rdma-types", &[], false),
    layer("rdma-message", &["rdma-types"], false),
    layer("rdma-sys", &["rdma-types"], true),
    layer("rdma-proto", &["rdma-types"], false),
    layer("rdma-soft", &["rdma-types", "rdma-sys", "rdma-proto"], true),
    layer("rdma-mem", &["rdma-types", "rdma-sys"], true),
    layer("rdma-qp", &["rdma-types", "rdma-sys", "rdma-mem"], true),
    layer("rdma-cm", &["rdma-types", "rdma-sys", "rdma-proto", "rdma-mem", "rdma-qp"], true),
    layer("rdma-connect", &["rdma-types", "rdma-message", "rdma-mem", "rdma-qp", "rdma-cm"], false),
    layer(
        "rdma-channel",
        &[
            "rdma-types",
            "rdma-message",
            "rdma-sys",
            "rdma-mem",
            "rdma-qp",
            "rdma-cm",
            "rdma-connect",
        ],
        true,
    ),
    layer(
        "rdma-async",
        &["rdma-types", "rdma-message", "rdma-mem", "rdma-qp", "rdma-cm", "rdma-connect"],
        true,
    ),
    layer(
        "rdma-group",
        &["rdma-types", "rdma-mem", "rdma-qp", "rdma-connect", "rdma-channel", "rdma-async"],
        false,
    ),
    layer("rdma-tonic", &["rdma-async"], false),
    layer(
        "rdma",
        &[
            "rdma-types",
            "rdma-soft",
            "rdma-mem",
            "rdma-qp",
            "rdma-cm",
            "rdma-channel",
            "rdma-async",
            "rdma-group",
        ],
        false,
    ),
];

/// Crates that are never published. They may use all crates, but the layers may use them only in
/// tests.
const TOOLS: &[&str] = &[
    "benches",
    "conformance",
    "copy_file",
    "greeter",
    "hello",
    "rdma-dropin",
    "rdma-dropin-cm",
    "rdma-examples",
    "rdma-examples-common",
    "rdma-soft-files",
    "rdma-soft-run",
    "rdma-tools",
    "sim",
    "softroce",
    "test-support",
    "xtask",
];

/// Returns the names of the crates that must not contain unsafe code.
pub(crate) fn without_unsafe() -> impl Iterator<Item = &'static str> {
    LAYERS.iter().filter(|layer| !layer.unsafe_code).map(|layer| layer.name)
}

/// Returns the names of the crates that users may depend on.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    LAYERS.iter().map(|layer| layer.name)
}

/// A member of the workspace, and its dependencies on other members.
#[derive(Debug)]
pub(crate) struct Package {
    name: String,
    /// The path of the manifest, relative to the root.
    manifest: String,
    manifest_text: String,
    edges: Vec<Dependency>,
}

/// Reads the members and their dependencies, using cargo.
pub(crate) fn packages(root: &Path) -> Result<Vec<Package>> {
    let metadata = MetadataCommand::new().current_dir(root).no_deps().exec()?;
    let members: Vec<_> = metadata.packages.iter().map(|p| p.name.to_string()).collect();
    let mut packages = Vec::new();
    for package in metadata.packages {
        let path = &package.manifest_path;
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
        let manifest = path.strip_prefix(&metadata.workspace_root).unwrap_or(path);
        packages.push(Package {
            name: package.name.to_string(),
            manifest: manifest.to_string(),
            manifest_text: text,
            edges: package.dependencies.into_iter().filter(|d| members.contains(&d.name)).collect(),
        });
    }
    Ok(packages)
}

pub(crate) fn check(packages: &[Package]) -> Vec<Finding> {
    packages.iter().flat_map(check_package).collect()
}

fn check_package(package: &Package) -> Vec<Finding> {
    let layer = LAYERS.iter().find(|layer| layer.name == package.name);
    if layer.is_none() && !TOOLS.contains(&package.name.as_str()) {
        let what = format!("no layer is known for `{}`; add it to {}", package.name, file!());
        return vec![Finding::new(&package.manifest, 1, what)];
    }
    let wrong = package.edges.iter().filter_map(|edge| Some((edge, problem(layer, edge)?)));
    wrong.map(|(edge, what)| Finding::new(&package.manifest, line(package, edge), what)).collect()
}

fn problem(layer: Option<&Layer>, edge: &Dependency) -> Option<String> {
    let to = &edge.name;
    let pin = edge.req.to_string();
    if edge.kind == DependencyKind::Development {
        // If this dependency had a version, publishing would require that this version was
        // published before.
        return (pin != "*").then(|| {
            format!("dev-dependency `{to}` has a version; write `{to} = {{ path = \"…\" }}` alone")
        });
    }
    let layer = layer?;
    if !layer.may_use.contains(&to.as_str()) {
        let allowed = match layer.may_use {
            [] => "no other crate of the workspace".to_owned(),
            some => some.join(", "),
        };
        let name = layer.name;
        return Some(format!("`{name}` must not use `{to}`, only {allowed}; see ARCHITECTURE.md"));
    }
    (!pin.starts_with('=')).then(|| {
        format!(
            "`{to}` is not pinned: the crates are released together; use `{to}.workspace = true`"
        )
    })
}

/// Returns the line of the manifest that declares the dependency, within the section for this kind
/// of dependency.
fn line(package: &Package, edge: &Dependency) -> usize {
    let section = match edge.kind {
        DependencyKind::Development => "dev-dependencies",
        DependencyKind::Build => "build-dependencies",
        _ => "dependencies",
    };
    let names = |text: &str, name: &str| {
        let rest = text.strip_prefix(name);
        rest.is_some_and(|rest| {
            !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-' || c == '_')
        })
    };
    let mut inside = false;
    for (at, text) in package.manifest_text.lines().enumerate() {
        if let Some(header) = text.strip_prefix('[') {
            let header = header.split(']').next().unwrap_or(header);
            let own = header.ends_with(&format!(".{section}.{}", edge.name))
                || header == format!("{section}.{}", edge.name);
            if own {
                return at + 1;
            }
            inside = header == section || header.ends_with(&format!(".{section}"));
        } else if inside && names(text, &edge.name) {
            return at + 1;
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a workspace of empty crates. Each member is a crate's name and the end of its
    /// manifest. Returns the findings.
    fn workspace(members: &[(&str, &str)]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let mut root =
            "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\n[workspace.dependencies]\n"
                .to_owned();
        for (name, end) in members {
            root += &format!("{name} = {{ path = \"crates/{name}\", version = \"=0.1.0\" }}\n");
            let head = format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\n");
            write(&format!("crates/{name}/Cargo.toml"), &(head + end));
            write(&format!("crates/{name}/src/lib.rs"), "");
        }
        write("Cargo.toml", &root);
        check(&packages(dir.path()).unwrap()).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn edges_downwards_pass() {
        let found = workspace(&[
            ("rdma-types", ""),
            ("rdma-sys", "[dependencies]\nrdma-types.workspace = true\n"),
            ("rdma-soft", "[dependencies]\nrdma-sys.workspace = true\n"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn an_edge_upwards_fails_at_its_line() {
        let soft = "[dependencies]\nrdma-mem.workspace = true\n";
        let found = workspace(&[("rdma-mem", ""), ("rdma-soft", soft)]);
        assert_eq!(found.len(), 1);
        let start = "crates/rdma-soft/Cargo.toml:5: `rdma-soft` must not use `rdma-mem`";
        assert!(found[0].starts_with(start), "{found:?}");
    }

    #[test]
    fn build_optional_and_target_edges_count_too() {
        for section in ["build-dependencies", "target.'cfg(unix)'.dependencies"] {
            let sys = format!("[{section}]\nrdma-mem.workspace = true\n");
            assert_eq!(workspace(&[("rdma-mem", ""), ("rdma-sys", &sys)]).len(), 1, "{section}");
        }
        let sys = "[dependencies.rdma-mem]\nworkspace = true\noptional = true\n";
        let found = workspace(&[("rdma-mem", ""), ("rdma-sys", sys)]);
        assert!(found[0].starts_with("crates/rdma-sys/Cargo.toml:4:"), "{found:?}");
    }

    #[test]
    fn no_layer_uses_a_tool_but_its_tests_may() {
        let edge = "test-support = { path = \"../test-support\" }\n";
        for (section, findings) in [("dependencies", 1), ("dev-dependencies", 0)] {
            let sys = format!("[{section}]\n{edge}");
            let found = workspace(&[("test-support", ""), ("rdma-sys", &sys)]);
            assert_eq!(found.len(), findings, "{section}: {found:?}");
        }
    }

    #[test]
    fn versions_are_exact_between_layers_and_absent_in_tests() {
        let sys = "[dependencies]\nrdma-types = { path = \"../rdma-types\", version = \"0.1\" }\n";
        let found = workspace(&[("rdma-types", ""), ("rdma-sys", sys)]);
        assert!(found[0].contains("`rdma-types` is not pinned"), "{found:?}");
        let mem = "[dev-dependencies]\nrdma-soft.workspace = true\n";
        let found = workspace(&[("rdma-soft", ""), ("rdma-mem", mem)]);
        assert!(found[0].contains("dev-dependency `rdma-soft` has a version"), "{found:?}");
    }

    #[test]
    fn an_unknown_crate_fails() {
        let found = workspace(&[("rdma-new", "")]);
        assert!(found[0].starts_with("crates/rdma-new/Cargo.toml:1: no layer"), "{found:?}");
    }
}
