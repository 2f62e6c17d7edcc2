//! Checks that no folder has too many files, and that no circle of modules is too large. So code
//! that must be read together stays small.

mod circles;
mod graph;

use std::collections::BTreeMap;

use super::{Finding, by_hand, layers};
use crate::tree::Tree;
use graph::Graph;

/// The maximum number of files in one folder. The file of a module counts in the folder that
/// contains the file, not in the folder of the module's submodules.
const FILES: usize = 15;
/// The maximum number of files in one circle of modules. In a circle, each module reaches all
/// others through imports.
const CIRCLE: usize = 5;

/// The limits that apply to a crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ceiling<'a> {
    name: &'static str,
    /// The number of files in the fullest folder.
    files: usize,
    /// The number of files in each circle that is too large, starting with the largest circle.
    circles: &'a [usize],
    /// The number of imports from the crate's root of items that another module defines.
    from_root: usize,
}

/// Crates that exceed the limits, with their present numbers. These numbers may only decrease.
const NOT_DONE: &[Ceiling<'_>] = &[];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    check_with(tree, NOT_DONE)
}

/// Returns the lines that `cargo xtask tidy --rooms` prints: one for each crate, followed by its
/// circles of several files.
pub(crate) fn figures(tree: &Tree) -> Vec<String> {
    let line = |name| {
        let crate_ = Crate::read(tree, name)?;
        let (folder, files) = crate_.fullest();
        let (circles, from_root) = (crate_.circles(), crate_.from_root.len());
        let count = circles.len();
        let figures = format!(
            "{name}: {files} files in {folder}, circles: {count}, {from_root} imports from the root"
        );
        let circles = circles.iter().flat_map(|circle| {
            let files = circle.iter().map(|path| format!("    {path}"));
            [format!("  a circle of {} files:", circle.len())].into_iter().chain(files)
        });
        Some([figures].into_iter().chain(circles).collect::<Vec<_>>())
    };
    layers::names().filter_map(line).flatten().collect()
}

