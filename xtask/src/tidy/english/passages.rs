//! Extracts the prose of a file: comments, string literals and names of tests from Rust files, and
//! paragraphs from pages.

/// A sequence of words that is read as one text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Passage {
    pub(super) kind: Kind,
    pub(super) words: Vec<Word>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first paragraph of a doc comment.
    Opening,
    /// Another paragraph of a doc comment.
    Doc,
    Comment,
    /// A string literal.
    Text,
    /// The name of a test.
    Test,
    Page,
    /// A heading, or a row of a table.
    Row,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// The word in lower case, or [`CODE`] for a piece of code.
    pub(super) text: String,
    /// The number of the line that contains the word, counted from 1.
    pub(super) line: usize,
    pub(super) is_capital: bool,
    /// Whether the word is followed by the end of a sentence, or by a semicolon.
    pub(super) ends_sentence: bool,
    /// Whether a link begins with this word.
    pub(super) is_link: bool,
}

pub(super) const CODE: &str = "`";

/// The characters that enclose a piece of code, and those that enclose a value in a format string.
const ENCLOSED: [(char, char); 2] = [('`', '`'), ('{', '}')];

/// Returns the passages of a Rust file.
pub(super) fn of_rust(text: &str) -> Vec<Passage> {
    let mut passages = tests(text);
    let mut block = Block::default();
    let mut line = 1;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            let end = rest.find('\n').unwrap_or(rest.len());
            block.add(line, &rest[..end], &mut passages);
            end
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some((skipped, content)) = string(rest) {
            let from = line + rest[..skipped].matches('\n').count();
            // With `#[cfg_attr(x, doc = "```")]`, the doc comment that follows begins within a code
            // block.
            block.begins_in_code |= content.starts_with("```");
            // A string without a space is a key or a name, not prose.
            if content.contains(' ') {
                let text = content.replace("\\n", "  ");
                passages.extend(of_lines(Kind::Text, numbered(&text, from)));
            }
            skipped + content.len() + closing(&rest[..skipped])
        } else if first == '\'' {
            character(rest).unwrap_or(1)
        } else {
            // Skips a word or a number, or everything up to the next one.
            let is_word = in_word(first);
            let ends = |c| in_word(c) != is_word || matches!(c, '/' | '"' | '\'');
            first.len_utf8()
                + rest[first.len_utf8()..].find(ends).unwrap_or(rest.len() - first.len_utf8())
        };
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    block.end(&mut passages);
    passages
}

/// Returns the passages of a page.
pub(super) fn of_page(text: &str) -> Vec<Passage> {
    of_lines(Kind::Page, numbered(text, 1))
}

fn numbered(text: &str, from: usize) -> impl Iterator<Item = (usize, &str)> {
    text.split('\n').enumerate().map(move |(place, line)| (from + place, line))
}

/// Consecutive comment lines of the same kind.
#[derive(Default)]
struct Block<'t> {
    is_doc: bool,
    begins_in_code: bool,
    lines: Vec<(usize, &'t str)>,
}

impl<'t> Block<'t> {
    fn add(&mut self, line: usize, comment: &'t str, passages: &mut Vec<Passage>) {
        let doc = ["///", "//!"].into_iter().find_map(|mark| comment.strip_prefix(mark));
        let doc = doc.filter(|_| !comment.starts_with("////"));
        let follows = self.lines.last().is_some_and(|(last, _)| last + 1 == line);
        if !follows || self.is_doc != doc.is_some() {
            self.end(passages);
        }
        self.is_doc = doc.is_some();
        self.lines.push((line, doc.unwrap_or(&comment[2..])));
    }

    fn end(&mut self, passages: &mut Vec<Passage>) {
        let kind = if self.is_doc { Kind::Doc } else { Kind::Comment };
        let fence = (self.begins_in_code && !self.lines.is_empty()).then_some((0, "```"));
        self.begins_in_code &= fence.is_none();
        let mut found = of_lines(kind, fence.into_iter().chain(self.lines.drain(..)));
        if let Some(first) = found.first_mut().filter(|first| first.kind == Kind::Doc) {
            first.kind = Kind::Opening;
        }
        passages.append(&mut found);
    }
}

