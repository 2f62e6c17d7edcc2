//! Checks that facts that are stated in two places agree.

use std::collections::BTreeSet;

use super::{Finding, line_of};
use crate::tree::Tree;

/// The files that repeat the version of the oldest supported compiler, and the text that precedes
/// it there.
const OLDEST: [(&str, &str); 3] = [
    ("README.md", "Rust "),
    ("CONTRIBUTING.md", "Rust "),
    (".github/workflows/ci.yml", "MSRV: \""),
];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = rust_version(tree);
    found.extend(safety_facts(tree));
    found.extend(verbs(tree));
    found.extend(variables(tree));
    found
}

/// Checks that the files in [`OLDEST`] state the oldest supported compiler as the root manifest
/// defines it.
fn rust_version(tree: &Tree) -> Vec<Finding> {
    let manifest = tree.text("Cargo.toml").unwrap_or_default();
    let Some(version) = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "))
    else {
        return vec![Finding::new("Cargo.toml", 1, "no `rust-version`; add it to the workspace")];
    };
    let version = version.trim_matches('"');
    let mut found = Vec::new();
    for (path, prefix) in OLDEST {
        let text = tree.text(path).unwrap_or_default();
        let mut said = 0;
        for (at, _) in text.match_indices(prefix) {
            let rest = &text[at + prefix.len()..];
            let other: String =
                rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
            let other = other.trim_end_matches('.');
            if other.is_empty() {
                continue;
            }
            said += 1;
            if other != version {
                let what =
                    format!("has {prefix}{other}, but the manifest has {version}; make them agree");
                found.push(Finding::new(path, line_of(text, at), what));
            }
        }
        if said == 0 {
            let what = format!("lacks the oldest compiler; write `{prefix}{version}`");
            found.push(Finding::new(path, 1, what));
        }
    }
    found
}

/// Checks that the page for C programmers mentions each function of the bindings.
fn verbs(tree: &Tree) -> Vec<Finding> {
    const PAGE: &str = "docs/from-c-verbs.md";
    let functions = tree.text("crates/rdma-sys/src/generated/functions.rs").unwrap_or_default();
    let names = functions.lines().filter_map(|line| line.strip_prefix("pub type "));
    let names = names.filter_map(|rest| rest.split_once(" =")).map(|(name, _)| name);
    let page = tree.text(PAGE).unwrap_or_default();
    let lacking = names.filter(|name| !page.contains(&format!("`{name}`")));
    lacking
        .map(|name| Finding::new(PAGE, 1, format!("`{name}` is missing; add its counterpart")))
        .collect()
}

/// Checks that `rdmatool doctor` knows each environment variable that the crates read, and no other.
fn variables(tree: &Tree) -> Vec<Finding> {
    const LIST: &str = "crates/rdma-tools/src/doctor/host.rs";
    const TOOL: &str = "crates/rdma-tools/";
    /// The opcodes' names, and the variable of a unit test.
    const NOT_READ: [&str; 3] = ["RDMA_READ", "RDMA_WRITE", "RDMA_X"];
    let named = |text: &str| -> BTreeSet<String> {
        let starts = text.match_indices("\"RDMA_").map(|(at, _)| &text[at + 1..]);
        let names = starts.filter_map(|rest| rest.split_once('"')).map(|(name, _)| name.to_owned());
        let is_name = |name: &str| name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        // Only tests read the variables with this prefix.
        let is_read = |name: &str| !name.starts_with("RDMA_TEST_") && !NOT_READ.contains(&name);
        names.filter(|name| is_name(name) && is_read(name)).collect()
    };
    let known = named(tree.text(LIST).unwrap_or_default());
    let published = |path: &&str| {
        path.starts_with("crates/rdma") && path.contains("/src/") && !path.starts_with(TOOL)
    };
    let sources = tree.ending(&[".rs"]).filter(|(path, _)| published(path));
    let read: BTreeSet<_> = sources.flat_map(|(_, text)| named(text)).collect();
    let differing = known.symmetric_difference(&read);
    differing
        .map(|name| {
            let what = match known.contains(name) {
                true => format!("no crate reads `{name}`; remove it from `VARIABLES`"),
                false => format!("a crate reads `{name}`; add it to `VARIABLES`"),
            };
            Finding::new(LIST, 1, what)
        })
        .collect()
}

