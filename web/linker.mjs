#!/usr/bin/env node
// Links a module without the static constructors of its libraries: some thousand functions that register the operations
// of CubeCL's compiler. The linker keeps whatever they reach, which is more than half of a module that compiles no
// kernels. rustc calls this in place of its own linker.

import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';

// https://github.com/WebAssembly/tool-conventions/blob/main/Linking.md
const HEADER_BYTES = 8; // the magic number and the version
const CUSTOM_SECTION = 0; // a kind of section
const INIT_FUNCS_PART = 6; // a kind of part of the section "linking"

/** Reads a number in LEB128 at this place of the bytes; returns it and the place after it. */
function readLeb128(bytes, at) {
  let [value, scale] = [0, 1];
  for (;;) {
    const byte = bytes[at++];
    value += (byte & 127) * scale;
    scale *= 128;
    if (byte < 128) return [value, at];
  }
}

/** Writes a number in LEB128. */
function writeLeb128(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) | 128);
  return Buffer.from([...bytes, value]);
}

/** Splits the bytes from one place to another: kind, content, and the whole of each. */
function* splitParts(bytes, at, end) {
  while (at < end) {
    const [size, start] = readLeb128(bytes, at + 1);
    yield { kind: bytes[at], content: bytes.subarray(start, start + size), whole: bytes.subarray(at, start + size) };
    at = start + size;
  }
}

/** A section of an object file, without constructors. */
function withoutConstructors({ kind, content, whole }) {
  const [length, start] = readLeb128(content, 0);
  if (kind !== CUSTOM_SECTION || content.toString('latin1', start, start + length) !== 'linking') return whole;
  const [, body] = readLeb128(content, start + length); // after the version
  const parts = [...splitParts(content, body, content.length)].filter((part) => part.kind !== INIT_FUNCS_PART);
  const kept = Buffer.concat([content.subarray(0, body), ...parts.map((part) => part.whole)]);
  return Buffer.concat([Buffer.from([CUSTOM_SECTION]), writeLeb128(kept.length), kept]);
}

const linkerArguments = process.argv.slice(2);
for (const path of linkerArguments.filter((word) => word.endsWith('.o'))) {
  const bytes = readFileSync(path);
  const sections = [...splitParts(bytes, HEADER_BYTES, bytes.length)].map(withoutConstructors);
  writeFileSync(path, Buffer.concat([bytes.subarray(0, HEADER_BYTES), ...sections]));
}
// rustc has its folder in PATH.
const { status, error } = spawnSync('rust-lld', linkerArguments[0] === '-flavor' ? linkerArguments : ['-flavor', 'wasm', ...linkerArguments], { stdio: 'inherit' });
if (error) throw error;
process.exitCode = status ?? 1;
