//! Local requests: binding a memory window, and invalidating one.

use rdma_types::WcStatus;

use crate::engine::operation::{Opcode, Operation};
use crate::engine::requester::peer::Near;
use crate::memory::grace_period;
use crate::memory::window::{Bind, WindowKind};

/// A bind uses fields of the [`Operation`] that have other meanings in other requests.
impl Bind {
    pub(crate) fn into_operation(self) -> Operation {
        Operation {
            opcode: Opcode::BindWindow,
            imm: self.window,
            remote_address: self.address,
            rkey: self.key,
            operand: self.length,
            swap: u64::from(self.region) << 32 | u64::from(self.access),
            ..Operation::EMPTY
        }
    }

    fn of(operation: &Operation) -> Self {
        Self {
            window: operation.imm,
            key: operation.rkey,
            region: (operation.swap >> 32) as u32,
            access: (operation.swap & 0xffff_ffff) as u32,
            address: operation.remote_address,
            length: operation.operand,
        }
    }
}

/// Executes a local request of this queue pair. When this returns, no peer can access memory whose window was unbound
/// or invalidated. The caller holds the send lock.
///
/// All errors have the same status, which the specification calls "memory management operation error" (IBTA volume 1,
/// 11.6.2).
#[cold]
pub(crate) fn execute(own: &impl Near, operation: &Operation) -> Result<(), WcStatus> {
    let done = match operation.opcode {
        Opcode::BindWindow => match own.pd.bind(&Bind::of(operation), own.id) {
            // Any queue pair of the domain may be using the previous binding.
            Some(WindowKind::One) => {
                grace_period::wait();
                true
            }
            bound => bound.is_some(),
        },
        _ => {
            let invalidated = own.pd.invalidate(operation.imm, own.id);
            if invalidated {
                own.responder().wait_for_holder();
            }
            invalidated
        }
    };
    if !done {
        return Err(WcStatus::MW_BIND_ERR);
    }
    own.counts.local.count();
    Ok(())
}
