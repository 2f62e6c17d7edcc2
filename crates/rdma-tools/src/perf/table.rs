//! Formats the result as a table.

use std::fmt::Write as _;

use crate::perf::report::{Measure, Report, Row};
use crate::perf::settings::Operation;
use crate::reports::median;
use crate::units::number;

/// Formats the rows as a table, with the minimum, median and maximum of each row's blocks.
pub(crate) fn table(report: &Report, operation: Operation) -> String {
    let Some(first) = report.rows.first() else { return String::new() };
    let unit = match first.measure {
        Measure::Lat if operation.is_halved() => "half round trips in us",
        Measure::Lat => "full operations in us",
        Measure::Bw => "MB/s (10^6 bytes), median, least and greatest block",
        Measure::Rate => "millions of messages per second, median, least and greatest block",
    };
    let device = &report.device;
    let mut text = format!(
        "{} ({}), path MTU {}, {} processors: {unit}\n",
        device.name, device.provider, device.mtu, report.machine.processors
    );
    let _ = write!(text, "{:<8}{:>9}{:>5}{:>7}{:>11}", "", "bytes", "qps", "depth", "operations");
    columns(first.measure).iter().for_each(|column| text += &format!("{column:>10}"));
    text += "  mode";
    report.rows.iter().for_each(|row| text += &line(row));
    text
}

const fn columns(measure: Measure) -> &'static [&'static str] {
    match measure {
        Measure::Lat => &["min", "p50", "p90", "p99", "p99.9", "max", "mean"],
        Measure::Bw | Measure::Rate => &["median", "least", "greatest"],
    }
}

fn line(row: &Row) -> String {
    let Row { operation, bytes, queue_pairs, depth, operations, .. } = row;
    let mut text = format!("\n{operation:<8}{bytes:>9}{queue_pairs:>5}{depth:>7}{operations:>11}");
    for value in values(row) {
        let _ = write!(text, "{:>10}", value.map_or_else(|| "-".to_owned(), number));
    }
    text + "  " + &row.mode
}

/// Returns the values of the row's columns, in the table's unit. If another program measured the
/// latencies, only their median is known.
fn values(row: &Row) -> Vec<Option<f64>> {
    if let Some(all) = &row.latency {
        let times = [all.min, all.p50, all.p90, all.p99, all.p999, all.max];
        let times = times.into_iter().map(|time| time as f64).chain([all.mean]);
        return times.map(|time| Some(time / unit(Measure::Lat))).collect();
    }
    let mut blocks = row.blocks.clone();
    let median = Some(median(&mut blocks));
    let mut values = match row.measure {
        Measure::Lat => vec![None, median],
        Measure::Bw | Measure::Rate => {
            vec![median, blocks.first().copied(), blocks.last().copied()]
        }
    };
    values.resize(columns(row.measure).len(), None);
    values.into_iter().map(|value| value.map(|value| value / unit(row.measure))).collect()
}

/// Returns how many of the report's units make up one of the table's.
const fn unit(measure: Measure) -> f64 {
    match measure {
        Measure::Lat => 1e3,
        Measure::Bw | Measure::Rate => 1e6,
    }
}

/// Formats the figure of a block together with its unit.
pub(crate) fn figure(measure: Measure, value: f64) -> String {
    let name = match measure {
        Measure::Lat => "us",
        Measure::Bw => "MB/s",
        Measure::Rate => "million messages/s",
    };
    format!("{} {name}", number(value / unit(measure)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_its_unit() {
        assert_eq!(figure(Measure::Lat, 1500.0), "1.500 us");
    }
}
