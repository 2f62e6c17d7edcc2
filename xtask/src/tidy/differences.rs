//! Checks that the page about SoftRoCE's differences lists exactly those that the conformance suite
//! asserts.

use super::{Finding, line_of};
use crate::tree::Tree;

const PAGE: &str = "docs/rxe-differences.md";
const SUITE: &str = "crates/conformance/";

/// Checks that each entry of the page is asserted by a case, and that the entries are sorted. The
/// opposite is checked by the cases: each asserts, on every device, that the entry it names exists.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.text(PAGE) else {
        return vec![Finding::new(PAGE, 1, "missing; it lists the differences of SoftRoCE")];
    };
    let suite = || tree.ending(&[".rs"]).filter(|(path, _)| path.starts_with(SUITE));
    let mut found = Vec::new();
    let mut last = "";
    for (at, _) in page.match_indices("\n## ") {
        let name = page[at + 4..].lines().next().unwrap_or_default();
        let line = line_of(page, at + 1);
        let asserted = format!("\"{name}\"");
        if !suite().any(|(_, text)| text.contains(&asserted)) {
            let what =
                format!("`{name}`: no case asserts this difference; remove it, or write one");
            found.push(Finding::new(PAGE, line, what));
        }
        if name <= last {
            let what = format!("`{name}` comes after `{last}`; sort the entries");
            found.push(Finding::new(PAGE, line, what));
        }
        last = name;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(page: &str, case: &str) -> Vec<String> {
        let files = [(PAGE, page), ("crates/conformance/src/cases/a.rs", case)];
        let found = check(&Tree::of(files));
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_entry_is_asserted_and_in_its_place() {
        let page = "# Differences\n\n## aa-b\n\nText.\n\n## bb\n\nText.\n";
        let case = r#"device.differs("aa-b"); device.expected(1, "bb", 2);"#;
        assert_eq!(findings(page, case), [""; 0]);
        let unused = findings(page, r#"device.differs("bb")"#);
        assert!(unused.len() == 1 && unused[0].starts_with("docs/rxe-differences.md:3: `aa-b`"));
        let page = "\n## bb\n\n## aa-b\n";
        let unsorted = findings(page, case);
        assert!(unsorted.len() == 1 && unsorted[0].contains("sort"), "{unsorted:?}");
    }
}
