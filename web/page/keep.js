// Keeping policies and a run: as files of the visitor's, and the last ones in the browser's storage.

import { Policy } from "./watch.js";
import { make } from "./dom.js";

/** Gives the visitor a file. */
export function download(name, bytes) {
  const url = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** The policy file in one file, or in `config.toml` and `weights.safetensors`; throws if there is none. */
export async function readFiles(files) {
  const settings = files.find(({ name }) => name.endsWith(".toml"));
  const weights = files.find((file) => file !== settings);
  if (!weights || files.length > 2 || (files.length === 2 && !settings)) {
    throw new Error("Choose one policy file, or config.toml and weights.safetensors together.");
  }
  const bytes = new Uint8Array(await weights.arrayBuffer());
  const policy = settings ? Policy.from_parts(await settings.text(), bytes) : new Policy(bytes);
  try {
    return policy.file();
  } finally {
    policy.free();
  }
}

/** Calls `take` with the files that are dropped on the page. */
export function onDrop(take) {
  const root = document.documentElement;
  addEventListener("dragover", (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    root.classList.add("dropping");
  });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) root.classList.remove("dropping"); });
  addEventListener("drop", (event) => {
    event.preventDefault();
    root.classList.remove("dropping");
    if (event.dataTransfer.files.length > 0) take([...event.dataTransfer.files]);
  });
}

/** Does something with the one drawer of the storage; rejects if the browser refuses. */
function withDrawer(mode, ask) {
  return new Promise((done, fail) => {
    const opening = indexedDB.open("grove", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("policies");
    opening.onerror = () => fail(opening.error);
    opening.onsuccess = () => {
      const base = opening.result;
      const transaction = base.transaction("policies", mode);
      const request = ask(transaction.objectStore("policies"));
      transaction.oncomplete = () => { base.close(); done(request.result); };
      transaction.onerror = transaction.onabort = () => { base.close(); fail(transaction.error); };
    };
  });
}

/** Keeps a policy file as the last one. */
export const keepLast = (file) => withDrawer("readwrite", (drawer) => drawer.put(file, "last"));

/** The policy file that was kept last, or undefined. */
export const lastKept = () => withDrawer("readonly", (drawer) => drawer.get("last"));

/** Keeps the games of a person, a file, by what they are of. */
export const keepGames = (of, file) => withDrawer("readwrite", (drawer) => drawer.put(file, `games ${of}`));

/** The games that were kept of this, or undefined. */
export const keptGames = (of) => withDrawer("readonly", (drawer) => drawer.get(`games ${of}`));

/** Keeps a training, as plain data, so that a reload can go on with it; `name` is "run", or "text" for that of text. */
export const keepRun = (run, name = "run") => withDrawer("readwrite", (drawer) => drawer.put(run, name));

/** The training that was kept, or undefined. */
export const keptRun = (name = "run") => withDrawer("readonly", (drawer) => drawer.get(name));

/** Forgets it. */
export const forgetRun = (name = "run") => withDrawer("readwrite", (drawer) => drawer.delete(name));

/** Whether this tab is the one that trains. */
let trains = false;

/** Whether no other tab of this page trains; then this one does, from now on. Where the browser cannot say, it may. */
export async function onlyHere() {
  return (trains ||= !navigator.locks || (await nowhereElse()));
}

function nowhereElse() {
  return new Promise((done) => {
    navigator.locks.request("grove-training", { ifAvailable: true }, (lock) => {
      done(lock !== null);
      return lock && new Promise(() => {});
    }).catch(() => done(true));
  });
}
