//! `rdmatool plot`: draws reports as charts, in SVG or PNG.

mod canvas;
mod chart;
mod draw;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use plotters::prelude::{IntoDrawingArea as _, SVGBackend};

use self::canvas::Canvas;
use self::draw::Figure;
use crate::output::Destination;
use crate::perf::report::Report;
use crate::reports;

/// Draws reports of `rdmatool perf --json`
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The reports; if there are several, they share the charts
    #[arg(value_name = "REPORT", required = true)]
    reports: Vec<PathBuf>,
    /// The file to write the picture to: FILE.svg or FILE.png
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let reports: Vec<_> =
        arguments.reports.iter().map(|path| reports::read(path)).collect::<Result<_>>()?;
    Picture::open(&arguments.output)?.draw(&reports)?;
    Ok(ExitCode::SUCCESS)
}

/// The file to which a picture is written.
#[derive(Debug)]
pub(crate) struct Picture {
    file: Destination,
    is_png: bool,
}

impl Picture {
    /// Opens the file. Its extension, `.svg` or `.png`, determines the format.
    ///
    /// # Errors
    /// Returns an error if the extension is a different one, or if the file cannot be opened for
    /// writing.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let extension = path.extension().map(|extension| extension.to_ascii_lowercase());
        let is_png = match extension.as_ref().and_then(|extension| extension.to_str()) {
            Some("svg") => false,
            Some("png") => true,
            _ => bail!(
                "the picture {} is neither FILE.svg nor FILE.png: give it such a name",
                path.display()
            ),
        };
        Ok(Self { file: Destination::open(path)?, is_png })
    }

    /// Draws the charts of all reports, and writes the picture to the file.
    ///
    /// # Errors
    /// Returns an error if the reports contain nothing to draw, or if the file cannot be written.
    pub(crate) fn draw(self, reports: &[Report]) -> Result<()> {
        let figure = Figure::of(reports)?;
        let size = figure.size();
        if self.is_png {
            let mut pixels = Vec::new();
            figure.draw(&Canvas::new(&mut pixels, size)?.into_drawing_area())?;
            return self.file.write(&canvas::png(&pixels, size)?);
        }
        let mut text = String::new();
        figure.draw(&SVGBackend::with_string(&mut text, size).into_drawing_area())?;
        self.file.write(text.as_bytes())
    }
}
