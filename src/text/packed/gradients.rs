//! Gradients of a decoder's learnt parameters, found by what they are of.

use crate::nn::arch::Projection;
use crate::text::DeviceDecoder;
use burn::tensor::Tensor;
use std::collections::HashMap;

/// The gradients of the learnt parameters on a device; none for a parameter that no loss has reached.
pub(crate) struct Gradients {
    all: Vec<Option<Tensor<1>>>,
    places: Places,
}

/// The numbers of learnt parameters.
enum Places {
    /// All weights, by name.
    Weights(HashMap<String, usize>),
    /// The first matrices of the adapters, one for each matrix.
    Adapters(Vec<Option<usize>>),
}

impl Gradients {
    /// No gradients yet, of the learnt parameters of a decoder.
    pub fn new(of: &DeviceDecoder) -> Self {
        match &of.added {
            Some(added) => {
                let mut count = 0;
                let places = added.pairs.iter().map(|pair| {
                    pair.as_ref().map(|_| {
                        count += 2;
                        count - 2
                    })
                });
                let places = Places::Adapters(places.collect());
                Self { all: vec![None; count], places }
            }
            None => {
                let parameters = of.decoder.shape().parameters().into_iter();
                let names: HashMap<String, usize> =
                    parameters.enumerate().map(|(i, parameter)| (parameter.name, i)).collect();
                Self { all: vec![None; names.len()], places: Places::Weights(names) }
            }
        }
    }

    /// Whether the weights are learnt, not adapters.
    pub fn are_of_weights(&self) -> bool {
        matches!(self.places, Places::Weights(_))
    }

    /// Adds the gradient of a weight.
    pub fn add<const D: usize>(&mut self, name: &str, gradient: Tensor<D>) {
        let Places::Weights(places) = &self.places else { return };
        let place = places[name];
        self.add_to(place, gradient);
    }

    /// Takes the gradient of a weight out, if there is one.
    pub fn take(&mut self, name: &str) -> Option<Tensor<1>> {
        match &self.places {
            Places::Weights(places) => self.all[places[name]].take(),
            Places::Adapters(_) => None,
        }
    }

    /// Adds the gradients of the adapter of a layer's matrix.
    pub fn add_adapter(&mut self, layer: usize, which: Projection, [a, b]: [Tensor<2>; 2]) {
        let number = layer * Projection::ALL.len() + which as usize;
        let Places::Adapters(places) = &self.places else { return };
        let Some(place) = places[number] else { return };
        self.add_to(place, a);
        self.add_to(place + 1, b);
    }

    fn add_to<const D: usize>(&mut self, place: usize, gradient: Tensor<D>) {
        let count = gradient.shape().num_elements();
        let gradient = gradient.reshape([count]);
        self.all[place] = Some(match self.all[place].take() {
            Some(sum) => sum + gradient,
            None => gradient,
        });
    }

    /// The gradients in the order of the learnt parameters.
    pub fn into_parameters(self) -> Vec<Option<Tensor<1>>> {
        self.all
    }
}
