//! Elementary functions: vectorizable code natively, device intrinsics in kernels.

use burn::cubecl;
use burn::cubecl::prelude::*;

/// Computes `a * b + c`, fused if the target has the instruction. Elsewhere `f32::mul_add` would be
/// a slow library call.
#[inline(always)]
pub(crate) fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

/// `max(x, floor)`, except that NaN is preserved; it also takes one comparison fewer than
/// `f32::max`.
#[cube]
#[inline(always)]
pub fn at_least(floor: f32, x: f32) -> f32 {
    select(x < floor, floor, x)
}

/// `min(x, ceiling)`, except that NaN is preserved.
#[cube]
#[inline(always)]
pub fn at_most(ceiling: f32, x: f32) -> f32 {
    select(x > ceiling, ceiling, x)
}

/// Whether any value is nonzero.
#[inline(always)]
pub(crate) fn has_nonzero<const N: usize>(values: &[f32; N]) -> bool {
    // Works on all bits but the sign, because float comparisons would not vectorize.
    values.iter().fold(0, |bits, x| bits | x.to_bits()) << 1 != 0
}

/// Hyperbolic tangent.
#[cube]
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    1.0f32 - 2.0f32 / (exp(2.0f32 * x) + 1.0f32)
}

/// Logistic function, `1 / (1 + e^-x)`.
#[cube]
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0f32 / (1.0f32 + exp(-x))
}

/// Lower clamp of [`exp()`]; its exponential is still a normal number.
const MIN_EXPONENT: f32 = -87.0;
/// Upper clamp of [`exp()`]; its exponential is still finite. Infinities are undefined in WGSL.
pub(crate) const MAX_EXPONENT: f32 = 88.0;

/// Exponential function, accurate to 2 ulp over the finite range. Vectorizes: 2^n times a
/// polynomial on [-ln 2 / 2, ln 2 / 2] (coefficients from Cephes' `expf`).
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let x = x.clamp(MIN_EXPONENT, MAX_EXPONENT);
    // Adding 1.5 * 2^23 rounds to an integer in the low bits.
    let shifted = x * std::f32::consts::LOG2_E + 12_582_912.0;
    let n = shifted - 12_582_912.0;
    let r = mul_add(n, -0.693_359_4, x);
    let r = mul_add(n, 2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4f32;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = mul_add(p, r, c);
    }
    let p = mul_add(p * r, r, r) + 1.0;
    p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000))
}

#[cube]
fn device_exp(x: f32) -> f32 {
    at_least(MIN_EXPONENT, at_most(MAX_EXPONENT, x)).exp()
}

/// Kernel-side form of [`exp()`]: the device's exponential with the same clamps.
pub mod exp {
    pub use super::device_exp::expand;
}

/// Natural logarithm of a positive, finite, normal number, accurate to 2 ulp or 1e-7. Vectorizes:
/// the exponent times ln 2 plus a polynomial in the mantissa on [sqrt(1/2), sqrt(2)] (coefficients
/// from Cephes' `logf`).
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    // 0x3f3504f3 is sqrt(1/2); after subtracting it the upper bits are the exponent.
    let bits = x.to_bits().wrapping_sub(0x3f35_04f3) as i32;
    let n = (bits >> 23) as f32;
    let r = f32::from_bits(((bits & 0x007f_ffff) + 0x3f35_04f3) as u32) - 1.0;
    let mut p = 7.037_683_6e-2f32;
    for c in [
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_4e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ] {
        p = mul_add(p, r, c);
    }
    let square = r * r;
    let p = mul_add(n, -2.121_944_4e-4, p * r * square);
    let p = mul_add(square, -0.5, p);
    mul_add(n, 0.693_359_4, r + p)
}

#[cube]
fn device_ln(x: f32) -> f32 {
    x.ln()
}

/// Kernel-side form of [`ln()`]: the device's logarithm.
pub mod ln {
    pub use super::device_ln::expand;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_stays_nan_whatever_the_floor() {
        assert_eq!(
            [at_least(0.0, -1.0), at_least(0.0, 2.0), at_least(-3.0, -1.0)],
            [0.0, 2.0, -1.0]
        );
        assert_eq!([at_most(0.0, 1.0), at_most(0.0, -2.0)], [0.0, -2.0]);
        assert!(at_least(0.0, f32::NAN).is_nan() && at_most(0.0, f32::NAN).is_nan());
    }

    #[test]
    fn exp_and_tanh_match_double_precision() {
        for i in -8700..8800 {
            let x = i as f32 * 0.01;
            let exact = f64::from(x).exp();
            assert!((f64::from(exp(x)) / exact - 1.0).abs() < 3e-7, "exp({x})");
            assert!((f64::from(tanh(x)) - f64::from(x).tanh()).abs() < 3e-7, "tanh({x})");
            let exact = 1.0 / (1.0 + (-f64::from(x)).exp());
            assert!((f64::from(sigmoid(x)) - exact).abs() < 3e-7, "sigmoid({x})");
        }
    }

    #[test]
    fn ln_matches_double_precision() {
        for i in 1..100_000 {
            let x = i as f32 * 0.001;
            let exact = f64::from(x).ln();
            let error = (f64::from(ln(x)) - exact).abs();
            assert!(error < 1e-7 + 2e-7 * exact.abs(), "ln({x}) is off by {error}");
        }
        assert_eq!(ln(1.0), 0.0);
    }
}
