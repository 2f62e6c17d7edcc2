//! Files and functions stay short enough to be read in one go.

use super::{Finding, by_hand, tokens};
use crate::tree::Tree;

const FILE_LINES: usize = 600;
const FUNCTION_LINES: usize = 70;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(&[".rs"]).filter(|(path, _)| by_hand(path)) {
        let lines = text.lines().count();
        if lines > FILE_LINES {
            let what = format!("{lines} lines, {FILE_LINES} are allowed; split the file by nouns");
            found.push(Finding::new(path, lines, what));
        }
        let tokens = match tokens::lex(path, text) {
            Ok(tokens) => tokens,
            Err(finding) => {
                found.push(finding);
                continue;
            }
        };
        for function in tokens::functions(&tokens) {
            let (first, last) = function.lines;
            let lines = last - first + 1;
            if lines > FUNCTION_LINES {
                let name = function.name;
                let what =
                    format!("`{name}` has {lines} lines, {FUNCTION_LINES} are allowed; split it");
                found.push(Finding::new(path, first, what));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function_of(lines: usize) -> String {
        format!("fn a() {{\n{}}}\n", "    b();\n".repeat(lines - 2))
    }

    #[test]
    fn a_file_of_601_lines_fails_and_of_600_passes() {
        let (long, fits) = ("\n".repeat(601), "\n".repeat(600));
        let found = check(&Tree::of([("a.rs", &long), ("b.rs", &fits)]));
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().starts_with("a.rs:601: 601 lines"));
    }

    #[test]
    fn a_function_of_71_lines_fails_and_of_70_passes() {
        let text = format!("\n{}{}", function_of(71), function_of(70));
        let found = check(&Tree::of([("a.rs", &text)]));
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().starts_with("a.rs:2: `a` has 71 lines"));
    }

    #[test]
    fn generated_files_are_exempt() {
        let long = function_of(700);
        assert_eq!(check(&Tree::of([("crates/a/src/generated/b.rs", &long)])), []);
        assert_eq!(check(&Tree::of([("crates/a/src/b.rs", &long)])).len(), 2);
    }

    #[test]
    fn a_file_that_is_not_rust_fails() {
        assert_eq!(check(&Tree::of([("a.rs", "fn a( {")])).len(), 1);
    }
}
