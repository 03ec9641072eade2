//! GPUs that are reached through wgpu, outside browsers.

use super::{DeviceError, DeviceInfo, DeviceKind};
use burn::tensor::{Device, DeviceKind as BurnKind};
use burn_wgpu::{WgpuBackend, WgpuSetup};
use std::collections::HashMap;
use std::sync::Mutex;
use wgpu::{
    Adapter, AdapterInfo, Backend, Backends, DeviceDescriptor, DeviceType, Features, Instance,
    InstanceDescriptor, MemoryHints, RequestDeviceError,
};

/// An adapter, and the address by which Burn can select it, if there is one.
struct Candidate {
    info: DeviceInfo,
    address: Option<(BurnKind, WgpuBackend)>,
    adapter: Adapter,
    instance: Instance,
}

/// Lists the adapters of a backend: `wgpu` has all, the others have those of one graphics API.
fn list_candidates(backend: &str) -> Vec<Candidate> {
    let only_api = match backend {
        "vulkan" => Some(Backend::Vulkan),
        "metal" => Some(Backend::Metal),
        _ => None,
    };
    let instance = Instance::new(InstanceDescriptor {
        backends: Backends::PRIMARY,
        ..InstanceDescriptor::new_without_display_handle()
    });
    let mut found = Vec::new();
    let mut counts: HashMap<(Backend, DeviceType), usize> = HashMap::new();
    for adapter in pollster::block_on(instance.enumerate_adapters(Backends::PRIMARY)) {
        let adapter_info = adapter.get_info();
        let Some(api) = burn_api(adapter_info.backend) else { continue };
        if only_api.is_some_and(|api| api != adapter_info.backend) {
            continue;
        }
        let count = counts.entry((adapter_info.backend, adapter_info.device_type)).or_default();
        let Some((address, kind)) = burn_address(adapter_info.device_type, *count) else {
            continue;
        };
        *count += 1;
        found.push(Candidate {
            info: DeviceInfo {
                name: format!("{backend}:{}", found.len()),
                description: adapter_info.name.clone(),
                api: format!("{:?}", adapter_info.backend),
                kind,
                is_software: adapter_info.device_type == DeviceType::Cpu,
                memory_bytes: memory_bytes(&adapter),
                driver: describe_driver(&adapter_info),
            },
            address: address.map(|address| (address, api)),
            adapter,
            instance: instance.clone(),
        });
    }
    found
}

/// Burn's name of a graphics API; `None` if Grove does not use it.
fn burn_api(backend: Backend) -> Option<WgpuBackend> {
    match backend {
        Backend::Vulkan => Some(WgpuBackend::Vulkan),
        Backend::Metal => Some(WgpuBackend::Metal),
        Backend::Dx12 => Some(WgpuBackend::Dx12),
        _ => None,
    }
}

/// Burn's address of the adapter with this index among those of its type and API, if there is one, and its kind;
/// `None` if Grove does not use the type.
fn burn_address(device_type: DeviceType, index: usize) -> Option<(Option<BurnKind>, DeviceKind)> {
    Some(match device_type {
        DeviceType::DiscreteGpu => (Some(BurnKind::DiscreteGpu(index)), DeviceKind::DiscreteGpu),
        DeviceType::IntegratedGpu => {
            (Some(BurnKind::IntegratedGpu(index)), DeviceKind::IntegratedGpu)
        }
        DeviceType::VirtualGpu => (Some(BurnKind::VirtualGpu(index)), DeviceKind::VirtualGpu),
        // Burn addresses the first adapter of the CPU only.
        DeviceType::Cpu => ((index == 0).then_some(BurnKind::Cpu), DeviceKind::SoftwareGpu),
        DeviceType::Other => return None,
    })
}

/// The driver and its version, as far as the API reports them.
fn describe_driver(adapter_info: &AdapterInfo) -> Option<String> {
    let text = format!("{} {}", adapter_info.driver, adapter_info.driver_info).trim().to_string();
    (!text.is_empty()).then_some(text)
}

