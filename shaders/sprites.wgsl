// Sprites over backgrounds, on a wall of games: the GPU's form of `src/viewer/paint.rs`.

// Layout of the games in the picture (`viewer::Wall`), in pixels; `cells` is the size of a scene in cells.
struct Layout {
    picture: vec2<f32>,
    cells: vec2<u32>,
    board: vec2<u32>,
    first: vec2<u32>,
    gap: u32,
    columns: u32,
    count: u32,
    sprites: u32,
    scale: f32,
    // The size of a uniform is a multiple of 16 bytes.
    unused_a: u32,
    unused_b: u32,
    unused_c: u32,
}

struct Sprite {
    x: f32,
    y: f32,
    width: f32,
    height: f32,
    rotation: f32,
    tile: u32,
    repeat: f32,
    opacity: f32,
}

@group(0) @binding(0) var<uniform> wall: Layout;
// Tiles of 16 x 16 pixels, one below the other.
@group(0) @binding(1) var atlas: texture_2d<f32>;
// The tile of each cell of a scene, row by row.
@group(0) @binding(2) var<storage, read> background: array<u32>;
// The sprites, game by game.
@group(0) @binding(3) var<storage, read> sprites: array<Sprite>;

const TILE: f32 = 16.0;
// Added to a position before it is rounded down, so that rounding does not decide on which side borders lie.
const ROUNDING_MARGIN: f32 = 0.01;

fn clip_space(pixel: vec2<f32>) -> vec4<f32> {
    let at = pixel / wall.picture * 2.0 - 1.0;
    return vec4(at.x, -at.y, 0.0, 1.0);
}

fn texel(tile: u32, inside: vec2<f32>) -> vec4<f32> {
    let pixel = min(vec2<u32>(inside * TILE + ROUNDING_MARGIN), vec2(15u));
    return textureLoad(atlas, vec2(pixel.x, pixel.y + tile * 16u), 0);
}

@vertex
fn whole_picture(@builtin(vertex_index) corner: u32) -> @builtin(position) vec4<f32> {
    // One triangle that is larger than the picture.
    return vec4(f32(corner % 2u) * 4.0 - 1.0, f32(corner / 2u) * 4.0 - 1.0, 0.0, 1.0);
}

@fragment
fn paint_background(@builtin(position) position: vec4<f32>) -> @location(0) vec4<f32> {
    let pixel = vec2<u32>(position.xy);
    if any(pixel < wall.first) {
        discard;
    }
    let stride = wall.board + wall.gap;
    let board = (pixel - wall.first) / stride;
    let inside = (pixel - wall.first) % stride;
    if any(inside >= wall.board) || board.x >= wall.columns
        || board.y * wall.columns + board.x >= wall.count {
        discard;
    }
    let at = (vec2<f32>(inside) + 0.5) / wall.scale;
    let cell = min(vec2<u32>(at), wall.cells - 1u);
    return texel(background[cell.y * wall.cells.x + cell.x], at - vec2<f32>(cell));
}

struct Quad {
    @builtin(position) position: vec4<f32>,
    // The board's upper left corner.
    @location(0) @interpolate(flat) board: vec2<f32>,
    // On its board.
    @location(1) @interpolate(flat) centre: vec2<f32>,
    @location(2) @interpolate(flat) size: vec2<f32>,
    // Its cosine and sine.
    @location(3) @interpolate(flat) rotation: vec2<f32>,
    @location(4) @interpolate(flat) tile: u32,
    @location(5) @interpolate(flat) repeat_and_opacity: vec2<f32>,
}

@vertex
fn sprite(@builtin(vertex_index) corner: u32, @builtin(instance_index) index: u32) -> Quad {
    let sprite = sprites[index];
    let game = index / wall.sprites;
    let place = vec2(game % wall.columns, game / wall.columns);
    let board = vec2<f32>(wall.first + place * (wall.board + wall.gap));
    let centre = vec2(sprite.x, sprite.y) * wall.scale;
    let exact = vec2(sprite.width, sprite.height) * wall.scale;

    var quad: Quad;
    var low: vec2<f32>;
    var high: vec2<f32>;
    if sprite.rotation == 0.0 {
        // An upright sprite begins and ends at whole pixels, so that it keeps its look as it moves.
        low = floor(centre - 0.5 * exact + 0.5 + ROUNDING_MARGIN);
        high = max(floor(centre + 0.5 * exact + 0.5 + ROUNDING_MARGIN), low + 1.0);
        quad.centre = 0.5 * (low + high);
        quad.size = high - low;
        quad.rotation = vec2(1.0, 0.0);
    } else {
        quad.centre = centre;
        quad.size = max(exact, vec2(1.0));
        quad.rotation = vec2(cos(sprite.rotation), sin(sprite.rotation));
        let rotation = abs(quad.rotation);
        let half = 0.5 * vec2(dot(quad.size, rotation), dot(quad.size, rotation.yx));
        low = floor(centre - half);
        high = ceil(centre + half);
    }
    // Nothing leaves its board.
    low = clamp(low, vec2(0.0), vec2<f32>(wall.board));
    high = clamp(high, vec2(0.0), vec2<f32>(wall.board));
    if sprite.opacity <= 0.0 {
        high = low;
    }
    // Two triangles: the corners 0, 1, 2 and 2, 1, 3.
    let numbers = array(0u, 1u, 2u, 2u, 1u, 3u);
    let number = numbers[corner];
    let side = vec2(f32(number % 2u), f32(number / 2u));
    quad.position = clip_space(board + mix(low, high, side));
    quad.board = board;
    quad.tile = sprite.tile;
    quad.repeat_and_opacity = vec2(sprite.repeat, sprite.opacity);
    return quad;
}

@fragment
fn paint_sprite(quad: Quad) -> @location(0) vec4<f32> {
    let d = floor(quad.position.xy) + 0.5 - quad.board - quad.centre;
    let rotated = vec2(dot(d, quad.rotation), d.y * quad.rotation.x - d.x * quad.rotation.y);
    let at = rotated / quad.size + 0.5;
    if any(at < vec2(0.0)) || any(at >= vec2(1.0)) {
        discard;
    }
    let colour = texel(quad.tile, vec2(fract(at.x * quad.repeat_and_opacity.x), at.y));
    if colour.a == 0.0 {
        discard;
    }
    let opacity = min(quad.repeat_and_opacity.y, 1.0);
    return vec4(colour.rgb * opacity, opacity);
}