fn in_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// If `rest` begins with a string literal, returns the number of bytes that precede the literal's
/// content, and the content.
fn string(rest: &str) -> Option<(usize, &str)> {
    if !rest.starts_with(['"', 'b', 'c', 'r']) {
        return None;
    }
    let prefix = ["br", "cr", "r", "b", "c", ""].into_iter().find(|p| {
        rest.strip_prefix(p).is_some_and(|after| after.trim_start_matches('#').starts_with('"'))
    })?;
    let hashes = rest[prefix.len()..].find('"')?;
    let skipped = prefix.len() + hashes + 1;
    let content = &rest[skipped..];
    let end = if prefix.ends_with('r') {
        content.find(&format!("\"{}", "#".repeat(hashes)))
    } else if hashes > 0 {
        return None;
    } else {
        let mut escaped = false;
        content.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        })
    };
    Some((skipped, &content[..end.unwrap_or(content.len())]))
}

/// Returns the length of the closing part of a string literal with this opening part.
fn closing(opening: &str) -> usize {
    1 + opening.matches('#').count()
}

/// Returns the length of the character literal with which `rest` begins. Returns `None` for a
/// lifetime and anything else.
fn character(rest: &str) -> Option<usize> {
    let content = rest.strip_prefix('\'')?;
    let length = match content.strip_prefix('\\') {
        Some(escaped) => 1 + escaped.chars().next()?.len_utf8(),
        None => content.chars().next()?.len_utf8(),
    };
    let end = content[length..].find('\'').filter(|&end| end == 0 || content.starts_with('\\'))?;
    Some(1 + length + end + 1)
}

/// Returns the names of the functions that have an attribute ending with `test`.
fn tests(text: &str) -> Vec<Passage> {
    let (mut found, mut is_test) = (Vec::new(), false);
    for (line, content) in numbered(text, 1) {
        let content = content.trim();
        if content.starts_with("#[") {
            is_test |= content.trim_end_matches(']').ends_with("test");
        } else if !content.starts_with("//") && !content.is_empty() {
            let name = content.split_once("fn ").map(|(_, name)| name).filter(|_| is_test);
            if let Some(name) = name {
                let name = name.split(['(', '<']).next().unwrap_or_default().replace('_', " ");
                found.extend(of_lines(Kind::Test, [(line, &*name)].into_iter()));
            }
            is_test = false;
        }
    }
    found
}

/// Splits lines into paragraphs, list items and table rows. Omits code blocks.
fn of_lines<'t>(kind: Kind, lines: impl Iterator<Item = (usize, &'t str)>) -> Vec<Passage> {
    let (mut found, mut words, mut in_code) = (Vec::new(), Vec::new(), false);
    let mut end = |words: &mut Vec<Word>, kind| {
        if !words.is_empty() {
            found.push(Passage { kind, words: std::mem::take(words) });
        }
    };
    for (line, content) in lines {
        let trimmed = content.trim_start();
        let is_fence = trimmed.starts_with("```");
        if is_fence {
            in_code = !in_code;
        }
        let is_row = trimmed.starts_with(['#', '|']) && kind != Kind::Text;
        if trimmed.is_empty() || is_row || is_item(trimmed) || is_fence {
            end(&mut words, kind);
        }
        if !in_code && !is_fence && !is_definition(trimmed) {
            split(line, content, &mut words);
        }
        if is_row {
            end(&mut words, Kind::Row);
        }
    }
    end(&mut words, kind);
    found
}

fn is_item(line: &str) -> bool {
    let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
    ["- ", "* "].iter().any(|mark| line.starts_with(mark))
        || digits.len() < line.len() && digits.starts_with(". ")
}

