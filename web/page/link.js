// The link: the part of the address after # carries the game and the settings.

/** The entries of the link, by name. */
export const readLink = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

/** Writes entries into the address without a navigation; undefined ones are left out. */
export function writeLink(entries) {
  const kept = Object.entries(entries).filter(([, value]) => value !== undefined).map(([key, value]) => [key, `${value}`]);
  const hash = new URLSearchParams(kept).toString();
  if (hash !== location.hash.slice(1)) history.replaceState(null, "", `${location.pathname}${location.search}#${hash}`);
}
