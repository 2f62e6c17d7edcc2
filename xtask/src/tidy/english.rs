//! Checks that prose reads as plain English: comments, string literals, names of tests, and pages.
//!
//! Long sentences and some constructions are forbidden. Other constructions are suspect: each
//! correct use must be listed in [`ALLOWED`], by the text of its line. The list may only shrink.

mod passages;

use std::path::Path;

use anyhow::Result;

use self::passages::{CODE, Kind, Passage, Word};
use super::{Finding, by_hand};
use crate::tree::{self, Tree};

/// The file that lists the correct uses of suspect words. Each line contains the phrase, a tab, and
/// the trimmed line with the phrase.
const ALLOWED: &str = "xtask/english-allowed.txt";

/// The maximum number of words in a sentence of a doc comment.
const DOC_SENTENCE: usize = 25;
/// The maximum number of words in any other sentence.
const SENTENCE: usize = 30;

/// Words with which neither a doc comment nor the name of a test may begin.
const OPENINGS: &[&str] = &[
    "what", "how", "who", "whom", "whose", "whoever", "whatever", "where", "why", "of", "so",
    "there", "nobody", "somebody",
];

/// Further words with which a doc comment may not begin.
const DOC_OPENINGS: &[&str] = &["as", "those", "that"];

/// Forbidden phrases in addition to those of [`words`](super::words), each with what to write
/// instead. They are joined from parts, so that this file passes its own check.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("in ", "vain"), "which step failed"),
    (concat!("for ", "ever"), "forever, or without a limit"),
    (concat!("an", "ew"), "again"),
    (concat!("once ", "more"), "again"),
    (concat!("so ", "many"), "n, that many, at most `n`"),
    (concat!("so ", "long"), "that long, within `limit`"),
    (concat!("such ", "a one"), "such an item, or its name"),
    (concat!("without ", "a word"), "silently"),
];

/// Suspect phrases, each with what to consider instead.
const SUSPECT: &[(&str, &str)] = &[
    ("who", "name the actor: the caller, the thread, the peer"),
    ("whom", "name the actor"),
    ("whoever", "name the actor"),
    ("nobody", "no thread, no caller"),
    ("somebody", "a thread, a caller, another process"),
    ("told", "notified, reported"),
    ("tell", "report, notify, return"),
    ("tells", "reports, notifies, returns"),
    ("heard", "received"),
    ("hear", "receive"),
    ("hears", "receives"),
    ("say", "report, return, state"),
    ("says", "reports, returns, states"),
    ("said", "reported, stated"),
    ("behind", "after"),
    (concat!("given ", "back"), "returned, released"),
    (concat!("give ", "back"), "return, release"),
    (concat!("gives ", "back"), "returns, releases"),
    (concat!("gave ", "back"), "returned, released"),
    (concat!("of ", "which"), "split the sentence"),
    (concat!("for ", "which"), "split the sentence"),
    (concat!("no ", "more"), "no longer, none"),
];

/// The name of the causative construction: a form of `have`, an object, and a participle.
const CAUSATIVE: &str = "have … done";
const HAVE: &[&str] = &["has", "have", "had", "having"];
const DETERMINERS: &[&str] = &["the", "its", "their", "a", "an", "one", "each"];
const PRONOUNS: &[&str] = &["it", "them", "this", "that"];
const PARTICIPLES: &[&str] = &["done", "made", "sent", "taken", "run", "built", "written"];

