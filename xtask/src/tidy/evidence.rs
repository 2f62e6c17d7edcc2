//! Checks the tables of pages: the tests that they cite exist, and the libraries have the items
//! that they list.
//!
//! The tables are found by the heading of their last column. In a column `shown by`, each piece of
//! code must name a test, a case that must not compile, or a file. A name may end with `…`, which
//! matches any rest. In a column `here`, the words of each piece of code must occur in the sources
//! of the libraries.

use std::collections::BTreeSet;
use std::ops::Range;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::{Finding, line_of};
use crate::tree::Tree;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let (tests, items) = (names(tree), words(tree));
    let mut found = Vec::new();
    for (path, text) in tree.ending(&[".md"]) {
        let mut add = |offset, what| found.push(Finding::new(path, line_of(text, offset), what));
        for (name, offset) in column(text, "shown by") {
            if !exists(tree, &tests, &name) {
                add(
                    offset,
                    format!("the test or case `{name}` does not exist; name one that shows it"),
                );
            }
        }
        for (name, offset) in column(text, "here") {
            if let Some(gone) = split(&name).find(|word| !items.contains(word)) {
                add(offset, format!("the libraries have no item named `{gone}`; correct the page"));
            }
        }
    }
    found
}

/// Returns all words in the sources of the libraries.
fn words(tree: &Tree) -> BTreeSet<&str> {
    let sources = tree.ending(&[".rs"]).filter(|(path, _)| path.contains("/src/"));
    sources
        .filter(|(path, _)| path.starts_with("crates/"))
        .flat_map(|(_, text)| split(text))
        .collect()
}

fn split(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_'))
}

/// Returns the names of all functions, and those of all cases that must not compile.
fn names(tree: &Tree) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (path, text) in tree.ending(&[".rs"]) {
        for (at, _) in text.match_indices("fn ") {
            let word = |c: char| c.is_alphanumeric() || c == '_';
            let name: String = text[at + 3..].chars().take_while(|&c| word(c)).collect();
            names.insert(name);
        }
        if let Some((_, case)) = path.split_once("/tests/compile/fail/") {
            names.insert(case.trim_end_matches(".rs").to_owned());
        }
    }
    names
}

fn exists(tree: &Tree, known: &BTreeSet<String>, name: &str) -> bool {
    if name.contains('/') {
        let end = format!("/{name}");
        return tree.has(name) || tree.paths().iter().any(|path| path.ends_with(&end));
    }
    match name.strip_suffix('…') {
        Some(start) if !start.is_empty() => known.iter().any(|known| known.starts_with(start)),
        _ => known.contains(name),
    }
}

/// Returns the pieces of code in all last columns that have this heading.
fn column(text: &str, title: &str) -> Vec<(String, usize)> {
    let (mut found, mut cells, mut heading) = (Vec::new(), Vec::new(), false);
    let mut columns = 0; // the number of columns, if the last one has this heading
    for (event, Range { start, .. }) in
        Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter()
    {
        match event {
            Event::Start(Tag::Table(_)) => columns = 0,
            Event::Start(Tag::TableHead) => (heading, cells) = (true, Vec::new()),
            Event::Start(Tag::TableRow) => cells.clear(),
            Event::Start(Tag::TableCell) => cells.push(String::new()),
            Event::End(TagEnd::TableHead) => {
                heading = false;
                if cells.last().is_some_and(|last| last == title) {
                    columns = cells.len();
                }
            }
            Event::End(TagEnd::Table) => columns = 0,
            Event::Text(part) if heading => {
                cells.last_mut().into_iter().for_each(|cell| cell.push_str(&part));
            }
            Event::Code(name) if columns > 0 && cells.len() == columns => {
                found.push((name.into_string(), start));
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: (&str, &str) =
        ("crates/a/tests/x.rs", "#[test]\nfn one_holds() {}\nfn each_holds<T>() {}\n");
    const CASE: (&str, &str) = ("crates/a/tests/compile/fail/h01_no.rs", "fn main() {}\n");

    fn messages(column: &str) -> Vec<String> {
        let page = format!("# A\n\n| what | shown by |\n|---|---|\n| `nothing` | {column} |\n");
        let tree = Tree::of([TEST, CASE, ("d/page.md", &page)]);
        check(&tree).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn tests_cases_and_files_that_exist_pass() {
        for column in ["`one_holds`", "`one_holds`, `each_holds`", "`h01_no`", "`h01_…`", "words"]
        {
            assert_eq!(messages(column), [""; 0], "{column}");
        }
        assert_eq!(messages("`tests/x.rs`, `crates/a/tests/x.rs`"), [""; 0]);
    }

    #[test]
    fn a_missing_test_fails_at_its_line() {
        for column in ["`two_holds`", "`h02_…`", "`tests/y.rs`", "`…`", "`one_hold`"] {
            let found = messages(column);
            assert_eq!(found.len(), 1, "{column}");
            assert!(found[0].starts_with("d/page.md:5: the test or case"), "{found:?}");
        }
    }

    #[test]
    fn names_of_items_must_be_in_the_libraries() {
        let source = ("crates/a/src/x.rs", "impl Region { pub fn lkey(&self) -> Lkey {} }\n");
        let page = |cell| format!("| verb | here |\n|---|---|\n| `ibv_x` | {cell} |\n");
        let messages = |cell| {
            let page = page(cell);
            check(&Tree::of([source, TEST, ("d/page.md", &page)])).len()
        };
        assert_eq!(messages("`Region::lkey`, `Region`; words"), 0);
        assert_eq!(messages("`Region::rkey`"), 1);
        assert_eq!(messages("`one_holds`"), 1, "tests do not count");
    }

    #[test]
    fn other_columns_and_tables_are_free() {
        let page = "| shown by | what |\n|---|---|\n| `x` | `y` |\n\n`z`\n";
        assert_eq!(check(&Tree::of([TEST, ("d/page.md", page)])), []);
    }
}
