// The entry point: fetches the trained agent and the module, shows the game, and connects all parts of the page.

import READY, { source } from "./ready.js";
import init, { Policy, Show, games as listGames, version } from "./watch.js";
import { $, make, tick, setText, showNotice, announce, ignorePresses, formatShort, formatMegabytes, reason, sentence } from "./dom.js";
import { Stage } from "./stage.js";
import { Player, SPEEDS, speedName } from "./player.js";
import { Panel } from "./panel.js";
import { Takeover } from "./takeover.js";
import { Agents } from "./agents.js";
import { Rivals } from "./rivals.js";
import { download, isLanguageModel, readFiles, readPolicy, takeFile, onDrop, loadLast } from "./keep.js";
import { prefetch, loadPretrained } from "./pretrained.js";
import { readLink, writeLink } from "./link.js";
import { isolate } from "./isolate.js";
import { reportAbsences } from "./absence.js";
import { copyLink, linkProject, pack, unpack } from "./share.js";
import { shadeBoards } from "./shade.js";
import { settingAt, readToml } from "./toml.js";
import { Lab } from "./lab.js";
import { Recordings } from "./recordings.js";
import { TextLab } from "./text_lab.js";
import { DELETED, Live, askRun } from "./live.js";
import { Curves, TEXT_CURVES } from "./curves.js";

/** The largest seed: 32 bits. */
const MAX_SEED = 2 ** 32 - 1;
/** The fastest speed of a game with a person. */
const FASTEST_FOR_PEOPLE = 4;
/** The task of the language model, a choice beside the games. */
const TASK = "sort";

// `requests` counts what the visitor has asked for: what arrives for an earlier request is late.
const view = { policy: undefined, about: undefined, show: undefined, seed: 1, games: 1, isSampled: false, requests: 0 };

const isolating = isolate();
// The first file is fetched while the module compiles.
const link = readLink();
if (READY.length > 0) prefetch(READY.includes(link.game) ? link.game : READY[0]).catch(() => {});
const { memory } = await init().catch((error) => {
  const why = globalThis.WebAssembly ? `The page could not be started (${reason(error)}). Reload it to try again.` : "This page needs WebAssembly, which is disabled in this browser.";
  setText($("waiting"), why);
  throw error;
});
const games = JSON.parse(listGames());
const knownGame = (game) => (games.some(({ name }) => name === game) ? game : games[0].name);
const firstGame = knownGame(link.game);

let stepCount = 0;
let countedSince = performance.now();
const stage = new Stage($("stage"), () => player.touch());
const panel = new Panel();
const player = new Player({ step, draw, onChange: () => setText($("play"), player.isPlaying ? "Pause" : "Play") });
const takeover = new Takeover({
  change: takeOver,
  go: (isRunning) => { player.play(isRunning); player.resetClock(); },
  next: () => { view.show?.next_level(); player.resetClock(); },
});
const agents = new Agents($("agent"), putOnStage, updateLink);
const rivals = new Rivals(agents, { set: setRivals, renew: renewRival });
const lab = new Lab(games, agents, updateLink, playImitator);
const recordings = new Recordings(trainImitator);
const text = new TextLab(showText);

/** Puts a policy file on the stage; games of the same kind continue. */
function putOnStage(file) {
  const policy = new Policy(file);
  const about = JSON.parse(policy.about());
  const network = settingAt(readToml(policy.settings()), "policy"); // before anything is changed, since it may throw
  const hasContinued = view.about?.env === about.env && continueWith(policy);
  if (!hasContinued) startGames(policy);
  view.policy?.free();
  Object.assign(view, { policy, about });
  panel.setPolicy(about, network);
  player.touch();
  if (hasContinued) return; // the texts are still right
  takeover.setGame(about.actions);
  tickGame();
  stage.setLabel(`${about.title}, played by the agent`);
  lab.setGame(about.env, about.references, about.settings);
  recordings.setGame(about.env, about.settings);
  rivals.setGame(about.env);
  updateLink();
}

/** Starts games of another kind. */
function startGames(policy) {
  view.show?.take_over(false);
  recordings.collect(view.show);
  const show = new Show(policy, view.seed, view.games);
  show.set_sampled(view.isSampled);
  if (takeover.isOn) show.take_over(true);
  view.show?.free();
  view.show = show;
  if (takeover.isOn) takeover.startDuel(player.isPlaying);
  player.resetClock();
  rivals.end();
}