/// Adds the words of a line to `words`.
fn split(line: usize, content: &str, words: &mut Vec<Word>) {
    let word = |text: &str, is_link| Word {
        text: text.to_lowercase(),
        line,
        is_capital: text.starts_with(char::is_uppercase),
        ends_sentence: false,
        is_link,
    };
    let (mut rest, mut is_link) = (content, false);
    while let Some(first) = rest.chars().next() {
        let in_word = |c: char| c.is_alphanumeric() || c == '\'' || c == '’' || c == '_';
        let closing = ENCLOSED.iter().find(|(open, _)| *open == first).map(|(_, close)| close);
        let length = if let Some(&closing) = closing {
            words.push(word(CODE, std::mem::take(&mut is_link)));
            rest[1..].find(closing).map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("](") {
            rest.find(')').map_or(rest.len(), |end| end + 1)
        } else if in_word(first) {
            let end = end_of_word(rest, in_word);
            words.push(word(&rest[..end], std::mem::take(&mut is_link)));
            end
        } else {
            is_link = first == '[';
            let after = rest[first.len_utf8()..].trim_start_matches(['"', '\'', ')', ']', '*']);
            if matches!(first, '.' | '!' | '?' | ';')
                && (after.is_empty() || after.starts_with(' '))
            {
                words.last_mut().into_iter().for_each(|last| last.ends_sentence = true);
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
}

/// Returns the length of the word with which `rest` begins. `well-known` and `a.rs` are one word
/// each.
fn end_of_word(rest: &str, in_word: impl Fn(char) -> bool) -> usize {
    let mut chars = rest.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let joins = "-./:%+".contains(c) && chars.peek().is_some_and(|&(_, next)| in_word(next));
        if !in_word(c) && !joins {
            return at;
        }
    }
    rest.len()
}

/// Returns true if the line defines the target of a link.
fn is_definition(line: &str) -> bool {
    line.starts_with('[') && line.contains("]: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(passages: &[Passage]) -> Vec<(Kind, String)> {
        let text = |passage: &Passage| {
            let words: Vec<_> = passage.words.iter().map(|word| &*word.text).collect();
            (passage.kind, words.join(" "))
        };
        passages.iter().map(text).collect()
    }

    #[test]
    fn comments_strings_and_names_of_tests_are_passages_and_code_is_not() {
        let text = "//! Module.\n\n/// One `two`\n/// three.\n///\n/// ```\n/// code\n/// ```\nfn a() {\n    // Why.\n    \
            b(\"a text\", 'x', '\\'', r#\"raw \"x\"\"#, b\"\\\"q\");\n}\n#[test]\nfn it_is<'a>() {}\n";
        let expected = [
            (Kind::Test, "it is"),
            (Kind::Opening, "module"),
            (Kind::Opening, "one ` three"),
            (Kind::Text, "a text"),
            (Kind::Text, "raw x"),
            (Kind::Comment, "why"),
        ];
        let expected = expected.map(|(kind, text)| (kind, text.to_owned()));
        let mut found = texts(&of_rust(text));
        found.sort_by_key(|(kind, _)| *kind != Kind::Test);
        assert_eq!(found, expected);
    }

    #[test]
    fn paragraphs_items_and_rows_of_a_page_are_passages() {
        let page = "# Head\nOne [two](three.md)\nfour. Five.\n- six\n- seven\n\n| a | b |\n|---|---|\n```\ncode\n```\neight";
        let found = of_page(page);
        let expected = [
            (Kind::Row, "head"),
            (Kind::Page, "one two four five"),
            (Kind::Page, "six"),
            (Kind::Page, "seven"),
            (Kind::Row, "a b"),
            (Kind::Page, "eight"),
        ];
        assert_eq!(texts(&found), expected.map(|(kind, text)| (kind, text.to_owned())));
        let words = &found[1].words;
        assert!(words[1].is_link && words[2].ends_sentence && words[3].ends_sentence);
        assert_eq!(words.iter().map(|word| word.line).collect::<Vec<_>>(), [2, 2, 3, 3]);
    }

    #[test]
    fn a_point_within_a_number_or_a_name_ends_no_sentence() {
        let found = of_page("Rust 1.88 {c. d} and a.rs (see b). End");
        let ends: Vec<_> = found[0].words.iter().filter(|word| word.ends_sentence).collect();
        assert_eq!(ends.iter().map(|word| &*word.text).collect::<Vec<_>>(), ["b"]);
    }
}
