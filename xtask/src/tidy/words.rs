//! Words that mark unfinished work have no place in a finished change. Macros that do are clippy's affair.

use super::{Finding, by_hand, line_of};
use crate::tree::Tree;

/// In two halves, so that this file passes its own check.
const WORDS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME")];

const CHECKED: &[&str] = &[".rs", ".md", ".toml", ".yml", ".ci/run"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(CHECKED).filter(|(path, _)| by_hand(path)) {
        for word in WORDS {
            for (at, _) in text.match_indices(word).filter(|(at, _)| stands_alone(text, *at, word))
            {
                let what = format!("`{word}`: finish the work, or leave it out and open an issue");
                found.push(Finding::new(path, line_of(text, at), what));
            }
        }
    }
    found
}

fn stands_alone(text: &str, at: usize, word: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    !text[at + word.len()..].starts_with(in_word) && !text[..at].ends_with(in_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_fails_where_it_stands() {
        for word in WORDS {
            let text = format!("\n// {word} x\n");
            for path in ["a.rs", "b.md", "Cargo.toml", ".github/workflows/c.yml", ".ci/run"] {
                let found = check(&Tree::of([(path, &text)]));
                assert_eq!(found.len(), 1, "{path} {word}");
                assert!(found[0].to_string().starts_with(&format!("{path}:2: `{word}`")));
            }
        }
    }

    #[test]
    fn parts_of_other_words_and_generated_files_pass() {
        let text = WORDS.iter().map(|word| format!("A{word} {word}S _{word}\n"));
        assert_eq!(check(&Tree::of([("a.rs", &text.collect::<String>())])), []);
        assert_eq!(check(&Tree::of([("a/generated/b.rs", WORDS[0])])), []);
    }
}