/// Lists the devices of a backend.
pub(super) fn list(backend: &str) -> Vec<DeviceInfo> {
    list_candidates(backend).into_iter().map(|candidate| candidate.info).collect()
}

/// A device started by this process.
struct StartedDevice {
    name: String,
    address: Option<(BurnKind, WgpuBackend)>,
    device: Device,
    setup: WgpuSetup,
}

static STARTED: Mutex<Vec<StartedDevice>> = Mutex::new(Vec::new());

/// The wgpu handles of a started device, for rendering on it; `None` for other kinds of device.
pub fn graphics_setup(device: &Device) -> Option<WgpuSetup> {
    let device = device.clone().without_autodiff();
    let started = STARTED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    started.iter().find(|s| s.device == device).map(|s| s.setup.clone())
}

/// Starts a device on an adapter, or returns the one that this process has already started.
pub(super) fn start(backend: &str, index: usize) -> Result<Device, DeviceError> {
    let name = format!("{backend}:{index}");
    let mut started = STARTED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(started) = started.iter().find(|s| s.name == name) {
        return Ok(started.device.clone());
    }
    let failed = |message: String| DeviceError::Failed { name: name.clone(), message };
    let candidate = list_candidates(backend).into_iter().nth(index);
    let candidate = candidate.ok_or_else(|| failed("it has been removed".to_string()))?;
    let address = candidate.address.clone();
    // Under another name, as `wgpu:0` is `vulkan:0`: Burn refuses to start an adapter twice.
    if let Some(started) = started.iter().find(|s| address.is_some() && s.address == address) {
        return Ok(started.device.clone());
    }
    let options = Device::wgpu_options();
    let (device, setup) = match address.clone() {
        Some((kind, api)) => options
            .device_kind(kind)
            .graphics_api(api)
            .init_with_setup()
            .map_err(|e| failed(e.to_string()))?,
        None => {
            let setup = open_adapter(candidate).map_err(|e| failed(e.to_string()))?;
            let device = options.setup(setup.clone()).init().map_err(|e| failed(e.to_string()))?;
            (device, setup)
        }
    };
    started.push(StartedDevice { name, address, device: device.clone(), setup });
    Ok(device)
}

/// Opens an adapter that Burn cannot address, with the options that Burn uses for the others.
fn open_adapter(candidate: Candidate) -> Result<WgpuSetup, RequestDeviceError> {
    let Candidate { adapter, instance, .. } = candidate;
    let descriptor = DeviceDescriptor {
        required_features: adapter.features()
            - (Features::MAPPABLE_PRIMARY_BUFFERS | Features::all_experimental_mask()),
        required_limits: adapter.limits(),
        memory_hints: MemoryHints::MemoryUsage,
        ..DeviceDescriptor::default()
    };
    let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))?;
    let backend = adapter.get_info().backend;
    Ok(WgpuSetup { instance, adapter, device, queue, backend })
}

/// Size of the adapter's largest heap of memory of its own, bytes, as reported by Vulkan. A graphics card also has
/// heaps in the machine's memory, which may be larger.
fn memory_bytes(adapter: &Adapter) -> Option<u64> {
    #[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
    {
        /// `VK_MEMORY_HEAP_DEVICE_LOCAL_BIT`.
        const DEVICE_LOCAL: u32 = 1;
        // SAFETY: the handles are only read, while the adapter is alive.
        unsafe {
            let hal = adapter.as_hal::<wgpu::hal::api::Vulkan>()?;
            let instance = hal.shared_instance().raw_instance();
            let properties =
                instance.get_physical_device_memory_properties(hal.raw_physical_device());
            let heaps = properties.memory_heaps_as_slice().iter();
            let own = heaps.filter(|heap| heap.flags.as_raw() & DEVICE_LOCAL != 0);
            own.map(|heap| heap.size).max()
        }
    }
    #[cfg(not(any(target_os = "linux", target_os = "windows", target_os = "android")))]
    {
        let _ = adapter;
        None
    }
}
