// Storage of policies and runs: as files, and in the browser.

import { Policy, join_games as join } from "./watch.js";
import { make, formatMegabytes } from "./dom.js";

/** Milliseconds in which another tab answers that it has a lock. */
const LOCK_ANSWER_MS = 500;

/** Offers a file for download: bytes, or a text, which becomes UTF-8. */
export function download(name, content) {
  const url = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** The largest file that is read, in bytes: a policy of a million parameters has 4 MB; modules keep their memory. */
const MAX_FILE_BYTES = 64e6;

/** The bytes of a file; throws if it is too large for the page. */
export async function readBytes(file) {
  if (file.size > MAX_FILE_BYTES) throw new Error(`The file has ${formatMegabytes(file.size)}, more than the ${formatMegabytes(MAX_FILE_BYTES)} that this page reads.`);
  return new Uint8Array(await file.arrayBuffer());
}

/** Reads a policy from one file, or from `config.toml` and `weights.safetensors`; throws if there is none. */
export async function readFiles(files) {
  const settings = files.find(({ name }) => name.endsWith(".toml"));
  const weights = files.find((file) => file !== settings);
  if (!weights || files.length > 2 || (files.length === 2 && !settings)) {
    throw new Error("Choose one policy file, or config.toml and weights.safetensors together.");
  }
  const bytes = await readBytes(weights);
  return takeFile(settings ? Policy.from_parts(new TextDecoder().decode(await readBytes(settings)), bytes) : new Policy(bytes));
}

/** Reads a policy from the bytes of one file; throws if there is none. */
export const readPolicy = (bytes) => takeFile(new Policy(bytes));

/** The file of a policy, which is freed. */
export function takeFile(policy) {
  try {
    return policy.file();
  } finally {
    policy.free();
  }
}

/** Whether a file holds a language model: the names of its tensors, in the header of safetensors, say so. */
export async function isLanguageModel(file) {
  if (!file?.name.endsWith(".safetensors") || file.size < 8 || file.size > MAX_FILE_BYTES) return false;
  const length = Number(new DataView(await file.slice(0, 8).arrayBuffer()).getBigUint64(0, true));
  return length < file.size && (await file.slice(8, 8 + length).text()).includes("embed_tokens");
}

/** Calls `take` with files dropped on the page. */
export function onDrop(take) {
  const root = document.documentElement;
  // A text goes into the field that it is dropped on.
  const hasFiles = (event) => event.dataTransfer.types.includes("Files");
  addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    root.classList.add("dropping");
  });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) root.classList.remove("dropping"); });
  addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    root.classList.remove("dropping");
    if (event.dataTransfer.files.length > 0) take([...event.dataTransfer.files]);
  });
}

/** Runs a request on the object store; rejects if the browser refuses. */
function withStore(mode, ask) {
  return new Promise((done, fail) => {
    const opening = indexedDB.open("grove", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("policies");
    opening.onerror = () => fail(refusalError(opening.error));
    opening.onblocked = () => fail(new Error("another tab has its storage in use"));
    opening.onsuccess = () => {
      const base = opening.result;
      let transaction;
      try {
        transaction = base.transaction("policies", mode);
        const request = ask(transaction.objectStore("policies"));
        transaction.oncomplete = () => { base.close(); done(request?.result); };
        // Each failure of a request ends in this, and only now the transaction has its error.
        transaction.onabort = () => { base.close(); fail(refusalError(transaction.error)); };
      } catch (error) {
        // The connection is closing, another page has made the database, or there is no memory for a copy.
        transaction?.abort();
        base.close();
        fail(error);
      }
    };
  });
}

/** The error of a storage that refuses: a browser's own words for a full one are empty or its own. */
const refusalError = (error) => (error?.name === "QuotaExceededError" ? new Error("its storage is full") : error ?? new Error("it gives no reason"));

/** Stores a policy file as the last one. */
export const keepLast = (file) => withStore("readwrite", (store) => store.put(file, "last"));

/** The last policy file, or undefined. */
export const loadLast = () => withStore("readonly", (store) => store.get("last"));

/** Adds a person's games, a file, to those stored by the name of their game and rules, perhaps by another tab; what is
    stored and cannot be read is replaced. */
export const keepGames = (name, file) => withStore("readwrite", (store) => {
  const request = store.get(`games ${name}`);
  request.onsuccess = () => store.put(joinOrReplace(request.result, file), `games ${name}`);
  return request;
});

/** Two files of games as one. */
function joinOrReplace(first, second) {
  try {
    return first ? join(first, second) : second;
  } catch {
    return second;
  }
}

/** The stored games, or undefined. */
export const loadGames = (name) => withStore("readonly", (store) => store.get(`games ${name}`));

/** Stores runs as plain data by their names, all of them or none, so that a reload can resume them; one that is
    undefined is deleted. */
export const keepRuns = (runs) => withStore("readwrite", (store) => {
  for (const [name, run] of Object.entries(runs)) {
    if (run === undefined) store.delete(name);
    else store.put(run, name);
  }
});

/** The stored run, or undefined. */
export const loadRun = (name) => withStore("readonly", (store) => store.get(name));

/** Takes the lock of a stored run, unless another tab of this page has it; returns the function that releases it, or
    undefined. */
export function lockRun(name) {
  if (!navigator.locks) return askTabs(`grove-${name}`);
  return new Promise((done) => {
    const hold = (lock) => (lock ? new Promise((release) => done(release)) : done(undefined));
    navigator.locks.request(`grove-${name}`, { ifAvailable: true }, hold).catch(() => done(() => {}));
  });
}

/** Takes the lock by asking the other tabs, where the browser has no locks (plain HTTP): who has it answers, and of
    those that ask at the same time the one with the smallest number gets it. */
function askTabs(name) {
  const channel = new BroadcastChannel(name);
  return new Promise((done) => {
    let isHeld = false;
    const timer = setTimeout(() => { isHeld = true; done(() => channel.close()); }, LOCK_ANSWER_MS);
    const number = Math.random();
    channel.onmessage = ({ data: { wanted, held } }) => {
      if (wanted !== undefined && (isHeld || number < wanted)) return channel.postMessage({ held: wanted });
      if (isHeld || !(wanted < number || held === number)) return;
      clearTimeout(timer);
      channel.close();
      done(undefined);
    };
    channel.postMessage({ wanted: number });
  });
}
