//! `rdmatool plot`: charts of reports, as SVG or PNG.

mod canvas;
mod chart;
mod draw;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use plotters::prelude::{IntoDrawingArea as _, SVGBackend};

use self::canvas::Canvas;
use self::draw::Figure;
use crate::perf::report::Report;
use crate::reports;

/// Draws reports of `rdmatool perf --json`
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The reports; several are drawn into the same charts
    #[arg(value_name = "REPORT", required = true)]
    reports: Vec<PathBuf>,
    /// The picture to write: FILE.svg or FILE.png
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// A format of pictures.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Format {
    Svg,
    Png,
}

impl Format {
    /// Returns the format that the path ends with: `.svg` or `.png`, in any case.
    ///
    /// # Errors
    /// The path ends otherwise.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let extension = path.extension().map(|extension| extension.to_ascii_lowercase());
        match extension.as_ref().and_then(|extension| extension.to_str()) {
            Some("svg") => Ok(Self::Svg),
            Some("png") => Ok(Self::Png),
            _ => bail!(
                "the picture {} is neither FILE.svg nor FILE.png: give it such a name",
                path.display()
            ),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    Format::of(&arguments.output)?;
    let reports: Vec<_> =
        arguments.reports.iter().map(|path| reports::read(path)).collect::<Result<_>>()?;
    write(&reports, &arguments.output)?;
    Ok(ExitCode::SUCCESS)
}

/// Draws charts of all reports into one picture, in the format of its [path](Format::of).
///
/// # Errors
/// The path ends with no format, the reports have nothing to draw, or the file cannot be written.
pub(crate) fn write(reports: &[Report], path: &Path) -> Result<()> {
    let format = Format::of(path)?;
    let figure = Figure::of(reports)?;
    let size = figure.size();
    let bytes = match format {
        Format::Svg => {
            let mut text = String::new();
            figure.draw(&SVGBackend::with_string(&mut text, size).into_drawing_area())?;
            text.into_bytes()
        }
        Format::Png => {
            let mut pixels = Vec::new();
            figure.draw(&Canvas::new(&mut pixels, size)?.into_drawing_area())?;
            canvas::png(&pixels, size)?
        }
    };
    fs::write(path, bytes).with_context(|| format!("cannot write the picture {}", path.display()))
}
