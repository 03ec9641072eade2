//! Device selection by name (`auto`, `cpu`, `wgpu:1`, `cuda:0`, ...), transfers and usage statistics.

mod backends;
#[cfg(feature = "kernels")]
pub(crate) mod buffers;
mod cgroup_memory;
#[cfg(feature = "wgpu")]
#[cfg_attr(target_family = "wasm", path = "browser.rs")]
mod graphics;
#[cfg_attr(not(any(target_os = "linux", target_family = "wasm")), path = "host_sysinfo.rs")]
mod host;
#[cfg_attr(not(feature = "kernels"), path = "kernels_stub.rs")]
mod kernels;
mod limits;
mod transfers;
mod usage;

#[cfg(feature = "wgpu")]
pub use graphics::*;
#[cfg(feature = "kernels")]
pub(crate) use kernels::items_per_launch;
pub use kernels::{has_kernels, has_precision, max_addressable_bytes};
pub use limits::{check_buffer_fits, check_workgroup_memory};
#[cfg(feature = "kernels")]
pub(crate) use transfers::read_while;
pub(crate) use transfers::upload_indices;
pub use transfers::{TransferCount, Transfers, count_upload, read, read_async, upload};
pub use usage::{
    data_budget_bytes, measure_memory, measure_utilization, release_freed_memory,
    total_memory_bytes,
};

use crate::schema::names;
use crate::settings::Precision;
use backends::{BACKEND_FEATURES, BACKENDS};
use burn::tensor::Device;
use serde::Serialize;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

names! {
    /// Kind of a device.
    pub enum DeviceKind {
        /// The processor.
        Cpu = "cpu",
        /// A GPU with memory of its own.
        DiscreteGpu = "discrete gpu",
        /// A GPU that shares the processor's memory.
        IntegratedGpu = "integrated gpu",
        /// A GPU of a virtual machine.
        VirtualGpu = "virtual gpu",
        /// A renderer that runs on the processor.
        SoftwareGpu = "software gpu",
        /// A GPU of which the API does not tell more.
        Gpu = "gpu",
    }
}

/// A device that this build supports and that is present on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// The name by which it can be selected, for instance `wgpu:0`.
    pub name: String,
    /// The driver's description of the device.
    pub description: String,
    /// The API through which it is used, for instance `Vulkan`.
    pub api: String,
    pub kind: DeviceKind,
    /// Whether it is a software renderer that runs on the CPU.
    #[serde(rename = "software")]
    pub is_software: bool,
    /// Size of its memory, bytes, if known.
    pub memory_bytes: Option<u64>,
    /// The driver and its version, as it names itself, if known.
    pub driver: Option<String>,
}

/// A started device, with the reason for choosing it.
#[derive(Clone, Debug)]
pub struct ChosenDevice {
    /// The device, without autodiff.
    pub device: Device,
    /// Description of the device.
    pub info: DeviceInfo,
    /// The reason for the choice, as a short phrase; `None` if the device was requested by name.
    pub reason: Option<String>,
}

impl ChosenDevice {
    /// The device of a language model's tensors; `None` for `cpu`, where it is trained without tensors. `ndarray`,
    /// which is the CPU, too, has tensors.
    pub fn language_device(&self) -> Option<Device> {
        (self.info.name != "cpu").then(|| self.device.clone())
    }
}

/// The reason a device is not available.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DeviceError {
    /// There is no such backend.
    #[error("unknown device `{name}`; must be one of: auto, {known}")]
    Unknown { name: String, known: String },
    /// The backend's name is followed by something other than an index.
    #[error("the number in `{name}` must be a whole number from 0, as in `{backend}:0`")]
    InvalidIndex { name: String, backend: &'static str },
    /// The backend is not enabled in this build.
    #[error("device `{name}` is not included in this build; rebuild with `--features {feature}`")]
    NotCompiledIn { name: String, feature: &'static str },
    /// The machine has no such device.
    #[error("no device `{name}` on this machine; available: {present}")]
    NotPresent { name: String, present: String },
    /// The device is present but fails to start.
    #[error("device `{name}` failed to start: {message}; `grove devices` lists the others")]
    Failed { name: String, message: String },
}

impl DeviceInfo {
    /// Whether the device is the CPU, by any backend.
    pub fn is_cpu(&self) -> bool {
        self.kind == DeviceKind::Cpu
    }
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.name, self.description, self.api)
    }
}

