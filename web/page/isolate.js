// Registers the service worker that isolates the page on hosts which send no such headers, so that workers may share memory.

const DONE = "grove-isolated";

/** Reloads the page under the service worker, once in a session, if the host does not isolate it. */
export async function isolate() {
  if (globalThis.crossOriginIsolated || "SharedArrayBuffer" in globalThis || !isSecureContext || !navigator.serviceWorker) return;
  try {
    if (sessionStorage.getItem(DONE)) return;
    await navigator.serviceWorker.register(new URL("service.js", import.meta.url), { scope: "./" });
    await navigator.serviceWorker.ready;
    sessionStorage.setItem(DONE, "yes");
    location.reload();
  } catch {
    // Without isolation one worker trains instead of several.
  }
}
