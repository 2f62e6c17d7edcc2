//! The charts for a set of reports, and the points in them.

use std::collections::{BTreeMap, BTreeSet};

use crate::perf::protocol::Work;
use crate::perf::report::{Latency, Measure, Report, Row};
use crate::{reports, units};

/// The name of a percentile, and the function that reads its value.
type Percentile = (&'static str, fn(&Latency) -> u64);
pub(super) const PERCENTILES: [Percentile; 6] = [
    ("min", |latency| latency.min),
    ("p50", |latency| latency.p50),
    ("p90", |latency| latency.p90),
    ("p99", |latency| latency.p99),
    ("p99.9", |latency| latency.p999),
    ("max", |latency| latency.max),
];

/// The data of a chart.
#[derive(Debug)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) x: X,
    pub(super) measure: Measure,
    pub(super) series: Vec<Series>,
}

/// The quantity that the horizontal axis shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum X {
    /// The message length, as its base-2 logarithm.
    Bytes,
    /// A percentile, as an index into [`PERCENTILES`].
    Percentiles,
}

/// One line in a chart. In all charts of a figure, series with the same label look the same.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) label: String,
    /// Whether the line shows a reference, and is therefore dashed.
    pub(super) reference: bool,
    pub(super) points: Vec<(f64, f64)>,
    /// The upper edge of a band above the line, or empty if there is no band.
    pub(super) upper: Vec<(f64, f64)>,
}

/// Returns a chart for each measure in the reports, and one of the latency distribution. The points
/// of each series are sorted.
pub(super) fn charts(reports: &[Report]) -> Vec<Chart> {
    let by_size = [
        (Measure::Lat, "Latency: median, band to p99"),
        (Measure::Bw, "Bandwidth"),
        (Measure::Rate, "Message rate"),
    ];
    let by_size = by_size.map(|(measure, title)| {
        let series = all(reports, measure, |_| true, by_size_points);
        Chart { title: title.to_owned(), x: X::Bytes, measure, series }
    });
    let [latency, bandwidth, rate] = by_size;
    let all = [Some(latency), distribution(reports), Some(bandwidth), Some(rate)];
    all.into_iter().flatten().filter(|chart| !chart.series.is_empty()).collect()
}

/// Returns the chart of percentiles. Its message length is the most frequent one among rows with
/// latencies or, if several are equally frequent, the smallest of these.
fn distribution(reports: &[Report]) -> Option<Chart> {
    let mut sizes: BTreeMap<u64, usize> = BTreeMap::new();
    let rows = reports.iter().flat_map(|report| &report.rows);
    for row in rows.filter(|row| row.latency.is_some()) {
        *sizes.entry(row.bytes).or_default() += 1;
    }
    let (bytes, _) = sizes.iter().rev().max_by_key(|(_, rows)| **rows)?;
    let series = all(reports, Measure::Lat, |row| row.bytes == *bytes, percentiles);
    let title = format!("Distribution of latency at {}", units::bytes(*bytes));
    Some(Chart { title, x: X::Percentiles, measure: Measure::Lat, series })
}

/// The points of a line, and the upper edge of the band above it.
type Points = (Vec<(f64, f64)>, Vec<(f64, f64)>);

/// Returns the series for the rows of this measure that `chosen` accepts, one for each label.
fn all(
    reports: &[Report],
    measure: Measure,
    chosen: impl Fn(&Row) -> bool,
    points: fn(&[&Row]) -> Points,
) -> Vec<Series> {
    let mut series: Vec<(String, Vec<&Row>)> = Vec::new();
    for (index, report) in reports.iter().enumerate() {
        let rows: Vec<_> = report.rows.iter().filter(|row| row.measure == measure).collect();
        let distinctions = Distinctions::new(&rows, &report.rows);
        for row in rows.iter().filter(|row| row.bytes > 0 && chosen(row)) {
            let mut label = distinctions.label(row);
            if reports.len() > 1 {
                label += &format!(" ({})", name(reports, index));
            }
            match series.iter_mut().find(|(other, _)| *other == label) {
                Some((_, rows)) => rows.push(row),
                None => series.push((label, vec![row])),
            }
        }
    }
    let series = series.into_iter().map(|(label, mut rows)| {
        rows.sort_by_key(|row| row.bytes);
        let reference = rows.iter().all(|row| Work::is_reference(&row.operation));
        let (points, upper) = points(&rows);
        Series { label, reference, points, upper }
    });
    series.filter(|series| !series.points.is_empty()).collect()
}

