// The service worker of a host that cannot send headers, such as GitHub Pages: adds those of cross-origin isolation to
// every response, and caches nothing.

const HEADERS = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
  "Cross-Origin-Resource-Policy": "same-origin",
};

addEventListener("install", () => skipWaiting());
addEventListener("activate", (event) => event.waitUntil(clients.claim()));
addEventListener("fetch", (event) => {
  if (event.request.method !== "GET" || new URL(event.request.url).origin !== location.origin) return;
  event.respondWith(fetch(event.request).then((response) => {
    const { body, status, statusText, headers } = response;
    if (status === 0) return response; // a redirect, which the browser follows
    const isolated = new Headers(headers);
    for (const [name, value] of Object.entries(HEADERS)) isolated.set(name, value);
    return new Response([204, 304].includes(status) ? null : body, { status, statusText, headers: isolated });
  }));
});
