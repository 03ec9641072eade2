//! Low-rank adapters of a decoder: the settings, and the layout of the matrices that are learnt instead of the weights.
//!
//! The names are those of the package PEFT.

use super::{DecoderShape, Layout, LinearLayout, Parameter, Projection};
use crate::nn::ops::lora::LowRankPair;
use crate::rng::{draw, uniform};
use crate::schema::range::strings_of;
use crate::schema::{OutOfRange, ensure, settings};
use std::ops::Range;

settings! {
    /// The adapters of a decoder, by PEFT's names.
    pub struct LoraConfig {
        /// Rank of the adapters, trained in place of the weights (LoRA); 0 trains all weights.
        r: usize = 0, in integer(0..=8192);
        /// An adapter's output is scaled by `lora_alpha / r`.
        lora_alpha: f32 = 32.0, in above(0.0);
        /// Matrices of a layer that have adapters.
        target_modules: Vec<String> = Projection::MODULES.map(str::to_string).to_vec(),
            in strings_of(&Projection::MODULES);
    }
    check = LoraConfig::check_settings;
}

/// A setting that contradicts the adapters which a model has.
#[derive(Debug, thiserror::Error)]
#[error(
    "lora.{name} is {own}, but the model has adapters with {theirs}; leave lora.{name} out, or merge the adapters \
     into the model first"
)]
pub struct AdapterConflict {
    name: &'static str,
    own: String,
    theirs: String,
}

impl LoraConfig {
    /// Adapters of this rank for every matrix of the layers, or none for 0.
    pub fn new(r: usize) -> Self {
        Self { r, ..Self::default() }
    }

    fn check_settings(&self) -> Result<(), OutOfRange> {
        let is_allowed = self.r == 0 || !self.target_modules.is_empty();
        ensure(is_allowed, "target_modules", "[]", strings_of(&Projection::MODULES))
    }

    /// Takes over the settings of a model's existing adapters, which a run continues to train.
    ///
    /// # Errors
    /// Names the first setting that is neither the default nor that of the adapters.
    pub fn adopt(&mut self, existing: &Self) -> Result<(), AdapterConflict> {
        let default = Self::default();
        let targets = |config: &Self| Projection::ALL.map(|projection| config.targets(projection));
        let known = [targets(existing), targets(&default)];
        let conflict = if self.r != default.r && self.r != existing.r {
            Some(("r", self.r.to_string(), existing.r.to_string()))
        } else if ![default.lora_alpha, existing.lora_alpha].contains(&self.lora_alpha) {
            Some(("lora_alpha", self.lora_alpha.to_string(), existing.lora_alpha.to_string()))
        } else if !known.contains(&targets(self)) {
            let [own, theirs] = [&*self, existing].map(|it| format!("{:?}", it.target_modules));
            Some(("target_modules", own, theirs))
        } else {
            None
        };
        if let Some((name, own, theirs)) = conflict {
            return Err(AdapterConflict { name, own, theirs });
        }
        *self = existing.clone();
        Ok(())
    }

    /// Whether a matrix has an adapter.
    pub fn targets(&self, projection: Projection) -> bool {
        self.target_modules.iter().any(|name| name == projection.module())
    }
}

/// The places of an adapter's two matrices.
#[derive(Clone, Debug)]
pub struct AdapterLayout {
    /// `[inputs, r]`.
    pub a: Range<usize>,
    /// `[r, outputs]`.
    pub b: Range<usize>,
}

/// The adapters of a decoder.
#[derive(Clone, Debug)]
pub struct Adapters {
    config: LoraConfig,
    parameters: Vec<Parameter>,
    /// The place of each matrix's adapter, by [`LinearLayout::index`].
    pub(crate) layouts: Vec<Option<AdapterLayout>>,
    pub(crate) params: Vec<f32>,
}