/** Ticks the current choice among the games. */
function tickGame() {
  tick("game", text.isOn ? TASK : view.about?.env);
}

/** Shows text, while the game is paused, or games again. */
function showText(isOn) {
  if (takeover.isOn) takeover.setOn(false);
  if (isOn) view.wasPlayingBeforeText = player.isPlaying;
  player.play(isOn ? false : view.wasPlayingBeforeText);
  // A picked game is ticked once it is loaded.
  if (isOn) tickGame();
  document.querySelector(".skip").href = isOn ? "#text" : "#learn"; // each hides the other
  updateLink();
}

/** Shows a game, or text. */
function pickView(what) {
  view.requests += 1;
  if (what === TASK) return text.open(true);
  text.open(false);
  if (what !== view.about?.env) pickGame(what);
}

/** Trains on the person's games; ends the one under way. */
function trainImitator(about, file) {
  if (takeover.isOn) takeover.setOn(false);
  lab.imitate(about, recordings.file ?? file);
}

/** Puts the imitating agent beside the person, who may have gone to another game meanwhile. */
function playImitator() {
  if (lab.trainedGame !== lab.stagedGame || text.isOn) return announce(`Trained on your games of ${lab.titleOf(lab.trainedGame)}.`);
  agents.choose("here 1");
  announce("Trained on your games. Now play against it.");
  if (!takeover.isOn) takeover.setOn(true);
}

/** Puts these policies beside the agent, on its levels. */
function setRivals(policies) {
  if (takeover.isOn) takeover.setOn(false);
  view.show.set_beside(policies);
  view.games = 1;
  $("wall").value = 0;
  showSliderValues();
  player.resetClock();
  updateLink();
}

/** Replaces one of the policies beside the agent, which plays on. */
function renewRival(i, policy) {
  view.show.set_rival(i, policy);
  player.touch();
}

/** Continues the games on the stage with this policy; false if it has other rules. */
function continueWith(policy) {
  try {
    view.show.set_policy(policy);
    return true;
  } catch {
    return false;
  }
}

function step() {
  if (!view.show) return;
  view.show.step(takeover.action(view.about.actions));
  stepCount += 1;
  player.hasStepped = true;
  if (takeover.isOn) recordings.collect(view.show);
}

function draw(part) {
  if (!view.show) return;
  if (stage.draw(view.show, part) && !view.isDrawn) {
    view.isDrawn = true;
    performance.mark("first-frame");
    $("waiting").remove();
  }
  const report = panel.show(view.show, !player.isPlaying || (takeover.isOn && player.hasStepped));
  player.hasStepped = false;
  if (!report) return;
  takeover.showScores(report);
  labelBoards(report);
}

/** Frames the watched board of a wall, and labels the boards of a duel. */
function labelBoards(report) {
  const { watched, games: count, person } = report;
  const layout = stage.layout(view.show);
  if (!layout) return;
  if (person) takeover.placePlayers(layout);
  rivals.show(report, layout);
  shadeBoards(view.show, person ? 0 : count, layout);
  const frame = $("picked");
  frame.hidden = $("board-of").hidden = count < 2 || Boolean(person);
  if (frame.hidden) return;
  layout.placeFrame(frame, watched);
  $("board").max = count;
  if (document.activeElement !== $("board")) $("board").value = watched + 1;
}

/** Watches a board of a wall, by its number from 0. */
function watchBoard(board) {
  if (!view.show || takeover.isOn || !(board >= 0 && board < view.games) || view.games < 2) return;
  view.show.watch(board);
  player.touch();
}

/** Reports speed and memory, once a second. */
function showStatistics() {
  const now = performance.now();
  // A device may be lost while nothing is drawn.
  if (stage.screen?.lost() !== undefined) player.touch();
  const rate = (1000 * stepCount * (takeover.isOn ? 2 : view.games)) / (now - countedSince);
  [stepCount, countedSince] = [0, now];
  setText($("stat-steps"), `on the CPU in WebAssembly, ${formatShort(rate)} steps a second`);
  setText($("stat-memory"), [`${formatMegabytes(memory.buffer.byteLength)} of the page`, ...lab.trainingMemory].join(", "));
}

