//! A model of a user's own, whatever its type, as one of the networks that settings name.

use super::{FastForm, Memory, Model};
use crate::model::PolicyConfig;
use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
    Param,
};
use burn::tensor::{Device, Tensor};
use std::any::Any;
use std::fmt::{self, Debug, Formatter};

/// A model that can be made for any game from the settings of a run, where `policy.kind` names it.
pub trait NamedModel: Model + 'static {
    /// Its name in settings.
    const KIND: &'static str;

    /// One with fresh weights on `device`, the same for the same `key`. Which of the other settings of
    /// the policy it heeds is its own affair.
    fn new(
        num_features: usize,
        num_actions: usize,
        config: &PolicyConfig,
        key: u32,
        device: &Device,
    ) -> Self;
}

/// A model whose type is no longer told, so that all that is generic over models is compiled once for
/// all of them.
pub struct OwnModel {
    model: Box<dyn AnyModel>,
    num_features: usize,
    num_actions: usize,
}

impl OwnModel {
    /// One of the type `M` with fresh weights.
    pub fn new<M: NamedModel>(
        num_features: usize,
        num_actions: usize,
        config: &PolicyConfig,
        key: u32,
        device: &Device,
    ) -> Self {
        let model = M::new(num_features, num_actions, config, key, device);
        Self { model: Box::new(model), num_features, num_actions }
    }

    /// Features of an observation.
    pub fn num_features(&self) -> usize {
        self.num_features
    }

    /// Actions.
    pub fn num_actions(&self) -> usize {
        self.num_actions
    }

    /// The same around another model.
    fn with(&self, model: Box<dyn AnyModel>) -> Self {
        Self { model, ..*self }
    }
}

/// Its memory as numbers, if it has any.
impl Model for OwnModel {
    type Memory = Option<Tensor<2>>;

    fn initial_memory(&self, batch: usize, device: &Device) -> Option<Tensor<2>> {
        self.model.initial_memory(batch, device)
    }

    fn step(&self, obs: Tensor<2>, memory: Option<Tensor<2>>) -> (Tensor<2>, Option<Tensor<2>>) {
        self.model.step(obs, memory)
    }

    fn sequence(&self, obs: Tensor<3>, starts: Tensor<2>, memory: Option<Tensor<2>>) -> Tensor<3> {
        self.model.sequence(obs, starts, memory)
    }

    fn fast_form(&self) -> Option<FastForm<'_>> {
        self.model.fast_form()
    }
}

impl Clone for OwnModel {
    fn clone(&self) -> Self {
        self.with(self.model.copy())
    }
}

impl Debug for OwnModel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.model.fmt(f)
    }
}

/// What [`Model`] and [`Module`] have, without their generic functions.
trait AnyModel: Debug + Send + Sync {
    fn copy(&self) -> Box<dyn AnyModel>;
    fn devices(&self, devices: Devices) -> Devices;
    fn fork(&self, device: &Device) -> Box<dyn AnyModel>;
    fn to_device(&self, device: &Device) -> Box<dyn AnyModel>;
    fn train(&self) -> Box<dyn AnyModel>;
    fn valid(&self) -> Box<dyn AnyModel>;
    fn materialize(&self) -> Box<dyn AnyModel>;
    fn visit(&self, visitor: &mut dyn AnyVisitor);
    fn map(&self, mapper: &mut dyn AnyMapper) -> Box<dyn AnyModel>;
    fn fast_form(&self) -> Option<FastForm<'_>>;
    fn initial_memory(&self, batch: usize, device: &Device) -> Option<Tensor<2>>;
    fn step(&self, obs: Tensor<2>, memory: Option<Tensor<2>>) -> (Tensor<2>, Option<Tensor<2>>);
    fn sequence(&self, obs: Tensor<3>, starts: Tensor<2>, memory: Option<Tensor<2>>) -> Tensor<3>;
}

/// A model's memory of these games, where `rows` are its numbers.
fn remembered<M: Model>(
    model: &M,
    obs: &[usize],
    device: &Device,
    rows: Option<Tensor<2>>,
) -> M::Memory {
    let fresh = model.initial_memory(obs[obs.len() - 2], device);
    match rows {
        Some(rows) => fresh.with_rows(rows),
        None => fresh,
    }
}