fn check_with(tree: &Tree, not_done: &[Ceiling<'_>]) -> Vec<Finding> {
    let crates = layers::names().filter_map(|name| Crate::read(tree, name));
    crates.flat_map(|crate_| crate_.check(not_done)).collect()
}

/// The properties of a crate that are checked.
struct Crate {
    name: &'static str,
    root: String,
    /// The number of files in each folder, by path.
    folders: BTreeMap<String, usize>,
    graph: Graph,
    from_root: Vec<Finding>,
}

impl Crate {
    fn read(tree: &Tree, name: &'static str) -> Option<Self> {
        let folder = format!("crates/{name}/src/");
        let root = format!("{folder}lib.rs");
        tree.text(&root)?;
        let mut folders = BTreeMap::new();
        let files = tree.ending(&[".rs"]).filter(|(path, _)| path.starts_with(&folder));
        for (path, _) in files.filter(|(path, _)| by_hand(path)) {
            let (folder, _) = path.rsplit_once('/')?;
            *folders.entry(folder.to_owned()).or_default() += 1;
        }
        let (graph, from_root) = Graph::read(tree, &folder);
        let from_root = from_root.into_iter().map(|(path, line, what)| {
            let what = format!("`{what}`: import it from the module that defines it");
            Finding::new(path, line, what)
        });
        Some(Self { name, root, folders, graph, from_root: from_root.collect() })
    }

    fn fullest(&self) -> (&str, usize) {
        let fullest = self.folders.iter().max_by_key(|&(_, files)| files);
        fullest.map_or(("", 0), |(folder, &files)| (folder, files))
    }

    fn circles(&self) -> Vec<Vec<&str>> {
        circles::all(&self.graph.imports)
    }

    fn check(self, not_done: &[Ceiling<'_>]) -> Vec<Finding> {
        let allowed = Ceiling { name: self.name, files: FILES, circles: &[], from_root: 0 };
        let ceiling = not_done.iter().find(|ceiling| ceiling.name == self.name);
        let limit = *ceiling.unwrap_or(&allowed);
        let mut found = Vec::new();
        for (folder, &files) in self.folders.iter().filter(|&(_, &files)| files > limit.files) {
            let what = format!(
                "{files} files in a folder, {} are allowed; make folders by noun",
                limit.files
            );
            found.push(Finding::new(folder, 1, what));
        }
        let mut circles = self.circles();
        circles.retain(|circle| circle.len() > CIRCLE);
        for (n, circle) in circles.iter().enumerate() {
            let most = limit.circles.get(n).copied().unwrap_or(CIRCLE);
            if circle.len() > most {
                let what = format!(
                    "a circle of modules has {} files, {most} are allowed; move things to where no import \
                     closes it: {}",
                    circle.len(),
                    circle.join(" ")
                );
                found.push(Finding::new(&self.root, 1, what));
            }
        }
        if ceiling.is_some() {
            let sizes: Vec<_> = circles.iter().map(Vec::len).collect();
            let has = Ceiling {
                name: self.name,
                files: self.fullest().1.max(FILES),
                circles: &sizes,
                from_root: self.from_root.len(),
            };
            if has == allowed {
                let what =
                    format!("{} is done; remove it from the table in {}", self.name, file!());
                found.push(Finding::new(&self.root, 1, what));
            } else if has != limit {
                let (had, has) = (numbers(limit), numbers(has));
                let name = self.name;
                let what = format!("{name}: {has}, and {} has {had}; lower those", file!());
                found.push(Finding::new(&self.root, 1, what));
            }
        }
        if self.from_root.len() > limit.from_root {
            found.extend(self.from_root);
        }
        found
    }
}

fn numbers(Ceiling { files, circles, from_root, .. }: Ceiling<'_>) -> String {
    format!("files {files}, circles {circles:?}, from_root {from_root}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the messages for a crate that consists of a root and the files `a0.rs`, `a1.rs` and
    /// so on.
    fn messages<const N: usize>(
        text: impl Fn(usize) -> String,
        not_done: &[Ceiling<'_>],
    ) -> Vec<String> {
        let folder = "crates/rdma-qp/src";
        let names: [String; N] = std::array::from_fn(|place| match place {
            0 => format!("{folder}/lib.rs"),
            place => format!("{folder}/a{}.rs", place - 1),
        });
        let texts: [String; N] = std::array::from_fn(|place| match place {
            0 => (1..N).map(|place| format!("mod a{};\n", place - 1)).collect(),
            place => text(place - 1),
        });
        let files = std::array::from_fn(|place| (names[place].as_str(), texts[place].as_str()));
        check_with(&Tree::of::<N>(files), not_done).iter().map(Finding::to_string).collect()
    }

    /// Returns the text of each file, so that the first `of` modules form a circle. Each imports
    /// from the next one, and the last from the first. All others import nothing.
    fn circle(of: usize) -> impl Fn(usize) -> String {
        circles([of, 0])
    }

    /// Returns the text of each file, so that there are two circles of these sizes.
    fn circles([first, second]: [usize; 2]) -> impl Fn(usize) -> String {
        move |place| {
            let next = match place.checked_sub(first) {
                None => (place + 1) % first,
                Some(n) if n < second => first + (n + 1) % second,
                Some(_) => return String::new(),
            };
            format!("use crate::a{next}::Thing;")
        }
    }

    #[test]
    fn a_folder_of_16_files_fails_and_of_15_passes() {
        assert_eq!(messages::<15>(|_| String::new(), &[]), [""; 0]);
        let found = messages::<16>(|_| String::new(), &[]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/rdma-qp/src:1: 16 files in a folder"), "{found:?}");
    }

    #[test]
    fn folders_within_and_generated_files_do_not_count() {
        let names: [_; 80] = std::array::from_fn(|place| match place {
            0 => "crates/rdma-qp/src/lib.rs".to_owned(),
            place => {
                let folder = ["", "a/", "b/", "generated/"][place % 4];
                let place = if folder == "generated/" { place } else { place % 13 };
                format!("crates/rdma-qp/src/{folder}f{place}.rs")
            }
        });
        let tree = Tree::of(names.each_ref().map(|name| (name.as_str(), "")));
        assert_eq!(check_with(&tree, &[]), []);
    }

    #[test]
    fn a_circle_of_6_files_fails_and_of_5_passes() {
        assert_eq!(messages::<10>(circle(5), &[]), [""; 0]);
        let found = messages::<10>(circle(6), &[]);
        assert_eq!(found.len(), 1);
        let start = "crates/rdma-qp/src/lib.rs:1: a circle of modules has 6 files";
        assert!(found[0].starts_with(start) && found[0].ends_with("/a5.rs"), "{found:?}");
    }

    #[test]
    fn each_circle_that_is_too_large_fails() {
        let found = messages::<15>(circles([6, 7]), &[]);
        assert_eq!(found.len(), 2);
        assert!(found[0].contains("has 7 files, 5 are allowed"), "{found:?}");
        assert!(found[1].contains("has 6 files, 5 are allowed"), "{found:?}");
        let row = |sizes| [Ceiling { name: "rdma-qp", files: FILES, circles: sizes, from_root: 0 }];
        let beside_it = messages::<15>(circles([6, 7]), &row(&[7]));
        assert!(beside_it[0].contains("has 6 files, 5 are allowed"), "{beside_it:?}");
        assert_eq!(messages::<15>(circles([6, 7]), &row(&[7, 6])), [""; 0]);
    }

    #[test]
    fn an_import_from_the_root_fails() {
        let found = messages::<3>(|place| ["\nuse crate::Thing;", ""][place].to_owned(), &[]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("a0.rs:2: `crate::Thing`: import it from"), "{found:?}");
    }

    #[test]
    fn the_numbers_of_an_exception_may_only_decrease() {
        let row =
            |circles, from_root| [Ceiling { name: "rdma-qp", files: FILES, circles, from_root }];
        assert_eq!(messages::<10>(circle(7), &row(&[7], 0)), [""; 0]);
        assert!(messages::<10>(circle(8), &row(&[7], 0))[0].contains("has 8 files, 7 are allowed"));
        let lower = messages::<10>(circle(6), &row(&[7], 0));
        assert!(lower[0].contains("circles [6], from_root 0, and xtask/src/tidy/rooms.rs has"));
        assert!(messages::<10>(circle(5), &row(&[7], 0))[0].contains("rdma-qp is done"));
        let root = |_| "use crate::Thing;".to_owned();
        assert_eq!(messages::<3>(root, &row(&[], 2)), [""; 0]);
        assert_eq!(messages::<3>(root, &row(&[], 1)).len(), 3, "both imports, and the number");
    }
}
