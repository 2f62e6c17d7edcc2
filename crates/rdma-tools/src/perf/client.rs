//! The client, which is the end that measures.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};

use crate::output::warn;
use crate::perf::ends::{End, Local, Path, Plan, connected};
use crate::perf::perftest::Perftest;
use crate::perf::protocol::{Block, Control, Reply, Request, Work};
use crate::perf::report::Row;
use crate::perf::samples::{Samples, Total};
use crate::perf::scale;
use crate::perf::settings::{Settings, name};
use crate::perf::table;

/// The number of blocks per row. The first block of each row is measured, then the second block of
/// each row, and so on. So a disturbance of the machine affects all rows, and the spread of a row's
/// blocks shows how large it was.
const BLOCKS: u64 = 10;
/// The number of iterations in a row's first warm-up block. Later warm-up blocks have more, until
/// one takes long enough (see [`WARM_UP`]).
const FIRST: u64 = 16;
/// A row is warmed up until one block has taken at least this fraction (one in `WARM_UP`) of the
/// time of a measured block.
const WARM_UP: u32 = 4;

/// The rows to measure, and their settings.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) settings: Settings,
    pub(crate) lines: Vec<Line>,
    pub(crate) length: Length,
    /// The program that measures rows with [`Work::Perftest`].
    pub(crate) perftest: Option<Perftest>,
    /// Whether to print the result of each block.
    pub(crate) verbose: bool,
}

/// The length of a row's measurement: a number of iterations or a time.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Length {
    Iterations(u64),
    Duration(Duration),
}

/// A row to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line {
    pub(crate) work: Work,
    pub(crate) size: usize,
    pub(crate) queue_pairs: u32,
    pub(crate) depth: u32,
}

/// The rows that were measured, and the error if the measurement ended before it was complete.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) rows: Vec<Row>,
    /// The path MTU, in bytes.
    pub(crate) mtu: u32,
    pub(crate) error: Option<anyhow::Error>,
}

/// Performs the run, with the peer at the other end of the connection.
///
/// # Errors
/// Returns an error if the ends cannot be connected. Later errors are returned in [`Measured`].
pub(crate) fn measure(run: &Run, local: &Local, control: &mut Control) -> anyhow::Result<Measured> {
    let settings = &run.settings;
    control.send(&Request::Prepare(settings.clone()))?;
    let connected = connected(local, settings, control, |control, end, path| {
        if run.needs_order() && !path.is_ordered {
            warn(format_args!(
                "note: {} does not promise that the last byte of a write arrives last, and these latencies end with the last \
                 byte of writes of more than 8 bytes: compare with `--wait poll`",
                local.context.device().name()
            ));
        }
        Session { run, control, end }.measure(path)
    });
    connected.map_err(|error| control.explained(error))
}

impl Run {
    /// Adds a row for perftest after each row that measures the RDMA operation.
    pub(crate) fn add(&mut self, perftest: Perftest) {
        let with = |line: Line| {
            let other = Line { work: Work::Perftest, ..line };
            [Some(line), (line.work == Work::Rdma).then_some(other)]
        };
        self.lines = self.lines.iter().copied().flat_map(with).flatten().collect();
        self.perftest = Some(perftest);
    }

    fn needs_order(&self) -> bool {
        let long = self.settings.longest() > crate::perf::settings::WORD;
        self.settings.wait == crate::perf::settings::Wait::Memory && long
    }
}

struct Session<'a> {
    run: &'a Run,
    control: &'a mut Control,
    end: &'a mut dyn End,
}

