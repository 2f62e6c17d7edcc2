//! Options that an operator sets in the environment: each case runs in a process of its own, started by its test.
#![allow(clippy::unwrap_used, clippy::panic)] // a failing helper fails its test

use std::process::Command;

use crate::common::parts;
use rdma_qp::{Error, PreparedQueuePair, QueuePairBuilder, QueuePairType, prelude::*};
use test_support::program::in_own_process_with;

const VARIABLES: [&str; 4] =
    ["RDMA_GID_INDEX", "RDMA_GID_NETWORK", "RDMA_TRAFFIC_CLASS", "RDMA_SERVICE_LEVEL"];

/// Runs the case of a test in a process that has only these variables.
fn with(test: &str, variables: &[(&str, &str)], case: impl FnOnce()) {
    let prepare = |program: &mut Command| {
        VARIABLES.into_iter().for_each(|name| _ = program.env_remove(name));
        program.envs(variables.iter().copied());
    };
    in_own_process_with(&format!("environment::{test}"), prepare, case);
}

fn build(
    options: impl FnOnce(QueuePairBuilder<'_>) -> QueuePairBuilder<'_>,
) -> Result<PreparedQueuePair, Error> {
    let (pd, cq) = parts("soft0");
    options(pd.create_qp().send_cq(&cq).recv_cq(&cq)).build()
}

#[test]
fn the_network_of_the_environment_restricts_the_gids() {
    let variables = [("RDMA_GID_NETWORK", "fe80::/10")];
    with("the_network_of_the_environment_restricts_the_gids", &variables, || {
        let gids = |end: PreparedQueuePair| end.endpoint().gids().to_vec();
        let found = gids(build(|builder| builder).unwrap());
        assert!(!found.is_empty() && found.iter().all(|gid| gid.gid.is_link_local()));
        let asked =
            gids(build(|builder| builder.gid_index(found.len().try_into().unwrap())).unwrap());
        assert_eq!(asked.len(), 1, "the program's choice goes before");
    });
}

#[test]
fn the_index_of_the_environment_goes_before_the_network() {
    let variables = [("RDMA_GID_NETWORK", "192.0.2.0/24"), ("RDMA_GID_INDEX", "0")];
    with("the_index_of_the_environment_goes_before_the_network", &variables, || {
        assert_eq!(build(|builder| builder).unwrap().endpoint().gids().len(), 1);
    });
}

#[test]
fn a_value_that_is_none_is_named() {
    let variables = [("RDMA_GID_NETWORK", "10.0.0.1")];
    with("a_value_that_is_none_is_named", &variables, || {
        let error = build(|builder| builder).unwrap_err().to_string();
        assert!(error.contains("RDMA_GID_NETWORK is `10.0.0.1`"), "{error}");
        assert!(error.contains("10.0.0.0/8"), "{error}");
    });
}

#[test]
fn traffic_class_and_service_level_of_the_environment_are_those_of_the_packets() {
    let variables = [("RDMA_TRAFFIC_CLASS", "106"), ("RDMA_SERVICE_LEVEL", "3")];
    let test = "traffic_class_and_service_level_of_the_environment_are_those_of_the_packets";
    with(test, &variables, || {
        let way = |prepared: PreparedQueuePair| {
            let own = prepared.endpoint();
            let vector = prepared.activate().unwrap().address_vector(&own).unwrap();
            (vector.traffic_class, vector.service_level)
        };
        let ud = QueuePairType::UD;
        assert_eq!(way(build(|builder| builder.qp_type(ud)).unwrap()), (106, 3));
        let own = build(|builder| builder.qp_type(ud).traffic_class(8).service_level(1)).unwrap();
        assert_eq!(way(own), (8, 1), "the program's choice goes before");
    });
}

#[test]
fn a_service_level_beyond_its_field_is_refused() {
    let variables = [("RDMA_SERVICE_LEVEL", "16")];
    with("a_service_level_beyond_its_field_is_refused", &variables, || {
        let error = build(|builder| builder).unwrap_err();
        assert!(matches!(error, Error::TooLarge { knob: "service_level", value: 16, most: 15 }));
    });
}
