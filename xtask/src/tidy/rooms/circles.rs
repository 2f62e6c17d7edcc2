//! The largest circle of a graph: the largest of its strongly connected components.

use std::collections::{BTreeMap, BTreeSet};

/// What each file imports from.
pub(super) type Imports = BTreeMap<String, BTreeSet<String>>;

/// The files of the largest circle, sorted; of several the first. A file that is in none is one by
/// itself.
pub(super) fn largest(imports: &Imports) -> Vec<&str> {
    // Two files are in one circle if each can be reached from the other. There are few files.
    let reached: BTreeMap<_, _> =
        imports.keys().map(|file| (file.as_str(), reached(imports, file))).collect();
    let circle = |file: &str| {
        let back = |other: &&str| reached.get(other).is_some_and(|from| from.contains(file));
        reached[file].iter().copied().filter(back).collect::<Vec<_>>()
    };
    let mut largest = Vec::new();
    for file in imports.keys() {
        let circle = circle(file);
        if circle.len() > largest.len() {
            largest = circle;
        }
    }
    largest
}

/// The file, and what it imports from, and what that imports from, and so on.
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
        largest(&imports).concat()
    }

    #[test]
    fn a_circle_is_what_leads_back() {
        assert_eq!(of("a>b b>c c>a c>d d>e"), "abc");
        assert_eq!(of("a>b b>a c>d d>e e>c x>a"), "cde");
        assert_eq!(of("a>b b>c c>b c>d d>b"), "bcd", "two circles with a file in common are one");
    }

    #[test]
    fn without_a_circle_each_file_is_alone() {
        assert_eq!(of("a>b a>c b>c"), "a");
        assert_eq!(largest(&Imports::new()), [""; 0]);
    }
}