impl Adapters {
    /// Fresh adapters, which change nothing yet: `a` is uniform in `+-1 / sqrt(inputs)`, `b` is 0.
    ///
    /// # Panics
    /// If the rank is 0, which means no adapters.
    pub fn new(shape: &DecoderShape, config: &LoraConfig, key: u32) -> Self {
        let mut adapters = Self::zeros(shape, config);
        for (index, layout) in adapters.layouts.iter().enumerate() {
            let Some(AdapterLayout { a, .. }) = layout else { continue };
            let bound = ((a.len() / config.r) as f32).sqrt().recip();
            let key = draw(key, index as u32);
            for (i, x) in adapters.params[a.clone()].iter_mut().enumerate() {
                *x = (2.0 * uniform(draw(key, i as u32)) - 1.0) * bound;
            }
        }
        adapters
    }

    /// Adapters whose parameters are all 0.
    ///
    /// # Panics
    /// If the rank is 0, which means no adapters.
    pub fn zeros(shape: &DecoderShape, config: &LoraConfig) -> Self {
        assert!(config.r > 0, "adapters of rank 0");
        let (mut parameters, mut layouts, mut end) = (Vec::new(), Vec::new(), 0);
        for layer in 0..shape.num_layers {
            for projection in Projection::ALL {
                if !config.targets(projection) {
                    layouts.push(None);
                    continue;
                }
                let mut push = |matrix: &str, shape: [usize; 2]| {
                    let name = format!("layers.{layer}.{}.lora_{matrix}.weight", projection.name());
                    parameters.push(Parameter::new(name, &shape));
                    end += shape[0] * shape[1];
                    end - shape[0] * shape[1]..end
                };
                let [inputs, outputs] = projection.sizes(shape);
                let a = push("A", [inputs, config.r]);
                let b = push("B", [config.r, outputs]);
                layouts.push(Some(AdapterLayout { a, b }));
            }
        }
        Self { config: config.clone(), parameters, layouts, params: vec![0.0; end] }
    }

    /// Settings of the adapters.
    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// Names and shapes of the adapters' parameters, in order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Parameters of the adapters.
    pub fn params(&self) -> &[f32] {
        &self.params
    }

    /// The same adapters with other parameters.
    ///
    /// # Panics
    /// If the number of parameters differs.
    pub fn with_params(mut self, params: Vec<f32>) -> Self {
        assert_eq!(params.len(), self.params.len(), "params: [num_adapter_params]");
        self.params = params;
        self
    }

    /// Merges the adapters into the decoder's parameters: adds `scale a b` to each target matrix.
    pub fn merge_into(&self, shape: &DecoderShape, params: &mut [f32]) {
        for linear in Layout::new(shape).layers.iter().flat_map(|layer| &layer.linears) {
            let Some((_, LowRankPair { a, b, rank, scale })) = self.get(linear) else { continue };
            let rows = params[linear.weight.clone()].chunks_exact_mut(linear.outputs);
            for (row, a) in rows.zip(a.chunks_exact(rank)) {
                for (factor, b) in a.iter().zip(b.chunks_exact(linear.outputs)) {
                    row.iter_mut().zip(b).for_each(|(x, b)| *x += scale * factor * b);
                }
            }
        }
    }

    /// The adapter of a matrix, if it has one.
    pub(crate) fn get(&self, linear: &LinearLayout) -> Option<(&AdapterLayout, LowRankPair<'_>)> {
        let layout = self.layouts.get(linear.index)?.as_ref()?;
        let (a, b) = (&self.params[layout.a.clone()], &self.params[layout.b.clone()]);
        Some((layout, LowRankPair { a, b, rank: self.config.r, scale: self.scale() }))
    }

    /// The factor of the adapters' results, `lora_alpha / r`.
    pub(crate) fn scale(&self) -> f32 {
        self.config.lora_alpha / self.config.r as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "adapters of rank 0")]
    fn adapters_have_a_rank() {
        Adapters::new(&DecoderShape::default(), &LoraConfig::new(0), 7);
    }
}
