//! The serde representation of endpoints: named fields, and a list of GIDs.

use rdma_mem::{Gid, Lid, LinkLayer, Mtu};
use rdma_types::{Psn, QpType, Qpn};

use crate::endpoint::{EndpointGid, QueuePairEndpoint};

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename = "QueuePairEndpoint")]
pub(crate) struct Parts {
    version: u8,
    #[serde(default = "reliable_connection")]
    qp_type: QpType,
    qpn: Qpn,
    psn: Psn,
    #[serde(default)]
    qkey: u32,
    lid: Lid,
    link_layer: LinkLayer,
    grh_required: bool,
    mtu: Mtu,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    gids: Vec<EndpointGid>,
    #[serde(default)]
    stream: Option<(Gid, Gid)>,
}

fn reliable_connection() -> QpType {
    QpType::RC
}

impl From<QueuePairEndpoint> for Parts {
    fn from(endpoint: QueuePairEndpoint) -> Self {
        Self {
            version: QueuePairEndpoint::VERSION,
            qp_type: endpoint.qp_type,
            qpn: endpoint.qpn,
            psn: endpoint.psn,
            qkey: endpoint.qkey,
            lid: endpoint.lid,
            link_layer: endpoint.link_layer,
            grh_required: endpoint.grh_required,
            mtu: endpoint.mtu,
            max_rd_atomic: endpoint.max_rd_atomic,
            max_dest_rd_atomic: endpoint.max_dest_rd_atomic,
            gids: endpoint.gids().to_vec(),
            stream: endpoint.stream,
        }
    }
}

impl TryFrom<Parts> for QueuePairEndpoint {
    type Error = String;

    fn try_from(parts: Parts) -> Result<Self, String> {
        let Parts { version, ref gids, .. } = parts;
        if !(1..=Self::VERSION).contains(&version) {
            let newest = Self::VERSION;
            return Err(format!(
                "the endpoint has version {version}, but this program supports 1 to {newest}"
            ));
        }
        let mut endpoint = Self::new(parts.qpn, parts.psn)
            .with_mtu(parts.mtu)
            .with_rd_atomic(parts.max_rd_atomic, parts.max_dest_rd_atomic)
            .with_grh_required(parts.grh_required);
        endpoint = match parts.qp_type {
            QpType::RC => endpoint,
            QpType::UC => endpoint.with_unreliable_connection(),
            QpType::UD => endpoint.with_qkey(parts.qkey),
            other => return Err(format!("{other} queue pairs have no endpoints here")),
        };
        (endpoint.lid, endpoint.link_layer) = (parts.lid, parts.link_layer);
        endpoint.stream = parts.stream;
        if let Some(gid) = gids.iter().find(|gid| gid.gid_type.raw() > u8::MAX.into()) {
            return Err(format!(
                "GID type {} cannot be encoded: an endpoint has one byte for it",
                gid.gid_type
            ));
        }
        if let Some(gid) = gids.iter().find(|gid| gid.prefix_length > 128) {
            return Err(format!(
                "a prefix of {} bits is too long: a GID has 128",
                gid.prefix_length
            ));
        }
        let places = endpoint.gids.get_mut(..gids.len()).ok_or_else(|| {
            format!("{} GIDs, more than the {} of an endpoint", gids.len(), Self::MAX_GIDS)
        })?;
        places.copy_from_slice(gids);
        endpoint.gid_count = u8::try_from(gids.len()).map_err(|error| error.to_string())?;
        Ok(endpoint)
    }
}
