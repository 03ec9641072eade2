//! The GPU of a browser, reached through WebGPU.

use super::{ChosenDevice, DeviceError, DeviceInfo, DeviceKind};
use burn::tensor::Device;
use burn_wgpu::{WgpuInitError, WgpuSetup};
use std::cell::RefCell;

/// The browser's device, once it is started.
type BrowserDevice = RefCell<Option<(ChosenDevice, WgpuSetup)>>;

thread_local! {
    static STARTED: BrowserDevice = const { RefCell::new(None) };
}

/// Lists no device: a browser cannot list its adapters without waiting.
pub(super) fn list(_backend: &str) -> Vec<DeviceInfo> {
    Vec::new()
}

/// Refuses to start a device, for which a browser would have to wait.
pub(super) fn start(backend: &str, _index: usize) -> Result<Device, DeviceError> {
    Err(start_error(backend, "a browser starts it asynchronously".to_string()))
}

fn start_error(name: &str, message: String) -> DeviceError {
    DeviceError::Failed { name: name.to_string(), message }
}

/// The wgpu handles of a started device, for rendering on it; `None` for other kinds of device.
pub fn graphics_setup(device: &Device) -> Option<WgpuSetup> {
    let device = device.clone().without_autodiff();
    STARTED.with_borrow(|started| {
        let (_, setup) = started.as_ref().filter(|(chosen, _)| chosen.device == device)?;
        Some(setup.clone())
    })
}

/// Starts the browser's WebGPU device in a page or a worker; later calls share it.
///
/// Browsers do not allow blocking waits. Kernels and tensor operations are launched as on any other
/// device, but results must be read asynchronously (Burn's `into_data_async`, Grove's functions with
/// the suffix `_async`). Blocking reads such as [`read`](super::read) panic.
///
/// # Errors
/// If the browser has no WebGPU, or no adapter for it.
pub async fn start_in_browser() -> Result<ChosenDevice, DeviceError> {
    if let Some((started, _)) = STARTED.with_borrow(Clone::clone) {
        return Ok(started);
    }
    let to_device_error = |error: WgpuInitError| start_error("wgpu", error.to_string());
    let (device, setup) =
        Device::wgpu_options().init_with_setup_async().await.map_err(to_device_error)?;
    let adapter_info = setup.adapter.get_info();
    let is_software = adapter_info.device_type == wgpu::DeviceType::Cpu;
    let info = DeviceInfo {
        name: "wgpu:0".to_string(),
        // Browsers may hide the name, to prevent fingerprinting.
        description: if adapter_info.name.is_empty() {
            "a GPU".to_string()
        } else {
            adapter_info.name
        },
        api: "WebGPU".to_string(),
        kind: if is_software { DeviceKind::SoftwareGpu } else { DeviceKind::Gpu },
        is_software,
        memory_bytes: None,
        driver: None,
    };
    let chosen = ChosenDevice { device, info, reason: Some("the browser's GPU".to_string()) };
    STARTED.set(Some((chosen.clone(), setup)));
    Ok(chosen)
}