function restart() {
  const seed = $("seed").valueAsNumber;
  if (!Number.isInteger(seed) || seed < 0 || seed > MAX_SEED) {
    showNotice(`The seed must be a whole number from 0 to ${MAX_SEED}.`);
    $("seed").value = view.seed;
    return;
  }
  view.seed = seed;
  view.show?.restart(seed);
  if (takeover.isOn) {
    view.show?.take_over(true);
    takeover.restartRound(player.isPlaying);
  }
  player.resetClock();
  updateLink();
}

function takeOver(isOn) {
  if (!view.show) return;
  if (isOn) view.wasPlayingBeforeDuel = player.isPlaying;
  else player.play(view.wasPlayingBeforeDuel);
  if (isOn && rivals.chosenIds.length > 0) {
    view.show.set_beside([]);
    rivals.end();
  }
  view.show.take_over(isOn);
  recordings.collect(view.show);
  $("wall").disabled = isOn;
  player.maxSpeed = isOn ? FASTEST_FOR_PEOPLE : Infinity;
  player.resetClock();
}

/** Reports an agent that cannot be fetched; throws unless the stage is empty, where an untrained agent suffices. */
function reportMissingAgent(error) {
  if (view.show) throw error;
  showNotice(sentence(error));
}

/** Puts a game on the stage: its pretrained agent beside an untrained one, or the untrained one alone. `then()` is
    called once the agent is here. False if it came too late. */
async function stageGame(game, then = () => {}) {
  const request = (view.requests += 1);
  const file = READY.includes(game) ? await loadPretrained(game).catch(reportMissingAgent) : undefined;
  if (request !== view.requests) return false;
  then();
  const untrainedAgent = { label: "Untrained", boardName: "Untrained", file: takeFile(Policy.untrained(game)) };
  agents.byId.set("ready", file ? { label: "Pretrained", boardName: "Pretrained", file } : untrainedAgent);
  if (file) agents.byId.set("untrained", untrainedAgent);
  else agents.byId.delete("untrained");
  agents.choose("ready");
  agents.showList();
  if (file && view.games === 1) rivals.placeAgents(["untrained"]);
  return true;
}

/** Shows a game, and calls `then()` once its agent is here; false if that came too late. */
async function pickGame(game, then) {
  try {
    return await stageGame(game, then);
  } catch (error) {
    showNotice(sentence(error));
    tickGame();
    return true;
  }
}

async function loadFiles(files) {
  try {
    if (files.length === 1 && (await isLanguageModel(files[0]))) {
      if (await text.load(files)) pickView(TASK);
      return;
    }
    const recorded = files.length === 1 && (await recordings.load(files[0]));
    if (recorded) return announce(`Loaded ${files[0].name}: ${recorded.games} recorded ${recorded.games === 1 ? "game" : "games"} of ${lab.titleOf(recorded.env)}.`);
    const file = await readFiles(files);
    const { name } = files.find(({ name }) => !name.endsWith(".toml"));
    view.requests += 1;
    agents.choose(agents.offerFile(name, file)); // several files stay
    announce(`Loaded ${files.map(({ name }) => name).join(" and ")}, now playing.`);
  } catch (error) {
    showNotice(`${files.map(({ name }) => name).join(", ")}: ${sentence(error)}`);
  }
}

/** Writes the state of the page into the address. */
function updateLink() {
  if (!view.about) return;
  writeLink({
    game: text.isOn ? TASK : view.about.env === games[0].name ? undefined : view.about.env,
    seed: view.seed === 1 ? undefined : view.seed,
    games: view.games === 1 ? undefined : view.games,
    speed: player.speed === 1 ? undefined : player.speed === Infinity ? "max" : player.speed,
    actions: view.isSampled ? "sampled" : undefined,
    ...(text.isOn ? {} : lab.settings.changes()),
    agent: agents.chosenId === "link" ? view.packedAgent : undefined,
  });
}

