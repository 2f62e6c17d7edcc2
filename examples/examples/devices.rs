//! What the RDMA devices of this machine are and can: what `ibv_devinfo -v` prints.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use rdma_mem::{Context, Error, GidEntry, Mtu, PortAttributes, list_devices};
use serde_json::{Value, json};

/// Prints what the RDMA devices of this machine, and the software devices, are and can.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    /// Prints only this one.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Prints JSON, for programs.
    #[arg(long)]
    json: bool,
}

/// What is said of one thing, in order.
type Rows = Vec<(&'static str, Value)>;

macro_rules! rows {
    ($($name:ident: $value:expr,)+) => { vec![$((stringify!($name), json!($value))),+] };
}

/// A device, and its ports.
type Description = (Rows, Vec<Rows>);

fn main() -> ExitCode {
    match run(&Arguments::parse(), &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("devices: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints to `out`.
pub(crate) fn run(
    arguments: &Arguments,
    out: &mut impl Write,
) -> Result<(), Box<dyn std::error::Error>> {
    rdma_soft::install();
    let mut described = Vec::new();
    if let Some(name) = &arguments.device {
        described.push(device(&rdma_mem::open_device(name)?)?);
    } else {
        let list = list_devices();
        list.errors().iter().for_each(|error| eprintln!("devices: {error}"));
        for found in &list {
            match found.open().and_then(|context| device(&context)) {
                Ok(rows) => described.push(rows),
                Err(error) => eprintln!("devices: {}: {error}", found.name()),
            }
        }
    }
    if arguments.json {
        let all = described.into_iter().map(into_json).collect();
        writeln!(out, "{:#}", Value::Array(all))?;
        return Ok(());
    }
    for (device, ports) in described {
        print(out, &device, "")?;
        for (number, port) in (1..).zip(ports) {
            writeln!(out, "port {number}")?;
            print(out, &port, "    ")?;
        }
    }
    Ok(())
}

fn into_json((device, ports): Description) -> Value {
    let object = |rows: Rows| rows.into_iter().map(|(name, value)| (name.to_owned(), value));
    let ports = ports.into_iter().map(|port| object(port).collect()).collect();
    object(device).chain([("ports".to_owned(), Value::Array(ports))]).collect()
}

fn print(out: &mut impl Write, rows: &Rows, indent: &str) -> io::Result<()> {
    for (name, value) in rows {
        match value {
            Value::Array(gids) => {
                for gid in gids {
                    let text = |key: &str| gid[key].as_str().unwrap_or_default().to_owned();
                    let name = format!("gid[{}]", gid["index"]);
                    writeln!(out, "{indent}{name:<26} {}, {}", text("gid"), text("type"))?;
                }
            }
            Value::String(text) => writeln!(out, "{indent}{name:<26} {text}")?,
            other => writeln!(out, "{indent}{name:<26} {other}")?,
        }
    }
    Ok(())
}

fn device(context: &Context) -> Result<Description, Error> {
    let attributes = context.query_device()?;
    let gids = context.gid_table()?;
    let ports = (1..=attributes.port_count)
        .map(|number| Ok(port(&context.query_port(number)?, &gids)))
        .collect::<Result<_, Error>>()?;
    let device = rows! {
        name: context.device().name(),
        provider: context.verbs().name,
        fw_ver: attributes.firmware_version,
        node_guid: attributes.node_guid.to_string(),
        sys_image_guid: attributes.system_image_guid.to_string(),
        vendor_id: format!("{:#06x}", attributes.vendor_id),
        vendor_part_id: attributes.vendor_part_id,
        hw_ver: format!("{:#x}", attributes.hardware_version),
        max_mr_size: attributes.max_mr_size,
        page_size_cap: format!("{:#x}", attributes.page_size_capabilities),
        max_qp: attributes.max_qp,
        max_qp_wr: attributes.max_qp_wr,
        device_cap_flags: format!("{:#010x}", attributes.capability_flags),
        max_sge: attributes.max_sge,
        max_sge_rd: attributes.max_sge_rd,
        max_cq: attributes.max_cq,
        max_cqe: attributes.max_cqe,
        max_mr: attributes.max_mr,
        max_mw: attributes.max_mw,
        max_pd: attributes.max_pd,
        max_ah: attributes.max_ah,
        max_qp_rd_atom: attributes.max_qp_rd_atom,
        max_qp_init_rd_atom: attributes.max_qp_init_rd_atom,
        max_res_rd_atom: attributes.max_res_rd_atom,
        atomic_cap: attributes.atomic_capability.to_string(),
        max_srq: attributes.max_srq,
        max_srq_wr: attributes.max_srq_wr,
        max_srq_sge: attributes.max_srq_sge,
        max_mcast_grp: attributes.max_mcast_grp,
        max_mcast_qp_attach: attributes.max_mcast_qp_attach,
        max_total_mcast_qp_attach: attributes.max_total_mcast_qp_attach,
        max_raw_ethy_qp: attributes.max_raw_ethernet_qp,
        max_pkeys: attributes.max_pkeys,
        local_ca_ack_delay: attributes.local_ack_delay_code,
        num_comp_vectors: context.completion_vectors(),
        phys_port_cnt: attributes.port_count,
    };
    Ok((device, ports))
}

fn port(port: &PortAttributes, gids: &[GidEntry]) -> Rows {
    let known = |text: Option<String>, code: u32| text.unwrap_or_else(|| format!("code {code}"));
    let mtu = |mtu: Option<Mtu>, code| known(mtu.map(|mtu| mtu.to_string()), code);
    let speed = |mbps| format!("{} Gb/s a lane", f64::from(mbps) / 1e3);
    let width = port.lanes().map(|lanes| format!("{lanes}X"));
    let gid = |entry: &GidEntry| {
        let (gid, gid_type) = (entry.gid.to_string(), entry.gid_type.to_string());
        json!({ "index": entry.index, "gid": gid, "type": gid_type })
    };
    let gids = gids.iter().filter(|entry| entry.port == port.number).map(gid).collect::<Vec<_>>();
    rows! {
        number: port.number,
        state: port.state.to_string(),
        link_layer: port.link_layer.to_string(),
        max_mtu: mtu(port.max_mtu, port.max_mtu_code),
        active_mtu: mtu(port.active_mtu, port.active_mtu_code),
        active_width: known(width, port.active_width_code.into()),
        active_speed: known(port.lane_speed_mbps().map(speed), port.active_speed_code),
        phys_state: port.physical_state_code,
        port_lid: port.lid.get(),
        port_lmc: port.lmc,
        sm_lid: port.sm_lid.get(),
        sm_sl: port.sm_service_level,
        max_msg_sz: port.max_message_size,
        port_cap_flags: format!("{:#010x}", port.capability_flags),
        port_cap_flags2: format!("{:#06x}", port.capability_flags2),
        max_vl_num: port.max_vl_code,
        bad_pkey_cntr: port.bad_pkey_count,
        qkey_viol_cntr: port.qkey_violation_count,
        subnet_timeout: port.subnet_timeout_code,
        init_type_reply: port.init_type_reply,
        grh_required: port.grh_required,
        pkey_tbl_len: port.pkey_table_length,
        gid_tbl_len: port.gid_table_length,
        gids: gids,
    }
}
