//! The utilization of a GPU, as its driver reports it.

/// Utilization of a GPU, as far as it is known.
#[cfg_attr(not(feature = "kernels"), allow(dead_code, reason = "such a build has no GPU"))]
pub(super) enum GpuUtilization {
    /// The device is a CPU, whose utilization the process itself measures.
    NotAGpu,
    /// The driver does not report it.
    Unreported,
    /// The fraction of time in which the GPU was busy, 0 to 1.
    Fraction(f64),
}