/// Checks that a device, or the CPU if `None`, supports matrix products in a precision.
///
/// # Errors
/// If it does not, with a reason.
pub fn check_precision(device: Option<&Device>, precision: Precision) -> Result<(), String> {
    if precision == Precision::F32 {
        return Ok(());
    }
    match device.filter(|device| has_kernels(device)) {
        None => {
            Err("the CPU supports f32, and bf16 for built-in networks and language models".into())
        }
        Some(device) if has_precision(device, precision) => Ok(()),
        Some(_) => Err(format!("the device does not support {precision}")),
    }
}

/// A fingerprint of a device's numerics. Devices with equal fingerprints give bit-identical results; CPUs do so in f32
/// only, since bf16 products also depend on the instructions used.
pub fn numerics_fingerprint(info: &DeviceInfo) -> String {
    if !info.is_cpu() {
        let driver = info.driver.as_deref().unwrap_or_default();
        return format!("{}, {}, {driver}", info.description, info.api);
    }
    #[cfg(target_arch = "x86_64")]
    let features = [
        ("avx512", is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
    ];
    #[cfg(not(target_arch = "x86_64"))]
    let features: [(&str, bool); 0] = [];
    let features = features.iter().filter(|(_, is_present)| *is_present).map(|(name, _)| *name);
    format!("{} {} {}", info.api, std::env::consts::ARCH, features.collect::<Vec<_>>().join(" "))
}

/// Whether CUDA graphs are off, since several threads of this process train on a device each.
static FORBIDS_GRAPHS: AtomicBool = AtomicBool::new(false);

/// Forbids recording token steps as graphs, since several threads of this process train on a device each: CUDA lets no
/// thread allocate memory while another records. Call it before the threads start.
pub fn forbid_graph_recording() {
    FORBIDS_GRAPHS.store(true, Ordering::Relaxed);
}

/// Whether launches may be recorded as a graph.
#[cfg(text_kernels)]
pub(crate) fn may_record_graphs() -> bool {
    !FORBIDS_GRAPHS.load(Ordering::Relaxed)
}

/// Lists all devices that this build can use on this machine, the CPU first. Queries every driver.
pub fn list() -> Vec<DeviceInfo> {
    BACKENDS.iter().flat_map(|backend| (backend.list)(backend.name)).collect()
}

/// Starts the device called `name`; `auto` stands for [`find_best`]'s choice.
///
/// A wgpu device is started once per process; later calls with the same name share it.
///
/// # Errors
/// If the name is unknown, not compiled in or not on this machine, its index is not a number, or it fails to start.
pub fn start(name: &str) -> Result<ChosenDevice, DeviceError> {
    if name == "auto" {
        let (info, reason) = find_best()?;
        return start_listed(&info, Some(reason));
    }
    let (backend_name, index) = name.split_once(':').unwrap_or((name, "0"));
    let Some((backend_name, feature)) =
        BACKEND_FEATURES.into_iter().find(|(known, _)| *known == backend_name)
    else {
        let known: Vec<&str> = BACKENDS.iter().map(|backend| backend.name).collect();
        return Err(DeviceError::Unknown { name: name.to_string(), known: known.join(", ") });
    };
    if index.is_empty() || !index.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(DeviceError::InvalidIndex { name: name.to_string(), backend: backend_name });
    }
    // No machine has as many devices as a number that is too large for its type.
    let index = index.parse().unwrap_or(usize::MAX);
    let Some(backend) = BACKENDS.iter().find(|backend| backend.name == backend_name) else {
        return Err(DeviceError::NotCompiledIn { name: name.to_string(), feature });
    };
    // Other drivers are not queried.
    match (backend.list)(backend.name).get(index) {
        Some(info) => start_listed(info, None),
        None => Err(not_present_error(name, &list())),
    }
}

