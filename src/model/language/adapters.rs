//! Low-rank adapters (LoRA, Hu et al. 2021): small matrices that are learnt in the place of large ones.
//!
//! A matrix `w` with an adapter gives `x w + (lora_alpha / r) x a b`, with `a` `[inputs, r]` and `b`
//! `[r, outputs]`. The product `a b` is never made. The names are those of the package PEFT.

#[cfg(feature = "general")]
use super::device::numbers;
use super::matrix::{Matrix, multiply, weigh};
#[cfg(feature = "general")]
use crate::model::decoder::burn::LowRank;
use crate::model::decoder::product::{Packed, View};
use crate::model::{DecoderShape, Parameter};
use crate::rng::{draw, uniform};
#[cfg(feature = "general")]
use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The matrices of a layer, in order, by PEFT's and Hugging Face's names.
pub const MODULES: [&str; 7] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];

/// How a decoder is adapted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoraConfig {
    /// Numbers between the two matrices of an adapter; 0 for none: all weights are learnt.
    pub r: usize,
    /// `lora_alpha / r` is what an adapter's result is multiplied by.
    pub lora_alpha: f32,
    /// The matrices that are adapted: `q_proj`, `k_proj`, `v_proj`, `o_proj`, `gate_proj`, `up_proj`,
    /// `down_proj`.
    pub target_modules: Vec<String>,
}

impl LoraConfig {
    /// Adapters of this rank for every matrix of the layers, or none for 0.
    pub fn new(r: usize) -> Self {
        let short = MODULES.map(|name| short(name).to_string());
        Self { r, lora_alpha: 32.0, target_modules: short.to_vec() }
    }

    /// What is out of range, in a sentence.
    ///
    /// # Errors
    /// If anything is.
    pub fn validate(&self) -> Result<(), String> {
        if self.r > 0 && !(self.lora_alpha > 0.0 && self.lora_alpha.is_finite()) {
            return Err("lora.lora_alpha must be above 0".to_string());
        }
        if self.r > 0 && self.target_modules.is_empty() {
            return Err("lora.target_modules names no matrix; lora.r = 0 learns all weights".into());
        }
        let known = MODULES.map(short);
        match self.target_modules.iter().find(|name| !known.contains(&name.as_str())) {
            Some(name) => {
                Err(format!("lora.target_modules: there is no `{name}`, only {}", known.join(", ")))
            }
            None => Ok(()),
        }
    }
}

/// The last part of a matrix's name.
fn short(module: &str) -> &str {
    module.rsplit('.').next().unwrap_or(module)
}

/// Where an adapter's numbers are.
#[derive(Clone, Debug)]
pub(super) struct AdapterSlot {
    first: Range<usize>,
    second: Range<usize>,
}

/// The adapters of a decoder.
#[derive(Clone, Debug)]
pub struct Adapters {
    config: LoraConfig,
    parameters: Vec<Parameter>,
    slots: Vec<Option<AdapterSlot>>,
    pub(super) params: Vec<f32>,
}

impl Adapters {
    /// Fresh ones, which change nothing yet: `a` is uniform in `+-1 / sqrt(inputs)`, `b` is 0.
    pub fn fresh(shape: &DecoderShape, config: &LoraConfig, key: u32) -> Self {
        let mut adapters = Self::zeros(shape, config);
        for (number, slot) in adapters.slots.iter().enumerate() {
            let Some(AdapterSlot { first, .. }) = slot else { continue };
            let bound = ((first.len() / config.r) as f32).sqrt().recip();
            let key = draw(key, number as u32);
            for (i, x) in adapters.params[first.clone()].iter_mut().enumerate() {
                *x = (2.0 * uniform(draw(key, i as u32)) - 1.0) * bound;
            }
        }
        adapters
    }

