//! `rdmatool devices`: the RDMA devices of this machine and the software devices, with their attributes.

use std::process::ExitCode;

use rdma::device::{Error, GidEntry};
use rdma::prelude::*;
use serde_json::{Value, json};

use crate::output::{print, warn};

/// Lists the RDMA devices of this machine and the software devices
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Print only this device
    #[arg(value_name = "DEVICE")]
    device: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Names and values, in order.
type Rows = Vec<(&'static str, Value)>;

/// A device, and its ports.
type Description = (Rows, Vec<Rows>);

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut described = Vec::new();
    if let Some(name) = &arguments.device {
        described.push(device(&open_device(name)?)?);
    } else {
        let list = list_devices();
        list.errors().iter().for_each(|error| warn(format_args!("error: {}", error)));
        for found in &list {
            match found.open().and_then(|context| device(&context)) {
                Ok(rows) => described.push(rows),
                Err(error) => warn(format_args!("error: {}: {}", found.name(), error)),
            }
        }
    }
    if arguments.json {
        let devices = Value::Array(described.into_iter().map(into_json).collect());
        print(format_args!("{devices:#}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for (device, ports) in described {
        text += &lines(&device, "");
        for (number, port) in (1..).zip(ports) {
            text += &format!("port {number}\n{}", lines(&port, "    "));
        }
    }
    print(text.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

fn device(context: &Context) -> Result<Description, Error> {
    let attributes = context.query_device()?;
    let (gids, found) = (context.gid_table()?, context.device());
    let port = |number| {
        let mut rows = values(context.query_port(number)?.fields());
        let gids = gids.iter().filter(|entry| entry.port == number).map(gid).collect();
        rows.push(("gids", Value::Array(gids)));
        Ok(rows)
    };
    let ports = (1..=attributes.port_count).map(port).collect::<Result<_, Error>>()?;
    let mut device = vec![
        ("name", json!(found.name())),
        ("provider", json!(context.verbs().name)),
        ("node_type", json!(found.node_type().to_string())),
        ("transport", json!(found.transport_type().to_string())),
        ("index", json!(found.index())),
        ("completion_vectors", json!(context.completion_vectors())),
    ];
    device.extend(values(attributes.fields().chain(context.query_device_extended()?.fields())));
    Ok((device, ports))
}

/// Values as JSON: numbers stay numbers, except versions.
fn values(fields: impl Iterator<Item = (&'static str, String)>) -> Rows {
    let value = |name, text: String| match (text.parse::<u64>(), text.parse::<bool>()) {
        (Ok(number), _) if name != "firmware_version" => json!(number),
        (_, Ok(truth)) => json!(truth),
        _ => json!(text),
    };
    fields.map(|(name, text)| (name, value(name, text))).collect()
}

fn gid(entry: &GidEntry) -> Value {
    let (gid, gid_type) = (entry.gid.to_string(), entry.gid_type.to_string());
    json!({ "index": entry.index, "gid": gid, "type": gid_type, "netdev": entry.netdev_index })
}

fn into_json((device, ports): Description) -> Value {
    let object = |rows: Rows| rows.into_iter().map(|(name, value)| (name.to_owned(), value));
    let ports = ports.into_iter().map(|port| object(port).collect()).collect();
    object(device).chain([("ports".to_owned(), Value::Array(ports))]).collect()
}

/// Rows as text.
fn lines(rows: &Rows, indent: &str) -> String {
    let line = |name: &str, value: &str| format!("{indent}{name:<26} {value}\n");
    let gid = |gid: &Value| {
        let text = |key: &str| gid[key].as_str().unwrap_or_default().to_owned();
        line(&format!("gid[{}]", gid["index"]), &format!("{}, {}", text("gid"), text("type")))
    };
    let row = |(name, value): &(&str, Value)| match value {
        Value::Array(gids) => gids.iter().map(gid).collect(),
        Value::String(text) => line(name, text),
        Value::Null => line(name, "none"),
        other => line(name, &other.to_string()),
    };
    rows.iter().map(row).collect()
}
