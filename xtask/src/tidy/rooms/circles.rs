//! Finds the circles in a graph, that is, its strongly connected components.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The files from which each file imports, by path.
pub(super) type Imports = BTreeMap<String, BTreeSet<String>>;

/// Returns the circles of more than one file, starting with the largest. The files of a circle are
/// sorted.
pub(super) fn all(imports: &Imports) -> Vec<Vec<&str>> {
    // Two files are in the same circle if each can be reached from the other. This is fast enough,
    // because there are few files.
    let reached: BTreeMap<_, _> =
        imports.keys().map(|file| (file.as_str(), reached(imports, file))).collect();
    let circle = |file: &&str| {
        let back = |other: &&str| reached.get(other).is_some_and(|from| from.contains(file));
        reached[file].iter().copied().filter(back).collect::<Vec<_>>()
    };
    // A circle is found once for each of its files, so only the one found for its first file is
    // kept.
    let circles = reached.keys().map(|file| (file, circle(file)));
    let mut circles: Vec<_> = circles
        .filter(|(file, circle)| circle.len() > 1 && circle.first() == Some(*file))
        .map(|(_, circle)| circle)
        .collect();
    circles.sort_by_key(|circle| Reverse(circle.len()));
    circles
}

/// Returns the file itself, the files from which it imports, those from which these import, and so
/// on.
fn reached<'a>(imports: &'a Imports, from: &'a str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::from([from]);
    let mut left = vec![from];
    while let Some(file) = left.pop() {
        for next in imports.get(file).into_iter().flatten() {
            if seen.insert(next) {
                left.push(next);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(edges: &str) -> String {
        let mut imports = Imports::new();
        for edge in edges.split(' ') {
            let (from, to) = edge.split_once('>').unwrap();
            imports.entry(to.to_owned()).or_default();
            imports.entry(from.to_owned()).or_default().insert(to.to_owned());
        }
        all(&imports).iter().map(|circle| circle.concat()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn files_that_lead_back_to_themselves_form_a_circle() {
        assert_eq!(of("a>b b>c c>a c>d d>e"), "abc");
        assert_eq!(of("a>b b>a c>d d>e e>c x>a"), "cde ab");
        assert_eq!(of("e>f f>e a>b b>a"), "ab ef");
        assert_eq!(of("a>b b>c c>b c>d d>b"), "bcd", "two circles with a file in common are one");
    }

    #[test]
    fn a_file_by_itself_is_no_circle() {
        assert_eq!(of("a>b a>c b>c"), "");
        assert!(all(&Imports::new()).is_empty());
    }
}
