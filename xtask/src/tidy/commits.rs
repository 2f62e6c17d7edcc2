//! Checks that commits read well in a list. The subject must be imperative and fit on a line. If
//! the diff is too large to explain itself, the commit needs a body.

use std::path::Path;

use anyhow::Result;

use super::Finding;
use crate::tree;

/// When the rule begins (25 November 2026, 11:00 UTC). Commits with an earlier author date are not
/// checked.
pub(crate) const SINCE: u64 = 1_795_604_400;

/// The maximum number of recent commits to check, as an option of git. Checking only the unmerged
/// commits would be enough, because the others have passed before. But a clone does not always have
/// the branch that shows which commits are unmerged.
const LAST: &str = "-n100";

/// The maximum length of a subject, in characters.
const SUBJECT: usize = 72;

/// The maximum number of lines of product code that a commit without a body may change.
const SPEAKS_FOR_ITSELF: usize = 50;

#[derive(Debug)]
pub(crate) struct Commit {
    hash: String,
    message: String,
    /// The number of lines that were added or removed under `crates/*/src`.
    changed: usize,
}

/// Reads the most recent commits of the checkout, except those with an author date before `since`.
/// Merges are left out, and so are the very first commit and a commit whose parents a shallow clone
/// lacks. Their diffs do not show the author's change.
pub(crate) fn read(root: &Path, since: u64) -> Result<Vec<Commit>> {
    let format = "--format=%x1e%h%x1f%at%x1f%p%x1f%B%x1f";
    let text = tree::git(root, &["log", LAST, "--no-merges", "-M", "--numstat", format])?;
    Ok(text.split('\x1e').filter_map(|record| parse(record, since)).collect())
}

