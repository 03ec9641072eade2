//! Device selection by name (`auto`, `cpu`, `wgpu:1`, `cuda:0`, ...), transfers and usage statistics.

#[cfg(feature = "kernels")]
pub(crate) mod buffers;
#[cfg(all(feature = "wgpu", not(target_family = "wasm")))]
mod graphics;
mod transfers;
mod usage;

#[cfg(feature = "kernels")]
pub(crate) use transfers::read_while;
pub use transfers::{Transfers, count_upload, fetch, read, read_async, take_transfers, upload};
pub use usage::{data_budget, load, memory, release_freed_memory};

use crate::settings::Precision;
use burn::tensor::Device;
use serde::Serialize;
use std::fmt;
use usage::proc_bytes;

/// The kinds of device, with the Cargo feature that enables each and whether it is enabled.
const KINDS: [(&str, &str, bool); 7] = [
    ("cpu", "flex", cfg!(feature = "flex")),
    ("ndarray", "ndarray", cfg!(feature = "ndarray")),
    ("wgpu", "wgpu", cfg!(feature = "wgpu")),
    ("vulkan", "vulkan", cfg!(feature = "vulkan")),
    ("metal", "metal", cfg!(feature = "metal")),
    ("cuda", "cuda", cfg!(feature = "cuda")),
    ("rocm", "rocm", cfg!(feature = "rocm")),
];

/// A device that this build supports and that is present on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// The name by which it can be selected, for instance `wgpu:0`.
    pub name: String,
    /// The driver's description of the device.
    pub description: String,
    /// The API through which it is used, for instance `Vulkan`.
    pub api: String,
    /// The kind of device: `cpu`, `discrete gpu`, `integrated gpu`, `virtual gpu`, `software gpu`
    /// or `gpu`.
    pub kind: String,
    /// Whether it is a software renderer that runs on the CPU.
    pub software: bool,
    /// Size of its memory, bytes, if known.
    pub memory_bytes: Option<u64>,
}

/// A started device, with the reason for choosing it.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The device, without autodiff.
    pub device: Device,
    /// Description of the device.
    pub info: DeviceInfo,
    /// The reason for the choice, as a short phrase.
    pub reason: String,
}

/// The reason a device is not available.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DeviceError {
    /// There is no such kind of device.
    #[error("unknown device `{name}`; must be one of: auto, {known}")]
    Unknown {
        /// The requested name.
        name: String,
        /// The known kinds.
        known: String,
    },
    /// The kind of device is not enabled in this build.
    #[error("device `{name}` is not included in this build; rebuild with `--features {feature}`")]
    NotCompiledIn {
        /// The requested name.
        name: String,
        /// The Cargo feature that enables it.
        feature: &'static str,
    },
    /// The machine has no such device.
    #[error("no device `{name}` on this machine; available: {present}")]
    NotPresent {
        /// The requested name.
        name: String,
        /// The available devices.
        present: String,
    },
    /// The device is present but fails to start.
    #[error("device `{name}` failed to start: {message}")]
    Failed {
        /// The requested name.
        name: String,
        /// The driver's or runtime's message.
        message: String,
    },
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.name, self.description, self.api)
    }
}

/// Whether Grove's CubeCL kernels can run on a device.
#[cfg(feature = "kernels")]
pub fn has_kernels(device: &Device) -> bool {
    use burn::backend::DispatchDevice;
    matches!(device.clone().without_autodiff().as_dispatch(), DispatchDevice::Cube(_))
}

/// Whether Grove's CubeCL kernels can run on a device: never, since this build has none.
#[cfg(not(feature = "kernels"))]
pub fn has_kernels(_device: &Device) -> bool {
    false
}

/// Whether kernels on a device support a precision.
#[cfg(feature = "kernels")]
pub fn has_precision(device: &Device, precision: Precision) -> bool {
    let device = device.clone().without_autodiff();
    has_kernels(&device)
        && buffers::probe(&device).client.properties().supports_type(buffers::element(precision))
}

/// Whether kernels on a device support a precision: never, since this build has none.
#[cfg(not(feature = "kernels"))]
pub fn has_precision(_device: &Device, _precision: Precision) -> bool {
    false
}

/// The reason why a device, or the CPU if `None`, does not support matrix products in a precision;
/// `None` if it does.
pub fn precision_obstacle(device: Option<&Device>, precision: Precision) -> Option<String> {
    match device.filter(|device| has_kernels(device)) {
        _ if precision == Precision::F32 => None,
        None => Some("the CPU supports f32 only".to_string()),
        Some(device) => (!has_precision(device, precision))
            .then(|| format!("the device does not support {precision}")),
    }
}

