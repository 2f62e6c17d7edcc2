//! `rdmatool plot`, with reports in the format of `rdmatool perf --json`.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::report::{report, row};
use crate::{printed, rdmatool};

/// Writes these reports, draws them into a file of this name, and returns its bytes.
fn drawn(reports: &[Value], name: &str) -> Vec<u8> {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let mut arguments = vec!["plot".to_owned(), "-o".to_owned(), path(name)];
    for (index, report) in reports.iter().enumerate() {
        let file = path(&format!("{index}.json"));
        fs::write(&file, report.to_string()).unwrap();
        arguments.push(file);
    }
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    assert_eq!(printed(&arguments), "");
    fs::read(path(name)).unwrap()
}

/// Returns the texts of a picture.
fn texts(reports: &[Value]) -> Vec<String> {
    let svg = String::from_utf8(drawn(reports, "picture.svg")).unwrap();
    assert!(svg.starts_with("<svg width=\"900\" ") && svg.ends_with("</svg>\n"), "{svg}");
    let texts = svg.split("<text ").skip(1).filter_map(|rest| rest.split_once('>'));
    texts.map(|(_, rest)| rest.split("</text>").next().unwrap().trim().to_owned()).collect()
}

fn latency(operation: &str, bytes: u64, p50: u64) -> Value {
    let mut row = row("lat", operation, bytes, p50 as f64);
    row["latency"] = json!({
        "min": p50 / 2, "p50": p50, "p90": p50 + 100, "p99": p50 * 2, "p999": p50 * 3,
        "max": p50 * 9, "mean": p50 as f64,
    });
    row
}

fn all_measures() -> Value {
    report(vec![
        latency("write", 8, 1000),
        latency("write", 65_536, 20_000),
        latency("tcp", 8, 9000),
        row("bw", "write", 8, 20e6),
        row("bw", "write", 65_536, 11e9),
        row("rate", "send", 8, 5e6),
    ])
}

#[test]
fn each_measure_has_a_chart_with_units_and_a_legend() {
    let texts = texts(&[all_measures()]);
    for text in [
        "Latency: median, band to p99",
        "Distribution of latency at 8 B",
        "Bandwidth",
        "Message rate",
        "32 KiB",
        "8 B",
        "p99.9",
        "1 us",
        "10 GB/s",
        "6 M/s",
        "write",
        "tcp",
        "send",
    ] {
        assert!(texts.iter().any(|found| found == text), "{text} is not in {texts:?}");
    }
    assert!(texts.iter().any(|text| text.starts_with("soft0, Xeon")), "{texts:?}");
}

#[test]
fn measures_without_rows_have_no_chart() {
    let texts = texts(&[report(vec![row("bw", "read", 4096, 3e9)])]);
    assert!(texts.iter().any(|text| text == "Bandwidth"), "{texts:?}");
    for other in ["Latency", "Distribution", "rate"] {
        assert!(!texts.iter().any(|text| text.contains(other)), "{texts:?}");
    }
}

#[test]
fn labels_name_what_distinguishes_the_lines() {
    let changed = |field: &str, value: Value| {
        let mut row = row("bw", "write", 8, 1e9);
        row[field] = value;
        row
    };
    let rows = vec![changed("mode", json!("async")), changed("queue_pairs", json!(4))];
    let found = texts(&[report(rows)]);
    for label in ["write, async, 1 QP", "write, polling, 4 QPs"] {
        assert!(found.iter().any(|text| text == label), "{found:?}");
    }

    // Short messages of the same line are inline.
    let mut inline = row("bw", "read", 8, 1e9);
    inline["mode"] = json!("polling, inline");
    let found = texts(&[report(vec![inline, row("bw", "read", 65_536, 1e9)])]);
    assert!(found.iter().any(|text| text == "read"), "{found:?}");

    let mut other = all_measures();
    let same = texts(&[all_measures(), other.clone()]);
    assert!(["write (1)", "write (2)"].iter().all(|label| same.iter().any(|text| text == label)));
    other["device"]["name"] = json!("rxe0");
    let two = texts(&[all_measures(), other]);
    for label in ["write (soft0)", "write (rxe0)", "tcp (rxe0)"] {
        assert!(two.iter().any(|text| text == label), "{two:?}");
    }
}

#[test]
fn lines_for_scale_are_dashed() {
    let lines = |operation: &str| {
        let rows = vec![row("bw", operation, 8, 1e9), row("bw", operation, 65_536, 9e9)];
        let svg = String::from_utf8(drawn(&[report(rows)], "picture.svg")).unwrap();
        svg.matches("<polyline ").count()
    };
    for operation in ["tcp", "memcpy", "perftest"] {
        assert!(lines(operation) > lines("write") + 20, "{operation}");
    }
}

#[test]
fn markup_in_a_report_stays_text() {
    let texts = texts(&[report(vec![row("bw", "<script>&\"", 8, 1e9)])]);
    assert!(texts.iter().any(|text| text.starts_with("&lt;script&gt;&amp;")), "{texts:?}");
}

#[test]
fn a_png_has_the_size_and_the_colors_of_the_picture() {
    let bytes = drawn(&[all_measures()], "picture.PNG");
    let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width, info.color_type), (900, png::ColorType::Rgb));
    let has = |color: [u8; 3]| pixels.chunks(3).any(|pixel| pixel == color);
    // The background, a line, and text.
    assert!(has([255; 3]) && has([0, 114, 178]) && has([60; 3]));
}

#[test]
fn an_impossible_picture_is_an_error() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let input = path("report.json");
    let fail = |report: &Value, output: &str| {
        fs::write(&input, report.to_string()).unwrap();
        let output = rdmatool(&["plot", &input, "-o", output]);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    for name in ["picture.gif", "picture"] {
        let error = fail(&all_measures(), &path(name));
        assert!(error.contains(&path(name)) && error.contains("FILE.svg"), "{error}");
    }
    let error = fail(&all_measures(), &path("missing/picture.svg"));
    assert!(error.contains("missing/picture.svg") && error.contains("No such file"), "{error}");
    let error = fail(&report(vec![row("bw", "write", 0, 1e9)]), &path("picture.svg"));
    assert!(error.contains("nothing to draw"), "{error}");
    let many = (0..51).map(|index| row("bw", &format!("write{index}"), 8, 1e9)).collect();
    let error = fail(&report(many), &path("picture.svg"));
    assert!(error.contains("51 lines, more than the 50"), "{error}");
    let error = fail(&json!({ "version": 1 }), &path("picture.svg"));
    assert!(error.contains(&input), "{error}");
}
