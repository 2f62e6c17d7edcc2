//! The bindings compared with the headers that are installed on this machine, if there are any.
//!
//! Headers of another release may lack fields and structs, and some structs have grown. Fields that
//! both have must have the same offset.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

use test_support::packages::skip_without;
use test_support::program::{c_compiler, command};

#[cfg(target_arch = "aarch64")]
const ASSERTS: &str = include_str!("../../src/generated/layout_aarch64.rs");
#[cfg(target_arch = "x86_64")]
const ASSERTS: &str = include_str!("../../src/generated/layout_x86_64.rs");
#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
const ASSERTS: &str = "";

const BINDINGS: &str = include_str!("../../src/generated/verbs.rs");

/// Structs that have grown or may grow, always at the end except for `verbs_context`. Programs get
/// pointers to them from the provider, or pass their size.
const MAY_GROW: &[&str] = &["ibv_port_attr", "ibv_qp_ex", "verbs_context"];

/// Fields within unnamed structs and unions, which the generated asserts cannot name.
const NESTED: &[(&str, &str, usize)] = &[
    ("ibv_send_wr", "imm_data", nested::SEND_IMM),
    ("ibv_send_wr", "invalidate_rkey", nested::SEND_IMM),
    ("ibv_send_wr", "wr.rdma.remote_addr", nested::WR),
    ("ibv_send_wr", "wr.rdma.rkey", nested::WR + 8),
    ("ibv_send_wr", "wr.atomic.compare_add", nested::WR + 8),
    ("ibv_send_wr", "wr.atomic.swap", nested::WR + 16),
    ("ibv_send_wr", "wr.atomic.rkey", nested::WR + 24),
    ("ibv_send_wr", "wr.ud.remote_qpn", nested::WR + 8),
    ("ibv_send_wr", "wr.ud.remote_qkey", nested::WR + 12),
    ("ibv_wc", "imm_data", nested::WC_IMM),
    ("ibv_wc", "invalidated_rkey", nested::WC_IMM),
];

mod nested {
    use std::mem::offset_of;

    use rdma_sys::{ibv_send_wr, ibv_wc};

    pub(crate) const SEND_IMM: usize = offset_of!(ibv_send_wr, __bindgen_anon_1);
    pub(crate) const WR: usize = offset_of!(ibv_send_wr, wr);
    pub(crate) const WC_IMM: usize = offset_of!(ibv_wc, __bindgen_anon_1);
}

/// A struct and a field of it; the empty field stands for the size.
type Place = (String, String);

#[test]
fn installed_headers_agree() {
    let folder = tempfile::tempdir().unwrap();
    let ours = our_places();
    let Some(theirs) = installed_places(folder.path(), &ours) else { return };

    let sizes =
        |places: &BTreeMap<Place, usize>, name: &str| places[&(name.to_owned(), String::new())];
    let mut wrong = Vec::new();
    for ((name, field), &their) in &theirs {
        let our = ours[&(name.clone(), field.clone())];
        let may_grow = MAY_GROW.contains(&name.as_str());
        let equal = match field.as_str() {
            "" => our == their || may_grow,
            // It grows at its beginning, so the distance from the end is fixed.
            _ if name == "verbs_context" => {
                sizes(&ours, name) - our == sizes(&theirs, name) - their
            }
            _ => our == their,
        };
        if !equal {
            wrong.push(format!("{name}.{field}: here {our}, installed {their}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    let structs: BTreeSet<_> = theirs.keys().map(|(name, _)| name).collect();
    println!("compared {} structs, {} places", structs.len(), theirs.len());
    for essential in ["ibv_context", "ibv_qp", "ibv_cq", "ibv_send_wr", "ibv_wc", "verbs_context"] {
        assert!(structs.contains(&essential.to_owned()), "{essential} was not compared");
    }
}

/// Returns every struct and field that the generated asserts name, with its size or offset.
fn our_places() -> BTreeMap<Place, usize> {
    let mut places = BTreeMap::new();
    let text = ASSERTS.replace('\n', " ");
    for part in text.split("[\"").skip(1) {
        let Some((what, rest)) = part.split_once("\"]") else { continue };
        let number = rest.split("usize").next().unwrap().rsplit(' ').next().unwrap();
        let place = match what.split_once(": ") {
            Some(("Offset of field", place)) => place.split_once("::").unwrap(),
            _ => match what.strip_prefix("Size of ") {
                Some(name) => (name, ""),
                None => continue,
            },
        };
        // Types and fields without a name in C.
        if !place.0.contains("__bindgen") && !place.1.contains("__bindgen") {
            places.insert((place.0.to_owned(), place.1.to_owned()), number.parse().unwrap());
        }
    }
    for &(name, field, offset) in NESTED {
        places.insert((name.to_owned(), field.to_owned()), offset);
    }
    assert!(places.len() > 500, "the asserts were not understood");
    places
}

/// Returns the same sizes and offsets from the installed headers, without those that they lack.
fn installed_places(
    folder: &Path,
    ours: &BTreeMap<Place, usize>,
) -> Option<BTreeMap<Place, usize>> {
    let program = folder.join("layout");
    let mut lines: Vec<_> = ours.keys().map(|place| (place, c_line(place))).collect();
    // The first pass finds the lines that do not compile: fields that these headers do not have.
    for _ in 0..2 {
        let source = folder.join("layout.c");
        fs::write(&source, c_program(lines.iter().map(|(_, line)| line.as_str()))).unwrap();
        let mut compiler = c_compiler();
        compiler.arg("-fmax-errors=0").arg("-o").arg(&program).arg(&source);
        let output = match compiler.output() {
            Ok(output) => output,
            Err(error) => {
                skip_without(&format!("a C compiler ({error})"), "gcc libc6-dev");
                return None;
            }
        };
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            let output = command(&program).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let numbers = text.lines().map(|line| line.parse().unwrap());
            return Some(lines.into_iter().map(|(place, _)| place.clone()).zip(numbers).collect());
        }
        if messages.contains("verbs.h: No such file") {
            skip_without("infiniband/verbs.h", "libibverbs-dev");
            return None;
        }
        let failed = failed_lines(&messages);
        assert!(!failed.is_empty(), "{messages}");
        let mut number = 0;
        lines.retain(|_| {
            number += 1;
            !failed.contains(&number)
        });
    }
    panic!("the reduced program does not compile either");
}

/// Returns the line of C that prints one size or offset.
fn c_line((name, field): &Place) -> String {
    let kind = if BINDINGS.contains(&format!("pub union {name} ")) { "union" } else { "struct" };
    match field.strip_suffix('_').unwrap_or(field) {
        "" => format!("P(sizeof({kind} {name}))"),
        field => format!("P(offsetof({kind} {name}, {field}))"),
    }
}

/// Returns a program with one size or offset in each line, the first in line 1.
fn c_program<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n\
         #define P(number) printf(\"%zu\\n\", (size_t)(number));\nint main(void) {\n#line 1\n",
    );
    for line in lines {
        writeln!(text, "{line}").unwrap();
    }
    text + "return 0; }\n"
}

/// Returns the lines of `layout.c` that the compiler reports as errors.
fn failed_lines(messages: &str) -> BTreeSet<usize> {
    let numbers = messages.lines().filter_map(|message| {
        let (place, _) = message.split_once(": error:")?;
        let (_, position) = place.split_once("layout.c:")?;
        position.split(':').next()?.parse().ok()
    });
    numbers.collect()
}
