//! Sums of what lies on CUDA devices of one process, by NCCL: nothing of them goes through the host.

use super::{Team, TeamError};
use burn::tensor::distributed::{ReduceOperation, all_reduce};
use burn::tensor::{Device, Tensor};
use std::sync::Arc;

/// The devices of all members, which NCCL joins.
#[derive(Clone, Debug)]
pub struct Collective {
    devices: Arc<[Device]>,
}

impl Collective {
    /// Of the members' devices, by rank: CUDA devices, no two of them the same.
    pub fn new(devices: Vec<Device>) -> Self {
        Self { devices: devices.into() }
    }

    /// Whether NCCL is on this machine.
    pub fn is_there() -> bool {
        #[cfg(target_os = "linux")]
        {
            let library = |name: &std::ffi::CStr| {
                // SAFETY: a library that is loaded for good, from the system's own folders.
                !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) }.is_null()
            };
            library(c"libnccl.so.2") || library(c"libnccl.so")
        }
        #[cfg(not(target_os = "linux"))]
        false
    }

    /// The sum of all members' vectors, of which this one's lies on its device: the same on all devices.
    ///
    /// # Errors
    /// If a member is gone or silent: NCCL itself would wait for it for ever.
    pub fn sum(&self, team: &Team, ours: Tensor<1>) -> Result<Tensor<1>, TeamError> {
        team.total(&[0.0])?;
        let (size, bytes) = (self.devices.len(), size_of::<f32>() * ours.dims()[0]);
        team.count_vectors((2 * (size - 1) * bytes / size) as u64);
        Ok(all_reduce(ours, ReduceOperation::Sum, self.devices.to_vec()).resolve())
    }
}