/** Applies a link, which leaves out the defaults; invalid entries are ignored. */
function applyLink({ seed = "1", games: count = "1", speed = "1", actions }) {
  if (/^\d{1,10}$/.test(seed) && Number(seed) <= MAX_SEED) view.seed = Number(seed);
  if (/^\d{1,4}$/.test(count)) view.games = 2 ** Math.round(Math.log2(Math.min(1024, Math.max(1, Number(count)))));
  const linkedSpeed = speed === "max" ? Infinity : Number(speed);
  if (SPEEDS.includes(linkedSpeed)) player.speed = linkedSpeed;
  view.isSampled = actions === "sampled";
  $("seed").value = view.seed;
  $("wall").value = Math.log2(view.games);
  $("speed").value = SPEEDS.indexOf(player.speed);
  tick("actions", view.isSampled ? "sampled" : "greedy");
  showSliderValues();
}

/** Writes the values beside the sliders. */
function showSliderValues() {
  setText($("speed-out"), speedName(player.speed));
  setText($("wall-out"), `${view.games}`);
  $("speed").setAttribute("aria-valuetext", player.speed === Infinity ? "unlimited" : speedName(player.speed));
  $("wall").setAttribute("aria-valuetext", `${view.games}`);
}

/** Lists the games, and connects buttons, sliders, files, links and the visibility of the page. */
function connectControls() {
  // A page of user-defined games alone has no text.
  const texts = games.some(({ name }) => name === "fruit") ? [{ name: TASK, title: "Text: sort" }] : [];
  for (const { name, title } of [...games, ...texts]) {
    const input = make("input", { type: "radio", name: "game", value: name });
    $("game").append(make("label", {}, input, make("span", { textContent: title })));
  }
  $("game").addEventListener("change", (event) => pickView(event.target.value));
  $("stage").addEventListener("click", (event) => { if (view.show) watchBoard(stage.boardAt(view.show, event)); });
  $("board").addEventListener("input", () => watchBoard($("board").valueAsNumber - 1));
  ignorePresses();
  $("play").addEventListener("click", () => { takeover.endCountdown(); player.play(!player.isPlaying); });
  $("single").addEventListener("click", () => { takeover.endCountdown(); player.stepOnce(); });
  $("restart").addEventListener("click", restart);
  $("seed").addEventListener("keydown", (event) => { if (event.key === "Enter") restart(); });
  $("speed").addEventListener("input", () => { player.speed = SPEEDS[$("speed").valueAsNumber]; showSliderValues(); updateLink(); });
  $("wall").addEventListener("input", () => {
    view.games = 2 ** $("wall").valueAsNumber;
    view.show?.set_games(view.games);
    rivals.end();
    player.touch();
    showSliderValues();
    updateLink();
  });
  $("actions").addEventListener("change", (event) => {
    view.isSampled = event.target.value === "sampled";
    view.show?.set_sampled(view.isSampled);
    player.touch();
    updateLink();
  });
  $("save").addEventListener("click", () => agents.file() && download(`${view.about.env}.safetensors`, agents.file()));
  $("load").addEventListener("click", () => $("files").click());
  $("files").addEventListener("change", () => { loadFiles([...$("files").files]); $("files").value = ""; });
  onDrop((files) => (text.isOn ? text.load(files) : loadFiles(files)));
  $("share").addEventListener("click", () => copyLink(location.href, readLink().agent));
  $("share-agent").addEventListener("click", async () => {
    if (!agents.file()) return; // none could be fetched
    try {
      await copyLink(writeLink({ ...readLink(), agent: await pack(agents.file()) }), true);
    } catch (error) {
      showNotice(sentence(error));
    }
  });
  addEventListener("hashchange", () => {
    if ($(location.hash.slice(1))) return updateLink(); // a link to a part of the page, which is no link with settings
    const link = readLink();
    const game = knownGame(link.game);
    applyLink(link);
    view.show?.set_games(view.games);
    rivals.end();
    view.show?.set_sampled(view.isSampled);
    restart();
    if (link.game === TASK) return pickView(TASK);
    text.open(false);
    pickGame(game, () => lab.fill(game, link)).then((isInTime) => {
      if (!isInTime) return;
      tickGame(); // it may have been behind text
      if (link.agent) loadLinkedAgent(link.agent);
    });
  });
  reportAbsences(describeAbsence);
  addEventListener("beforeunload", (event) => { if (losesTraining()) event.preventDefault(); });
  setInterval(showStatistics, 1000);
}

