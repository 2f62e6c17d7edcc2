//! Creating a queue pair, and its endpoint.
#![allow(unsafe_code)]

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ptr::{NonNull, null_mut};

use rdma_mem::{
    AccessFlags, Context, DeviceAttributes, Errno, Handle, Mtu, ObjectId, Ownership,
    PortAttributes, PortState, VerbError,
};
use rdma_sys::{ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type};
use rdma_types::{Psn, QpType, Qpn, TransportType};

use crate::cq::claim::{Claims, claim};
use crate::cq::queue::CompletionQueue;
use crate::endpoint::QueuePairEndpoint;
use crate::environment;
use crate::error::{Error, create_hint};
use crate::post::extended;
use crate::post::operations::{Operations, has_atomics};
use crate::post::stand_in::Called;
use crate::qp::builder::QueuePairBuilder;
use crate::qp::capabilities::QueuePairCapabilities;
use crate::qp::object::{Needs, Object};
use crate::qp::own_end::OwnEnd;
use crate::qp::own_gids;
use crate::qp::prepared::PreparedQueuePair;
use crate::qp::settings::Settings;
use crate::srq::queue::SharedReceiveQueue;

mod sizing;

/// The maximum default for concurrent reads and atomics; this many cost a device little.
const RD_ATOMIC: u32 = 16;

impl QueuePairBuilder<'_> {
    /// Creates the queue pair; see `man ibv_create_qp`.
    ///
    /// # Errors
    /// Returns an error if the type, the device or remote atomic access is not supported, or if the port or GID does
    /// not exist. Options and environment variables must be in range: for example, the MTU must not be above the
    /// port's. Completion queues must be set and large enough for [`strict_cq`](Self::strict_cq). They, and the shared
    /// receive queue, must belong to the same context as the protection domain. Otherwise, returns the provider's
    /// error, with the device's limits.
    #[doc(alias = "ibv_create_qp")]
    pub fn build(self) -> Result<PreparedQueuePair, Error> {
        let builder = &self;
        let context = builder.pd.context();
        let (send_cq, recv_cq) = check_parents(builder)?;
        let device = context.query_device()?;
        let mut end = own_end(builder, &device)?;
        let queues = (send_cq, recv_cq);
        let claims = claim(queues, &builder.sizes, builder.srq, builder.strict_cq)?;
        // All other steps that can fail come before this one, so that their failure leaves no queue pair to destroy.
        let object = create(builder, queues, claims, &device)?;
        end.endpoint.qpn = object.qpn;
        Ok(PreparedQueuePair {
            object,
            send_psn: end.endpoint.psn,
            end,
            fixed_mtu: builder.mtu,
            recv_psn: builder.recv_psn,
        })
    }
}

/// Checks the type, and that all objects belong to the same context.
pub(crate) fn check_parents<'a>(
    builder: &QueuePairBuilder<'a>,
) -> Result<(&'a CompletionQueue, &'a CompletionQueue), Error> {
    let context = builder.pd.context();
    check_type(builder.qp_type, context)?;
    let send_cq = completion_queue(builder, "send_cq", builder.send_cq)?;
    let recv_cq = completion_queue(builder, "recv_cq", builder.recv_cq)?;
    if builder.srq.is_some_and(|srq| !srq.pd().context().is_same(context)) {
        return Err(Error::ForeignSharedReceiveQueue);
    }
    Ok((send_cq, recv_cq))
}