/// Finds the device that `auto` selects, and the reason: a GPU if there is one (never a software renderer),
/// otherwise the CPU.
///
/// # Errors
/// If there is no device that this build can use.
pub fn find_best() -> Result<(DeviceInfo, String), DeviceError> {
    let devices = list();
    let preference = |info: &&DeviceInfo| match info.kind {
        #[cfg(feature = "cuda")]
        _ if info.api == "CUDA" && !backends::has_libdevice() => None,
        DeviceKind::Gpu => Some(0),
        DeviceKind::DiscreteGpu => Some(1),
        DeviceKind::IntegratedGpu => Some(2),
        DeviceKind::VirtualGpu => Some(3),
        DeviceKind::Cpu | DeviceKind::SoftwareGpu => None,
    };
    if let Some(best) =
        devices.iter().filter(|d| preference(d).is_some()).min_by_key(|d| preference(d))
    {
        let reason = if may_be_slow(best) {
            "the best GPU found; a game's run takes the CPU where that is faster"
        } else {
            "the best GPU found"
        };
        return Ok((best.clone(), reason.to_string()));
    }
    let unusable = devices.iter().find_map(|info| match info.api.as_str() {
        "CUDA" => Some(format!("{} lacks the CUDA toolkit", info.name)),
        _ => info.is_software.then(|| format!("{} is a software adapter", info.name)),
    });
    let reason = match unusable {
        Some(reason) => format!("no usable GPU found ({reason})"),
        None => "no GPU found".to_string(),
    };
    match devices.iter().find(|info| info.is_cpu()) {
        Some(cpu) => Ok((cpu.clone(), reason)),
        None => Err(not_present_error("auto", &devices)),
    }
}

/// Selects the faster of the GPU that `auto` has chosen for a run and the CPU. `rehearse` returns the seconds that a
/// rehearsal takes on a device, `None` if the run is impossible there. A discrete GPU is taken without comparison.
///
/// # Errors
/// If `rehearse` fails.
pub fn choose_faster<E>(
    gpu: ChosenDevice,
    mut rehearse: impl FnMut(&ChosenDevice) -> Result<Option<f64>, E>,
) -> Result<ChosenDevice, E> {
    if !may_be_slow(&gpu.info) {
        return Ok(gpu);
    }
    let Ok(mut cpu) = start("cpu") else { return Ok(gpu) };
    let [gpu_seconds, cpu_seconds] =
        [rehearse(&gpu)?, rehearse(&cpu)?].map(|seconds| seconds.unwrap_or(f64::INFINITY));
    if gpu_seconds <= cpu_seconds {
        return Ok(gpu);
    }
    let DeviceInfo { name, description, .. } = &gpu.info;
    cpu.reason = Some(format!("faster for this run than {name}, {description}"));
    Ok(cpu)
}

/// Whether a GPU is integrated or virtual, so that the CPU may be faster.
fn may_be_slow(info: &DeviceInfo) -> bool {
    matches!(info.kind, DeviceKind::IntegratedGpu | DeviceKind::VirtualGpu)
}

fn not_present_error(name: &str, devices: &[DeviceInfo]) -> DeviceError {
    let present: Vec<_> = devices.iter().map(|d| d.name.as_str()).collect();
    DeviceError::NotPresent { name: name.to_string(), present: present.join(", ") }
}

/// Starts a device of the list.
fn start_listed(info: &DeviceInfo, reason: Option<String>) -> Result<ChosenDevice, DeviceError> {
    let (name, index) = info.name.split_once(':').unwrap_or((&info.name, "0"));
    let backend = BACKENDS.iter().find(|backend| backend.name == name);
    let backend = backend.expect("a listed device has a backend");
    let device = (backend.start)(name, index.parse().expect("the name of a listed device"))?;
    Ok(ChosenDevice { info: add_driver_name(info, &device), device, reason })
}

/// Completes a description by the driver's name for the device and its memory. CUDA and ROCm report these only for a
/// started device, so this starts the device; if it fails to start, the description stays as listed.
pub fn complete_description(info: DeviceInfo) -> DeviceInfo {
    match info.kind {
        DeviceKind::Gpu => start_listed(&info, None).map_or(info, |chosen| chosen.info),
        _ => info,
    }
}

/// Completes the description of a started device by the name that its driver reports.
fn add_driver_name(info: &DeviceInfo, device: &Device) -> DeviceInfo {
    match kernels::driver_identity(device) {
        Some((description, memory_bytes)) if info.kind == DeviceKind::Gpu => {
            DeviceInfo { description, memory_bytes, ..info.clone() }
        }
        _ => info.clone(),
    }
}

