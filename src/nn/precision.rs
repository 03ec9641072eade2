//! The precision of a network's products.

use crate::schema::names;

names! {
    /// The precision of a network's products: features, weights and activations. Sums, gradients and
    /// parameters are f32 in any case; `optimizer.moments` sets that of the optimizer's state.
    #[derive(Default)]
    pub enum Precision {
        /// Single precision.
        #[default]
        F32 = "f32",
        /// Single precision whose products may round their operands to TF32, on devices that have it; products in f32
        /// never do.
        Tf32 = "tf32",
        /// IEEE half precision, on devices that support it.
        F16 = "f16",
        /// The upper half of a single-precision number, on devices that support it; on the CPU for built-in
        /// networks and language models.
        Bf16 = "bf16",
    }
}
