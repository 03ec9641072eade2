//! All-reduce between the CUDA devices of one process by NCCL, without copies through host memory.

use super::{Team, TeamError};
use burn::tensor::distributed::{ReduceOperation, all_reduce};
use burn::tensor::{Device, Tensor};
use std::sync::Arc;

/// A group of CUDA devices, one per rank, joined by NCCL.
#[derive(Clone, Debug)]
pub struct NcclGroup {
    devices: Arc<[Device]>,
}

impl NcclGroup {
    /// Joins distinct CUDA devices, in order of rank.
    pub fn new(devices: Vec<Device>) -> Self {
        Self { devices: devices.into() }
    }

    /// Whether NCCL is installed on this machine.
    pub fn is_available() -> bool {
        #[cfg(target_os = "linux")]
        {
            let library = |name: &std::ffi::CStr| {
                // SAFETY: a system library, which is never unloaded.
                !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) }.is_null()
            };
            library(c"libnccl.so.2") || library(c"libnccl.so")
        }
        #[cfg(not(target_os = "linux"))]
        false
    }

    /// Sums the vectors of all ranks and leaves the result on each rank's device. `ours` is on this
    /// rank's device.
    ///
    /// # Errors
    /// If a rank has ended or does not respond. This is checked first, because NCCL would wait forever.
    pub fn all_reduce(&self, team: &Team, ours: Tensor<1>) -> Result<Tensor<1>, TeamError> {
        team.all_reduce_counts(&[0.0])?;
        let (num_ranks, bytes) = (self.devices.len(), size_of::<f32>() * ours.dims()[0]);
        team.add_vector_bytes((2 * (num_ranks - 1) * bytes / num_ranks) as u64);
        Ok(all_reduce(ours, ReduceOperation::Sum, self.devices.to_vec()).resolve())
    }
}
