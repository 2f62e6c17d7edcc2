//! Checks that no words for unfinished work remain; clippy checks for such macros. Also forbids
//! phrases that cannot be understood when a sentence is read by itself, as in the hover text of an
//! editor.

use super::{Finding, by_hand, line_of};
use crate::tree::Tree;

/// The words are split in two halves, like the phrases below, so that this file passes its own
/// check.
const WORDS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME")];

const CHECKED: &[&str] = &[".rs", ".md", ".toml", ".yml", ".ci/run"];

/// The forbidden phrases, each with advice on what to write instead.
const PHRASES: &[(&str, &str)] = &[
    (concat!("As ", "of ["), "write \"The errors of [`x`]\", or \"Like [`x`]\""),
    (concat!("as ", "of ["), "write \"the errors of [`x`]\", or \"like [`x`]\""),
    (concat!("As ", "there."), "name the item that is meant, with a link"),
    (concat!("The ", "own"), "write whose: \"This end's\", \"Its\""),
    (concat!("the ", "own"), "write whose: \"its own\", \"this queue pair's\""),
    (concat!("has ", "not to"), "write \"need not\" or \"does not have to\""),
];

const PROSE: &[&str] = &[".rs", ".md"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(CHECKED).filter(|(path, _)| by_hand(path)) {
        for word in WORDS {
            let what = "finish the work, or leave it out and open an issue";
            find(path, text, word, what, &mut found);
        }
    }
    for (path, text) in tree.ending(PROSE).filter(|(path, _)| by_hand(path)) {
        for (phrase, instead) in PHRASES {
            find(path, text, phrase, instead, &mut found);
        }
    }
    found
}

fn find(path: &str, text: &str, words: &str, what: &str, found: &mut Vec<Finding>) {
    for (at, _) in text.match_indices(words).filter(|(at, _)| stands_alone(text, *at, words)) {
        found.push(Finding::new(path, line_of(text, at), format!("`{words}`: {what}")));
    }
}

/// Returns true if the words at this position are not part of a longer word. If they end with a
/// sign, anything may follow.
fn stands_alone(text: &str, at: usize, words: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    let goes_on = words.ends_with(in_word) && text[at + words.len()..].starts_with(in_word);
    !goes_on && !text[..at].ends_with(in_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_fails_at_its_line() {
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
    fn each_phrase_fails_at_its_line_in_code_and_pages_with_advice() {
        for (phrase, instead) in PHRASES {
            let text = format!("\n/// x {phrase} `y`\n");
            for path in ["a.rs", "b.md"] {
                let found = check(&Tree::of([(path, &text)]));
                assert_eq!(found.len(), 1, "{path} {phrase}");
                assert_eq!(found[0].to_string(), format!("{path}:2: `{phrase}`: {instead}"));
            }
            assert_eq!(check(&Tree::of([("Cargo.toml", &text)])), []);
        }
    }

    #[test]
    fn adjacent_characters_do_not_hide_a_phrase_that_ends_in_a_sign() {
        let (list, there) = (PHRASES[0].0, PHRASES[2].0);
        let text = format!("/// {list}x]\n/// {there}\n/// ({there}x)\n");
        assert_eq!(check(&Tree::of([("a.rs", &text)])).len(), 3);
    }

    #[test]
    fn parts_of_other_words_and_generated_files_pass() {
        let text = WORDS.iter().map(|word| format!("A{word} {word}S _{word}\n"));
        assert_eq!(check(&Tree::of([("a.rs", &text.collect::<String>())])), []);
        assert_eq!(check(&Tree::of([("a/generated/b.rs", WORDS[0])])), []);
        let (own, not) = (PHRASES[4].0, PHRASES[5].0);
        let owner = format!("{own}er {own}_x {not}o many, x{not}");
        assert_eq!(check(&Tree::of([("a.rs", &owner)])), []);
        assert_eq!(check(&Tree::of([("a/generated/b.rs", PHRASES[4].0)])), []);
    }
}
