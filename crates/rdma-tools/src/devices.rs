//! `rdmatool devices`: the RDMA devices of this machine and the software devices.

use std::process::ExitCode;

use rdma::device::{Error, GidEntry, GidType, ListError, LoadError, open_default_device};
use rdma::prelude::*;
use rustix::net::netdevice::index_to_name;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use serde_json::{Value, json};

use crate::output::{print, warn};

/// Lists the RDMA devices of this machine and the software devices
///
/// Prints one line for each port. The GID shown is the port's first RoCE v2 GID that has an IP
/// address or, without one, its first GID.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Print only this device
    #[arg(value_name = "DEVICE")]
    device: Option<String>,
    /// Print all attributes
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON, with all attributes
    #[arg(long)]
    json: bool,
}

/// Names and their values, in the order in which they are printed.
type Rows = Vec<(&'static str, Value)>;

/// A device and its ports, and a table line for each port.
struct Description {
    device: Rows,
    ports: Vec<Rows>,
    lines: Vec<Line>,
}

/// The cells of a table line, one per column of [`HEAD`].
type Line = [String; 9];

const HEAD: [&str; 9] =
    ["device", "port", "provider", "link layer", "state", "Gb/s", "MTU", "NUMA", "GID"];

/// Opens the device with this name, or the default device if there is no name.
///
/// # Errors
/// Returns an error if no device has this name, or if it cannot be opened.
pub(crate) fn open(name: Option<&str>) -> Result<Context, Error> {
    name.map_or_else(open_default_device, open_device)
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let described = match &arguments.device {
        Some(name) => vec![describe(&open_device(name)?)?],
        None => describe_all(),
    };
    if arguments.json {
        print(format_args!("{:#}", into_json(described)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = if arguments.verbose { attributes(&described) } else { table(&described) };
    print(text.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns all devices with all attributes.
pub(crate) fn all_as_json() -> Value {
    into_json(describe_all())
}

/// Describes the devices that can be opened. Prints the errors of the others to standard error.
fn describe_all() -> Vec<Description> {
    let list = list_devices();
    for error in list.errors() {
        match error {
            // A machine without NICs needs no libibverbs.
            ListError::Load(LoadError::NotFound { .. }) => {
                warn(format_args!("note: NICs are not listed: {error}"));
            }
            error => warn(format_args!("error: {error}")),
        }
    }
    let described = list.iter().filter_map(|found| {
        let described = found.open().and_then(|context| describe(&context));
        described.map_err(|error| warn(format_args!("error: {}: {error}", found.name()))).ok()
    });
    described.collect()
}

fn describe(context: &Context) -> Result<Description, Error> {
    let attributes = context.query_device()?;
    let (gids, found) = (context.gid_table()?, context.device());
    let (mut ports, mut lines) = (Vec::new(), Vec::new());
    for number in 1..=attributes.port_count {
        let port = context.query_port(number)?;
        let gids: Vec<_> = gids.iter().filter(|entry| entry.port == number).collect();
        let or_unknown = |value: Option<String>| value.unwrap_or_else(|| "?".to_owned());
        lines.push([
            found.name().to_owned(),
            number.to_string(),
            context.verbs().name.to_owned(),
            port.link_layer.to_string(),
            port.state.to_string(),
            or_unknown(port.rate_mbps().map(|rate| (f64::from(rate) / 1000.0).to_string())),
            or_unknown(port.active_mtu.map(|mtu| mtu.bytes().to_string())),
            found.numa_node().map_or_else(|| "-".to_owned(), |node| node.to_string()),
            best(&gids).map_or_else(|| "-".to_owned(), cell),
        ]);
        let mut rows = values(port.fields());
        rows.push(("gids", gids.iter().map(|entry| gid(entry)).collect()));
        ports.push(rows);
    }
    let mut device = vec![
        ("name", json!(found.name())),
        ("provider", json!(context.verbs().name)),
        ("node_type", json!(found.node_type().to_string())),
        ("transport", json!(found.transport_type().to_string())),
        ("index", json!(found.index())),
        ("numa_node", json!(found.numa_node())),
        ("completion_vectors", json!(context.completion_vectors())),
    ];
    device.extend(values(attributes.fields().chain(context.query_device_extended()?.fields())));
    Ok(Description { device, ports, lines })
}

/// Returns the GID to show in the table: the first RoCE v2 GID that has an IP address or, without
/// one, the first GID.
fn best<'a>(gids: &[&'a GidEntry]) -> Option<&'a GidEntry> {
    let is_usual = |gid: &&&GidEntry| gid.gid_type == GidType::ROCE_V2 && !gid.gid.is_link_local();
    gids.iter().find(is_usual).or(gids.first()).copied()
}

/// Returns a GID with its interface, such as `::ffff:10.0.0.1 (eth0)`.
fn cell(entry: &GidEntry) -> String {
    let name = entry.netdev_index.and_then(interface_name);
    name.map_or_else(|| entry.gid.to_string(), |name| format!("{} ({name})", entry.gid))
}

/// Returns the name of the network interface with this number.
pub(crate) fn interface_name(index: u32) -> Option<String> {
    let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
    let socket = socket_with(family, SocketType::DGRAM, flags, None).ok()?;
    index_to_name(socket, index).ok()
}

/// Converts text values to JSON. Texts of numbers and booleans become numbers and booleans, except
/// `firmware_version`, which stays a string.
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

fn into_json(devices: Vec<Description>) -> Value {
    let object = |rows: Rows| rows.into_iter().map(|(name, value)| (name.to_owned(), value));
    let device = |it: Description| {
        let ports = it.ports.into_iter().map(|port| object(port).collect()).collect();
        object(it.device).chain([("ports".to_owned(), Value::Array(ports))]).collect()
    };
    Value::Array(devices.into_iter().map(device).collect())
}

/// Returns the table, with one line per port.
fn table(devices: &[Description]) -> String {
    let head = HEAD.map(str::to_owned);
    let lines: Vec<_> =
        [&head].into_iter().chain(devices.iter().flat_map(|it| &it.lines)).collect();
    let widths: Vec<_> = (0..HEAD.len())
        .map(|column| lines.iter().filter_map(|line| line.get(column)).map(String::len).max())
        .collect();
    let line = |line: &&Line| {
        let cells = line.iter().zip(&widths);
        let cells = cells.map(|(cell, width)| format!("{cell:<0$}", width.unwrap_or(0)));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    lines.iter().map(line).collect()
}

/// Returns all attributes as text, one per line.
fn attributes(devices: &[Description]) -> String {
    let mut text = String::new();
    for Description { device, ports, .. } in devices {
        text += &lines(device, "");
        for (number, port) in (1..).zip(ports) {
            text += &format!("port {number}\n{}", lines(port, "    "));
        }
    }
    text
}

/// Returns the rows as text, one per line.
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
