// The visitor's games: stored in the browser, saved as a file, and imitated.

import { join_games as join, about_games as aboutGames } from "./watch.js";
import { $, setText, showNotice, reason } from "./dom.js";
import { keepGames, loadGames, download, readBytes } from "./keep.js";

/** The name of a game with these rules in the browser's storage. */
const storageName = (env, settings) => `${env} ${JSON.stringify(settings)}`;

export class Recordings {
  /** `imitate(about, file)` trains on a file of games. */
  constructor(imitate) {
    this.imitate = imitate;
    $("save-games").addEventListener("click", () => this.file && download(`${this.about.env}-games.safetensors`, this.file));
    $("imitate").addEventListener("click", () => this.file && this.imitate(this.about, this.file));
  }

  /** Loads the stored games of the game and rules on the stage, if there are any. */
  async setGame(env, settings) {
    const name = storageName(env, settings);
    if (name === this.storedName) return;
    this.storedName = name;
    this.setFile(undefined);
    const file = await loadGames(name).catch(() => undefined); // a refused storage is reported when a policy is stored
    if (!file || name !== this.storedName || this.file) return;
    try {
      this.setFile(file);
    } catch (error) {
      showNotice(`Your recorded games cannot be read (${reason(error)}). The next ones take their place.`);
    }
  }

  /** Stores the games since the last time, if no game is under way. */
  collect(show) {
    const newGames = show?.take_games();
    if (newGames) this.add(this.storedName, newGames);
  }

  /** Adds the games in a file that was saved here; what it holds, or undefined if that is no games. */
  async load(file) {
    const bytes = await readBytes(file);
    let about;
    try {
      about = JSON.parse(aboutGames(bytes));
    } catch {
      return undefined;
    }
    const name = storageName(about.env, about.settings);
    const isKnown = name === this.storedName && this.file?.length === bytes.length && this.file.every((byte, i) => byte === bytes[i]);
    if (!isKnown) this.add(name, bytes);
    return about;
  }

  add(name, newGames) {
    if (name === this.storedName) this.setFile(this.file ? join(this.file, newGames) : newGames);
    keepGames(name, newGames).catch((error) => {
      if (!this.hasComplained) showNotice(`This browser stores no games (${reason(error)}). Save them as a file to keep them.`);
      this.hasComplained = true;
    });
  }

  setFile(file) {
    this.about = file && JSON.parse(aboutGames(file)); // throws if there are none
    this.file = file;
    $("mine").hidden = !file;
    if (file) setText($("mine-about"), `${this.about.games} ${this.about.games === 1 ? "game" : "games"} recorded (${this.about.steps} moves)`);
  }
}