    /// All numbers 0.
    pub fn zeros(shape: &DecoderShape, config: &LoraConfig) -> Self {
        let (size, inner) = (shape.hidden_size, shape.intermediate_size);
        let (queries, kv) = (shape.query_size(), shape.kv_size());
        let sizes = [
            [size, queries],
            [size, kv],
            [size, kv],
            [queries, size],
            [size, inner],
            [size, inner],
            [inner, size],
        ];
        let (mut parameters, mut slots, mut end) = (Vec::new(), Vec::new(), 0);
        for layer in 0..shape.num_layers {
            for (module, [inputs, outputs]) in MODULES.iter().zip(sizes) {
                if !config.target_modules.iter().any(|name| name == short(module)) {
                    slots.push(None);
                    continue;
                }
                let mut take = |which: &str, shape: [usize; 2]| {
                    let name = format!("layers.{layer}.{module}.lora_{which}.weight");
                    parameters.push(Parameter { name, shape: shape.to_vec() });
                    end += shape[0] * shape[1];
                    end - shape[0] * shape[1]..end
                };
                let first = take("A", [inputs, config.r]);
                let second = take("B", [config.r, outputs]);
                slots.push(Some(AdapterSlot { first, second }));
            }
        }
        Self { config: config.clone(), parameters, slots, params: vec![0.0; end] }
    }

    /// Their settings.
    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// Names and shapes of their numbers, in order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Their numbers.
    pub fn params(&self) -> &[f32] {
        &self.params
    }

    /// With other numbers.
    ///
    /// # Panics
    /// If they are not as many.
    pub fn with_params(mut self, params: Vec<f32>) -> Self {
        assert_eq!(params.len(), self.params.len(), "params: as many as the adapters have");
        self.params = params;
        self
    }

    /// The adapter of a matrix, if it has one; those of the head have none.
    pub(super) fn slot(&self, number: usize) -> Option<&AdapterSlot> {
        self.slots.get(number)?.as_ref()
    }

    /// Their numbers on a device.
    #[cfg(feature = "general")]
    pub(super) fn on(&self, device: &Device) -> LowRank {
        let pair = |slot: &AdapterSlot| {
            let r = self.config.r;
            let upload = |of: &Range<usize>| numbers(&self.params[of.clone()], device);
            let (inputs, outputs) = (slot.first.len() / r, slot.second.len() / r);
            [upload(&slot.first).reshape([inputs, r]), upload(&slot.second).reshape([r, outputs])]
        };
        let pairs = self.slots.iter().map(|slot| slot.as_ref().map(pair)).collect();
        LowRank { pairs, scale: self.scale() }
    }

    fn scale(&self) -> f32 {
        self.config.lora_alpha / self.config.r as f32
    }

    /// `a` as products read it, or that with rows and columns exchanged.
    fn first(&self, slot: &AdapterSlot, matrix: &Matrix, exchanged: bool) -> Packed {
        packed(&self.params[slot.first.clone()], [matrix.inputs, self.config.r], exchanged)
    }

    /// `b` as products read it, or that with rows and columns exchanged.
    pub(super) fn second(&self, slot: &AdapterSlot, matrix: &Matrix, exchanged: bool) -> Packed {
        packed(&self.params[slot.second.clone()], [self.config.r, matrix.outputs], exchanged)
    }

    /// `(lora_alpha / r) x a`: `[rows, r]`.
    pub(super) fn inner(
        &self,
        wide: bool,
        slot: &AdapterSlot,
        matrix: &Matrix,
        x: &[f32],
    ) -> Vec<f32> {
        self.scaled(wide, x, &self.first(slot, matrix, false))
    }

    fn scaled(&self, wide: bool, x: &[f32], by: &Packed) -> Vec<f32> {
        let mut y = vec![0.0; x.len() / by.inner() * by.columns()];
        multiply(wide, x, by, &mut y, false);
        let scale = self.scale();
        y.iter_mut().for_each(|y| *y *= scale);
        y
    }

    /// Adds to the gradient of what went in, and to those of the adapter.
    pub(super) fn back(
        &self,
        wide: bool,
        (slot, matrix): (&AdapterSlot, &Matrix),
        [x, dy]: [&[f32]; 2],
        dx: &mut [f32],
        gradient: &mut [f32],
    ) {
        let of_inner = self.scaled(wide, dy, &self.second(slot, matrix, true));
        multiply(wide, &of_inner, &self.first(slot, matrix, true), dx, true);
        weigh(wide, [x, &of_inner], matrix.inputs, &mut gradient[slot.first.clone()]);
        let inner = self.inner(wide, slot, matrix, x);
        weigh(wide, [&inner, dy], self.config.r, &mut gradient[slot.second.clone()]);
    }
}

fn packed(matrix: &[f32], [inputs, outputs]: [usize; 2], exchanged: bool) -> Packed {
    let (view, mut packed) = (View::rows(matrix, outputs), Packed::default());
    match exchanged {
        true => packed.pack(view.transposed(), outputs, inputs),
        false => packed.pack(view, inputs, outputs),
    }
    packed
}
