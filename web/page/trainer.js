// The training modules, in the fastest form for this browser.

import { relaxed } from "./ready.js";

/**
 * A module with one relaxed-SIMD instruction, a fused multiply-add of four numbers; "relaxed" since it rounds once or
 * twice, by processor. A browser that validates it runs the relaxed modules.
 */
const RELAXED_SIMD_MODULE = Uint8Array.of(
  0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00, // WebAssembly, version 1
  0x01, 0x08, 0x01, 0x60, 0x03, 0x7b, 0x7b, 0x7b, 0x01, 0x7b, // a type: three vectors to one
  0x03, 0x02, 0x01, 0x00, // a function of it
  0x0a, 0x0d, 0x01, 0x0b, 0x00, 0x20, 0x00, 0x20, 0x01, 0x20, 0x02, 0xfd, 0x85, 0x02, 0x0b, // f32x4.relaxed_madd
);

/** Imports the module "train" for games, or "text"; its default export fetches and starts it. */
export const importTrainer = (name) => import(`./${name}${relaxed && WebAssembly.validate(RELAXED_SIMD_MODULE) ? "-relaxed" : ""}.js`);
