//! Checks that the links in pages lead to existing targets.

use std::collections::HashMap;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::{Finding, by_hand, line_of};
use crate::tree::Tree;

/// The kinds of files in which mentions of paths in `docs` are checked.
const MENTIONS: &[&str] = &[".md", ".rs", ".toml", ".yml", ".ci/run"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(&[".md"]) {
        for (line, target) in links(text) {
            found.extend(dead(tree, path, &target).map(|why| Finding::new(path, line, why)));
        }
    }
    for (path, text) in tree.ending(MENTIONS).filter(|(path, _)| by_hand(path)) {
        for (offset, target) in mentions(text) {
            if !tree.has(target) {
                let what = format!("`{target}` does not exist; write it, or mend the mention");
                found.push(Finding::new(path, line_of(text, offset), what));
            }
        }
    }
    found
}

/// Returns why the link in `page` is dead, or `None` if it is not.
fn dead(tree: &Tree, page: &str, target: &str) -> Option<String> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    if file.contains(':') {
        return None; // https:, mailto:
    }
    let path = if file.is_empty() { page.to_owned() } else { resolve(page, file)? };
    if !tree.has(&path) {
        return Some(format!("dead link `{target}`: `{path}` does not exist"));
    }
    let text = tree.text(&path).filter(|_| path.ends_with(".md") && !anchor.is_empty())?;
    let anchors = anchors(text);
    if anchors.iter().any(|known| known == anchor) {
        return None;
    }
    Some(format!("dead anchor `{target}`: the headings of {path} give {}", anchors.join(", ")))
}

/// Returns the path, relative to the root, that a link to `file` in `page` leads to. Returns `None`
/// if the link leads above the root.
pub(crate) fn resolve(page: &str, file: &str) -> Option<String> {
    let mut parts: Vec<&str> =
        if file.starts_with('/') { vec![] } else { page.split('/').collect() };
    parts.pop();
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Returns the line and the target of each link and each image, including those that are defined by
/// reference.
pub(crate) fn links(text: &str) -> Vec<(usize, String)> {
    let events = Parser::new_ext(text, Options::all()).into_offset_iter();
    events
        .filter_map(|(event, range)| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                Some((line_of(text, range.start), dest_url.into_string()))
            }
            _ => None,
        })
        .collect()
}

/// Returns the anchors that GitHub creates for the headings of a page.
fn anchors(text: &str) -> Vec<String> {
    let (mut anchors, mut seen) = (Vec::new(), HashMap::<String, usize>::new());
    let mut heading = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match (event, &mut heading) {
            (Event::Start(Tag::Heading { .. }), _) => heading = Some(String::new()),
            (Event::Text(part) | Event::Code(part), Some(title)) => title.push_str(&part),
            (Event::End(TagEnd::Heading(_)), Some(title)) => {
                let slug = slug(title);
                let times = seen.entry(slug.clone()).or_default();
                anchors.push(if *times == 0 { slug } else { format!("{slug}-{times}") });
                *times += 1;
                heading = None;
            }
            _ => {}
        }
    }
    anchors
}

fn slug(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | ' '));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns the offset and the path of each mention of a file in the folder `docs` of the root.
fn mentions(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let in_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_');
    text.match_indices("docs/").filter_map(move |(at, _)| {
        if text[..at].ends_with(in_path) {
            return None; // a part of a longer path or of an address on the web
        }
        let rest = &text[at..];
        let end = rest.find(|c| !in_path(c)).unwrap_or(rest.len());
        let path = rest[..end].trim_end_matches(['.', '/']);
        path.contains('/').then_some((at, path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages<const N: usize>(files: [(&str, &str); N]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn dead_links_fail_and_live_ones_pass() {
        let page = "[a](b.md) [web](https://x/y) ![i](../i.png)\n[r]\n\n[r]: ../top.md\n";
        let live = [("d/a.md", page), ("d/b.md", ""), ("i.png", ""), ("top.md", "")];
        assert!(messages(live).is_empty());
        let found = messages([("d/a.md", page), ("i.png", "")]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("d/a.md:1: dead link `b.md`: `d/b.md` does not exist"));
        assert!(found[1].starts_with("d/a.md:2: dead link `../top.md`"));
    }

    #[test]
    fn anchors_are_those_of_github() {
        let text = "# The `Verbs` table: C's\n## a_b – c\n## x\n## x\n";
        assert_eq!(anchors(text), ["the-verbs-table-cs", "a_b--c", "x", "x-1"]);
    }

    #[test]
    fn a_dead_anchor_fails_here_and_in_another_page() {
        assert!(
            messages([("a.md", "# One\n[x](#one) [y](b.md#two)"), ("b.md", "# Two")]).is_empty()
        );
        let found = messages([("a.md", "# One\n[x](#ones)\n[y](b.md#one)"), ("b.md", "# Two")]);
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("a.md:2: dead anchor `#ones`"), "{found:?}");
        assert!(found[1].ends_with("the headings of b.md give two"), "{found:?}");
    }

    #[test]
    fn links_in_code_are_text() {
        assert!(messages([("a.md", "`[a](b.md)`\n\n```\n[a](b.md)\n```\n")]).is_empty());
    }

    #[test]
    fn a_mention_of_a_missing_document_fails_in_code_too() {
        let (gone, here) = (concat!("docs", "/gone.md"), concat!("docs", "/here.md"));
        let text = format!("//! See `{gone}`.\n");
        let found = messages([("a.rs", &text), (here, "")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with(&format!("a.rs:1: `{gone}` does not exist")));
        let text = format!("https://x/{gone} other/{gone} {here}. docs/\n");
        assert!(messages([("a.rs", &text), (here, "")]).is_empty());
    }
}
