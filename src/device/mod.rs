//! Devices by name: `auto`, `cpu`, `wgpu:1`, `cuda:0`, ... to a Burn [`Device`], and what is there.

#[cfg(feature = "kernels")]
pub(crate) mod buffers;
#[cfg(all(feature = "wgpu", not(target_family = "wasm")))]
mod graphics;
mod transfers;
mod usage;

#[cfg(feature = "kernels")]
pub(crate) use transfers::read_while;
pub use transfers::{Transfers, count_upload, fetch, read, read_async, take_transfers, upload};
pub use usage::{give_back, load, memory, room};

use crate::config::Precision;
use burn::tensor::Device;
use serde::Serialize;
use std::fmt;
use usage::kib_of;

/// The kinds of device that a name can ask for, with the feature that compiles each in.
const KINDS: [(&str, &str, bool); 7] = [
    ("cpu", "flex", cfg!(feature = "flex")),
    ("ndarray", "ndarray", cfg!(feature = "ndarray")),
    ("wgpu", "wgpu", cfg!(feature = "wgpu")),
    ("vulkan", "vulkan", cfg!(feature = "vulkan")),
    ("metal", "metal", cfg!(feature = "metal")),
    ("cuda", "cuda", cfg!(feature = "cuda")),
    ("rocm", "rocm", cfg!(feature = "rocm")),
];

/// A device that this build can use on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// The name to ask for it by, for instance `wgpu:0`.
    pub name: String,
    /// What it is, in the words of its driver.
    pub description: String,
    /// The interface it is reached by, for instance `Vulkan`.
    pub api: String,
    /// What kind of device it is: `cpu`, `discrete gpu`, `integrated gpu`, `virtual gpu`,
    /// `software gpu`, `gpu`.
    pub kind: String,
    /// Whether it is a graphics processor played by the CPU.
    pub software: bool,
    /// Its memory in bytes, where that can be known.
    pub memory_bytes: Option<u64>,
}

/// A device that is ready, and why it was taken.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The device, without autodiff.
    pub device: Device,
    /// What it is.
    pub info: DeviceInfo,
    /// Why it was taken, in half a sentence.
    pub reason: String,
}

/// Why a device cannot be had.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DeviceError {
    /// No such kind.
    #[error("unknown device `{name}`; there are: auto, {known}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The kinds there are.
        known: String,
    },
    /// A kind that this build lacks.
    #[error(
        "the device `{name}` is not in this build; build with `--features {feature}` to have it"
    )]
    NotCompiledIn {
        /// The name asked for.
        name: String,
        /// The feature that adds it.
        feature: &'static str,
    },
    /// A kind that this build has, but the machine has not.
    #[error("there is no device `{name}` on this machine; there are: {present}")]
    NotPresent {
        /// The name asked for.
        name: String,
        /// The devices present.
        present: String,
    },
    /// A device that is there but does not start.
    #[error("the device `{name}` does not start: {message}")]
    Failed {
        /// The name asked for.
        name: String,
        /// What its runtime says.
        message: String,
    },
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.name, self.description, self.api)
    }
}

/// Whether our own kernels run on a device: on those of CubeCL they do.
#[cfg(feature = "kernels")]
pub fn has_kernels(device: &Device) -> bool {
    use burn::backend::DispatchDevice;
    matches!(device.clone().without_autodiff().as_dispatch(), DispatchDevice::Cube(_))
}

/// Whether our own kernels run on a device; in this build they run on none.
#[cfg(not(feature = "kernels"))]
pub fn has_kernels(_device: &Device) -> bool {
    false
}

/// Whether the fused kernels can compute with this precision on a device.
#[cfg(feature = "kernels")]
pub fn has_precision(device: &Device, precision: Precision) -> bool {
    let device = device.clone().without_autodiff();
    has_kernels(&device)
        && buffers::probe(&device).client.properties().supports_type(buffers::element(precision))
}

/// Whether the fused kernels can compute with this precision; in this build there are none.
#[cfg(not(feature = "kernels"))]
pub fn has_precision(_device: &Device, _precision: Precision) -> bool {
    false
}

/// Why a device, or the CPU if there is none, cannot compute products with this precision, in words.
pub fn precision_obstacle(device: Option<&Device>, precision: Precision) -> Option<String> {
    match device.filter(|device| has_kernels(device)) {
        _ if precision == Precision::F32 => None,
        None => Some("the CPU computes with f32 only".to_string()),
        Some(device) => (!has_precision(device, precision))
            .then(|| format!("the device does not have {precision}")),
    }
}