/// Returns this end of a queue pair that does not have a QPN yet.
pub(crate) fn own_end(
    builder: &QueuePairBuilder<'_>,
    device: &DeviceAttributes,
) -> Result<OwnEnd, Error> {
    let context = builder.pd.context();
    let port = choose_port(context, device, builder.port)?;
    let mut settings = builder.settings;
    settings.service_level =
        of_environment(builder.service_level, "RDMA_SERVICE_LEVEL", "a number from 0 to 15")?
            .unwrap_or(0);
    settings.traffic_class =
        of_environment(builder.traffic_class, "RDMA_TRAFFIC_CLASS", "a number from 0 to 255")?;
    check_ranges(builder, &settings, device, &port)?;
    if settings.access.contains(AccessFlags::REMOTE_ATOMIC) && !has_atomics(device) {
        let device = context.device().name().to_owned();
        return Err(rdma_mem::Error::NoAtomics { device }.into());
    }
    let mtu = choose_mtu(&port, builder.mtu)?;
    let mut table = own_gids::choose(context, port.number, builder.gid_choice)?;
    let depth = |asked: Option<u8>, limit: u32| {
        asked.unwrap_or_else(|| u8::try_from(limit.min(RD_ATOMIC)).unwrap_or(u8::MAX))
    };
    let max_rd_atomic = depth(builder.max_rd_atomic, device.max_qp_init_rd_atom);
    let max_dest_rd_atomic = depth(builder.max_dest_rd_atomic, device.max_qp_rd_atom);
    let mut endpoint =
        QueuePairEndpoint::new(Qpn::masked(0), builder.send_psn.unwrap_or_else(random_psn))
            .with_mtu(mtu)
            .with_rd_atomic(max_rd_atomic, max_dest_rd_atomic)
            .with_grh_required(port.grh_required);
    endpoint.lid = port.lid;
    endpoint.link_layer = port.link_layer;
    match builder.qp_type {
        QpType::UC => endpoint = endpoint.with_unreliable_connection(),
        QpType::UD => {
            settings.qkey = builder.qkey.unwrap_or_else(random_qkey);
            endpoint = endpoint.with_qkey(settings.qkey);
        }
        _ => {}
    }
    own_gids::carry(&mut endpoint, &mut table);
    Ok(OwnEnd { endpoint, table, port: port.number, settings })
}

/// Returns the builder's value, or that of the environment variable.
fn of_environment(
    given: Option<u8>,
    variable: &'static str,
    expected: &'static str,
) -> Result<Option<u8>, Error> {
    match given {
        Some(given) => Ok(Some(given)),
        None => Ok(environment::parse(variable, expected)?),
    }
}

/// Checks numbers that fit into their Rust type, but possibly not into their packet field, or that possibly exceed the
/// device's limit.
///
/// Providers truncate such values, or refuse them without giving a reason.
fn check_ranges(
    builder: &QueuePairBuilder<'_>,
    settings: &Settings,
    device: &DeviceAttributes,
    port: &PortAttributes,
) -> Result<(), Error> {
    let places = port.pkey_table_length.saturating_sub(1);
    let depth = |depth: Option<u8>| u32::from(depth.unwrap_or(0));
    let knobs = [
        ("service_level", settings.service_level.into(), 0xf),
        ("flow_label", settings.flow_label, 0xf_ffff),
        ("pkey_index", settings.pkey_index.into(), places.into()),
        ("max_rd_atomic", depth(builder.max_rd_atomic), device.max_qp_init_rd_atom),
        ("max_dest_rd_atomic", depth(builder.max_dest_rd_atomic), device.max_qp_rd_atom),
    ];
    match knobs.into_iter().find(|&(_, value, most)| value > most) {
        Some((knob, value, most)) => Err(Error::TooLarge { knob, value, most }),
        None => Ok(()),
    }
}

/// Returns an error that names an unsupported type or transport, because a provider would refuse it without giving a
/// reason.
fn check_type(qp_type: QpType, context: &Context) -> Result<(), Error> {
    if !matches!(qp_type, QpType::RC | QpType::UC | QpType::UD) {
        return Err(Error::UnsupportedType { qp_type });
    }
    let device = context.device();
    match device.transport_type() {
        TransportType::IB => Ok(()),
        TransportType::IWARP => match qp_type {
            QpType::RC => Ok(()),
            _ => Err(Error::LackedByIwarp { device: device.name().to_owned(), qp_type }),
        },
        transport => {
            Err(Error::UnsupportedTransport { device: device.name().to_owned(), transport })
        }
    }
}