impl<M: Model + 'static> AnyModel for M {
    fn copy(&self) -> Box<dyn AnyModel> {
        Box::new(self.clone())
    }

    fn devices(&self, devices: Devices) -> Devices {
        self.collect_devices(devices)
    }

    fn fork(&self, device: &Device) -> Box<dyn AnyModel> {
        Box::new(Module::fork(self.clone(), device))
    }

    fn to_device(&self, device: &Device) -> Box<dyn AnyModel> {
        Box::new(Module::to_device(self.clone(), device))
    }

    fn train(&self) -> Box<dyn AnyModel> {
        Box::new(Module::train(self.clone()))
    }

    fn valid(&self) -> Box<dyn AnyModel> {
        Box::new(Module::valid(self))
    }

    fn materialize(&self) -> Box<dyn AnyModel> {
        Box::new(Module::materialize(self.clone()))
    }

    fn visit(&self, visitor: &mut dyn AnyVisitor) {
        Module::visit(self, &mut Told(visitor));
    }

    fn map(&self, mapper: &mut dyn AnyMapper) -> Box<dyn AnyModel> {
        Box::new(Module::map(self.clone(), &mut Told(mapper)))
    }

    fn fast_form(&self) -> Option<FastForm<'_>> {
        Model::fast_form(self)
    }

    fn initial_memory(&self, batch: usize, device: &Device) -> Option<Tensor<2>> {
        Model::initial_memory(self, batch, device).rows()
    }

    fn step(&self, obs: Tensor<2>, memory: Option<Tensor<2>>) -> (Tensor<2>, Option<Tensor<2>>) {
        let memory = remembered(self, &obs.dims(), &obs.device(), memory);
        let (logits, memory) = Model::step(self, obs, memory);
        (logits, memory.rows())
    }

    fn sequence(&self, obs: Tensor<3>, starts: Tensor<2>, memory: Option<Tensor<2>>) -> Tensor<3> {
        let memory = remembered(self, &obs.dims(), &obs.device(), memory);
        Model::sequence(self, obs, starts, memory)
    }
}

/// A visitor that takes a `Param<Tensor<D>>` of any rank `D`.
trait AnyVisitor {
    fn float(&mut self, rank: usize, param: &dyn Any);
    fn enter(&mut self, name: &str, container: &str);
    fn exit(&mut self, name: &str, container: &str);
}

/// A mapper that takes and gives a `Param<Tensor<D>>` of any rank `D`.
trait AnyMapper {
    fn float(&mut self, rank: usize, param: Box<dyn Any>) -> Box<dyn Any>;
    fn enter(&mut self, name: &str, container: &str);
    fn exit(&mut self, name: &str, container: &str);
}

/// Tells one without generic functions what a module tells a visitor or a mapper.
struct Told<'a, T: ?Sized>(&'a mut T);

impl ModuleVisitor for Told<'_, dyn AnyVisitor + '_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.float(D, param);
    }

    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.0.enter(name, container_type);
    }

    fn exit_module(&mut self, name: &str, container_type: &str) {
        self.0.exit(name, container_type);
    }
}

impl ModuleMapper for Told<'_, dyn AnyMapper + '_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        *self.0.float(D, Box::new(param)).downcast().expect("it gives what it takes")
    }

    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.0.enter(name, container_type);
    }

    fn exit_module(&mut self, name: &str, container_type: &str) {
        self.0.exit(name, container_type);
    }
}

/// The generic visitor or mapper behind one without generic functions.
struct Behind<'a, T>(&'a mut T);

/// Runs the same with the rank as a constant.
macro_rules! for_rank {
    ($rank:expr, $D:ident => $run:expr; $($known:literal)*) => {
        match $rank {
            $($known => { const $D: usize = $known; $run })*
            rank => panic!("models have parameters of 1 to 8 dimensions, not {rank}"),
        }
    };
}

impl<V: ModuleVisitor> AnyVisitor for Behind<'_, V> {
    fn float(&mut self, rank: usize, param: &dyn Any) {
        for_rank!(rank, D => {
            let param = param.downcast_ref::<Param<Tensor<D>>>();
            self.0.visit_float(param.expect("the rank is the parameter's"));
        }; 1 2 3 4 5 6 7 8);
    }

    fn enter(&mut self, name: &str, container: &str) {
        self.0.enter_module(name, container);
    }

    fn exit(&mut self, name: &str, container: &str) {
        self.0.exit_module(name, container);
    }
}

impl<M: ModuleMapper> AnyMapper for Behind<'_, M> {
    fn float(&mut self, rank: usize, param: Box<dyn Any>) -> Box<dyn Any> {
        for_rank!(rank, D => {
            let param = param.downcast::<Param<Tensor<D>>>();
            Box::new(self.0.map_float(*param.expect("the rank is the parameter's")))
        }; 1 2 3 4 5 6 7 8)
    }

    fn enter(&mut self, name: &str, container: &str) {
        self.0.enter_module(name, container);
    }

    fn exit(&mut self, name: &str, container: &str) {
        self.0.exit_module(name, container);
    }
}

/// Of its parameters those of floats are told: no others are learnt.
impl Module for OwnModel {
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.model.devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        self.with(self.model.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.with(self.model.to_device(device))
    }

    fn train(self) -> Self {
        self.with(self.model.train())
    }

    fn valid(&self) -> Self {
        self.with(self.model.valid())
    }

    fn materialize(self) -> Self {
        self.with(self.model.materialize())
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.model.visit(&mut Behind(visitor));
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        self.with(self.model.map(&mut Behind(mapper)))
    }
}

impl ModuleDisplayDefault for OwnModel {
    fn content(&self, content: Content) -> Option<Content> {
        Some(content)
    }
}

impl ModuleDisplay for OwnModel {}
