//! The backends of devices, and how the devices of each that this build has are found and started.

use super::{DeviceError, DeviceInfo, DeviceKind};
use burn::tensor::Device;

/// The names of all backends, with the Cargo feature that enables each.
pub(super) const BACKEND_FEATURES: [(&str, &str); 7] = [
    ("cpu", "flex"),
    ("ndarray", "ndarray"),
    ("cuda", "cuda"),
    ("rocm", "rocm"),
    ("wgpu", "wgpu"),
    ("vulkan", "vulkan"),
    ("metal", "metal"),
];

/// A backend that this build has.
pub(super) struct Backend {
    /// Name by which users select its devices, such as `wgpu`.
    pub name: &'static str,
    /// Lists the devices of the backend with this name, in the order of their indices.
    pub list: fn(&str) -> Vec<DeviceInfo>,
    /// Starts the device with an index of the list.
    pub start: fn(&str, usize) -> Result<Device, DeviceError>,
}

/// The backends that this build has, the CPU first.
pub(super) const BACKENDS: &[Backend] = &[
    #[cfg(feature = "flex")]
    Backend {
        name: "cpu",
        list: |name| list_cpu(name, "Burn flex"),
        start: |_, _| Ok(Device::flex()),
    },
    #[cfg(feature = "ndarray")]
    Backend {
        name: "ndarray",
        list: |name| list_cpu(name, "Burn ndarray"),
        #[allow(deprecated)] // deprecated upstream, but still selectable by name
        start: |_, _| Ok(Device::ndarray()),
    },
    #[cfg(feature = "cuda")]
    Backend {
        name: "cuda",
        list: |name| list_enumerated(name, "CUDA", burn::tensor::DeviceType::Cuda),
        start: start_cuda,
    },
    #[cfg(feature = "rocm")]
    Backend {
        name: "rocm",
        list: |name| list_enumerated(name, "ROCm", burn::tensor::DeviceType::Rocm),
        start: |_, index| Ok(Device::rocm(index)),
    },
    #[cfg(feature = "wgpu")]
    Backend { name: "wgpu", list: super::graphics::list, start: super::graphics::start },
    #[cfg(feature = "vulkan")]
    Backend { name: "vulkan", list: super::graphics::list, start: super::graphics::start },
    #[cfg(feature = "metal")]
    Backend { name: "metal", list: super::graphics::list, start: super::graphics::start },
];

/// Starts a CUDA device, if the library that kernels link is installed: without it, every kernel that computes an
/// exponential would fail later.
#[cfg(feature = "cuda")]
fn start_cuda(backend: &str, index: usize) -> Result<Device, DeviceError> {
    if !has_libdevice() {
        let message = format!(
            "{LIBDEVICE} of the CUDA toolkit was not found; install the toolkit, or set CUDA_PATH to a folder that has \
             this file (the package nvidia-cuda-nvcc of PyPI has it, too), or use another device, such as vulkan"
        );
        return Err(DeviceError::Failed { name: format!("{backend}:{index}"), message });
    }
    Ok(Device::new(burn_cuda::CudaDevice::new(index)))
}

/// CUDA's mathematical functions, in the folder of the toolkit.
#[cfg(feature = "cuda")]
const LIBDEVICE: &str = "nvvm/libdevice/libdevice.10.bc";

/// Whether CubeCL finds [`LIBDEVICE`]: in CUDA_PATH if that is set, otherwise where toolkits are usually installed.
#[cfg(feature = "cuda")]
pub(super) fn has_libdevice() -> bool {
    let usual_folders = ["/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda", "/usr"];
    let has = |folder: &str| std::path::Path::new(folder).join(LIBDEVICE).is_file();
    match std::env::var("CUDA_PATH") {
        Ok(folder) => has(&folder),
        Err(_) => usual_folders.into_iter().any(has),
    }
}

/// Lists the CPU, as one of Burn's CPU backends.
#[cfg(any(feature = "flex", feature = "ndarray"))]
fn list_cpu(name: &str, api: &str) -> Vec<DeviceInfo> {
    vec![DeviceInfo {
        name: name.to_string(),
        description: match rayon::current_num_threads() {
            1 => "1 thread".to_string(),
            threads => format!("{threads} threads"),
        },
        api: api.to_string(),
        kind: DeviceKind::Cpu,
        is_software: false,
        memory_bytes: super::usage::total_memory_bytes(),
        driver: None,
    }]
}

/// Lists the devices of a type that Burn enumerates by index alone.
#[cfg(any(feature = "cuda", feature = "rocm"))]
fn list_enumerated(
    backend: &str,
    api: &str,
    device_type: burn::tensor::DeviceType,
) -> Vec<DeviceInfo> {
    // A runtime without its driver may panic instead of returning an empty list.
    let count =
        std::panic::catch_unwind(|| Device::enumerate(device_type)).map(|found| found.len());
    (0..count.unwrap_or(0))
        .map(|i| DeviceInfo {
            name: format!("{backend}:{i}"),
            description: format!("{api} device {i}"),
            api: api.to_string(),
            kind: DeviceKind::Gpu,
            is_software: false,
            memory_bytes: None,
            driver: None,
        })
        .collect()
}