/// A fingerprint of a device's numerics: equal fingerprints give bit-identical results.
pub fn numerics(info: &DeviceInfo) -> String {
    if info.kind != "cpu" {
        return format!("{}, {}", info.description, info.api);
    }
    #[cfg(target_arch = "x86_64")]
    let has = [
        ("avx512", is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
    ];
    #[cfg(not(target_arch = "x86_64"))]
    let has: [(&str, bool); 0] = [];
    let has = has.iter().filter(|(_, has)| *has).map(|(name, _)| *name);
    format!("{} {} {}", info.api, std::env::consts::ARCH, has.collect::<Vec<_>>().join(" "))
}

/// Lists all devices that this build can use on this machine, the CPU first. Queries every driver.
pub fn list() -> Vec<DeviceInfo> {
    #[allow(unused_mut)] // in a CPU-only build
    let mut devices = cpus();
    #[cfg(feature = "cuda")]
    devices.extend(compute::list("cuda"));
    #[cfg(feature = "rocm")]
    devices.extend(compute::list("rocm"));
    #[cfg(all(feature = "wgpu", not(target_family = "wasm")))]
    devices.extend(graphics::list());
    devices
}

/// The CPU, once for each of Burn's CPU backends.
fn cpus() -> Vec<DeviceInfo> {
    let mut devices = Vec::new();
    for (name, api, compiled_in) in [
        ("cpu", "Burn flex", cfg!(feature = "flex")),
        ("ndarray", "Burn ndarray", cfg!(feature = "ndarray")),
    ] {
        if compiled_in {
            devices.push(DeviceInfo {
                name: name.to_string(),
                description: format!("{} threads", rayon::current_num_threads()),
                api: api.to_string(),
                kind: "cpu".to_string(),
                software: false,
                memory_bytes: proc_bytes("/proc/meminfo", "MemTotal:"),
            });
        }
    }
    devices
}

/// Starts the device called `name`; `auto` selects the [`best`] one.
///
/// A wgpu device is started once per process; later calls with the same name share it.
///
/// # Errors
/// If the name is unknown, not compiled in or not on this machine, or the device fails to start.
pub fn choose(name: &str) -> Result<Chosen, DeviceError> {
    if name == "auto" {
        let (info, reason) = best()?;
        return start(&info, reason);
    }
    let (kind, index) = match name.split_once(':') {
        Some((kind, index)) => (kind, index.parse::<usize>().ok()),
        None => (name, Some(0)),
    };
    let known = || KINDS.map(|(kind, _, _)| kind).join(", ");
    let Some((_, feature, compiled_in)) = KINDS.iter().find(|(k, _, _)| *k == kind) else {
        return Err(DeviceError::Unknown { name: name.to_string(), known: known() });
    };
    let Some(index) = index else {
        return Err(DeviceError::Unknown { name: name.to_string(), known: known() });
    };
    if !compiled_in {
        return Err(DeviceError::NotCompiledIn { name: name.to_string(), feature });
    }
    // The CPU is found without querying the drivers.
    if let Some(info) = cpus().iter().find(|d| d.name == kind)
        && index == 0
    {
        return start(info, "as requested".to_string());
    }
    let devices = list();
    let wanted = format!("{kind}:{index}");
    match devices.iter().find(|d| d.name == wanted) {
        Some(info) => start(info, "as requested".to_string()),
        None => Err(not_present(name, &devices)),
    }
}

/// The device that `auto` selects, and the reason: a GPU if there is one (never a software renderer),
/// otherwise the CPU.
///
/// # Errors
/// If there is no device that this build can use.
pub fn best() -> Result<(DeviceInfo, String), DeviceError> {
    let devices = list();
    let rank = |info: &&DeviceInfo| match info.kind.as_str() {
        "gpu" => Some(0),
        "discrete gpu" => Some(1),
        "integrated gpu" => Some(2),
        "virtual gpu" => Some(3),
        _ => None,
    };
    if let Some(best) = devices.iter().filter(|d| rank(d).is_some()).min_by_key(|d| rank(d)) {
        return Ok((best.clone(), "the best GPU found".to_string()));
    }
    let reason = match devices.iter().find(|d| d.software) {
        None => "no GPU found".to_string(),
        Some(software) => format!("no GPU found ({} is a software adapter)", software.name),
    };
    match devices.iter().find(|d| d.kind == "cpu") {
        Some(cpu) => Ok((cpu.clone(), reason)),
        None => Err(not_present("auto", &devices)),
    }
}

fn not_present(name: &str, devices: &[DeviceInfo]) -> DeviceError {
    let present: Vec<_> = devices.iter().map(|d| d.name.as_str()).collect();
    DeviceError::NotPresent { name: name.to_string(), present: present.join(", ") }
}

/// Starts a device of the list.
#[allow(unreachable_code, unused_variables)] // in a build without devices
fn start(info: &DeviceInfo, reason: String) -> Result<Chosen, DeviceError> {
    let kind = info.name.split(':').next().unwrap_or_default();
    let device = match kind {
        #[cfg(feature = "flex")]
        "cpu" => Device::flex(),
        #[cfg(feature = "ndarray")]
        #[allow(deprecated)] // deprecated upstream, but still selectable by name
        "ndarray" => Device::ndarray(),
        #[cfg(feature = "cuda")]
        "cuda" => Device::new(burn_cuda::CudaDevice::new(index_of(&info.name))),
        #[cfg(feature = "rocm")]
        "rocm" => Device::rocm(index_of(&info.name)),
        #[cfg(all(feature = "wgpu", not(target_family = "wasm")))]
        _ => graphics::start(&info.name)?,
        #[cfg(not(all(feature = "wgpu", not(target_family = "wasm"))))]
        _ => unreachable!("`list` returns no other device"),
    };
    Ok(Chosen { device, info: info.clone(), reason })
}

/// The wgpu handles of a started device, for rendering on it; `None` for other kinds of device.
#[cfg(feature = "wgpu")]
pub fn graphics_setup(device: &Device) -> Option<burn_wgpu::WgpuSetup> {
    let device = device.clone().without_autodiff();
    #[cfg(not(target_family = "wasm"))]
    {
        graphics::setup(&device)
    }
    #[cfg(target_family = "wasm")]
    STARTED.with_borrow(|started| {
        let (_, setup) = started.as_ref().filter(|(chosen, _)| chosen.device == device)?;
        Some(setup.clone())
    })
}

/// The index after the colon in a device's name.
#[cfg(any(feature = "cuda", feature = "rocm", all(feature = "wgpu", not(target_family = "wasm"))))]
fn index_of(name: &str) -> usize {
    name.split_once(':').and_then(|(_, index)| index.parse().ok()).unwrap_or(0)
}

/// CUDA and ROCm devices.
#[cfg(any(feature = "cuda", feature = "rocm"))]
mod compute {
    use super::DeviceInfo;
    use burn::tensor::{Device, DeviceType};

    pub(super) fn list(kind: &str) -> Vec<DeviceInfo> {
        let (api, filter) = match kind {
            #[cfg(feature = "cuda")]
            "cuda" => ("CUDA", DeviceType::Cuda),
            #[cfg(feature = "rocm")]
            "rocm" => ("ROCm", DeviceType::Rocm),
            _ => return Vec::new(),
        };
        // A runtime without its driver may panic instead of returning an empty list.
        let devices = std::panic::catch_unwind(|| Device::enumerate(filter)).map(|d| d.len());
        (0..devices.unwrap_or(0))
            .map(|i| DeviceInfo {
                name: format!("{kind}:{i}"),
                description: format!("{api} device {i}"),
                api: api.to_string(),
                kind: "gpu".to_string(),
                software: false,
                memory_bytes: None,
            })
            .collect()
    }
}

/// The browser's device, if started.
#[cfg(all(feature = "wgpu", target_family = "wasm"))]
type InBrowser = std::cell::RefCell<Option<(Chosen, burn_wgpu::WgpuSetup)>>;

#[cfg(all(feature = "wgpu", target_family = "wasm"))]
thread_local! {
    static STARTED: InBrowser = const { std::cell::RefCell::new(None) };
}

/// Starts the browser's WebGPU device in a page or a worker; later calls share it.
///
/// Browsers do not allow blocking waits. Kernels and tensor operations are launched as on any other
/// device, but results must be read asynchronously (Burn's `into_data_async`, Grove's functions with
/// the suffix `_async`). Blocking reads such as [`read`] panic.
///
/// # Errors
/// If the browser has no WebGPU, or no adapter for it.
#[cfg(all(feature = "wgpu", target_family = "wasm"))]
pub async fn start_in_browser() -> Result<Chosen, DeviceError> {
    if let Some((started, _)) = STARTED.with_borrow(Clone::clone) {
        return Ok(started);
    }
    let failed = |e: burn_wgpu::WgpuInitError| DeviceError::Failed {
        name: "wgpu".to_string(),
        message: e.to_string(),
    };
    let (device, setup) = Device::wgpu_options().init_with_setup_async().await.map_err(failed)?;
    let about = setup.adapter.get_info();
    let software = about.device_type == wgpu::DeviceType::Cpu;
    let info = DeviceInfo {
        name: "wgpu:0".to_string(),
        // Browsers may hide the name, to prevent fingerprinting.
        description: if about.name.is_empty() { "a GPU".to_string() } else { about.name },
        api: "WebGPU".to_string(),
        kind: if software { "software gpu" } else { "gpu" }.to_string(),
        software,
        memory_bytes: None,
    };
    let chosen = Chosen { device, info, reason: "the browser's GPU".to_string() };
    STARTED.set(Some((chosen.clone(), setup)));
    Ok(chosen)
}
