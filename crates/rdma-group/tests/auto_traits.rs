//! Types that may move to other threads, or be used from several.

use rdma_group::simulation::{Action, Blocks, Collective, Member, Transfer};
use rdma_group::{BarrierAlgorithm, Buffer, Error, Group, GroupBuilder, Reduction};

fn send_sync<T: Send + Sync>() {}

#[test]
fn errors_can_be_sent_to_other_threads() {
    send_sync::<Error>();
}

#[test]
fn options_are_plain_values() {
    send_sync::<BarrierAlgorithm>();
    send_sync::<GroupBuilder<'_>>();
}

#[test]
fn schedules_are_plain_values() {
    send_sync::<(Action, Blocks, Collective, Member, Transfer)>();
}

#[test]
fn a_reduction_can_move_into_a_future_of_another_thread() {
    send_sync::<Reduction<'_, f32>>();
}

#[test]
fn a_buffer_can_move_to_another_thread() {
    send_sync::<Buffer<f32>>();
}

#[test]
fn a_group_can_move_to_another_thread() {
    send_sync::<Group>();
}

#[cfg(feature = "serde")]
mod network {
    use rdma_group::network::*;

    use super::send_sync;

    fn send<T: Send>() {}

    trait NotSend<A> {
        fn holds() {}
    }
    impl<T: ?Sized> NotSend<()> for T {}
    impl<T: ?Sized + Send> NotSend<u8> for T {}

    #[test]
    fn configurations_and_errors_are_plain_values() {
        send_sync::<(NodeConfig, RawNetworkConfig, NetworkConfig, NetworkConfigError)>();
        send_sync::<(ExchangeConfig, ExchangeError, Exchanger)>();
        send_sync::<(LocalEndpoint, RemoteEndpoints, EndpointsError)>();
        send_sync::<(NodeWithoutPd, NodeBuilder<'_>, BarrierError)>();
    }

    /// Only one thread at a time uses the channels.
    #[test]
    fn a_node_can_move_to_another_thread() {
        send::<(PreparedNode, Node)>();
        send_sync::<(PreparedBarrier, Barrier)>();
    }

    #[test]
    fn a_scope_stays_on_its_thread() {
        <NodeScope<'_, '_> as NotSend<_>>::holds();
    }
}

#[cfg(feature = "async")]
#[test]
fn an_asynchronous_group_can_move_to_another_thread() {
    send_sync::<rdma_group::aio::Group>();
}
