// The pretrained agents that come with the page, each fetched once.

import { reason } from "./dom.js";
import { readPolicy } from "./keep.js";

const agentFiles = new Map(); // promises, by game

async function fetchAgent(game) {
  const answer = await fetch(`policies/${game}.safetensors`).catch(() => {
    throw new Error(`The pretrained agent for ${game} cannot be fetched. Is this device offline?`);
  });
  if (!answer.ok) throw new Error(`No pretrained agent for ${game} was found (${answer.status}). Train one.`);
  return new Uint8Array(await answer.arrayBuffer());
}

/** Fetches the file of a game's agent, once. */
export function prefetch(game) {
  if (!agentFiles.has(game)) {
    agentFiles.set(game, fetchAgent(game));
    agentFiles.get(game).catch(() => agentFiles.delete(game));
  }
  return agentFiles.get(game);
}

/** The file of a game's agent; throws if it cannot be read: it would break all that read the list of agents. */
export async function loadPretrained(game) {
  const file = await prefetch(game);
  try {
    readPolicy(file);
  } catch (error) {
    agentFiles.delete(game);
    throw new Error(`The pretrained agent for ${game} cannot be read: ${reason(error)}`);
  }
  return file;
}
