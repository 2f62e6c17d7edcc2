//! Reports in the format of `rdmatool perf --json`.

use serde_json::{Value, json};

/// Returns a report of `soft0` with these rows.
pub(crate) fn report(rows: Vec<Value>) -> Value {
    json!({
        "version": 1,
        "rdmatool": "0.1.0",
        "time": 1_700_000_000,
        "machine": { "processor": "Xeon Gold 6338", "processors": 32, "kernel": "6.1.0-18" },
        "device": { "name": "soft0", "provider": "rdma-soft", "firmware": "0.1.0", "mtu": 4096 },
        "rows": rows,
    })
}

/// Returns a row of ten blocks around this value, in steps of a thousandth of it. The value is
/// their median.
pub(crate) fn row(measure: &str, operation: &str, bytes: u64, value: f64) -> Value {
    let blocks: Vec<f64> =
        (0..10).map(|step| value * (1.0 + 0.001 * (f64::from(step) - 4.5))).collect();
    json!({
        "measure": measure,
        "operation": operation,
        "bytes": bytes,
        "queue_pairs": 1,
        "depth": if measure == "lat" { 1 } else { 64 },
        "mode": "polling",
        "operations": 100_000,
        "latency": null,
        "blocks": blocks,
    })
}