/// Returns the name to show for a report: its device's or, if several reports have the same device,
/// its number.
pub(super) fn name(reports: &[Report], index: usize) -> String {
    let names: Vec<_> = reports.iter().map(|report| &report.device.name).collect();
    let distinct = names.iter().collect::<BTreeSet<_>>().len() == names.len();
    match names.get(index) {
        Some(name) if distinct => (*name).clone(),
        _ => (index + 1).to_string(),
    }
}

/// The operations of a report whose rows differ in one of these properties. Rows with the same
/// operation have labels that include this property.
struct Distinctions<'a> {
    mode: BTreeSet<&'a str>,
    queue_pairs: BTreeSet<&'a str>,
    depth: BTreeSet<&'a str>,
}

impl<'a> Distinctions<'a> {
    /// The modes of all rows count, because a line has the same label in every chart. Other
    /// properties are compared only among rows of the same measure.
    fn new(measure: &[&'a Row], all: &'a [Row]) -> Self {
        let measure = || measure.iter().copied();
        Self {
            mode: differing(all.iter(), |one, other| !mode(one).eq(mode(other))),
            queue_pairs: differing(measure(), |one, other| one.queue_pairs != other.queue_pairs),
            depth: differing(measure(), |one, other| one.depth != other.depth),
        }
    }

    /// Returns the label of a row: its operation, and the properties that distinguish it from other
    /// rows of the same operation.
    fn label(&self, row: &Row) -> String {
        let operation = row.operation.as_str();
        let mut label = operation.to_owned();
        if self.mode.contains(operation) {
            label += &mode(row).fold(String::new(), |text, part| text + ", " + part);
        }
        if self.queue_pairs.contains(operation) {
            label +=
                &format!(", {} QP{}", row.queue_pairs, if row.queue_pairs == 1 { "" } else { "s" });
        }
        if self.depth.contains(operation) {
            label += &format!(", depth {}", row.depth);
        }
        label
    }
}

/// Returns the operations in which a row differs from the first one.
fn differing<'a>(
    rows: impl Iterator<Item = &'a Row>,
    differ: impl Fn(&Row, &Row) -> bool,
) -> BTreeSet<&'a str> {
    let mut first = BTreeMap::new();
    let rows = rows.map(|row| (row.operation.as_str(), row));
    rows.filter(|(operation, row)| differ(first.entry(*operation).or_insert(*row), row))
        .map(|(operation, _)| operation)
        .collect()
}

/// Returns the parts of a row's mode except `inline`, which only the shorter messages of a line
/// have.
fn mode(row: &Row) -> impl Iterator<Item = &str> {
    row.mode.split(", ").filter(|part| *part != "inline")
}

fn by_size_points(rows: &[&Row]) -> Points {
    let x = |row: &Row| (row.bytes as f64).log2();
    let median = |row: &Row| match row.latency {
        Some(latency) => time(latency.p50),
        None => reports::median(&mut row.blocks.clone()),
    };
    let points = rows.iter().map(|row| (x(row), median(row))).collect();
    let upper = rows.iter().filter_map(|row| Some((x(row), time(row.latency?.p99))));
    (points, upper.collect())
}

/// Returns a time as a number that is at least one, because the axis is logarithmic.
fn time(nanoseconds: u64) -> f64 {
    nanoseconds.max(1) as f64
}

fn percentiles(rows: &[&Row]) -> Points {
    let latency = rows.iter().find_map(|row| row.latency);
    let points = latency.iter().flat_map(|latency| {
        (0_u8..).zip(PERCENTILES).map(|(x, (_, read))| (f64::from(x), time(read(latency))))
    });
    (points.collect(), Vec::new())
}
