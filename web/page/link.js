// The link: the part of the address after # carries the game and the settings.

/** Milliseconds until the next attempt where the browser refuses another address: Safari allows 100 in 30 seconds. */
const RETRY_MS = 1000;

let retryTimer;

/** The entries of the link, by name. */
export const readLink = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

/** Writes entries into the address without a navigation; undefined ones are left out. Returns the address. */
export function writeLink(entries) {
  clearTimeout(retryTimer);
  const setEntries = Object.entries(entries).filter(([, value]) => value !== undefined).map(([key, value]) => [key, `${value}`]);
  const hash = new URLSearchParams(setEntries).toString();
  const address = `${location.origin}${location.pathname}${location.search}#${hash}`;
  try {
    if (hash !== location.hash.slice(1)) history.replaceState(null, "", address);
  } catch {
    retryTimer = setTimeout(() => writeLink(entries), RETRY_MS);
  }
  return address;
}
