//! The ranks of a group fit a line to points that are divided between them.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use rdma::group::{Error, Group, Reduction};
use rdma::prelude::*;
use rdma_examples_common::chart::{self, Line};
use rdma_examples_common::{Failure, program};

/// Fits a line to noisy points of the line y = 3 x - 1 by gradient descent. Each rank of the group has its own points.
/// `rdmatool run` and other launchers start several ranks. Without one, the group has a single rank.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
    #[arg(long, default_value_t = 1000, help = "The number of points of each rank")]
    points: u32,
    #[arg(long, default_value_t = 64, help = "The number of steps")]
    steps: u32,
    #[arg(long, value_name = "FILE.svg", help = "Draw the error after each step")]
    plot: Option<PathBuf>,
}

/// The part of the gradient that is subtracted in each step.
const RATE: f64 = 0.5;

fn main() -> ExitCode {
    program(run)
}

/// Returns the line. Rank 0 also returns the error after 1, 2, 4 … steps.
pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let pd = open_device(&arguments.device)?.allocate_pd()?;
    let mut group = match Group::from_environment(&pd) {
        Err(Error::NoLauncher) => Group::builder(&pd, 0, 1, "localhost:7471").join()?,
        joined => joined?,
    };
    let points = points(group.rank(), arguments.points);
    let (mut slope, mut intercept) = (0.0, 0.0);
    let (mut report, mut errors) = (String::new(), Vec::new());
    for step in 1..=arguments.steps {
        // The sums over the points of this rank: both derivatives, the squared error, and the number of points.
        let mut sums = [0.0; 4];
        for (x, y) in &points {
            let error = slope * x + intercept - y;
            for (sum, term) in sums.iter_mut().zip([error * x, error, error * error, 1.0]) {
                *sum += term;
            }
        }
        group.all_reduce(&mut sums, Reduction::Sum)?;
        // All ranks have the same sums, so they make the same step.
        let [by_slope, by_intercept, squared, count] = sums;
        slope -= RATE * by_slope / count;
        intercept -= RATE * by_intercept / count;
        errors.push((f64::from(step), squared / count));
        if step.is_power_of_two() {
            report += &format!("step {step:3}: mean squared error {:.4}\n", squared / count);
        }
    }
    let (rank, size) = (group.rank(), group.world_size());
    if rank > 0 {
        report.clear();
    } else if let Some(file) = &arguments.plot {
        let title = format!("Gradient descent of {size} ranks");
        let lines = [Line::new("mean squared error", errors)];
        fs::write(file, chart::svg(&title, ["step", "error"], &lines))?;
    }
    Ok(format!("{report}rank {rank} of {size}: y = {slope:.2} x + {intercept:.2}"))
}

/// Returns the points of a rank.
fn points(rank: usize, count: u32) -> Vec<(f64, f64)> {
    let phase = rank as f64;
    let point = |number| {
        let number = f64::from(number);
        let x = (number * 0.7 + phase).sin();
        (x, 3.0 * x - 1.0 + 0.1 * (number * 1.3 + phase).cos())
    };
    (0..count).map(point).collect()
}
