//! GPUs that are reached through wgpu, outside browsers.

use super::{DeviceError, DeviceInfo, index_of};
use burn::tensor::{Device, DeviceKind};
use burn_wgpu::{WgpuBackend, WgpuSetup};
use std::collections::HashMap;
use std::sync::Mutex;
use wgpu::{
    Adapter, Backend, Backends, DeviceDescriptor, DeviceType, Features, Instance,
    InstanceDescriptor, MemoryHints, RequestDeviceError,
};

/// An adapter, and the address by which Burn can select it, if there is one.
struct Candidate {
    info: DeviceInfo,
    kind: Option<DeviceKind>,
    api: WgpuBackend,
    adapter: Adapter,
    instance: Instance,
}

/// Device names with the graphics API they are restricted to, and whether they are compiled in.
const NAMES: [(&str, Option<Backend>, bool); 3] = [
    ("wgpu", None, true),
    ("vulkan", Some(Backend::Vulkan), cfg!(feature = "vulkan")),
    ("metal", Some(Backend::Metal), cfg!(feature = "metal")),
];

fn candidates() -> Vec<Candidate> {
    let instance = Instance::new(InstanceDescriptor {
        backends: Backends::PRIMARY,
        ..InstanceDescriptor::new_without_display_handle()
    });
    let adapters = pollster::block_on(instance.enumerate_adapters(Backends::PRIMARY));
    let mut found = Vec::new();
    for (name, only, compiled_in) in NAMES {
        if !compiled_in {
            continue;
        }
        let mut numbers: HashMap<(Backend, DeviceType), usize> = HashMap::new();
        let mut index = 0;
        for adapter in &adapters {
            let about = adapter.get_info();
            let api = match about.backend {
                Backend::Vulkan => WgpuBackend::Vulkan,
                Backend::Metal => WgpuBackend::Metal,
                Backend::Dx12 => WgpuBackend::Dx12,
                _ => continue,
            };
            if only.is_some_and(|only| only != about.backend) {
                continue;
            }
            let number = numbers.entry((about.backend, about.device_type)).or_default();
            let (kind, words) = match about.device_type {
                DeviceType::DiscreteGpu => (Some(DeviceKind::DiscreteGpu(*number)), "discrete gpu"),
                DeviceType::IntegratedGpu => {
                    (Some(DeviceKind::IntegratedGpu(*number)), "integrated gpu")
                }
                DeviceType::VirtualGpu => (Some(DeviceKind::VirtualGpu(*number)), "virtual gpu"),
                // Burn addresses the first adapter of the CPU only.
                DeviceType::Cpu => ((*number == 0).then_some(DeviceKind::Cpu), "software gpu"),
                DeviceType::Other => continue,
            };
            *number += 1;
            found.push(Candidate {
                info: DeviceInfo {
                    name: format!("{name}:{index}"),
                    description: about.name.clone(),
                    api: format!("{:?}", about.backend),
                    kind: words.to_string(),
                    software: about.device_type == DeviceType::Cpu,
                    memory_bytes: memory(adapter),
                },
                kind,
                api,
                adapter: adapter.clone(),
                instance: instance.clone(),
            });
            index += 1;
        }
    }
    found
}

pub(super) fn list() -> Vec<DeviceInfo> {
    candidates().into_iter().map(|candidate| candidate.info).collect()
}

/// A device started by this process.
struct Started {
    name: String,
    device: Device,
    setup: WgpuSetup,
}

static STARTED: Mutex<Vec<Started>> = Mutex::new(Vec::new());

/// The wgpu handles of a device started by this process.
pub(super) fn setup(device: &Device) -> Option<WgpuSetup> {
    let started = STARTED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    started.iter().find(|s| s.device == *device).map(|s| s.setup.clone())
}

/// Starts a device on an adapter, or returns the one that this process has already started.
pub(super) fn start(name: &str) -> Result<Device, DeviceError> {
    let mut started = STARTED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(started) = started.iter().find(|s| s.name == name) {
        return Ok(started.device.clone());
    }
    let failed = |message: String| DeviceError::Failed { name: name.to_string(), message };
    let kind = name.split(':').next().unwrap_or_default();
    let candidate = candidates()
        .into_iter()
        .filter(|candidate| candidate.info.name.split(':').next() == Some(kind))
        .nth(index_of(name))
        .ok_or_else(|| failed("it has been removed".to_string()))?;
    let options = Device::wgpu_options();
    let (device, setup) = match candidate.kind {
        Some(kind) => options
            .device_kind(kind)
            .graphics_api(candidate.api)
            .init_with_setup()
            .map_err(|e| failed(e.to_string()))?,
        None => {
            let setup = open(candidate).map_err(|e| failed(e.to_string()))?;
            let device = options.setup(setup.clone()).init().map_err(|e| failed(e.to_string()))?;
            (device, setup)
        }
    };
    started.push(Started { name: name.to_string(), device: device.clone(), setup });
    Ok(device)
}

/// Opens an adapter that Burn cannot address, with the options that Burn uses for the others.
fn open(candidate: Candidate) -> Result<WgpuSetup, RequestDeviceError> {
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

/// Size of the adapter's largest memory heap, bytes, as reported by Vulkan.
fn memory(adapter: &Adapter) -> Option<u64> {
    #[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
    {
        // SAFETY: the handles are only read, while the adapter is alive.
        unsafe {
            let hal = adapter.as_hal::<wgpu::hal::api::Vulkan>()?;
            let instance = hal.shared_instance().raw_instance();
            let properties =
                instance.get_physical_device_memory_properties(hal.raw_physical_device());
            properties.memory_heaps_as_slice().iter().map(|heap| heap.size).max()
        }
    }
    #[cfg(not(any(target_os = "linux", target_os = "windows", target_os = "android")))]
    {
        let _ = adapter;
        None
    }
}