/// Words that show that a preposition is used for a place, or in a term such as "behind a lock".
const PLACES: &[&str] = &["lock", "feature", "flag", "mutex", "pointer", "reference", CODE];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut allowed = Allowed::read(tree.text(ALLOWED).unwrap_or_default());
    for (path, text) in tree.ending(&[".rs", ".md"]).filter(|(path, _)| by_hand(path)) {
        let passages = match path.ends_with(".rs") {
            true => passages::of_rust(text),
            false => passages::of_page(text),
        };
        let lines: Vec<&str> = text.lines().collect();
        for passage in &passages {
            let mut add = |line, what| found.push(Finding::new(path, line, what));
            opening(passage, &mut add);
            forbidden(passage, &mut add);
            length(passage, &mut add);
            for (word, phrase, instead) in suspect(passage) {
                let line = lines.get(word.line - 1).map_or("", |line| line.trim());
                if !allowed.takes(phrase, line) {
                    add(word.line, format!("`{phrase}`: consider {instead}"));
                }
            }
        }
    }
    found.extend(allowed.unused());
    found
}

/// Returns the number of uses in the list.
pub(super) fn allowed(tree: &Tree) -> usize {
    tree.text(ALLOWED).map_or(0, |text| text.lines().count())
}

/// Returns a finding for each commit that adds more lines to the list than it removes.
pub(super) fn growth(root: &Path) -> Result<Vec<Finding>> {
    let modified =
        ["log", "-n100", "--diff-filter=M", "--format=%x1e%h", "--numstat", "--", ALLOWED];
    Ok(grown(&tree::git(root, &modified)?))
}

fn grown(log: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    for record in log.split('\x1e') {
        let mut fields = record.split_whitespace();
        let hash = fields.next().unwrap_or_default();
        let mut count = || fields.next().and_then(|count| count.parse::<usize>().ok());
        if let (Some(added), Some(removed)) = (count(), count())
            && added > removed
        {
            let what = format!("{ALLOWED} grows by {}; write other words", added - removed);
            found.push(Finding::new(format!("commit {hash}"), 1, what));
        }
    }
    found
}

/// The list of correct uses of suspect words.
struct Allowed<'t>(Vec<Entry<'t>>);

struct Entry<'t> {
    phrase: &'t str,
    line: &'t str,
    is_met: bool,
}

impl<'t> Allowed<'t> {
    fn read(text: &'t str) -> Self {
        let entry = |row: &'t str| {
            let (phrase, line) = row.split_once('\t').unwrap_or((row, ""));
            Entry { phrase, line, is_met: false }
        };
        Self(text.lines().map(entry).collect())
    }

    fn takes(&mut self, phrase: &str, line: &str) -> bool {
        let fits = |entry: &&mut Entry<'t>| entry.phrase == phrase && entry.line == line;
        let entry = self.0.iter_mut().find(fits);
        entry.map(|entry| entry.is_met = true).is_some()
    }

    fn unused(&self) -> Vec<Finding> {
        let unused = (1..).zip(&self.0).filter(|(_, entry)| !entry.is_met);
        let finding = |(at, _)| Finding::new(ALLOWED, at, "no file has this line; remove it");
        unused.map(finding).collect()
    }
}

fn opening(passage: &Passage, add: &mut impl FnMut(usize, String)) {
    let Some(first) = passage.words.first() else { return };
    let text = &*first.text;
    let (wrong, instead) = match passage.kind {
        Kind::Opening => {
            let is_bare = OPENINGS.contains(&text) || DOC_OPENINGS.contains(&text);
            let wrong = first.is_capital && is_bare;
            (wrong, "open with a noun phrase or a verb such as \"Returns\"")
        }
        Kind::Test => (OPENINGS.contains(&text), "state the behaviour"),
        Kind::Doc => {
            let of = passage.words.get(1).is_some_and(|word| word.text == "of");
            let wrong = first.is_capital && of && ["those", "that"].contains(&text);
            (wrong, "write a sentence: \"Same errors as [`x`].\"")
        }
        _ => return,
    };
    if wrong {
        add(first.line, format!("begins with `{text}`: {instead}"));
    }
}

