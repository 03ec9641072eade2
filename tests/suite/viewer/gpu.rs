//! GPU rendering: kernels compute the native sprites, and the shader matches the CPU renderer.

use super::{Games, wild_sprites};
use crate::shared::rollouts::perceptron;
use crate::support::{adapter, for_every_game, fruit};
use burn::tensor::{Device, Int, Tensor, TensorData};
use grove::device::graphics_setup;
use grove::env::look::Look;
use grove::env::{CartPole, Catch, Fruit, PackedState};
use grove::model::FlatMlp;
use grove::rollout::{DeviceGames, env_words};
use grove::settings::Activation;
use grove::viewer::{
    DeviceSprites, OffscreenError, OffscreenTarget, Picture, Renderer, Sprite,
    compute_sprites_on_device, paint,
};

/// An adapter as a Burn device with its wgpu handles.
struct Graphics {
    burn: Device,
    device: wgpu::Device,
    queue: wgpu::Queue,
}

/// Returns the adapter, or `None` if there is none or it is not wgpu's.
fn graphics() -> Option<Graphics> {
    let burn = adapter()?;
    let setup = graphics_setup(&burn)?;
    Some(Graphics { burn, device: setup.device, queue: setup.queue })
}

/// Environments in the layout of a device, `[env_words, games]`.
fn seats<G: Look>(
    games: &[(G::State, grove::env::Episode)],
    game: G,
    device: &Device,
) -> Tensor<2, Int> {
    let mut words = vec![0i32; env_words(game) * games.len()];
    for (i, (state, episode)) in games.iter().enumerate() {
        let header = [episode.level, episode.time, episode.score.to_bits()];
        let all = header.into_iter().chain(state.words());
        for (w, word) in all.take(env_words(game)).enumerate() {
            words[w * games.len() + i] = word as i32;
        }
    }
    Tensor::from_data(TensorData::new(words, [env_words(game), games.len()]), device)
}

/// Reads a buffer on the device.
fn read(
    sprites: &DeviceSprites,
    count: usize,
    Graphics { device, queue, .. }: &Graphics,
) -> Vec<Sprite> {
    let size = (count * size_of::<Sprite>()) as u64;
    let copy = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size,
        usage: wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ,
        mapped_at_creation: false,
    });
    let binding = sprites.binding();
    let mut encoder = device.create_command_encoder(&Default::default());
    encoder.copy_buffer_to_buffer(binding.buffer, binding.offset, &copy, 0, size);
    queue.submit([encoder.finish()]);
    copy.map_async(wgpu::MapMode::Read, .., |result| result.unwrap());
    device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
    let bytes = copy.get_mapped_range(..).unwrap();
    bytemuck::pod_collect_to_vec(&bytes[..])
}

fn assert_close(a: &Sprite, b: &Sprite, what: &str) {
    let numbers = |s: &Sprite| [s.x, s.y, s.width, s.height, s.rotation, s.repeat, s.opacity];
    let mut pairs = numbers(a).into_iter().zip(numbers(b));
    let same = a.tile == b.tile && pairs.all(|(a, b)| (a - b).abs() < 1e-4);
    assert!(same, "{what}: {a:?} instead of {b:?}");
}

/// Asserts that pictures agree up to rounding and a few pixels on the borders of rotated sprites.
fn assert_same(drawn: &Picture, painted: &Picture, rotated: bool, what: &str) {
    let pixels = drawn.pixels.chunks_exact(4).zip(painted.pixels.chunks_exact(4));
    let off = pixels.filter(|(a, b)| a.iter().zip(*b).any(|(a, b)| a.abs_diff(*b) > 1)).count();
    let all = painted.pixels.len() / 4;
    let allowed = if rotated { all / 500 } else { 0 };
    assert!(off <= allowed, "{what}: {off} of {all} pixels differ");
}

fn assert_kernel_is_native<G: Look>(game: G, graphics: &Graphics) {
    let mut games = Games::new(game, 67);
    for step in 0..45 {
        games.step();
        // Some steps, including one at which levels start.
        if step % 13 != 0 && step + 1 != game.max_steps() {
            continue;
        }
        let (before, now) = (&games.before, &games.now);
        let (before, now) = (seats(before, game, &graphics.burn), seats(now, game, &graphics.burn));
        for part in [0.0, 0.8, 1.0] {
            let native = games.compute_sprites(part);
            let buffer = compute_sprites_on_device(game, &before, &now, part);
            let computed = read(&buffer, native.len(), graphics);
            for (computed, native) in computed.iter().zip(&native) {
                assert_close(computed, native, &format!("{game:?}, step {step}, part {part}"));
            }
        }
    }
}

#[test]
fn kernels_compute_the_native_sprites() {
    let Some(graphics) = graphics() else { return };
    for_every_game!(game => assert_kernel_is_native(game, &graphics));
    assert_kernel_is_native(Fruit { max_steps: 30, ..Fruit::default() }, &graphics);
    assert_kernel_is_native(crowded_fruit(), &graphics);
    assert_kernel_is_native(CartPole { max_steps: 30 }, &graphics);
}

