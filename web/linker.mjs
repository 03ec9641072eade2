#!/usr/bin/env node
// Links a module without the static constructors of its libraries: some thousand functions that register the operations
// of CubeCL's compiler. The linker keeps whatever they reach, which is more than half of a module that compiles no kernels.
// rustc calls this in place of its own linker.

import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';

// https://github.com/WebAssembly/tool-conventions/blob/main/Linking.md
const HEADER = 8; // bytes: the magic number and the version
const CUSTOM = 0; // a kind of section
const INIT_FUNCS = 6; // a kind of part of the section "linking"

/** The number, in LEB128, at this place of the bytes; and the place after it. */
function number(bytes, at) {
  let [value, scale] = [0, 1];
  for (;;) {
    const byte = bytes[at++];
    value += (byte & 127) * scale;
    scale *= 128;
    if (byte < 128) return [value, at];
  }
}

/** A number in LEB128. */
function written(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) | 128);
  return Buffer.from([...bytes, value]);
}

/** Pieces of the bytes from one place to another: kind, content, and the whole of each. */
function* pieces(bytes, at, end) {
  while (at < end) {
    const [size, start] = number(bytes, at + 1);
    yield { kind: bytes[at], content: bytes.subarray(start, start + size), whole: bytes.subarray(at, start + size) };
    at = start + size;
  }
}

/** A section of an object file, without constructors. */
function without({ kind, content, whole }) {
  const [length, start] = number(content, 0);
  if (kind !== CUSTOM || content.toString('latin1', start, start + length) !== 'linking') return whole;
  const [, body] = number(content, start + length); // after the version
  const parts = [...pieces(content, body, content.length)].filter((part) => part.kind !== INIT_FUNCS);
  const kept = Buffer.concat([content.subarray(0, body), ...parts.map((part) => part.whole)]);
  return Buffer.concat([Buffer.from([CUSTOM]), written(kept.length), kept]);
}

const words = process.argv.slice(2);
for (const path of words.filter((word) => word.endsWith('.o'))) {
  const bytes = readFileSync(path);
  const sections = [...pieces(bytes, HEADER, bytes.length)].map(without);
  writeFileSync(path, Buffer.concat([bytes.subarray(0, HEADER), ...sections]));
}
// rustc has its folder in PATH.
const { status, error } = spawnSync('rust-lld', words[0] === '-flavor' ? words : ['-flavor', 'wasm', ...words], { stdio: 'inherit' });
if (error) throw error;
process.exitCode = status ?? 1;
