// The visitor's games: stored in the browser, saved as a file, and imitated.

import { join_games as join, about_games as aboutGames } from "./watch.js";
import { $, write, say, reason } from "./dom.js";
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
    if (name === this.storedAs) return;
    this.storedAs = name;
    this.setFile(undefined);
    const file = await loadGames(name).catch(() => undefined); // a refused storage is reported when a policy is stored
    if (!file || name !== this.storedAs || this.file) return;
    try {
      this.setFile(file);
    } catch (error) {
      say(`Your recorded games cannot be read (${reason(error)}). The next ones take their place.`);
    }
  }

  /** Stores the games since the last time, if no game is under way. */
  collect(show) {
    const more = show?.take_games();
    if (more) this.add(this.storedAs, more);
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
    const isKnown = name === this.storedAs && this.file?.length === bytes.length && this.file.every((byte, i) => byte === bytes[i]);
    if (!isKnown) this.add(name, bytes);
    return about;
  }

  add(name, more) {
    if (name === this.storedAs) this.setFile(this.file ? join(this.file, more) : more);
    keepGames(name, more).catch((error) => {
      if (!this.hasComplained) say(`This browser stores no games (${reason(error)}). Save them as a file to keep them.`);
      this.hasComplained = true;
    });
  }

  setFile(file) {
    this.about = file && JSON.parse(aboutGames(file)); // throws if there are none
    this.file = file;
    $("mine").hidden = !file;
    if (file) write($("mine-about"), `${this.about.games} ${this.about.games === 1 ? "game" : "games"} recorded (${this.about.steps} moves)`);
  }
}
