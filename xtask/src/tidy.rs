//! `cargo xtask tidy`: checks the rules of this workspace that rustc, rustfmt and clippy do not
//! check.
//!
//! Each rule is a module with a function `check`, which examines a [`Tree`] or commits and returns
//! findings. The module's tests show that the rule detects violations.

mod auto_traits;
mod bindings;
mod commits;
mod differences;
mod drift;
mod english;
mod errors;
mod evidence;
mod faults;
mod fence;
mod jobs;
mod layers;
mod length;
pub(crate) mod links;
mod programs;
mod public_api;
mod rooms;
mod tokens;
mod words;

use std::fmt;

use anyhow::Result;

use crate::tree::{self, Tree};

/// Returns the names of the crates that users may depend on, starting with the lowest one.
pub(crate) fn products() -> impl Iterator<Item = &'static str> {
    layers::names()
}

/// A violation of a rule: where it is, what is wrong, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    what: String,
}

impl Finding {
    fn new(path: impl Into<String>, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.into(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Check nothing; print the number of files in each crate's folders, and the crate's largest
    /// circle of modules
    #[arg(long)]
    rooms: bool,
}

/// Checks the checkout, and prints the findings. Returns `false` if there are any.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let root = tree::root();
    let tree = Tree::read(&root)?;
    if args.rooms {
        rooms::figures(&tree).iter().for_each(|line| println!("{line}"));
        return Ok(true);
    }
    let mut found = layers::check(&layers::packages(&root)?);
    found.extend(faults::check(&root, &tree)?);
    let commits = commits::read(&root, commits::SINCE)?;
    found.extend(commits::check(&commits));
    found.extend(english::growth(&root)?);
    let rules = [
        fence::check,
        bindings::check,
        length::check,
        links::check,
        differences::check,
        drift::check,
        jobs::check,
        words::check,
        programs::check,
        public_api::check,
        auto_traits::check,
        errors::check,
        evidence::check,
        rooms::check,
        english::check,
    ];
    for rule in rules {
        found.extend(rule(&tree));
    }
    found.sort();
    for finding in &found {
        eprintln!("{finding}");
    }
    match found.len() {
        0 => println!(
            "tidy: {} files and {} commits, nothing to mend; {} suspect words are allowed",
            tree.paths().len(),
            commits.len(),
            english::allowed(&tree)
        ),
        many => eprintln!("tidy: {many} to mend"),
    }
    Ok(found.is_empty())
}

/// Returns the number of the line that contains the byte at `offset`. Lines are numbered from 1.
fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
    before.iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// Returns true if the file was written by hand. Generated modules are in folders with the name
/// `generated`.
fn by_hand(path: &str) -> bool {
    !path.split('/').any(|part| part == "generated")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_reads_as_a_compiler_message() {
        let finding = Finding::new("a/b.rs", 7, "too long; split it");
        assert_eq!(finding.to_string(), "a/b.rs:7: too long; split it");
    }

    #[test]
    fn lines_count_from_one() {
        assert_eq!((line_of("a\nb", 0), line_of("a\nb", 2), line_of("a\nb", 99)), (1, 2, 2));
    }

    #[test]
    fn generated_is_a_folder_not_a_part_of_a_name() {
        assert!(!by_hand("crates/x/src/generated/verbs.rs"));
        assert!(by_hand("crates/x/src/generated.rs") && by_hand("crates/x/src/regenerated/a.rs"));
    }
}
