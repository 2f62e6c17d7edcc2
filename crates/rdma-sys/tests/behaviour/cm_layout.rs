//! The structs of librdmacm compared with the header that is installed on this machine, if there is one.

use std::fmt::Write as _;
use std::fs;
use std::mem::offset_of;

use rdma_sys::cm::*;
use test_support::packages::skip_without;
use test_support::program::{c_compiler, command};

/// An expression in C, and its value here.
type Place = (&'static str, usize);

/// Lists the size of each struct and the offset of each field, with their expressions in C. `in C` precedes the name of a field
/// that is called differently there.
macro_rules! places {
    ($($name:ident $c:literal { $($field:ident $(in C $other:literal)?),+ $(,)? })+) => {
        [$(
            (concat!("sizeof(", $c, ")"), size_of::<$name>()),
            $((
                concat!("offsetof(", $c, ", ", places!(@ $field $($other)?), ")"),
                offset_of!($name, $field),
            ),)+
        )+]
    };
    (@ $field:ident) => { stringify!($field) };
    (@ $field:ident $other:literal) => { $other };
}

/// Returns the sizes and offsets of the structs.
fn structs() -> Vec<Place> {
    places! {
        rdma_event_channel "struct rdma_event_channel" { fd }
        ibv_sa_path_rec "struct ibv_sa_path_rec" {
            dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class, reversible, numb_path, pkey, sl,
            mtu_selector, mtu, rate_selector, rate, packet_life_time_selector, packet_life_time, preference,
        }
        rdma_ib_addr "struct rdma_ib_addr" { sgid, dgid, pkey }
        rdma_route "struct rdma_route" {
            src in C "addr.src_storage", dst in C "addr.dst_storage", ib in C "addr.addr.ibaddr", path_rec, num_paths,
        }
        rdma_cm_id "struct rdma_cm_id" {
            verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq, recv_cq_channel, recv_cq,
            srq, pd, qp_type,
        }
        rdma_conn_param "struct rdma_conn_param" {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count,
            rnr_retry_count, srq, qp_num,
        }
        rdma_ud_param "struct rdma_ud_param" { private_data, private_data_len, ah_attr, qp_num, qkey }
        rdma_cm_event "struct rdma_cm_event" { id, listen_id, event, status, param }
        rdma_addrinfo "struct rdma_addrinfo" {
            flags in C "ai_flags", family in C "ai_family", qp_type in C "ai_qp_type", port_space in C "ai_port_space",
            src_len in C "ai_src_len", dst_len in C "ai_dst_len", src_addr in C "ai_src_addr", dst_addr in C "ai_dst_addr",
            src_canonname in C "ai_src_canonname", dst_canonname in C "ai_dst_canonname", route_len in C "ai_route_len",
            route in C "ai_route", connect_len in C "ai_connect_len", connect in C "ai_connect", next in C "ai_next",
        }
    }
    .into()
}

/// Returns the numbers of the constants.
fn constants() -> Vec<Place> {
    let number = |number: u32| usize::try_from(number).unwrap();
    let option = |(level, name)| usize::try_from(level * 100 + name).unwrap();
    let constants = [
        ("RDMA_PS_IPOIB", number(rdma_port_space::IPOIB.0)),
        ("RDMA_PS_TCP", number(rdma_port_space::TCP.0)),
        ("RDMA_PS_UDP", number(rdma_port_space::UDP.0)),
        ("RDMA_PS_IB", number(rdma_port_space::IB.0)),
        ("RDMA_MAX_RESP_RES", DEVICE_MAXIMUM.into()),
        ("RDMA_MAX_INIT_DEPTH", DEVICE_MAXIMUM.into()),
        ("RDMA_OPTION_ID * 100 + RDMA_OPTION_ID_TOS", option(option::TOS)),
        ("RDMA_OPTION_ID * 100 + RDMA_OPTION_ID_REUSEADDR", option(option::REUSEADDR)),
        ("RDMA_OPTION_ID * 100 + RDMA_OPTION_ID_AFONLY", option(option::AFONLY)),
        ("RDMA_OPTION_ID * 100 + RDMA_OPTION_ID_ACK_TIMEOUT", option(option::ACK_TIMEOUT)),
        ("RDMA_OPTION_IB * 100 + RDMA_OPTION_IB_PATH", option(option::PATH)),
        ("sizeof(enum rdma_port_space)", size_of::<rdma_port_space>()),
        ("sizeof(enum rdma_cm_event_type)", size_of::<rdma_cm_event_type>()),
        ("sizeof(((struct rdma_cm_event *)0)->param)", size_of::<rdma_cm_event_param>()),
    ];
    let events = (0..16).map(rdma_cm_event_type);
    let named = events.map(|event| (event.name().to_str().unwrap(), number(event.0)));
    constants.into_iter().chain(named).collect()
}

#[test]
fn the_installed_header_of_librdmacm_agrees() {
    let ours = [structs(), constants()].concat();

    let mut program = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <rdma/rdma_cma.h>\nint main(void) {\n",
    );
    for (place, _) in &ours {
        writeln!(program, "printf(\"%zu\\n\", (size_t)({place}));").unwrap();
    }
    program.push_str("}\n");
    let folder = tempfile::tempdir().unwrap();
    let (source, binary) = (folder.path().join("layout.c"), folder.path().join("layout"));
    fs::write(&source, program).unwrap();
    let output = match c_compiler().arg("-o").arg(&binary).arg(&source).output() {
        Ok(output) => output,
        Err(error) => return skip_without(&format!("a C compiler ({error})"), "gcc libc6-dev"),
    };
    let messages = String::from_utf8_lossy(&output.stderr);
    if messages.contains("rdma_cma.h: No such file") {
        return skip_without("rdma/rdma_cma.h", "librdmacm-dev");
    }
    assert!(output.status.success(), "{messages}");
    let output = command(&binary).output().unwrap();
    let theirs: Vec<usize> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    assert_eq!(theirs.len(), ours.len());
    for ((place, our), their) in ours.into_iter().zip(theirs) {
        assert_eq!(our, their, "{place}");
    }
}