/// Checks that a `SAFETY` comment cites facts that exist, and that their numbers are unique.
fn safety_facts(tree: &Tree) -> Vec<Finding> {
    const PAGE: &str = "SAFETY.md";
    let headings = tree.text(PAGE).unwrap_or_default().lines();
    let known: Vec<_> = headings
        .filter_map(|line| line.strip_prefix("## F"))
        .map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>())
        .collect();
    let mut found = Vec::new();
    for (_, fact) in known.iter().enumerate().filter(|(n, fact)| known[..*n].contains(fact)) {
        let what = format!("fact F{fact} exists twice; the later one needs another number");
        found.push(Finding::new(PAGE, 1, what));
    }
    for (path, text) in tree.ending(&[".rs", ".md"]) {
        for (at, _) in text.match_indices(PAGE) {
            let line = text[at + PAGE.len()..].lines().next().unwrap_or_default();
            for fact in cited(line).filter(|fact| !known.contains(fact)) {
                let what = format!("cites fact F{fact}, which {PAGE} does not have; add it there");
                found.push(Finding::new(path, line_of(text, at), what));
            }
        }
    }
    found
}

/// Returns the numbers of the cited facts in text such as ` F1, F2 and F3: because …`.
fn cited(line: &str) -> impl Iterator<Item = String> {
    let words = line.split([' ', ',', '/']).filter(|word| !matches!(*word, "" | "and"));
    words.map_while(|word| {
        let digits: String =
            word.strip_prefix('F')?.chars().take_while(char::is_ascii_digit).collect();
        (!digits.is_empty()).then_some(digits)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: (&str, &str) = ("Cargo.toml", "[workspace.package]\nrust-version = \"1.88\"\n");

    #[test]
    fn a_page_with_another_compiler_fails() {
        let tree = Tree::of([
            MANIFEST,
            ("README.md", "Needs Rust 1.88.\nRust is fun.\nRust 1.80 works.\n"),
            ("CONTRIBUTING.md", "Rust 1.88 or later\n"),
            (OLDEST[2].0, "env:\n  MSRV: \"1.87\"\n"),
        ]);
        let found = rust_version(&tree);
        assert_eq!(found.len(), 2);
        assert!(
            found[0]
                .to_string()
                .starts_with("README.md:3: has Rust 1.80, but the manifest has 1.88")
        );
        assert!(
            found[1].to_string().contains("ci.yml:2: has MSRV: \"1.87, but the manifest has 1.88")
        );
    }

    #[test]
    fn a_page_without_the_compiler_and_a_manifest_without_it_fail() {
        let tree = Tree::of([MANIFEST, ("README.md", "Rust 1.88"), ("CONTRIBUTING.md", "Rust")]);
        assert_eq!(rust_version(&tree).len(), 2);
        assert_eq!(rust_version(&Tree::of([("Cargo.toml", "")])).len(), 1);
    }

    #[test]
    fn a_function_that_the_page_lacks_fails() {
        let functions = (
            "crates/rdma-sys/src/generated/functions.rs",
            "use x;\npub type ibv_one =\n    fn();\npub type ibv_two = fn();\n",
        );
        let page = concat!("docs", "/from-c-verbs.md");
        assert_eq!(verbs(&Tree::of([functions, (page, "`ibv_one`, `ibv_two`")])), []);
        let found = verbs(&Tree::of([functions, (page, "`ibv_one`, `ibv_two_ex`")]));
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().contains("`ibv_two` is missing"), "{found:?}");
    }

    #[test]
    fn an_environment_variable_that_the_doctor_does_not_know_fails() {
        let list = ("crates/rdma-tools/src/doctor/host.rs", r#"["RDMA_A", "RDMA_B"]"#);
        let tree = |source| Tree::of([list, ("crates/rdma-soft/src/a.rs", source)]);
        assert_eq!(
            variables(&tree(r#"var("RDMA_A"); var_os("RDMA_B"); "RDMA_READ" "RDMA_TEST_A""#)),
            []
        );
        let found = variables(&tree(r#"var("RDMA_A"); var("RDMA_C");"#));
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("no crate reads `RDMA_B`"), "{found:?}");
        assert!(found[1].contains("a crate reads `RDMA_C`"), "{found:?}");
    }

    #[test]
    fn a_fact_that_does_not_exist_fails() {
        let page = ("SAFETY.md", "# Facts\n## F1 One\n## F2 Two\n");
        let cite = |facts| format!("// SAFETY: {}.md {facts}\n", "SAFETY");
        for facts in ["F1: as there", "F1, F2: both F9", "F2 and F1", "F1/F2 hold", "has more"] {
            assert_eq!(safety_facts(&Tree::of([page, ("a.rs", &cite(facts))])), [], "{facts}");
        }
        for facts in ["F3: no", "F1, F3: no", "F1 and F12", "F2/F0"] {
            let found = safety_facts(&Tree::of([page, ("a.rs", &cite(facts))]));
            assert_eq!(found.len(), 1, "{facts}");
            assert!(found[0].to_string().starts_with("a.rs:1: cites fact F"));
        }
        let twice = safety_facts(&Tree::of([("SAFETY.md", "# Facts\n## F1 One\n## F1 Two\n")]));
        assert_eq!(twice.len(), 1, "{twice:?}");
    }
}
