//! Answers the rules' questions about a Rust file from the file's tokens.
//!
//! Tokens are used instead of the syntax tree, because the bodies of macros have no tree: an
//! `unsafe` within `macro_rules!` counts too. Comments and strings are not code and never match.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use super::Finding;

/// Splits a file into tokens.
pub(crate) fn lex(path: &str, text: &str) -> Result<TokenStream, Finding> {
    text.parse().map_err(|error: proc_macro2::LexError| {
        let line = error.span().start().line;
        Finding::new(path, line, "this is not Rust: it cannot be split into tokens; mend it")
    })
}

/// Returns the lines that contain unsafe code, or an attribute that allows it.
///
/// The type of a function pointer (`unsafe extern "C" fn(…)`) does not count, because naming it
/// requires no permission.
pub(crate) fn unsafe_lines(tokens: &TokenStream) -> Vec<usize> {
    let mut lines = Vec::new();
    each_level(tokens, &mut |level| {
        for (at, tree) in level.iter().enumerate() {
            let after = &level[at + 1..];
            let opens = match tree {
                TokenTree::Ident(word) if word == "unsafe" => !is_pointer_type(after),
                TokenTree::Ident(word) if word == "allow" || word == "expect" || word == "warn" => {
                    matches!(after.first(), Some(TokenTree::Group(lints)) if names(lints, "unsafe_code"))
                }
                _ => false,
            };
            if opens {
                lines.push(tree.span().start().line);
            }
        }
    });
    lines.sort_unstable();
    lines
}

/// Returns the first line that contains this word.
pub(crate) fn line_of_word(tokens: &TokenStream, word: &str) -> Option<usize> {
    let mut first: Option<usize> = None;
    each_level(tokens, &mut |level| {
        for tree in level.iter().filter(|tree| is_word(tree, word)) {
            let line = tree.span().start().line;
            first = Some(first.map_or(line, |first| first.min(line)));
        }
    });
    first
}

/// Returns true if the file has the inner attribute `#![forbid(unsafe_code)]`.
pub(crate) fn forbids_unsafe(tokens: &TokenStream) -> bool {
    attributes(tokens).iter().any(|attribute| {
        let inner: Vec<_> = attribute.stream().into_iter().collect();
        matches!(&inner[..], [word, TokenTree::Group(lints)]
            if is_word(word, "forbid") && names(lints, "unsafe_code"))
    })
}

/// Returns the attributes that give an item a symbol name that C could link to, each with its line.
pub(crate) fn exports(tokens: &TokenStream) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for attribute in attributes(tokens) {
        for name in ["no_mangle", "export_name"] {
            if names(&attribute, name) {
                found.push((attribute.span_open().start().line, name));
            }
        }
    }
    found
}

/// Returns the part in brackets of each attribute.
fn attributes(tokens: &TokenStream) -> Vec<Group> {
    let mut found = Vec::new();
    each_level(tokens, &mut |level| {
        let is = |at: usize, char| matches!(level.get(at), Some(TokenTree::Punct(p)) if p.as_char() == char);
        for at in (0..level.len()).filter(|&at| is(at, '#')) {
            if let Some(TokenTree::Group(group)) = level.get(at + 1 + usize::from(is(at + 1, '!')))
                && group.delimiter() == Delimiter::Bracket
            {
                found.push(group.clone());
            }
        }
    });
    found
}

fn each_level(tokens: &TokenStream, visit: &mut impl FnMut(&[TokenTree])) {
    let level: Vec<_> = tokens.clone().into_iter().collect();
    visit(&level);
    for tree in level {
        if let TokenTree::Group(group) = tree {
            each_level(&group.stream(), visit);
        }
    }
}

fn is_word(tree: &TokenTree, word: &str) -> bool {
    matches!(tree, TokenTree::Ident(ident) if ident == word)
}

fn names(group: &Group, word: &str) -> bool {
    group.stream().into_iter().any(|tree| match tree {
        TokenTree::Group(inner) => names(&inner, word),
        tree => is_word(&tree, word),
    })
}

/// Returns true if the tokens after `unsafe` show that it belongs to the type of a function
/// pointer.
fn is_pointer_type(after: &[TokenTree]) -> bool {
    let abi = after.iter().take_while(|tree| !is_word(tree, "fn")).count();
    let only_abi = after[..abi].iter().enumerate().all(|(at, tree)| {
        if at == 0 { is_word(tree, "extern") } else { matches!(tree, TokenTree::Literal(_)) }
    });
    only_abi
        && abi <= 2
        && matches!(after.get(abi + 1), Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Parenthesis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> TokenStream {
        lex("x.rs", text).unwrap()
    }

    #[test]
    fn pointer_types_are_not_unsafe() {
        let text = "type A = fn(u8);\ntype B = unsafe extern \"C\" fn(u8);\ntype C = unsafe fn();";
        assert_eq!(unsafe_lines(&tokens(text)), [0; 0]);
    }

    #[test]
    fn each_kind_of_unsafe_code_is_seen() {
        for text in [
            "fn a() { unsafe { b() } }",
            "unsafe fn a() {}",
            "unsafe extern \"C\" fn a() {}",
            "unsafe extern \"C\" { fn a(); }",
            "unsafe impl Send for A {}",
            "unsafe trait A {}",
            "#[unsafe(link_section = \"x\")] static A: u8 = 0;",
            "#![allow(unsafe_code)]",
            "#[expect(dead_code, unsafe_code)] mod a;",
            "macro_rules! m { () => { unsafe { a() } } }",
        ] {
            assert_eq!(unsafe_lines(&tokens(text)), [1], "{text}");
        }
    }

    #[test]
    fn words_in_comments_and_strings_are_not_code() {
        let text =
            "// unsafe { }\n/// fn a() {}\n#![deny(unsafe_code)]\nconst A: &str = \"unsafe\";";
        assert_eq!(unsafe_lines(&tokens(text)), [0; 0]);
    }

    #[test]
    fn forbid_is_distinguished_from_deny() {
        assert!(forbids_unsafe(&tokens("#![forbid(unsafe_code)]")));
        assert!(!forbids_unsafe(&tokens("#![deny(unsafe_code)]")));
        assert!(!forbids_unsafe(&tokens("//! #![forbid(unsafe_code)]")));
    }

    #[test]
    fn a_broken_file_is_a_finding() {
        assert_eq!(lex("x.rs", "fn a() {\n\"").unwrap_err().path, "x.rs");
    }
}
