//! Transfers between the host and a device, with statistics.

use crate::nn::parameters;
use burn::cubecl::future::block_on;
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::cell::Cell;

/// Transfers over some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Number of blocking read-backs.
    pub read_backs: u64,
    /// Bytes downloaded by the read-backs.
    pub downloaded_bytes: u64,
    /// Bytes of data, weights and states uploaded for learning. The short index lists of minibatches
    /// are not counted.
    pub uploaded_bytes: u64,
}

thread_local! {
    static TRANSFERS: Cell<Transfers> = const {
        Cell::new(Transfers { read_backs: 0, downloaded_bytes: 0, uploaded_bytes: 0 })
    };
}

/// A count of this thread's transfers from its start until it is stopped. Counts nest: what an inner count sees, the
/// outer one does not. Counts of a thread must end in the reverse order of their starts. A pool thread that waits may
/// execute an iteration of another trainer, whose transfers are not the waiting one's.
#[derive(Debug)]
pub struct TransferCount {
    /// The transfers that the outer count had seen at the start.
    outer: Transfers,
}

impl TransferCount {
    /// Starts a count.
    pub fn start() -> Self {
        Self { outer: TRANSFERS.take() }
    }

    /// Ends the count and returns the transfers since its start.
    pub fn stop(self) -> Transfers {
        TRANSFERS.get()
    }
}

impl Drop for TransferCount {
    fn drop(&mut self) {
        TRANSFERS.set(self.outer);
    }
}

fn update_count(change: impl FnOnce(&mut Transfers)) {
    let mut transfers = TRANSFERS.get();
    change(&mut transfers);
    TRANSFERS.set(transfers);
}

fn count_read(bytes: usize) {
    update_count(|all| {
        all.read_backs += 1;
        all.downloaded_bytes += bytes as u64;
    });
}

/// Counts an upload by this thread. On the CPU, an upload is a copy into the learner's memory.
pub fn count_upload(bytes: u64) {
    update_count(|all| all.uploaded_bytes += bytes);
}

/// Uploads values to a device.
pub fn upload(values: Vec<f32>, device: &Device) -> Tensor<1> {
    count_upload(size_of_val(&values[..]) as u64);
    let shape = [values.len()];
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Uploads indices to a device.
pub(crate) fn upload_indices(values: &[i32], device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::from(values), device)
}

/// Copies a tensor from the device, blocking until it has been computed. All read-backs of a training iteration use
/// this function or [`read_async`], so that they are counted. A copy within host memory is not counted here.
///
/// # Panics
/// If the device fails.
pub fn read(tensor: Tensor<1>) -> Vec<f32> {
    if super::has_kernels(&tensor.device()) {
        return block_on(read_async(tensor));
    }
    parameters::to_vec(tensor)
}

/// Copies a tensor as [`read`] does, for threads that must not block; here a copy within host memory counts, too.
///
/// # Panics
/// If the device fails.
pub async fn read_async(tensor: Tensor<1>) -> Vec<f32> {
    count_read(size_of::<f32>() * tensor.dims()[0]);
    parameters::to_vec_async(tensor).await
}

/// Copies several tensors from a CubeCL device in one read-back. The copy is enqueued at once; while it
/// is pending, `meanwhile` can launch more work on the device.
///
/// # Panics
/// If the device fails.
#[cfg(feature = "kernels")]
pub(crate) async fn read_while<const N: usize, T>(
    tensors: [Tensor<1>; N],
    meanwhile: impl FnOnce() -> T,
) -> ([Vec<f32>; N], T) {
    count_read(tensors.iter().map(|tensor| size_of::<f32>() * tensor.dims()[0]).sum());
    let tensors = tensors.map(super::buffers::cube_tensor);
    let handles = tensors.iter().map(|tensor| tensor.handle.clone()).collect();
    let reading = tensors[0].client.read_async(handles);
    let result = meanwhile();
    let buffers = reading.await.unwrap_or_else(|error| panic!("the device failed: {error}"));
    let floats: Vec<Vec<f32>> =
        buffers.iter().map(|bytes| bytemuck::pod_collect_to_vec(bytes)).collect();
    (floats.try_into().expect("as many as were asked for"), result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inner_count_takes_nothing_from_the_outer_one() {
        let outer = TransferCount::start();
        count_upload(3);
        let inner = TransferCount::start();
        count_upload(20);
        assert_eq!(inner.stop().uploaded_bytes, 20);
        drop(TransferCount::start());
        count_upload(1);
        assert_eq!(outer.stop().uploaded_bytes, 4);
    }
}
