//! A decoder over tokens in the tensors of a device: prompts and their completions side by side, forward with
//! or without autodiff.
//!
//! A prompt goes through once, whatever the number of its completions, which see its keys and values. Short
//! texts are filled up on the right; nothing looks at what fills them.

use super::adapters::Adapters;
use super::learn::Text;
use crate::model::decoder::burn::LowRank;
use crate::model::decoder::products::Products;
use crate::model::decoder::steps::{KeysValues, UNSEEN};
use crate::model::{Decoder, DecoderShape, Model, Precision, unflatten};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Int, Tensor, TensorData, activation};

/// A decoder over tokens on a device.
#[derive(Clone, Debug)]
pub struct DeviceDecoder {
    decoder: Decoder,
    added: Option<LowRank>,
    device: Device,
}

/// Prompts that went through, `groups` of them, for completions to follow.
#[derive(Clone, Debug)]
pub struct Prompts {
    /// Keys and values, layer by layer: `[groups, longest, num_kv_heads, head_dim]`.
    keys_values: Vec<KeysValues>,
    /// 0 where there is a token, else [`UNSEEN`]: `[groups, longest]`.
    unseen: Tensor<2>,
    /// How many tokens each prompt has: `[groups, 1]`.
    lengths: Tensor<2, Int>,
    /// The normed streams of their last tokens: `[groups, hidden_size]`.
    pub last: Tensor<2>,
}

/// Keys and values of completions under way, as many as `most` tokens of each.
#[derive(Clone, Debug)]
pub struct Completions {
    /// Keys and values, layer by layer: `[rows, most, num_kv_heads, head_dim]`.
    keys_values: Vec<KeysValues>,
    /// What each token sees of the others: `[most, most]`.
    unseen: Tensor<2>,
    /// Tokens that went through.
    count: usize,
}

/// Texts that went through.
#[derive(Clone, Debug)]
pub struct Read {
    /// The normed streams that tokens follow from: `[predictions, hidden_size]`.
    pub hidden: Tensor<2>,
    groups: usize,
    members: usize,
    /// Tokens of a completion that others follow.
    steps: usize,
}

impl Read {
    /// Which of [`Read::hidden`] token number `at` of a group's completion follows from.
    pub fn prediction(&self, [group, member]: [usize; 2], at: usize) -> usize {
        match at {
            0 => group,
            _ => self.groups + (group * self.members + member) * self.steps + at - 1,
        }
    }
}

/// Numbers, `[count]`, on a device.
pub(super) fn numbers(values: &[f32], device: &Device) -> Tensor<1> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), device)
}

/// Whole numbers, `[rows, columns]`, on a device.
pub fn integers(values: &[i32], [rows, columns]: [usize; 2], device: &Device) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), [rows, columns]), device)
}

/// Texts of different lengths, filled up: `[texts, longest]`.
fn filled<'a>(texts: impl Iterator<Item = &'a [u32]>, longest: usize) -> Vec<i32> {
    let row = |text: &'a [u32]| {
        let fill = std::iter::repeat_n(0, longest - text.len());
        text.iter().map(|token| *token as i32).chain(fill)
    };
    texts.flat_map(row).collect()
}

/// What a token sees of those beside it: itself and those before it.
fn causal(count: usize, device: &Device) -> Tensor<2> {
    let rows = (0..count)
        .flat_map(|row| (0..count).map(move |column| if column > row { UNSEEN } else { 0.0 }));
    numbers(&rows.collect::<Vec<_>>(), device).reshape([count, count])
}

impl DeviceDecoder {
    /// Puts parameters, in the order of [`DecoderShape::parameters`], on a device that computes products in this
    /// precision.
    pub(super) fn new(
        shape: &DecoderShape,
        params: &[f32],
        device: &Device,
        precision: Precision,
    ) -> Self {
        let empty = Decoder::empty(shape.clone(), device);
        let empty = empty.with_precision(precision).expect("a decoder has all of them");
        let decoder = unflatten(empty, &numbers(params, device));
        Self { decoder, added: None, device: device.clone() }
    }