/// What decides how a device rounds, in words: two of which this is the same compute the same bytes.
pub fn arithmetic(info: &DeviceInfo) -> String {
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

/// All devices that this build can use on this machine, the CPU first. Asks every driver.
pub fn list() -> Vec<DeviceInfo> {
    #[allow(unused_mut)] // in a build for the CPU alone
    let mut devices = processors();
    #[cfg(feature = "cuda")]
    devices.extend(compute::list("cuda"));
    #[cfg(feature = "rocm")]
    devices.extend(compute::list("rocm"));
    #[cfg(all(feature = "wgpu", not(target_family = "wasm")))]
    devices.extend(graphics::list());
    devices
}

/// The CPU, by the names of Burn's backends for it.
fn processors() -> Vec<DeviceInfo> {
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
                memory_bytes: kib_of("/proc/meminfo", "MemTotal:"),
            });
        }
    }
    devices
}

/// The device of this name; `auto` is [`best`].
///
/// A graphics device can be started once in a process; later calls with the same name share it.
///
/// # Errors
/// A name that is unknown, not compiled in, not on this machine, or a device that does not start.
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
    // The CPU needs no driver to be asked.
    if let Some(info) = processors().iter().find(|d| d.name == kind)
        && index == 0
    {
        return start(info, "asked for by name".to_string());
    }
    let devices = list();
    let wanted = format!("{kind}:{index}");
    match devices.iter().find(|d| d.name == wanted) {
        Some(info) => start(info, "asked for by name".to_string()),
        None => Err(not_present(name, &devices)),
    }
}

/// What `auto` takes, and why: a real GPU where there is one, never one that the CPU plays, and else
/// the CPU.
///
/// # Errors
/// If this build has no device at all.
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
        return Ok((best.clone(), "the best real GPU here".to_string()));
    }
    let reason = match devices.iter().find(|d| d.software) {
        None => "no GPU here".to_string(),
        Some(software) => {
            format!("no real GPU here: {} is played by the CPU and slower than it", software.name)
        }
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

#[allow(unreachable_code, unused_variables)] // in a build without devices
fn start(info: &DeviceInfo, reason: String) -> Result<Chosen, DeviceError> {
    let kind = info.name.split(':').next().unwrap_or_default();
    let device = match kind {
        #[cfg(feature = "flex")]
        "cpu" => Device::flex(),
        #[cfg(feature = "ndarray")]
        #[allow(deprecated)] // deprecated upstream, and still asked for by name
        "ndarray" => Device::ndarray(),
        #[cfg(feature = "cuda")]
        "cuda" => Device::new(burn_cuda::CudaDevice::new(index_of(&info.name))),
        #[cfg(feature = "rocm")]
        "rocm" => Device::rocm(index_of(&info.name)),
        #[cfg(all(feature = "wgpu", not(target_family = "wasm")))]
        _ => graphics::start(&info.name)?,
        #[cfg(not(all(feature = "wgpu", not(target_family = "wasm"))))]
        _ => unreachable!("`list` names no other device"),
    };
    Ok(Chosen { device, info: info.clone(), reason })
}

/// The handles of a wgpu device that was started here, to draw on it; `None` for devices of other kinds.
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

/// The number behind the colon of a device's name.
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
        // Without its driver a runtime may panic instead of listing nothing.
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

/// The browser's device, once it is started.
#[cfg(all(feature = "wgpu", target_family = "wasm"))]
type InBrowser = std::cell::RefCell<Option<(Chosen, burn_wgpu::WgpuSetup)>>;

#[cfg(all(feature = "wgpu", target_family = "wasm"))]
thread_local! {
    static STARTED: InBrowser = const { std::cell::RefCell::new(None) };
}

/// Starts the browser's WebGPU device, in a page or a worker; later calls share it.
///
/// A page cannot wait for a device: after this, kernels and tensor operations are called as on any
/// other, but numbers come back through asynchronous reads alone (Burn's `into_data_async`, our
/// functions whose names end in `_async`). What reads and waits, as [`read`] does, panics there.
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
        // Browsers leave out names by which their users could be told apart.
        description: if about.name.is_empty() { "a GPU".to_string() } else { about.name },
        api: "WebGPU".to_string(),
        kind: if software { "software gpu" } else { "gpu" }.to_string(),
        software,
        memory_bytes: None,
    };
    let chosen = Chosen { device, info, reason: "the browser's".to_string() };
    STARTED.set(Some((chosen.clone(), setup)));
    Ok(chosen)
}