fn parse(record: &str, since: u64) -> Option<Commit> {
    let mut fields = record.split('\x1f');
    let (hash, authored, parents, message) =
        (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let changed = fields.next()?.lines().filter_map(changed_lines).sum();
    let counts = !parents.is_empty() && authored.parse::<u64>().ok()? >= since;
    counts.then(|| Commit { hash: hash.to_owned(), message: message.to_owned(), changed })
}

/// Returns how many lines a row of `--numstat` adds and removes, if the row's file is product code.
/// A file that was only moved has no such lines.
fn changed_lines(row: &str) -> Option<usize> {
    let [added, removed, path] = row.split('\t').collect::<Vec<_>>().try_into().ok()?;
    let product = path.starts_with("crates/") && path.contains("src/") && path.contains(".rs");
    product.then_some(added.parse::<usize>().ok()? + removed.parse::<usize>().ok()?)
}

pub(crate) fn check(commits: &[Commit]) -> Vec<Finding> {
    let mut found = Vec::new();
    for commit in commits {
        let mut add = |line, what: String| {
            found.push(Finding::new(format!("commit {}", commit.hash), line, what));
        };
        let mut lines = commit.message.trim_end().lines();
        let subject = lines.next().unwrap_or_default();
        let length = subject.chars().count();
        if length > SUBJECT {
            add(1, format!("the subject has {length} characters, {SUBJECT} are allowed"));
        }
        let word = without_prefix(subject).split(' ').next().unwrap_or_default();
        if !may_command(word) {
            add(
                1,
                format!(
                    "`{word}` is not an imperative; begin with one, after `crate: ` if it fits"
                ),
            );
        }
        if lines.next().is_some_and(|second| !second.is_empty()) {
            add(2, "leave a blank line below the subject".to_owned());
        }
        if lines.all(str::is_empty) && commit.changed > SPEAKS_FOR_ITSELF {
            let changed = commit.changed;
            add(
                3,
                format!("{changed} lines of product code changed; add a body that explains why"),
            );
        }
    }
    found
}

/// Returns the subject without its prefix `crate: ` or `crate, crate: `.
fn without_prefix(subject: &str) -> &str {
    let is_scope = |scope: &str| !scope.is_empty() && !scope.contains(' ');
    let prefixed = subject.split_once(": ").filter(|(prefix, _)| prefix.split(", ").all(is_scope));
    prefixed.map_or(subject, |(_, rest)| rest)
}

/// Returns true if the word may be an imperative. This checks the form of the word, because no list
/// contains all verbs.
fn may_command(word: &str) -> bool {
    let word = word.to_lowercase();
    if LOOK_INFLECTED.contains(&word.as_str()) {
        return true;
    }
    let is_word = !word.is_empty() && word.chars().all(|c| c.is_alphabetic() || "-'".contains(c));
    let is_inflected = ["ed", "ing"].iter().any(|end| word.ends_with(end))
        || word.ends_with('s') && !word.ends_with("ss");
    is_word && !is_inflected && !NO_VERBS.contains(&word.as_str())
}

/// Imperatives that end like inflected forms.
const LOOK_INFLECTED: &[&str] = &[
    "alias", "bias", "bring", "embed", "exceed", "feed", "focus", "heed", "need", "ping",
    "proceed", "ring", "seed", "shed", "shred", "speed", "spring", "string", "succeed", "swing",
];

/// Words at the beginning of subjects that are not verbs.
const NO_VERBS: &[&str] = &[
    "a", "about", "after", "all", "also", "an", "and", "another", "any", "as", "at", "before",
    "both", "but", "by", "each", "either", "every", "few", "fewer", "first", "for", "four", "from",
    "how", "if", "in", "into", "is", "it", "last", "less", "many", "more", "most", "new", "no",
    "nobody", "not", "now", "of", "old", "on", "one", "only", "other", "some", "such", "than",
    "that", "the", "their", "then", "there", "these", "they", "this", "those", "three", "to",
    "two", "under", "until", "we", "what", "when", "where", "which", "while", "who", "whoever",
    "whose", "why", "with", "without",
];

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn found(message: &str, changed: usize) -> Vec<String> {
        let (hash, message) = ("1a2b3c4".to_owned(), message.to_owned());
        check(&[Commit { hash, message, changed }]).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn imperative_subjects_pass_with_and_without_prefix() {
        for subject in [
            "Flush receives in posting order",
            "rdma-soft: flush receives in posting order",
            "rdma-soft, tests: pass on what was refused",
            "docs/async.md: re-export the names",
            "CHANGELOG: need fewer words",
            "State why: it is shorter",
        ] {
            assert_eq!(found(subject, 50), [""; 0], "{subject}");
            assert_eq!(found(&format!("{subject}\n\nWhy.\n"), 51), [""; 0], "{subject}");
        }
    }

    #[test]
    fn other_forms_and_other_words_fail() {
        for (subject, word) in [
            ("rdma-soft: flushed receives", "flushed"),
            ("Flushes receives", "Flushes"),
            ("tests: waiting for events", "waiting"),
            ("rdma-soft: a failing responder flushes nothing", "a"),
            ("No fork copies a file", "No"),
            ("ci: `loaded` runs last", "`loaded`"),
            ("ci:", "ci:"),
        ] {
            let start = format!("commit 1a2b3c4:1: `{word}` is not an imperative");
            let found = found(subject, 0);
            assert!(found.len() == 1 && found[0].starts_with(&start), "{subject}: {found:?}");
        }
    }

    #[test]
    fn a_subject_of_73_characters_fails() {
        let fits = format!("Run {}", "x".repeat(68));
        assert_eq!(found(&fits, 0), [""; 0]);
        assert_eq!(
            found(&format!("{fits}x"), 0),
            ["commit 1a2b3c4:1: the subject has 73 characters, 72 are allowed"]
        );
    }

    #[test]
    fn a_large_diff_without_a_body_and_a_body_without_a_blank_line_fail() {
        assert!(found("Move it\n\n", 51)[0].starts_with("commit 1a2b3c4:3: 51 lines of product"));
        assert!(
            found("Move it\nsince it was wrong\n", 9)[0].starts_with("commit 1a2b3c4:2: leave")
        );
    }

    #[test]
    fn moves_and_other_files_than_product_code_are_not_counted() {
        let lines = |row| changed_lines(row).unwrap_or(0);
        assert_eq!(lines("3\t4\tcrates/a/src/b.rs"), 7);
        assert_eq!(lines("1\t0\tcrates/a/src/{b.rs => c/b.rs}"), 1);
        for row in ["3\t4\tdocs/a.md", "3\t4\tcrates/a/tests/b.rs", "-\t-\tcrates/a/src/b.rs", ""] {
            assert_eq!(lines(row), 0, "{row}");
        }
    }

    /// Creates a repository in this folder, with one commit for each message.
    fn repository(at: &Path, messages: &[&str]) {
        let git = |args: &[&str]| {
            let names = ["-c", "user.name=a", "-c", "user.email=a@b"];
            let status = Command::new("git").arg("-C").arg(at).args(names).args(args).status();
            assert!(status.unwrap().success(), "{args:?}");
        };
        git(&["init", "-q"]);
        std::fs::create_dir_all(at.join("crates/a/src")).unwrap();
        for message in messages {
            std::fs::write(at.join("crates/a/src/b.rs"), format!("{message}\n")).unwrap();
            git(&["add", "-A"]);
            git(&["commit", "-q", "-m", message]);
        }
    }

    #[test]
    fn all_but_the_first_commit_of_a_clone_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let (whole, shallow) = (folder.path().join("whole"), folder.path().join("shallow"));
        std::fs::create_dir(&whole).unwrap();
        repository(&whole, &["Begin", "a: change\n\nWhy\nso.", "Change it again"]);
        let messages = |at: &Path| -> Vec<_> {
            let commits = read(at, 0).unwrap();
            assert!(commits.iter().all(|one| !one.hash.is_empty()));
            commits
                .into_iter()
                .map(|one| (one.message.trim_end().to_owned(), one.changed))
                .collect()
        };
        let (last, before) = ("Change it again".to_owned(), "a: change\n\nWhy\nso.".to_owned());
        assert_eq!(messages(&whole), [(last.clone(), 5), (before, 5)]);
        assert!(read(&whole, u64::MAX).unwrap().is_empty(), "they are older");
        let from = format!("file://{}", whole.display());
        for (depth, read) in [("1", vec![]), ("2", vec![(last, 5)])] {
            let to = shallow.join(depth);
            let mut clone = Command::new("git");
            clone.args(["clone", "-q", "--depth", depth, &from]).arg(&to);
            assert!(clone.status().unwrap().success());
            assert_eq!(messages(&to), read, "{depth}");
        }
    }
}
