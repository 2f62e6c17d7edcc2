//! The layout of a figure: its parts, its colors and the axes.

use std::ops::Range;
use std::vec::IntoIter;

use anyhow::{Result, ensure};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::chart::{self, Chart, PERCENTILES, Series, X};
use crate::perf::report::{Measure, Report};
use crate::units;

/// The maximum number of lines in a figure. Even with fewer lines, colors and markers repeat.
const MOST_LINES: usize = 50;
/// The width of the picture, in pixels. The following sizes are in pixels too.
const WIDTH: u32 = 900;
const CHART_HEIGHT: u32 = 300;
const LINE_HEIGHT: u32 = 20;
const MARGIN: u32 = 12;
const SAMPLE: i32 = 30;
/// The font size of titles. The em is smaller than this by a factor of 1.24.
const TITLE: i32 = 18;
/// The font size of all other text.
const TEXT: i32 = 15;

const INK: RGBColor = RGBColor(60, 60, 60);
const GRID: RGBColor = RGBColor(228, 228, 228);
/// Colors that can be distinguished with any kind of color vision (Okabe and Ito), except yellow.
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(60, 60, 60),
];

/// The titles, the charts, and the legend for all charts.
#[derive(Debug)]
pub(super) struct Figure {
    titles: Vec<String>,
    charts: Vec<Chart>,
    /// The labels, and whether each is a reference. The index of a label determines its color.
    legend: Vec<(String, bool)>,
}

impl Figure {
    /// # Errors
    /// Returns an error if the reports contain nothing to draw, or more than [`MOST_LINES`] lines.
    pub(super) fn of(reports: &[Report]) -> Result<Self> {
        let charts = chart::charts(reports);
        ensure!(
            !charts.is_empty(),
            "the reports have no row with a message of at least one byte, so there is nothing to draw"
        );
        let mut legend: Vec<(String, bool)> = Vec::new();
        for series in charts.iter().flat_map(|chart| &chart.series) {
            if legend.iter().all(|(label, _)| *label != series.label) {
                legend.push((series.label.clone(), series.reference));
            }
        }
        let lines = legend.len();
        ensure!(
            lines <= MOST_LINES,
            "the reports have {lines} lines, more than the {MOST_LINES} of a picture: draw fewer reports at a time"
        );
        let titles = reports.iter().enumerate().map(|(index, report)| {
            let Report { machine, device, rdmatool, .. } = report;
            let name = chart::name(reports, index);
            let device = match &device.name {
                device if *device == name => name,
                device => format!("{name}: {device}"),
            };
            format!(
                "{device}, {}, {} processors, Linux {}, rdmatool {rdmatool}",
                machine.processor, machine.processors, machine.kernel
            )
        });
        Ok(Self { titles: titles.collect(), charts, legend })
    }

    /// Returns the width and height in pixels.
    pub(super) fn size(&self) -> (u32, u32) {
        let rows = self.charts.len().div_ceil(2);
        (WIDTH, self.head() + count(rows) * CHART_HEIGHT + self.foot())
    }

    fn head(&self) -> u32 {
        MARGIN + count(self.titles.len()) * LINE_HEIGHT
    }

    fn foot(&self) -> u32 {
        count(self.legend.len().div_ceil(self.columns())) * LINE_HEIGHT + MARGIN
    }

    /// Returns the number of columns of the legend, so that the longest label fits into each.
    fn columns(&self) -> usize {
        let longest = self.legend.iter().map(|(label, _)| label.chars().count()).max();
        let width = SAMPLE.unsigned_abs() + MARGIN + 8 * count(longest.unwrap_or_default());
        (WIDTH / width).clamp(1, 6) as usize
    }

    /// # Errors
    /// Returns an error if the backend fails.
    pub(super) fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()>
    where
        B::ErrorType: 'static,
    {
        area.fill(&WHITE)?;
        let text = style(TEXT).pos(Pos::new(HPos::Left, VPos::Center));
        for (index, title) in (0..).zip(&self.titles) {
            area.draw_text(title, &text, (pixels(MARGIN), line(MARGIN, index)))?;
        }
        for (index, chart) in self.charts.iter().enumerate() {
            let (column, row) = (count(index % 2), count(index / 2));
            // If the number of charts is odd, the last one takes the full width.
            let alone = column == 0 && index + 1 == self.charts.len();
            let (at, width) = if alone { (0, WIDTH) } else { (column * WIDTH / 2, WIDTH / 2) };
            let top = self.head() + row * CHART_HEIGHT;
            self.draw_chart(&area.clone().shrink((at, top), (width, CHART_HEIGHT)), chart)?;
        }
        let (columns, (_, height)) = (self.columns(), self.size());
        let top = height - self.foot();
        for (index, (label, reference)) in self.legend.iter().enumerate() {
            let x = pixels(MARGIN + count(index % columns) * (WIDTH - MARGIN) / count(columns));
            let y = line(top, count(index / columns));
            let sample = [(x, y), (x + SAMPLE, y)];
            area.draw(&path(sample.to_vec(), *reference, index))?;
            area.draw(&marker((x + SAMPLE / 2, y), index))?;
            area.draw_text(label, &text, (x + SAMPLE + 8, y))?;
        }
        Ok(())
    }

