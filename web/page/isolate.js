// Registers the service worker that isolates the page on hosts without such headers, so that workers share memory.

const RELOADED_KEY = "grove-isolated";

/** Whether the visitor has begun to use the page. */
let hasBegun = false;
for (const event of ["pointerdown", "keydown", "drop"]) addEventListener(event, () => { hasBegun = true; }, { capture: true, once: true });

/** Reloads the page under the service worker, once in a session, if the host does not isolate it. A visitor who has
    begun to use the page keeps it as it is: the next visit is isolated. */
export async function isolate() {
  if (globalThis.crossOriginIsolated || "SharedArrayBuffer" in globalThis || !isSecureContext || !navigator.serviceWorker) return;
  try {
    if (sessionStorage.getItem(RELOADED_KEY)) return;
    await navigator.serviceWorker.register(new URL("service.js", import.meta.url), { scope: "./" });
    await navigator.serviceWorker.ready;
    if (hasBegun) return;
    sessionStorage.setItem(RELOADED_KEY, "yes");
    location.reload();
    await new Promise(() => {}); // nothing begins on a page that is about to go
  } catch {
    // Without isolation one worker trains instead of several.
  }
}