    /// With adapters, or without.
    pub(super) fn with_adapters(self, adapters: Option<&Adapters>) -> Self {
        let added = adapters.map(|adapters| adapters.on(&self.device));
        Self { added, ..self }
    }

    /// What a gradient is multiplied by on its way back, given its first numbers: where that goes through half
    /// precision, the power of two that makes the largest of them about 1/16 (loss scaling, Micikevicius et al. 2018).
    pub fn scale<'a>(&self, first: impl Iterator<Item = &'a f32>) -> f32 {
        let largest = first.fold(0.0f32, |most, x| most.max(x.abs()));
        if !self.decoder.products().need_scale() || largest == 0.0 || !largest.is_finite() {
            return 1.0;
        }
        (1.0 / (16.0 * largest)).log2().floor().exp2()
    }

    /// For acting alone, with its matrices as products take them.
    pub fn acting(self) -> Self {
        struct Operands(Products);
        impl ModuleMapper for Operands {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                if D < 2 {
                    return param;
                }
                let (id, value, _) = param.consume();
                Param::initialized(id, self.0.operand(value))
            }
        }
        let mut operands = Operands(self.decoder.products());
        Self { decoder: self.decoder.map(&mut operands), ..self }
    }

    /// Tokens that there are.
    pub fn vocabulary(&self) -> usize {
        self.decoder.shape().num_actions
    }

    /// Where it is.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A decoder whose learnt numbers are the leaves of autodiff's graph.
    pub fn trainable(&self) -> Self {
        struct Leaves;
        impl ModuleMapper for Leaves {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let (id, value, _) = param.consume();
                Param::initialized(id, value.autodiff().require_grad())
            }
        }
        let mut own = self.clone();
        match &mut own.added {
            Some(added) => {
                for pair in added.pairs.iter_mut().flatten() {
                    *pair = pair.each_ref().map(|x| x.clone().autodiff().require_grad());
                }
            }
            None => own.decoder = own.decoder.map(&mut Leaves),
        }
        own
    }

    /// The gradients of what is learnt, in the order of the host's numbers; nothing where there is none.
    pub fn gradients(&self, of: &mut Gradients) -> Vec<Option<Tensor<1>>> {
        struct Collect<'a>(&'a mut Gradients, Vec<Option<Tensor<1>>>);
        impl ModuleVisitor for Collect<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let gradient = param.val().grad_remove(self.0);
                self.1.push(gradient.map(|x| x.flatten(0, D - 1)));
            }
        }
        match &self.added {
            Some(added) => {
                let all = added.pairs.iter().flatten().flatten();
                all.map(|x| x.grad_remove(of).map(|x| x.flatten(0, 1))).collect()
            }
            None => {
                let mut collect = Collect(of, Vec::new());
                self.decoder.visit(&mut collect);
                collect.1
            }
        }
    }

    /// Sends prompts through.
    ///
    /// # Panics
    /// If one has no token.
    pub fn prompts(&self, prompts: &[&[u32]]) -> Prompts {
        let (groups, device) = (prompts.len(), &self.device);
        let lengths: Vec<i32> = prompts.iter().map(|prompt| prompt.len() as i32).collect();
        let longest = prompts.iter().map(|prompt| prompt.len()).max().unwrap_or(0);
        let tokens = filled(prompts.iter().copied(), longest);
        let tokens = integers(&tokens, [groups, longest], device);
        let columns = Tensor::<1, Int>::arange(0..longest as i64, device).reshape([1, longest]);
        let lengths = integers(&lengths, [groups, 1], device);
        let is_there = columns
            .clone()
            .expand([groups, longest])
            .lower(lengths.clone().expand([groups, longest]));
        let unseen = (is_there.float() - 1.0) * -UNSEEN;
        let turns = self.decoder.turns(columns);
        let own = causal(longest, device);
        let mut keys_values = Vec::new();
        let products = self.decoder.products();
        let x = self.decoder.vectors(tokens);
        let hidden = self.decoder.through(x, &turns, self.added.as_ref(), |_, queries, own_kv| {
            let own_kv = own_kv.map(|x| products.operand(x));
            let found = attend(products, queries, &own_kv, &own, None);
            keys_values.push(own_kv);
            found
        });
        let size = hidden.dims()[2];
        let first = Tensor::<1, Int>::arange(0..groups as i64, device) * longest as i32;
        let rows = first + lengths.clone().reshape([groups]) - 1;
        let last = hidden.reshape([groups * longest, size]).select(0, rows);
        Prompts { keys_values, unseen, lengths, last }
    }

    /// Room for `rows` completions of `most` tokens each.
    pub fn room(&self, rows: usize, most: usize) -> Completions {
        let (shape, products) = (self.decoder.shape(), self.decoder.products());
        let zeros = || {
            let size = [rows, most, shape.num_kv_heads, shape.head_dim];
            [(); 2].map(|()| products.operand(Tensor::<4>::zeros(size, &self.device)))
        };
        let keys_values = (0..shape.num_layers).map(|_| zeros()).collect();
        Completions { keys_values, unseen: causal(most, &self.device), count: 0 }
    }

    /// Sends the next token of each completion through, `[rows]`; gives the normed streams,
    /// `[rows, hidden_size]`. As many completions follow each prompt, group by group.
    pub fn step(
        &self,
        prompts: &Prompts,
        all: &mut Completions,
        tokens: Tensor<1, Int>,
    ) -> Tensor<2> {
        let (rows, at) = (tokens.dims()[0], all.count);
        let groups = prompts.unseen.dims()[0];
        let positions = (prompts.lengths.clone() + at as i32).expand([groups, rows / groups]);
        let turns = self.decoder.turns(positions.reshape([rows, 1]));
        let unseen = all.unseen.clone().narrow(0, at, 1);
        let products = self.decoder.products();
        let x = self.decoder.vectors(tokens.reshape([rows, 1]));
        let hidden = self.decoder.through(x, &turns, self.added.as_ref(), |i, queries, new| {
            let [keys, values] = &mut all.keys_values[i];
            for (all, new) in [keys, values].into_iter().zip(new) {
                let [_, _, heads, head_dim] = new.dims();
                let here = [0..rows, at..at + 1, 0..heads, 0..head_dim];
                let old = std::mem::replace(all, Tensor::empty([1; 4], &self.device));
                *all = old.slice_assign(here, products.operand(new));
            }
            let before = (&prompts.keys_values[i], &prompts.unseen);
            attend(products, queries, &all.keys_values[i], &unseen, Some(before))
        });
        all.count += 1;
        let size = hidden.dims()[2];
        hidden.reshape([rows, size])
    }

    /// Sends whole texts through.
    pub fn read(&self, texts: &[Text]) -> Read {
        let (groups, device) = (texts.len(), &self.device);
        let all: Vec<&[u32]> = texts.iter().map(|text| text.prompt).collect();
        let prompts = self.prompts(&all);
        let members = texts.iter().map(|text| text.completions.len()).max().unwrap_or(0);
        let lengths = texts.iter().flat_map(|text| text.completions.iter().map(|one| one.len()));
        let steps = lengths.max().unwrap_or(1) - 1;
        if steps == 0 {
            return Read { hidden: prompts.last, groups, members, steps };
        }
        let rows = groups * members;
        let completion = |text: &Text<'_>, member: usize| -> Vec<i32> {
            let tokens = text.completions.get(member).copied().unwrap_or_default();
            filled([&tokens[..tokens.len().saturating_sub(1)]].into_iter(), steps)
        };
        let completion = &completion;
        let tokens: Vec<i32> = texts
            .iter()
            .flat_map(|text| (0..members).flat_map(move |member| completion(text, member)))
            .collect();
        let columns = Tensor::<1, Int>::arange(0..steps as i64, device).reshape([1, 1, steps]);
        let lengths = prompts.lengths.clone().reshape([groups, 1, 1]);
        let positions =
            lengths.expand([groups, members, steps]) + columns.expand([groups, members, steps]);
        let turns = self.decoder.turns(positions.reshape([rows, steps]));
        let own = causal(steps, device);
        let products = self.decoder.products();
        let x = self.decoder.vectors(integers(&tokens, [rows, steps], device));
        let hidden = self.decoder.through(x, &turns, self.added.as_ref(), |i, queries, own_kv| {
            let before = (&prompts.keys_values[i], &prompts.unseen);
            attend(products, queries, &own_kv, &own, Some(before))
        });
        let size = hidden.dims()[2];
        let hidden = Tensor::cat(vec![prompts.last, hidden.reshape([rows * steps, size])], 0);
        Read { hidden, groups, members, steps }
    }

    /// Logits of normed vectors: `[rows, vocabulary]`.
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        self.decoder.head(hidden.unsqueeze()).squeeze_dim(0)
    }
}

