//! Checks that no file is too long to be read in one go, and that each one is Rust. Clippy's
//! `too_many_lines` checks the length of functions.

use super::{Finding, by_hand, tokens};
use crate::tree::Tree;

const FILE_LINES: usize = 600;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(&[".rs"]).filter(|(path, _)| by_hand(path)) {
        let lines = text.lines().count();
        if lines > FILE_LINES {
            let what = format!("{lines} lines, {FILE_LINES} are allowed; split the file by nouns");
            found.push(Finding::new(path, lines, what));
        }
        found.extend(tokens::lex(path, text).err());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_601_lines_fails_and_of_600_passes() {
        let (long, fits) = ("\n".repeat(601), "\n".repeat(600));
        let found = check(&Tree::of([("a.rs", &long), ("b.rs", &fits)]));
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().starts_with("a.rs:601: 601 lines"));
    }

    #[test]
    fn generated_files_are_exempt() {
        let long = "\n".repeat(700);
        assert_eq!(check(&Tree::of([("crates/a/src/generated/b.rs", &long)])), []);
        assert_eq!(check(&Tree::of([("crates/a/src/b.rs", &long)])).len(), 1);
    }

    #[test]
    fn a_file_that_is_not_rust_fails() {
        assert_eq!(check(&Tree::of([("a.rs", "fn a( {")])).len(), 1);
    }
}
