//! What goes between the host and a device, each way counted.

use burn::cubecl::future::block_on;
use burn::tensor::{Device, Tensor, TensorData};
use std::cell::Cell;

/// What went to and fro in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Times that results were waited for.
    pub read_backs: u64,
    /// Bytes of those.
    pub downloaded: u64,
    /// Bytes that were put where they are learnt from: data, weights and states. The lists of which games
    /// or windows a minibatch takes are not among them, a few bytes each.
    pub uploaded: u64,
}

thread_local! {
    static TRANSFERS: Cell<Transfers> = const {
        Cell::new(Transfers { read_backs: 0, downloaded: 0, uploaded: 0 })
    };
}

/// The transfers by this thread since this was last called.
pub fn take_transfers() -> Transfers {
    TRANSFERS.take()
}

fn count(change: impl FnOnce(&mut Transfers)) {
    let mut transfers = TRANSFERS.get();
    change(&mut transfers);
    TRANSFERS.set(transfers);
}

fn count_read(bytes: usize) {
    count(|all| {
        all.read_backs += 1;
        all.downloaded += bytes as u64;
    });
}

/// Counts bytes that this thread has put where they are learnt from. On the CPU that is where the learner
/// keeps them.
pub fn count_upload(bytes: u64) {
    count(|all| all.uploaded += bytes);
}

/// Puts numbers on a device.
pub fn upload(values: Vec<f32>, device: &Device) -> Tensor<1> {
    count_upload(size_of_val(&values[..]) as u64);
    let shape = [values.len()];
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Waits for a tensor and copies it from the device. Every such wait of a training iteration goes
/// through here, so that they can be counted.
///
/// # Panics
/// If the device fails.
pub fn read(tensor: Tensor<1>) -> Vec<f32> {
    block_on(read_async(tensor))
}

/// The values of a tensor, wherever it lies: where that is host memory already, nothing is read back.
///
/// # Panics
/// If the device fails.
pub fn fetch(tensor: Tensor<1>) -> Vec<f32> {
    if super::has_kernels(&tensor.device()) {
        return read(tensor);
    }
    tensor.into_data().try_into_vec().expect("the library computes in f32")
}

/// The asynchronous form of [`read`], for where a thread must not block.
///
/// # Panics
/// If the device fails.
pub async fn read_async(tensor: Tensor<1>) -> Vec<f32> {
    count_read(size_of::<f32>() * tensor.dims()[0]);
    let data = tensor.into_data_async().await;
    let data = data.unwrap_or_else(|error| panic!("the device failed: {error:?}"));
    data.try_into_vec().expect("the library computes in f32")
}

/// Copies some tensors from a CubeCL device, in one read ([`read_async`]): they are as they are by now.
/// While they are on their way, `meanwhile` can give the device more to do.
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
    let buffers = reading.await.unwrap_or_else(|error| panic!("the device failed: {error:?}"));
    let number = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let floats: Vec<_> =
        buffers.iter().map(|bytes| bytes.chunks_exact(4).map(number).collect()).collect();
    (floats.try_into().expect("as many as were asked for"), result)
}