fn forbidden(passage: &Passage, add: &mut impl FnMut(usize, String)) {
    for (at, word) in passage.words.iter().enumerate() {
        let rest = &passage.words[at..];
        let phrase = FORBIDDEN.iter().find(|(phrase, _)| begins(rest, phrase));
        if let Some((phrase, instead)) = phrase {
            add(word.line, format!("`{phrase}`: write {instead}"));
        }
        let before = passage.words.get(at.saturating_sub(3)..at).unwrap_or_default();
        let compares = before.iter().any(|word| word.text == "same");
        if word.text == "as" && rest.get(1).is_some_and(|next| next.is_link) && !compares {
            add(word.line, "`as [`: write \"like [`x`]\" or \"same as [`x`]\"".to_owned());
        }
    }
}

fn length(passage: &Passage, add: &mut impl FnMut(usize, String)) {
    let most = match passage.kind {
        Kind::Opening | Kind::Doc => DOC_SENTENCE,
        Kind::Comment | Kind::Page => SENTENCE,
        Kind::Text | Kind::Test | Kind::Row => return,
    };
    for sentence in passage.words.split_inclusive(|word| word.ends_sentence) {
        let (words, first) = (sentence.len(), sentence.first());
        if let Some(first) = first.filter(|_| words > most) {
            add(first.line, format!("a sentence of {words} words, {most} are allowed; split it"));
        }
    }
}

/// Returns the suspect words of a passage, each with its phrase and what to consider instead.
fn suspect(passage: &Passage) -> Vec<(&Word, &'static str, &'static str)> {
    let mut found = Vec::new();
    for (at, word) in passage.words.iter().enumerate() {
        let rest = &passage.words[at..];
        let phrase = SUSPECT.iter().find(|(phrase, _)| begins(rest, phrase));
        if let Some(&(phrase, instead)) = phrase.filter(|_| !is_place(rest)) {
            found.push((word, phrase, instead));
        } else if is_causative(rest) {
            found.push((word, CAUSATIVE, "a plain verb"));
        }
    }
    found
}

fn begins(words: &[Word], phrase: &str) -> bool {
    // This quick check is enough for most words, because they begin no phrase.
    let may_begin = words.first().is_some_and(|first| phrase.starts_with(&*first.text));
    let mut words = words.iter();
    may_begin && phrase.split(' ').all(|part| words.next().is_some_and(|word| word.text == part))
}

/// Returns true if the preposition is used for a place, or if the comparison is complete.
fn is_place(words: &[Word]) -> bool {
    let near = |count: usize, places: &[&str]| {
        words.iter().skip(1).take(count).any(|word| places.contains(&&*word.text))
    };
    begins(words, "behind") && near(3, PLACES)
        || begins(words, concat!("no ", "more")) && near(2, &["than"])
}

