//! Resources that this process has used, for benches.

use std::error::Error;
use std::fs;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Returns the memory that this process uses, in bytes (`man 5 proc_pid_statm`).
///
/// # Errors
/// The system does not report it.
pub fn resident() -> Outcome<u64> {
    let pages = fs::read_to_string("/proc/self/statm")?;
    let pages = pages.split(' ').nth(1).ok_or("no second field")?.parse::<u64>()?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// Returns the processor time that this process has used, in ticks of a hundredth of a second (`man
/// 5 proc_pid_stat`).
///
/// # Errors
/// The system does not report it.
pub fn ticks() -> Outcome<u64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(") ").ok_or("no name in parentheses")?;
    let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>);
    Ok(ticks.sum::<Result<_, _>>()?)
}
