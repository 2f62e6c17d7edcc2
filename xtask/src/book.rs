//! `cargo xtask book`: builds a searchable site from the pages that the README lists, using mdBook.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::tidy::links::resolve;
use crate::tree;

/// The first page of the book.
const FIRST: &str = "README.md";
/// The heading of the section on the first page that lists the other pages.
const CONTENTS: &str = "## Pages\n";
/// The folder that contains the pages.
const FOLDER: &str = "docs";

const CONFIGURATION: &str = r#"[book]
title = "RDMA in Rust"
language = "en"
src = "src"

[build]
build-dir = "html"

[output.html]
no-section-label = true
"#;

/// Builds the site in `target/book/html` and checks its links.
///
/// # Errors
/// Returns an error if mdBook is missing or fails, or if the README does not list a page. Also
/// returns an error for an undefined reference or a dead link.
pub(crate) fn run() -> Result<()> {
    let root = tree::root();
    let book = root.join("target/book");
    if book.exists() {
        fs::remove_dir_all(&book)?;
    }
    write(&root, &book)?;
    let built = Command::new("mdbook").arg("build").arg(&book).status();
    let built =
        built.context("mdbook does not start; `cargo install --locked mdbook` installs it")?;
    if !built.success() {
        bail!("mdbook failed: {built}");
    }
    let site = book.join("html");
    let dead = dead_links(&site)?;
    if !dead.is_empty() {
        bail!("dead links in {}:\n{}", site.display(), dead.join("\n"));
    }
    println!("{}", site.join("index.html").display());
    Ok(())
}

/// Writes the source files of the book.
fn write(root: &Path, book: &Path) -> Result<()> {
    let first = fs::read_to_string(root.join(FIRST))?;
    let parts = parts(&first)?;
    let mut pages: BTreeSet<_> = parts.iter().flat_map(|part| &part.pages).cloned().collect();
    pages.insert(FIRST.to_owned());
    pages.insert("examples/README.md".to_owned());
    let source = book.join("src");
    for page in &pages {
        let text = fs::read_to_string(root.join(page)).with_context(|| page.clone())?;
        if let Some(unresolved) = unresolved(&text) {
            bail!("{page}: the link `{unresolved}` is undefined; define it, or write it as code");
        }
        put(&source.join(name(page)), within(&text, page, &pages).as_bytes())?;
    }
    for plot in plots(root)? {
        put(&source.join(FOLDER).join(&plot), &fs::read(root.join(FOLDER).join(&plot))?)?;
    }
    for entry in fs::read_dir(root.join(FOLDER))? {
        let name = format!("{FOLDER}/{}", entry?.file_name().to_string_lossy());
        if name.ends_with(".md") && !pages.contains(&name) {
            bail!("{name} is not in the section \"Pages\" of {FIRST}");
        }
    }
    put(&source.join("SUMMARY.md"), summary(root, &parts)?.as_bytes())?;
    put(&book.join("book.toml"), CONFIGURATION.as_bytes())
}

fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::create_dir_all(path.parent().context("a path without a folder")?)?;
    fs::write(path, bytes).with_context(|| path.display().to_string())
}

/// Returns the paths of the plots, relative to the folder of the pages.
fn plots(root: &Path) -> Result<Vec<PathBuf>> {
    let folder = root.join(FOLDER).join("plots");
    if !folder.exists() {
        return Ok(Vec::new());
    }
    fs::read_dir(folder)?.map(|entry| Ok(Path::new("plots").join(entry?.file_name()))).collect()
}

/// An item of the list of pages: `- Title: [page](path), ...`.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    title: String,
    /// The paths of the pages, relative to the root.
    pages: Vec<String>,
}

fn parts(readme: &str) -> Result<Vec<Part>> {
    let section = readme.split_once(CONTENTS).context("no section \"Pages\" in the README")?.1;
    let section = section.split("\n## ").next().unwrap_or(section);
    let mut parts: Vec<Part> = Vec::new();
    for event in Parser::new(section) {
        match (event, parts.last_mut()) {
            (Event::Start(Tag::Item), _) => {
                parts.push(Part { title: String::new(), pages: Vec::new() });
            }
            (Event::Text(text), Some(part)) if part.title.is_empty() => {
                part.title = text.split(':').next().unwrap_or_default().to_owned();
            }
            (Event::Start(Tag::Link { dest_url, .. }), Some(part)) => {
                part.pages.push(dest_url.into_string());
            }
            _ => {}
        }
    }
    Ok(parts)
}

/// Returns the table of contents in mdBook's format.
fn summary(root: &Path, parts: &[Part]) -> Result<String> {
    let mut text = format!("# Summary\n\n[{}]({})\n", title(root, FIRST)?, name(FIRST));
    text += &format!("[{}](examples/index.md)\n", title(root, "examples/README.md")?);
    for part in parts {
        text += &format!("\n# {}\n\n", part.title);
        for page in &part.pages {
            text += &format!("- [{}]({})\n", title(root, page)?, name(page));
        }
    }
    Ok(text)
}

