//! Charts of lines on logarithmic axes, as SVG.

use std::fmt::Write as _;

/// A line of a chart.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Line {
    /// The text in the legend.
    pub label: String,
    /// The points, whose coordinates are positive.
    pub points: Vec<(f64, f64)>,
}

impl Line {
    /// Returns a line with these points.
    pub fn new(label: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { label: label.into(), points }
    }
}

/// The size of the picture and of its margins, in pixels.
const SIZE: (f64, f64) = (720.0, 400.0);
const MARGIN: (f64, f64) = (80.0, 48.0);
/// The height of a line of the legend.
const LINE: f64 = 18.0;

/// Colours that can be distinguished with any kind of colour vision (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"];

/// Draws lines. The horizontal axis has marks at powers of two, and the vertical one at powers of ten. Points that are not
/// positive are left out.
#[must_use]
pub fn svg(title: &str, [horizontal, vertical]: [&str; 2], lines: &[Line]) -> String {
    let positive = |line: &Line| {
        let points = line.points.iter().copied().filter(|(x, y)| *x > 0.0 && *y > 0.0);
        points.map(|(x, y)| (x.log2(), y.log10())).collect::<Vec<_>>()
    };
    let drawn: Vec<_> = lines.iter().map(positive).collect();
    let range = |values: Vec<f64>| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min).floor();
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max).ceil();
        if least < most { (least, most) } else { (0.0, 1.0) }
    };
    let all = || drawn.iter().flatten();
    let (left, right) = range(all().map(|(x, _)| *x).collect());
    let (bottom, top) = range(all().map(|(_, y)| *y).collect());
    let (width, height) = SIZE;
    let plot = (width - 1.5 * MARGIN.0, height - 2.0 * MARGIN.1);
    let x = |at: f64| MARGIN.0 + (at - left) / (right - left) * plot.0;
    let y = |at: f64| MARGIN.1 + (top - at) / (top - bottom) * plot.1;

    let whole = height + LINE * lines.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{whole}\" viewBox=\"0 0 {width} {whole}\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"#3C3C3C\">\n<rect width=\"100%\" height=\"100%\" fill=\"#FFFFFF\"/>\n"
    );
    let text = |at: (f64, f64), anchor: &str, words: &str| {
        let words = words.replace('&', "&amp;").replace('<', "&lt;");
        format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{words}</text>\n",
            at.0, at.1
        )
    };
    let path = |from: (f64, f64), to: (f64, f64)| {
        let ((a, b), (c, d)) = (from, to);
        format!("<path d=\"M{a:.1} {b:.1}L{c:.1} {d:.1}\" stroke=\"#E4E4E4\" fill=\"none\"/>\n")
    };
    svg += &text((width / 2.0, 24.0), "middle", title);
    svg += &text((width / 2.0, height - 8.0), "middle", horizontal);
    svg += &text((8.0, MARGIN.1 - 12.0), "start", vertical);
    for at in steps(left, right) {
        svg += &path((x(at), y(bottom)), (x(at), y(top)));
        svg += &text((x(at), y(bottom) + 18.0), "middle", &at.exp2().to_string());
    }
    for at in steps(bottom, top) {
        svg += &path((x(left), y(at)), (x(right), y(at)));
        svg += &text((x(left) - 8.0, y(at) + 4.0), "end", &format!("{}", 10_f64.powf(at)));
    }
    for (index, (line, points)) in lines.iter().zip(&drawn).enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let places = points.iter().map(|(px, py)| format!("{:.1},{:.1}", x(*px), y(*py)));
        let places = places.collect::<Vec<_>>().join(" ");
        let _ = writeln!(
            svg,
            "<polyline points=\"{places}\" stroke=\"{colour}\" stroke-width=\"2\" fill=\"none\"/>"
        );
        let at = height + LINE * index as f64 + 4.0;
        let _ = writeln!(
            svg,
            "<path d=\"M{0:.1} {at:.1}h24\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            MARGIN.0
        );
        svg += &text((MARGIN.0 + 32.0, at + 4.0), "start", &line.label);
    }
    svg += "</svg>\n";
    svg
}

fn steps(from: f64, to: f64) -> impl Iterator<Item = f64> {
    (0..100).map(move |step| from + f64::from(step)).take_while(move |at| *at <= to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_placed_by_their_logarithms() {
        let points = vec![(1.0, 1.0), (4.0, 10.0), (16.0, 100.0), (3.0, 0.0)];
        let svg = svg("a & b", ["ranks", "us"], &[Line::new("times", points)]);
        assert!(svg.contains("points=\"80.0,352.0 380.0,200.0 680.0,48.0\""), "{svg}");
        assert!(svg.contains(">a &amp; b</text>") && svg.contains(">times</text>"), "{svg}");
        assert!(svg.contains(">16</text>") && svg.contains(">100</text>"), "{svg}");
    }
}