    fn draw_chart<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        chart: &Chart,
    ) -> Result<()>
    where
        B::ErrorType: 'static,
    {
        let mut drawn = ChartBuilder::on(area)
            .caption(&chart.title, style(TITLE))
            .margin(MARGIN)
            .x_label_area_size(24)
            .y_label_area_size(64)
            .build_cartesian_2d(Axis::horizontal(chart), Axis::vertical(chart))?;
        let mut mesh = drawn.configure_mesh();
        mesh.bold_line_style(GRID).light_line_style(TRANSPARENT).axis_style(INK);
        mesh.label_style(style(TEXT)).draw()?;
        for Series { label, reference, points, upper } in &chart.series {
            let index =
                self.legend.iter().position(|(other, _)| other == label).unwrap_or_default();
            let scaled = |points: &[(f64, f64)]| {
                points.iter().map(|(x, y)| (*x, scale(chart.measure, *y))).collect::<Vec<_>>()
            };
            let (points, upper) = (scaled(points), scaled(upper));
            let band: Vec<_> = upper.iter().chain(points.iter().rev()).copied().collect();
            if upper.len() > 1 {
                drawn.draw_series([Polygon::new(band, color(index).mix(0.12))])?;
            }
            drawn.draw_series(points.iter().map(|point| marker(*point, index)))?;
            drawn.draw_series([path(points, *reference, index)])?;
        }
        Ok(())
    }
}

/// The range of an axis and its labeled ticks. The vertical axis is linear for bandwidth and rate,
/// and logarithmic for latencies.
#[derive(Debug, PartialEq)]
struct Axis {
    range: Range<f64>,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    fn horizontal(chart: &Chart) -> Self {
        if chart.x == X::Percentiles {
            let ticks = (0_u8..).zip(PERCENTILES);
            let ticks: Vec<_> = ticks.map(|(at, (name, _))| (at.into(), name.to_owned())).collect();
            return Self { range: -0.3..ticks.len() as f64 - 0.7, ticks };
        }
        let all = || chart.series.iter().flat_map(|series| &series.points).map(|(x, _)| *x);
        let (mut least, mut most) =
            (all().fold(f64::INFINITY, f64::min).floor(), all().fold(0.0, f64::max).ceil());
        if least == most {
            (least, most) = (least - 1.0, most + 1.0); // a single size is shown in the middle
        }
        let step = ((most - least) / 7.0).ceil();
        let pad = (most - least) / 30.0;
        let label = |at: f64| (at, units::bytes(2_u64.saturating_pow(integer(at))));
        let ticks = steps(least, most, step).map(label).collect();
        Self { range: least - pad..most + pad, ticks }
    }

    fn vertical(chart: &Chart) -> Self {
        let measure = chart.measure;
        let points =
            chart.series.iter().flat_map(|series| series.points.iter().chain(&series.upper));
        let values: Vec<f64> = points.map(|(_, y)| *y).collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        let label = |value: f64| (scale(measure, value), units::round(measure, value));
        if measure != Measure::Lat {
            let step = round_up(most / 5.0);
            let most = (most * 1.05 / step).ceil() * step;
            return Self { range: 0.0..most, ticks: steps(0.0, most, step).map(label).collect() };
        }
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let (mut mark, mut marks) = (round_up(least / 2.8), Vec::new());
        while mark < most * 1.1 {
            marks.push(mark);
            mark = round_up(mark * 1.5);
        }
        marks.push(mark);
        let range = marks.first().copied().unwrap_or(least)..mark;
        if marks.len() > 8 {
            marks.retain(|mark| mark.log10().fract().abs() < 1e-9);
        }
        let range = scale(measure, range.start)..scale(measure, range.end);
        Self { range, ticks: marks.into_iter().map(label).collect() }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        RangedCoordf64::from(self.range.clone()).map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        let ticks = self.ticks.iter().map(|(at, _)| *at);
        if hint.weight().allow_light_points() { Vec::new() } else { ticks.collect() }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        let tick = self.ticks.iter().find(|(at, _)| at == value);
        tick.map_or_else(String::new, |(_, label)| label.clone())
    }
}

/// Returns the smallest of 1, 2 and 5 times a power of ten that is at least `value`.
fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let factors = [1.0, 2.0, 5.0].map(|factor| factor * power);
    factors.into_iter().find(|found| *found >= value * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

fn steps(least: f64, most: f64, step: f64) -> impl Iterator<Item = f64> {
    let steps = (0..100).map(move |index| f64::from(index) * step + least);
    steps.take_while(move |at| *at <= most + step * 1e-9)
}

/// Returns the position of a value in the scale of the chart.
fn scale(measure: Measure, value: f64) -> f64 {
    if measure == Measure::Lat { value.log10() } else { value }
}

/// Converts the exponent of a power of two to an integer.
fn integer(value: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 64")]
    {
        value.round() as u32
    }
}

fn color(index: usize) -> RGBColor {
    COLORS.get(index % COLORS.len()).copied().unwrap_or(INK)
}

/// Returns a path that is dashed for a reference. Otherwise its dash is longer than the picture,
/// which makes the line solid.
fn path<P>(points: Vec<P>, reference: bool, index: usize) -> DashedPathElement<IntoIter<P>, i32>
where
    P: Clone,
{
    let dash = if reference { 6 } else { i32::MAX / 2 };
    DashedPathElement::new(points, dash, 4, color(index).stroke_width(2))
}

/// Returns a dot: hollow if its color has already been used, filled otherwise.
fn marker<P>(at: P, index: usize) -> Circle<P, i32> {
    let style =
        if index < COLORS.len() { color(index).filled() } else { color(index).stroke_width(1) };
    Circle::new(at, 3, style)
}

fn style(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

/// Returns the vertical center of the text line with this index.
fn line(top: u32, index: u32) -> i32 {
    pixels(top + index * LINE_HEIGHT + LINE_HEIGHT / 2)
}

fn pixels(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn count(items: usize) -> u32 {
    u32::try_from(items).unwrap_or(u32::MAX)
}