/// Returns the text of a page's first heading.
fn title(root: &Path, page: &str) -> Result<String> {
    let text = fs::read_to_string(root.join(page)).with_context(|| page.to_owned())?;
    let line = text.lines().find_map(|line| line.strip_prefix("# "));
    Ok(line.with_context(|| format!("{page} has no heading"))?.to_owned())
}

/// Returns the file name that a page has in the book. mdBook creates `index.html` only from a page
/// with the name `index.md`.
fn name(page: &str) -> String {
    page.replace("README.md", "index.md")
}

/// Returns the text of a page, in which each link to a file outside the book is replaced by the
/// link's text. Links to web sites are kept.
fn within(text: &str, page: &str, pages: &BTreeSet<String>) -> String {
    let (mut result, mut end) = (String::new(), 0);
    let mut label: Option<Range<usize>> = None;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::Link { dest_url, .. }) => {
                let file = dest_url.split('#').next().unwrap_or_default();
                let here = file.is_empty() || file.contains(':');
                let inside = here || resolve(page, file).is_some_and(|file| pages.contains(&file));
                result += &text[end..range.start];
                end = range.start;
                if inside {
                    result += &if here {
                        text[range.clone()].to_owned()
                    } else {
                        name(&text[range.clone()])
                    };
                    end = range.end;
                } else {
                    label = Some(range.end..range.start);
                }
            }
            Event::End(TagEnd::Link) => {
                if let Some(label) = label.take().filter(|label| label.start < label.end) {
                    result += &text[label];
                    end = range.end;
                }
            }
            _ => {
                if let Some(label) = &mut label {
                    *label = label.start.min(range.start)..label.end.max(range.end);
                }
            }
        }
    }
    result + &text[end..]
}

/// Returns a reference such as `[Name]` that has no definition, if there is one. It would be shown
/// with its brackets.
fn unresolved(text: &str) -> Option<String> {
    let mut found = None;
    let mut note = |link: pulldown_cmark::BrokenLink<'_>| {
        found.get_or_insert_with(|| text[link.span.clone()].to_owned());
        None
    };
    let options = Options::ENABLE_TABLES;
    Parser::new_with_broken_link_callback(text, options, Some(&mut note)).for_each(drop);
    found
}

/// Returns the links of the site that lead to a missing file, or to a missing element of a file.
fn dead_links(site: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    let mut folders = vec![site.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "html") {
                let name = path.strip_prefix(site)?.to_string_lossy().into_owned();
                pages.insert(name, fs::read_to_string(&path)?);
            }
        }
    }
    let mut dead = Vec::new();
    for (page, text) in &pages {
        // `print.html` repeats the other pages, `404.html` may be shown at any path, and `toc.html`
        // repeats the table of contents.
        if page == "print.html" || page == "404.html" || page == "toc.html" {
            continue;
        }
        for target in attributes(text, "href").chain(attributes(text, "src")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            if file.contains(':') {
                continue;
            }
            let path = if file.is_empty() { Some(page.clone()) } else { resolve(page, file) };
            let has =
                |text: &String| anchor.is_empty() || attributes(text, "id").any(|id| id == anchor);
            let live = path.is_some_and(|path| {
                pages.get(&path).map_or_else(|| site.join(&path).is_file(), has)
            });
            if !live {
                dead.push(format!("{page}: {target}"));
            }
        }
    }
    Ok(dead)
}

/// Returns the values of an attribute in an HTML page. Finds it only in the form in which mdBook
/// writes it.
fn attributes<'a>(html: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!(" {name}=\"");
    let values = html.split(&*begin).skip(1).collect::<Vec<_>>();
    values.into_iter().filter_map(|rest| rest.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contents_come_from_the_list_of_the_readme() {
        let readme = "# X\n\n## Pages\n\n- Using it: [a](pages/a.md),\n  [b](pages/b.md).\n\n## Licence\n\n- [c](C)\n";
        let part = Part {
            title: "Using it".to_owned(),
            pages: vec!["pages/a.md".to_owned(), "pages/b.md".to_owned()],
        };
        assert_eq!(parts(readme).unwrap(), [part]);
        assert!(parts("# X\n").is_err());
    }

    #[test]
    fn a_link_out_of_the_book_becomes_its_text() {
        let pages = BTreeSet::from(["pages/a.md".to_owned(), "README.md".to_owned()]);
        let text =
            "[in](../README.md#x) [`code`](../src/lib.rs) [web](https://x) [here](#y) `[no](z)`\n";
        let kept = "[in](../index.md#x) `code` [web](https://x) [here](#y) `[no](z)`\n";
        assert_eq!(within(text, "pages/a.md", &pages), kept);
    }

    #[test]
    fn an_undefined_reference_is_found() {
        assert_eq!(unresolved("see [`X`] and [a]\n\n[a]: b\n").as_deref(), Some("[`X`]"));
        assert_eq!(unresolved("`[X]` [a]\n\n[a]: b\n"), None);
    }

    #[test]
    fn attributes_are_read_as_they_are_written() {
        let html = r#"<a class="x" href="a.html#b">t</a><a href="c.html">"#;
        assert_eq!(attributes(html, "href").collect::<Vec<_>>(), ["a.html#b", "c.html"]);
    }
}