fn is_causative(words: &[Word]) -> bool {
    let text = |at: usize| words.get(at).map_or("", |word| &*word.text);
    let object = match text(1) {
        one if PRONOUNS.contains(&one) => 2,
        one if DETERMINERS.contains(&one) => 3,
        _ => return false,
    };
    let participle = text(object);
    HAVE.contains(&text(0)) && (participle.ends_with("ed") || PARTICIPLES.contains(&participle))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str, allowed: &str) -> Vec<String> {
        let tree = Tree::of([(path, text), (ALLOWED, allowed)]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn doc_comments_and_names_of_tests_with_a_bare_clause_are_found() {
        for opening in ["What it is.", "How it is.", "As it is.", "Of it."] {
            let found = messages("a.rs", &format!("\n/// {opening}\nfn a() {{}}\n"), "");
            assert_eq!(found.len(), 1, "{opening}: {found:?}");
            assert!(found[0].starts_with("a.rs:2: begins with"), "{found:?}");
        }
        let test = concat!("#[test]\n", "fn wh", "at_is_sent_arrives() {}\n");
        assert!(messages("a.rs", test, "")[0].starts_with("a.rs:2: begins with"));
        let section = "/// Sends.\n///\n/// # Errors\n/// Those of [`x`].\nfn a() {}\n";
        assert!(messages("a.rs", section, "")[0].starts_with("a.rs:4: begins with `those`"));
        assert_eq!(
            messages("a.rs", "/// Returns what it is.\n// What it is.\nfn a() {}\n", ""),
            [""; 0]
        );
    }

    #[test]
    fn each_phrase_is_found_in_comments_strings_pages_and_across_lines_but_not_in_code() {
        for (phrase, _) in FORBIDDEN.iter().chain(SUSPECT) {
            let broken = phrase.replacen(' ', "\n// ", 1);
            for (path, text) in [
                ("a.rs", format!("// It is {phrase} x.\n")),
                ("a.rs", format!("// It is {broken} x.\n")),
                ("a.rs", format!("const A: &str = \"It is {phrase} x.\";\n")),
                ("b.md", format!("It is {phrase} x.\n")),
                ("b.md", format!("| It is {phrase} x |\n")),
            ] {
                let found = messages(path, &text, "");
                assert_eq!(found.len(), 1, "{text}: {found:?}");
                assert!(found[0].starts_with(&format!("{path}:1: `{phrase}`")), "{found:?}");
            }
            let code = format!("It is `{phrase}`.\n\n```\n{phrase}\n```\n");
            assert_eq!(messages("b.md", &code, ""), [""; 0], "{phrase}");
        }
    }

    #[test]
    fn terms_that_look_alike_pass() {
        for text in ["behind a lock", "behind the `x`", "no more than 3", "has it", "Has the lock"]
        {
            assert_eq!(messages("b.md", &format!("{text}\n"), ""), [""; 0], "{text}");
        }
        for text in [concat!("has it", " done"), concat!("had the driver", " loaded")] {
            assert_eq!(messages("b.md", &format!("{text}\n"), "").len(), 1, "{text}");
        }
    }

    #[test]
    fn as_with_a_link_is_found() {
        assert_eq!(messages("a.rs", concat!("/// Sends, as ", "[`x`].\nfn a() {}\n"), "").len(), 1);
        let right = "/// Same as [`x`], as x. Same two errors as [`x`].\nfn a() {}\n";
        assert_eq!(messages("a.rs", right, ""), [""; 0]);
    }

    #[test]
    fn sentences_have_25_words_in_rustdoc_and_30_elsewhere() {
        let words = |count| "word ".repeat(count).trim_end().to_owned() + ". Next.";
        for (path, mark, most) in [("a.rs", "/// ", 25), ("a.rs", "// ", 30), ("b.md", "", 30)] {
            assert_eq!(messages(path, &format!("{mark}{}\n", words(most)), ""), [""; 0]);
            let found = messages(path, &format!("{mark}{}\n", words(most + 1)), "");
            assert!(found[0].contains(&format!("{} words", most + 1)), "{found:?}");
        }
    }

    #[test]
    fn a_line_in_the_list_passes_and_one_that_no_file_has_is_found() {
        let (phrase, _) = SUSPECT[0];
        let text = format!("// It is {phrase}.\n");
        let entry = format!("{phrase}\t{text}");
        assert_eq!(messages("a.rs", &text, &entry), [""; 0]);
        let found = messages("a.rs", &text, &format!("{entry}{phrase}\t// Gone.\n"));
        assert_eq!(found, [format!("{ALLOWED}:2: no file has this line; remove it")]);
        assert_eq!(messages("a.rs", &format!("// Is it {phrase}?\n"), &entry).len(), 2);
    }

    #[test]
    fn a_commit_that_adds_more_lines_than_it_removes_is_found() {
        let log = "\x1eaaa\n\n3\t4\tx\n\x1ebbb\n\n5\t4\tx\n\x1eccc\n\n4\t4\tx\n";
        let found: Vec<_> = grown(log).iter().map(ToString::to_string).collect();
        assert_eq!(found, [format!("commit bbb:1: {ALLOWED} grows by 1; write other words")]);
    }
}