impl Session<'_> {
    fn measure(mut self, path: Path) -> anyhow::Result<Measured> {
        let lines = &self.run.lines;
        let mut totals = lines.iter().map(|_| Total::new()).collect::<Result<Vec<_>, _>>()?;
        let bar = ProgressBar::new(lines.len() as u64 * (BLOCKS + 1));
        bar.set_style(ProgressStyle::with_template(
            "{bar:30} {pos}/{len} blocks, {eta} left {msg}",
        )?);
        let outcome = self.blocks(&mut totals, &bar);
        bar.finish_and_clear();
        let error = outcome.err().map(|error| self.control.explained(error));
        let measured = lines.iter().zip(totals).filter(|(_, total)| !total.blocks.is_empty());
        let rows = measured.map(|(line, total)| self.run.row(line, total)).collect();
        Ok(Measured { rows, mtu: path.mtu, error })
    }

    fn blocks(&mut self, totals: &mut [Total], bar: &ProgressBar) -> anyhow::Result<()> {
        let lines = &self.run.lines;
        let mut iterations = Vec::with_capacity(lines.len());
        for line in lines {
            bar.set_message(format!("(warming up, {} bytes)", self.run.bytes(line)));
            iterations.push(match (line.work, iterations.last()) {
                // A block of perftest mostly takes the time of starting its programs, which does
                // not show how many iterations fit. So the number of the preceding row is used.
                (Work::Perftest, Some(&count)) => count,
                _ => self.iterations(line)?,
            });
            bar.inc(1);
        }
        for number in 1..=BLOCKS {
            for ((line, total), &iterations) in lines.iter().zip(&mut *totals).zip(&iterations) {
                let (bytes, measure) = (self.run.bytes(line), self.run.settings.measure);
                bar.set_message(format!("({bytes} bytes)"));
                let (samples, _) = self.block(line, iterations)?;
                let figure = table::figure(measure, total.add(&samples, measure, bytes)?);
                if self.run.verbose {
                    let work = self.run.operation(line);
                    bar.suspend(|| {
                        warn(format_args!("block {number}: {work} of {bytes} bytes: {figure}"));
                    });
                }
                bar.inc(1);
            }
        }
        self.control.send(&Request::End)
    }

    /// Warms up a row. Returns the number of iterations for each of its blocks.
    fn iterations(&mut self, line: &Line) -> anyhow::Result<u64> {
        let time = match self.run.length {
            Length::Iterations(all) => {
                let each = all.div_ceil(BLOCKS);
                self.block(line, each.min(FIRST))?;
                return Ok(each);
            }
            Length::Duration(time) => time / u32::try_from(BLOCKS)?,
        };
        self.block(line, FIRST)?; // the first operations are slower
        let mut iterations = FIRST;
        loop {
            let (_, elapsed) = self.block(line, iterations)?;
            if elapsed >= time / WARM_UP {
                let each = (elapsed.as_nanos() / u128::from(iterations)).max(1);
                return Ok(u64::try_from(time.as_nanos() / each)?.max(1));
            }
            iterations = iterations.saturating_mul(4);
        }
    }

    fn block(&mut self, line: &Line, iterations: u64) -> anyhow::Result<(Samples, Duration)> {
        let Line { work, size, queue_pairs, depth } = *line;
        let block = Block { work, size, queue_pairs, depth, iterations };
        let plan = Plan::new(&block, &self.run.settings)?;
        let mut samples = Samples::new()?;
        let Self { control, end, .. } = self;
        if work == Work::Memcpy {
            let begin = Instant::now();
            scale::memcpy(&plan, &control.watch, &mut samples)?;
            return Ok((samples, begin.elapsed()));
        }
        if work == Work::Perftest {
            let perftest = self.run.perftest.as_ref().context("perftest is missing")?;
            let begin = Instant::now();
            let (operations, figure) = perftest.block(&plan, &mut control.watch)?;
            samples.foreign(operations, figure);
            return Ok((samples, begin.elapsed()));
        }
        control.send(&Request::Run(block))?;
        control.expect(&Reply::Ready)?;
        let begin = Instant::now();
        match work {
            Work::Rdma => end.client(&plan, &mut control.watch, &mut samples)?,
            _ => scale::tcp_client(control.stream(), &plan, &control.watch, &mut samples)?,
        }
        let elapsed = begin.elapsed();
        control.expect(&Reply::Done)?;
        Ok((samples, elapsed))
    }
}

impl Run {
    fn bytes(&self, line: &Line) -> u32 {
        self.settings.sizes.get(line.size).copied().unwrap_or_default()
    }

    fn operation(&self, line: &Line) -> String {
        let reference = line.work.reference().map(str::to_owned);
        reference.unwrap_or_else(|| name(self.settings.operation))
    }

    fn row(&self, line: &Line, total: Total) -> Row {
        let bytes = self.bytes(line);
        Row {
            measure: self.settings.measure,
            operation: self.operation(line),
            bytes: bytes.into(),
            queue_pairs: line.queue_pairs,
            depth: line.depth,
            mode: match line.work {
                Work::Rdma => self.settings.mode(bytes),
                Work::Tcp => "blocking".to_owned(),
                Work::Memcpy => "one thread".to_owned(),
                Work::Perftest => "polling".to_owned(),
            },
            operations: total.operations,
            latency: total.latency(),
            blocks: total.blocks,
        }
    }
}