/// What `queries`, `[rows, steps, heads, head_dim]`, find among `own` keys and values,
/// `[rows, columns, kv_heads, head_dim]`, of which `own_unseen`, `[steps, columns]`, are not to be seen, and among
/// those of the prompt that their rows follow, `[groups, longest, kv_heads, head_dim]`, of which
/// `[groups, longest]` are not.
fn attend(
    products: Products,
    queries: Tensor<4>,
    own: &KeysValues,
    own_unseen: &Tensor<2>,
    before: Option<(&KeysValues, &Tensor<2>)>,
) -> Tensor<3> {
    let [rows, steps, heads, head_dim] = queries.dims();
    let [_, columns, kv_heads, _] = own[0].dims();
    let group = heads / kv_heads;
    let by_head = |x: &Tensor<4>| x.clone().swap_dims(1, 2);
    let queries = (queries * (head_dim as f64).powf(-0.5) as f32)
        .reshape([rows, steps, kv_heads, group, head_dim])
        .permute([0, 2, 3, 1, 4])
        .reshape([rows, kv_heads, group * steps, head_dim]);
    let scores = products.of(queries.clone(), by_head(&own[0]).swap_dims(2, 3));
    let scores = scores.reshape([rows, kv_heads, group, steps, columns])
        + own_unseen.clone().reshape([1, 1, 1, steps, columns]);
    let found = match before {
        None => {
            let weights = activation::softmax(scores, 4);
            let weights = weights.reshape([rows, kv_heads, group * steps, columns]);
            products.of(weights, by_head(&own[1]))
        }
        Some(([keys, values], unseen)) => {
            let [groups, longest] = unseen.dims();
            let members = rows / groups;
            // The rows of a group are compared with its prompt's keys in one product.
            let together = |x: Tensor<4>, width: usize| {
                x.reshape([groups, members, kv_heads, group * steps, width])
                    .swap_dims(1, 2)
                    .reshape([groups, kv_heads, members * group * steps, width])
            };
            let apart = |x: Tensor<4>, width: usize| {
                x.reshape([groups, kv_heads, members, group * steps, width])
                    .swap_dims(1, 2)
                    .reshape([rows, kv_heads, group * steps, width])
            };
            let of_prompt = together(queries, head_dim);
            let of_prompt = products.of(of_prompt, by_head(keys).swap_dims(2, 3))
                + unseen.clone().reshape([groups, 1, 1, longest]);
            let of_prompt = apart(of_prompt, longest);
            let of_prompt = of_prompt.reshape([rows, kv_heads, group, steps, longest]);
            let weights = activation::softmax(Tensor::cat(vec![of_prompt, scores], 4), 4);
            let weights = weights.reshape([rows, kv_heads, group * steps, longest + columns]);
            let of_prompt = together(weights.clone().narrow(3, 0, longest), longest);
            let of_prompt = apart(products.of(of_prompt, by_head(values)), head_dim);
            let of_own = weights.narrow(3, longest, columns);
            of_prompt + products.of(of_own, by_head(&own[1]))
        }
    };
    found.reshape([rows, kv_heads, group, steps, head_dim]).permute([0, 3, 1, 2, 4]).reshape([
        rows,
        steps,
        heads * head_dim,
    ])
}