fn completion_queue<'a>(
    builder: &QueuePairBuilder<'_>,
    knob: &'static str,
    cq: Option<&'a CompletionQueue>,
) -> Result<&'a CompletionQueue, Error> {
    let cq = cq.ok_or(Error::Missing { knob })?;
    if cq.context().is_same(builder.pd.context()) {
        Ok(cq)
    } else {
        Err(Error::ForeignCompletionQueue { knob })
    }
}

fn choose_port(
    context: &Context,
    device: &DeviceAttributes,
    asked: Option<u8>,
) -> Result<PortAttributes, Error> {
    let count = device.port_count;
    if let Some(port) = asked {
        if port == 0 || port > count {
            return Err(Error::NoSuchPort { port, count });
        }
        return Ok(context.query_port(port)?);
    }
    let mut ports = Vec::new();
    for number in 1..=count {
        let port = context.query_port(number)?;
        if matches!(port.state, PortState::ACTIVE | PortState::ACTIVE_DEFER) {
            return Ok(port);
        }
        ports.push(port.state);
    }
    Err(Error::NoActivePort { device: context.device().name().to_owned(), ports })
}

fn choose_mtu(port: &PortAttributes, asked: Option<Mtu>) -> Result<Mtu, Error> {
    // Code 0 counts as the smallest MTU. Any other unknown code means an MTU above the largest one in the
    // specification.
    let unknown = if port.active_mtu_code == 0 { Mtu::MTU256 } else { Mtu::MTU4096 };
    let active = port.active_mtu.unwrap_or(unknown);
    match asked {
        Some(asked) if asked > active => {
            Err(Error::MtuTooLarge { asked, port: port.number, active })
        }
        Some(asked) => Ok(asked),
        None => Ok(active),
    }
}

fn create(
    builder: &QueuePairBuilder<'_>,
    (send_cq, recv_cq): (&CompletionQueue, &CompletionQueue),
    claims: Claims,
    device: &DeviceAttributes,
) -> Result<Object, Error> {
    let verbs = builder.pd.verbs();
    let sizes = match builder.srq {
        Some(_) => QueuePairCapabilities { max_recv_wr: 0, max_recv_sge: 0, ..builder.sizes },
        None => builder.sizes,
    };
    let id = ObjectId::unique();
    let attempt = |qp_type: QpType, sizes: QueuePairCapabilities| {
        let mut attributes = ibv_qp_init_attr {
            qp_context: id.to_context(),
            send_cq: send_cq.as_raw(),
            recv_cq: recv_cq.as_raw(),
            srq: builder.srq.map_or(null_mut(), SharedReceiveQueue::as_raw),
            cap: sizes.to_raw(),
            qp_type: ibv_qp_type(qp_type.raw()),
            sq_sig_all: i32::from(builder.sq_sig_all),
        };
        let extended = match builder.extended {
            // SAFETY: SAFETY.md F1, F2: the domain and the queues are live and belong to one context of this table.
            true => unsafe { extended::create(&builder.pd, &mut attributes) }?,
            false => None,
        };
        let created = match extended {
            Some(created) => created,
            None => {
                // SAFETY: SAFETY.md F1, F2: same argument as above.
                let raw = unsafe { (verbs.create_qp)(builder.pd.as_raw(), &raw mut attributes) };
                let raw = Errno::check_null(raw)?;
                (raw, Called::itself(raw))
            }
        };
        Ok((created, attributes.cap))
    };
    let discard = |((raw, _), _): ((NonNull<ibv_qp>, _), _)| {
        // SAFETY: SAFETY.md F1, F2: the queue pair was just created by this table, and is not used elsewhere.
        let returned = unsafe { (verbs.destroy_qp)(raw.as_ptr()) };
        if returned != 0 {
            tracing::error!(errno = returned, "a queue pair of a trial could not be destroyed");
        }
    };
    let created = sizing::create(builder.qp_type, sizes, builder.inline, attempt, discard);
    let (created, cap) = created.map_err(|refused| {
        let sizing::Refused { errno, sizes, culprit } = refused;
        let hint = create_hint(errno, &format!("{sizes:?}"), device);
        let hint = match (hint, culprit) {
            (Some(hint), Some(culprit)) => Some(format!("{hint}; {culprit}").into()),
            (hint, culprit) => hint.or_else(|| Some(culprit?.to_string().into())),
        };
        VerbError::new("ibv_create_qp", errno).with_hint(hint)
    })?;
    let queues = (send_cq, recv_cq);
    let operations = Operations::of(builder.pd.context(), Some(device));
    // SAFETY: SAFETY.md F2, F9, F20: the queue pair was just created by this table, from these objects, and is not used
    // elsewhere.
    Ok(unsafe { object(builder, queues, claims, created, (&cap, operations), Ownership::Owned) })
}