#[test]
fn games_that_a_gpu_plays_move_between_their_steps() {
    let Some(graphics) = graphics() else { return };
    let (game, count) = (Catch::default(), 67);
    let policy = perceptron(game, &[16], Activation::Tanh, &graphics.burn);
    let policy = FlatMlp::from_mlp(&policy).unwrap();
    let mut games = DeviceGames::new(game, count, 9, &graphics.burn);
    games.step(&policy);
    let [before, now] = games.step(&policy);
    let rows = |part| -> Vec<f32> {
        let sprites = compute_sprites_on_device(game, &before, &now, part);
        let sprites = read(&sprites, 2 * count, &graphics);
        // The paddle and the ball of each game.
        sprites.chunks_exact(2).map(|sprites| sprites[1].y).collect()
    };
    let falls: Vec<f32> = rows(1.0).iter().zip(rows(0.25)).map(|(end, way)| end - way).collect();
    // The balls of games that start a level rest.
    assert!(falls.iter().all(|fall| [0.0, 0.75].contains(fall)), "{falls:?}");
    assert!(falls.iter().filter(|fall| **fall > 0.0).count() > count / 2, "{falls:?}");
}

/// Many fruits, a basket of two cells, and landings at every step.
fn crowded_fruit() -> Fruit {
    fruit([5, 4, 2, 8, 2, 1, 30])
}

fn assert_gpu_draws_what_the_cpu_paints<G: Look>(game: G, graphics: &Graphics) {
    let Graphics { device, queue, .. } = graphics;
    let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let mut renderer = Renderer::new(device, queue, OffscreenTarget::FORMAT, &game);
    let num_sprites = game.num_sprites();
    let mut games = Games::new(game, 211);
    (0..9).for_each(|_| games.step());
    let sprites = games.compute_sprites(0.37);
    for (width, height) in [(700, 333), (352, 272), (501, 499)] {
        let offscreen = OffscreenTarget::new(device, queue, width, height).unwrap();
        let mut painted = Picture::new(width, height);
        let mut compare = |count: usize, sprites: &[Sprite]| {
            renderer.draw(offscreen.view(), width, height, count, sprites);
            paint(&game, count, sprites, &mut painted);
            let rotated = sprites.iter().any(|sprite| sprite.rotation != 0.0);
            let what = format!("{game:?}, {count} games, {width} x {height}");
            assert_same(&offscreen.read().unwrap(), &painted, rotated, &what);
        };
        for count in [1, 7, 211] {
            compare(count, &sprites[..count * num_sprites]);
        }
        compare(9, &wild_sprites(num_sprites, game.size()));
    }
    assert!(pollster::block_on(scope.pop()).is_none(), "the shader and what it is given are valid");
}

#[test]
fn a_gpu_draws_what_the_cpu_paints() {
    let Some(graphics) = graphics() else { return };
    for_every_game!(game => assert_gpu_draws_what_the_cpu_paints(game, &graphics));
    assert_gpu_draws_what_the_cpu_paints(crowded_fruit(), &graphics);
}

#[test]
fn a_grid_is_drawn_from_a_kernels_buffer() {
    let Some(graphics) = graphics() else { return };
    let game = Fruit::default();
    let mut games = Games::new(game, 1024);
    (0..31).for_each(|_| games.step());
    let (before, now) =
        (seats(&games.before, game, &graphics.burn), seats(&games.now, game, &graphics.burn));
    let (width, height) = (1200, 800);
    let offscreen = OffscreenTarget::new(&graphics.device, &graphics.queue, width, height).unwrap();
    let renderer = Renderer::new(&graphics.device, &graphics.queue, OffscreenTarget::FORMAT, &game);
    let mut painted = Picture::new(width, height);
    // Two buffers at a time: the second must not overwrite the first.
    let buffers = [0.25, 0.5].map(|part| compute_sprites_on_device(game, &before, &now, part));
    for (buffer, part) in buffers.iter().zip([0.25, 0.5]) {
        renderer.draw_buffer(offscreen.view(), width, height, 1024, buffer.binding());
        paint(&game, 1024, &games.compute_sprites(part), &mut painted);
        assert_same(&offscreen.read().unwrap(), &painted, false, &format!("part {part}"));
    }
}

#[test]
fn an_unsupported_target_is_an_error() {
    let Some(Graphics { device, queue, .. }) = graphics() else { return };
    let limit = device.limits().max_texture_dimension_2d;
    for (width, height) in [(0, 5), (5, 0), (limit + 1, 5), (5, limit + 1)] {
        let refused = OffscreenTarget::new(&device, &queue, width, height);
        assert!(matches!(refused, Err(OffscreenError::Size { .. })), "{width} x {height}");
    }
}