/** Whether leaving the page interrupts or loses a training. */
const losesTraining = () => lab.isBusy() || lab.losesShelf() || text.isBusy();

/** The message about this tab's time in the background; undefined if nothing ran. */
function describeAbsence() {
  const isTraining = [lab, text].some(({ state }) => ["starting", "running"].includes(state));
  if (player.isPlaying) return `The game paused while this tab was in the background${isTraining ? "; training continued" : ""}.`;
  return isTraining ? "Training continued while this tab was in the background." : undefined;
}

/** Puts the agent of a link on the stage. */
async function loadLinkedAgent(packed) {
  try {
    const request = view.requests;
    const file = readPolicy(await unpack(packed));
    view.packedAgent = packed;
    agents.offer("link", "From the link", file);
    if (request === view.requests) agents.choose("link");
  } catch (error) {
    showNotice(`The agent in the link cannot be read: ${sentence(error)}`);
  }
}

async function offerLastAgent() {
  let file;
  try {
    file = await loadLast();
  } catch (error) {
    showNotice(`This browser stores nothing for the page (${reason(error)}). Save agents as files.`);
  }
  if (!file) return;
  try {
    agents.offer("kept", "Trained here last time", readPolicy(file), "Last time");
  } catch (error) {
    showNotice(`The agent trained here last time cannot be read: ${sentence(error)}`);
  }
}

async function watchRun() {
  const { requests } = view;
  const about = await askRun();
  if (about === DELETED) return showNotice("The run that this page watches has been deleted.");
  if (!about) return;
  // Another game, or text in its place, needs a new page.
  const replaced = ({ run }, former) => (losesTraining() ? showNotice(`Another run, ${run}, has taken the place of ${former.run}. Reload the page to watch it.`) : location.reload());
  // What the run learns is shown, even before its first policy, unless the visitor has picked something meanwhile.
  let visitorChooses = requests !== view.requests;
  if (!visitorChooses) text.open(Boolean(about.task));
  if (about.task) {
    const curves = Object.assign(new Curves(TEXT_CURVES), { task: about.task });
    text.follow(curves);
    new Live(about, curves, { replaced, changed: () => text.showNews() });
    return;
  }
  const curves = new Curves();
  const plays = (game) => knownGame(game) === game;
  const isOther = about.game !== view.about?.env && plays(about.game);
  if (isOther && !visitorChooses) visitorChooses = !(await pickGame(about.game));
  else if (!visitorChooses) tickGame(); // it may have been behind text
  const callbacks = { plays, replaced, changed: () => lab.showNews(), policy: (which, label, file) => {
    agents.offer(which, label, file);
    // The newest policy is put on the stage when the page opens; later the visitor chooses.
    if (which === "newest" && !visitorChooses) { visitorChooses = true; agents.choose(which); }
  } };
  lab.follow(curves);
  new Live(about, curves, callbacks);
}

connectControls();
applyLink(link);
await Promise.all([
  // The CPU draws first, and the GPU as soon as it is ready.
  stage.open(false).catch((error) => showNotice(`Nothing can be drawn: ${sentence(error)}`)),
  stageGame(firstGame, () => lab.fill(firstGame, link.game === TASK ? {} : link)).catch((error) => showNotice(sentence(error))),
]);
player.play(!player.reducedMotion.matches);
if (link.game === TASK) text.open(true);
if (player.reducedMotion.matches && !text.isOn) announce("Your system asks for less motion: press Play to start; the game moves step by step.");
setText($("stat-version"), version());
showStatistics();
linkProject(source);
if (link.agent) await loadLinkedAgent(link.agent);
offerLastAgent();
const resuming = text.resume().catch((error) => showNotice(`The training of the language model cannot be resumed: ${sentence(error)}`));
lab.resume().catch((error) => showNotice(`The last training cannot be resumed: ${sentence(error)}`));
const watching = watchRun().catch((error) => showNotice(`The run cannot be watched: ${sentence(error)}`));
Promise.all([resuming, watching]).then(() => text.endSearch());
await stage.open().catch(() => {}); // errors have been reported
await isolating;
performance.mark("ready");
if (!text.isOn) lab.warmUp();