/// Wraps an existing queue pair.
///
/// # Safety
/// The contract of [`Handle::from_raw`] applies. The queue pair belongs to the builder's domain and to these queues,
/// and has the builder's type. `posted` is the queue pair, or its stand-in.
pub(crate) unsafe fn object(
    builder: &QueuePairBuilder<'_>,
    (send_cq, recv_cq): (&CompletionQueue, &CompletionQueue),
    claims: Claims,
    (raw, posted): (NonNull<ibv_qp>, Called<ibv_qp>),
    (cap, operations): (&ibv_qp_cap, Operations),
    ownership: Ownership,
) -> Object {
    let needs = Needs {
        send_cq: send_cq.clone(),
        recv_cq: recv_cq.clone(),
        srq: builder.srq.cloned(),
        pd: builder.pd.clone(),
        _claims: claims,
    };
    let (destroy, verb) = (builder.pd.verbs().destroy_qp, "ibv_destroy_qp");
    // SAFETY: SAFETY.md F2, F9: by this function's contract. `needs` keeps the queues and the domain alive (F6), and
    // only the handle's owner uses the queue pair.
    let handle = unsafe { Handle::from_raw(raw, destroy, verb, needs, ownership) };
    // SAFETY: SAFETY.md F1: `handle` keeps the queue pair alive. The QPN does not change.
    let qpn = Qpn::masked(unsafe { (*raw.as_ptr()).qp_num });
    // SAFETY: SAFETY.md F1: same argument as above. The user context does not change either.
    let id = ObjectId::from_context(unsafe { (*raw.as_ptr()).qp_context });
    let mut capabilities = QueuePairCapabilities::from_raw(cap);
    if builder.srq.is_some() {
        // Not every provider reports 0.
        (capabilities.max_recv_wr, capabilities.max_recv_sge) = (0, 0);
    }
    Object::new(handle, posted, (qpn, id), builder.qp_type, capabilities, operations)
}

/// Returns a random first PSN, so that packets of an old connection are not accepted by a new one.
fn random_psn() -> Psn {
    Psn::masked(random())
}

/// Returns a random Q_Key, so that datagrams for an earlier queue pair with the same QPN are not accepted. The high bit
/// stays clear, because keys that have it set require a privilege.
fn random_qkey() -> u32 {
    random() >> 1
}

/// Returns a number from the seed of the standard library's hash maps. The kernel gives each thread 128 random bits,
/// and each seed is a different SipHash key, so outsiders cannot predict the number. A random number crate would be a
/// dependency just for PSNs and Q_Keys.
fn random() -> u32 {
    let [a, b, c, d, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psns_differ() {
        let psns: std::collections::HashSet<_> = (0..8).map(|_| random_psn()).collect();
        assert!(psns.len() > 1);
        let qkeys: std::collections::HashSet<_> = (0..8).map(|_| random_qkey()).collect();
        assert!(qkeys.len() > 1 && qkeys.iter().all(|qkey| qkey >> 31 == 0));
    }
}