/// The adapters of this machine, for tests: without one, a line says so, or the test fails with
/// `GROVE_REQUIRE_ADAPTER=1`. Mesa's lavapipe (llvmpipe), which crashes on some of Burn's kernels, counts only where an
/// adapter is required.
#[cfg(all(test, feature = "kernels"))]
pub(crate) fn adapters() -> Vec<Device> {
    use std::io::Write;
    let required = std::env::var("GROVE_REQUIRE_ADAPTER").as_deref() == Ok("1");
    let is_wanted =
        |info: &DeviceInfo| !info.is_cpu() && (required || !info.description.contains("llvmpipe"));
    let found: Vec<_> = list().into_iter().filter(is_wanted).collect();
    assert!(!required || !found.is_empty(), "GROVE_REQUIRE_ADAPTER is 1, but there is no adapter");
    if found.is_empty() {
        // Not by `eprintln!`, whose output a test that passes captures.
        let test = std::thread::current().name().unwrap_or("a test").to_string();
        let _ = writeln!(std::io::stderr(), "no adapter: {test} did nothing on one");
    }
    found.iter().map(|info| start(&info.name).expect("a listed adapter starts").device).collect()
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    /// Chooses between a GPU of this kind and the CPU, which take these seconds, and returns the name.
    fn choose_by_seconds(kind: DeviceKind, seconds: [Option<f64>; 2]) -> String {
        let mut gpu = start("cpu").unwrap();
        gpu.info = DeviceInfo { name: "wgpu:0".into(), kind, ..gpu.info };
        let rehearse = |chosen: &ChosenDevice| match chosen.info.name.as_str() {
            "cpu" => Ok(seconds[1]),
            _ => Ok::<_, ()>(seconds[0]),
        };
        choose_faster(gpu, rehearse).unwrap().info.name
    }

    #[test]
    fn a_gpu_in_the_processor_is_taken_if_it_is_faster_and_a_card_always() {
        assert_eq!(choose_by_seconds(DeviceKind::IntegratedGpu, [Some(1.0), Some(2.0)]), "wgpu:0");
        assert_eq!(choose_by_seconds(DeviceKind::IntegratedGpu, [Some(2.0), Some(1.0)]), "cpu");
        assert_eq!(choose_by_seconds(DeviceKind::IntegratedGpu, [None, Some(1.0)]), "cpu");
        assert_eq!(choose_by_seconds(DeviceKind::IntegratedGpu, [Some(2.0), None]), "wgpu:0");
        assert_eq!(choose_by_seconds(DeviceKind::VirtualGpu, [Some(2.0), Some(1.0)]), "cpu");
        assert_eq!(choose_by_seconds(DeviceKind::DiscreteGpu, [Some(2.0), Some(1.0)]), "wgpu:0");
    }

    #[test]
    fn an_invalid_name_is_rejected_with_the_reason() {
        let error = |name: &str| start(name).unwrap_err().to_string();
        for name in ["cpu:", "cpu:x", "cpu:-1", "cpu:+0", "cpu:0:0"] {
            let expected =
                format!("the number in `{name}` must be a whole number from 0, as in `cpu:0`");
            assert_eq!(error(name), expected);
        }
        let large = "cpu:99999999999999999999";
        assert!(error(large).starts_with(&format!("no device `{large}` on this machine")));
        let unknown = error("gpu:x");
        assert!(unknown.starts_with("unknown device `gpu:x`; must be one of: auto, cpu"));
        assert_eq!(unknown.contains("cuda"), cfg!(feature = "cuda"), "{unknown}");
    }

    #[test]
    fn devices_with_other_drivers_have_other_numerics() {
        let fingerprint = |kind: DeviceKind, driver: Option<&str>| {
            let info = start("cpu").unwrap().info;
            let driver = driver.map(str::to_string);
            numerics_fingerprint(&DeviceInfo { kind, driver, ..info })
        };
        let all = [None, Some("NVIDIA 580.1"), Some("NVIDIA 580.2")];
        let [none, one, other] = all.map(|driver| fingerprint(DeviceKind::DiscreteGpu, driver));
        assert!(none != one && one != other);
        assert_eq!(
            fingerprint(DeviceKind::Cpu, None),
            numerics_fingerprint(&start("cpu").unwrap().info)
        );
    }

    #[test]
    fn an_error_of_the_rehearsal_is_returned() {
        let mut gpu = start("cpu").unwrap();
        gpu.info.kind = DeviceKind::IntegratedGpu;
        assert_eq!(choose_faster(gpu, |_| Err("no memory")).unwrap_err(), "no memory");
    }
}
